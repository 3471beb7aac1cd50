package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

func hexUUID(u uuid) string { return hex.EncodeToString(u[:]) }

// maxFaults is how many faults Check reports.
const maxFaults = 20

// Check reads every record of a snapshot, compares it with its checksum, and the
// buckets with each other. Writers go on meanwhile. It returns the faults that it
// found, at most 20, joined; each is an [*Error] of KindCorrupt. It is limited by
// Options.MaxAge.
func (s *Store) Check(ctx context.Context) error {
	t, err := s.Read(ctx, Scope{Paths: []address.Path{{}}, Label: "check"})
	if err != nil {
		return err
	}
	defer t.Close()
	c := &checker{s: s, t: t}
	for _, pass := range []func(*bolt.Tx, []byte, []byte) error{c.resource, c.path, c.reverse, c.alias, c.chunk, c.task, c.due, c.key, c.age, c.staged} {
		if err := c.run(ctx, allBuckets(formatVersion)[c.bucket], pass); err != nil {
			return errors.Join(append(c.faults, err)...)
		}
		c.bucket++
	}
	return errors.Join(c.faults...)
}

type checker struct {
	s      *Store
	t      *ReadTx
	bucket int
	faults []error
	owner  map[uint64]record // of chunks
}

var errEnough = errors.New("there are more faults; these are the first")

