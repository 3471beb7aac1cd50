package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// Store is an open file. All methods are safe for concurrent use.
type Store struct {
	opts    Options
	node    address.NodeID
	context string // of the paths that it gives out
	format  uint32 // of the file
	db      *bolt.DB
	locks   lockTable
	commits committer
	feed    feed
	tasks   deliverer
	keys    keyCount
	sweeper sweeper

	expired, refused atomic.Uint64

	mu     sync.Mutex
	closed bool
	failed *Error // why nothing is committed any more
	open   map[*ReadTx]struct{}
	lastID uint64
	places int            // transactions that are open or wait for their locks
	owners map[string]int // of these, by owner
	idle   chan struct{}  // closed when the store is closed and there are none
}

// Open opens the file, and makes it if it does not exist. It trusts nothing: the file
// must be free, whole, of a format that it knows, and of this node.
//
// The error is an [*Error] of kind KindInUse, KindCorrupt, KindFormat, KindForeign,
// KindReadOnly, KindFull, KindFailed or KindArgument, with the file's name in
// Subject. The file is not changed then.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if opts.File == "" {
		return nil, fail(KindArgument, "", "Options.File is empty")
	}
	if opts.Node.IsZero() {
		return nil, fail(KindArgument, opts.File, "Options.Node is empty: a store belongs to one node")
	}
	s := &Store{opts: opts, node: opts.Node, context: opts.Node.String(), open: map[*ReadTx]struct{}{}, owners: map[string]int{}, idle: make(chan struct{})}
	s.commits.s, s.tasks.s = s, s
	s.sweeper.open(s)
	s.tasks.claims, s.tasks.watches = map[uuid]map[uuid]*delivery{}, map[*taskWatch]struct{}{}
	if err := create(ctx, opts); err != nil {
		return nil, storageError(opts.File, err)
	}
	db, err := openBolt(ctx, opts, opts.File)
	if err != nil {
		return nil, storageError(opts.File, err)
	}
	s.db = db
	// What a killed compaction left; the lock says that none is under way.
	if err := os.Remove(compactName(opts.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = db.Close()
		return nil, storageError(opts.File, err)
	}
	for _, step := range []func() error{s.checkHead, s.upgrade, s.countKeys} {
		if err := s.guard(step); err != nil {
			_ = db.Close()
			return nil, storageError(opts.File, err)
		}
	}
	s.feed.open(uint64(s.newest()), opts.History)
	if err := s.guard(s.sweepAll); err != nil {
		s.sweeper.close()
		_ = db.Close()
		return nil, storageError(opts.File, err)
	}
	return s, nil
}

// NodeOf says whose store a file is, and changes nothing. Of the options File,
// LockTimeout and CheckLimit count. Errors are those of [Open], and fs.ErrNotExist if
// there is no file.
func NodeOf(ctx context.Context, opts Options) (address.NodeID, error) {
	opts = opts.withDefaults()
	info, err := os.Stat(opts.File)
	switch {
	case err != nil:
		return address.NodeID{}, err
	case !info.Mode().IsRegular():
		return address.NodeID{}, fail(KindFormat, opts.File, "it is no regular file")
	case info.Size() == 0: // bbolt would begin a file in it
		return address.NodeID{}, fail(KindFormat, opts.File, "it is empty")
	}
	db, err := openBolt(ctx, opts, opts.File)
	if err != nil {
		return address.NodeID{}, storageError(opts.File, err)
	}
	s := &Store{opts: opts, db: db}
	s.feed.open(0, 0) // which a damaged head ends
	err = s.guard(s.checkHead)
	return s.node, errors.Join(storageError(opts.File, err), db.Close())
}

