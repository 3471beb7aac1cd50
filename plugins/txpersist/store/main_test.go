package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit/address"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		os.Exit(child(job))
	}
	goleak.VerifyTestMain(m)
}

var (
	testNode  = address.NewNodeID(address.UniqueInstanceID("test"), address.UniqueDeploymentID("txpersist"))
	otherNode = address.NewNodeID(address.UniqueInstanceID("other"), address.UniqueDeploymentID("txpersist"))
)

// testStore is a store whose every test ends with a check of all of its file.
type testStore struct {
	*Store
	t   *testing.T
	ctx context.Context //nolint:containedctx // the test's own, with a deadline
}

func newStore(t *testing.T, change ...func(*Options)) *testStore {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "store"), change...)
}

func openStore(t *testing.T, file string, change ...func(*Options)) *testStore {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	opts := Options{File: file, Node: testNode, noSync: true}
	for _, f := range change {
		f(&opts)
	}
	s, err := Open(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	ts := &testStore{Store: s, t: t, ctx: ctx}
	t.Cleanup(func() { ts.verify() })
	return ts
}

// verify closes the store and looks for damage.
func (s *testStore) verify() {
	s.t.Helper()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if !closed {
		if err := s.Check(context.WithoutCancel(s.ctx)); err != nil {
			s.t.Errorf("check: %v", err)
		}
		if st := s.Stats(); len(st.Transactions) > 0 || st.Waiting > 0 {
			s.t.Errorf("transactions were left open: %v, and %d wait", st.Transactions, st.Waiting)
		}
	}
	if err := s.Close(); err != nil {
		s.t.Errorf("close: %v", err)
	}
	checkPages(s.t, s.opts.File)
}

func checkPages(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if err := checkFile(f, true); err != nil {
		t.Errorf("pages: %v", err)
	}
}

func path(s string) address.Path { return address.MustParsePath(s) }

func paths(ss ...string) Scope {
	var sc Scope
	for _, s := range ss {
		sc.Paths = append(sc.Paths, path(s))
	}
	return sc
}

func newID() address.ResourceID { return address.RandomResourceID(testNode) }

// update runs fn in a transaction that commits.
func (s *testStore) update(sc Scope, fn func(tx *WriteTx)) {
	s.t.Helper()
	err := s.Update(s.ctx, sc, func(tx *WriteTx) error {
		fn(tx)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *testStore) view(sc Scope, fn func(tx *ReadTx)) {
	s.t.Helper()
	err := s.View(s.ctx, sc, func(tx *ReadTx) error {
		fn(tx)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *testStore) write(sc Scope) *WriteTx {
	s.t.Helper()
	tx, err := s.Write(s.ctx, sc)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(tx.Close)
	return tx
}

func (s *testStore) read(sc Scope) *ReadTx {
	s.t.Helper()
	tx, err := s.Read(s.ctx, sc)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(tx.Close)
	return tx
}

// add stores a resource at each path, with the path as its contents.
func (s *testStore) add(ps ...string) map[string]address.ResourceID {
	s.t.Helper()
	ids := map[string]address.ResourceID{}
	s.update(paths("/"), func(tx *WriteTx) {
		for _, p := range ps {
			ids[p] = newID()
			must(s.t, tx.Save(path(p), ids[p], []byte(p)))
		}
	})
	return ids
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// wantLimit fails the test unless the error names the option that was reached.
func wantLimit(t *testing.T, err error, limit string, most int64) {
	t.Helper()
	wantKind(t, err, KindLimit)
	if e, ok := errors.AsType[*Error](err); ok && (e.Limit != limit || e.Max != most) {
		t.Errorf("the limit is %s = %d, want %s = %d", e.Limit, e.Max, limit, most)
	}
}

func wantKind(t *testing.T, err error, kind Kind) {
	t.Helper()
	if KindOf(err) != kind {
		t.Errorf("the error is %v, want one of kind %q", err, kind)
	}
}

// list returns the paths of a listing, without their context.
func list(t *testing.T, tx *ReadTx, pattern string) []string {
	t.Helper()
	out := []string{}
	for l, err := range tx.List(path(pattern)) {
		if err != nil {
			t.Fatalf("list %s: %v", pattern, err)
		}
		if l.Path.Context() != testNode.String() {
			t.Errorf("%s has the wrong context", l.Path)
		}
		if id, err := tx.Lookup(l.Path); err != nil || id != l.ID {
			t.Errorf("%s is listed with %s and found with %s, %v", l.Path, l.ID, id, err)
		}
		out = append(out, l.Path.WithoutContext().String())
	}
	return out
}

func wantList(t *testing.T, tx *ReadTx, pattern string, want ...string) {
	t.Helper()
	if got := list(t, tx, pattern); !slices.Equal(got, want) {
		t.Errorf("list %s gives %q, want %q", pattern, got, want)
	}
}

func wantContents(t *testing.T, tx *ReadTx, id address.ResourceID, want []byte) {
	t.Helper()
	got, err := tx.Load(id)
	if err != nil {
		t.Errorf("load: %v", err)
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the contents are %s, want %s", brief(got), brief(want))
	}
	r, err := tx.Open(id)
	must(t, err)
	var streamed bytes.Buffer
	if _, err := io.Copy(&streamed, r); err != nil || !bytes.Equal(streamed.Bytes(), want) {
		t.Errorf("streamed, the contents are %s, %v", brief(streamed.Bytes()), err)
	}
}

func brief(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}

// blocked reports whether acquire is still waiting once the lock table says that one
// more does; it returns a func that waits for its end.
func (s *testStore) waiting(n int) {
	s.t.Helper()
	s.poll(func() bool {
		s.locks.mu.Lock()
		defer s.locks.mu.Unlock()
		return len(s.locks.waiting) == n
	})
}

func (s *testStore) poll(done func() bool) {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.t.Fatal("it did not come to be in time")
		}
	}
}

func openFile(t *testing.T, file string) *os.File {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the folder has %q, want %q", got, want)
	}
}
