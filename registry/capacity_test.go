package registry

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// lookedAt returns how often the instance was asked who it is.
func (i *instance) lookedAt() int {
	synctest.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.looked
}

// quiet makes the peers' room known, and then lets nobody hear anything more.
func (w *world) quiet(all ...*instance) {
	synctest.Wait()
	for _, i := range all {
		i.mu.Lock()
		i.silent = true
		i.mu.Unlock()
	}
}

// REG-01: a burst between two refreshes follows the effective room.
func TestBurst(t *testing.T) {
	for _, policy := range []Policy{P2C, Headroom} {
		for _, together := range []bool{false, true} {
			t.Run(policy.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Options{Policy: policy})
					x, y := w.host("x", 12, "app"), w.host("y", 9, "app")
					w.list("x", "y")
					w.quiet(x, y)
					var wg sync.WaitGroup
					one := func() {
						if name, err := w.call(in("app"), Query{Method: "Call", Units: 1}); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
					for range 20 {
						if wg.Go(one); !together {
							wg.Wait()
						}
					}
					wg.Wait()
					nx, ny := x.link().made(), y.link().made()
					if !(nx == 12 && ny == 8 || nx == 11 && ny == 9) {
						t.Errorf("x has %d, y %d", nx, ny)
					}
					left := "x"
					if ny == 8 {
						left = "y"
					}
					name, err := w.call(in("app"), Query{Method: "Call", Units: 1})
					if err != nil || name != left {
						t.Errorf("the last unit is %s's: %q, %v", left, name, err)
					}
					began := time.Now()
					_, err = w.call(in("app"), Query{Method: "Call", Units: 1})
					wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
					if took := time.Since(began); took > 0 {
						t.Errorf("it failed after %v: both were heard within a second", took)
					}
					// Without units there is room always.
					check(t, "no units", w.picks(in("app"), Query{Method: "Call"}), "x y")
				})
			})
		}
	}
}

// REG-05, from the caller's side: all of a call's units, or another peer.
func TestUnitsAreNotSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x, y := w.host("x", 3, "app"), w.host("y", 3, "app")
		w.list("x", "y")
		w.quiet(x, y)
		for range 2 {
			if _, err := w.call(in("app"), Query{Method: "Call", Units: 2}); err != nil {
				t.Error(err)
			}
		}
		_, err := w.call(in("app"), Query{Method: "Call", Units: 2})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
		_, err = w.call(in("app"), Query{Method: "Call", Units: 1 << 31})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
		for range 2 {
			if _, err := w.call(in("app"), Query{Method: "Call", Units: 1}); err != nil {
				t.Error(err)
			}
		}
	})
}

// The method's units count when the caller asks for less.
func TestUnitsOfTheMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x := w.host("x", 3, "app")
		w.list("x")
		w.quiet(x)
		c, err := w.r.TryPick(w.place(in("app")), Query{Method: "Costs", Units: 1})
		if err != nil || c.Units != 2 || !c.Method.Known {
			t.Fatalf("%+v, %v", c, err)
		}
		_, _ = c.Invoke(t.Context(), &conduit.Invocation{Method: "Costs", Units: 1}).Recv(t.Context())
		if s := x.link().ledger.Status(); s.Judged != 2 {
			t.Errorf("the Invoke carried %d units, 2 were debited", s.Judged)
		}
		_, err = w.r.TryPick(w.place(in("app")), Query{Method: "Costs"})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	})
}

