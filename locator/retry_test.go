package locator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// What is tried again, and what is not.
func TestReroute(t *testing.T) {
	unavailable := func(reason string, outcome conduit.Outcome) *conduit.Error { return refusal(reason, outcome, false) }
	for _, test := range []struct {
		what   string
		err    *conduit.Error
		method string
		want   string
	}{
		{"draining", refusal(conduit.ReasonDraining, conduit.Refused, true), "Call", "b"},
		{"no capacity", refusal(conduit.ReasonNoCapacity, conduit.Refused, true), "Call", "b"},
		{"starting", refusal(conduit.ReasonPluginStarting, conduit.Refused, true), "Call", "b"},
		{"never left", refusal(conduit.ReasonPeerLost, conduit.NotSent, true), "Call", "b"},
		{"a stale picture", refusal(conduit.ReasonElementNotFound, conduit.Refused, true), "Call", "b"},
		{"refused for good", unavailable(conduit.ReasonLevelTooLow, conduit.Refused), "Call", "level_too_low refused"},
		{"too large", unavailable(conduit.ReasonPayloadTooLarge, conduit.NotSent), "Call", "payload_too_large not_sent"},
		{"may have run", refusal(conduit.ReasonPeerLost, conduit.OutcomeUnknown, true), "Call", "peer_lost unknown"},
		{"may have run, nobody knows the method", refusal(conduit.ReasonPeerLost, conduit.OutcomeUnknown, true), "Hidden", "peer_lost unknown"},
		{"may have run, idempotent", unavailable(conduit.ReasonPeerLost, conduit.OutcomeUnknown), "Same", "b"},
		{"ran", refusal(conduit.ReasonUnspecified, conduit.Executed, true), "Same", "unspecified executed"},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				a, b := w.add("a", 100).fails(test.err), w.add("b", 50)
				w.add("c", 1)
				w.start()
				check(t, "answer", w.call(where, test.method), test.want)
				want := "a0"
				if test.want == "b" {
					want = "a0 b1"
				}
				check(t, "attempts", attempts(a, b), want)
			})
		})
	}
}

// At most so many attempts, on the whole way; the last error says what came before.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		var all []*peer
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, w.add(name, 100-len(all)).fails(refusal(conduit.ReasonOverloaded+name, conduit.Refused, true)))
		}
		w.start()
		_, err := conduit.Call[string](t.Context(), w.l.At(where), "Call", nil)
		check(t, "the last one's", reasonOf("", err), "overloadedc refused")
		if !strings.Contains(err.Error(), "overloadeda") || !strings.Contains(err.Error(), "attempt 3") {
			t.Errorf("%v", err)
		}
		check(t, "attempts", attempts(all...), "a0 b1 c2")

		// What attempts another hop has made counts.
		x := w.l.At(where).Invoke(t.Context(), &conduit.Invocation{Method: "Call", Last: true, Attempt: 1})
		_, err = x.Recv(t.Context())
		check(t, "two were left", reasonOf("", err), "overloadedb refused")
		check(t, "attempts", attempts(all...), "a0 a1 b1 b2 c2")
	})
}

// A stale picture may be chance once, and is asked for anew.
func TestStaleOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		gone := refusal(conduit.ReasonDeploymentNotFound, conduit.Refused, true)
		a, b, c := w.add("a", 100).fails(gone), w.add("b", 90).fails(gone), w.add("c", 80)
		w.start()
		check(t, "answer", w.call(where, "Call"), "deployment_not_found refused")
		check(t, "attempts", attempts(a, b, c), "a0 b1")
	})
}

// Once a result has come there is no second attempt.
func TestNotAfterAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, b := w.add("a", 100), w.add("b", 50)
		a.does(func(context.Context, *conduit.Invocation) conduit.Exchange {
			x := answer("1")
			x.end = refusal(conduit.ReasonPeerLost, conduit.OutcomeUnknown, true)
			return x
		})
		w.start()
		var items []string
		for s, err := range conduit.Stream[string](t.Context(), w.l.At(where), "Same", nil) {
			items = append(items, reasonOf(s, err))
		}
		check(t, "items", strings.Join(items, ", "), "1, peer_lost unknown")
		check(t, "attempts", attempts(a, b), "a0")
	})
}

// The only peer asks to be left alone for a while, and is.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		busy := refusal(conduit.ReasonOverloaded, conduit.Refused, true)
		busy.RetryAfter = 2 * time.Second
		a := w.add("a", 100)
		a.does(func(_ context.Context, in *conduit.Invocation) conduit.Exchange {
			if in.Attempt == 0 {
				return conduit.FailedExchange(busy)
			}
			return answer("a")
		})
		w.start()
		began := time.Now()
		check(t, "after a while", w.call(where, "Call"), "a")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
		// Not if the deadline comes first: then there is nothing to wait for.
		began = time.Now()
		check(t, "no time", w.call(where, "Call", conduit.WithTimeout(time.Second)), "overloaded refused")
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		// If there is another, it is asked at once.
		b := w.add("b", 1)
		w.list(w.names...)
		check(t, "the other", w.call(where, "Call"), "b")
		check(t, "attempts", attempts(a, b), "a0 a1 a0 a0 b1")
	})
}

