package host

import (
	"context"
	"fmt"
	"slices"

	"github.com/elemental-conduit/conduit"
)

// SetEnabled turns a deployment off, or on again. What is off takes no calls and has no
// process, until it is turned on: that is remembered over the end of the host, but for a
// transient deployment. Turning off drains as an undeploy does, and returns when nothing
// runs; turning on returns when it serves. What its manifest turns off stays so: to turn it
// on is refused, with disabled, and to turn it off keeps it off when the manifest no longer
// does. The errors are those of [Host.Restart].
func (h *Host) SetEnabled(ctx context.Context, name string, on bool) (Change, error) {
	list, unlock, err := h.lockDeployment(ctx, name)
	if err != nil {
		return Change{}, err
	}
	held := true
	defer func() {
		if held {
			unlock()
		}
	}()
	if on {
		if list, err = h.findAsItIs(ctx, name); err != nil {
			return Change{}, err
		}
	}
	e := list[0]
	if why := offInManifest(list); on && why != "" {
		return Change{}, errOffInManifest(e.deployment, why)
	}
	if !slices.ContainsFunc(list, func(e *element) bool { return e.isOff() == on }) {
		c := changeOf(list)
		c.Result = ResultUnchanged
		c.Note = map[bool]string{true: "it was enabled", false: "it was disabled"}[on]
		return c, nil
	}
	if e.transient == "" { // before it happens: what is off must not come back with the host
		if err := h.record.change(e.deployment, func(r *recorded) { r.Disabled = !on }); err != nil {
			return Change{}, errNotWritable("%v", err)
		}
	}
	h.log.Info(map[bool]string{true: "enabled by an operator", false: "disabled by an operator"}[on], "deployment", e.deployment)
	var all []begun
	for _, e := range list {
		sum, round := e.turn(on)
		all = append(all, begun{e: e, sum: sum, round: round})
	}
	unlock() // a stop may take its time, and may be thought better of
	held = false
	return h.awaitAll(ctx, all)
}

// turn turns the element on or off, and returns what is to run when it is on.
func (e *element) turn(on bool) (sum string, round uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.off = !on
	e.tried = attempt{}
	e.settled = false
	e.poke()
	if e.want.binary != nil {
		sum = e.want.binary.sum
	}
	return sum, e.want.round
}

// isOff reports whether an operator has turned the element off.
func (e *element) isOff() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.off
}

// rest is what an element does that is off: nothing, until something has changed.
func (e *element) rest(ctx context.Context, why string) {
	e.leave()
	e.retiring.Wait()
	e.servesNothing()
	e.set(Disabled, "", why)
	e.settle()
	e.pause(ctx, -1)
}

// stay takes a leave back that was for being off: old generations may take their time
// again.
func (e *element) stay() {
	if e.left {
		e.left = false
		e.leaving = make(chan struct{})
	}
}

// offInManifest returns where the manifest of a deployment turns it off; "" if it does not.
func offInManifest(list []*element) string {
	for _, e := range list {
		if f, _ := e.wanted(); f.disabled {
			return f.path
		}
	}
	return ""
}

func errOffInManifest(name, where string) *conduit.Error {
	return operatorError(conduit.FailedPrecondition, conduit.ReasonDisabled, conduit.Refused, "deployment %s is disabled by its manifest, which no operator overrides: write `enabled: true` there (%s)", name, where)
}

func errDisabled(name string) *conduit.Error {
	return operatorError(conduit.FailedPrecondition, conduit.ReasonDisabled, conduit.Refused, "deployment %s is disabled: enable it first", name)
}

// operatorError is an error of what an operator asked for.
func operatorError(code conduit.Code, reason string, outcome conduit.Outcome, format string, args ...any) *conduit.Error {
	return &conduit.Error{Code: code, Reason: reason, Outcome: outcome, Op: "host.operate", Message: fmt.Sprintf(format, args...)}
}

func errNotWritable(format string, args ...any) *conduit.Error {
	return operatorError(conduit.FailedPrecondition, conduit.ReasonNotWritable, conduit.Refused, format, args...)
}
