package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

var apps = []string{"app0", "app1", "app2", "app3"}

// guarantees are those of the original's registry test: each node can be called,
// over one link, and the best of each application is the named instance.
func (w *world) guarantees(best string, all ...*instance) {
	w.t.Helper()
	for _, i := range all {
		for _, app := range apps {
			name, err := w.pick(i.on(app), Query{Method: "Call"})
			if err != nil || name != i.info.GetName() {
				w.t.Errorf("%s on %s: %s, %v", app, i.info.GetName(), name, err)
			}
		}
		if n := w.dialled(i.info.GetName()); n != 1 {
			w.t.Errorf("%s was dialled %d times", i.info.GetName(), n)
		}
	}
	for _, app := range apps {
		check(w.t, "the best for "+app, w.picks(in(app), Query{Method: "Call", Units: 1}), best)
	}
}

// The original's testStartAndLoadInitialConnections.
func TestInitialConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Policy: Headroom})
		a, b, c := w.host("a", 10, apps...), w.host("b", 30, apps...), w.host("c", 20, apps...)
		w.list("a", "b", "c")
		<-w.r.Settled()
		w.guarantees("b", a, b, c)
		w.stop() // which checks that each link was released once
		_, err := w.pick(in("app0"), Query{})
		wantError(t, err, conduit.Unavailable, conduit.ReasonAborted)
	})
}

// The original's testEventDrivenConnectionAdd.
func TestConnectionsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Policy: Headroom})
		w.list()
		<-w.r.Settled() // that there is nobody is settled, too
		_, err := w.pick(in("app0"), Query{})
		wantError(t, err, conduit.NotFound, conduit.ReasonDeploymentNotFound)
		var names []string
		var all []*instance
		for n := range 5 {
			name := string(rune('a' + n))
			names = append(names, name)
			all = append(all, w.host(name, int64(10+n), apps...))
			w.list(names...)
			w.guarantees(name, all...)
		}
		check(t, "peers", w.peers(), "a alive, b alive, c alive, d alive, e alive")
		check(t, "events", strings.Join(w.events, ","), "added a alive,added b alive,added c alive,added d alive,added e alive")
	})
}

// The original's testEventDrivenConnectionRemove.
func TestConnectionRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Policy: Headroom})
		best := w.host("a", 50, apps...)
		rest := []*instance{w.host("b", 40, apps...), w.host("c", 30, apps...), w.host("d", 20, apps...), w.host("e", 10, apps...)}
		w.list("a", "b", "c", "d", "e")
		w.guarantees("a", append(rest, best)...)
		w.list("b", "c", "d", "e")
		w.guarantees("b", rest...)
		if best.link().releases() != 1 {
			t.Error("its link was not released")
		}
		_, err := w.pick(best.on("app0"), Query{})
		wantError(t, err, conduit.NotFound, conduit.ReasonInstanceNotFound)
		if w.list("b", "c", "d", "e"); w.dialled("a") != 1 {
			t.Error("it is dialled though discovery names it no more")
		}
		w.list("a", "b", "c", "d", "e")
		check(t, "it came again", w.picks(in("app0"), Query{Units: 1}), "a")
	})
}

// In the original, one slow peer had the whole cycle skipped.
func TestSlowPeerHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, b := w.host("a", 10, "app"), w.host("b", 10, "app")
		a.mute = true
		w.list("a", "b", "gone")
		check(t, "while a is silent", w.picks(in("app"), Query{}), "b")
		select {
		case <-w.r.Settled():
			t.Error("settled though a may yet answer")
		default:
		}
		time.Sleep(DefaultRefreshTimeout)
		synctest.Wait()
		select {
		case <-w.r.Settled():
		default:
			t.Error("a has failed and gone is not there: that is settled")
		}
		check(t, "peers", w.peers(), "? unreachable, b alive, ? unreachable")

		a.mu.Lock()
		a.mute, a.slow = false, 900*time.Millisecond
		a.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		check(t, "once it answers in time", w.picks(in("app"), Query{}), "a b")
		_ = b
	})
}

