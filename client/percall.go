package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/transport"
)

// perCall calls peers over a link for each call. Who is at the end of one is not
// known beforehand, so there is no pick: the peers are called in turn.
type perCall struct {
	urls     []string
	peers    []*transport.Peer
	attempts int
	timeout  time.Duration
	turn     atomic.Uint32
}

func newPerCall(t *transport.Client, urls []string, o *Options) *perCall {
	p := &perCall{urls: urls, attempts: o.Attempts, timeout: o.CallTimeout}
	for _, url := range urls {
		p.peers = append(p.peers, t.Peer(url))
	}
	return p
}

// connect makes sure that one of the peers is there.
func (p *perCall) connect(ctx context.Context) error {
	errs := make([]*conduit.Error, len(p.peers))
	type result struct {
		i   int
		err error
	}
	results := make(chan result, len(p.peers))
	ctx, cancel := context.WithCancel(ctx) // ends the waiting for the others, not their dials
	defer cancel()
	for i, peer := range p.peers {
		go func() { results <- result{i, peer.Connect(ctx)} }()
	}
	for range p.peers {
		r := <-results
		if r.err == nil {
			return nil
		}
		errs[r.i] = conduit.AsError(r.err, conduit.NotSent)
	}
	return unreached(errs)
}

func (p *perCall) at(addr string) conduit.Invoker {
	a, err := address.Parse(addr)
	if err != nil {
		e := badOptions(err.Error(), err)
		e.Op = "client.at"
		return failing{e}
	}
	place := &loneTarget{p: p, a: a}
	for _, peer := range p.peers {
		place.targets = append(place.targets, peer.At(a))
	}
	return place
}

// loneTarget is an address that is called over a link for each call.
type loneTarget struct {
	p       *perCall
	a       address.Address
	targets []conduit.Target // one for each peer
}

// Address implements conduit.Target.
func (t *loneTarget) Address() address.Address { return t.a }

// Invoke implements conduit.Invoker. It waits while a peer is dialled.
func (t *loneTarget) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	turn := int(t.p.turn.Add(1)-1) % len(t.targets)
	if !in.Last {
		// What goes up is not all here, so it cannot go up again.
		return t.targets[turn].Invoke(ctx, in)
	}
	x := &loneExchange{t: t, turn: turn, in: *in}
	x.ctx, x.end = context.WithCancelCause(ctx)
	if _, ok := ctx.Deadline(); !ok && t.p.timeout > 0 && !in.Streaming && !in.Background {
		limited, free := context.WithTimeout(x.ctx, t.p.timeout)
		end := x.end
		x.ctx, x.end = limited, func(cause error) { end(cause); free() }
	}
	x.current = t.targets[turn].Invoke(x.ctx, &x.in) //nolint:contextcheck // a child of ctx
	return x
}

// loneExchange is a call that may be tried again, at the next peer or, over a new
// link, at whoever the middle box has there.
type loneExchange struct {
	t    *loneTarget
	ctx  context.Context //nolint:containedctx // the call's own: later attempts are made in it
	end  context.CancelCauseFunc
	in   conduit.Invocation
	turn int

	settled bool // an answer has come, or the last error; of the one goroutine that receives

	mu      sync.Mutex
	current conduit.Exchange
}

// Send implements conduit.Exchange; the request was all there is to send.
func (x *loneExchange) Send(context.Context, []byte) error {
	return conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonWrongShape, conduit.OutcomeUnknown, "a message after the last")
}

// CloseSend implements conduit.Exchange.
func (x *loneExchange) CloseSend() error { return nil }

// Cancel implements conduit.Exchange.
func (x *loneExchange) Cancel(cause error) {
	x.end(cause) // before it looks for the attempt: one that is not there yet looks at this
	x.at().Cancel(cause)
}

func (x *loneExchange) at() conduit.Exchange {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.current
}

// Recv implements conduit.Exchange.
func (x *loneExchange) Recv(ctx context.Context) (conduit.Message, error) {
	for {
		m, err := x.at().Recv(ctx)
		if err == nil {
			if x.settled = true; m.Last {
				x.end(nil)
			}
			return m, nil
		}
		e, ok := errors.AsType[*conduit.Error](err)
		if ok && !x.settled && x.again(ctx, e) {
			continue
		}
		x.settled = true
		x.end(nil)
		return m, err
	}
}

// again makes the next attempt, if the last one's error allows one.
func (x *loneExchange) again(ctx context.Context, e *conduit.Error) bool {
	unstarted := e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused
	if !unstarted || !e.Retryable || int(x.in.Attempt)+1 >= x.t.p.attempts {
		return false
	}
	if len(x.t.targets) == 1 && !pause(ctx, x.ctx, e.RetryAfter) || ctx.Err() != nil || x.ctx.Err() != nil {
		return false
	}
	x.turn = (x.turn + 1) % len(x.t.targets)
	x.in.Attempt++
	// The dial ends with this Recv, and the call with its own context.
	defer context.AfterFunc(ctx, func() { x.end(context.Cause(ctx)) })()
	fresh := x.t.targets[x.turn].Invoke(x.ctx, &x.in) //nolint:contextcheck // the attempt outlives this Recv
	x.mu.Lock()
	x.current = fresh
	x.mu.Unlock()
	if err := context.Cause(x.ctx); err != nil { //nolint:contextcheck // it tells of a Cancel
		fresh.Cancel(err)
	}
	return true
}

// pause waits before an attempt; it reports false if either context leaves no time
// for it.
func pause(a, b context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	for _, ctx := range []context.Context{a, b} {
		if at, ok := ctx.Deadline(); ok && time.Until(at) <= d {
			return false
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a.Done():
	case <-b.Done():
	}
	return false
}

// failing is an Invoker whose every call fails.
type failing struct{ err *conduit.Error }

// Invoke implements conduit.Invoker.
func (f failing) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	e := *f.err
	e.Method = in.Method
	return conduit.FailedExchange(&e)
}

// unknown is what a Client with PerCall cannot do, by its name.
type unknown struct{ what string }

func (u unknown) err(method string) *conduit.Error {
	e := conduit.Errorf(conduit.Unimplemented, conduit.ReasonUnspecified, conduit.NotSent,
		"a client with PerCall does not know what its peers host, so it has no %s: dial one without PerCall", u.what)
	e.Op, e.Method = "client.at", method
	return e
}

// Invoke implements conduit.Invoker.
func (u unknown) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	return conduit.FailedExchange(u.err(in.Method))
}

// Members implements conduit.Group.
func (u unknown) Members(context.Context) ([]conduit.Member, error) { return nil, u.err("") }
