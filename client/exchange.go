package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
)

// exchange is a call that may be tried at several peers: its request is one
// message, at hand until the first answer.
type exchange struct {
	p     *place
	ctx   context.Context //nolint:containedctx // the call's own: later attempts are made in it
	in    conduit.Invocation
	order []int
	until time.Time // of all attempts together, where ctx has no deadline

	// Of the one goroutine that receives.
	tries   int              // attempts that have failed
	failed  []*conduit.Error // the errors of the attempts that another followed
	settled bool             // an answer has come, or the last error
	attempt context.Context  //nolint:containedctx // of an attempt after the first; nil until then

	mu       sync.Mutex
	current  conduit.Exchange
	canceled bool
	release  context.CancelCauseFunc // of attempt
}

// Send implements conduit.Exchange; the request was all there is to send.
func (x *exchange) Send(context.Context, []byte) error {
	return conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonWrongShape, conduit.OutcomeUnknown, "a message after the last")
}

// CloseSend implements conduit.Exchange.
func (x *exchange) CloseSend() error { return nil }

// Cancel implements conduit.Exchange.
func (x *exchange) Cancel(cause error) {
	x.mu.Lock()
	x.canceled = true
	current, release := x.current, x.release
	x.mu.Unlock()
	current.Cancel(cause)
	if release != nil {
		release(cause)
	}
}

// Recv implements conduit.Exchange.
func (x *exchange) Recv(ctx context.Context) (conduit.Message, error) {
	for {
		x.mu.Lock()
		current := x.current
		x.mu.Unlock()
		m, err := x.recv(ctx, current)
		if err == nil {
			x.settled = true
			return m, nil
		}
		e, ok := errors.AsType[*conduit.Error](err)
		if x.settled || !ok || !x.again(ctx, e) {
			x.settled = true
			x.mu.Lock()
			release := x.release
			x.mu.Unlock()
			if release != nil {
				release(nil)
			}
			if ok && len(x.failed) > 0 {
				return m, x.summary(e)
			}
			return m, err
		}
	}
}

// recv receives from the present attempt, within ctx and what is left for all
// attempts. The first has no need of the latter: its link has the same limit.
func (x *exchange) recv(ctx context.Context, current conduit.Exchange) (conduit.Message, error) {
	switch {
	case x.attempt == nil:
		return current.Recv(ctx)
	case ctx == x.ctx:
		return current.Recv(x.attempt) //nolint:contextcheck // a child of ctx
	}
	both, stop := join(x.attempt, ctx)
	defer stop()
	return current.Recv(both)
}

// join returns a context that ends with either of two, and what frees it.
func join(a, b context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return both, func() { stop(); cancel(nil) }
}

// again begins the next attempt, if the last one's error allows one.
func (x *exchange) again(ctx context.Context, e *conduit.Error) bool {
	x.tries++
	if x.tries >= x.p.c.o.Attempts || ctx.Err() != nil {
		return false
	}
	next, wait, ok := x.next(e)
	if !ok || !x.begin() {
		return false
	}
	both, stop := join(x.attempt, ctx)
	defer stop()
	if !pause(both, wait) {
		return false
	}
	x.failed = append(x.failed, e)
	x.in.Attempt++
	// The call is the attempt's; but the dial before it also ends with ctx.
	var fresh conduit.Exchange
	if err := x.connect(both, next); err != nil {
		failed := *conduit.AsError(err, conduit.NotSent)
		failed.Address, failed.Method = x.p.a.String(), x.in.Method
		fresh = conduit.FailedExchange(&failed)
	} else {
		fresh = x.p.targets[next].Invoke(x.attempt, &x.in) //nolint:contextcheck // the attempt outlives this Recv, and its context is a child of the call's
	}

	x.mu.Lock()
	x.current = fresh
	canceled := x.canceled
	x.mu.Unlock()
	if canceled {
		fresh.Cancel(context.Canceled)
	}
	return true
}

// connect makes sure that there is a link, unless each call has its own.
func (x *exchange) connect(ctx context.Context, peer int) error {
	if x.p.c.o.PerCall {
		return nil
	}
	return x.p.c.peers[peer].Connect(ctx)
}

// summary is the last error, with what the attempts before it met.
func (x *exchange) summary(last *conduit.Error) *conduit.Error {
	e := *last
	var b strings.Builder
	fmt.Fprintf(&b, "%s (attempt %d; before it:", e.Message, len(x.failed)+1)
	for _, f := range x.failed {
		b.WriteString(" " + f.Message + ";")
	}
	e.Message = strings.TrimSuffix(b.String(), ";") + ")"
	return &e
}

// begin makes the context of the attempts after the first, unless the call was
// cancelled: from here on Cancel ends it as well.
func (x *exchange) begin() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.canceled {
		return false
	}
	if x.attempt != nil {
		return true
	}
	x.attempt, x.release = context.WithCancelCause(x.ctx)
	if !x.until.IsZero() {
		ctx, free := context.WithDeadline(x.attempt, x.until)
		release := x.release
		x.attempt, x.release = ctx, func(cause error) { release(cause); free() }
	}
	return true
}

// pause waits before an attempt; it reports false if ctx leaves no time for it.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
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

// next says where to try after an error, and how long to wait before.
func (x *exchange) next(e *conduit.Error) (peer int, wait time.Duration, ok bool) {
	if e.Outcome != conduit.NotSent && e.Outcome != conduit.Refused {
		return 0, 0, false // it may have run
	}
	elsewhere := e.Retryable || notHosted(e)
	switch {
	case !elsewhere:
		return 0, 0, false
	case x.tries < len(x.order):
		return x.order[x.tries], 0, true
	case len(x.order) > 1 || !e.Retryable:
		return 0, 0, false
	case e.Reason == conduit.ReasonPeerLost:
		return x.order[0], 0, true // the link died under it: the next call dials anew
	case e.Reason != conduit.ReasonPeerUnreachable && e.RetryAfter > 0:
		return x.order[0], e.RetryAfter, true // there is no other, and it said when
	}
	return 0, 0, false
}

// notHosted says whether an error means that the peer lacks what was called,
// which another one may have.
func notHosted(e *conduit.Error) bool {
	switch e.Reason {
	case conduit.ReasonDeploymentNotFound, conduit.ReasonElementNotFound, conduit.ReasonServiceNotFound:
		return true
	}
	return false
}
