package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// A process that was stopped for a while finds its timer late, and unread what its peer
// has answered meanwhile. It must not hold that against the peer (FAB-63); one that is
// dead indeed it finds out all the same. The timers of a bubble are never late, so the
// link's is taken from it while the process "is stopped", and comes when it goes on:
// before the reader does, which is the worst order.
func TestStoppedObserver(t *testing.T) {
	for name, stop := range map[string]struct {
		at     time.Duration // after the call was made
		probes int           // that are without an answer then
	}{
		"before a probe":               {700 * time.Millisecond, 0},
		"with one probe under way":     {1200 * time.Millisecond, 1},
		"with two probes under way":    {2200 * time.Millisecond, 2},
		"as the first answer has come": {2600 * time.Millisecond, 0},
	} {
		for _, dead := range []bool{false, true} {
			what := "the peer lives"
			if dead {
				what = "the peer is dead"
			}
			t.Run(name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { stoppedObserver(t, stop.at, stop.probes, dead) })
			})
		}
	}
}

func stoppedObserver(t *testing.T, at time.Duration, probes int, dead bool) {
	t.Helper()
	// So far away that two probes are written before the first is answered.
	w, a, b := newSimWire(150<<10, func() time.Duration { return 750 * time.Millisecond }, nil)
	server := New(b, Options{Handler: handlerFunc(func(in *Incoming) {
		in.Serve(func(ctx context.Context, _ *ServerCall) error {
			<-ctx.Done()
			return ctx.Err()
		})
	})})
	c := New(a, Options{Dialer: true})
	defer func() {
		w.mu.Lock()
		w.frozen[0] = false
		w.change.Broadcast()
		w.mu.Unlock()
		c.Close(CloseDone, "over")
		server.Close(CloseDone, "over")
		checkOver(t, "the caller", c)
		checkOver(t, "the server", server)
	}()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Minute) // the line has been measured: nothing but probes is written
	_ = c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Last: true, Streaming: true})
	time.Sleep(at)

	w.mu.Lock()
	w.frozen[0] = true
	w.hole = dead
	w.mu.Unlock()
	c.mu.Lock()
	late := c.live.timer.Stop()
	under := c.live.probes
	c.mu.Unlock()
	if !late {
		t.Fatal("the timer was not running: the test does not test")
	}
	if under != probes {
		t.Fatalf("%d probes are without an answer, not %d: the test does not test what it says", under, probes)
	}
	time.Sleep(12 * time.Second)
	c.tick()
	synctest.Wait()
	if err := c.Err(); err != nil {
		t.Fatalf("as soon as the process goes on it takes its peer for dead: %v", err)
	}
	w.mu.Lock()
	w.frozen[0] = false
	w.change.Broadcast()
	w.mu.Unlock()

	time.Sleep(DefaultDeadAfter + 2*DefaultProbeInterval)
	switch err := c.Err(); {
	case dead && err == nil:
		t.Error("a peer that is dead is not found out")
	case !dead && err != nil:
		t.Errorf("a peer that lives was taken for dead: %v", err)
	}
}
