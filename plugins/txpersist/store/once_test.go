package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
)

// once appends to the contents at /a, once for each key, and answers with what they are
// then.
func (s *testStore) once(owner, key, request string) (answer string, err error) {
	sc := paths("/a")
	sc.Once = &Once{Owner: owner, Key: key, Request: []byte(request)}
	err = s.Update(s.ctx, sc, func(tx *WriteTx) error {
		before, found, err := tx.Recall()
		if err != nil || found {
			answer = string(before)
			return err
		}
		id, err := tx.Lookup(path("/a"))
		if err != nil {
			return err
		}
		w, err := tx.Append(id)
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte(request)); err != nil {
			return err
		}
		data, err := tx.Load(id)
		if err != nil {
			return err
		}
		answer = string(data)
		return tx.Remember(data)
	})
	return answer, err
}

func (s *testStore) wantOnce(owner, key, request, want string) {
	s.t.Helper()
	if got, err := s.once(owner, key, request); err != nil || got != want {
		s.t.Errorf("%s of %s: the answer is %q, %v, want %q", key, owner, got, err, want)
	}
}

func TestOnce(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	s.wantOnce("ada", "1", "x", "/ax")
	s.wantOnce("ada", "1", "x", "/ax")
	s.wantOnce("bob", "1", "y", "/axy")
	s.wantOnce("ada", "2", "z", "/axyz")
	s.wantOnce("ada", "1", "x", "/ax")
	_, err := s.once("ada", "1", "other")
	wantKind(t, err, KindReused)
	for _, key := range []string{"", strings.Repeat("k", maxKey+1)} {
		_, err = s.once("ada", key, "x")
		wantKind(t, err, KindArgument)
	}
	s.wantOnce("ada", strings.Repeat("k", maxKey), "!", "/axyz!")

	// It outlives the file's opening, and what fails leaves no key.
	must(t, s.Close())
	s = openStore(t, s.File())
	s.wantOnce("bob", "1", "y", "/axy")
	sc := paths("/a")
	sc.Once = &Once{Key: "3"}
	enough := errors.New("enough")
	err = s.Update(s.ctx, sc, func(tx *WriteTx) error { return errors.Join(tx.Remember(nil), enough) })
	if !errors.Is(err, enough) {
		t.Error(err)
	}
	s.update(sc, func(tx *WriteTx) {
		if _, found, err := tx.Recall(); found || err != nil {
			t.Errorf("what was rolled back is remembered: %v", err)
		}
		wantKind(t, tx.Remember(make([]byte, maxAnswer+1)), KindLimit)
	})
	s.update(paths("/a"), func(tx *WriteTx) {
		_, _, err := tx.Recall()
		wantKind(t, err, KindArgument)
		wantKind(t, tx.Remember(nil), KindArgument)
	})
}

// Of many that do the same at the same time one does it, though they touch nothing in
// common but the key.
func TestOnceConcurrently(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for i := range 8 {
		wg.Go(func() {
			sc := paths(fmt.Sprintf("/%d", i))
			sc.Once = &Once{Owner: "ada", Key: "same", Request: []byte("same")}
			err := s.Update(s.ctx, sc, func(tx *WriteTx) error {
				_, found, err := tx.Recall()
				if err != nil || found {
					return err
				}
				mu.Lock()
				done++
				mu.Unlock()
				return errors.Join(tx.Save(path(fmt.Sprintf("/%d", i)), newID(), nil), tx.Remember(nil))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.view(paths("/"), func(tx *ReadTx) {
		if got := list(t, tx, "/*"); len(got) != 1 || done != 1 {
			t.Errorf("it was done %d times: %v", done, got)
		}
	})
}

func (s *testStore) countedKeys() (n int) {
	must(s.t, s.db.View(func(tx *bolt.Tx) error {
		n = tx.Bucket([]byte(bucketKeys)).Stats().KeyN
		if ages := tx.Bucket([]byte(bucketAges)).Stats().KeyN; ages != n {
			s.t.Errorf("there are %d keys and %d ages", n, ages)
		}
		return nil
	}))
	return n
}

func TestKeysAreBounded(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, filepath.Join(dir, "store"), func(o *Options) { o.MaxKeys = 10; o.KeyAge = time.Hour })
		s.ctx = t.Context()
		s.add("/a")
		want := "/a"
		for i := range 25 {
			want += "x"
			s.wantOnce("ada", strconv.Itoa(i), "x", want)
			time.Sleep(time.Millisecond) // so that they have an order
		}
		if n := s.countedKeys(); n != 10 {
			t.Errorf("there are %d keys", n)
		}
		s.wantOnce("ada", "24", "x", want)
		s.wantOnce("ada", "0", "x", want+"x") // it is forgotten
		time.Sleep(time.Hour + time.Millisecond)
		s.wantOnce("ada", "24", "y", want+"xy") // too old, though it is there
		if n := s.countedKeys(); n >= 10 {
			t.Errorf("%d keys are left of which nearly all are too old", n)
		}
		for i := range 4 {
			s.wantOnce("ada", fmt.Sprint("new", i), "", want+"xy")
		}
		if n := s.countedKeys(); n != 5 {
			t.Errorf("%d keys are left, want those that are not too old", n)
		}
		must(t, s.Close())
		s = openStore(t, s.File())
		s.ctx = t.Context()
		if s.keys.count != 5 {
			t.Errorf("%d keys are counted when it is opened", s.keys.count)
		}
	})
}

// The first format has neither keys nor what is staged; such a file is brought to the present one.
func TestUpgrade(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a")
	must(t, s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range append(onceBuckets(), bucketStaged) {
			must(t, tx.DeleteBucket([]byte(name)))
		}
		return putMeta(tx.Bucket([]byte(bucketMeta)), "format", binary.BigEndian.AppendUint32(nil, 1))
	}))
	var old bytes.Buffer
	_, err := s.Backup(s.ctx, &old)
	must(t, err)
	must(t, s.db.Close())
	s.mu.Lock()
	s.closed = true // its check would miss the buckets
	close(s.idle)
	s.mu.Unlock()
	opts := Options{File: s.File(), Node: testNode}
	s.Store, err = Open(s.ctx, opts)
	must(t, err)
	s.view(paths("/"), func(tx *ReadTx) { wantContents(t, tx, ids["/a"], []byte("/a")) })
	s.wantOnce("ada", "1", "x", "/ax")
	must(t, s.Close())
	s = openStore(t, s.File())
	s.wantOnce("ada", "1", "x", "/ax")

	restored := filepath.Join(t.TempDir(), "store")
	must(t, Restore(s.ctx, &old, Options{File: restored, Node: testNode}))
	r := openStore(t, restored)
	r.wantOnce("ada", "1", "y", "/ay")
}

