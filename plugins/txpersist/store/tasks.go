package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

// Task is something to do for a resource, at a time. It is kept until it is deleted,
// or its resource is.
type Task struct {
	ID  address.TaskID
	Due time.Time // in whole milliseconds
}

type taskEntry struct {
	id  uuid
	due int64
}

func (b base) tasks(u uuid) (out []taskEntry, err error) {
	if b.tx == nil {
		return nil, nil
	}
	c := b.bucket(bucketTasks).Cursor()
	for k, v := c.Seek(u[:]); bytes.HasPrefix(k, u[:]); k, v = c.Next() {
		payload, err := unseal(bucketTasks, k, v)
		if err != nil {
			return nil, err
		}
		if len(k) != 2*len(u) || len(payload) != 8 {
			return nil, corrupt("the task with key %x makes no sense", k)
		}
		out = append(out, taskEntry{uuid(k[len(u):]), int64(binary.BigEndian.Uint64(payload))})
	}
	return out, nil
}

// tasks lists a resource's tasks as the transaction sees them, by id.
func (t *ReadTx) tasks(u uuid) ([]taskEntry, error) {
	r := &resourceEdit{}
	if t.edits != nil {
		if e, ok := t.edits.resources[u]; ok {
			r = e
		}
	}
	var out []taskEntry
	if !r.forget {
		stored, err := t.base().tasks(u)
		if err != nil {
			return nil, err
		}
		for _, e := range stored {
			if _, changed := r.tasks[e.id]; !changed {
				out = append(out, e)
			}
		}
	}
	for id, due := range r.tasks {
		if due != nil {
			out = append(out, taskEntry{id, *due})
		}
	}
	slices.SortFunc(out, func(a, b taskEntry) int { return compareUUID(a.id, b.id) })
	return out, nil
}

func (t *ReadTx) toTask(u uuid, e taskEntry) Task {
	return Task{address.TaskIDFromUUID(t.toID(u), e.id), time.UnixMilli(e.due)}
}

// Tasks lists a resource's tasks, in the order of their ids. Errors: KindNode,
// KindScope, KindNotFound.
func (t *ReadTx) Tasks(id address.ResourceID) (out []Task, err error) {
	err = t.do(func() error {
		u, err := t.existing(id)
		if err != nil {
			return err
		}
		entries, err := t.tasks(u)
		for _, e := range entries {
			out = append(out, t.toTask(u, e))
		}
		return err
	})
	return out, err
}

// CreateTask gives a resource a task, or the task another time if it is there. Errors:
// KindNode, KindScope, KindNotFound for the resource, KindLimit.
func (t *WriteTx) CreateTask(id address.TaskID, due time.Time) error {
	return t.do(func() error {
		r, err := t.editExisting(id.Resource())
		if err != nil {
			return err
		}
		if err := t.spend(editCost); err != nil {
			return err
		}
		ms := due.UnixMilli()
		r.tasks[id.UUID()] = &ms
		return nil
	})
}

// DeleteTask takes a task away. Errors: KindNode, KindScope, KindNotFound for the
// resource, KindNoTask.
func (t *WriteTx) DeleteTask(id address.TaskID) error {
	return t.do(func() error {
		u, err := t.existing(id.Resource())
		if err != nil {
			return err
		}
		entries, err := t.tasks(u)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(entries, func(e taskEntry) bool { return e.id == id.UUID() }) {
			return fail(KindNoTask, id.String(), "")
		}
		r, err := t.edit(u)
		if err != nil {
			return err
		}
		r.tasks[id.UUID()] = nil
		return nil
	})
}

// AllTasks yields the tasks of all resources, by resource and then by id; the loop ends
// with the first error. What the loop itself writes may or may not be yielded.
func (t *ExclusiveTx) AllTasks() iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		var last *uuid
		for {
			var found []Task
			more := false
			err := t.do(func() error {
				u, ok, err := t.nextWithTasks(last)
				if err != nil || !ok {
					return err
				}
				more, last = true, &u
				entries, err := t.tasks(u)
				for _, e := range entries {
					found = append(found, t.toTask(u, e))
				}
				return err
			})
			if err != nil {
				yield(Task{}, err)
				return
			}
			for _, task := range found {
				if !yield(task, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// nextWithTasks finds the first resource behind last that has tasks, or had some.
func (t *ReadTx) nextWithTasks(last *uuid) (u uuid, ok bool, err error) {
	if b := t.base(); b.tx != nil {
		c := b.bucket(bucketTasks).Cursor()
		var from []byte
		if last != nil {
			// Behind all keys that begin with last.
			from = append(slices.Clone(last[:]), bytes.Repeat([]byte{0xFF}, len(last)+1)...)
		}
		if k, _ := c.Seek(from); k != nil {
			if len(k) != 2*len(u) {
				return u, false, corrupt("the task with key %x makes no sense", k)
			}
			u, ok = uuid(k[:len(u)]), true
		}
	}
	for id, r := range t.edits.resources {
		if len(r.tasks) > 0 && (last == nil || compareUUID(id, *last) > 0) && (!ok || compareUUID(id, u) < 0) {
			u, ok = id, true
		}
	}
	return u, ok, nil
}

// Due returns up to limit tasks whose time has come by then, the oldest first, as they
// are committed. It is no transaction: by the time that it returns, another one may
// have deleted some. The error is an [*Error], or ctx's cause.
func (s *Store) Due(ctx context.Context, by time.Time, limit int) (out []Task, err error) {
	err = s.view(ctx, func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte(bucketDue)).Cursor()
		end := dueKey(by.UnixMilli(), uuid{}, uuid{})[:8]
		for k, v := c.First(); k != nil && len(out) < limit; k, v = c.Next() {
			if _, err := unseal(bucketDue, k, v); err != nil {
				return err
			}
			if len(k) != 8+2*len(uuid{}) {
				return corrupt("the due task with key %x makes no sense", k)
			}
			if bytes.Compare(k[:8], end) > 0 {
				return nil
			}
			due := int64(binary.BigEndian.Uint64(k) ^ 1<<63)
			resource := address.ResourceIDFromUUID(s.node, uuid(k[8:24]))
			out = append(out, Task{address.TaskIDFromUUID(resource, uuid(k[24:])), time.UnixMilli(due)})
		}
		return nil
	})
	return out, err
}

// view reads what is committed, outside of what a caller sees as a transaction.
func (s *Store) view(ctx context.Context, fn func(*bolt.Tx) error) error {
	t, err := s.Read(ctx, Scope{Paths: []address.Path{{}}, Label: "store"})
	if err != nil {
		return err
	}
	defer t.Close()
	return t.do(func() error { return fn(t.snap) })
}
