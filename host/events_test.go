package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// watching is a subscription that an element of the rig has, as it passes it on.
type watching struct {
	r *rig
	x conduit.Exchange
}

// watch has the fixture echo subscribe to events; none = all.
func (r *rig) watch(names ...string) watching {
	return watching{r, invoke(r.ctx, r.client, echo, "Watch", strings.Join(names, ","))}
}

func (w watching) next() *conduitv1.HostEvent {
	w.r.t.Helper()
	m, err := w.x.Recv(w.r.ctx)
	if err != nil {
		w.r.t.Fatalf("no more events: %v", err)
	}
	e, err := conduit.Decode[*conduitv1.HostEvent](conduit.Message{ContentType: conduit.ContentProto, Data: m.Data})
	if err != nil {
		w.r.t.Fatal(err)
	}
	return e
}

// short is an event as the tests write it.
func short(e *conduitv1.HostEvent) string {
	s := fmt.Sprintf("%s %s %d %s", e.GetName(), e.GetDeployment(), e.GetGeneration(), e.GetState())
	if e.GetPresent() {
		s = "present " + s
	}
	return strings.TrimSpace(s)
}

// want reads as many events as are wanted, which follow each other without a gap.
func (w watching) want(what string, want ...string) (last *conduitv1.HostEvent) {
	w.r.t.Helper()
	var got []string
	for range want {
		e := w.next()
		if last != nil && !e.GetPresent() && e.GetSequence() != last.GetSequence()+1 || e.GetSequence() == 0 {
			w.r.t.Errorf("%s: event %d comes after %d", what, e.GetSequence(), last.GetSequence())
		}
		if id := address.UniqueDeploymentID(e.GetDeployment()).String(); e.GetDeploymentId() != id {
			w.r.t.Errorf("%s: the id of %s is %s", what, e.GetDeployment(), e.GetDeploymentId())
		}
		got, last = append(got, short(e)), e
	}
	if !slices.Equal(got, want) {
		w.r.t.Fatalf("%s: heard %q, want %q", what, got, want)
	}
	return last
}

// TestEvents: an element hears of what is loaded, and then of other deployments that
// come, are replaced and go.
func TestEvents(t *testing.T) {
	r := newRig(t, "echo", "badconfig")
	r.ready()
	// One that does not start is tried again and again; that it fails is told once.
	all, gone := r.watch(), r.watch(pluginlink.DeploymentUnloaded)
	defer all.x.Cancel(nil)
	defer gone.x.Cancel(nil)
	all.want("at first", "present deployment_loaded badconfig 1 failed", "present element_loaded echo 1 ready", "present deployment_loaded echo 1 clean")

	r.deploy("echo-two", "")
	all.want("a new deployment", "element_loaded echo-two 1 ready", "deployment_loaded echo-two 1 clean")
	r.deploy("echo-two", "another version")
	e := all.want("a new version of it", "element_loaded echo-two 2 ready", "deployment_loaded echo-two 2 clean")
	mustDo(t, os.Remove(filepath.Join(r.dir, "echo-two")))
	last := all.want("its end", "deployment_unloaded echo-two 2")
	if last.GetSequence() != e.GetSequence()+1 {
		t.Errorf("event %d comes after %d", last.GetSequence(), e.GetSequence())
	}
	if e := gone.next(); short(e) != "deployment_unloaded echo-two 2" || e.GetSequence() != last.GetSequence() {
		t.Errorf("who asked for that alone hears %v", e)
	}
	later := r.watch(pluginlink.DeploymentLoaded)
	defer later.x.Cancel(nil)
	e = later.want("what is left", "present deployment_loaded badconfig 1 failed", "present deployment_loaded echo 1 clean")
	if e.GetSequence() != last.GetSequence() {
		t.Errorf("the present state is that of event %d, want %d", e.GetSequence(), last.GetSequence())
	}
}

// TestEventsTellNoPaths: events have no path, and nothing that was printed.
func TestEventsTellNoPaths(t *testing.T) {
	r := newRig(t, "echo", "dies")
	r.ready()
	w := r.watch()
	defer w.x.Cancel(nil)
	for range 3 {
		text := w.next().String()
		for _, private := range []string{r.dir, r.private, "cannot live", "/"} {
			if strings.Contains(text, private) {
				t.Errorf("the event %s has %q in it", text, private)
			}
		}
	}
}

// TestCrashIsToldAsANewGeneration: what comes back is loaded again.
func TestCrashIsToldAsANewGeneration(t *testing.T) {
	r := newRig(t, "echo", "told")
	r.ready()
	w := r.watch()
	defer w.x.Cancel(nil)
	w.want("at first", "present element_loaded echo 1 ready", "present deployment_loaded echo 1 clean", "present element_loaded told 1 ready", "present deployment_loaded told 1 warnings")
	_, _ = r.call(toldAt, "Exit", "")
	w.want("after a crash", "element_loaded told 2 ready", "deployment_loaded told 2 warnings")
}