// What left nothing at the peer is given back: calls that were never made, and
// those that the link never sent.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x := w.host("x", 10, "app")
		w.list("x")
		w.quiet(x)
		effective := func() int64 { return w.r.Peers()[0].Effective }
		pl, q := w.place(in("app")), Query{Units: 4}
		c, _ := w.r.TryPick(pl, q)
		if effective() != 6 {
			t.Errorf("%d", effective())
		}
		c.Abandon()
		c.Abandon()
		if effective() != 10 {
			t.Errorf("%d", effective())
		}
		c, _ = w.r.TryPick(pl, q)
		c.Handed()
		c.Abandon() // it is the link's now
		if effective() != 6 {
			t.Errorf("%d", effective())
		}
		l := x.link()
		l.mu.Lock()
		l.unsent += 4
		l.mu.Unlock()
		if effective() != 10 {
			t.Errorf("%d", effective())
		}
		// And the debit is no more than what was not judged.
		for range 3 {
			if _, err := w.call(in("app"), Query{Units: 3}); err != nil {
				t.Fatal(err)
			}
		}
		if effective() != 1 {
			t.Errorf("%d", effective())
		}
		l.status()
		if p := w.r.Peers()[0]; p.Effective != 1 || p.Available != 1 || p.Sent != 9 || p.Judged != 9 {
			t.Errorf("%+v", p)
		}
	})
}

// When all are full, those that were not heard for a while are asked, all callers
// together, and no slow one holds up the others.
func TestRelief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Refresh: time.Hour})
		x, y := w.host("x", 2, "app"), w.host("y", 2, "app")
		w.list("x", "y")
		hx, _ := x.budget.Reserve(2)
		_, _ = y.budget.Reserve(2)
		x.link().status()
		y.link().status()
		time.Sleep(2 * time.Second)
		hx.Release() // and nobody heard of it
		y.mu.Lock()
		y.slow = 900 * time.Millisecond
		y.mu.Unlock()
		began := time.Now()
		var wg sync.WaitGroup
		var got atomic.Int64
		for range 50 {
			wg.Go(func() {
				if name, err := w.call(in("app"), Query{Units: 1}); err == nil && name == "x" {
					got.Add(1)
				} else if err != nil && err.Reason != conduit.ReasonNoCapacity {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if got.Load() != 2 {
			t.Errorf("%d calls found room before y answered", got.Load())
		}
		wg.Wait()
		if got.Load() != 2 || time.Since(began) != 900*time.Millisecond {
			t.Errorf("%d calls found room in %v", got.Load(), time.Since(began))
		}
		// Again at once: nobody is asked, and the answer is quick.
		began = time.Now()
		_, err := w.call(in("app"), Query{Units: 1})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
		if time.Since(began) != 0 {
			t.Errorf("it took %v", time.Since(began))
		}
		if x.link().made() != 2 {
			t.Errorf("x was called %d times", x.link().made())
		}
	})
}

// As long as asking finds room, it may be asked again every 50 ms; while it does not, the
// time doubles, up to a second.
func TestReliefPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Refresh: time.Hour})
		x := w.host("x", 1, "app")
		w.list("x")
		held, err := x.budget.Reserve(1)
		if err != nil {
			t.Fatal(err)
		}
		x.link().status()
		time.Sleep(time.Minute)
		looked := x.lookedAt()
		rounds := func() int { n := x.lookedAt() - looked; looked += n; return n }

		// More often than a peer may be asked for the sake of what it says itself.
		for n := range 3 * askBurst {
			held.Release() // and nobody hears of it
			c, full := w.r.Pick(t.Context(), w.place(in("app")), Query{Units: 1})
			if full != nil {
				t.Fatalf("pick %d: %v", n, full)
			}
			c.Abandon()
			if held, err = x.budget.Reserve(1); err != nil {
				t.Fatal(err)
			}
			x.link().status()
			time.Sleep(leastDoubt + time.Millisecond)
		}
		if n := rounds(); n != 3*askBurst {
			t.Errorf("it was asked %d times in %d rounds", n, 3*askBurst)
		}

		// Nothing ends any more.
		began := time.Now()
		for time.Since(began) < 10*time.Second {
			if _, err := w.call(in("app"), Query{Units: 1}); err == nil {
				t.Fatal("there is no room")
			}
			time.Sleep(time.Millisecond)
		}
		if n := rounds(); n < 11 || n > 15 {
			t.Errorf("it was asked %d times in 10 s; after 0.05, 0.1, 0.2, 0.4, 0.8 s and then once a second makes 14", n)
		}
	})
}

