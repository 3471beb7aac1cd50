package locator

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// lostGrace is how long a call waits for a new link to a peer that it can go to
// alone, when the old one died before the call was on its way.
const lostGrace = 500 * time.Millisecond

// A Plan is the attempts of one call: where each goes, and whether there is one
// more. The Exchanges of a [Target] follow it by themselves; it is there for who
// passes calls on below them, splicing them onto links:
//
//	plan := target.Plan(in)
//	step, ok := plan.Try()
//	if !ok { ... where one may wait: step, err = plan.Next(ctx) }
//	... hand the call on; it fails with e ...
//	if plan.Again(e) { ... the same once more }
//
// Only one goroutine may use a Plan at a time, and it must not be copied after its
// first use.
type Plan struct {
	t      *Target
	method string
	units  uint32
	// attempt is that of the next Invoke.
	attempt    uint32
	triedLocal bool
	stale      bool // a peer did not have what it was thought to have
	tried      []address.InstanceID
	failed     *conduit.Error // of the last attempt

	// Of the last step. It is kept small: most calls make one attempt, and allocate
	// all of this.
	peer       *registry.Peer // nil if it was local
	local      bool
	idempotent bool
}

// Plan returns the attempts of a call, of which none was made yet.
func (t *Target) Plan(in *conduit.Invocation) Plan {
	t.l.budget.deposit()
	return Plan{t: t, method: in.Method, units: in.Units, attempt: in.Attempt}
}

// Step is where one attempt goes. It must be used for one call, or abandoned.
type Step struct {
	// Choice is the peer that was picked; not set if Local.
	Choice registry.Choice
	// Local: it goes to this instance.
	Local bool
	// Attempt is what the Invoke must say.
	Attempt uint32

	t *Target
}

// Invoke makes the attempt.
func (s *Step) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	if in.Attempt != s.Attempt {
		with := *in
		with.Attempt = s.Attempt
		in = &with
	}
	if s.Local {
		return s.t.local.Invoke(ctx, in)
	}
	return s.Choice.Invoke(ctx, in)
}

// Abandon says that the attempt is not made, if it was not.
func (s *Step) Abandon() { s.Choice.Abandon() }

// Next says where the next attempt goes, and waits until it may: as
// [registry.Registry.Pick] does, and as a peer asked for that was the only one. The
// error is what the call ends with.
func (p *Plan) Next(ctx context.Context) (Step, *conduit.Error) {
	s, err := p.next(func(q registry.Query) (registry.Choice, *conduit.Error) {
		return p.t.l.o.Registry.Pick(ctx, p.t.place, q)
	})
	if err == nil {
		return s, nil
	}
	if p.failed == nil {
		return Step{}, err
	}
	if s, ok := p.same(ctx); ok {
		return s, nil
	}
	p.t.l.budget.refund()
	return Step{}, p.failed
}

// same waits for the peers that were tried already, when there are no others: for
// as long as one asked for, or until there is a new link to one whose link died.
func (p *Plan) same(ctx context.Context) (Step, bool) {
	if ctx.Err() != nil || p.t.place == nil {
		return Step{}, false
	}
	q := registry.Query{Method: p.method, Units: p.units}
	if p.failed.Reason == conduit.ReasonPeerLost {
		if c, err := p.t.l.o.Registry.Await(ctx, p.t.place, q, lostGrace); err == nil {
			return p.remote(c), true
		}
		return Step{}, false
	}
	wait := p.sameAfter()
	if wait <= 0 || !pause(ctx, wait) {
		return Step{}, false
	}
	p.tried, p.triedLocal = p.tried[:0], false
	s, err := p.next(func(q registry.Query) (registry.Choice, *conduit.Error) {
		return p.t.l.o.Registry.TryPick(p.t.place, q)
	})
	return s, err == nil
}

// Try is Next for who cannot wait: ok is false if Next would wait, or fail, and
// Next is then to be called where waiting is possible.
func (p *Plan) Try() (s Step, ok bool) {
	s, err := p.next(func(q registry.Query) (registry.Choice, *conduit.Error) {
		return p.t.l.o.Registry.TryPick(p.t.place, q)
	})
	return s, err == nil
}

