package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/elemental-conduit/conduit/address"
)

// opening is a transaction that somebody waits for.
type opening struct {
	tx  interface{ Close() }
	err error
	c   chan struct{}
}

func (s *testStore) opening(open func() (interface{ Close() }, error)) *opening {
	o := &opening{c: make(chan struct{})}
	go func() {
		defer close(o.c)
		o.tx, o.err = open()
	}()
	return o
}

func (s *testStore) openingWrite(sc Scope) *opening {
	return s.opening(func() (interface{ Close() }, error) { return s.Write(s.ctx, sc) })
}

func (s *testStore) openingExclusive() *opening {
	return s.opening(func() (interface{ Close() }, error) { return s.Exclusive(s.ctx, "test") })
}

func (s *testStore) openingRead() *opening {
	return s.opening(func() (interface{ Close() }, error) { return s.Read(s.ctx, paths("/")) })
}

// opened waits for it and returns what closes it.
func (s *testStore) opened(o *opening) func() {
	s.t.Helper()
	return s.openedOf("the transaction", o)
}

func (s *testStore) openedOf(name string, o *opening) func() {
	s.t.Helper()
	select {
	case <-o.c:
	case <-s.ctx.Done():
		s.t.Fatalf("%s: it did not open in time", name)
	}
	must(s.t, o.err)
	return o.tx.Close
}

func (o *opening) isOpen() bool {
	select {
	case <-o.c:
		return true
	default:
		return false
	}
}

// 6.3, in its port form (6.9.3): who keeps whom waiting.
func TestPairsOfTransactions(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a/b", "/r/1", "/q")
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Link(ids["/r/1"], path("/alias/1"))) })
	id := func(ids ...address.ResourceID) Scope { return Scope{IDs: ids} }
	unborn := newID()
	for _, row := range []struct {
		a, b   Scope
		blocks bool
	}{
		{paths("/a"), paths("/a"), true},
		{paths("/a"), paths("/a/*"), true},
		{paths("/a"), paths("/a/**"), true},
		{paths("/a/*"), paths("/a/b"), true},
		{paths("/a/**"), paths("/a/b/c"), true},
		{paths("/*"), paths("/a/b"), true},
		{paths("/**"), paths("/a/b"), true},
		{paths("/"), paths("/a/b"), true},
		{paths("/a/b"), paths("/a/b/c"), true}, // a scope covers what is below
		{paths("/*/x"), paths("/a/x"), true},
		{paths("/*/x"), paths("/a/y"), false},
		{paths("/a/b"), paths("/a/c"), false},
		{paths("/a"), paths("/ab"), false},
		{paths("/a", "/b"), paths("/c", "/d"), false},
		{paths("/a", "/b"), paths("/c", "/b/x"), true},
		{id(ids["/a/b"]), id(ids["/a/b"]), true},
		{id(ids["/a/b"]), paths("/a"), true}, // it is found at a declared path
		{id(ids["/a/b"]), id(ids["/q"]), false},
		{id(ids["/a/b"]), paths("/q"), false},
		{id(unborn), id(unborn), true},
		{id(unborn), paths("/a"), false},
		{paths("/r"), paths("/alias"), true}, // they hold one resource in common
		{paths("/r"), paths("/alias/2"), false},
		{id(ids["/r/1"]), paths("/alias/1"), true},
		{Scope{}, Scope{}, false},
		{Scope{}, paths("/"), false},
	} {
		for _, sc := range [][2]Scope{{row.a, row.b}, {row.b, row.a}} {
			name := fmt.Sprintf("%v and %v", sc[0], sc[1])
			first := s.write(sc[0])
			second := s.openingWrite(sc[1])
			if row.blocks {
				s.waiting(1)
				if second.isOpen() {
					t.Errorf("%s: both are open", name)
				}
				// A snapshot waits for neither.
				s.read(sc[1]).Close()
				first.Close()
				s.opened(second)()
			} else {
				s.openedOf(name, second)()
				first.Close()
			}
		}
	}
}

// RO snapshots: they see one moment, and never keep a writer waiting.
func TestSnapshots(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a", "/b")
	snap := s.read(paths("/"))
	r := get(snap.Open(ids["/a"]))(t)
	big := make([]byte, 1<<20)
	for i := range 40 { // the file grows by far more than it was mapped with
		s.update(paths("/"), func(tx *WriteTx) {
			must(t, tx.Update(ids["/a"], big))
			must(t, tx.Save(path(fmt.Sprintf("/n/%d", i)), newID(), big))
		})
	}
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Remove(ids["/b"])) })
	wantList(t, snap, "/**", "/a", "/b")
	wantContents(t, snap, ids["/a"], []byte("/a"))
	wantContents(t, snap, ids["/b"], []byte("/b"))
	if b := make([]byte, 10); second(r.Read(b)) != nil || string(b[:2]) != "/a" {
		t.Errorf("a stream that was opened before reads %q", b)
	}
	snap.Close()
}

