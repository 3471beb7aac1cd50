package link

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of a handler: it ends when the call is cancelled, with
// the cause, at the deadline, and when the handler has returned.
//
// Most handlers neither wait for its end nor derive a context from it. What that takes
// (a channel, a timer, a list of children: nine allocations of the twenty that a served
// call made) is there from when somebody first asks for it.
type callContext struct {
	deadline time.Time // zero = none

	mu     sync.Mutex
	ended  error // Err and Cause while real is nil; nil = it has not been seen to end
	cause  error
	real   context.Context //nolint:containedctx // stands in for this one
	cancel context.CancelCauseFunc
	free   context.CancelFunc // of the timer; nil if there is none
}

// Deadline implements context.Context.
func (x *callContext) Deadline() (time.Time, bool) { return x.deadline, !x.deadline.IsZero() }

// Done implements context.Context.
func (x *callContext) Done() <-chan struct{} { return x.made().Done() }

// Value implements context.Context. It has no values of its own, but the standard
// library finds a cause, and who cancels a child, by a key that only it knows.
func (x *callContext) Value(key any) any { return x.made().Value(key) }

// Err implements context.Context.
func (x *callContext) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.real != nil {
		return x.real.Err()
	}
	x.look()
	return x.ended
}

// why is context.Cause.
func (x *callContext) why() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.real != nil {
		return context.Cause(x.real)
	}
	x.look()
	return x.cause
}

// end cancels the context; only the first end counts. It never waits, and may be called
// with the link's lock held.
func (x *callContext) end(cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.real != nil {
		x.cancel(cause)
		if x.free != nil {
			x.free()
		}
		return
	}
	x.look()
	if x.ended == nil {
		if x.ended, x.cause = context.Canceled, cause; cause == nil {
			x.cause = context.Canceled
		}
	}
}

// look sees whether the deadline has passed. x.mu is held, and there is no timer that
// would tell.
func (x *callContext) look() {
	if x.ended == nil && !x.deadline.IsZero() && !time.Now().Before(x.deadline) {
		x.ended, x.cause = context.DeadlineExceeded, errDeadline
	}
}

// made returns the context that stands in for this one, and makes it if need be.
func (x *callContext) made() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.real != nil {
		return x.real
	}
	x.look()
	x.real, x.cancel = context.WithCancelCause(context.Background())
	if x.ended == context.Canceled { //nolint:errorlint // set here
		x.cancel(x.cause)
	} else if !x.deadline.IsZero() {
		x.real, x.free = context.WithDeadlineCause(x.real, x.deadline, errDeadline)
	}
	return x.real
}
