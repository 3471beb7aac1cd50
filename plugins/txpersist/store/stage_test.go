package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// small has contents go into the file after a few chunks.
func small(o *Options) { o.MaxWrites, o.MaxContents, o.stage = 1<<20, 64<<20, 2*chunkSize }

// noise is a stream of bytes that no two positions of contents have alike.
func noise(seed uint64, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte(binary.BigEndian.AppendUint64(make([]byte, 24), seed))), size)
}

func digestOf(t *testing.T, r io.Reader) [sha256.Size]byte {
	t.Helper()
	sum := sha256.New()
	_, err := io.Copy(sum, r)
	must(t, err)
	return [sha256.Size]byte(sum.Sum(nil))
}

// wantNoise compares contents with a stream, without having them in memory.
func wantNoise(t *testing.T, tx *ReadTx, id address.ResourceID, seed uint64, size int64) {
	t.Helper()
	r, err := tx.Open(id)
	must(t, err)
	if r.Size() != size || digestOf(t, r) != digestOf(t, noise(seed, size)) {
		t.Errorf("the contents, of %d bytes, are not the %d that were written", r.Size(), size)
	}
}

// pour writes a stream in pieces of an odd size.
func pour(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 50_001))
	return err
}

func (s *testStore) records(bucket string) (n int) {
	s.t.Helper()
	must(s.t, s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucket)).ForEach(func(_, _ []byte) error { n++; return nil })
	}))
	return n
}

// swept waits until nothing is left of what no resource has.
func (s *testStore) swept() {
	s.t.Helper()
	s.poll(func() bool { return s.records(bucketStaged) == 0 })
	must(s.t, s.sweeper.wait(s.ctx))
}

// Contents much larger than a transaction may hold in memory: new ones, in the place of
// others, read inside of the transaction and behind it, in one call of Write or many.
func TestContentsAboveMemory(t *testing.T) {
	const size = 2<<20 + 77
	s := newStore(t, small)
	id := newID()
	s.update(paths("/a"), func(tx *WriteTx) {
		w, err := tx.Create(path("/a"), id)
		must(t, err)
		must(t, pour(w, noise(1, size)))
		if held := tx.edits.bytes; held > 1<<19 {
			t.Errorf("%d bytes are in memory", held)
		}
		wantNoise(t, tx.ReadTx, id, 1, size)
		s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") }) // nobody else sees any of it
	})
	s.view(paths("/"), func(tx *ReadTx) { wantNoise(t, tx, id, 1, size) })
	s.swept()
	chunks := s.records(bucketChunks)
	s.update(paths("/a"), func(tx *WriteTx) {
		w, err := tx.Replace(id)
		must(t, err)
		data, err := io.ReadAll(noise(2, size))
		must(t, err)
		if n, err := w.Write(data); err != nil || n != size {
			t.Errorf("written: %d, %v", n, err)
		}
		old := s.read(paths("/a"))
		wantNoise(t, old, id, 1, size)
		old.Close()
	})
	s.view(paths("/"), func(tx *ReadTx) { wantNoise(t, tx, id, 2, size) })
	if n := s.records(bucketChunks); n != chunks {
		t.Errorf("%d chunks are left of %d that were replaced by as many", n, chunks)
	}
	must(t, s.Check(s.ctx))
	must(t, s.Close())
	s = openStore(t, s.File(), small)
	s.view(paths("/"), func(tx *ReadTx) { wantNoise(t, tx, id, 2, size) })
	// What is there is appended to and changed as any other contents are.
	s.update(paths("/a"), func(tx *WriteTx) {
		must(t, tx.WriteAt(id, []byte("changed"), 3*chunkSize-3))
		w, err := tx.Append(id)
		must(t, err)
		must(t, pour(w, noise(3, 5)))
	})
	s.view(paths("/"), func(tx *ReadTx) {
		data, err := tx.Load(id)
		must(t, err)
		if len(data) != size+5 || string(data[3*chunkSize-3:][:7]) != "changed" {
			t.Errorf("the changed contents have %d bytes", len(data))
		}
	})
}

