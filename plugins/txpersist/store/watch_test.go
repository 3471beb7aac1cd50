package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/elemental-conduit/conduit/address"
)

// watching is a watch that a test reads event by event.
type watching struct {
	t      *testing.T
	events chan Event
	ended  chan error
	ctx    context.Context //nolint:containedctx // the test's own
}

func (s *testStore) watch(pattern, after string) *watching {
	ctx, cancel := context.WithCancel(s.ctx)
	w := &watching{t: s.t, events: make(chan Event), ended: make(chan error, 1), ctx: s.ctx}
	var wg sync.WaitGroup
	wg.Go(func() {
		var end error
		for e, err := range s.Watch(ctx, path(pattern), after) {
			if err != nil {
				end = err
				break
			}
			select {
			case w.events <- e:
			case <-ctx.Done():
			}
		}
		w.ended <- end
	})
	s.t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

func (w *watching) next() Event {
	w.t.Helper()
	select {
	case e := <-w.events:
		return e
	case err := <-w.ended:
		w.t.Fatalf("the watch ended: %v", err)
	case <-w.ctx.Done():
		w.t.Fatal("no event comes")
	}
	return Event{}
}

func (w *watching) end() error {
	w.t.Helper()
	select {
	case err := <-w.ended:
		return err
	case e := <-w.events:
		w.t.Fatalf("an event comes instead of the end: %v", e)
	case <-w.ctx.Done():
		w.t.Fatal("the watch does not end")
	}
	return nil
}

// brief writes an event as "kind +path -path", with * if it has a revision.
func (e Event) brief() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	for _, c := range e.Changes {
		sign := " +"
		if c.Removed {
			sign = " -"
		}
		b.WriteString(sign + c.Path.WithoutContext().String())
	}
	if e.Revision != "" {
		b.WriteString(" *")
	}
	return b.String()
}

func (w *watching) want(what ...string) (revision string) {
	w.t.Helper()
	for _, want := range what {
		e := w.next()
		if got := e.brief(); got != want {
			w.t.Fatalf("the event is %q, want %q", got, want)
		}
		revision = e.Revision
	}
	return revision
}

func TestWatch(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a/1", "/a/2", "/b/1")
	w := s.watch("/a/*", "")
	first := w.want("state +/a/1 +/a/2", "synced *")

	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Save(path("/a/3"), newID(), nil)) })
	w.want("changes +/a/3 *")
	// What does not match, and tasks, are no changes; one commit is one event.
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Update(ids["/b/1"], []byte("x"))) })
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.CreateTask(taskOf(ids["/a/1"]), tx.since)) })
	s.update(paths("/"), func(tx *WriteTx) {
		must(t, tx.Update(ids["/a/1"], []byte("new")))
		must(t, second(tx.Unlink(path("/a/2"))))
		must(t, tx.Link(ids["/a/1"], path("/a/0")))
		must(t, tx.Link(ids["/a/1"], path("/a/9/9")))
		must(t, tx.Save(path("/a/8"), newID(), nil)) // made and gone in one: nobody saw it
		must(t, second(tx.Unlink(path("/a/8"))))
	})
	revision := w.want("changes +/a/0 +/a/1 -/a/2 *")
	// Another resource at the path is one change.
	other := newID()
	s.update(paths("/"), func(tx *WriteTx) {
		must(t, second(tx.Unlink(path("/a/3"))))
		must(t, tx.Save(path("/a/3"), other, nil))
	})
	if e := w.next(); e.brief() != "changes +/a/3 *" || e.Changes[0].ID != other {
		t.Errorf("the event is %v", e)
	}
	// A resource that goes with all its paths, one of them outside of the scope.
	s.update(paths("/a/1"), func(tx *WriteTx) { must(t, tx.Remove(ids["/a/1"])) })
	w.want("changes -/a/0 -/a/1 *")

	// Another watch goes on behind what this one was told.
	again := s.watch("/a/*", revision)
	again.want("synced *", "changes +/a/3 *", "changes -/a/0 -/a/1 *")
	s.watch("/a/*", first).want("synced *", "changes +/a/3 *", "changes +/a/0 +/a/1 -/a/2 *", "changes +/a/3 *", "changes -/a/0 -/a/1 *")

	// All that goes at once is told as a state.
	x, err := s.Exclusive(s.ctx, "wipe")
	must(t, err)
	must(t, x.RemoveAll(testNode))
	must(t, x.Commit(s.ctx))
	w.want("resync", "synced *")
	again.want("resync", "synced *")
}

