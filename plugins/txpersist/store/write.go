package store

import (
	"context"
	"slices"

	"github.com/elemental-conduit/conduit/address"
)

// WriteTx is a transaction that also writes. What it writes it sees at once, and
// nobody else before Commit. An operation that fails has changed nothing, and the
// transaction goes on.
type WriteTx struct{ *ReadTx }

// Create makes a resource at a path and returns what its contents are written to;
// without a write they have no bytes. Errors: KindNode, KindArgument, KindScope,
// KindDuplicate if the id or the path is taken, KindLimit.
//
// The id need not be declared. One that was not, and is taken outside of the scope at
// the same time, is found by Commit, with KindDuplicate.
func (t *WriteTx) Create(p address.Path, id address.ResourceID) (w *Writer, err error) {
	err = t.do(func() error {
		r, err := t.create(p, id)
		if err != nil {
			return err
		}
		r.contents = &contents{chunks: map[uint32][]byte{}}
		w = &Writer{t: t, id: id, c: r.contents}
		return nil
	})
	return w, err
}

// Save is Create with all of the contents.
func (t *WriteTx) Save(p address.Path, id address.ResourceID, data []byte) error {
	return t.do(func() error {
		// First what may fail, so that a failure leaves nothing.
		if err := t.fitsContents(id, int64(len(data))); err != nil {
			return err
		}
		if err := t.spend(int64(len(data))); err != nil {
			return err
		}
		t.edits.bytes -= int64(len(data))
		r, err := t.create(p, id)
		if err != nil {
			return err
		}
		r.contents = &contents{chunks: map[uint32][]byte{}}
		if err := t.writeAt(r.contents, id, data, 0); err != nil {
			t.remove(r)
			return err
		}
		return nil
	})
}

// LinkNew makes a resource at a path, without contents. Errors are those of Create.
func (t *WriteTx) LinkNew(id address.ResourceID, p address.Path) error {
	return t.do(func() error {
		r, err := t.create(p, id)
		if err == nil {
			r.contents = &contents{none: true}
		}
		return err
	})
}

// create makes a resource that has no contents yet.
func (t *WriteTx) create(p address.Path, id address.ResourceID) (*resourceEdit, error) {
	if err := t.s.checkID(id.Node(), id.String()); err != nil {
		return nil, err
	}
	key, err := t.path(p)
	if err != nil {
		return nil, err
	}
	u := id.UUID()
	switch taken, err := t.exists(u); {
	case err != nil:
		return nil, err
	case taken:
		return nil, fail(KindDuplicate, id.String(), "there is such a resource already")
	}
	if err := t.free(p, key); err != nil {
		return nil, err
	}
	r, err := t.edit(u)
	if err != nil {
		return nil, err
	}
	if err := t.addPath(r, u, key); err != nil {
		return nil, err
	}
	r.exists = true
	return r, nil
}

// free refuses a path that is taken.
func (t *WriteTx) free(p address.Path, key string) error {
	_, taken, err := t.find(key)
	if err == nil && taken {
		err = fail(KindDuplicate, p.String(), "there is a resource at this path already")
	}
	return err
}

// Replace gives a resource new contents, those that are written to what it returns;
// without a write they have no bytes. A resource without contents has some then.
// Errors: KindNode, KindScope, KindNotFound, KindLimit.
func (t *WriteTx) Replace(id address.ResourceID) (w *Writer, err error) {
	err = t.do(func() error {
		r, err := t.editExisting(id)
		if err != nil {
			return err
		}
		if r.contents != nil {
			t.edits.bytes -= r.contents.held()
		}
		r.contents = &contents{chunks: map[uint32][]byte{}}
		w = &Writer{t: t, id: id, c: r.contents}
		return nil
	})
	return w, err
}

