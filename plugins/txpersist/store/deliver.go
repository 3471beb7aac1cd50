package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// TaskWatch says which tasks a watch wants, and how.
type TaskWatch struct {
	// Pattern is what one of the paths of a task's resource must match; the root and
	// no pattern at all want every task.
	Pattern address.Path
	// Window is how many tasks the watch may have that are not done; 0 = 16, at most
	// 1000.
	Window int
	// Lease is how long it has each to itself; 0 = Options.Lease.
	Lease time.Duration
	// Owner is for whom it is, as Options.MaxWatchesEach counts; it may be empty.
	Owner string
}

const (
	defaultWindow = 16
	maxWindow     = 1000
	// dueBatch bounds what is looked at while commits wait for it.
	dueBatch = 64
	// clockCheck is how often a watch that waits for a time looks at the clock, which
	// may be set meanwhile: the timers of the system do not follow it.
	clockCheck = time.Second
)

// deliverer says which watch has which task. A task is at one watch at a time, and at
// another one as soon as that watch ends, or has had it for the time of its lease. What
// ends a delivery for good is a commit: the task is deleted, its resource is, or it has
// another time.
type deliverer struct {
	s *Store

	mu      sync.Mutex
	claims  map[uuid]map[uuid]*delivery // by resource and task
	watches map[*taskWatch]struct{}
}

// delivery is a task that a watch has.
type delivery struct {
	w              *taskWatch
	resource, task uuid
	due            int64
	lease          *time.Timer // nil until the watch has been told
}

// taskWatch is a watch of tasks; all is guarded by deliverer.mu but what is set once.
type taskWatch struct {
	glob   glob
	window int
	lease  time.Duration
	wake   chan struct{} // has something if there may be something to do

	cursor []byte // of the bucket of due tasks: what is in front is delivered or unwanted
	atEnd  bool   // there was nothing behind it
	held   map[*delivery]struct{}
}

func (w *taskWatch) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it was told, and has not looked yet
	}
}

// look has all watches look at what is behind a key, once more or for the first time;
// d.mu is held.
func (d *deliverer) look(key []byte) {
	for w := range d.watches {
		again := bytes.Compare(key, w.cursor) < 0
		if again {
			w.cursor = key
		}
		if again || w.atEnd {
			w.signal()
		}
	}
}

// drop takes a task from its watch; d.mu is held.
func (d *deliverer) drop(t *delivery) {
	if t.lease != nil {
		t.lease.Stop()
	}
	delete(t.w.held, t)
	t.w.signal() // it has room
	of := d.claims[t.resource]
	delete(of, t.task)
	if len(of) == 0 {
		delete(d.claims, t.resource)
	}
}

// giveBack is drop of a task that is not done; d.mu is held.
func (d *deliverer) giveBack(t *delivery) {
	d.drop(t)
	d.look(dueKey(t.due, t.resource, t.task))
}

// committed takes note of what became of tasks.
func (d *deliverer) committed(done []*edits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.watches) == 0 {
		return
	}
	for _, e := range done {
		if e.wiped {
			for _, of := range d.claims {
				for _, t := range of {
					d.drop(t)
				}
			}
		}
		for u, r := range e.resources {
			if r.forget || !r.exists {
				for id, t := range d.claims[u] {
					if due := r.tasks[id]; due == nil || *due != t.due {
						d.drop(t)
					}
				}
			}
			for id, due := range r.tasks {
				t := d.claims[u][id]
				if t != nil && (due == nil || *due != t.due) {
					d.drop(t)
					t = nil
				}
				if due != nil && t == nil {
					d.look(dueKey(*due, u, id))
				}
			}
			if r.was && r.exists && len(r.seen) > len(r.oldPaths) {
				d.look([]byte{}) // it has a new path, which a watch may want its tasks for
			}
		}
	}
}

// take gives a watch what is due, up to its window. more says that there is more to be
// looked at; next is the time of what comes then, in milliseconds, if some is true.
//
// The snapshot is opened under the lock, and a commit takes it after it can be seen: so
// a task that is found here and was at no watch is not one that was done meanwhile.
func (d *deliverer) take(w *taskWatch) (found []*delivery, more bool, next int64, some bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.s.guard(func() error {
		tx, err := d.s.db.Begin(false)
		if err != nil {
			return storageError(d.s.opts.File, err)
		}
		defer func() { _ = tx.Rollback() }()
		now := time.Now().UnixMilli()
		c := tx.Bucket([]byte(bucketDue)).Cursor()
		looked := 0
		w.atEnd = false
		for k, v := c.Seek(w.cursor); k != nil; k, v = c.Next() {
			due, resource, task, err := parseDue(k, v)
			if err != nil {
				return err
			}
			if due > now {
				w.cursor, next, some = bytes.Clone(k), due, true
				return nil
			}
			if len(w.held) == w.window {
				w.cursor = bytes.Clone(k)
				return nil
			}
			if looked++; looked > dueBatch {
				w.cursor, more = bytes.Clone(k), true
				return nil
			}
			w.cursor = append(bytes.Clone(k), 0)
			if d.claims[resource][task] != nil {
				continue
			}
			wanted, err := w.wants(base{tx}, resource)
			if err != nil {
				return err
			}
			if !wanted {
				continue
			}
			t := &delivery{w: w, resource: resource, task: task, due: due}
			if d.claims[resource] == nil {
				d.claims[resource] = map[uuid]*delivery{}
			}
			d.claims[resource][task] = t
			w.held[t] = struct{}{}
			found = append(found, t)
		}
		w.atEnd = true
		return nil
	})
	return found, more, next, some, err
}