func TestWatchRefuses(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxWatches = 1 })
	foreign, err := path("/a").WithContext(otherNode.String())
	must(t, err)
	for _, row := range []struct {
		pattern address.Path
		after   string
		kind    Kind
	}{
		{foreign, "", KindNode},
		{path("/a"), "x", KindArgument},
		{path("/a"), "0123456789abcdef-", KindArgument},
		{path("/a"), "0123456789abcdef-1x", KindArgument},
		{path("/a"), "123-1", KindArgument},
	} {
		for _, err := range s.Watch(s.ctx, row.pattern, row.after) {
			wantKind(t, err, row.kind)
		}
	}
	w := s.watch("/**", "")
	w.want("synced *")
	wantKind(t, s.watch("/**", "").end(), KindLimit)
	for _, err := range s.WatchTasks(s.ctx, TaskWatch{}) {
		wantKind(t, err, KindLimit)
	}
	must(t, s.Close())
	wantKind(t, w.end(), KindState)
	wantKind(t, s.watch("/**", "").end(), KindState)
}

// One owner has so many watches, of paths and of tasks together, and others have theirs
// beside. Who has no owner counts for all alone.
func TestWatchesOfEachOwner(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxWatches, o.MaxWatchesEach = 4, 2 })
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := make(chan error)
	watch := func(owner string) {
		begun := make(chan struct{})
		go func() {
			var end error
			for e, err := range s.WatchPaths(ctx, PathWatch{Pattern: path("/**"), Owner: owner}) {
				if end = err; e.Kind == EventSynced {
					close(begun)
				}
			}
			ended <- end
		}()
		<-begun
	}
	refused := func(owner, limit string, most int64) {
		t.Helper()
		for _, err := range s.WatchPaths(s.ctx, PathWatch{Pattern: path("/**"), Owner: owner}) {
			wantLimit(t, err, limit, most)
		}
		for _, err := range s.WatchTasks(s.ctx, TaskWatch{Owner: owner}) {
			wantLimit(t, err, limit, most)
		}
	}
	watch("ada")
	watch("ada")
	refused("ada", "MaxWatchesEach", 2)
	watch("bob")
	watch("")
	for _, owner := range []string{"ada", "bob", "carl", ""} {
		refused(owner, "MaxWatches", 4)
	}
	cancel()
	for range 4 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a watch ends with %v", err)
		}
	}
	s.feed.mu.Lock()
	if len(s.feed.owners) > 0 || s.feed.watches > 0 {
		t.Errorf("%d watches are left, of %v", s.feed.watches, s.feed.owners)
	}
	s.feed.mu.Unlock()
}

// A loop that leaves, and a context that ends, end a watch.
func TestWatchEnds(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxWatches = 1 })
	for range 3 { // the place is given back
		for e, err := range s.Watch(s.ctx, path("/**"), "") {
			must(t, err)
			if e.Kind == EventSynced {
				break
			}
		}
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	var end error
	for e, err := range s.Watch(ctx, path("/**"), "") {
		if end = err; e.Kind == EventSynced {
			cancel(why)
		}
	}
	if !errors.Is(end, why) {
		t.Errorf("it ends with %v", end)
	}
}

// Who is too slow is told once that something is missing, and then what there is.
func TestWatchOverflow(t *testing.T) {
	const n = 20
	s := newStore(t, func(o *Options) { o.History = n * (changeCost + 20) })
	s.add("/a/0")
	w := s.watch("/a/*", "")
	revision := w.want("state +/a/0", "synced *")
	for i := range 3 * n { // nobody reads meanwhile
		s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Save(path(fmt.Sprintf("/a/%03d", i+1)), newID(), nil)) })
	}
	// What it had taken before it was too late comes first.
	e := w.next()
	for e.Kind == EventChanges {
		e = w.next()
	}
	if e.Kind != EventResync {
		t.Fatalf("the event is %s", e.brief())
	}
	if e := w.next(); e.Kind != EventState || len(e.Changes) != 3*n+1 {
		t.Fatalf("the event is %s", e.brief())
	}
	w.want("synced *")
	s.update(paths("/"), func(tx *WriteTx) { must(t, second(tx.Unlink(path("/a/0")))) })
	w.want("changes -/a/0 *") // and only once

	// A revision that is known no more, and one of another opening of the file.
	late := s.watch("/a/0", revision)
	late.want("resync", "synced *")
	before := s.watch("/a/0", "")
	last := before.want("synced *")
	must(t, s.Close())
	s = openStore(t, s.File())
	s.watch("/a/0", last).want("resync", "synced *")

	// One commit that is larger than the history.
	s = newStore(t, func(o *Options) { o.History = 2 * changeCost })
	w = s.watch("/**", "")
	w.want("synced *")
	s.add("/1", "/2", "/3")
	w.want("resync", "state +/1 +/2 +/3", "synced *")
}

// Who watches what never changes keeps a revision to go on from.
func TestWatchKeepsARevision(t *testing.T) {
	s := newStore(t, func(o *Options) { o.History = 10 * changeCost })
	w := s.watch("/quiet/**", "")
	revision := w.want("synced *")
	for i := range 40 {
		s.add(fmt.Sprintf("/loud/%d", i))
	}
	e := w.next()
	if e.Kind == EventResync { // it was not asked in time
		w.want("synced *")
		return
	}
	if e.Kind != EventSynced || e.Revision == revision {
		t.Errorf("the event is %s", e.brief())
	}
}

