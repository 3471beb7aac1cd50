package store

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// committer makes one commit of bbolt, with its two flushes of the disk, of all the
// transactions that were ready when the one before it was done. There is no timer:
// who finds no commit under way begins one, who finds one joins the next.
type committer struct {
	s *Store

	mu    sync.Mutex
	busy  bool // somebody leads
	queue []*pending

	batches, committed atomic.Uint64
}

// pending is a transaction that waits for its commit.
type pending struct {
	edits *edits
	err   error
	// turn gets false when it is done, true when it is to lead the next batch.
	turn chan bool
}

// commit returns when the edits are on the disk, or why they are not.
func (c *committer) commit(ctx context.Context, e *edits) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p := &pending{edits: e, turn: make(chan bool, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, p)
	leads := !c.busy
	c.busy = true
	c.mu.Unlock()
	if !leads {
		select {
		case leads = <-p.turn:
		case <-ctx.Done():
			if c.leave(p) {
				return context.Cause(ctx)
			}
			leads = <-p.turn // too late: it is in a batch, or is to lead one
		}
	}
	if leads {
		c.lead()
	}
	return p.err
}

// leave takes a transaction out of the queue; false if it is not in it, or was told to
// lead.
func (c *committer) leave(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.queue, p)
	if i < 0 || len(p.turn) > 0 {
		return false
	}
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

// letJoin lets those run who are ready to, as long as that brings transactions to the
// queue: what a commit costs is shared by more, and where nobody is ready it takes no time.
func (c *committer) letJoin() {
	for before := 0; ; {
		c.mu.Lock()
		n := len(c.queue)
		c.mu.Unlock()
		if n == before || n >= maxBatch {
			return
		}
		before = n
		runtime.Gosched()
	}
}

// lead commits what waits, its leader's own in front, and hands on the lead.
func (c *committer) lead() {
	c.letJoin()
	c.mu.Lock()
	n, bytes := 0, int64(0)
	for _, p := range c.queue {
		bytes += p.edits.bytes
		if n > 0 && (n == maxBatch || bytes > maxBatchBytes) {
			break
		}
		n++
	}
	batch := slices.Clone(c.queue[:n])
	c.queue = slices.Delete(c.queue, 0, n)
	c.mu.Unlock()

	c.write(batch)

	// Those that are done run before who leads next, and may be back in time for it.
	for _, p := range batch[1:] {
		p.turn <- false
	}
	c.mu.Lock()
	if len(c.queue) > 0 {
		c.queue[0].turn <- true
	} else {
		c.busy = false
	}
	c.mu.Unlock()
}

// write commits a batch. One whose edits cannot be written does not take the others
// with it.
func (c *committer) write(batch []*pending) {
	err := c.try(batch)
	if err == nil {
		return
	}
	if e, ok := errors.AsType[*Error](err); len(batch) > 1 && (!ok || !e.Unknown && e.Kind != KindCorrupt) {
		for _, p := range batch {
			if err := c.try([]*pending{p}); err != nil {
				p.err = err
			}
		}
		return
	}
	for _, p := range batch {
		p.err = err
	}
}

// try writes a batch in one commit of bbolt. The error is that of the batch; what is
// wrong with one of it alone is in its err.
func (c *committer) try(batch []*pending) error {
	s := c.s
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		return &Error{Kind: KindFailed, Subject: s.opts.File, Why: "the store takes no more writes", Err: failed}
	}
	var tx *bolt.Tx
	var written []*edits
	id, keys, transactions := 0, s.keys.count, uint64(0)
	err := s.guard(func() (err error) {
		if tx, err = s.db.Begin(true); err != nil {
			return err
		}
		id = tx.ID()
		for _, p := range batch {
			a := applier{tx: tx, e: p.edits, keys: &keys, opts: &s.opts}
			if p.err = a.check(); p.err != nil {
				continue
			}
			if err := a.apply(); err != nil {
				return err
			}
			written = append(written, p.edits)
			if p.edits.part == nil && p.edits.sweep == nil {
				transactions++
			}
		}
		if len(written) == 0 {
			return tx.Rollback()
		}
		return tx.Commit()
	})
	if err == nil {
		if len(written) > 0 {
			c.batches.Add(1)
			c.committed.Add(transactions)
			s.committed(uint64(id), written)
			s.keys.count = keys
		}
		return nil
	}
	if tx != nil {
		_ = guard(tx.Rollback) // does nothing if bbolt has done it
	}
	err = storageError(s.opts.File, err)
	if s.newest() >= id && id > 0 {
		// The head of the file was written, and the error came with the flush behind it:
		// it may be on the disk or not, and what this process sees is no proof.
		e := &Error{
			Kind: KindFailed, Subject: s.opts.File, Unknown: true, Err: err,
			Why: "the disk failed while the last of the commit was written; open the store again to see what it has",
		}
		s.fail(e)
		return e
	}
	return err
}