// 6.3: the exclusive one waits for all, readers too; none starts while it waits or is
// open; two take turns.
func TestExclusiveKeepsOthersOff(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	r, w := s.read(paths("/")), s.write(paths("/a"))
	first := s.openingExclusive()
	s.waiting(1)
	second := s.openingExclusive()
	s.waiting(2)
	reader := s.openingRead()
	s.waiting(3)
	writer := s.openingWrite(paths("/z"))
	s.waiting(4)
	r.Close()
	s.waiting(4) // the writer is still there
	must(t, w.Commit(s.ctx))
	end := s.opened(first)
	s.waiting(3)
	end()
	end = s.opened(second)
	s.waiting(2)
	for _, o := range []*opening{reader, writer} {
		if o.isOpen() {
			t.Error("somebody is beside the exclusive one")
		}
	}
	end()
	s.opened(reader)()
	s.opened(writer)()
}

// Neither starves: with both coming without end, both get their turns.
func TestExclusiveAndOthersGetTheirTurns(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	var exclusive, shared atomic.Int64
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if tx, err := s.Exclusive(ctx, ""); err == nil {
					exclusive.Add(1)
					tx.Close()
				}
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if tx, err := s.Write(ctx, paths("/a")); err == nil {
					shared.Add(1)
					tx.Close()
				}
			}
		})
	}
	s.poll(func() bool { return exclusive.Load() > 200 && shared.Load() > 200 })
	cancel()
	wg.Wait()
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	s := newStore(t)
	first := s.write(paths("/a"))
	ctx, cancel := context.WithCancelCause(s.ctx)
	why := errors.New("enough")
	second := s.opening(func() (interface{ Close() }, error) { return s.Write(ctx, paths("/a")) })
	s.waiting(1)
	third := s.openingWrite(paths("/a/b")) // behind both
	s.waiting(2)
	fourth := s.opening(func() (interface{ Close() }, error) { return s.Exclusive(ctx, "") })
	s.waiting(3)
	fifth := s.openingRead() // waits for the exclusive one alone
	s.waiting(4)
	cancel(why)
	<-second.c
	<-fourth.c
	if !errors.Is(second.err, why) || !errors.Is(fourth.err, why) {
		t.Errorf("the errors are %v and %v", second.err, fourth.err)
	}
	s.opened(fifth)()
	s.waiting(1)
	first.Close()
	s.opened(third)()
}

