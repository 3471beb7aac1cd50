package store

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// Bytes that flip in the file of a store that is open, anywhere behind its heads: what is
// read is what was written or an error that says that the file is damaged, whether it is
// contents, a path or a task; nothing panics or hangs, and nothing that is damaged takes a
// commit.
func TestFileDamagedWhileOpen(t *testing.T) {
	file, want := good(t)
	whole, err := os.ReadFile(file)
	must(t, err)
	rounds := 12
	if testing.Short() {
		rounds = 6
	}
	told := 0
	for seed := range rounds {
		rnd := rand.New(rand.NewPCG(11, uint64(seed)))
		bad := damage(t, file, func(b []byte) []byte { return b })
		s, err := open(t, bad)
		must(t, err)
		f, err := os.OpenFile(bad, os.O_RDWR, 0)
		must(t, err)
		for range 1 + 6*seed*seed {
			at := int64(8192 + rnd.IntN(len(whole)-8192))
			_, err := f.WriteAt([]byte{whole[at] ^ byte(1+rnd.IntN(255))}, at)
			must(t, err)
		}
		must(t, f.Close())
		said := func(err error) bool {
			if k := KindOf(err); err != nil && k != KindCorrupt && k != KindFailed {
				t.Errorf("seed %d: %v", seed, err)
			}
			return err != nil
		}
		damaged := false
		for id, data := range want {
			err := s.View(t.Context(), Scope{IDs: []address.ResourceID{id}}, func(tx *ReadTx) error {
				got, err := tx.Load(id)
				if err == nil && !bytes.Equal(got, data) {
					t.Errorf("seed %d: wrong contents are given out", seed)
				}
				if KindOf(err) == KindNotFound { // its entry's key was hit: it is not what it was, and nothing wrong
					damaged = true
					return nil
				}
				return err
			})
			damaged = said(err) || damaged
		}
		err = s.View(t.Context(), paths("/"), func(tx *ReadTx) error {
			for l, err := range tx.List(path("/**")) {
				if err != nil {
					return err
				}
				if data, ok := want[l.ID]; !ok || len(data)%10 != 0 {
					t.Errorf("seed %d: %s leads to a resource that nobody made", seed, l.Path)
				}
			}
			return nil
		})
		damaged = said(err) || damaged
		found := s.Check(t.Context())
		if found != nil {
			damaged = true
			told++
		}
		err = s.Update(t.Context(), paths("/new"), func(tx *WriteTx) error { return tx.Save(path("/new"), newID(), []byte("x")) })
		if said(err); err == nil && found != nil {
			t.Errorf("seed %d: a store that is damaged, %v, takes a commit", seed, found)
		}
		if err := s.Close(); err != nil && KindOf(err) != KindFailed && KindOf(err) != KindCorrupt {
			t.Errorf("seed %d: close: %v", seed, err)
		}
	}
	if told == 0 {
		t.Error("no damage was found by any check: the test hits nothing")
	}
}

// A cursor may be anything: it is refused, or it is a place, and never one of another
// listing.
func TestCursorsThatAreGarbage(t *testing.T) {
	s := newStore(t)
	s.add("/a/1", "/a/2", "/b/1", "/b/2")
	rnd := rand.New(rand.NewPCG(3, 5))
	tx := s.read(paths("/a"))
	for i := range 3000 {
		raw := make([]byte, rnd.IntN(40))
		for j := range raw {
			raw[j] = "ab/12\x00*\xff"[rnd.IntN(8)]
		}
		cursor := base64.RawURLEncoding.EncodeToString(raw)
		if i%3 == 0 {
			cursor = string(raw)
		}
		page, err := tx.Page(path("/a/*"), cursor, 10)
		if err != nil {
			wantKind(t, err, KindArgument)
			continue
		}
		for _, l := range page.Listings {
			if p := l.Path.WithoutContext().String(); p != "/a/1" && p != "/a/2" {
				t.Errorf("the cursor %q lists %s", cursor, p)
			}
		}
	}
	if _, err := tx.Page(path("/a/*"), Cursor(path("/b/1")), 10); err != nil {
		t.Errorf("a place behind all: %v", err)
	}
}

// Times at the ends of what a number holds are kept, ordered and delivered as any others.
func TestTasksAtTheEndsOfTime(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a")
	times := []int64{math.MinInt64, -1, 0, time.Now().UnixMilli(), math.MaxInt64 / 2, math.MaxInt64}
	s.update(paths("/a"), func(tx *WriteTx) {
		for i, ms := range times {
			must(t, tx.CreateTask(address.TaskIDFromUUID(ids["/a"], uuid{byte(i)}), time.UnixMilli(ms)))
		}
	})
	s.view(paths("/a"), func(tx *ReadTx) {
		for i, task := range get(tx.Tasks(ids["/a"]))(t) {
			if task.Due.UnixMilli() != times[i] {
				t.Errorf("the task of %d is due at %d", times[i], task.Due.UnixMilli())
			}
		}
	})
	due, err := s.Due(s.ctx, time.Now(), 10)
	must(t, err)
	if len(due) != 4 {
		t.Errorf("%d are due, want 4: %v", len(due), due)
	}
	got := 0
	for task, err := range s.WatchTasks(s.ctx, TaskWatch{}) {
		must(t, err)
		if task.Due.UnixMilli() != times[got] {
			t.Errorf("task %d comes with %d, want %d", got, task.Due.UnixMilli(), times[got])
		}
		if got++; got == 4 {
			break
		}
	}
}

