package loadgen

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/elemental-conduit/conduit"
)

func millis(h *hdrhistogram.Histogram, quantile float64) int64 {
	return time.Duration(h.ValueAtQuantile(quantile) * 1000).Round(time.Millisecond).Milliseconds()
}

// Calls begin at the fixed rate, whatever those before are doing.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at [100]time.Duration
		r := Run(t.Context(), Options{
			Rate: 100, Duration: time.Second, MaxInFlight: 1000,
			Call: func(_ context.Context, n int) error {
				at[n] = time.Since(begin)
				time.Sleep(3 * time.Second)
				return nil
			},
		})
		for n, d := range at {
			if want := time.Duration(n) * 10 * time.Millisecond; d != want {
				t.Fatalf("call %d began at %v, not %v", n, d, want)
			}
		}
		if r.Due != 100 || r.Answered != 100 || r.MostInFlight != 100 || r.NotStarted != 0 || r.Failed() != 0 {
			t.Errorf("%+v", r)
		}
		if got := millis(r.Latency, 99); got != 3000 {
			t.Errorf("p99 is %d ms, not 3000", got)
		}
		if want := 3*time.Second + 990*time.Millisecond; r.Elapsed != want {
			t.Errorf("elapsed %v, not %v", r.Elapsed, want)
		}
	})
}

// A service that stalls is measured by everybody who was to come meanwhile: that there
// is room for but one call at a time makes nothing of it disappear.
func TestStallIsNotOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Run(t.Context(), Options{
			Rate: 100, Duration: 2 * time.Second, MaxInFlight: 1,
			Call: func(_ context.Context, n int) error {
				if n == 50 {
					time.Sleep(time.Second)
				}
				return nil
			},
		})
		if r.Due != 200 || r.Answered != 200 {
			t.Fatalf("%+v", r)
		}
		// Calls 50 to 149 were due while it stalled: half of all, of which the k-th has
		// waited k·10 ms less.
		if got := millis(r.Latency, 75); got < 480 || got > 520 {
			t.Errorf("p75 is %d ms, not about 500", got)
		}
		if got := millis(r.Lag, 99.9); got < 980 || got > 1000 {
			t.Errorf("the worst began %d ms late, not 990", got)
		}
	})
}

// What cannot be made in the time is counted, and neither awaited nor forgotten.
func TestNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Run(t.Context(), Options{
			Rate: 10, Duration: time.Second, MaxInFlight: 2,
			Call: func(context.Context, int) error {
				time.Sleep(10 * time.Second)
				return nil
			},
		})
		if r.Due != 10 || r.Answered != 2 || r.NotStarted != 8 || r.MostInFlight != 2 {
			t.Errorf("%+v", r)
		}
	})
}

func TestWarmupDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		r := Run(t.Context(), Options{
			Rate: 10, Warmup: time.Second, Duration: 2 * time.Second, MaxInFlight: 10,
			Call: func(_ context.Context, n int) error {
				made.Add(1)
				if n < 10 {
					return conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "cold")
				}
				return nil
			},
		})
		if made.Load() != 30 || r.Due != 20 || r.Answered != 20 || r.Failed() != 0 {
			t.Errorf("%d made, %+v", made.Load(), r)
		}
	})
}

// Failures are told apart, the most frequent first, and are in no latency.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Run(t.Context(), Options{
			Rate: 10, Duration: time.Second, MaxInFlight: 10,
			Call: func(ctx context.Context, n int) error {
				switch {
				case n < 2:
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					<-ctx.Done()
					return conduit.FromContext(ctx, conduit.OutcomeUnknown)
				case n < 5:
					return conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused, "%d", n)
				}
				return nil
			},
		})
		if len(r.Failures) != 2 || r.Failed() != 5 || r.Answered != 5 {
			t.Fatalf("%+v", r)
		}
		if f := r.Failures[0]; f.Count != 3 || f.Example.Reason != conduit.ReasonNoCapacity {
			t.Errorf("%+v", f)
		}
		if f := r.Failures[1]; f.Count != 2 || f.Example.Code != conduit.DeadlineExceeded {
			t.Errorf("%+v", f)
		}
		if most := r.Latency.Max(); most > 1 {
			t.Errorf("a latency of %d µs", most)
		}
	})
}

// An interrupted load says what it has measured until then, and ends what is under way.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ticks := 0
		r := Run(ctx, Options{
			Rate: 10, Duration: time.Hour, MaxInFlight: 10,
			Each: func(p Progress) {
				if ticks++; p.Elapsed != time.Duration(ticks)*time.Second || p.Whole != time.Hour || p.InFlight > 10 {
					t.Errorf("after %d s: %+v", ticks, p)
				}
				if ticks == 3 {
					cancel()
				}
			},
			Call: func(ctx context.Context, n int) error {
				if n != 5 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			},
		})
		if ticks != 3 || r.Interrupted != 1 || r.Failed() != 0 || r.Answered < 29 || r.Answered > 30 {
			t.Errorf("%d ticks, %+v", ticks, r)
		}
	})
}