// Of very many that are full only those are asked soon again that were not heard for
// longest.
func TestReliefOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Refresh: time.Hour})
		var all []*instance
		var names []string
		for n := range 3 * mostAsked {
			names = append(names, fmt.Sprintf("i%d", n))
			all = append(all, w.host(names[n], 1, "app"))
		}
		w.list(names...)
		for _, i := range all {
			if _, err := i.budget.Reserve(1); err != nil {
				t.Fatal(err)
			}
			i.link().status()
		}
		time.Sleep(time.Minute)
		first := make([]int, len(all))
		for n, i := range all {
			first[n] = i.lookedAt()
		}
		// Two rounds of a third each, of different ones.
		for range 2 {
			if _, err := w.call(in("app"), Query{Units: 1}); err == nil {
				t.Fatal("there is no room")
			}
			time.Sleep(2*leastDoubt + time.Millisecond)
		}
		once := 0
		for n, i := range all {
			switch i.lookedAt() - first[n] {
			case 0:
			case 1:
				once++
			default:
				t.Errorf("%s was asked more than once", names[n])
			}
		}
		if once != 2*mostAsked {
			t.Errorf("%d instances were asked, not %d", once, 2*mostAsked)
		}
	})
}

// No call is refused room that is there, whatever the order of things.
func TestNoFalseExhaustion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		var all []*instance
		var names []string
		for i := range 5 {
			name := string(rune('a' + i))
			all = append(all, w.host(name, 20, "app"))
			names = append(names, name)
		}
		w.list(names...)
		w.quiet(all...)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 12 {
					if name, err := w.call(in("app"), Query{Units: 1}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if rand.IntN(3) == 0 {
						all[rand.IntN(len(all))].link().status()
					}
				}
			})
		}
		wg.Wait()
		left := 0
		for {
			if _, err := w.call(in("app"), Query{Units: 1}); err != nil {
				break
			}
			left++
		}
		if left != 4 {
			t.Errorf("of 100 units 96 were taken, and %d were left", left)
		}
	})
}

func TestUntilTheFirstStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x := w.host("x", 10, "app")
		x.silent = true
		w.list("x")
		check(t, "no units", w.picks(in("app"), Query{}), "x")
		check(t, "units", w.picks(in("app"), Query{Units: 1}), conduit.ReasonNoCapacity)
		x.link().status()
		check(t, "units", w.picks(in("app"), Query{Units: 1}), "x")
	})
}

func TestCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x := w.host("x", 10, "app")
		w.list("x")
		x.budget.Cordon(true)
		x.link().status()
		check(t, "no units", w.picks(in("app"), Query{Method: "Call"}), "x")
		check(t, "units", w.picks(in("app"), Query{Method: "Costs"}), conduit.ReasonCordoned)
		w.host("y", 1, "app")
		w.list("x", "y")
		check(t, "cordoned and full", w.picks(in("app"), Query{Method: "Costs"}), conduit.ReasonNoCapacity)
		x.budget.Cordon(false)
		x.link().status()
		check(t, "uncordoned", w.picks(in("app"), Query{Method: "Costs"}), "x")
		if w.r.Peers()[0].Cordoned {
			t.Error("it is shown as cordoned")
		}
	})
}

// Without units the fewer calls under way count; with two peers there is no chance.
func TestOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x, y := w.host("x", 10, "app"), w.host("y", 1000, "app")
		w.list("x", "y")
		y.link().busy(1)
		check(t, "x is idle", w.picks(in("app"), Query{}), "x")
		x.link().busy(2)
		check(t, "y has less", w.picks(in("app"), Query{}), "y")
		y.link().busy(2)
		check(t, "a tie", w.picks(in("app"), Query{}), "x y")
	})
}

func TestTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		x, y, z := w.host("x", 10, "app"), w.host("y", 10, "app"), w.host("z", 10, "app")
		w.list("x", "y", "z")
		check(t, "one tried", w.picks(in("app"), Query{Tried: []address.InstanceID{x.id}}), "y z")
		check(t, "two tried", w.picks(in("app"), Query{Tried: []address.InstanceID{x.id, z.id}}), "y")
		_, err := w.pick(in("app"), Query{Tried: []address.InstanceID{x.id, y.id, z.id}})
		wantError(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable)
	})
}

// P2C spreads: a joiner with all its room free gets no more than twice its share.
func TestJoiner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		var all []*instance
		var names []string
		for i := range 10 {
			name := string(rune('a' + i))
			x := w.host(name, 1_000_000, "app")
			if i < 9 {
				_, _ = x.budget.Reserve(900_000)
			}
			all = append(all, x)
			names = append(names, name)
		}
		w.list(names...)
		w.quiet(all...)
		const calls = 5000
		for range calls {
			if _, err := w.call(in("app"), Query{Units: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for i, x := range all {
			share := float64(x.link().made()) / calls
			if i == 9 && (share < 0.17 || share > 0.23) || i < 9 && (share < 0.05 || share > 0.13) {
				t.Errorf("%s has a share of %.2f", names[i], share)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Self: address.UniqueInstanceID("me")})
		x, y := w.host("x", 10, "app"), w.host("y", 1, "app")
		w.host("me", 10, "app")
		w.host("z", 10, "other")
		w.list("x", "y", "z", "me", "gone")
		w.quiet(x, y)
		before := w.r.Peers()
		e := w.r.Explain(w.place(in("app")), Query{Method: "Costs"})
		if e.Err != nil || e.Chosen != x.id || e.Reason != "it is the only candidate" || len(e.Candidates) != 5 {
			t.Fatalf("%+v", e)
		}
		var verdicts []string
		for _, c := range e.Candidates {
			verdicts = append(verdicts, c.Name+"="+string(c.Verdict))
		}
		check(t, "verdicts", strings.Join(verdicts, " "), "x=chosen y=full =unreachable =self z=deployment_not_found")
		if c := e.Candidates[1]; c.Effective != 1 || c.Units != 2 || c.Why == "" {
			t.Errorf("%+v", c)
		}
		for _, c := range e.Candidates {
			if linked := c.Name != ""; c.Untold == linked {
				t.Errorf("untold is %v of %+v", c.Untold, c)
			}
		}
		for i, p := range w.r.Peers() {
			if p.Effective != before[i].Effective {
				t.Error("explaining has cost something")
			}
		}
		e = w.r.Explain(w.place(in("app")), Query{Units: 100})
		if e.Err == nil || e.Err.Reason != conduit.ReasonNoCapacity || !e.Chosen.IsZero() {
			t.Errorf("%+v", e)
		}
		e = w.r.Explain(w.place(y.on("app")), Query{})
		if e.Chosen != y.id || e.Reason != "the address names the instance" {
			t.Errorf("%+v", e)
		}
	})
}