// Keys that were made while the clock was wrong, far ahead, take no room from those that are
// made once it is right: an answer is there for who asks again.
func TestKeysOfAClockThatWasAhead(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxKeys = 5 })
	s.add("/a")
	want := "/a"
	for i := range 5 {
		want += "x"
		s.wantOnce("ada", fmt.Sprint("ahead", i), "x", want)
	}
	s.makeKeysOlder(-1000 * time.Hour)
	for i := range 5 { // so that none need make room for another one of now
		want += "y"
		s.wantOnce("ada", fmt.Sprint("now", i), "y", want)
		s.wantOnce("ada", fmt.Sprint("now", i), "y", want) // it is kept
	}
	if n := s.countedKeys(); n != 5 {
		t.Errorf("there are %d keys", n)
	}
	must(t, s.Check(s.ctx))
}

// Thousands of transactions at once, of many owners: each has its answer or a refusal that
// names the limit, and no place is lost.
func TestThousandsOfTransactions(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxOpen, o.MaxOpenEach = 3000, 400 })
	s.add("/a")
	var open []*ReadTx
	refused := map[string]int{}
	for i := range 5000 {
		sc := paths("/a")
		sc.Owner = strconv.Itoa(i % 10)
		tx, err := s.Read(s.ctx, sc)
		if err == nil {
			open = append(open, tx)
			continue
		}
		wantKind(t, err, KindLimit)
		if e, ok := errors.AsType[*Error](err); ok {
			refused[e.Limit]++
		}
	}
	if len(open) != 3000 || refused["MaxOpen"] != 2000 {
		t.Errorf("%d are open, and %v were refused", len(open), refused)
	}
	for _, tx := range open {
		tx.Close()
	}
	s.mu.Lock()
	if s.places != 0 || len(s.owners) != 0 {
		t.Errorf("%d places are lost, of %v", s.places, s.owners)
	}
	s.mu.Unlock()
}

// makeKeysOlder has all keys be made at another time.
func (s *testStore) makeKeysOlder(by time.Duration) {
	s.t.Helper()
	must(s.t, s.db.Update(func(tx *bolt.Tx) error {
		a, values := applier{tx: tx}, map[string][]byte{}
		must(s.t, tx.Bucket([]byte(bucketKeys)).ForEach(func(k, v []byte) error {
			payload, err := unseal(bucketKeys, k, v)
			values[string(k)] = bytes.Clone(payload)
			return err
		}))
		for k, v := range values {
			must(s.t, a.remove(bucketAges, joinKey(v[:8], []byte(k))))
			binary.BigEndian.PutUint64(v, uint64(int64(binary.BigEndian.Uint64(v))-by.Milliseconds()))
			must(s.t, a.put(bucketKeys, []byte(k), v))
			must(s.t, a.put(bucketAges, joinKey(v[:8], []byte(k)), nil))
		}
		return nil
	}))
}

// A tree of globs says what its globs say one by one.
func TestTreeOfGlobs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 9))
	random := func() glob {
		g := glob{open: true, components: []string{}}
		for range rnd.IntN(5) {
			g.components = append(g.components, []string{"a", "b", "c", address.Wildcard}[rnd.IntN(4)])
		}
		return g
	}
	hits, misses := 0, 0
	for range 3000 {
		var globs []glob
		for range minTree {
			if g := random(); len(g.components) > rnd.IntN(4) { // not all that cover everything
				globs = append(globs, g)
			}
		}
		root := &tree{}
		for _, g := range globs {
			root.add(g.components)
		}
		g := random()
		overlaps, covers := false, false
		for _, d := range globs {
			overlaps, covers = overlaps || d.overlaps(g), covers || d.covers(g)
		}
		if root.overlaps(g.components) != overlaps || root.covers(g.components) != covers {
			t.Fatalf("of %v: %v overlaps %t, is covered %t", globs, g, overlaps, covers)
		}
		if covers {
			hits++
		} else {
			misses++
		}
	}
	if hits < 100 || misses < 100 {
		t.Errorf("%d are covered and %d are not: the test tries one of the two only", hits, misses)
	}
}

// Scopes of thousands of paths: disjoint ones side by side, overlapping ones one after the
// other, and none makes the others wait for the comparison.
func TestScopesOfManyPaths(t *testing.T) {
	s := newStore(t)
	many := func(top string, n int) (sc Scope) {
		for i := range n {
			sc.Paths = append(sc.Paths, path(fmt.Sprintf("/%s/%d", top, i)))
		}
		return sc
	}
	a, b := s.write(many("a", 1000)), s.write(many("b", 1000)) // none waits
	must(t, a.Save(path("/a/999/x"), newID(), nil))
	must(t, b.Save(path("/b/0"), newID(), nil))
	wantKind(t, a.Save(path("/b/1"), newID(), nil), KindScope)
	wantKind(t, second(a.Page(path("/a/*"), "", 1)), KindScope)
	wantList(t, a.ReadTx, "/a/999/**", "/a/999/x")
	got := make(chan error, 3)
	for _, sc := range []Scope{paths("/a/500"), many("b", 3000), {Paths: []address.Path{path("/*/7")}}} {
		go func() {
			tx, err := s.Write(s.ctx, sc)
			if err == nil {
				tx.Close()
			}
			got <- err
		}()
	}
	s.waiting(3)
	must(t, a.Commit(s.ctx))
	must(t, b.Commit(s.ctx))
	for range 3 {
		must(t, <-got)
	}
	// More than are locked one by one lock all.
	large := s.write(many("c", maxGlobs+1))
	go func() { got <- s.Update(s.ctx, paths("/d"), func(*WriteTx) error { return nil }) }()
	s.waiting(1)
	wantKind(t, large.Save(path("/d"), newID(), nil), KindScope) // but it may touch no more
	large.Close()
	must(t, <-got)
	_, err := s.Read(s.ctx, many("e", 10_001))
	wantLimit(t, err, "MaxScope", 10_000)
}