// The only peer's link dies before the call is on it: the call goes on the next.
func TestLinkLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.add("a", 100)
		w.start()
		a.does(func(context.Context, *conduit.Invocation) conduit.Exchange {
			a.kill()
			return conduit.FailedExchange(refusal(conduit.ReasonPeerLost, conduit.NotSent, true))
		})
		next := w.add("a", 100) // at the same URL
		w.names = w.names[:1]
		check(t, "on the next link", w.call(where, "Call"), "a")
		if next.made() != 1 || next.calls[0].Attempt != 1 {
			t.Errorf("%+v", next.calls)
		}
		// And when there is none, that is soon known.
		next.does(func(context.Context, *conduit.Invocation) conduit.Exchange {
			next.kill()
			return conduit.FailedExchange(refusal(conduit.ReasonPeerLost, conduit.NotSent, true))
		})
		began := time.Now()
		check(t, "it does not come back", w.call(where, "Call"), "peer_lost not_sent")
		if took := time.Since(began); took > lostGrace {
			t.Errorf("it took %v", took)
		}
	})
}

// All attempts together have the call's deadline.
func TestDeadlineOfAllAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{CallTimeout: 10 * time.Second})
		w.add("a", 100).does(func(context.Context, *conduit.Invocation) conduit.Exchange {
			return slow{answer(), 6 * time.Second, refusal(conduit.ReasonDraining, conduit.Refused, true)}
		})
		w.add("b", 50).does(func(context.Context, *conduit.Invocation) conduit.Exchange { return &answers{} })
		w.start()
		began := time.Now()
		check(t, "late", w.call(where, "Call"), "deadline_exceeded unknown")
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// slow fails after a while.
type slow struct {
	conduit.Exchange

	d   time.Duration
	err *conduit.Error
}

func (s slow) Recv(context.Context) (conduit.Message, error) {
	time.Sleep(s.d)
	return conduit.Message{}, s.err
}

// Cancelling ends the attempt under way, whichever it is.
func TestCancelRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.add("a", 100).fails(refusal(conduit.ReasonDraining, conduit.Refused, true))
		b := w.add("b", 50)
		b.does(func(context.Context, *conduit.Invocation) conduit.Exchange { return &answers{} })
		w.start()
		x := w.l.At(where).Invoke(t.Context(), &conduit.Invocation{Method: "Call", Last: true})
		done := make(chan error, 1)
		go func() {
			_, err := x.Recv(t.Context())
			done <- err
		}()
		synctest.Wait()
		if b.made() != 1 {
			t.Fatal("b was not tried")
		}
		x.Cancel(errors.New("enough"))
		synctest.Wait()
		check(t, "cancelled", reasonOf("", <-done), "canceled unknown")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := conduit.Call[string](ctx, w.l.At(where), "Call", nil)
		if err == nil {
			t.Error("a call in a context that has ended")
		}
	})
}

// A storm of failures does not multiply the load.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		full := refusal(conduit.ReasonOverloaded, conduit.Refused, true)
		a, b := w.add("a", 100).fails(full), w.add("b", 50).fails(full)
		w.start()
		const calls = 20_000
		inv := w.l.At(where)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range calls / 20 {
					_, _ = conduit.Call[string](t.Context(), inv, "Call", nil)
				}
			})
		}
		wg.Wait()
		if n := a.made() + b.made() - calls; n < calls/10 || n > calls/10+firstRetries+1 {
			t.Errorf("%d calls made %d attempts more", calls, n)
		}
		// Time gives a few back, and not without end.
		time.Sleep(time.Hour)
		before := a.made() + b.made()
		for range 100 {
			_, _ = conduit.Call[string](t.Context(), inv, "Call", nil)
		}
		if n := a.made() + b.made() - before - 100; n < 15 || n > 25 {
			t.Errorf("100 calls made %d attempts more", n)
		}
	})
}

// The plan by hand, as who splices follows it.
func TestPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.add("a", 100)
		w.add("b", 50)
		w.start()
		parsed, isTarget := w.l.At(where).(*Target)
		if !isTarget {
			t.Fatal("At gives no Target")
		}
		plan := parsed.Plan(&conduit.Invocation{Method: "Costs", Units: 1})
		s, ok := plan.Try()
		if !ok || s.Choice.Peer.Name() != "a" || s.Choice.Units != 2 || s.Attempt != 0 {
			t.Fatalf("%+v, %v", s, ok)
		}
		s.Choice.Handed()
		if !plan.Again(refusal(conduit.ReasonDraining, conduit.Refused, true)) {
			t.Fatal("not again")
		}
		s, ok = plan.Try()
		if !ok || s.Choice.Peer.Name() != "b" || s.Attempt != 1 {
			t.Fatalf("%+v, %v", s, ok)
		}
		s.Abandon()
		busy := refusal(conduit.ReasonOverloaded, conduit.Refused, true)
		busy.RetryAfter = time.Second
		if !plan.Again(busy) {
			t.Fatal("not again")
		}
		if s, ok = plan.Try(); ok {
			t.Fatalf("%+v without a wait", s)
		}
		began := time.Now()
		s, err := plan.Next(t.Context())
		if err != nil || s.Choice.Peer.Name() != "a" || s.Attempt != 2 || time.Since(began) != time.Second {
			t.Fatalf("%+v, %v after %v", s, err, time.Since(began))
		}
		if plan.Again(busy) {
			t.Error("a fourth attempt")
		}
	})
}

func BenchmarkCall(b *testing.B) {
	local := &hosting{standing: Standing{Hosted: true, Ready: true, Room: true}}
	l := New(Options{Local: local, PreferLocal: true})
	inv := l.At(where)
	in := &conduit.Invocation{Method: "Call", Last: true}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		x := inv.Invoke(ctx, in)
		_, _ = x.Recv(ctx)
		x.Cancel(nil)
	}
}
