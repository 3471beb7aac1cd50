package boltstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

const fileMode = 0o600

// The layout of a page of meta data of bbolt's format 2, in the byte order of the
// machine: see the type Meta in bbolt's internal/common. It is read to see
// whether anything was written, and to tell a damaged file from a foreign one
// before bbolt maps it into memory, where damage means a crash.
const (
	metaMagic    = 0xED0CDAED
	metaFormat   = 2
	magicAt      = 16
	formatAt     = 20
	pageSizeAt   = 24
	freelistAt   = 48
	highWaterAt  = 56
	txAt         = 64
	sumAt        = 72
	metaSize     = 80
	minPageSize  = 1 << 10
	maxPageSize  = 1 << 24
	noFreelist   = ^uint64(0)
	minFilePages = 4

	countAt      = 10
	overflowAt   = 12
	pageHeader   = 16
	countIsFirst = 0xffff // the count does not fit and precedes the list
)

type meta [metaSize]byte

func (m *meta) u32(at int) uint32 { return binary.NativeEndian.Uint32(m[at:]) }
func (m *meta) u64(at int) uint64 { return binary.NativeEndian.Uint64(m[at:]) }

// ours says whether it is one of bbolt's at all, and whole whether it is intact.
func (m *meta) ours() bool { return m.u32(magicAt) == metaMagic }

func (m *meta) whole() bool {
	h := fnv.New64a()
	h.Write(m[magicAt:sumAt])
	return m.ours() && m.u32(formatAt) == metaFormat && m.u64(sumAt) == h.Sum64() && validPageSize(int64(m.u32(pageSizeAt)))
}

func validPageSize(n int64) bool { return n >= minPageSize && n <= maxPageSize && n&(n-1) == 0 }

// snapshot is what shows that a file was written: which file it is, and its two
// pages of meta data. Read without a lock it may be torn; then it equals nothing
// that is read later.
type snapshot struct {
	info  fs.FileInfo
	metas [2]meta
}

func (s *snapshot) same(t *snapshot) bool {
	return s != nil && t != nil && os.SameFile(s.info, t.info) && s.info.Size() == t.info.Size() && s.metas == t.metas
}

// takeSnapshot reads a file's snapshot. A file that is too short for one has zeros
// in it.
func takeSnapshot(f *os.File) (*snapshot, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s := &snapshot{info: info}
	at := int64(os.Getpagesize())
	for i := range s.metas {
		if _, err := f.ReadAt(s.metas[i][:], int64(i)*at); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if n := int64(s.metas[i].u32(pageSizeAt)); i == 0 && s.metas[i].ours() && validPageSize(n) {
			at = n
		}
	}
	return s, nil
}

// check says why a file cannot be a store. It is called under the lock.
func (s *snapshot) check(f io.ReaderAt, path string) error {
	a, b := &s.metas[0], &s.metas[1]
	if !a.ours() && !b.ours() {
		return foreign(path, "it is not a bbolt database")
	}
	var newest *meta
	for _, m := range []*meta{a, b} {
		if m.whole() && (newest == nil || m.u64(txAt) > newest.u64(txAt)) {
			newest = m
		}
	}
	if newest == nil {
		for _, m := range []*meta{a, b} {
			if m.ours() && m.u32(formatAt) != metaFormat {
				return foreign(path, fmt.Sprintf("it is a bbolt database of format %d", m.u32(formatAt)))
			}
		}
		return damaged(path, errors.New("neither of its headers is intact"))
	}
	page, pages := uint64(newest.u32(pageSizeAt)), newest.u64(highWaterAt)
	if have := uint64(s.info.Size()); pages < minFilePages || pages > have/page {
		return damaged(path, fmt.Errorf("it is cut short: %d bytes of %d pages of %d", have, pages, page))
	}
	if list := newest.u64(freelistAt); list != noFreelist && !freelistFits(f, list, pages, page) {
		return damaged(path, errors.New("its list of free pages does not read"))
	}
	return nil
}

// freelistFits says whether the list of free pages is as long as the pages that
// hold it: bbolt makes room for as many as it says, which may be more memory than
// there is.
func freelistFits(f io.ReaderAt, list, pages, page uint64) bool {
	var head [pageHeader + 8]byte
	if list < 2 || list >= pages {
		return false
	}
	if _, err := f.ReadAt(head[:], int64(list*page)); err != nil {
		return false
	}
	count, overflow := uint64(binary.NativeEndian.Uint16(head[countAt:])), uint64(binary.NativeEndian.Uint32(head[overflowAt:]))
	if count == countIsFirst {
		count = binary.NativeEndian.Uint64(head[pageHeader:])
	}
	return overflow < pages-list && binary.NativeEndian.Uint64(head[:]) == list && count < (overflow+1)*page/8
}

func foreign(path, why string) error {
	return auth.ErrBadStore(nil, "%s is not an auth store: %s; it is left as it is; name another file with auth.store (--auth-store), or move this one away", path, why)
}

func damaged(path string, cause error) error {
	return auth.ErrBadStore(cause, "the auth store %s is damaged (%v); it is left as it is; put a copy from a backup in its place, or move it away and add the users anew", path, cause)
}

