package router

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/locator"
)

// passing is one call on its way. It implements link.Router. One goroutine at a
// time uses it: whoever has the call to decide.
type passing struct {
	r    *Router
	door Door
	in   conduit.Invocation
	plan locator.Plan
	// ended hears of the end; nil until the call has gone to a peer.
	ended func(code conduit.Code, outcome conduit.Outcome)
	// here owns the attempt that is made at this instance; nil while none is.
	here link.Owner
	// next is the attempt to make where one may wait, since its link is yet to be
	// dialled; set if waits.
	next  locator.Step
	waits bool
	// alone is the link of this attempt and no other; nil if it is a shared one.
	alone *link.Conn
}

// hereFirst is a call that this instance's elements are asked to take: whoever
// splices it onto one's link has it held, so that it goes on to a peer if the element
// refuses it, or dies.
type hereFirst struct {
	Call
	p *passing
}

// Splice implements Call.
func (h hereFirst) Splice(to *link.Conn, out *frame.Invoke, owner link.Owner, tag uint64) {
	h.p.here = owner
	h.SpliceHeld(to, out, h.p, tag)
}

// tryNow makes the next attempt, if one can be made without waiting, and reports
// whether the call is decided, if only for this attempt.
func (p *passing) tryNow(c Call, inv *frame.Invoke) bool {
	for {
		step, ok := p.plan.Try()
		if !ok {
			return false
		}
		if !step.Local && p.r.o.Alone != nil {
			p.next, p.waits = step, true
			return false
		}
		err := p.take(p.r.closing, step, c, inv)
		if err == nil {
			return true
		}
		if !p.plan.Again(err) {
			c.Refuse(err)
			return true
		}
	}
}

// take makes an attempt. The error is this instance's own refusal, or why the call has
// no link of its own, and leaves the call as it was; what a peer says comes by Failed.
// It waits, within ctx, only for such a link.
func (p *passing) take(ctx context.Context, step locator.Step, c Call, inv *frame.Invoke) *conduit.Error {
	if step.Local {
		here := *inv
		here.Attempt = step.Attempt
		return p.door.Here(hereFirst{c, p}, &here)
	}
	out, err := p.door.ToPeer(inv, step.Attempt)
	if err != nil {
		step.Abandon()
		return err
	}
	out.Units = step.Choice.Units
	to := step.Choice.Peer.Link()
	step.Choice.Handed()
	var conn *link.Conn
	if p.r.o.Alone == nil {
		conn = p.r.o.ConnOf(to)
	} else {
		if conn, err = p.r.o.Alone(ctx, to, out.Units, inv.Background); err != nil {
			return err
		}
		p.alone = conn
	}
	if p.ended == nil && p.door.Passed != nil {
		p.ended = p.door.Passed(inv)
	}
	c.SpliceHeld(conn, &out, p, 0)
	return nil
}

// Failed implements link.Router: the last attempt failed, and c is this call's to
// decide about again, if there may be another.
func (p *passing) Failed(c link.Parked, tag uint64, err *conduit.Error) bool {
	p.endAttempt(tag, err.Code, err.Outcome)
	if !p.plan.Again(err) {
		return false
	}
	if !p.tryNow(c, c.Invoke()) {
		p.wait(c)
	}
	return true
}

// CallEnded implements link.Owner.
func (p *passing) CallEnded(tag uint64, code conduit.Code, outcome conduit.Outcome) {
	p.endAttempt(tag, code, outcome)
	if p.ended != nil {
		p.ended(code, outcome)
	}
}

// endAttempt tells the owner of an attempt at this instance that it is over, and closes
// the link that an attempt had for itself.
func (p *passing) endAttempt(tag uint64, code conduit.Code, outcome conduit.Outcome) {
	if alone := p.alone; alone != nil {
		p.alone = nil
		alone.Close(link.CloseDone, "the call has ended")
	}
	if here := p.here; here != nil {
		p.here = nil
		here.CallEnded(tag, code, outcome)
	}
}

// wait makes the next attempt when the plan permits, which may be soon or never.
func (p *passing) wait(c link.Parked) {
	if !p.r.later(func() { p.await(c) }) {
		if p.waits {
			p.waits = false
			p.next.Abandon()
		}
		e := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "this instance is stopping")
		e.Retryable = true
		c.Fail(e)
	}
}

func (p *passing) await(c link.Parked) {
	ctx, cancel := context.WithCancel(p.r.closing)
	defer cancel()
	if at, ok := c.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, at)
		defer cancel()
	}
	over := c.Done()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-over:
			cancel()
		case <-stop:
		}
	}()
	for {
		step, err := p.nextStep(ctx)
		if err == nil {
			err = p.take(ctx, step, c, c.Invoke())
			if err == nil {
				return
			}
			if p.plan.Again(err) {
				continue
			}
		}
		c.Fail(err)
		return
	}
}

// nextStep is where the next attempt goes, if it is known, or else when the plan says.
func (p *passing) nextStep(ctx context.Context) (locator.Step, *conduit.Error) {
	if p.waits {
		p.waits = false
		return p.next, nil
	}
	return p.plan.Next(ctx)
}