// run hands every record of a bucket to pass, some at a time, so that the transaction
// can expire in between.
func (c *checker) run(ctx context.Context, name string, pass func(tx *bolt.Tx, k, v []byte) error) error {
	var last []byte
	for more := true; more; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := c.t.do(func() error {
			cur := c.t.snap.Bucket([]byte(name)).Cursor()
			k, v := cur.Seek(last)
			for range 1024 {
				if k == nil {
					more = false
					return nil
				}
				payload, err := unseal(name, k, v)
				if err == nil {
					err = pass(c.t.snap, k, payload)
				}
				if err != nil {
					if c.faults = append(c.faults, storageError(c.s.opts.File, err)); len(c.faults) >= maxFaults {
						return errEnough
					}
				}
				last = append(bytes.Clone(k), 0)
				k, v = cur.Next()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) resource(tx *bolt.Tx, k, v []byte) error {
	if len(k) != len(uuid{}) {
		return corrupt("resource %x is no id", k)
	}
	r, err := decodeRecord(k, v)
	if err != nil {
		return err
	}
	paths, err := base{tx}.paths(uuid(k))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return corrupt("resource %x has no path", k)
	}
	for _, key := range paths {
		if alias := tx.Bucket([]byte(bucketAliases)).Get([]byte(key)); (alias != nil) != (len(paths) > 1) {
			return corrupt("resource %x has %d paths, and %q is wrongly marked", k, len(paths), key)
		}
	}
	if r.kind != contentsChunked {
		return nil
	}
	if c.owner == nil {
		c.owner = map[uint64]record{}
	}
	if _, twice := c.owner[r.id]; twice {
		return corrupt("resource %x shares its contents %d", k, r.id)
	}
	c.owner[r.id] = r
	for i := range r.chunks() {
		if tx.Bucket([]byte(bucketChunks)).Get(chunkKey(r.id, i)) == nil {
			return corrupt("resource %x lacks chunk %d", k, i)
		}
	}
	return nil
}

func (c *checker) path(tx *bolt.Tx, k, v []byte) error {
	if _, err := keyPath("", string(k)); err != nil {
		return err
	}
	if len(v) != len(uuid{}) {
		return corrupt("path %q leads to no id", k)
	}
	if tx.Bucket([]byte(bucketResources)).Get(v) == nil {
		return corrupt("path %q leads to resource %x, which does not exist", k, v)
	}
	if tx.Bucket([]byte(bucketReverse)).Get(joinKey(v, k)) == nil {
		return corrupt("resource %x does not know its path %q", v, k)
	}
	return nil
}

func (c *checker) reverse(tx *bolt.Tx, k, _ []byte) error {
	n := len(uuid{})
	if len(k) <= n {
		return corrupt("the path of a resource has the key %x", k)
	}
	u, ok, err := base{tx}.lookup(string(k[n:]))
	if err == nil && (!ok || u != uuid(k[:n])) {
		err = corrupt("resource %x says that it is at %q, which is not so", k[:n], k[n:])
	}
	return err
}

func (c *checker) alias(tx *bolt.Tx, k, v []byte) error {
	u, ok, err := base{tx}.lookup(string(k))
	if err == nil && (!ok || !bytes.Equal(v, u[:])) {
		err = corrupt("the alias %q is none", k)
	}
	return err
}

func (c *checker) chunk(tx *bolt.Tx, k, v []byte) error {
	if len(k) != 12 {
		return corrupt("a chunk has the key %x", k)
	}
	if tx.Bucket([]byte(bucketStaged)).Get(k[:8]) != nil { // of a transaction that is open, or was
		if len(v) != chunkSize {
			return corrupt("chunk %x, which is staged, has %d bytes, not %d", k, len(v), chunkSize)
		}
		return nil
	}
	r, ok := c.owner[binary.BigEndian.Uint64(k)]
	i := binary.BigEndian.Uint32(k[8:])
	if !ok || i >= r.chunks() {
		return corrupt("chunk %x belongs to no contents", k)
	}
	if want := min(r.size-int64(i)*chunkSize, chunkSize); int64(len(v)) != want {
		return corrupt("chunk %x has %d bytes, not %d", k, len(v), want)
	}
	return nil
}

func (c *checker) task(tx *bolt.Tx, k, v []byte) error {
	n := len(uuid{})
	if len(k) != 2*n || len(v) != 8 {
		return corrupt("the task with key %x makes no sense", k)
	}
	if tx.Bucket([]byte(bucketResources)).Get(k[:n]) == nil {
		return corrupt("task %x belongs to no resource", k)
	}
	if tx.Bucket([]byte(bucketDue)).Get(dueKey(int64(binary.BigEndian.Uint64(v)), uuid(k[:n]), uuid(k[n:]))) == nil {
		return corrupt("task %x is not found by its time", k)
	}
	return nil
}

func (c *checker) due(tx *bolt.Tx, k, _ []byte) error {
	if len(k) != 8+2*len(uuid{}) {
		return corrupt("the due task with key %x makes no sense", k)
	}
	payload, err := base{tx}.get(bucketTasks, k[8:])
	if err == nil && (len(payload) != 8 || binary.BigEndian.Uint64(payload)^1<<63 != binary.BigEndian.Uint64(k)) {
		err = corrupt("the time of task %x is another one", k[8:])
	}
	return err
}

func (c *checker) key(tx *bolt.Tx, k, v []byte) error {
	if len(k) != keySize || len(v) < keyHead {
		return corrupt("the key %x of what was done once makes no sense", k)
	}
	if tx.Bucket([]byte(bucketAges)).Get(joinKey(v[:8], k)) == nil {
		return corrupt("the key %x of what was done once is not found by its age", k)
	}
	return nil
}

func (c *checker) age(tx *bolt.Tx, k, _ []byte) error {
	if len(k) != 8+keySize {
		return corrupt("the age %x of a key makes no sense", k)
	}
	payload, err := base{tx}.get(bucketKeys, k[8:])
	if err == nil && (len(payload) < keyHead || !bytes.Equal(payload[:8], k[:8])) {
		err = corrupt("the age of key %x is another one", k[8:])
	}
	return err
}

func (c *checker) staged(_ *bolt.Tx, k, _ []byte) error {
	if len(k) != 8 {
		return corrupt("the staged contents %x make no sense", k)
	}
	if _, ok := c.owner[binary.BigEndian.Uint64(k)]; ok {
		return corrupt("the staged contents %x are those of a resource", k)
	}
	return nil
}

// Backup writes the file as it is at one moment to w, while writing goes on, and
// returns how many bytes that were. What comes out is a store that Open takes.
// Options.MaxAge does not bound it: whoever reads slowly keeps old pages from being
// used again, and is named in Stats. The error is w's, or an [*Error], or the cause of
// ctx.
func (s *Store) Backup(ctx context.Context, w io.Writer) (n int64, err error) {
	t, err := s.Read(ctx, Scope{Label: "backup"})
	if err != nil {
		return 0, err
	}
	defer t.Close()
	t.timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return 0, t.ended
	}
	err = s.guard(func() error {
		n, err = t.snap.WriteTo(contextWriter{ctx, w})
		return err
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // bbolt has made text of it
	}
	return n, err
}

// contextWriter ends a long copy.
type contextWriter struct {
	ctx context.Context //nolint:containedctx // of the one call that it is made for
	w   io.Writer
}

func (c contextWriter) Write(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.w.Write(p)
}

// BackupFile is Backup into a new file, which is complete on the disk when it returns;
// after an error there is none. It refuses a file that exists, with fs.ErrExist.
func (s *Store) BackupFile(ctx context.Context, file string) (n int64, err error) {
	err = newFile(file, func(f *os.File) error {
		n, err = s.Backup(ctx, f)
		return err
	})
	return n, err
}

// Restore makes the store in a new file of a backup, and checks it. The file must not
// exist: what is there, and may be in use, is never overwritten. Errors: fs.ErrExist,
// and those of [Open]; after each there is no file.
func Restore(ctx context.Context, backup io.Reader, opts Options) error {
	file := opts.File
	return newFile(file, func(f *os.File) error {
		if _, err := io.Copy(contextWriter{ctx, f}, backup); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if info, err := f.Stat(); err != nil || info.Size() == 0 {
			return errors.Join(err, fail(KindCorrupt, file, "the backup is empty"))
		}
		trial := opts
		trial.File = f.Name()
		s, err := Open(ctx, trial)
		if err != nil {
			return err
		}
		return errors.Join(s.Check(ctx), s.Close())
	})
}

// newFile makes a file that appears when it is complete, or not at all.
func newFile(file string, fill func(*os.File) error) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return &fs.PathError{Op: "create", Path: file, Err: fs.ErrExist}
	}
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, "."+filepath.Base(file)+".part-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return storageError(file, err)
	}
	if err := os.Link(f.Name(), file); err != nil {
		return err
	}
	return syncDir(dir)
}

