package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Contents that are written piece by piece need not fit into memory. Once there is enough
// of them, their whole chunks go into the file, under a number that no record has, and the
// number is noted in the bucket "staged": so the commit has little left to write, and is as
// atomic as any other, since it is the record that makes chunks contents. What is noted
// and belongs to no open transaction is swept: after a rollback by the store itself, after
// a crash by whoever opens the file next.
//
// Only new contents are put there: chunks of what is committed are not to be written
// before their commit.

const (
	// stageSize is how many bytes of contents are kept in memory before they go into the
	// file.
	stageSize = 4 << 20
	// sweepBatch is how many chunks one commit takes away of what is swept, so that others
	// need not wait for long.
	sweepBatch = 256

	firstSweepPause   = time.Second // after a disk that was full
	longestSweepPause = time.Minute
)

// stageAt is how many bytes of contents a transaction keeps in memory.
func (o Options) stageAt() int64 {
	if o.stage > 0 {
		return o.stage
	}
	return max(min(stageSize, o.MaxWrites/4), chunkSize)
}

// stagedPart is what goes into the file before its transaction does.
type stagedPart struct {
	id     uint64
	first  bool // it has no id yet
	chunks map[uint32][]byte
}

// stageable reports whether contents may go into the file before their commit.
func (t *ReadTx) stageable(c *contents) bool {
	return c.below.kind != contentsChunked && !t.edits.wiped
}

// stage puts what there is of contents into the file, if it is enough. t.mu is held. After
// an error all is as it was.
func (t *ReadTx) stage(c *contents) error {
	if int64(len(c.chunks))*chunkSize < t.s.opts.stageAt() || !t.stageable(c) {
		return nil
	}
	part := &stagedPart{id: c.staged, first: c.staged == 0, chunks: map[uint32][]byte{}}
	var n int64
	for i, data := range c.chunks {
		if len(data) == chunkSize {
			part.chunks[i] = data
			n += chunkSize
		}
	}
	if n == 0 {
		return nil
	}
	if err := t.s.commits.commit(t.s.sweeper.ctx, &edits{part: part, bytes: n}); err != nil { // until the store is closed, which waits for us
		return err
	}
	if part.first {
		c.staged = part.id
		t.edits.staged = append(t.edits.staged, part.id)
	}
	// A newer snapshot has what was staged. Of the scope it shows what the old one did, since
	// the locks keep it so; and it keeps no pages from being used again.
	old := t.snap
	if err := t.openSnapshot(); err != nil {
		t.snap = old
		return err
	}
	_ = old.Rollback() // of a snapshot, it only fails if it is closed
	for i := range part.chunks {
		delete(c.chunks, i)
	}
	t.edits.bytes -= n
	t.timer.Reset(t.s.opts.MaxAge) // it has not stood still
	return nil
}

// writePart writes what is staged, and notes that it is.
func (a applier) writePart() (err error) {
	p := a.e.part
	if p.first { // also when it is tried again: then the number was given back
		if p.id, err = a.tx.Bucket([]byte(bucketChunks)).NextSequence(); err != nil {
			return err
		}
		if err := a.put(bucketStaged, stagedKey(p.id), nil); err != nil {
			return err
		}
	}
	return a.putChunks(p.id, p.chunks)
}

func (a applier) putChunks(id uint64, chunks map[uint32][]byte) error {
	for _, i := range slices.Sorted(maps.Keys(chunks)) {
		if err := a.put(bucketChunks, chunkKey(id, i), chunks[i]); err != nil {
			return err
		}
	}
	return nil
}

func stagedKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// adopt makes what was staged contents of a resource.
func (a applier) adopt(id uint64) error {
	if a.tx.Bucket([]byte(bucketStaged)).Get(stagedKey(id)) == nil {
		return fail(KindFailed, "", "contents %d were not kept for their commit; this is a fault of the store", id)
	}
	return a.remove(bucketStaged, stagedKey(id))
}

// leftover is what was staged and is nobody's contents, once the edits are committed.
func (e *edits) leftover() []uint64 {
	return slices.DeleteFunc(slices.Clone(e.staged), func(id uint64) bool {
		for _, r := range e.resources {
			if r.exists && r.contents != nil && r.contents.staged == id {
				return true
			}
		}
		return false
	})
}

