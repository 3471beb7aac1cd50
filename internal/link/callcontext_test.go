package link

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// What a handler sees of its context is what it would see of one of the standard
// library's, whether or not anybody waited for its end before it came.
func TestCallContext(t *testing.T) {
	gone := conduit.Errorf(conduit.Canceled, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "the link was lost")
	wait := func(x *callContext) { time.Sleep(time.Until(x.deadline) + 1) } // past it by the bubble's clock: a timer may come after who sleeps as long
	for _, tt := range []struct {
		name  string
		does  func(*callContext)
		err   error
		cause error
	}{
		{"nothing", func(*callContext) {}, nil, nil},
		{"cancelled", func(x *callContext) { x.end(gone) }, context.Canceled, gone},
		{"cancelled without a cause", func(x *callContext) { x.end(nil) }, context.Canceled, context.Canceled},
		{"cancelled twice", func(x *callContext) { x.end(gone); x.end(nil) }, context.Canceled, gone},
		{"past its deadline", wait, context.DeadlineExceeded, errDeadline},
		{"past its deadline, then cancelled", func(x *callContext) { wait(x); x.end(gone) }, context.DeadlineExceeded, errDeadline},
		{"cancelled, then past its deadline", func(x *callContext) { x.end(gone); wait(x) }, context.Canceled, gone},
	} {
		for _, when := range []string{"nobody waits", "somebody waits before", "somebody waits after"} {
			t.Run(tt.name+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := &callContext{deadline: time.Now().Add(time.Minute)}
					defer x.end(nil)
					var ctx context.Context = x
					child, cancel := ctx, func() {}
					derive := func() { child, cancel = context.WithCancel(ctx) } //nolint:fatcontext // once
					if when == "somebody waits before" {
						derive()
					}
					tt.does(x)
					if when == "somebody waits after" {
						derive()
					}
					defer cancel()
					synctest.Wait()
					if x.why() != tt.cause || ctx.Err() != tt.err { //nolint:errorlint // itself
						t.Errorf("%v, %v; want %v, %v", ctx.Err(), x.why(), tt.err, tt.cause)
					}
					if child.Err() != tt.err { //nolint:errorlint // itself
						t.Errorf("a child: %v", child.Err())
					}
					// From here on it is one that somebody waits for, in any case.
					if context.Cause(ctx) != tt.cause || context.Cause(child) != tt.cause { //nolint:errorlint // itself
						t.Errorf("cause %v, of a child %v; want %v", context.Cause(ctx), context.Cause(child), tt.cause)
					}
					select {
					case <-ctx.Done():
						if tt.err == nil {
							t.Error("it is done")
						}
					default:
						if tt.err != nil {
							t.Error("it is not done")
						}
					}
					if at, ok := ctx.Deadline(); !ok || at != x.deadline {
						t.Error(at, ok)
					}
				})
			})
		}
	}
}

// Who waits for a context hears of its end: by a cancel, and by a deadline for which
// nothing had set a timer until then.
func TestCallContextWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, cancelled := range []bool{true, false} {
			began := time.Now()
			x := &callContext{deadline: began.Add(time.Minute)}
			if cancelled {
				go func() { time.Sleep(time.Second); x.end(nil) }()
			}
			<-x.Done()
			want := time.Minute
			if cancelled {
				want = time.Second
			}
			if got := time.Since(began); got != want {
				t.Errorf("after %v, want %v", got, want)
			}
			x.end(nil)
		}
		x := &callContext{}
		if _, ok := x.Deadline(); ok || x.Err() != nil {
			t.Error("one without a deadline")
		}
		fired := make(chan error, 1)
		context.AfterFunc(x, func() { fired <- context.Cause(x) })
		x.end(errors.ErrUnsupported)
		if err := <-fired; !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
	})
}
