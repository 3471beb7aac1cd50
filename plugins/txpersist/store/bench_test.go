package store

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// BenchmarkCommits counts durable commits, each of 128 bytes to one of 1000 resources,
// by writers of disjoint scopes, beside bbolt's own Update and Batch doing a Put of as
// many bytes.
func BenchmarkCommits(b *testing.B) {
	data := make([]byte, 128)
	for _, writers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("store/writers=%d", writers), func(b *testing.B) {
			s, err := Open(b.Context(), Options{File: filepath.Join(b.TempDir(), "store"), Node: testNode})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			ids := make([]address.ResourceID, 1000)
			ps := make([]address.Path, len(ids))
			err = s.Update(b.Context(), paths("/"), func(tx *WriteTx) error {
				for i := range ids {
					ids[i], ps[i] = newID(), path(fmt.Sprintf("/r/%d", i))
					if err := tx.Save(ps[i], ids[i], data); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			run(b, writers, func(i int) error {
				i %= len(ids)
				return s.Update(b.Context(), Scope{Paths: ps[i : i+1]}, func(tx *WriteTx) error { return tx.Update(ids[i], data) })
			})
			st := s.Stats()
			b.ReportMetric(float64(st.Commits)/float64(st.Batches), "tx/flush")
		})
		for _, batch := range []bool{false, true} {
			name := "bbolt.Update"
			if batch {
				name = "bbolt.Batch"
			}
			b.Run(fmt.Sprintf("%s/writers=%d", name, writers), func(b *testing.B) {
				db, err := bolt.Open(filepath.Join(b.TempDir(), "bbolt"), 0o600, nil)
				if err != nil {
					b.Fatal(err)
				}
				defer db.Close()
				if err := db.Update(func(tx *bolt.Tx) error { return second(tx.CreateBucket([]byte("b"))) }); err != nil {
					b.Fatal(err)
				}
				update := db.Update
				if batch {
					update = db.Batch
				}
				run(b, writers, func(i int) error {
					key := fmt.Appendf(nil, "/r/%d", i%1000)
					return update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("b")).Put(key, data) })
				})
			})
		}
	}
}

// run has writers do b.N operations.
func run(b *testing.B, writers int, op func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range writers {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := op(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkReads loads 128 bytes in a snapshot of its own each, and lists 1000 paths.
func BenchmarkReads(b *testing.B) {
	s, err := Open(b.Context(), Options{File: filepath.Join(b.TempDir(), "store"), Node: testNode, noSync: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ids := make([]address.ResourceID, 1000)
	err = s.Update(b.Context(), paths("/"), func(tx *WriteTx) error {
		for i := range ids {
			ids[i] = newID()
			if err := tx.Save(path(fmt.Sprintf("/r/%d", i)), ids[i], make([]byte, 128)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("load", func(b *testing.B) {
		for i := range b.N {
			sc := Scope{IDs: ids[i%1000 : i%1000+1]}
			if err := s.View(b.Context(), sc, func(tx *ReadTx) error { return second(tx.Load(sc.IDs[0])) }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list1000", func(b *testing.B) {
		for range b.N {
			n := 0
			err := s.View(b.Context(), paths("/r"), func(tx *ReadTx) error {
				for _, err := range tx.List(path("/r/*")) {
					if err != nil {
						return err
					}
					n++
				}
				return nil
			})
			if err != nil || n != 1000 {
				b.Fatal(n, err)
			}
		}
	})
}