// What was put into the file ahead can be changed, removed and written anew before its
// commit, and goes on from contents that were small.
func TestContentsAboveMemoryAreChanged(t *testing.T) {
	const size = 20 * chunkSize
	s := newStore(t, small)
	id, other := newID(), newID()
	s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Save(path("/a"), id, []byte("small"))) })
	s.update(paths("/"), func(tx *WriteTx) {
		w, err := tx.Append(id)
		must(t, err)
		must(t, pour(w, noise(1, size)))
		must(t, tx.WriteAt(id, []byte("SM"), 0))
		must(t, tx.WriteAt(id, []byte("X"), 7*chunkSize))
		must(t, pour(w, noise(2, size)))

		gone, err := tx.Create(path("/gone"), other)
		must(t, err)
		must(t, pour(gone, noise(3, size)))
		must(t, tx.Remove(other))
		wantKind(t, second(gone.Write([]byte("x"))), KindState)
		must(t, tx.Save(path("/gone"), other, []byte("small")))

		anew := newID()
		first, err := tx.Create(path("/anew"), anew)
		must(t, err)
		must(t, pour(first, noise(4, size)))
		again, err := tx.Replace(anew)
		must(t, err)
		must(t, pour(again, noise(5, size)))
		wantNoise(t, tx.ReadTx, anew, 5, size)
	})
	s.swept()
	if n, want := s.records(bucketChunks), 2*size/chunkSize+1+size/chunkSize; n != want {
		t.Errorf("%d chunks are there, want %d", n, want)
	}
	want, err := io.ReadAll(io.MultiReader(noise(1, size), noise(2, size)))
	must(t, err)
	want = append([]byte("small"), want...)
	copy(want, "SM")
	want[7*chunkSize] = 'X'
	s.view(paths("/"), func(tx *ReadTx) {
		wantContents(t, tx, id, want)
		wantContents(t, tx, other, []byte("small"))
		anew, err := tx.Lookup(path("/anew"))
		must(t, err)
		wantNoise(t, tx, anew, 5, size)
	})
	if c := s.Stats().Commits; c != 2 {
		t.Errorf("two transactions count as %d", c)
	}
}

// However a transaction ends without a commit, nothing is left of what it had put into the
// file, which grows no further by such transactions.
func TestContentsAboveMemoryAreRolledBack(t *testing.T) {
	const size = 20 * chunkSize
	s := newStore(t, small)
	ids := s.add("/taken")
	var used int64
	for round, end := range []func(tx *WriteTx){
		func(tx *WriteTx) { tx.Close() },
		func(tx *WriteTx) { must(t, tx.Rollback()) },
		func(tx *WriteTx) { // a commit that fails
			id := newID()
			must(t, tx.Save(path("/b/x"), id, nil))
			s.update(paths("/c"), func(tx *WriteTx) { must(t, tx.Save(path("/c"), id, nil)) })
			wantKind(t, tx.Commit(s.ctx), KindDuplicate)
			s.update(paths("/c"), func(tx *WriteTx) { must(t, tx.Remove(id)) })
		},
		func(tx *WriteTx) { // nothing is left to commit
			must(t, tx.Remove(get(tx.Lookup(path("/b/large")))(t)))
			must(t, tx.Commit(s.ctx))
		},
		func(tx *WriteTx) { // it is ended for its age
			e := fail(KindExpired, "", "as the timer does it")
			if !tx.end(e) {
				t.Error("it was over")
			}
		},
		func(tx *WriteTx) { tx.Close() },
	} {
		tx := s.write(paths("/b"))
		w, err := tx.Create(path("/b/large"), newID())
		must(t, err)
		must(t, pour(w, noise(1, size)))
		if s.records(bucketStaged) != 1 {
			t.Errorf("round %d: nothing was put into the file", round)
		}
		end(tx)
		s.swept()
		if n := s.records(bucketChunks); n != 0 {
			t.Errorf("round %d: %d chunks are left", round, n)
		}
		switch now := s.Stats().UsedBytes; {
		case round == 1:
			used = now
		case round > 1 && now > used+used/4:
			t.Errorf("round %d: the file has grown from %d to %d bytes", round, used, now)
		}
	}
	s.view(paths("/"), func(tx *ReadTx) {
		wantList(t, tx, "/**", "/taken")
		wantContents(t, tx, ids["/taken"], []byte("/taken"))
	})
}

