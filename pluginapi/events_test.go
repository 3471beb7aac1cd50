package pluginapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// hearing is what a subscribed func was told.
type hearing struct {
	mu    sync.Mutex
	heard []string
}

func (h *hearing) take(e pluginapi.Event) {
	mark := "+"
	if e.Present {
		mark = "="
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, fmt.Sprintf("%s%d %s %s%d", mark, e.Sequence, e.Name, e.Deployment, e.Generation))
}

// want waits, in a bubble, until nothing more comes.
func (h *hearing) want(t *testing.T, what string, want ...string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.heard, want) {
		t.Errorf("%s: heard %q, want %q", what, h.heard, want)
	}
	h.heard = nil
}

// subscriber is an element that subscribes as it starts.
func subscriber(t *testing.T, event string, fn func(pluginapi.Event)) (e pluginapi.Element, unsubscribe func()) {
	t.Helper()
	var end func()
	return pluginapi.Element{Name: "e", Version: "1.2", Start: func(_ context.Context, h pluginapi.Host) (err error) {
		end, err = h.Subscribe(event, fn)
		return err
	}}, func() { end() }
}

func TestSubscribeTellsTheStateAndThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hearing{}
		var details pluginapi.Event
		e, unsubscribe := subscriber(t, pluginapi.AllEvents, func(e pluginapi.Event) {
			h.take(e)
			details = e
		})
		other := pluginapi.Element{Name: "other"}
		c := plugintest.Start(t, e, plugintest.Deployment("d"), plugintest.Beside("beside", other))
		synctest.Wait()
		h.mu.Lock()
		// It may have subscribed before it was loaded itself: either way it is told once.
		if n := len(h.heard); n != 4 {
			t.Errorf("heard %q", h.heard)
		}
		h.heard = nil
		h.mu.Unlock()
		c.Tell(pluginapi.Event{Name: pluginapi.EventElementLoaded, Deployment: "new", Element: "x", Version: "3"})
		h.want(t, "an element", "+5 element_loaded new1")
		if details.Element != "x" || details.Version != "3" || details.State != "ready" || details.DeploymentID == "" {
			t.Errorf("it is %+v", details)
		}
		c.Tell(pluginapi.Event{Name: pluginapi.EventDeploymentLoaded, Deployment: "beside", State: "unstable"})
		c.Tell(pluginapi.Event{Name: pluginapi.EventDeploymentUnloaded, Deployment: "beside"})
		h.want(t, "a deployment", "+6 deployment_loaded beside2", "+7 deployment_unloaded beside2")
		c.Tell(pluginapi.Event{Name: pluginapi.EventResync})
		h.want(t, "a resync", "+7 resync 0", "=7 element_loaded d1", "=7 deployment_loaded d1", "=7 element_loaded new1")
		if n := c.Subscriptions(); n != 1 {
			t.Errorf("there are %d subscriptions", n)
		}
		unsubscribe()
		unsubscribe()
		synctest.Wait()
		c.Tell(pluginapi.Event{Name: pluginapi.EventDeploymentUnloaded, Deployment: "d"})
		h.want(t, "after the end")
		if n := c.Subscriptions(); n != 0 {
			t.Errorf("%d subscriptions are left", n)
		}
	})
}

// A func that panics, or takes its time, hurts itself alone.
func TestSubscribersDoNotHurtOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, bad := &hearing{}, &hearing{}
		gate := make(chan struct{})
		s := pluginapi.NewService("test.S")
		pluginapi.Handle(s, "Ping", func(context.Context, struct{}) (string, error) { return "pong", nil }, pluginapi.Remote())
		var stuck func()
		e := pluginapi.Element{Name: "e", Services: []*pluginapi.Service{s}, Start: func(_ context.Context, h pluginapi.Host) error {
			_, err := h.Subscribe(pluginapi.EventElementLoaded, good.take)
			if err == nil {
				_, err = h.Subscribe(pluginapi.EventElementLoaded, func(e pluginapi.Event) { bad.take(e); panic("told " + e.Name) })
			}
			if err == nil {
				stuck, err = h.Subscribe(pluginapi.EventElementLoaded, func(pluginapi.Event) { <-gate })
			}
			return err
		}}
		c := plugintest.Start(t, e)
		synctest.Wait()
		for n := range 3 {
			c.Tell(pluginapi.Event{Name: pluginapi.EventElementLoaded, Deployment: fmt.Sprint("d", n), Element: "x"})
		}
		synctest.Wait()
		if text, err := conduit.Call[string](t.Context(), c.Service("test.S"), "Ping", nil); err != nil || text != "pong" {
			t.Errorf("a call: %q, %v", text, err)
		}
		for _, h := range []*hearing{good, bad} {
			h.mu.Lock()
			if n := len(h.heard); n != 4 || h.heard[n-1] != "+5 element_loaded d21" {
				t.Errorf("heard %q", h.heard)
			}
			h.mu.Unlock()
		}
		if n := c.Subscriptions(); n != 3 {
			t.Errorf("there are %d subscriptions", n)
		}
		stuck() // it ends at the host while its func still waits
		synctest.Wait()
		if n := c.Subscriptions(); n != 2 {
			t.Errorf("there are %d subscriptions, want 2", n)
		}
		close(gate)
	})
}

// A func that is too slow for all that happens is told once that it missed something,
// and then what holds.
func TestSlowSubscriberIsResynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var mu sync.Mutex
		var all []pluginapi.Event
		e, _ := subscriber(t, pluginapi.EventDeploymentLoaded, func(e pluginapi.Event) {
			<-gate
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
		})
		c := plugintest.Start(t, e)
		synctest.Wait()
		const changes = 20000 // more than the link's window and the queue hold
		for n := range changes {
			c.Tell(pluginapi.Event{Name: pluginapi.EventDeploymentLoaded, Deployment: "busy"})
			if n%100 == 0 { // never more than the queue holds at once, until the window is full
				synctest.Wait()
			}
		}
		close(gate)
		synctest.Wait()
		resyncs, generation, last := 0, uint64(0), uint64(0)
		for i, e := range all {
			switch {
			case e.Name == pluginapi.EventResync:
				resyncs++
			case e.Deployment == "busy":
				if resyncs == 0 && e.Generation != generation+1 {
					t.Fatalf("event %d is generation %d after %d, without a resync", i, e.Generation, generation)
				}
				generation = e.Generation
			}
			if e.Sequence < last {
				t.Fatalf("event %d has number %d after %d", i, e.Sequence, last)
			}
			last = e.Sequence
		}
		if resyncs != 1 || generation != changes || len(all) >= changes {
			t.Errorf("of %d changes it was told %d events and %d resyncs, the last generation being %d", changes, len(all), resyncs, generation)
		}
	})
}

func TestSubscribeRefusesWhatThereIsNot(t *testing.T) {
	var errs []error
	e := pluginapi.Element{Name: "e", Start: func(_ context.Context, h pluginapi.Host) error {
		for _, name := range []string{"", "element_lost", pluginapi.EventResync} {
			_, err := h.Subscribe(name, func(pluginapi.Event) {})
			errs = append(errs, err)
		}
		_, err := h.Subscribe(pluginapi.AllEvents, nil)
		errs = append(errs, err)
		return nil
	}}
	c := plugintest.Start(t, e)
	for i, err := range errs {
		if !errors.Is(err, &pluginapi.Error{Code: pluginapi.InvalidArgument}) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if n := c.Subscriptions(); n != 0 {
		t.Errorf("there are %d subscriptions", n)
	}
}