// newest is the number of the newest commit that can be seen.
func (s *Store) newest() (id int) {
	_ = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			id = tx.ID()
			return nil
		})
	})
	return id
}

// applier writes the edits of one transaction into bbolt.
type applier struct {
	tx   *bolt.Tx
	e    *edits
	keys *int // that there are, see once.go
	opts *Options
}

// committed tells those who watch what has become durable. It is called by whoever
// leads a commit, so in the order of commits, and waits for nobody.
func (s *Store) committed(revision uint64, done []*edits) {
	changes, forgotten := changesOf(done)
	s.feed.append(revision, changes, forgotten)
	s.tasks.committed(done)
}

func (a applier) base() base {
	if a.e.wiped {
		return base{}
	}
	return base{a.tx}
}

// check compares what the transaction saw with what is there. Locks keep it so, but
// for the ids of new resources, which need not be declared.
func (a applier) check() error {
	b := a.base()
	for u, r := range a.e.resources {
		_, is, err := b.record(u)
		switch {
		case err != nil:
			return err
		case is && !r.was && r.exists:
			return fail(KindDuplicate, hexUUID(u), "another transaction has made a resource of this id meanwhile")
		case is != r.was && (r.was || r.exists):
			return fail(KindFailed, hexUUID(u), "the resource changed under the transaction's locks; this is a fault of the store")
		}
	}
	for key, u := range a.e.paths {
		if u == nil {
			continue
		}
		now, is, err := b.lookup(key)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		if r := a.e.resources[now]; r == nil || !slices.Contains(r.oldPaths, key) {
			return fail(KindFailed, key, "the path changed under the transaction's locks; this is a fault of the store")
		}
	}
	return nil
}

func (a applier) put(bucket string, key, payload []byte) error {
	return a.tx.Bucket([]byte(bucket)).Put(key, seal(bucket, key, payload))
}

func (a applier) remove(bucket string, key []byte) error {
	return a.tx.Bucket([]byte(bucket)).Delete(key)
}

// apply first takes away and then adds, since what one resource gives up another may
// get.
func (a applier) apply() error {
	switch {
	case a.e.part != nil:
		return a.writePart()
	case a.e.sweep != nil:
		return a.sweepStaged()
	case a.e.wiped:
		if err := a.wipe(); err != nil {
			return err
		}
	}
	order := sortedUUIDs(a.e.resources)
	for _, u := range order {
		if err := a.takeAway(u, a.e.resources[u]); err != nil {
			return err
		}
	}
	for _, u := range order {
		if err := a.add(u, a.e.resources[u]); err != nil {
			return err
		}
	}
	return a.writeKey()
}

// wipe removes all resources, and what was staged for some.
func (a applier) wipe() error {
	// No number of contents is given twice, so that nothing is taken for what it is not.
	last := a.tx.Bucket([]byte(bucketChunks)).Sequence()
	names := append(dataBuckets(), bucketStaged)
	for _, name := range names {
		if err := a.tx.DeleteBucket([]byte(name)); err != nil {
			return err
		}
	}
	if err := createBuckets(a.tx, names); err != nil {
		return err
	}
	return a.tx.Bucket([]byte(bucketChunks)).SetSequence(last)
}