// Answers hold ids of their node, so they go when the store gets another one.
func TestAdoptForgetsKeys(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	s.wantOnce("ada", "1", "x", "/ax")
	must(t, s.Close())
	must(t, Adopt(t.Context(), s.File(), testNode, otherNode))
	s = openStore(t, s.File(), func(o *Options) { o.Node = otherNode })
	s.wantOnce("ada", "1", "y", "/axy")
}

// Check finds keys and ages that do not fit.
func TestCheckOfKeys(t *testing.T) {
	for name, damage := range map[string]func(tx *bolt.Tx, key, age []byte) error{
		"no age":      func(tx *bolt.Tx, _, age []byte) error { return tx.Bucket([]byte(bucketAges)).Delete(age) },
		"no key":      func(tx *bolt.Tx, key, _ []byte) error { return tx.Bucket([]byte(bucketKeys)).Delete(key) },
		"short key":   func(tx *bolt.Tx, _, _ []byte) error { return applier{tx: tx}.put(bucketKeys, []byte("k"), nil) },
		"short age":   func(tx *bolt.Tx, _, _ []byte) error { return applier{tx: tx}.put(bucketAges, []byte("k"), nil) },
		"short value": func(tx *bolt.Tx, key, _ []byte) error { return applier{tx: tx}.put(bucketKeys, key, []byte("v")) },
	} {
		s := newStore(t)
		s.add("/a")
		s.wantOnce("ada", "1", "x", "/ax")
		var key, age []byte
		must(t, s.Check(s.ctx))
		must(t, s.db.Update(func(tx *bolt.Tx) error {
			k, _ := tx.Bucket([]byte(bucketKeys)).Cursor().First()
			key = bytes.Clone(k)
			k, _ = tx.Bucket([]byte(bucketAges)).Cursor().First()
			age = bytes.Clone(k)
			return damage(tx, key, age)
		}))
		if err := s.Check(s.ctx); KindOf(err) != KindCorrupt {
			t.Errorf("%s: the check says %v", name, err)
		}
		must(t, s.Close())
	}
}

func TestNodeOf(t *testing.T) {
	s := newStore(t)
	must(t, s.Close())
	before := get(os.ReadFile(s.File()))(t)
	if node := get(NodeOf(t.Context(), Options{File: s.File()}))(t); node != testNode {
		t.Errorf("it is the store of %s", node)
	}
	if !bytes.Equal(get(os.ReadFile(s.File()))(t), before) {
		t.Error("the file was changed")
	}
	none := filepath.Join(t.TempDir(), "none")
	_, err := NodeOf(t.Context(), Options{File: none})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	wantFiles(t, filepath.Dir(none))
	must(t, os.WriteFile(none, nil, 0o600))
	_, err = NodeOf(t.Context(), Options{File: none})
	wantKind(t, err, KindFormat)
	_, err = NodeOf(t.Context(), Options{File: t.TempDir()})
	wantKind(t, err, KindFormat)
	must(t, os.WriteFile(none, []byte("text"), 0o600))
	_, err = NodeOf(t.Context(), Options{File: none})
	wantKind(t, err, KindCorrupt)
	s = openStore(t, s.File())
	_, err = NodeOf(t.Context(), Options{File: s.File(), LockTimeout: time.Millisecond})
	wantKind(t, err, KindInUse)
}