// A peer that no longer answers is pruned, and found again when it does.
func TestRefreshFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, _ := w.host("a", 10, "app"), w.host("b", 10, "app")
		w.list("a", "b")
		check(t, "both", w.picks(in("app"), Query{}), "a b")
		a.mu.Lock()
		a.mute = true
		a.mu.Unlock()
		time.Sleep(DefaultRefresh*6/5 + DefaultRefreshTimeout)
		synctest.Wait()
		check(t, "a is silent", w.picks(in("app"), Query{}), "b")
		check(t, "peers", w.peers(), "a unreachable, b alive")
		if a.hosts[0].releases() != 1 {
			t.Error("the link was not released")
		}
		a.mu.Lock()
		a.mute = false
		a.mu.Unlock()
		time.Sleep(mostPause * 2)
		synctest.Wait()
		check(t, "a answers", w.picks(in("app"), Query{}), "a b")
		check(t, "events", strings.Join(w.events[len(w.events)-1:], ","), "added a alive")
	})
}

// A change of what a peer has or hosts makes no new link; what it hosts is fetched
// once for each digest, and at once when a Status says that it is another.
func TestChangesKeepTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Policy: Headroom})
		a, b := w.host("a", 10, "app"), w.host("b", 20, "app")
		w.list("a", "b")
		check(t, "best", w.picks(in("app"), Query{Units: 1}), "b")
		hold, _ := b.budget.Reserve(15)
		b.link().status()
		check(t, "best", w.picks(in("app"), Query{Units: 1}), "a")
		hold.Release()
		b.link().status()
		check(t, "best", w.picks(in("app"), Query{Units: 1}), "b")

		time.Sleep(10 * DefaultRefresh)
		synctest.Wait()
		if a.asked != 1 || w.dialled("a") != 1 || w.dialled("b") != 1 {
			t.Errorf("a told %d times what it hosts, a was dialled %d times and b %d", a.asked, w.dialled("a"), w.dialled("b"))
		}
		a.change(func(i *conduitv1.InstanceInfo) {
			i.Deployments = append(i.Deployments, deploymentOf("new", elementOf("new", "ready")))
		})
		check(t, "not yet", w.picks(in("new"), Query{}), conduit.ReasonDeploymentNotFound)
		a.link().status()
		synctest.Wait()
		check(t, "heard of", w.picks(in("new"), Query{}), "a")
		a.change(func(i *conduitv1.InstanceInfo) { i.Deployments = i.Deployments[:1] })
		a.link().status()
		synctest.Wait()
		check(t, "gone again", w.picks(in("new"), Query{}), conduit.ReasonDeploymentNotFound)
		if a.asked != 3 || w.dialled("a") != 1 {
			t.Errorf("asked %d times, dialled %d", a.asked, w.dialled("a"))
		}

		// Also over a new link: the digest is the same.
		a.link().die()
		time.Sleep(time.Second)
		synctest.Wait()
		check(t, "back", w.picks(in("app"), Query{}), "b")
		if a.asked != 3 || w.dialled("a") != 2 {
			t.Errorf("asked %d times, dialled %d", a.asked, w.dialled("a"))
		}
	})
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.list()
		if err := w.r.Run(t.Context()); !errors.Is(err, errRunTwice) {
			t.Errorf("%v", err)
		}
		w.stop()
		if err := w.r.Run(t.Context()); !errors.Is(err, errRunTwice) {
			t.Errorf("%v", err)
		}
	})
}

func TestUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		a.change(func(i *conduitv1.InstanceInfo) {
			i.Deployments = append(i.Deployments, deploymentOf("slow", &conduitv1.ElementInfo{Name: "slow", State: "backoff", Reason: "exit 1"}))
		})
		w.list("a")
		for _, test := range []struct {
			addr, method string
			code         conduit.Code
			reason       string
		}{
			{in("other"), "Call", conduit.NotFound, conduit.ReasonDeploymentNotFound},
			{"*://app/other/S", "Call", conduit.NotFound, conduit.ReasonElementNotFound},
			{"*://app/app[1]/S", "Call", conduit.NotFound, conduit.ReasonElementNotFound},
			{"*://*/other/S", "Call", conduit.NotFound, conduit.ReasonElementNotFound},
			{"*://app/app/T", "Call", conduit.NotFound, conduit.ReasonServiceNotFound},
			{address.UniqueInstanceID("nobody").String() + "://app/app/S", "Call", conduit.NotFound, conduit.ReasonInstanceNotFound},
			{in("slow"), "Call", conduit.Unavailable, conduit.ReasonPluginStarting},
			{a.on("slow"), "Call", conduit.Unavailable, conduit.ReasonPluginStarting},
			{a.on("other"), "Call", conduit.NotFound, conduit.ReasonDeploymentNotFound},
		} {
			_, err := w.pick(test.addr, Query{Method: test.method})
			wantError(t, err, test.code, test.reason)
		}
		// A method that nobody lists is the peers' to judge.
		check(t, "a method that is not listed", w.picks(in("app"), Query{Method: "Hidden"}), "a")
	})
}

// Which element a wildcard and an ordinal mean is the same as on the host.
func TestOrdinals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10)
		two := elementOf("twin", "ready")
		two.Services = append(two.Services, &conduitv1.ServiceDescription{Name: "Only2"})
		off := elementOf("twin", "disabled")
		a.change(func(i *conduitv1.InstanceInfo) {
			i.Deployments = append(i.Deployments,
				deploymentOf("pair", off, elementOf("twin", "starting"), two),
				&conduitv1.DeploymentInfo{Id: "T000000000001", Elements: []*conduitv1.ElementInfo{elementOf("twin", "ready"), elementOf("guest", "ready")}})
		})
		w.host("b", 10, "twin")
		w.list("a", "b")
		for addr, want := range map[string]string{
			"*://pair/twin/S":        "a", // the first that is ready
			"*://pair/twin[0]/S":     conduit.ReasonPluginStarting,
			"*://pair/twin[1]/S":     "a",
			"*://pair/twin[2]/S":     conduit.ReasonElementNotFound, // a disabled one does not count
			"*://pair/twin[1]/Only2": "a",
			"*://pair/twin/Only2":    "a",
			"*://*/twin/S":           "a b",
			"*://*/twin[0]/S":        "b", // never slides to the next
			"*://*/twin[2]/S":        "a", // the transient one comes last
			"*://*/guest/S":          "a",
			"*://twin/twin/S":        "b",
		} {
			check(t, addr, w.picks(addr, Query{}), want)
		}
		for _, test := range [][3]string{
			{"pair", "Only2", "*://pair/twin/Only2"},
			{"*", "S", "*://*/"},
			{"twin", "S", "*://twin/twin/S"},
		} {
			key, _ := address.ParseServiceKey(test[1])
			got, err := w.r.FindService(test[0], key)
			if err != nil || !strings.HasPrefix(got.String(), test[2]) {
				t.Errorf("%s in %s: %s, %v", test[1], test[0], got, err)
			}
		}
		key, _ := address.ParseServiceKey("Nowhere")
		if _, err := w.r.FindService("pair", key); err == nil || err.Reason != conduit.ReasonServiceNotFound {
			t.Errorf("%v", err)
		}
		if _, err := w.r.FindService("a/b", key); err == nil || err.Code != conduit.InvalidArgument {
			t.Errorf("%v", err)
		}
	})
}

// What nobody says anything of is tried anywhere, without units.
func TestOpaquePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10)
		a.info.Digest, a.silent = nil, true
		w.host("b", 10, "app")
		w.list("a", "b")
		check(t, "what b lists", w.picks(in("app"), Query{Method: "Call"}), "a b")
		check(t, "what nobody lists", w.picks(in("other"), Query{Method: "Call"}), "a")
		check(t, "with units", w.picks(in("app"), Query{Method: "Call", Units: 1}), "b")
		check(t, "the built-in services", w.picks("*://conduit/conduit/conduit.v1.Instance", Query{Method: "WhoAreYou"}), "a b")
	})
}