// TestSubscriptionsHoldNothing: a subscription is no call to its element, keeps no old
// process, and ends at once when the host drains.
func TestSubscriptionsHoldNothing(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.DrainTimeout = time.Hour }, "echo")
	r.ready()
	if _, err := r.call(echo, "Subscribe", ""); err != nil {
		t.Fatal(err)
	}
	r.until("no call is left", func(m map[string]ElementStatus) bool { return m["echo"].Calls == 0 })
	if n := r.h.events.feed.Subscribers(); n != 1 {
		t.Fatalf("there are %d subscriptions", n)
	}
	r.deploy("echo", "another version")
	r.until("the old process is gone", func(m map[string]ElementStatus) bool {
		return m["echo"].Generation == 2 && len(m["echo"].Old) == 0
	})
	r.untilSubscribers(0)
	if _, err := r.call(echo, "Subscribe", ""); err != nil {
		t.Fatal(err)
	}
	w := r.watch(pluginlink.ElementLoaded)
	w.want("at first", "present element_loaded echo 2 ready")
	r.untilSubscribers(2)
	drained := make(chan error, 1)
	go func() { drained <- r.h.Drain(r.ctx) }()
	// Its handler passes on how its subscription ends.
	_, err := w.x.Recv(r.ctx)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonDraining || e.Code != conduit.Unavailable {
		t.Errorf("it ends with %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	r.untilSubscribers(0)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	if err := r.h.events.feed.Serve(ctx, nil, nil); !errors.Is(err, &conduit.Error{Code: conduit.Unavailable}) {
		t.Errorf("a draining host takes a subscription: %v", err)
	}
}

func (r *rig) untilSubscribers(n int) {
	r.t.Helper()
	for r.h.events.feed.Subscribers() != n {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ctx.Done():
			r.t.Fatalf("there are %d subscriptions, want %d", r.h.events.feed.Subscribers(), n)
		}
	}
}

func TestUnknownEventIsRefused(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	_, err := r.watch("element_lost").x.Recv(r.ctx)
	e := wantReason(t, err, conduit.ReasonBadContent, conduit.Refused)
	if !strings.Contains(e.Message, pluginlink.ElementLoaded) {
		t.Errorf("it says %q", e.Message)
	}
}

// TestEventsOfSeveralElements: a deployment is told of when all of its elements have
// come up or failed, and again for each of them that changes.
func TestEventsOfSeveralElements(t *testing.T) {
	h, err := New(Options{Dir: t.TempDir(), Private: t.TempDir()})
	mustDo(t, err)
	one, two := newElement(h, finding{name: "d"}), newElement(h, finding{name: "d"})
	set := func(e *element, name string, s State, generation uint64, settled bool) {
		e.status.Name, e.status.State, e.status.Generation, e.settled = name, s, generation, settled
	}
	want := func(what string, list []*element, want ...string) {
		t.Helper()
		var got []string
		for _, e := range h.events.compare(list) {
			got = append(got, short(e))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: told %q, want %q", what, got, want)
		}
	}
	both := []*element{one, two}
	want("at first", both)
	set(one, "one", Ready, 1, true)
	set(two, "", Starting, 0, false)
	want("the first", both, "element_loaded d 1 ready")
	set(two, "two", Backoff, 0, true)
	want("the second fails", both, "deployment_loaded d 1 unstable")
	want("nothing", both)
	set(two, "two", Ready, 1, true)
	want("the second", both, "element_loaded d 1 ready", "deployment_loaded d 2 clean")
	set(one, "one", Degraded, 1, true)
	want("the first is ill", both)
	var state []string
	for _, e := range h.events.state() {
		state = append(state, e.GetElement()+" "+short(e))
	}
	if want := []string{"one element_loaded d 1 degraded", "two element_loaded d 1 ready", " deployment_loaded d 2 warnings"}; !slices.Equal(state, want) {
		t.Errorf("the state is told as %q, want %q", state, want)
	}
	want("one is taken out", []*element{two}, "deployment_loaded d 3 clean")
	two.gone = true
	want("it is to go, and serves", []*element{two})
	set(two, "two", Draining, 1, true)
	want("it goes", []*element{two}, "deployment_unloaded d 3")
	want("it has gone", nil)
	three := newElement(h, finding{name: "d"})
	set(three, "one", Ready, 1, true)
	want("another of that name, beside what leaves", []*element{two, three}, "element_loaded d 1 ready", "deployment_loaded d 1 clean")
	set(three, "one", Disabled, 1, true)
	want("it is disabled", []*element{three}, "deployment_unloaded d 1")
}
