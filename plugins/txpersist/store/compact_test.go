package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// sum is the digest of all that a store has.
func (s *testStore) sum() []byte {
	s.t.Helper()
	var sum []byte
	must(s.t, s.db.View(func(tx *bolt.Tx) (err error) {
		sum, err = digest(s.ctx, tx)
		return err
	}))
	return sum
}

func fileSize(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	must(t, err)
	return info.Size()
}

// usedCount is how many resources, of 1 MiB, were made in what used returns.
const usedCount = 12

// used is a closed store that has grown and become nearly empty, but for the last ones.
func used(t *testing.T, rest int) (file string, ids []address.ResourceID) {
	t.Helper()
	s := newStore(t)
	for i := range usedCount {
		s.update(paths("/"), func(tx *WriteTx) {
			id := newID()
			must(t, tx.Save(path(fmt.Sprintf("/r/%02d", i)), id, bytes.Repeat([]byte{byte(i)}, 1<<20)))
			must(t, tx.Link(id, path(fmt.Sprintf("/alias/%02d", i))))
			must(t, tx.CreateTask(taskOf(id), time.UnixMilli(int64(i))))
			ids = append(ids, id)
		})
	}
	s.update(paths("/"), func(tx *WriteTx) {
		for _, id := range ids[:len(ids)-rest] {
			must(t, tx.Remove(id))
		}
	})
	must(t, s.Close())
	return s.File(), ids[len(ids)-rest:]
}

func TestCompact(t *testing.T) {
	file, ids := used(t, 2)
	must(t, os.Chmod(file, 0o640))
	before := openStore(t, file)
	sum := before.sum()
	must(t, before.Close())
	done, err := Compact(t.Context(), Options{File: file, Node: testNode})
	must(t, err)
	if size := fileSize(t, file); done.After != size || done.Before < usedCount<<20 || done.After > 6<<20 {
		t.Errorf("it was of %d bytes and is of %d, said to be %d", done.Before, size, done.After)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v", info.Mode())
	}
	s := openStore(t, file)
	if !bytes.Equal(s.sum(), sum) {
		t.Error("it has other records now")
	}
	// What comes now gets chunks of its own.
	s.add("/new")
	s.update(paths("/"), func(tx *WriteTx) {
		must(t, tx.Save(path("/large"), newID(), make([]byte, 3<<20)))
		wantContents(t, tx.ReadTx, ids[0], bytes.Repeat([]byte{usedCount - 2}, 1<<20))
		wantList(t, tx.ReadTx, "/**", "/alias/10", "/alias/11", "/large", "/new", "/r/10", "/r/11")
	})
	s.verify()
	wantFiles(t, filepath.Dir(file), "store")
}

func TestCompactRefuses(t *testing.T) {
	s := newStore(t)
	s.add("/a")
	opts := Options{File: s.File(), Node: testNode, LockTimeout: time.Millisecond}
	if _, err := Compact(s.ctx, opts); KindOf(err) != KindInUse {
		t.Errorf("of a file in use: %v", err)
	}
	must(t, s.Close())
	foreign := opts
	foreign.Node = otherNode
	if _, err := Compact(s.ctx, foreign); KindOf(err) != KindForeign {
		t.Errorf("of another node's: %v", err)
	}
	// A record that does not fit its checksum is found and not copied.
	db, err := bolt.Open(s.File(), 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucketPaths)).Put([]byte("x\x00"), []byte("junk")) }))
	must(t, db.Close())
	damaged, err := os.ReadFile(s.File())
	must(t, err)
	if _, err := Compact(s.ctx, opts); KindOf(err) != KindCorrupt {
		t.Errorf("of a damaged file: %v", err)
	}
	if now, err := os.ReadFile(s.File()); err != nil || !bytes.Equal(now, damaged) {
		t.Error("a file that was refused is another one now")
	}
	wantFiles(t, filepath.Dir(s.File()), "store")
}

func TestCompactIsCancelled(t *testing.T) {
	file, _ := used(t, usedCount)
	s := openStore(t, file)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.compact(ctx); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	s.opts.MaxSize = 1 << 20 // the copy meets a limit in the middle
	if _, err := s.compact(t.Context()); KindOf(err) != KindFull {
		t.Errorf("the error is %v", err)
	}
	s.verify()
	wantFiles(t, filepath.Dir(file), "store")
}

// Who waits for the lock of a file whose place another one takes gets that one.
func TestFileReplacedWhileItsLockIsWaitedFor(t *testing.T) {
	s := newStore(t)
	must(t, s.Close())
	old := openFile(t, s.File())
	mine, err := lockNamed(s.ctx, old, time.Minute)
	if err != nil || !mine {
		t.Fatalf("the lock is %v, %v", mine, err)
	}
	next := s.File() + ".next"
	data, err := os.ReadFile(s.File())
	must(t, err)
	must(t, os.WriteFile(next, data, 0o600))
	must(t, os.Rename(next, s.File()))
	must(t, old.Close())
	late := openFile(t, s.File())
	must(t, os.WriteFile(next, data, 0o600))
	must(t, os.Rename(next, s.File()))
	if mine, err := lockNamed(s.ctx, late, time.Minute); err != nil || mine {
		t.Errorf("the lock of a file without a name is %v, %v", mine, err)
	}
	openStore(t, s.File()).add("/a")
}

// childCompacts compacts again and again until it is killed.
func childCompacts(ctx context.Context, file string) error {
	fmt.Println("ready")
	for {
		if _, err := Compact(ctx, Options{File: file, Node: testNode}); err != nil {
			return err
		}
	}
}

// compactCrashes kills compactions at random moments and returns in how many rounds it
// was in the middle of one.
func compactCrashes(t *testing.T, rounds int) (middle int) {
	t.Helper()
	file, _ := used(t, 5)
	first := openStore(t, file)
	sum := first.sum()
	must(t, first.Close())
	for round := range rounds {
		c := startChild(t, "compact", file)
		if line := c.line(t); line != "ready" {
			t.Fatalf("round %d: %s", round, line)
		}
		killed := time.AfterFunc(time.Duration(rand.Int64N(int64(80*time.Millisecond))), func() { _ = c.cmd.Process.Kill() })
		for c.out.Scan() {
			t.Errorf("round %d: the child says %q", round, c.out.Text())
		}
		_ = c.cmd.Wait()
		killed.Stop()
		if _, err := os.Stat(compactName(file)); err == nil {
			middle++
		}
		s := openStore(t, file)
		if !bytes.Equal(s.sum(), sum) {
			t.Fatalf("round %d: the file has other records now", round)
		}
		s.verify()
		wantFiles(t, filepath.Dir(file), "store")
	}
	return middle
}

func TestCompactIsKilled(t *testing.T) { compactCrashes(t, 3) }