func (a applier) takeAway(u uuid, r *resourceEdit) error {
	aliased := len(r.oldPaths) > 1
	for _, key := range r.oldPaths {
		_, stays := r.paths[key]
		if aliased && (!stays || len(r.paths) < 2) {
			if err := a.remove(bucketAliases, []byte(key)); err != nil {
				return err
			}
		}
		if stays {
			continue
		}
		if err := a.remove(bucketPaths, []byte(key)); err != nil {
			return err
		}
		if err := a.remove(bucketReverse, joinKey(u[:], []byte(key))); err != nil {
			return err
		}
	}
	if !r.was {
		return nil
	}
	if r.forget {
		if err := a.removeChunks(r.stored); err != nil {
			return err
		}
		entries, err := base{a.tx}.tasks(u)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := a.removeTask(u, e); err != nil {
				return err
			}
		}
	}
	if !r.exists {
		return a.remove(bucketResources, u[:])
	}
	return nil
}

func (a applier) add(u uuid, r *resourceEdit) error {
	if !r.exists {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(r.paths)) {
		old := slices.Contains(r.oldPaths, key)
		if !old {
			if err := a.put(bucketPaths, []byte(key), u[:]); err != nil {
				return err
			}
			if err := a.put(bucketReverse, joinKey(u[:], []byte(key)), nil); err != nil {
				return err
			}
		}
		if len(r.paths) > 1 && (!old || len(r.oldPaths) < 2) {
			if err := a.put(bucketAliases, []byte(key), u[:]); err != nil {
				return err
			}
		}
	}
	if r.contents != nil {
		if err := a.writeContents(u, r); err != nil {
			return err
		}
	}
	return a.writeTasks(u, r)
}

// writeContents writes the chunks that changed, and the record.
func (a applier) writeContents(u uuid, r *resourceEdit) error {
	c := r.contents
	rec := record{size: c.size}
	keeps := r.was && !r.forget && c.below.kind == contentsChunked // the chunks that are there
	if r.was && !r.forget && !keeps {
		if err := a.removeChunks(r.stored); err != nil {
			return err
		}
	}
	switch {
	case c.none:
	case c.staged != 0:
		rec.kind, rec.id = contentsChunked, c.staged
		if err := a.adopt(c.staged); err != nil {
			return err
		}
	case keeps:
		rec.kind, rec.id = contentsChunked, c.below.id
	case c.size <= inlineMax:
		rec.kind, rec.inline = contentsInline, c.below.inline
		if data, ok := c.chunks[0]; ok {
			rec.inline = data
		}
	default:
		id, err := a.tx.Bucket([]byte(bucketChunks)).NextSequence()
		if err != nil {
			return err
		}
		rec.kind, rec.id = contentsChunked, id
	}
	if rec.kind == contentsChunked {
		if err := a.putChunks(rec.id, c.chunks); err != nil {
			return err
		}
	}
	return a.put(bucketResources, u[:], rec.encode())
}

func (a applier) removeChunks(r record) error {
	for i := range r.chunks() {
		if err := a.remove(bucketChunks, chunkKey(r.id, i)); err != nil {
			return err
		}
	}
	return nil
}

func (a applier) removeTask(u uuid, e taskEntry) error {
	if err := a.remove(bucketTasks, joinKey(u[:], e.id[:])); err != nil {
		return err
	}
	return a.remove(bucketDue, dueKey(e.due, u, e.id))
}

func (a applier) writeTasks(u uuid, r *resourceEdit) error {
	if len(r.tasks) == 0 {
		return nil
	}
	b := base{a.tx}
	for _, id := range sortedUUIDs(r.tasks) {
		key := joinKey(u[:], id[:])
		payload, err := b.get(bucketTasks, key)
		if err != nil {
			return err
		}
		if payload != nil { // its due time, under which it stands as well
			if err := a.removeTask(u, taskEntry{id, int64(binary.BigEndian.Uint64(payload))}); err != nil {
				return err
			}
		}
		due := r.tasks[id]
		if due == nil {
			continue
		}
		if err := a.put(bucketTasks, key, binary.BigEndian.AppendUint64(nil, uint64(*due))); err != nil {
			return err
		}
		if err := a.put(bucketDue, dueKey(*due, u, id), nil); err != nil {
			return err
		}
	}
	return nil
}