// create makes an empty store under another name and gives it its own once it is
// whole, so that a crash leaves no file that looks damaged.
func create(ctx context.Context, opts Options) (err error) {
	switch info, err := os.Stat(opts.File); {
	case err == nil && (info.Size() > 0 || !info.Mode().IsRegular()):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil: // made by someone who wanted to set its rights; nothing is in it
		return initialise(ctx, opts, opts.File)
	}
	dir := filepath.Dir(opts.File)
	temp, err := os.CreateTemp(dir, "."+filepath.Base(opts.File)+".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	if err := temp.Close(); err != nil {
		return err
	}
	if err := initialise(ctx, opts, temp.Name()); err != nil {
		return err
	}
	// Unlike a rename, a link does not replace what another process made meanwhile.
	if err := os.Link(temp.Name(), opts.File); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

func initialise(ctx context.Context, opts Options, file string) (err error) {
	db, err := openBolt(ctx, opts, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket([]byte(bucketMeta))
		if err != nil {
			return err
		}
		if err := putMeta(meta, "format", binary.BigEndian.AppendUint32(nil, formatVersion)); err != nil {
			return err
		}
		if err := putMeta(meta, "node", opts.Node.Bytes()); err != nil {
			return err
		}
		return createBuckets(tx, allBuckets(formatVersion))
	})
}

func putMeta(meta *bolt.Bucket, key string, payload []byte) error {
	return meta.Put([]byte(key), seal(bucketMeta, []byte(key), payload))
}

func createBuckets(tx *bolt.Tx, names []string) error {
	for _, name := range names {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	return nil
}

// openBolt locks and checks the file and hands it to bbolt.
func openBolt(ctx context.Context, opts Options, name string) (db *bolt.DB, err error) {
	var file *os.File
	defer func() {
		// bbolt closes what it opened when it fails, but not when it panics.
		if err != nil && file != nil {
			_ = file.Close()
		}
	}()
	open := func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := openLocked(ctx, opts, name, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		file = f
		if empty, err := isNew(f); err != nil || empty {
			return f, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return f, checkFile(f, info.Size() <= opts.CheckLimit)
	}
	reserve := opts.MaxSize + 2*allocSize
	err = guard(func() (err error) {
		db, err = bolt.Open(name, 0o600, &bolt.Options{
			Timeout:         opts.LockTimeout,
			FreelistType:    bolt.FreelistMapType,
			InitialMmapSize: int(reserve),
			MaxSize:         int(opts.MaxSize),
			OpenFile:        open,
			NoSync:          opts.noSync,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	db.AllocSize = allocSize
	return db, nil
}

// openLocked opens a file and locks it. While it waits for the lock a compaction may put
// another file into its place: then it is that one which is wanted.
func openLocked(ctx context.Context, opts Options, name string, flag int, mode os.FileMode) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, flag, mode)
		if err != nil {
			return nil, err
		}
		mine, err := lockNamed(ctx, f, opts.LockTimeout)
		if mine {
			return f, nil
		}
		_ = f.Close() // nothing was written, and the error that counts is the lock's
		if err != nil {
			return nil, err
		}
	}
}

// lockNamed locks a file and reports whether it still has its name.
func lockNamed(ctx context.Context, f *os.File, timeout time.Duration) (bool, error) {
	if err := lockFile(ctx, f, timeout); err != nil {
		return false, err
	}
	locked, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(f.Name())
	if err != nil {
		return false, err
	}
	return os.SameFile(locked, named), nil
}

// checkHead reads whose store it is.
func (s *Store) checkHead() error {
	return s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		if meta == nil {
			return fail(KindFormat, "", "it is a bbolt file, but not of a store")
		}
		get := func(key string) ([]byte, error) {
			value := meta.Get([]byte(key))
			if value == nil {
				return nil, corrupt("its head has no %q", key)
			}
			return unseal(bucketMeta, []byte(key), value)
		}
		format, err := get("format")
		if err != nil {
			return err
		}
		if len(format) == 4 {
			s.format = binary.BigEndian.Uint32(format)
		}
		if s.format < 1 || s.format > formatVersion {
			return fail(KindFormat, "", "its format is %x, this program knows 1 to %d; use a program that knows it", format, formatVersion)
		}
		raw, err := get("node")
		if err != nil {
			return err
		}
		node, err := address.NodeIDFromBytes(raw)
		if err != nil {
			return &Error{Kind: KindCorrupt, Why: "its head names no node", Err: err}
		}
		if s.node.IsZero() { // whoever's it is
			s.node = node
		}
		if node != s.node {
			return fail(KindForeign, "", "it is the store of node %s, not of %s; store.Adopt gives it to another node", node, s.node)
		}
		for _, name := range allBuckets(s.format) {
			if tx.Bucket([]byte(name)) == nil {
				return corrupt("bucket %s is missing", name)
			}
		}
		return nil
	})
}

// upgrade brings a file of an older format to that of this program, in one commit.
func (s *Store) upgrade() error {
	if s.format == formatVersion {
		return nil
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		if err := createBuckets(tx, allBuckets(formatVersion)[len(allBuckets(s.format)):]); err != nil {
			return err
		}
		return putMeta(tx.Bucket([]byte(bucketMeta)), "format", binary.BigEndian.AppendUint32(nil, formatVersion))
	})
	if err == nil {
		s.opts.Logger.Info("the store was brought to another format", "file", s.opts.File, "from", s.format, "to", formatVersion)
		s.format = formatVersion
	}
	return err
}