// What a process that ended has left is taken away by whoever opens the file next, and is
// no damage before: backup, check and compaction get by with it.
func TestStagedContentsOfAnEndedProcess(t *testing.T) {
	s := newStore(t, small)
	kept := newID()
	s.update(paths("/"), func(tx *WriteTx) {
		w, err := tx.Create(path("/kept"), kept)
		must(t, err)
		must(t, pour(w, noise(1, 1<<20)))
	})
	chunks := s.records(bucketChunks)
	tx := s.write(paths("/b"))
	w, err := tx.Create(path("/b"), newID())
	must(t, err)
	must(t, pour(w, noise(2, 4<<20)))
	must(t, s.Check(s.ctx))
	dir := t.TempDir()
	for name, open := range map[string]func(file string){
		"open":    func(string) {},
		"restore": func(file string) { restoreTo(t, file, file+".2"); must(t, os.Rename(file+".2", file)) },
		"adopt":   func(file string) { adoptTwice(t, file) },
		"compact": func(file string) {
			done, err := Compact(s.ctx, Options{File: file, Node: testNode})
			must(t, err)
			if done.After > 3<<20 {
				t.Errorf("the compacted file has %d bytes: what is nobody's was copied", done.After)
			}
		},
	} {
		file := filepath.Join(dir, name)
		_, err := s.BackupFile(s.ctx, file) // as the file of a process that was killed
		must(t, err)
		open(file)
		left := openStore(t, file, small)
		left.swept()
		if n := left.records(bucketChunks); n != chunks {
			t.Errorf("%s: %d chunks are there, want %d", name, n, chunks)
		}
		left.view(paths("/"), func(tx *ReadTx) {
			wantList(t, tx, "/**", "/kept")
			wantNoise(t, tx, kept, 1, 1<<20)
		})
		must(t, left.Close())
	}
	must(t, tx.Commit(s.ctx)) // the one that is open has lost nothing
	s.view(paths("/"), func(tx *ReadTx) { wantNoise(t, tx, get(tx.Lookup(path("/b")))(t), 2, 4<<20) })
}

func restoreTo(t *testing.T, from, to string) {
	t.Helper()
	must(t, Restore(t.Context(), openFile(t, from), Options{File: to, Node: testNode}))
}

func adoptTwice(t *testing.T, file string) {
	t.Helper()
	must(t, Adopt(t.Context(), file, testNode, otherNode))
	must(t, Adopt(t.Context(), file, otherNode, testNode))
}

// Who removes all takes along what was staged, and no number of contents is given twice.
func TestRemoveAllAndStagedContents(t *testing.T) {
	const size = 10 * chunkSize
	s := newStore(t, small)
	tx, err := s.Exclusive(s.ctx, "")
	must(t, err)
	t.Cleanup(tx.Close)
	w, err := tx.Create(path("/a"), newID())
	must(t, err)
	must(t, pour(w, noise(1, size)))
	must(t, tx.RemoveAll(testNode))
	wantKind(t, second(w.Write([]byte("x"))), KindState)
	id := newID()
	w, err = tx.Create(path("/b"), id) // which stays in memory: what is below it goes with the commit
	must(t, err)
	must(t, pour(w, noise(2, size)))
	if _, err := w.Write(make([]byte, 1<<20)); KindOf(err) != KindLimit {
		t.Errorf("more than memory behind a removal of all: %v", err)
	}
	must(t, tx.Commit(s.ctx))
	s.swept()
	later := newID()
	s.update(paths("/"), func(tx *WriteTx) {
		w, err := tx.Create(path("/later"), later)
		must(t, err)
		must(t, pour(w, noise(3, size)))
	})
	s.view(paths("/"), func(tx *ReadTx) {
		wantNoise(t, tx, id, 2, size)
		wantNoise(t, tx, later, 3, size)
	})
}