// A pick waits for first answers, and not for those of peers that are not there.
func TestEarlyPick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.host("a", 10, "app").slow = 300 * time.Millisecond
		w.host("b", 10, "other").mute = true
		w.list("a", "b")
		began := time.Now()
		name, err := w.pick(in("app"), Query{Method: "Call"})
		if err != nil || name != "a" || time.Since(began) != 300*time.Millisecond {
			t.Errorf("%q, %v after %v", name, err, time.Since(began))
		}
		_, err = w.pick(in("nothing"), Query{})
		wantError(t, err, conduit.NotFound, conduit.ReasonDeploymentNotFound)
		if took := time.Since(began); took != DefaultRefreshTimeout {
			t.Errorf("it took %v: the answer is known when b has failed", took)
		}
	})
}

func TestSelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me := address.UniqueInstanceID("me")
		w := newWorld(t, Options{Self: me, SelfEpoch: 1})
		w.host("me", 10, "app")
		w.host("a", 10, "app")
		w.list("me", "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		check(t, "picks", w.picks(in("app"), Query{}), "a")
		check(t, "peers", w.peers(), "a alive, ? self")
		if w.dialled("me") != 1 {
			t.Errorf("this instance was dialled %d times", w.dialled("me"))
		}
	})
}

// One instance behind two names is one peer, with one link and one debit.
func TestAlias(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		w.list("a")
		w.put(url("alias"), a)
		w.list("a", "alias")
		time.Sleep(2 * DefaultRefresh)
		synctest.Wait()
		if p := w.r.Peers(); len(p) != 1 || len(p[0].URLs) != 2 || p[0].URLs[1] != url("alias") {
			t.Fatalf("%+v", p)
		}
		if n := len(w.r.index.Load().at(&w.place(in("app")).key)); n != 1 {
			t.Errorf("the peer has %d shares", n)
		}
		if w.dialled("alias") != 1 {
			t.Errorf("the alias was dialled %d times", w.dialled("alias"))
		}

		// The name that it was linked by is withdrawn: the link stays.
		w.list("alias")
		check(t, "under its other name", w.picks(in("app"), Query{}), "a")
		if w.dialled("a") != 1 || w.dialled("alias") != 1 {
			t.Error("it was dialled again")
		}
		// When that link dies, the other name is used.
		a.link().die()
		a.hosts[0].die()
		time.Sleep(time.Second)
		synctest.Wait()
		check(t, "over a new link", w.picks(in("app"), Query{}), "a")
		if w.dialled("a") != 1 || w.dialled("alias") != 2 {
			t.Errorf("a was dialled %d times, alias %d", w.dialled("a"), w.dialled("alias"))
		}
		w.list()
		check(t, "nobody is left", w.peers(), "")
		_, err := w.pick(in("app"), Query{})
		wantError(t, err, conduit.NotFound, conduit.ReasonDeploymentNotFound)
	})
}

// REG-07: a copied data directory.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		first := w.host("a", 10, "app")
		w.list("a")
		second := &instance{w: w, id: first.id, epoch: 77, budget: first.budget, info: first.info}
		w.put(url("b"), second)
		w.list("a", "b")
		for range 10 {
			time.Sleep(DefaultRefresh)
			synctest.Wait()
			ps := w.r.Peers()
			if len(ps) != 2 || ps[0].State != StateAlive || ps[1].State != StateConflict {
				t.Fatalf("%+v", ps)
			}
			for _, part := range []string{url("a"), url("b"), first.id.String(), "id reset"} {
				if !strings.Contains(ps[1].Reason, part) {
					t.Fatalf("%q does not name %s", ps[1].Reason, part)
				}
			}
			check(t, "picks", w.picks(in("app"), Query{}), "a")
		}
		if w.dialled("a") != 1 || len(w.events) > 3 {
			t.Errorf("it flaps: %q, %d dials", w.events, w.dialled("a"))
		}
		// The first one is gone: the second is what is left.
		first.kill()
		time.Sleep(time.Second)
		synctest.Wait()
		if second.link().releases() != 0 || w.r.index.Load().byID[first.id].Epoch() != 77 {
			t.Error("the second was not taken when the first was gone")
		}
	})

	// And when it is the id of this very instance.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Self: address.UniqueInstanceID("a"), SelfEpoch: 9})
		w.host("a", 10, "app")
		w.list("a")
		if p := w.r.Peers()[0]; p.State != StateConflict || !strings.Contains(p.Reason, "id reset") {
			t.Errorf("%+v", p)
		}
	})
}

