package store

import (
	"context"
	"iter"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// EventKind says what an [Event] is.
type EventKind string

// The kinds of events of a watch.
const (
	// EventState: Changes is a part of what there is, in the order of paths.
	EventState EventKind = "state"
	// EventSynced: what was told so far is all that there was at Revision, or, in a
	// watch that goes on behind a revision, what was told under that one is.
	EventSynced EventKind = "synced"
	// EventChanges: Changes has happened since. With a Revision it is all that
	// happened up to there; without one, more of the state or of the same revision
	// follows.
	EventChanges EventKind = "changes"
	// EventResync: what was told so far is void, since changes were missed. The state
	// follows, from the beginning.
	EventResync EventKind = "resync"
)

// Change is what is at a path now.
type Change struct {
	Path address.Path       // with the store's node as context
	ID   address.ResourceID // what is there: new there, or with other contents; zero if Removed
	// Removed says that nothing is at the path any more.
	Removed bool
}

// Event is one message of a watch.
type Event struct {
	Kind     EventKind
	Changes  []Change
	Revision string // to go on behind; "" between revisions
}

// maxEvent bounds the changes of one event.
const maxEvent = 1000

// Watch yields what the pattern matches, and then what becomes of it: first the present
// state, in events of kind EventState and one EventSynced; then EventChanges, one or
// more for each commit that changed a matching path or the contents behind it. What is
// told is exact at every event with a revision; of a path that changes faster than the
// loop reads, each commit is told, in order.
//
// With a revision that an earlier watch of the same pattern told, it goes on behind
// that one, if the store still has all that happened since in Options.History: then
// EventSynced comes first, and no state. Else, and whenever the loop is so slow that
// changes have gone, there is one EventResync and the state again. No revision outlives
// the opening of the file. Tasks are no part of what is watched.
//
// The loop holds no snapshot while it runs, and keeps nobody waiting. It ends with the
// first error: KindArgument or KindNode for the pattern or the revision, KindLimit with
// more than Options.MaxWatches, KindState once the store is closed, KindFailed after
// the store takes no more writes, or the cause of ctx.
func (s *Store) Watch(ctx context.Context, pattern address.Path, after string) iter.Seq2[Event, error] {
	return s.WatchPaths(ctx, PathWatch{Pattern: pattern, After: after})
}

// PathWatch says what is watched, and for whom.
type PathWatch struct {
	// Pattern is what a path must match.
	Pattern address.Path
	// After is the revision to go on behind; "" = from the state of now.
	After string
	// Owner is for whom it is, as Options.MaxWatchesEach counts; it may be empty.
	Owner string
}

// WatchPaths is [Store.Watch] for an owner: the error may be that of
// Options.MaxWatchesEach, too.
func (s *Store) WatchPaths(ctx context.Context, o PathWatch) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := &watch{s: s, glob: newGlob(o.Pattern), yield: yield}
		if err := w.run(ctx, o); err != nil && !w.left {
			yield(Event{}, err)
		}
	}
}

type watch struct {
	s     *Store
	glob  glob
	yield func(Event, error) bool
	left  bool   // the loop has ended
	at    uint64 // all up to this revision was told, or does not matter
	told  uint64 // the last revision that an event had
}

// errLeft ends a watch whose loop has ended; nobody sees it.
var errLeft = fail(KindState, "", "the loop has ended")

func (w *watch) tell(e Event) error {
	if !w.yield(e, nil) {
		w.left = true
		return errLeft
	}
	return nil
}

func (w *watch) run(ctx context.Context, o PathWatch) error {
	s, after := w.s, o.After
	if err := s.checkNode(o.Pattern); err != nil {
		return err
	}
	goesOn := false
	if after != "" {
		n, ours, err := s.feed.parseRevision(after)
		if err != nil {
			return err
		}
		w.at, goesOn = n, ours && s.feed.knows(n)
	}
	if err := s.takeWatch(o.Owner); err != nil {
		return err
	}
	defer s.giveWatch(o.Owner)
	if goesOn {
		if err := w.synced(); err != nil {
			return err
		}
	} else {
		if after != "" {
			if err := w.tell(Event{Kind: EventResync}); err != nil {
				return err
			}
		}
		if err := w.state(ctx); err != nil {
			return err
		}
	}
	for {
		known, err := w.changes()
		if err != nil {
			return err
		}
		if !known {
			if err := w.tell(Event{Kind: EventResync}); err != nil {
				return err
			}
			if err := w.state(ctx); err != nil {
				return err
			}
			continue
		}
		if err := s.feed.wait(ctx, w.at+1); err != nil {
			return err
		}
	}
}

// synced tells where the watch is.
func (w *watch) synced() error {
	w.told = w.at
	return w.tell(Event{Kind: EventSynced, Revision: w.s.feed.revision(w.at)})
}

