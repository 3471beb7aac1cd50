package pluginlink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// listener is a subscriber that takes an event only when it is let.
type listener struct {
	cancel context.CancelFunc
	ended  chan error

	mu    sync.Mutex
	heard []string
	gate  chan struct{} // nil: it takes all at once
}

func listen(t *testing.T, f *Feed, gate chan struct{}, names ...string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{cancel: cancel, ended: make(chan error, 1), gate: gate}
	go func() {
		l.ended <- f.Serve(ctx, names, func(e *conduitv1.HostEvent) error {
			if gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.heard = append(l.heard, brief(e))
			return nil
		})
	}()
	return l
}

// brief is an event as the tests write it: =3 loaded d1, where = is the present state.
func brief(e *conduitv1.HostEvent) string {
	mark := "+"
	if e.GetPresent() {
		mark = "="
	}
	return fmt.Sprintf("%s%d %s %s%d", mark, e.GetSequence(), e.GetName(), e.GetDeployment(), e.GetGeneration())
}

// take returns what has been heard since it was last asked.
func (l *listener) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := l.heard
	l.heard = nil
	return heard
}

func (l *listener) stop(t *testing.T) error {
	t.Helper()
	l.cancel()
	return <-l.ended
}

func loadedEvent(deployment string, generation uint64) *conduitv1.HostEvent {
	return &conduitv1.HostEvent{Name: DeploymentLoaded, Deployment: deployment, Generation: generation}
}

func wantHeard(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: heard %q, want %q", what, got, want)
	}
}

// The present state comes first, once, and then every change in order.
func TestFeedTellsThePresentStateFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Feed{}
		early := listen(t, f, nil)
		wantHeard(t, "a feed that was told nothing", early.take())
		f.Publish([]*conduitv1.HostEvent{loadedEvent("a", 1)}, loadedEvent("a", 1))
		f.Publish([]*conduitv1.HostEvent{loadedEvent("a", 2), loadedEvent("b", 1)}, loadedEvent("a", 2), loadedEvent("b", 1))
		late, other := listen(t, f, nil), listen(t, f, nil, ElementLoaded)
		synctest.Wait()
		f.Publish([]*conduitv1.HostEvent{loadedEvent("b", 1)}, &conduitv1.HostEvent{Name: DeploymentUnloaded, Deployment: "a"},
			&conduitv1.HostEvent{Name: ElementLoaded, Deployment: "b", Generation: 7})
		wantHeard(t, "from the beginning", early.take(), "+1 deployment_loaded a1", "+2 deployment_loaded a2", "+3 deployment_loaded b1",
			"+4 deployment_unloaded a0", "+5 element_loaded b7")
		wantHeard(t, "later", late.take(), "=3 deployment_loaded a2", "=3 deployment_loaded b1", "+4 deployment_unloaded a0", "+5 element_loaded b7")
		wantHeard(t, "of elements only", other.take(), "+5 element_loaded b7")
		if n := f.Subscribers(); n != 3 {
			t.Errorf("there are %d subscribers, want 3", n)
		}
		for _, l := range []*listener{early, late, other} {
			if err := l.stop(t); !errors.Is(err, context.Canceled) {
				t.Errorf("a subscription ends with %v", err)
			}
		}
		if n := f.Subscribers(); n != 0 {
			t.Errorf("%d subscribers are left", n)
		}
	})
}

// Who cannot keep up gets one resync and what holds then, and misses nothing after it;
// the others hear everything.
func TestFeedResyncsWhoFallsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Feed{depth: 3}
		gate := make(chan struct{})
		slow, quick := listen(t, f, gate), listen(t, f, nil)
		synctest.Wait()
		publish := func(n uint64) {
			f.Publish([]*conduitv1.HostEvent{loadedEvent("a", n)}, loadedEvent("a", n))
			synctest.Wait() // one at a time, so that the quick one never waits
		}
		for n := range uint64(4) { // one is on its way, three wait
			publish(n + 1)
		}
		for range 4 {
			gate <- struct{}{}
		}
		wantHeard(t, "as many as have room", slow.take(), "+1 deployment_loaded a1", "+2 deployment_loaded a2", "+3 deployment_loaded a3", "+4 deployment_loaded a4")
		for n := range uint64(20) {
			publish(n + 5)
		}
		for range 3 {
			gate <- struct{}{}
		}
		wantHeard(t, "after too many", slow.take(), "+5 deployment_loaded a5", "+24 resync 0", "=24 deployment_loaded a24")
		publish(25)
		gate <- struct{}{}
		wantHeard(t, "when it has caught up", slow.take(), "+25 deployment_loaded a25")
		if heard := quick.take(); len(heard) != 25 || heard[24] != "+25 deployment_loaded a25" {
			t.Errorf("the other has heard %q", heard)
		}
		_, _ = slow.stop(t), quick.stop(t)
	})
}

// A resync that is not told to its end begins anew.
func TestFeedResyncsAgainWhileItTellsTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Feed{depth: 1}
		gate := make(chan struct{})
		l := listen(t, f, gate)
		synctest.Wait()
		state := func(n uint64) []*conduitv1.HostEvent {
			return []*conduitv1.HostEvent{loadedEvent("a", n), loadedEvent("b", n)}
		}
		for n := range uint64(3) {
			f.Publish(state(n+1), loadedEvent("a", n+1))
			synctest.Wait()
		}
		for range 3 { // +1, resync, =a; =b is on its way
			gate <- struct{}{}
		}
		synctest.Wait()
		for n := range uint64(2) {
			f.Publish(state(n+4), loadedEvent("a", n+4))
		}
		for range 4 {
			gate <- struct{}{}
		}
		wantHeard(t, "twice behind", l.take(), "+1 deployment_loaded a1", "+3 resync 0", "=3 deployment_loaded a3", "=3 deployment_loaded b3",
			"+5 resync 0", "=5 deployment_loaded a5", "=5 deployment_loaded b5")
		f.Resync()
		for range 3 {
			gate <- struct{}{}
		}
		wantHeard(t, "when it is asked for", l.take(), "+5 resync 0", "=5 deployment_loaded a5", "=5 deployment_loaded b5")
		_ = l.stop(t)
	})
}

func TestFeedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Feed{}
		draining := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "going")
		idle, stuck := listen(t, f, nil), listen(t, f, make(chan struct{}))
		synctest.Wait()
		f.Publish(nil, loadedEvent("a", 1), loadedEvent("a", 2))
		wantHeard(t, "before", idle.take(), "+1 deployment_loaded a1", "+2 deployment_loaded a2")
		f.End(draining)
		if err := <-idle.ended; !errors.Is(err, draining) {
			t.Errorf("it ends with %v", err)
		}
		late := listen(t, f, nil)
		if err := <-late.ended; !errors.Is(err, draining) {
			t.Errorf("a later one ends with %v", err)
		}
		if err := stuck.stop(t); !errors.Is(err, context.Canceled) {
			t.Errorf("one that does not take what it is told ends with %v", err)
		}
		f.Publish(nil, loadedEvent("a", 3)) // to nobody
		idle.cancel()
		late.cancel()
	})
}

func TestFeedRefusesUnknownEvents(t *testing.T) {
	for _, name := range []string{Resync, "", "element"} {
		err := (&Feed{}).Serve(t.Context(), []string{name}, nil)
		if !errors.Is(err, &conduit.Error{Code: conduit.InvalidArgument}) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
