package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Who refuses a call may be a program on another machine, and does not know that a
// person at a command line reads what it says. What to do next at this one is added here.

// advise adds what to do at a command line to an error that has a reason for which there
// is something. The text of an error that an element made is its own.
func advise(err error) error {
	e := conduit.AsError(err, conduit.NotSent)
	switch {
	case e.Reason == conduit.ReasonSessionExpired:
		return withMore(err, "; a new session is made with `conduit-host session mint --user NAME`")
	case e.Outcome == conduit.Executed:
		return err
	case e.Reason == conduit.ReasonLevelTooLow && strings.HasSuffix(e.Message, "the caller is anonymous"):
		return withMore(err, "; say who calls with --session @FILE, a file with what `conduit-host session mint --user NAME` prints")
	case e.Reason == conduit.ReasonUserNotFound:
		return withMore(err, "; `conduit-host user ls` lists them, and `conduit-host user add` adds one")
	}
	return err
}

// elsewhere is how advice begins that is for all who read such an error, wherever they are.
//
//nolint:gochecknoglobals // a table
var elsewhere = []string{"; its binary's describe", "; \"user ls\" shows"}

// withMore is an error with more in its message, in place of what stands there for those
// who have no command line, which ends the command as it did.
func withMore(err error, more string) error {
	e := *conduit.AsError(err, conduit.NotSent)
	message := errorMessage(&e)
	for _, begin := range elsewhere {
		message, _, _ = strings.Cut(message, begin)
	}
	e.Message = message + more
	return rewrap(err, &e)
}

// rewrap gives an error in place of another the mark of how the command ended.
func rewrap(old, e error) error {
	switch old.(type) { //nolint:errorlint // the marks are outermost
	case *interruptedError:
		return &interruptedError{e}
	case *deadlineError:
		return &deadlineError{e}
	default:
		return e
	}
}

// adviseCall adds to the error of a call what the address or the method was meant to be,
// and what lists them. infos are asked for only if they matter: what instances say of
// themselves.
func adviseCall(err error, addr address.Address, method string, infos func() []*conduitv1.InstanceInfo) error {
	if err == nil {
		return nil
	}
	e := conduit.AsError(err, conduit.NotSent)
	if e.Outcome == conduit.Executed || isBuiltinDeployment(addr.DeploymentText()) {
		return err
	}
	switch e.Reason {
	case conduit.ReasonMethodNotFound:
		return withMore(err, orList(e, config.Nearest(method, methodNames(infos(), addr)), "conduit-host describe '"+addr.String()+"'"))
	case conduit.ReasonDeploymentNotFound:
		return withMore(err, orList(e, config.Nearest(addr.DeploymentText(), deploymentNames(infos())), "conduit-host ls deployments --cluster"))
	}
	return err
}

// orList says what was meant, if that is known, and which command lists what there is,
// unless the error does.
func orList(e *conduit.Error, near, command string) string {
	list := ""
	if !strings.Contains(e.Message, "ls deployments") {
		list = fmt.Sprintf("; `%s` lists what there is", command)
	}
	if near == "" {
		return list
	}
	return list + "; did you mean " + near + "?"
}

// infosFor asks the other end of a connection what it and those that it knows host; it is
// not told where the caller may not know.
func (a *app) infosFor(ctx context.Context, c connection, addr address.Address) []*conduitv1.InstanceInfo {
	if len(a.peers) > 0 {
		if info, err := whoAreYou(ctx, c, instanceOf(addr)); err == nil {
			return []*conduitv1.InstanceInfo{info}
		}
		return nil
	}
	peers, err := instances(ctx, c)
	if err != nil {
		return nil
	}
	return infosOf(peers)
}

// methodNames are the methods of a service, as far as instances tell of them.
func methodNames(infos []*conduitv1.InstanceInfo, addr address.Address) (names []string) {
	for _, info := range infos {
		s, err := findService(info, addr)
		if err != nil {
			continue
		}
		for _, m := range s.Methods {
			names = append(names, m.Method)
		}
	}
	return inOrder(names)
}

// deploymentNames are the deployments that an address can name.
func deploymentNames(infos []*conduitv1.InstanceInfo) (names []string) {
	for _, info := range infos {
		for _, d := range info.GetDeployments() {
			if !d.GetTransient() {
				names = append(names, d.GetName())
			}
		}
	}
	return inOrder(names)
}

func inOrder(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