func TestCommitIsCancelledBeforeItsTurnOnly(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	tx := s.write(paths("/a"))
	must(t, tx.Save(path("/a"), newID(), nil))
	if err := tx.Commit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	wantKind(t, tx.Commit(s.ctx), KindState)
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })

	// One that waits behind a commit under way leaves the queue.
	s.commits.mu.Lock()
	s.commits.busy = true
	s.commits.mu.Unlock()
	ctx, cancel = context.WithCancel(s.ctx)
	tx = s.write(paths("/a"))
	must(t, tx.Save(path("/a"), newID(), nil))
	done := make(chan error, 1)
	go func() { done <- tx.Commit(ctx) }()
	s.poll(func() bool {
		s.commits.mu.Lock()
		defer s.commits.mu.Unlock()
		return len(s.commits.queue) == 1
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	s.commits.mu.Lock()
	s.commits.busy = false
	s.commits.mu.Unlock()
	s.add("/b") // and the next one is not held up
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**", "/b") })
}

// One flush for many: transactions that find a commit under way share the next.
func TestCommitsAreGrouped(t *testing.T) {
	s := newStore(t)
	s.commits.mu.Lock()
	s.commits.busy = true // as if one were under way
	s.commits.mu.Unlock()
	const n = 20
	errs := make(chan error, n)
	for i := range n {
		tx := s.write(paths(fmt.Sprintf("/%d", i)))
		must(t, tx.Save(path(fmt.Sprintf("/%d", i)), newID(), nil))
		go func() { errs <- tx.Commit(s.ctx) }()
	}
	s.poll(func() bool {
		s.commits.mu.Lock()
		defer s.commits.mu.Unlock()
		return len(s.commits.queue) == n
	})
	s.commits.mu.Lock()
	s.commits.queue[0].turn <- true // it is over
	s.commits.mu.Unlock()
	for range n {
		must(t, <-errs)
	}
	if st := s.Stats(); st.Commits != n || st.Batches != 1 {
		t.Errorf("%d transactions took %d commits", st.Commits, st.Batches)
	}
}

// An id that was not declared is taken by two at once: one of them learns it in its
// commit, and takes nobody with it.
func TestNewIDIsTakenByTwo(t *testing.T) {
	s := newStore(t)
	id := newID()
	a, b := s.write(paths("/a")), s.write(paths("/b"))
	must(t, a.Save(path("/a"), id, nil))
	must(t, b.Save(path("/b"), id, nil))
	must(t, b.Save(path("/b/2"), newID(), nil))
	must(t, a.Commit(s.ctx))
	wantKind(t, b.Commit(s.ctx), KindDuplicate)
	wantKind(t, b.Rollback(), KindState)
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**", "/a") })
}

// What waiting writers will have in their scopes may change: here two come to have a
// resource in common, and that after both have asked for their locks.
func TestScopeThatChangesWhileItIsWaitedFor(t *testing.T) {
	s := newStore(t)
	id := s.add("/a/1")["/a/1"]
	first := s.write(paths("/a", "/z"))
	second, third := s.openingWrite(paths("/a")), s.openingWrite(paths("/z"))
	s.waiting(2)
	must(t, first.Link(id, path("/z/1")))
	must(t, first.Commit(s.ctx))
	s.poll(func() bool { return second.isOpen() || third.isOpen() })
	s.waiting(1) // for the one that came first
	if second.isOpen() && third.isOpen() {
		t.Error("two writers have one resource")
	}
	if !second.isOpen() {
		second, third = third, second
	}
	s.opened(second)()
	s.opened(third)()
}

// A transaction whose scope's aliases never stay as they were gets all locks in the
// end.
func TestManyAliases(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxWrites = 1 << 30 })
	s.update(paths("/"), func(tx *WriteTx) {
		for i := range maxExact/2 + 1 {
			id := newID()
			must(t, tx.Save(path(fmt.Sprintf("/a/%d", i)), id, nil))
			must(t, tx.Link(id, path(fmt.Sprintf("/b/%d", i))))
		}
	})
	tx := s.write(paths("/a"))
	if !tx.claim.everything() {
		t.Error("thousands of aliases are locked one by one")
	}
	_, err := tx.Lookup(path("/c"))
	wantKind(t, err, KindScope) // locked, and yet not declared
	tx.Close()
}

// WeakReferenceLockSetServiceTest (10.8), in time that a test has: 100 at once on 1000
// random paths and ids, reading and writing.
func TestLockStress(t *testing.T) {
	s := newStore(t)
	const workers, rounds, places = 100, 30, 1000
	all := make([]string, places)
	for i := range all {
		all[i] = fmt.Sprintf("/%d/%d/%d", i%10, i/10%10, i/100)
	}
	ids := s.add(all...)
	held := make([]atomic.Int64, places) // writers that have a place
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range rounds {
				var sc Scope
				var mine []int
				for range 1 + rnd.IntN(4) {
					i := rnd.IntN(places)
					mine = append(mine, i)
					switch rnd.IntN(3) {
					case 0:
						sc.IDs = append(sc.IDs, ids[all[i]])
					case 1:
						sc.Paths = append(sc.Paths, path(all[i]))
					default:
						p := path(all[i]).Components()
						p[rnd.IntN(3)] = "*"
						sc.Paths = append(sc.Paths, get(address.NewPath("", p...))(t))
					}
				}
				if rnd.IntN(3) == 0 {
					tx, err := s.Read(s.ctx, sc)
					if err != nil {
						t.Error(err)
						return
					}
					tx.Close()
					continue
				}
				tx, err := s.Write(s.ctx, sc)
				if err != nil {
					t.Error(err)
					return
				}
				seen := map[int]bool{}
				for _, i := range mine {
					if seen[i] {
						continue
					}
					seen[i] = true
					if held[i].Add(1) != 1 {
						t.Errorf("two writers have %s", all[i])
					}
				}
				if _, err := tx.Exists(ids[all[mine[0]]]); err != nil {
					t.Error(err)
				}
				for i := range seen {
					held[i].Add(-1)
				}
				tx.Close()
			}
		})
	}
	wg.Wait()
}

// Writers of disjoint scopes are open side by side.
func TestDisjointWritersRunSideBySide(t *testing.T) {
	s := newStore(t)
	var open []*WriteTx
	for i := range 50 {
		tx := s.write(paths(fmt.Sprintf("/%d", i)))
		must(t, tx.Save(path(fmt.Sprintf("/%d/x", i)), newID(), nil))
		open = append(open, tx)
	}
	for _, tx := range open {
		must(t, tx.Commit(s.ctx))
	}
	s.view(paths("/"), func(tx *ReadTx) {
		if n := len(list(t, tx, "/*/x")); n != 50 {
			t.Errorf("%d are there", n)
		}
	})
}
