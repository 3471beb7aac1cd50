package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// compactBatch is how many bytes of records compaction holds in memory.
const compactBatch = 16 << 20

// Compacted is what a compaction has gained.
type Compacted struct {
	Before, After int64 // bytes of the file
}

// compactName is the file that a compaction of another one fills. It has one name, so
// that what a killed compaction leaves is found and removed.
func compactName(file string) string {
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".compact")
}

// Compact writes a store's file anew, without the pages that nothing uses, and puts the
// new one into its place. It works offline: no process may have the file open, and who
// comes meanwhile waits for it as for any other holder.
//
// The file is checked before, and a damaged one is refused: what is copied is what was
// there. The copy is read back and compared before it takes the old one's place, in one
// step: killed at any moment, there is the old file or the new one, each whole, and what
// is left of the copy is removed when the file is next opened. There must be room on the
// disk for both.
//
// Errors are those of [Open] and [Store.Check], and the cause of ctx; the file is as it was
// then.
func Compact(ctx context.Context, opts Options) (Compacted, error) {
	if opts.MaxAge == 0 {
		opts.MaxAge = 24 * time.Hour // reading all of it may take its time
	}
	s, err := Open(ctx, opts)
	if err != nil {
		return Compacted{}, err
	}
	done, err := s.compact(ctx)
	err = errors.Join(err, s.Close())
	if err != nil {
		return Compacted{}, err
	}
	return done, nil
}

func (s *Store) compact(ctx context.Context) (done Compacted, err error) {
	if err := s.sweeper.wait(ctx); err != nil { // what is nobody's need not be copied
		return done, err
	}
	if err := s.Check(ctx); err != nil {
		return done, err
	}
	file := s.opts.File
	info, err := os.Stat(file)
	if err != nil {
		return done, storageError(file, err)
	}
	done.Before = info.Size()
	temp := compactName(file)
	defer func() { // does nothing once it has taken the old one's place
		if removed := os.Remove(temp); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}()
	if err := s.copyTo(ctx, temp, info); err != nil {
		if ctx.Err() != nil {
			return done, context.Cause(ctx)
		}
		return done, storageError(file, err)
	}
	if info, err = os.Stat(temp); err != nil {
		return done, storageError(file, err)
	}
	done.After = info.Size()
	if err := os.Rename(temp, file); err != nil {
		return done, storageError(file, err)
	}
	return done, storageError(file, syncDir(filepath.Dir(file)))
}

// copyTo makes a file that has the store's records, on the disk when it returns.
func (s *Store) copyTo(ctx context.Context, name string, old os.FileInfo) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, old.Mode().Perm())
	if err != nil {
		return err
	}
	// Root may compact what another user's element must be able to open again.
	if of, ok := old.Sys().(*syscall.Stat_t); ok && (int(of.Uid) != os.Geteuid() || int(of.Gid) != os.Getegid()) {
		if err := f.Chown(int(of.Uid), int(of.Gid)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := errors.Join(f.Chmod(old.Mode().Perm()), f.Close()); err != nil {
		return err
	}
	opts := s.opts
	opts.noSync = true // but for the end of it: nobody knows the file before
	db, err := openBolt(ctx, opts, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.AllocSize = 1 << 20
	source, err := s.db.Begin(false)
	if err != nil {
		return err
	}
	defer func() { _ = source.Rollback() }()
	return guard(func() error {
		written, err := copyRecords(ctx, db, source)
		if err != nil {
			return err
		}
		if err := db.Sync(); err != nil {
			return err
		}
		return db.View(func(tx *bolt.Tx) error {
			read, err := digest(ctx, tx)
			if err == nil && !bytes.Equal(read, written) {
				err = fail(KindFailed, name, "the copy is not what was written to it, so the disk cannot be trusted; the file stays as it is")
			}
			return err
		})
	})
}

// copyRecords copies all buckets and returns the digest of what it has copied.
func copyRecords(ctx context.Context, db *bolt.DB, source *bolt.Tx) (_ []byte, err error) {
	to, err := db.Begin(true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = to.Rollback() }() // does nothing after the last commit
	size := int64(0)
	sum, err := walk(ctx, source, func(name []byte, sequence uint64, k, v []byte) error {
		if k == nil {
			b, err := to.CreateBucket(name)
			if err != nil {
				return err
			}
			return b.SetSequence(sequence)
		}
		if size += int64(len(k) + len(v)); size > compactBatch {
			size = 0
			if err := to.Commit(); err != nil {
				return err
			}
			if to, err = db.Begin(true); err != nil {
				return err
			}
		}
		b := to.Bucket(name)
		b.FillPercent = 0.9 // what comes is in order
		return b.Put(k, v)
	})
	if err != nil {
		return nil, err
	}
	return sum, to.Commit()
}

func digest(ctx context.Context, tx *bolt.Tx) ([]byte, error) {
	return walk(ctx, tx, func([]byte, uint64, []byte, []byte) error { return nil })
}

// walk hands on each bucket, with a nil key, and each of its records, and returns a digest of them all.
func walk(ctx context.Context, tx *bolt.Tx, fn func(bucket []byte, sequence uint64, k, v []byte) error) ([]byte, error) {
	sum := sha256.New()
	n := 0
	err := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		add(sum, name, binary.BigEndian.AppendUint64(nil, b.Sequence()))
		if err := fn(name, b.Sequence(), nil, nil); err != nil {
			return err
		}
		return b.ForEach(func(k, v []byte) error {
			if n++; n%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if v == nil {
				return corrupt("bucket %s has a bucket %q in it", name, k)
			}
			add(sum, k, v)
			return fn(name, 0, slices.Clone(k), v)
		})
	})
	return sum.Sum(nil), err
}

// add puts a record into a digest, so that no two records make others.
func add(sum hash.Hash, k, v []byte) {
	_, _ = sum.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(len(k))), uint64(len(v))))
	_, _ = sum.Write(k)
	_, _ = sum.Write(v)
}