// sameAfter returns how long a peer wants to be left alone before it is tried once
// more, when there is no other; 0 = it is not to be tried.
func (p *Plan) sameAfter() time.Duration {
	e := p.failed
	if !e.Retryable || e.Reason == conduit.ReasonPeerUnreachable {
		return 0
	}
	return e.RetryAfter
}

// next says where the next attempt goes, by the given pick.
func (p *Plan) next(pick func(registry.Query) (registry.Choice, *conduit.Error)) (Step, *conduit.Error) {
	t := p.t
	var here Standing
	if t.local != nil && !p.triedLocal {
		here = t.l.o.Local.Look(t.a, p.method, p.units)
		if t.mine || t.l.o.PreferLocal && here.Hosted && here.Ready && here.Room {
			return p.here(here), nil // if it names this instance, this instance says what is wrong
		}
	}
	if t.place == nil {
		if here.Hosted || here.Deployed {
			return p.here(here), nil
		}
		return Step{}, t.nowhere()
	}
	c, err := pick(registry.Query{Method: p.method, Units: p.units, Tried: p.tried})
	switch {
	case err == nil:
		return p.remote(c), nil
	case here.Hosted:
		return p.here(here), nil // there is no other, so this instance judges
	case here.Deployed && err.Reason == conduit.ReasonDeploymentNotFound:
		return p.here(here), nil // it has the deployment, and so knows better what is missing
	}
	return Step{}, err
}

func (t *Target) nowhere() *conduit.Error {
	e := conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.NotSent, "this instance does not host %s, and it knows no other", t.a)
	if t.mine || !t.anyInstance() {
		e.Reason, e.Message = conduit.ReasonInstanceNotFound, "this instance hosts nothing, and it knows no other"
	}
	e.Op = "locator.pick"
	return e
}

func (t *Target) anyInstance() bool {
	_, anyInstance := t.a.Instance()
	return anyInstance
}

func (p *Plan) here(s Standing) Step {
	p.peer, p.local, p.idempotent = nil, true, s.Idempotent
	return Step{Local: true, Attempt: p.attempt, t: p.t}
}

func (p *Plan) remote(c registry.Choice) Step {
	p.peer, p.local, p.idempotent = c.Peer, false, c.Method.Idempotent
	return Step{Choice: c, Attempt: p.attempt, t: p.t}
}

// Again notes that the last attempt failed with an error before anything of an
// answer came, and reports whether the call may be tried once more. It counts as
// tried once more then.
func (p *Plan) Again(e *conduit.Error) bool {
	l := p.t.l
	if int64(p.attempt)+1 >= int64(l.o.Attempts) || !p.permits(e) || !l.budget.withdraw() {
		return false
	}
	p.attempt++
	p.failed = e
	switch {
	case p.local:
		p.triedLocal = true
	case p.peer != nil:
		p.tried = append(p.tried, p.peer.Instance())
	}
	return true
}

// permits says whether an error lets a call be tried again: it did not start, and
// another may do better; or it may have run, and may run twice.
func (p *Plan) permits(e *conduit.Error) bool {
	switch e.Outcome {
	case conduit.NotSent, conduit.Refused:
	case conduit.OutcomeUnknown:
		return p.idempotent && (e.Code == conduit.Unavailable || e.Retryable)
	default:
		return false
	}
	if !e.Retryable {
		return false
	}
	switch e.Reason {
	case conduit.ReasonInstanceNotFound, conduit.ReasonDeploymentNotFound, conduit.ReasonElementNotFound,
		conduit.ReasonServiceNotFound, conduit.ReasonMethodNotFound:
		// The peer has other things than it was thought to have: once may be chance.
		if p.peer != nil {
			p.peer.Refresh()
		}
		again := !p.stale
		p.stale = true
		return again
	}
	return true
}

// pause waits; it reports false if ctx leaves no time for it.
func pause(ctx context.Context, d time.Duration) bool {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
