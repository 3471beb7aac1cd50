// Package discoverytest is what every discovery.Source must do, as a test that
// each implementation runs.
package discoverytest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/discovery"
)

// A Subject is a source under test and the world that it looks at.
type Subject struct {
	Source discovery.Source
	// Set changes which hosts there are: URLs in normal form, perhaps more than
	// once. It returns when the source can see them.
	Set func(peers ...string)
	// Patience is how long the source may take to notice; 0 = 5 s.
	Patience time.Duration
}

// Run tests the source that open makes, which sees the given hosts. What open
// starts ends with its t.
func Run(t *testing.T, open func(t *testing.T, peers ...string) Subject) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Log(c.why)
			c.run(t, open)
		})
	}
}

const (
	a = "ws://127.0.0.1:7401/cluster/v1"
	b = "ws://127.0.0.1:7402/cluster/v1"
	c = "wss://c.example:7403/cluster/v1"
)

type opener func(t *testing.T, peers ...string) Subject

//nolint:gochecknoglobals // a table
var cases = []struct {
	name, why string
	run       func(t *testing.T, open opener)
}{
	{"First", "the first snapshot comes by itself, in normal form and in order", func(t *testing.T, open opener) {
		t.Helper()
		w := watch(t, open(t, c, a, b))
		w.see(a, b, c)
		for _, p := range w.last.Peers {
			if n, err := discovery.ParsePeer(p, true); err != nil || n != p {
				t.Errorf("%q is not in normal form: %q, %v", p, n, err)
			}
		}
		if w.last.At.IsZero() {
			t.Error("the snapshot does not say when it was taken")
		}
	}},
	{"Nobody", "that there is nobody is known, too: whoever waits for the first snapshot goes on", func(t *testing.T, open opener) {
		t.Helper()
		watch(t, open(t)).see()
	}},
	{"Once", "a peer that is listed twice is one", func(t *testing.T, open opener) {
		t.Helper()
		w := watch(t, open(t, a, b, a, a))
		w.see(a, b)
		w.s.Set(b, b)
		w.see(b)
	}},
	{"Change", "hosts come, go, and come again; a snapshot is all of them, not the difference", func(t *testing.T, open opener) {
		t.Helper()
		w := watch(t, open(t, a))
		w.see(a)
		w.s.Set(a, b, c)
		w.see(a, b, c)
		w.s.Set(b)
		w.see(b)
		w.s.Set(a, b)
		w.see(a, b)
	}},
	{"Immutable", "a snapshot that was published is not written to later", func(t *testing.T, open opener) {
		t.Helper()
		w := watch(t, open(t, a, b))
		w.see(a, b)
		kept, copied := w.last.Peers, slices.Clone(w.last.Peers)
		w.s.Set(c)
		w.see(c)
		if !slices.Equal(kept, copied) {
			t.Errorf("%q has become %q", copied, kept)
		}
	}},
	{"Slow", "while a receiver is slow nothing queues up: it sees the latest next, and nothing is lost", func(t *testing.T, open opener) {
		t.Helper()
		s := open(t, a)
		w := watch(t, s)
		w.see(a)
		release := w.hold()
		for i := range 20 {
			s.Set("ws://127.0.0.1:" + strconv.Itoa(7500+i) + "/cluster/v1")
		}
		s.Set(b, c)
		release()
		w.see(b, c)
	}},
	{"End", "Run returns nil soon after its context ends, and publishes nothing afterwards", func(t *testing.T, open opener) {
		t.Helper()
		s := open(t, a)
		w := watch(t, s)
		w.see(a)
		w.stop()
		n := w.count.Load()
		s.Set(b)
		if w.count.Load() != n {
			t.Error("it published after Run had returned")
		}
	}},
	{"EndWhileHeld", "Run returns though its receiver was slow when the context ended", func(t *testing.T, open opener) {
		t.Helper()
		s := open(t, a)
		w := watch(t, s)
		w.see(a)
		release := w.hold()
		s.Set(b)
		w.cancel()
		release()
		w.stop()
	}},
	{"Again", "a source can be run again, and begins with what is", func(t *testing.T, open opener) {
		t.Helper()
		s := open(t, a)
		w := watch(t, s)
		w.see(a)
		w.stop()
		s.Set(b)
		watch(t, s).see(b)
	}},
}

// watcher runs a source and keeps what it publishes.
type watcher struct {
	t      *testing.T
	s      Subject
	cancel context.CancelFunc
	ended  chan error
	got    chan discovery.Snapshot // the latest, if it was not taken yet
	last   discovery.Snapshot
	count  atomic.Int64
	busy   atomic.Bool
	gate   sync.Mutex // held: publish waits
}

func watch(t *testing.T, s Subject) *watcher {
	t.Helper()
	if s.Patience == 0 {
		s.Patience = 5 * time.Second
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{t: t, s: s, cancel: cancel, ended: make(chan error, 1), got: make(chan discovery.Snapshot, 1)}
	go func() { w.ended <- s.Source.Run(ctx, w.publish) }()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *watcher) publish(s discovery.Snapshot) {
	if w.busy.Swap(true) {
		w.t.Error("publish was called while it ran")
	}
	defer w.busy.Store(false)
	w.gate.Lock()
	defer w.gate.Unlock()
	w.count.Add(1)
	select {
	case <-w.got:
	default:
	}
	w.got <- s
}

// hold makes publish wait until the result is called.
func (w *watcher) hold() (release func()) {
	w.gate.Lock()
	return w.gate.Unlock
}

// see waits until the source says that exactly these peers are there.
func (w *watcher) see(want ...string) {
	w.t.Helper()
	timeout := time.NewTimer(w.s.Patience)
	defer timeout.Stop()
	for {
		select {
		case w.last = <-w.got:
			if slices.Equal(w.last.Peers, want) {
				return
			}
		case err := <-w.ended:
			w.ended <- err
			w.t.Fatalf("Run returned %v while %q were waited for", err, want)
		case <-timeout.C:
			w.t.Fatalf("after %v it says %q, want %q", w.s.Patience, w.last.Peers, want)
		}
	}
}

// stop ends the run and waits for it; it may be called again.
func (w *watcher) stop() {
	w.cancel()
	select {
	case err := <-w.ended:
		w.ended <- err
		if err != nil {
			w.t.Errorf("Run returned %v", err)
		}
	case <-time.After(5 * time.Second):
		w.t.Error("Run goes on though its context has ended")
	}
}
