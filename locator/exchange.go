package locator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
)

// exchange is a call that may be tried again: its request is one message or none,
// and at hand until the first answer.
type exchange struct {
	ctx   context.Context //nolint:containedctx // the call's own: later attempts are made in it
	in    conduit.Invocation
	until time.Time // of all attempts together, where ctx has no deadline

	// Of the one goroutine that receives.
	plan    Plan
	failed  []*conduit.Error // the errors of the attempts that another followed
	settled bool             // an answer has come, or the last error
	attempt context.Context  //nolint:containedctx // of an attempt after the first; nil until then

	// current is set by the goroutine that receives, with mu held.
	current conduit.Exchange

	mu       sync.Mutex
	canceled bool
	release  context.CancelCauseFunc // of attempt
}

// begin notes the limit of the call's time.
func (x *exchange) begin(timeout time.Duration) {
	if _, ok := x.ctx.Deadline(); !ok && timeout > 0 && !x.in.Streaming && !x.in.Background {
		x.until = time.Now().Add(timeout)
	}
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
		m, err := x.recv(ctx, x.current) // nobody else sets it
		if err == nil {
			if x.settled = true; m.Last {
				_ = x.end(io.EOF) // which is what it would return
			}
			return m, nil
		}
		if err == io.EOF { // most calls end so
			return m, x.end(err)
		}
		e, ok := errors.AsType[*conduit.Error](err)
		if ok && !x.settled && x.again(ctx, e) {
			continue
		}
		if ok && len(x.failed) > 0 {
			err = x.summary(e)
		}
		return m, x.end(err)
	}
}

// end notes that nothing more comes, and frees what later attempts needed.
func (x *exchange) end(err error) error {
	x.settled = true
	if x.attempt != nil {
		x.mu.Lock()
		release := x.release
		x.mu.Unlock()
		release(nil)
	}
	return err
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

// again begins the next attempt, if there is one after such an error.
func (x *exchange) again(ctx context.Context, e *conduit.Error) bool {
	if ctx.Err() != nil || !x.prepare() || x.attempt.Err() != nil || !x.plan.Again(e) {
		return false
	}
	both, stop := join(x.attempt, ctx)
	defer stop()
	step, err := x.plan.Next(both)
	if err != nil {
		return false // e is what the call ends with
	}
	x.failed = append(x.failed, e)
	fresh := step.Invoke(x.attempt, &x.in) //nolint:contextcheck // the attempt outlives this Recv, and its context is a child of the call's

	x.mu.Lock()
	x.current = fresh
	canceled := x.canceled
	x.mu.Unlock()
	if canceled {
		fresh.Cancel(context.Canceled)
	}
	return true
}

// prepare makes the context of the attempts after the first, unless the call was
// cancelled: from here on Cancel ends it as well.
func (x *exchange) prepare() bool {
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