// Update is Replace with all of the contents; a failure leaves the old ones.
func (t *WriteTx) Update(id address.ResourceID, data []byte) error {
	return t.do(func() error {
		r, err := t.editExisting(id)
		if err != nil {
			return err
		}
		var held int64
		if r.contents != nil {
			held = r.contents.held()
		}
		t.edits.bytes -= held
		c := &contents{chunks: map[uint32][]byte{}}
		if err := t.writeAt(c, id, data, 0); err != nil {
			t.edits.bytes += held
			return err
		}
		r.contents = c
		return nil
	})
}

// Append writes behind the contents that a resource has, and leaves these alone: of
// large ones only the last chunk of 32 KiB is written anew. Errors are those of
// Replace.
func (t *WriteTx) Append(id address.ResourceID) (w *Writer, err error) {
	err = t.do(func() error {
		c, err := t.editContents(id)
		w = &Writer{t: t, id: id, c: c}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// WriteAt overwrites part of a resource's contents, and extends them if it reaches
// beyond their end; only the chunks that it touches are written anew. Errors are those
// of Replace, and KindArgument for an offset that would leave a hole.
func (t *WriteTx) WriteAt(id address.ResourceID, p []byte, offset int64) error {
	return t.do(func() error {
		r, err := t.editExisting(id)
		if err != nil {
			return err
		}
		before := r.contents
		none := before != nil && before.none
		c, err := t.editContents(id)
		if err != nil {
			return err
		}
		if err := t.writeAt(c, id, p, offset); err != nil {
			r.contents = before
			c.none = none
			return err
		}
		return nil
	})
}

// editContents makes a resource's contents ones that can be written on.
func (t *WriteTx) editContents(id address.ResourceID) (*contents, error) {
	r, err := t.editExisting(id)
	if err != nil {
		return nil, err
	}
	if r.contents == nil {
		r.contents = &contents{size: r.stored.size, below: r.stored, chunks: map[uint32][]byte{}}
	}
	if r.contents.none {
		r.contents.none, r.contents.chunks = false, map[uint32][]byte{}
	}
	return r.contents, nil
}

// editExisting is the edit of a resource that must exist.
func (t *WriteTx) editExisting(id address.ResourceID) (*resourceEdit, error) {
	u, err := t.existing(id)
	if err != nil {
		return nil, err
	}
	return t.edit(u)
}

// Link adds a path to a resource. Errors: KindNode, KindArgument, KindScope for the
// path or the resource, KindNotFound, KindDuplicate, KindLimit.
func (t *WriteTx) Link(id address.ResourceID, p address.Path) error {
	return t.do(func() error {
		if err := t.s.checkID(id.Node(), id.String()); err != nil {
			return err
		}
		key, err := t.path(p)
		if err != nil {
			return err
		}
		u, err := t.existing(id)
		if err != nil {
			return err
		}
		if err := t.free(p, key); err != nil {
			return err
		}
		r, err := t.edit(u)
		if err != nil {
			return err
		}
		return t.addPath(r, u, key)
	})
}

// Unlinked is what Unlink did.
type Unlinked struct {
	ID      address.ResourceID
	Removed bool // it was the last path, so the resource is gone
}

// Unlink removes a path. With the last one go the resource, its contents and tasks.
// Errors: KindNode, KindArgument, KindScope, KindNotFound.
func (t *WriteTx) Unlink(p address.Path) (out Unlinked, err error) {
	err = t.do(func() error {
		key, err := t.path(p)
		if err != nil {
			return err
		}
		u, ok, err := t.find(key)
		if err != nil {
			return err
		}
		if !ok {
			return notFound(p.String())
		}
		r, err := t.edit(u)
		if err != nil {
			return err
		}
		out.ID = t.toID(u)
		if out.Removed = len(r.paths) == 1; out.Removed {
			t.remove(r)
			return nil
		}
		if err := t.spend(editCost); err != nil {
			return err
		}
		t.removePath(r, key)
		return nil
	})
	if err != nil {
		return Unlinked{}, err
	}
	return out, nil
}

// Remove removes a resource with all its paths, those outside of the scope too, its
// contents and tasks. Errors: KindNode, KindScope, KindNotFound.
func (t *WriteTx) Remove(id address.ResourceID) error {
	return t.do(func() error {
		r, err := t.editExisting(id)
		if err == nil {
			t.remove(r)
		}
		return err
	})
}

// RemoveMatching removes up to limit resources that have a path that the pattern
// matches, in the order of these, and returns them. That there is none is no error.
// Errors: KindNode, KindScope, KindLimit, and KindArgument for a negative limit.
func (t *WriteTx) RemoveMatching(p address.Path, limit int) (removed []address.ResourceID, err error) {
	err = t.do(func() error {
		if limit < 0 {
			return fail(KindArgument, p.String(), "cannot remove up to %d resources", limit)
		}
		g, err := t.pattern(p)
		if err != nil {
			return err
		}
		// First find them all, then remove: so an error removes none.
		var found []uuid
		known := map[uuid]struct{}{}
		for last := ""; len(found) < limit; {
			batch, err := t.scan(g, last, listBatch)
			if err != nil {
				return err
			}
			for _, e := range batch {
				if _, ok := known[e.id]; !ok && len(found) < limit {
					known[e.id] = struct{}{}
					found = append(found, e.id)
				}
				last = e.key
			}
			if len(batch) < listBatch {
				break
			}
		}
		gone := make([]*resourceEdit, len(found))
		for i, u := range found {
			if gone[i], err = t.edit(u); err != nil {
				return err
			}
		}
		for i, r := range gone {
			t.remove(r)
			removed = append(removed, t.toID(found[i]))
		}
		return nil
	})
	return removed, err
}

// Commit makes what was written durable and visible, all of it or nothing, and ends the
// transaction. It returns when the disk has it. A ctx that ends while it waits for its
// turn rolls back and returns its cause; once the commit is under way, ctx does
// nothing any more.
//
// Errors: KindState after the end, KindExpired, KindDuplicate (see Create), KindFull,
// KindReadOnly, KindFailed. After each the transaction is rolled back, save that with
// Error.Unknown nobody can say. A commit of nothing writes nothing.
func (t *WriteTx) Commit(ctx context.Context) error {
	t.mu.Lock()
	if err := t.ended; err != nil {
		t.mu.Unlock()
		return err
	}
	e := t.edits
	t.ended = fail(KindState, t.label, "the transaction is committed")
	t.edits = nil
	t.closeSnapshot() // so that the commit waits for no reader that waits for it
	t.mu.Unlock()
	defer t.finish()
	if e.empty() {
		t.s.sweeper.add(e.staged)
		return nil
	}
	err := t.s.commits.commit(ctx, e)
	if err == nil {
		t.s.sweeper.add(e.leftover())
	} else {
		t.s.sweeper.add(e.staged) // which does nothing once nobody can say what the file has
		t.mu.Lock()
		t.ended = fail(KindState, t.label, "the transaction is rolled back: its commit failed")
		t.mu.Unlock()
	}
	return err
}

// Rollback ends the transaction and undoes what it wrote. Unlike Close, it is an error
// of KindState if the transaction has ended before.
func (t *WriteTx) Rollback() error {
	if t.end(fail(KindState, t.label, "the transaction is rolled back")) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// ExclusiveTx is a transaction that has the store to itself, all of it in its scope.
type ExclusiveTx struct{ *WriteTx }

// RemoveAll removes all resources of a node, with their paths, contents and tasks.
// Errors: KindNode for another node than the store's.
func (t *ExclusiveTx) RemoveAll(node address.NodeID) error {
	return t.do(func() error {
		if err := t.s.checkID(node, node.String()); err != nil {
			return err
		}
		staged := t.edits.staged
		*t.edits = *newEdits()
		t.edits.wiped, t.edits.staged = true, staged
		return nil
	})
}

// sortedUUIDs is for a stable order of what comes out of a map.
func sortedUUIDs[V any](m map[uuid]V) []uuid {
	out := make([]uuid, 0, len(m))
	for u := range m {
		out = append(out, u)
	}
	slices.SortFunc(out, compareUUID)
	return out
}

func compareUUID(a, b uuid) int { return compareText(string(a[:]), string(b[:])) }