// REG-09: a node that left comes back, under the same id and under a new one.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, b := w.host("a", 10, "app"), w.host("b", 10, "app")
		w.list("a", "b")

		// It says goodbye: no new work at once, and calls under way go on.
		b.link().goAway(conduit.ReasonDraining)
		for range 20 {
			if name, err := w.pick(in("app"), Query{}); err != nil || name != "a" {
				t.Fatalf("%s, %v", name, err)
			}
		}
		synctest.Wait()
		check(t, "peers", w.peers(), "a alive, b draining")
		_, err := w.pick(b.on("app"), Query{})
		wantError(t, err, conduit.Unavailable, conduit.ReasonDraining)
		if b.link().releases() != 0 {
			t.Error("the link was released while calls were under way")
		}

		// The process is still there, with the same epoch: it is not taken again.
		b.link().die()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if w.dialled("b") < 2 {
			t.Error("nobody looked whether it came back")
		}
		check(t, "while it drains", w.picks(in("app"), Query{}), "a")

		// It starts again within a second.
		b.kill()
		time.Sleep(time.Second)
		began := time.Now()
		fresh := b.again()
		for w.picks(in("app"), Query{}) != "a b" {
			time.Sleep(100 * time.Millisecond)
			if time.Since(began) > mostPause*3/2+time.Second {
				t.Fatal("it is not used again")
			}
		}
		name, err := w.pick(b.on("app"), Query{})
		if err != nil || name != "b" {
			t.Errorf("%s, %v", name, err)
		}

		// And once with a new id.
		fresh.kill()
		synctest.Wait()
		_, err = w.pick(b.on("app"), Query{})
		wantError(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable)
		if !err.Retryable || err.RetryAfter <= 0 {
			t.Errorf("%+v", err)
		}
		other := fresh.as(address.UniqueInstanceID("other"))
		time.Sleep(mostPause * 2)
		synctest.Wait()
		check(t, "under a new id", w.picks(other.on("app"), Query{}), "b")
		_, err = w.pick(b.on("app"), Query{})
		wantError(t, err, conduit.NotFound, conduit.ReasonInstanceNotFound)
		_ = a
	})
}

// DRN-09: an instance that goes away looks for nobody any more, and loses nobody whom
// calls under way may need.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, b := w.host("a", 10, "app"), w.host("b", 10, "app")
		w.list("a", "b", "dead")
		time.Sleep(time.Second)
		synctest.Wait()
		check(t, "peers", w.picks(in("app"), Query{}), "a b")
		before := w.dialled("dead")
		if before == 0 {
			t.Fatal("who is dead was never dialled")
		}
		w.r.Leave()
		w.r.Leave()
		w.host("new", 10, "app")
		w.list("a", "new", "dead") // b is withdrawn, which counts no more, either
		b.link().goAway(conduit.ReasonDraining)
		synctest.Wait()
		b.kill()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := w.dialled("dead") - before; n > 0 || w.dialled("new") > 0 || w.dialled("b") > 1 {
			t.Errorf("dialled: dead %d times, new %d, b %d", n, w.dialled("new"), w.dialled("b")-1)
		}
		check(t, "picks", w.picks(in("app"), Query{}), "a")
		a.link().die()
		time.Sleep(time.Second)
		synctest.Wait()
		check(t, "a lost peer", w.picks(in("app"), Query{}), "a")
		if w.dialled("a") != 2 {
			t.Errorf("it was dialled %d times", w.dialled("a"))
		}
	})
	// Before anybody was found: nobody waits for answers that will not come.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.host("a", 10, "app")
		w.r.Leave()
		w.list("a")
		began := time.Now()
		_, err := w.r.Pick(t.Context(), w.place(in("app")), Query{})
		if err == nil || time.Since(began) > 0 || w.dialled("a") > 0 {
			t.Errorf("%v after %v, %d dials", err, time.Since(began), w.dialled("a"))
		}
	})
}