// Stats is what the store is doing.
type Stats struct {
	FileBytes    int64 // what the file takes at most; it may have holes
	UsedBytes    int64 // up to the last page in use
	FreeBytes    int64 // of these, in pages that can be used again
	PendingBytes int64 // of these, in pages that a reader still needs, or did lately
	// Transactions are those that are open, the oldest first.
	Transactions []OpenTx
	Waiting      int    // transactions that wait for their locks
	Commits      uint64 // since it was opened: transactions that wrote something,
	Batches      uint64 // and the commits of the file that they took
	Failed       string // why nothing can be written any more, or ""
	MaxBytes     int64  // that the file may have
	Watches      int    // that are open, of paths and of tasks
	Expired      uint64 // transactions that were open for too long and were rolled back
	Refused      uint64 // transactions that had no place: MaxOpen, MaxOpenEach
}

// OpenTx is a transaction that is open.
type OpenTx struct {
	ID    uint64
	Kind  string // read, write or exclusive
	Label string
	Owner string
	Since time.Time
}

// Failed returns why nothing can be written any more, or nil.
func (s *Store) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		return nil
	}
	return s.failed
}

// Stats returns what the store is doing.
func (s *Store) Stats() Stats {
	var out Stats
	s.mu.Lock()
	for t := range s.open {
		out.Transactions = append(out.Transactions, OpenTx{t.id, t.mode.String(), t.label, t.owner, t.since})
	}
	out.Waiting = s.places - len(s.open)
	if s.failed != nil {
		out.Failed = s.failed.Error()
	}
	closed := s.closed
	s.mu.Unlock()
	slices.SortFunc(out.Transactions, func(a, b OpenTx) int { return int(a.ID) - int(b.ID) })
	s.feed.mu.Lock()
	out.Watches = s.feed.watches
	s.feed.mu.Unlock()
	out.MaxBytes, out.Expired, out.Refused = s.opts.MaxSize, s.expired.Load(), s.refused.Load()
	out.Commits, out.Batches = s.commits.committed.Load(), s.commits.batches.Load()
	if info, err := os.Stat(s.opts.File); err == nil {
		out.FileBytes = info.Size()
	}
	if closed {
		return out
	}
	_ = guard(func() error {
		page := int64(s.db.Info().PageSize)
		stats := s.db.Stats()
		out.FreeBytes, out.PendingBytes = int64(stats.FreePageN)*page, int64(stats.PendingPageN)*page
		return s.db.View(func(tx *bolt.Tx) error {
			out.UsedBytes = tx.Size()
			return nil
		})
	})
	return out
}

// String says what is open, on one line.
func (o OpenTx) String() string {
	of := ""
	if o.Owner != "" {
		of = fmt.Sprintf(" of %q", o.Owner)
	}
	return fmt.Sprintf("%s %d %q%s since %s", o.Kind, o.ID, o.Label, of, o.Since.Format(time.RFC3339))
}