// lockFile opens and locks the file for one operation.
func lockFile(ctx context.Context, path string, write bool) (*os.File, *snapshot, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	for {
		f, err := openChecked(path, flag)
		if err != nil {
			return nil, nil, err
		}
		err = flock(ctx, f, write)
		if err != nil {
			_ = f.Close()
			if ctx.Err() != nil {
				return nil, nil, lockLost(ctx, path)
			}
			return nil, nil, auth.ErrStoreUnavailable(err, "the auth store %s cannot be locked (%v); a local file system can", path, err)
		}
		s, err := takeSnapshot(f)
		if err == nil {
			var now fs.FileInfo
			if now, err = os.Stat(path); err == nil && !os.SameFile(s.info, now) {
				_ = f.Close() // replaced while this waited for the lock
				continue
			}
		}
		if err != nil {
			_ = f.Close()
			return nil, nil, unreachable(path, err)
		}
		if err := s.check(f, path); err != nil {
			_ = f.Close()
			return nil, nil, err
		}
		return f, s, nil
	}
}

// errLocked is the cause of a context that ends for want of the lock.
//
//nolint:gochecknoglobals // an error to compare with
var errLocked = errors.New("the lock was not free in time")

func lockLost(ctx context.Context, path string) error {
	if errors.Is(context.Cause(ctx), errLocked) {
		return auth.ErrStoreUnavailable(errLocked, "the auth store %s stayed locked by other processes; find the one that holds it (fuser %s), or try again", path, path)
	}
	return conduit.FromContext(ctx, conduit.Refused)
}

// openChecked opens a file that may be a store.
func openChecked(path string, flag int) (*os.File, error) {
	info, err := os.Stat(path) // first, since opening a pipe would wait for its other end
	if err != nil {
		return nil, unreachable(path, err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, foreign(path, "it is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, auth.ErrBadStore(nil, "the auth store %s may be read or written by others (mode %04o); run: chmod 600 %s", path, info.Mode().Perm(), path)
	case info.Size() == 0:
		return nil, foreign(path, "it is empty")
	}
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, unreachable(path, err)
	}
	return f, nil
}

// unreachable is the error of a file that the system does not give.
func unreachable(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return auth.ErrStoreUnavailable(err, "the auth store %s is not there; put it back, or restart the instance to begin with an empty one", path)
	case errors.Is(err, fs.ErrPermission):
		return auth.ErrStoreUnavailable(err, "the auth store %s may not be opened by uid %d, as which this runs; run as its owner, who is the user that the instance runs as, and if that is so: chmod 600 %s, and chmod u+rx what it is in", path, os.Geteuid(), path)
	}
	return auth.ErrStoreUnavailable(err, "the auth store %s cannot be used: %v", path, err)
}

// known keeps bbolt from mapping a damaged file again and again: what panicked
// once leaves its mapping behind.
type known struct {
	s   *snapshot
	err error
}

// withDB opens the file, calls fn, and closes the file. bbolt trusts what it
// reads and panics over it, or faults in its mapping; both are errors here.
func withDB(ctx context.Context, path string, write bool, bad *known, fn func(*bbolt.DB, *snapshot) error) (err error) {
	file, s, err := lockFile(ctx, path, write)
	if err != nil {
		return err
	}
	defer func() { // where bbolt does not come to it
		_ = funlock(file) // closing is not enough: a mapping that is left behind keeps the lock
		_ = file.Close()
	}()
	if bad.s.same(s) {
		return bad.err
	}
	defer func() {
		if r := recover(); r != nil {
			err = damaged(path, fmt.Errorf("%v", r))
			*bad = known{s, err}
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, err := bbolt.Open(path, fileMode, &bbolt.Options{
		ReadOnly: !write, NoStatistics: true, Timeout: time.Second,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return file, nil },
	})
	if err != nil {
		if errors.Is(err, berrors.ErrInvalid) || errors.Is(err, berrors.ErrChecksum) || errors.Is(err, berrors.ErrVersionMismatch) {
			return damaged(path, err)
		}
		return unreachable(path, err)
	}
	// Not deferred: after a panic bbolt may hold the locks that Close waits for.
	err = fn(db, s)
	if cerr := db.Close(); err == nil && cerr != nil {
		err = unreachable(path, cerr)
	}
	return err
}

// create makes an empty store, unless there is a file already. It appears whole:
// whoever else starts at the same time sees no file, or this one.
func create(path string, id auth.StoreID) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	dir := filepath.Dir(path)
	temporary := filepath.Join(dir, "."+filepath.Base(path)+"."+rand.Text()[:8])
	defer func() { _ = os.Remove(temporary) }()
	db, err := bbolt.Open(temporary, fileMode, &bbolt.Options{Timeout: time.Second})
	if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error { return initialise(tx, id) })
		if cerr := db.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = os.Link(temporary, path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return auth.ErrStoreUnavailable(err, "the auth store %s cannot be made: %v", path, err)
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // so that the name lasts as well; not every file system can
		_ = d.Close()
	}
	return nil
}