// Writers of large contents and others run side by side, and each finds its own.
func TestContentsAboveMemoryConcurrently(t *testing.T) {
	const writers, size = 4, 1<<19 + 5
	s := newStore(t, small)
	errs := make(chan error, writers)
	for i := range writers {
		go func() {
			errs <- func() error {
				p := fmt.Sprintf("/%d", i)
				for round := range 3 {
					err := s.Update(s.ctx, paths(p), func(tx *WriteTx) error {
						id := newID()
						w, err := tx.Create(path(fmt.Sprintf("%s/%d", p, round)), id)
						if err != nil {
							return err
						}
						if err := pour(w, noise(uint64(i), size)); err != nil {
							return err
						}
						if round == 1 {
							return errGivenUp
						}
						return nil
					})
					if err != nil && !errors.Is(err, errGivenUp) {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range writers {
		must(t, <-errs)
	}
	s.swept()
	s.view(paths("/"), func(tx *ReadTx) {
		n := 0
		for l, err := range tx.List(path("/*/*")) {
			must(t, err)
			var i uint64
			var round int
			_, err = fmt.Sscanf(l.Path.WithoutContext().String(), "/%d/%d", &i, &round)
			must(t, err)
			wantNoise(t, tx, l.ID, i, size)
			n++
		}
		if n != 2*writers {
			t.Errorf("%d are there, want %d", n, 2*writers)
		}
	})
}

var errGivenUp = errors.New("given up")

// A writer that goes on is not too old, and one that stands still is.
func TestAgeOfContentsAboveMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, small, func(o *Options) { o.MaxAge = time.Minute })
		s.ctx = t.Context()
		tx := s.write(paths("/a"))
		w, err := tx.Create(path("/a"), newID())
		must(t, err)
		for range 10 {
			time.Sleep(40 * time.Second)
			must(t, pour(w, noise(1, 4*chunkSize)))
		}
		time.Sleep(time.Minute + time.Second)
		wantKind(t, second(w.Write([]byte("x"))), KindExpired)
		s.swept()
		if n := s.records(bucketChunks); n != 0 {
			t.Errorf("%d chunks are left", n)
		}
	})
}

// A store that is full says so in the middle of contents, leaves nothing of them, and
// works again.
func TestContentsAboveTheStore(t *testing.T) {
	s := newStore(t, func(o *Options) { o.MaxSize = 32 << 20 })
	s.add("/kept")
	for range 3 {
		err := s.Update(s.ctx, paths("/a"), func(tx *WriteTx) error {
			w, err := tx.Create(path("/a"), newID())
			must(t, err)
			return pour(w, noise(1, 200<<20))
		})
		wantKind(t, err, KindFull)
		s.swept()
		if n := s.records(bucketChunks); n != 0 {
			t.Errorf("%d chunks are left", n)
		}
	}
	s.update(paths("/"), func(tx *WriteTx) {
		w, err := tx.Create(path("/a"), newID())
		must(t, err)
		must(t, pour(w, noise(1, 8<<20)))
		wantList(t, tx.ReadTx, "/**", "/a", "/kept")
	})
}

func TestLimitOfContentsAboveMemory(t *testing.T) {
	s := newStore(t, small, func(o *Options) { o.MaxContents = 3 << 20 })
	tx := s.write(paths("/a"))
	id := newID()
	w, err := tx.Create(path("/a"), id)
	must(t, err)
	must(t, pour(w, noise(1, 3<<20)))
	n, err := w.Write([]byte("x"))
	if wantLimit(t, err, "MaxContents", 3<<20); n != 0 {
		t.Errorf("%d bytes were written", n)
	}
	must(t, tx.Commit(s.ctx)) // and the transaction goes on
	s.view(paths("/"), func(tx *ReadTx) { wantNoise(t, tx, id, 1, 3<<20) })
}

// The file's check finds what was staged and does not fit.
func TestCheckOfStagedContents(t *testing.T) {
	for name, damage := range map[string]func(a applier, id uint64) error{
		"of a resource": func(a applier, id uint64) error { return a.put(bucketStaged, stagedKey(id), nil) },
		"no number":     func(a applier, _ uint64) error { return a.put(bucketStaged, []byte("x"), nil) },
		"part of a chunk": func(a applier, _ uint64) error {
			return errors.Join(a.put(bucketStaged, stagedKey(1000), nil), a.put(bucketChunks, chunkKey(1000, 0), []byte("part")))
		},
		"nobody's": func(a applier, _ uint64) error { return a.put(bucketChunks, chunkKey(1000, 0), []byte("part")) },
	} {
		s := newStore(t, small)
		s.update(paths("/"), func(tx *WriteTx) { must(t, tx.Save(path("/a"), newID(), make([]byte, 3*chunkSize))) })
		must(t, s.Check(s.ctx))
		must(t, s.db.Update(func(tx *bolt.Tx) error {
			k, _ := tx.Bucket([]byte(bucketChunks)).Cursor().First()
			return damage(applier{tx: tx}, binary.BigEndian.Uint64(k))
		}))
		if err := s.Check(s.ctx); KindOf(err) != KindCorrupt {
			t.Errorf("%s: the check says %v", name, err)
		}
		must(t, s.Close())
	}
}

// A commit says what it lacks, if what was staged is not there any more.
func TestStagedContentsAreNotLost(t *testing.T) {
	s := newStore(t, small)
	tx := s.write(paths("/a"))
	w, err := tx.Create(path("/a"), newID())
	must(t, err)
	must(t, pour(w, noise(1, 4*chunkSize)))
	must(t, s.db.Update(func(b *bolt.Tx) error { return applier{tx: b}.remove(bucketStaged, stagedKey(w.c.staged)) }))
	wantKind(t, tx.Commit(s.ctx), KindFailed)
	s.view(paths("/"), func(tx *ReadTx) { wantList(t, tx, "/**") })
	must(t, s.db.Update(func(b *bolt.Tx) error { return applier{tx: b}.put(bucketStaged, stagedKey(w.c.staged), nil) }))
	s.sweeper.add([]uint64{w.c.staged})
	s.swept()
}

// The second format has nothing that is staged.
func TestUpgradeOfTheSecondFormat(t *testing.T) {
	s := newStore(t)
	ids := s.add("/a")
	s.wantOnce("ada", "1", "x", "/ax")
	must(t, s.db.Update(func(tx *bolt.Tx) error {
		must(t, tx.DeleteBucket([]byte(bucketStaged)))
		return putMeta(tx.Bucket([]byte(bucketMeta)), "format", binary.BigEndian.AppendUint32(nil, 2))
	}))
	var old bytes.Buffer
	_, err := s.Backup(s.ctx, &old)
	must(t, err)
	must(t, s.db.Update(func(tx *bolt.Tx) error { return createBuckets(tx, []string{bucketStaged}) })) // for the check at the end
	restored := filepath.Join(t.TempDir(), "store")
	must(t, Restore(context.WithoutCancel(s.ctx), &old, Options{File: restored, Node: testNode}))
	r := openStore(t, restored, small)
	r.wantOnce("ada", "1", "x", "/ax")
	r.view(paths("/"), func(tx *ReadTx) { wantContents(t, tx, ids["/a"], []byte("/ax")) })
	r.update(paths("/b"), func(tx *WriteTx) {
		w, err := tx.Create(path("/b"), newID())
		must(t, err)
		must(t, pour(w, noise(1, 1<<20)))
	})
}