// A commit of many changes comes in parts, of which the last has the revision; so does
// a state.
func TestWatchOfMany(t *testing.T) {
	s := newStore(t)
	w := s.watch("/**", "")
	w.want("synced *")
	var all []string
	for i := range 2*maxEvent + 1 {
		all = append(all, fmt.Sprintf("/%05d", i))
	}
	s.add(all...)
	for i, want := range []int{maxEvent, maxEvent, 1} {
		if e := w.next(); e.Kind != EventChanges || len(e.Changes) != want || (e.Revision != "") != (i == 2) {
			t.Fatalf("part %d has %d changes, revision %q", i, len(e.Changes), e.Revision)
		}
	}
	w = s.watch("/**", "")
	state := map[string]bool{}
	for first := true; ; first = false {
		e := w.next()
		for _, c := range e.Changes {
			if key := c.Path.WithoutContext().String(); c.Removed {
				delete(state, key)
			} else {
				state[key] = true
			}
		}
		if first {
			if e.Kind != EventState || len(e.Changes) != maxEvent {
				t.Fatalf("the state begins with %d", len(e.Changes))
			}
			s.update(paths("/"), func(tx *WriteTx) { // of what was told, and of what was not
				must(t, second(tx.Unlink(path("/00000"))))
				must(t, second(tx.Unlink(path("/02000"))))
				must(t, tx.Save(path("/end"), newID(), nil))
			})
		}
		if state["/end"] && e.Revision != "" {
			break
		}
	}
	if len(state) != 2*maxEvent || state["/00000"] || state["/02000"] {
		t.Errorf("%d were told of", len(state))
	}
}

// What is told is exact, whoever writes meanwhile: a random history is watched slowly and
// quickly; nothing is told of twice or removed without having been there, and in the end
// all that was told is what a listing shows.
func TestWatchIsExact(t *testing.T) {
	s := newStore(t, func(o *Options) { o.History = 30 * changeCost })
	const writers, each, keys = 3, 120, 40
	var wg sync.WaitGroup
	stop, cancel := context.WithCancel(s.ctx)
	defer cancel()
	finals := make([]map[string]address.ResourceID, 4)
	resyncs := make([]int, len(finals))
	for i := range finals {
		wg.Go(func() {
			state := map[string]address.ResourceID{}
			finals[i] = state
			for e, err := range s.Watch(stop, path("/w/**"), "") {
				if err != nil {
					return
				}
				if e.Kind == EventResync {
					clear(state)
					resyncs[i]++
				}
				for _, c := range e.Changes {
					key := c.Path.WithoutContext().String()
					if _, there := state[key]; c.Removed && !there {
						t.Errorf("%s is removed, and was never told of", key)
					}
					if e.Kind == EventState && state[key] != (address.ResourceID{}) {
						t.Errorf("%s is told of twice in a state", key)
					}
					if delete(state, key); !c.Removed {
						state[key] = c.ID
					}
				}
				if _, there := state["/w/end"]; there && e.Revision != "" {
					return
				}
				if i%2 == 1 { // slow: it waits for others, and by and by it is too late
					for range 20 {
						s.Stats()
					}
				}
			}
		})
	}
	var writing sync.WaitGroup
	for n := range writers {
		writing.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(n), 1))
			for range each {
				err := s.Update(s.ctx, paths("/w"), func(tx *WriteTx) error {
					for range 1 + rnd.IntN(3) {
						p := path(fmt.Sprintf("/w/%02d", rnd.IntN(keys)))
						id, err := tx.Lookup(p)
						switch {
						case KindOf(err) == KindNotFound:
							err = tx.Save(p, newID(), nil)
						case err == nil && rnd.IntN(2) == 0:
							err = tx.Update(id, []byte{1})
						case err == nil:
							_, err = tx.Unlink(p)
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	s.add("/w/end")
	wg.Wait()
	want := map[string]address.ResourceID{}
	s.view(paths("/"), func(tx *ReadTx) {
		for l, err := range tx.List(path("/w/**")) {
			must(t, err)
			want[l.Path.WithoutContext().String()] = l.ID
		}
	})
	for i, got := range finals {
		if !maps.Equal(got, want) {
			t.Errorf("watch %d was told of %v, there is %v", i, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
	t.Logf("resyncs: %v", resyncs)
}

// A store that takes no more writes says so to who watches.
func TestWatchOfAFailedStore(t *testing.T) {
	s := newStore(t)
	w := s.watch("/**", "")
	w.want("synced *")
	s.fail(fail(KindFailed, "", "on purpose"))
	wantKind(t, w.end(), KindFailed)
	wantKind(t, s.watch("/**", "").end(), KindFailed)
}
