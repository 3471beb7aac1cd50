package builtin

import (
	"fmt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Door is where a call came in.
type Door uint8

// The doors of an instance.
const (
	// Cluster is /cluster/v1: instances and clients. Admin is refused there
	// unless Options.RemoteAdmin.
	Cluster Door = iota
	// Plugin is the link of an element.
	Plugin
	// Management is the socket of the operators.
	Management
)

// Door returns what takes the calls that come in at a door: those to the
// built-in services of this instance are answered, all others go to next. Without
// next they are refused.
func (s *Services) Door(at Door, next link.Handler) link.Handler {
	return &door{s: s, at: at, next: next}
}

type door struct {
	s    *Services
	at   Door
	next link.Handler
}

// asker is who asks, and how much he is told.
type asker struct {
	user  string
	level conduit.Level
	// operator: he is told everything, what the machine looks like included.
	operator bool
}

// Handle implements link.Handler. It never blocks: a method that is answered at
// all is answered on a goroutine of its own.
func (d *door) Handle(in *link.Incoming) {
	inv := in.Invoke
	if !d.s.isMine(inv.Instance, inv.Deployment) {
		if d.next != nil {
			d.next.Handle(in)
			return
		}
		in.Refuse(refuse(inv, conduit.NotFound, conduit.ReasonInstanceNotFound, "this is the instance %s, and its deployment conduit", d.s.instance))
		return
	}
	user, level, err := d.s.o.Authorize(in.Peer(), inv)
	if err != nil {
		in.Refuse(err)
		return
	}
	d.s.serve(d.at, in, inv, user, level)
}

// Call is one that is to be decided: a *link.Incoming, or a link.Parked.
type Call interface {
	Refuse(err *conduit.Error)
	Serve(fn link.ServeFunc)
}

// Take answers a call that came in at a door, if it is to the built-in services of
// this instance, and reports whether it was. It is for who has found out already as
// whom the call runs; inv is the call as it came. It does not block.
func (s *Services) Take(at Door, c Call, inv *frame.Invoke, user string, level conduit.Level) bool {
	if !s.isMine(inv.Instance, inv.Deployment) {
		return false
	}
	s.serve(at, c, inv, user, level)
	return true
}

func (s *Services) serve(at Door, c Call, inv *frame.Invoke, user string, level conduit.Level) {
	m, who, err := s.admit(at, inv, user, level)
	if err != nil {
		c.Refuse(err)
		return
	}
	c.Serve(m.serve(s, who))
}

// admit finds the method and checks that it may be called here.
func (s *Services) admit(at Door, inv *frame.Invoke, user string, level conduit.Level) (method, asker, *conduit.Error) {
	service, found := s.methods[string(inv.Service)]
	switch {
	case string(inv.Element) != "conduit" || inv.HasOrdinal && inv.Ordinal != 0:
		return method{}, asker{}, refuse(inv, conduit.NotFound, conduit.ReasonElementNotFound, "the deployment conduit has one element, conduit")
	case !found:
		return method{}, asker{}, refuse(inv, conduit.NotFound, conduit.ReasonServiceNotFound, "the built-in services are conduit.v1.Instance and conduit.v1.Admin, not %q", inv.Service)
	}
	m, found := service[string(inv.Method)]
	if !found {
		return method{}, asker{}, refuse(inv, conduit.NotFound, conduit.ReasonMethodNotFound, "the service %s has no method %q; proto/conduit/v1/services.proto describes them", inv.Service, inv.Method)
	}
	open := at == Management || at == Cluster && s.o.RemoteAdmin
	who := asker{user: user, level: level, operator: open && level >= conduit.Superuser}
	switch {
	case !m.admin || who.operator:
		return m, who, nil
	case !open:
		why := "operators call it at the instance's management socket"
		if at == Cluster {
			why += ", which the command line uses without --peer, or here if host.remote_admin is set"
		}
		return method{}, asker{}, refuse(inv, conduit.PermissionDenied, conduit.ReasonNotRemote, "the service %s is not served here: %s", inv.Service, why)
	default:
		return method{}, asker{}, refuse(inv, conduit.PermissionDenied, conduit.ReasonLevelTooLow, "the service %s is for level superuser and above, the caller is %s", inv.Service, level)
	}
}

// refuse makes the error of a call that was not started.
func refuse(inv *frame.Invoke, code conduit.Code, reason, format string, args ...any) *conduit.Error {
	return &conduit.Error{
		Code: code, Reason: reason, Outcome: conduit.Refused, Op: "builtin",
		Message: fmt.Sprintf(format, args...), Method: string(inv.Method),
	}
}