// sweepEdit takes away a part of what was staged.
type sweepEdit struct {
	id   uint64
	done bool // nothing is left of it
}

func (a applier) sweepStaged() error {
	s := a.e.sweep
	s.done = true
	key := stagedKey(s.id)
	if a.tx.Bucket([]byte(bucketStaged)).Get(key) == nil { // all was removed meanwhile
		return nil
	}
	var found [][]byte // first find them all: bbolt's cursors pass over keys after a removal
	c := a.tx.Bucket([]byte(bucketChunks)).Cursor()
	for k, _ := c.Seek(key); bytes.HasPrefix(k, key); k, _ = c.Next() {
		if len(found) == sweepBatch {
			s.done = false
			break
		}
		found = append(found, bytes.Clone(k))
	}
	for _, k := range found {
		if err := a.remove(bucketChunks, k); err != nil {
			return err
		}
	}
	if !s.done {
		return nil
	}
	return a.remove(bucketStaged, key)
}

// sweeper takes away, beside all else, what was staged and is nobody's.
type sweeper struct {
	s *Store

	mu     sync.Mutex
	ids    []uint64
	over   bool
	ctx    context.Context //nolint:containedctx // from the opening of the store to its end
	cancel context.CancelFunc
	run    chan struct{} // closed when what is under way has ended; nil = nothing is
	pause  time.Duration
	retry  *time.Timer
}

func (w *sweeper) open(s *Store) {
	w.s = s
	w.ctx, w.cancel = context.WithCancel(context.Background())
}

// add has what was staged be swept.
func (w *sweeper) add(ids []uint64) {
	if len(ids) == 0 {
		return
	}
	w.mu.Lock()
	w.ids = append(w.ids, ids...)
	w.mu.Unlock()
	w.start()
}

func (w *sweeper) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.run != nil || len(w.ids) == 0 {
		return
	}
	w.run = make(chan struct{})
	go w.sweep()
}

// sweep works until nothing is left or it fails. On a full disk it tries again later; what
// else fails keeps the store from being written, so that who opens it next will do it.
func (w *sweeper) sweep() {
	var err error
	for {
		w.mu.Lock()
		if err != nil || len(w.ids) == 0 || w.over {
			close(w.run)
			w.run = nil
			if err == nil {
				w.pause = 0
			} else if KindOf(err) == KindFull && !w.over {
				w.pause = min(max(2*w.pause, firstSweepPause), longestSweepPause)
				w.retry = time.AfterFunc(w.pause, w.start)
			}
			w.mu.Unlock()
			return
		}
		e := &sweepEdit{id: w.ids[0]}
		w.mu.Unlock()
		if err = w.s.commits.commit(w.ctx, &edits{sweep: e}); err == nil && e.done {
			w.mu.Lock()
			w.ids = slices.Delete(w.ids, 0, 1)
			w.mu.Unlock()
		}
	}
}

// wait returns when nothing is being swept, or ctx ends.
func (w *sweeper) wait(ctx context.Context) error {
	w.mu.Lock()
	run := w.run
	w.mu.Unlock()
	if run == nil {
		return nil
	}
	select {
	case <-run:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close ends it; what is left is swept when the file is opened next.
func (w *sweeper) close() {
	w.mu.Lock()
	w.over = true
	run := w.run
	if w.retry != nil {
		w.retry.Stop()
	}
	w.mu.Unlock()
	w.cancel()
	if run != nil {
		<-run
	}
}

// sweepAll has all be swept that the file says was staged: nobody has it open, so it is of
// transactions that ended with their process.
func (s *Store) sweepAll() error {
	var ids []uint64
	err := s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte(bucketStaged)).Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if _, err := unseal(bucketStaged, k, v); err != nil {
				return err
			}
			if len(k) != 8 {
				return corrupt("the staged contents %x make no sense", k)
			}
			ids = append(ids, binary.BigEndian.Uint64(k))
		}
		return nil
	})
	if err == nil && len(ids) > 0 {
		s.opts.Logger.Info("contents whose transaction ended with its process are removed", "file", s.opts.File, "contents", len(ids))
	}
	s.sweeper.add(ids)
	return err
}