// state tells all that there is. Each page is read from a snapshot of its own, so that
// a slow loop holds none; in front of a page comes what has become meanwhile of the
// pages before it. So what was told is always how that part was at one revision.
func (w *watch) state(ctx context.Context) error {
	last, first := "", true
	for {
		entries, more, revision, err := w.page(ctx, last)
		if err != nil {
			return err
		}
		if first {
			w.at, first = revision, false
		}
		known, err := w.upTo(ctx, revision, last)
		if err != nil {
			return err
		}
		if !known {
			if err := w.tell(Event{Kind: EventResync}); err != nil {
				return err
			}
			last, first = "", true
			continue
		}
		changes := make([]Change, len(entries))
		for i, e := range entries {
			if changes[i], err = w.change(keyChange{key: e.key, id: e.id}); err != nil {
				return err
			}
			last = e.key
		}
		if len(changes) > 0 {
			if err := w.tell(Event{Kind: EventState, Changes: changes}); err != nil {
				return err
			}
		}
		if !more {
			return w.synced()
		}
	}
}

// page reads a part of the state, and at which revision it is.
func (w *watch) page(ctx context.Context, last string) (entries []entry, more bool, revision uint64, err error) {
	t, err := w.s.Read(ctx, Scope{Paths: []address.Path{{}}, Label: "watch"})
	if err != nil {
		return nil, false, 0, err
	}
	defer t.Close()
	err = t.do(func() error {
		revision = snapshotRevision(t.snap)
		entries, err = t.scan(w.glob, last, maxEvent+1)
		if more = len(entries) > maxEvent; more {
			entries = entries[:maxEvent]
		}
		return err
	})
	return entries, more, revision, err
}

// snapshotRevision is the number of the last commit that a snapshot has.
func snapshotRevision(tx *bolt.Tx) uint64 { return uint64(tx.ID()) }

// upTo tells what has become, up to a revision, of what lies up to the key last.
func (w *watch) upTo(ctx context.Context, revision uint64, last string) (known bool, err error) {
	// The commit can be seen a moment before it is in the feed.
	if err := w.s.feed.wait(ctx, revision); err != nil {
		return false, err
	}
	for {
		b, found, _, known := w.s.feed.next(w.at, revision)
		if !known {
			return false, nil
		}
		if !found {
			w.at = revision
			return true, nil
		}
		if err := w.tellBatch(b, func(key string) bool { return key <= last }, false); err != nil {
			return false, err
		}
		w.at = b.revision
	}
}

// changes tells all that has happened by now.
func (w *watch) changes() (known bool, err error) {
	for {
		b, found, head, known := w.s.feed.next(w.at, ^uint64(0))
		if !known {
			return false, nil
		}
		if !found {
			w.at = max(w.at, head)
			if !w.s.feed.knows(w.told) { // others' changes have pushed it out: tell one that can be gone on from
				return true, w.synced()
			}
			return true, nil
		}
		if err := w.tellBatch(b, func(string) bool { return true }, true); err != nil {
			return false, err
		}
		w.at = b.revision
	}
}

// tellBatch tells what a batch changed of what the watch is about.
func (w *watch) tellBatch(b batch, about func(key string) bool, revision bool) error {
	var out []Change
	for _, c := range b.changes {
		if ok, _ := w.glob.match(c.key); !ok || !about(c.key) {
			continue
		}
		if len(out) == maxEvent {
			if err := w.tell(Event{Kind: EventChanges, Changes: out}); err != nil {
				return err
			}
			out = nil
		}
		change, err := w.change(c)
		if err != nil {
			return err
		}
		out = append(out, change)
	}
	if len(out) == 0 {
		return nil
	}
	e := Event{Kind: EventChanges, Changes: out}
	if revision {
		w.told = b.revision
		e.Revision = w.s.feed.revision(b.revision)
	}
	return w.tell(e)
}

func (w *watch) change(c keyChange) (Change, error) {
	p, err := keyPath(w.s.context, c.key)
	if err != nil {
		return Change{}, err
	}
	if c.removed {
		return Change{Path: p, Removed: true}, nil
	}
	return Change{Path: p, ID: address.ResourceIDFromUUID(w.s.node, c.id)}, nil
}

// takeWatch counts a watch in, of paths or of tasks.
func (s *Store) takeWatch(owner string) error {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	switch {
	case s.feed.ended != nil:
		return s.feed.ended
	case s.feed.watches >= s.opts.MaxWatches:
		return tooMuch("MaxWatches", int64(s.opts.MaxWatches), "", "%d watches are open, and no more may; end some, or raise MaxWatches", s.feed.watches)
	case owner != "" && s.feed.owners[owner] >= s.opts.MaxWatchesEach:
		return tooMuch("MaxWatchesEach", int64(s.opts.MaxWatchesEach), "", "%d watches of one caller are open, and no more may; end some, or raise MaxWatchesEach", s.feed.owners[owner])
	}
	s.feed.watches++
	if owner != "" {
		s.feed.owners[owner]++
	}
	return nil
}

func (s *Store) giveWatch(owner string) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.watches--
	if owner == "" {
		return
	}
	if s.feed.owners[owner]--; s.feed.owners[owner] == 0 {
		delete(s.feed.owners, owner)
	}
}