// guard runs what reads the mapped file. A page that is damaged in a way that no check
// has seen makes bbolt panic, or the system deny the access: both become an error.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Kind: KindCorrupt, Why: "reading it failed", Err: fmt.Errorf("%v\n%s", r, debug.Stack())}
		}
	}()
	return fn()
}

// guard also names the file, and keeps a damaged one from being written.
func (s *Store) guard(fn func() error) error {
	err := guard(fn)
	if e, ok := errors.AsType[*Error](err); ok && e.Kind == KindCorrupt {
		named := *e
		if named.Subject == "" {
			named.Subject = s.opts.File
		}
		s.fail(&named)
		return &named
	}
	return err
}

// fail makes the store refuse all commits from now on.
func (s *Store) fail(e *Error) {
	s.mu.Lock()
	first := s.failed == nil
	if first {
		s.failed = e
	}
	s.mu.Unlock()
	if first {
		s.feed.end(&Error{Kind: KindFailed, Subject: s.opts.File, Why: "the store takes no more writes, so nothing more will happen", Err: e})
		s.opts.Logger.Error("the store takes no more commits", "file", s.opts.File, "error", e)
	}
}

// Node returns the node whose store it is.
func (s *Store) Node() address.NodeID { return s.node }

// File returns the name of the file.
func (s *Store) File() string { return s.opts.File }

// Close rolls back what is open, waits for commits that are under way, and closes the
// file. Further calls do nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.idle
		return nil
	}
	s.closed = true
	open := make([]*ReadTx, 0, len(s.open))
	for t := range s.open {
		open = append(open, t)
	}
	if s.places == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	s.feed.end(fail(KindState, "", "the store is closed"))
	for _, t := range open {
		t.end(fail(KindState, "", "the store is closed"))
	}
	<-s.idle
	s.sweeper.close()
	return storageError(s.opts.File, s.closeBolt())
}

// closeBolt closes the file. After a panic inside bbolt its locks may be held for
// ever; then the file stays locked until the process ends.
func (s *Store) closeBolt() error {
	done := make(chan error, 1)
	go func() { done <- s.db.Close() }()
	s.mu.Lock()
	broken := s.failed != nil
	s.mu.Unlock()
	if !broken {
		return <-done
	}
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return errors.New("the file stays locked until this process ends")
	}
}

// Adopt makes the store in a file that of another node, offline: no process may have
// it open. The ids of all its resources change with it. Tasks and paths stay.
func Adopt(ctx context.Context, file string, from, to address.NodeID) error {
	if to.IsZero() {
		return fail(KindArgument, file, "the new node is empty")
	}
	s, err := Open(ctx, Options{File: file, Node: from})
	if err != nil {
		return err
	}
	err = s.guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			// The answers that are kept under keys hold ids of the old node.
			for _, name := range onceBuckets() {
				if err := tx.DeleteBucket([]byte(name)); err != nil {
					return err
				}
			}
			if err := createBuckets(tx, onceBuckets()); err != nil {
				return err
			}
			return putMeta(tx.Bucket([]byte(bucketMeta)), "node", to.Bytes())
		})
	})
	return errors.Join(storageError(file, err), s.Close())
}