func parseDue(k, v []byte) (due int64, resource, task uuid, err error) {
	if _, err := unseal(bucketDue, k, v); err != nil {
		return 0, resource, task, err
	}
	if len(k) != 8+2*len(uuid{}) {
		return 0, resource, task, corrupt("the due task with key %x makes no sense", k)
	}
	return int64(binary.BigEndian.Uint64(k) ^ 1<<63), uuid(k[8:24]), uuid(k[24:]), nil
}

func (w *taskWatch) wants(b base, resource uuid) (bool, error) {
	if len(w.glob.components) == 0 {
		return true, nil
	}
	keys, err := b.paths(resource)
	for _, key := range keys {
		if ok, _ := w.glob.match(key); ok {
			return true, err
		}
	}
	return false, err
}

// begin starts the lease of a task, and says whether it is still there to be told.
func (d *deliverer) begin(t *delivery) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[t.resource][t.task] != t {
		return false
	}
	t.lease = time.AfterFunc(t.w.lease, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.claims[t.resource][t.task] == t {
			d.giveBack(t)
		}
	})
	return true
}

func (d *deliverer) add(w *taskWatch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watches[w] = struct{}{}
}

// leave gives back all that a watch had.
func (d *deliverer) leave(w *taskWatch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watches, w)
	for t := range w.held {
		d.giveBack(t)
	}
}

// WatchTasks yields tasks when they are due, the oldest first, and goes on waiting for
// more: each at least once, and until a transaction deletes it (see [WriteTx.DeleteTask]
// and [WriteTx.FinishTask]), removes its resource or gives it another time. What a loop
// does for a task and the end of it may be one transaction: then it is done once.
//
// Of all the watches that want a task, one has it at a time, for the time of a lease or
// until its loop ends; then it is delivered again, to the same one or to another. A loop
// has at most Window tasks that are not done; to make one wait, give it a later time.
// Tasks that nobody watches stay. When the clock is set forward, what is due by it comes
// by and by, as much as the windows have room for; when it is set back, tasks come when
// it gets there.
//
// The loop ends with the first error: KindArgument or KindNode for what it asks for,
// KindLimit with more than Options.MaxWatches or MaxWatchesEach, KindState once the store is closed,
// KindFailed after the store takes no more writes, or the cause of ctx.
func (s *Store) WatchTasks(ctx context.Context, o TaskWatch) iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		if err := s.watchTasks(ctx, o, func(t Task) bool { return yield(t, nil) }); err != nil {
			yield(Task{}, err)
		}
	}
}

func (s *Store) watchTasks(ctx context.Context, o TaskWatch, yield func(Task) bool) error {
	if err := s.checkNode(o.Pattern); err != nil {
		return err
	}
	if o.Window < 0 || o.Window > maxWindow {
		return fail(KindArgument, "", "a window of %d tasks: ask for 1 to %d", o.Window, maxWindow)
	}
	if o.Lease < 0 {
		return fail(KindArgument, "", "a lease of %s is none", o.Lease)
	}
	w := &taskWatch{glob: newGlob(o.Pattern), window: o.Window, lease: o.Lease, wake: make(chan struct{}, 1), held: map[*delivery]struct{}{}}
	if w.window == 0 {
		w.window = defaultWindow
	}
	if w.lease == 0 {
		w.lease = s.opts.Lease
	}
	if err := s.takeWatch(o.Owner); err != nil {
		return err
	}
	defer s.giveWatch(o.Owner)
	s.tasks.add(w)
	defer s.tasks.leave(w)
	for {
		found, more, next, some, err := s.tasks.take(w)
		if over := s.feed.why(); over != nil { // also when the file was closed meanwhile
			return over
		}
		if err != nil {
			return err
		}
		for _, t := range found {
			if !s.tasks.begin(t) {
				continue
			}
			id := address.TaskIDFromUUID(address.ResourceIDFromUUID(s.node, t.resource), t.task)
			if !yield(Task{id, time.UnixMilli(t.due)}) {
				return nil
			}
		}
		if more {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			continue
		}
		if err := s.awaitTasks(ctx, w, next, some); err != nil {
			return err
		}
	}
}

// awaitTasks waits until there is something to do, or the time next has come.
func (s *Store) awaitTasks(ctx context.Context, w *taskWatch, next int64, some bool) error {
	for {
		var clock <-chan time.Time
		if some {
			wait := time.Until(time.UnixMilli(next))
			if wait <= 0 {
				return nil
			}
			clock = time.After(min(wait, clockCheck))
		}
		select {
		case <-w.wake:
			return nil
		case <-clock:
		case <-s.feed.over:
			return s.feed.why()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// FinishTask deletes a task that is still to be done at that time, and reports whether
// it was. A task that is gone, with its resource perhaps, or has another time by now, is
// no error: somebody else has seen to it. Errors: KindNode, KindScope.
func (t *WriteTx) FinishTask(id address.TaskID, due time.Time) (finished bool, err error) {
	err = t.do(func() error {
		u, err := t.resource(id.Resource())
		if err != nil {
			return err
		}
		there, err := t.exists(u)
		if err != nil || !there {
			return err
		}
		entries, err := t.tasks(u)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.id != id.UUID() || e.due != due.UnixMilli() {
				continue
			}
			r, err := t.edit(u)
			if err != nil {
				return err
			}
			r.tasks[e.id], finished = nil, true
		}
		return nil
	})
	return finished, err
}