// A peer that is restarted in order again and again, as in a roll-out, is back at
// once each time: it said goodbye, so it is not one that cannot keep a link.
func TestRestartedOftenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.host("a", 10, "app")
		b := w.host("b", 10, "app")
		w.list("a", "b")
		const down = 300 * time.Millisecond
		for round := range 10 {
			b.link().goAway(conduit.ReasonDraining)
			synctest.Wait()
			b.kill()
			time.Sleep(down)
			b = b.again()
			// The pauses are 0.1 and 0.2 s, and their jitter; then one of 0.4 s at most.
			time.Sleep(time.Second)
			synctest.Wait()
			if got := w.picks(in("app"), Query{}); got != "a b" {
				t.Fatalf("restart %d: %s is picked, %s", round+1, got, w.peers())
			}
		}
	})
}

// A peer that asks for a new link gets one, and keeps being used.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		w.list("a")
		time.Sleep(time.Minute)
		a.link().goAway("too_old")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		check(t, "over the new link", w.picks(in("app"), Query{}), "a")
		// But not in a circle.
		for range 100 {
			if l := a.link(); l.Usable() {
				l.goAway("too_old")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.dialled("a"); n > 8 {
			t.Errorf("%d dials in a second", n)
		}
	})
}

// Nobody is picked whose link is dead, from the very moment on.
func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		all := []*instance{w.host("a", 10, "app"), w.host("b", 10, "app"), w.host("c", 10, "app")}
		w.list("a", "b", "c")
		all[1].kill()
		check(t, "at once", w.picks(in("app"), Query{}), "a c")
		synctest.Wait()
		check(t, "peers", w.peers(), "a alive, b unreachable, c alive")
		all[0].kill()
		all[2].kill()
		_, err := w.pick(in("app"), Query{})
		wantError(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable)

		// However many calls there are, it is dialled with pauses.
		before := w.dialled("a")
		for range 6000 {
			_, _ = w.r.TryPick(w.place(in("app")), Query{})
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.dialled("a") - before; n < 10 || n > 40 {
			t.Errorf("%d dials in a minute", n)
		}
		// Withdrawn: not dialled at all.
		w.list("b", "c")
		before = w.dialled("a")
		time.Sleep(time.Minute)
		if n := w.dialled("a") - before; n != 0 {
			t.Errorf("%d dials after discovery named it no more", n)
		}
	})
}

// A thousand callers of a peer that restarts do not dial it at the same moment.
func TestDialsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprintf("n%03d", i))
		}
		w.list(names...) // nobody is there
		time.Sleep(time.Minute)
		at := map[time.Time]int{}
		var last map[string]int
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			w.mu.Lock()
			now := map[string]int{}
			for u, n := range w.dials {
				now[u] = n
				at[time.Now()] += n - last[u]
			}
			w.mu.Unlock()
			if last == nil {
				clear(at)
			}
			last = now
		}
		for when, n := range at {
			if n > 20 {
				t.Errorf("%d of 200 dials in the 50 ms before %v", n, when)
			}
		}
	})
}

// Two instances of one name are another thing than two of one id: both are used, and the
// log says it, but for one that goes while the other comes.
func TestOneNameTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := newWorld(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		w.host("a", 10, "app")
		b := w.host("b", 10, "app")
		w.list("a")
		w.list("a", "b")
		if strings.Contains(log.String(), "two instances have one name") {
			t.Error(log.String())
		}
		c := w.host("c", 10, "app")
		c.info.Name = b.info.GetName()
		w.list("a", "b", "c")
		if n := strings.Count(log.String(), "two instances have one name"); n != 1 || !strings.Contains(log.String(), c.id.String()) {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
		check(t, "peers", w.peers(), "a alive, b alive, b alive")
	})
}