// Of two that are alike none is said to be better.
func TestExplainTie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drawn = "p2c: of 2 candidates two were drawn at random; "
		for _, test := range []struct {
			policy       Policy
			room, busy   int64 // of y; x has room for 1000, and no calls
			units        uint32
			chosen, want string
		}{
			{P2C, 1000, 0, 1, "", drawn + "they have the same effective headroom, and chance decided"},
			{P2C, 1001, 0, 1, "y", drawn + "it is the one with more effective headroom"},
			{P2C, 1001, 0, 0, "", drawn + "they have the same number of calls under way, and chance decided"},
			{P2C, 1001, 1, 0, "x", drawn + "it is the one with fewer calls under way"},
			{Headroom, 1000, 0, 1, "", "headroom: 2 of 2 candidates have the most effective headroom, all the same; it is one of them at random"},
			{Headroom, 1000, 0, 0, "", "headroom: 2 of 2 candidates have the most effective headroom, all the same; it is one of them at random"},
			{Headroom, 1001, 9, 0, "y", "headroom: it has the most effective headroom of 2 candidates"},
		} {
			w := newWorld(t, Options{Policy: test.policy})
			names := map[address.InstanceID]string{w.host("x", 1000, "app").id: "x"}
			y := w.host("y", test.room, "app")
			names[y.id] = "y"
			w.list("x", "y")
			y.link().busy(int(test.busy))
			seen := map[string]int{}
			for range 64 {
				e := w.r.Explain(w.place(in("app")), Query{Units: test.units})
				check(t, "reason", e.Reason, test.want)
				seen[names[e.Chosen]]++
				if c := e.Candidates[0]; c.Verdict != Chosen && e.Candidates[1].Verdict != Chosen {
					t.Errorf("nobody is marked as chosen: %+v", e.Candidates)
				}
			}
			if test.chosen != "" && seen[test.chosen] != 64 || test.chosen == "" && (seen["x"] == 0 || seen["y"] == 0) {
				t.Errorf("%+v: chosen were %v", test, seen)
			}
			w.stop()
		}
		// A method that nobody lists goes where the service is.
		w := newWorld(t, Options{})
		w.host("x", 10, "app")
		w.list("x")
		e := w.r.Explain(w.place(in("app")), Query{Method: "New"})
		check(t, "no method", e.Reason, "no instance lists the method; one that has the service is asked")
	})
}

// Events and picks agree: who was added can be picked, who was removed is not.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		names := []string{"a", "b", "c", "d", "e", "f"}
		all := map[string]*instance{}
		for _, n := range names {
			all[n] = w.host(n, 100, "app")
		}
		w.list(names...)
		alive := map[address.InstanceID]bool{}
		stop := w.r.Subscribe(func(e Event) {
			switch e.Kind {
			case EventAdded:
				if alive[e.Peer.Instance] {
					t.Errorf("%s was added twice", e.Peer.Name)
				}
				alive[e.Peer.Instance] = true
				if _, err := w.r.TryPick(w.place(e.Peer.Instance.String()+"://app/app/S"), Query{}); err != nil {
					t.Errorf("%s was added, and %v", e.Peer.Name, err)
				}
			case EventRemoved:
				delete(alive, e.Peer.Instance)
			case EventChanged:
			}
		})
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(20 * time.Millisecond):
						c, err := w.r.Pick(t.Context(), w.place(in("app")), Query{Method: "Call", Units: 1})
						if err == nil {
							_, _ = c.Invoke(t.Context(), &conduit.Invocation{}).Recv(t.Context())
						}
					}
				}
			})
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 400 {
			n := names[r.IntN(len(names))]
			switch i := all[n]; r.IntN(5) {
			case 0:
				i.kill()
			case 1:
				i.kill()
				all[n] = i.again()
			case 2:
				i.mu.Lock()
				if len(i.hosts) > 0 {
					l := i.hosts[len(i.hosts)-1]
					i.mu.Unlock()
					l.goAway(conduit.ReasonDraining)
				} else {
					i.mu.Unlock()
				}
			case 3:
				w.list(names[:r.IntN(len(names))]...)
			case 4:
				w.list(names...)
			}
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		}
		for _, n := range names {
			all[n].kill()
			all[n] = all[n].again()
		}
		w.list(names...)
		time.Sleep(time.Minute)
		close(done)
		wg.Wait()
		synctest.Wait()
		check(t, "in the end", w.peers(), "a alive, b alive, c alive, d alive, e alive, f alive")
		if len(alive) != len(names) {
			t.Errorf("%d are alive by the events", len(alive))
		}
		stop()
	})
}
