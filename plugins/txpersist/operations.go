package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// The operations of a transaction.
const (
	opExists         = "exists"
	opLookup         = "lookup"
	opPaths          = "paths"
	opLoad           = "load"
	opTasks          = "tasks"
	opPage           = "page"
	opExpect         = "expect"
	opSave           = "save"
	opUpdate         = "update"
	opAppend         = "append"
	opWriteAt        = "write_at"
	opLinkNew        = "link_new"
	opLink           = "link"
	opUnlink         = "unlink"
	opRemove         = "remove"
	opRemoveMatching = "remove_matching"
	opCreateTask     = "create_task"
	opDeleteTask     = "delete_task"
	opCommit         = "commit" // of an interactive transaction only
)

// maxPage bounds what one message of a listing holds.
const maxPage = 1000

// reads reports whether an operation changes nothing.
func reads(op string) bool {
	switch op {
	case opExists, opLookup, opPaths, opLoad, opTasks, opPage, opExpect:
		return true
	}
	return false
}

func lacks(op, what string) error {
	return &store.Error{Kind: store.KindArgument, Subject: op, Why: "it needs " + what}
}

// target is the resource that an operation names by its id, or by its path.
func (o operation) target(tx *store.ReadTx) (address.ResourceID, error) {
	switch {
	case o.ID != nil:
		return *o.ID, nil
	case o.Path != nil:
		return tx.Lookup(*o.Path)
	}
	return address.ResourceID{}, lacks(o.Op, "an id or a path")
}

// perform does an operation that only reads; ok is false if it is none.
func (o operation) perform(tx *store.ReadTx) (r result, ok bool, err error) {
	if o.Path == nil && (o.Op == opLookup || o.Op == opPage) {
		return r, true, lacks(o.Op, "a path")
	}
	var id address.ResourceID
	switch o.Op {
	case opExists, opPaths, opLoad, opTasks:
		if id, err = o.target(tx); err != nil {
			return r, true, err
		}
	}
	switch o.Op {
	case opExists:
		exists, err := tx.Exists(id)
		r.Exists = &exists
		return r, true, err
	case opLookup:
		id, err := tx.Lookup(*o.Path)
		r.ID = &id
		return r, true, err
	case opPaths:
		r.Paths, err = tx.Paths(id)
		return r, true, err
	case opLoad:
		r.Data, err = tx.Load(id)
		r.ID = &id
		return r, true, err
	case opTasks:
		tasks, err := tx.Tasks(id)
		for _, t := range tasks {
			r.Tasks = append(r.Tasks, task{t.ID, t.Due.UnixMilli()})
		}
		return r, true, err
	case opPage:
		limit := o.Limit
		if limit == 0 || limit > maxPage {
			limit = maxPage
		}
		page, err := tx.Page(*o.Path, o.Cursor, limit)
		for _, l := range page.Listings {
			r.Listings = append(r.Listings, listing{Path: l.Path, ID: l.ID})
		}
		r.Next = page.Next
		return r, true, err
	case opExpect:
		return r, true, o.expect(tx)
	}
	return r, false, nil
}

// expect is an error unless things are as the operation says.
func (o operation) expect(tx *store.ReadTx) error {
	id, err := o.target(tx)
	there := err == nil
	if there {
		there, err = tx.Exists(id)
	}
	if err != nil && store.KindOf(err) != store.KindNotFound {
		return err
	}
	if there == o.Absent {
		return &pluginapi.Error{Code: pluginapi.FailedPrecondition, Reason: "precondition_failed", Message: "the resource's being there is not as expected"}
	}
	if o.Data == nil || !there {
		return nil
	}
	data, err := tx.Load(id)
	if err != nil && store.KindOf(err) != store.KindNoContents {
		return err
	}
	if err != nil || !bytes.Equal(data, o.Data) {
		return &pluginapi.Error{Code: pluginapi.FailedPrecondition, Reason: "precondition_failed", Message: "the contents are not as expected"}
	}
	return nil
}

// do does any operation.
func (p *persist) do(tx *store.WriteTx, o operation) (r result, err error) {
	if r, ok, err := o.perform(tx.ReadTx); ok {
		return r, err
	}
	switch o.Op {
	case opSave, opLinkNew, opLink, opUnlink, opRemoveMatching:
		if o.Path == nil {
			return r, lacks(o.Op, "a path")
		}
	case opUpdate, opAppend, opWriteAt, opRemove, opCreateTask:
		id, err := o.target(tx.ReadTx)
		if err != nil {
			return r, err
		}
		o.ID = &id
	case opDeleteTask:
		if o.Task == nil {
			return r, lacks(o.Op, "a task")
		}
	}
	if o.ID == nil && (o.Op == opSave || o.Op == opLinkNew) {
		id := address.RandomResourceID(p.node)
		o.ID = &id
	}
	r.ID = o.ID
	switch o.Op {
	case opSave:
		err = tx.Save(*o.Path, *o.ID, o.Data)
	case opUpdate:
		err = tx.Update(*o.ID, o.Data)
	case opAppend:
		var w io.WriteCloser
		if w, err = tx.Append(*o.ID); err == nil {
			_, err = w.Write(o.Data)
		}
	case opWriteAt:
		err = tx.WriteAt(*o.ID, o.Data, o.Offset)
	case opLinkNew:
		err = tx.LinkNew(*o.ID, *o.Path)
	case opLink:
		if o.ID == nil {
			return r, lacks(o.Op, "an id")
		}
		err = tx.Link(*o.ID, *o.Path)
	case opUnlink:
		var u store.Unlinked
		u, err = tx.Unlink(*o.Path)
		r.ID, r.Removed = &u.ID, &u.Removed
	case opRemove:
		err = tx.Remove(*o.ID)
	case opRemoveMatching:
		r.ID = nil
		limit := o.Limit
		if limit == 0 || limit > maxPage {
			limit = maxPage
		}
		r.IDs, err = tx.RemoveMatching(*o.Path, limit)
	case opCreateTask:
		if o.Task == nil {
			id := address.RandomTaskID(*o.ID)
			o.Task = &id
		}
		if o.Task.Resource() != *o.ID {
			return r, lacks(o.Op, "a task of the resource itself")
		}
		err = tx.CreateTask(*o.Task, time.UnixMilli(o.DueMS))
		r.Tasks = []task{{*o.Task, o.DueMS}}
	case opDeleteTask:
		r.ID = nil
		err = tx.DeleteTask(*o.Task)
	default:
		err = &store.Error{Kind: store.KindArgument, Subject: o.Op, Why: "there is no such operation"}
	}
	return r, err
}

// ownScope is what an operation that is alone declares.
func (o operation) ownScope() store.Scope {
	sc := store.Scope{Label: o.Op}
	if o.Path != nil {
		sc.Paths = append(sc.Paths, *o.Path)
	}
	if o.ID != nil {
		sc.IDs = append(sc.IDs, *o.ID)
	}
	if o.Task != nil {
		sc.IDs = append(sc.IDs, o.Task.Resource())
	}
	return sc
}

// single is the method that does one operation in a transaction of its own.
func (p *persist) single(op string) func(context.Context, operation) (result, error) {
	return func(ctx context.Context, o operation) (r result, err error) {
		o.Op = op
		if reads(op) {
			err = p.store.View(ctx, o.ownScope(), func(tx *store.ReadTx) (err error) {
				r, _, err = o.perform(tx)
				return err
			})
		} else {
			err = p.store.Update(ctx, o.ownScope(), func(tx *store.WriteTx) (err error) {
				r, err = p.do(tx, o)
				return err
			})
		}
		if err != nil {
			return result{}, failure(err)
		}
		return r, nil
	}
}

// at says which operation of several it was.
func at(i int, err error) error {
	err = failure(err)
	if e, ok := errors.AsType[*pluginapi.Error](err); ok {
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details["operation"] = strconv.Itoa(i)
	}
	return err
}

func (p *persist) transact(ctx context.Context, in transactRequest) (out transactReply, err error) {
	sc := store.Scope{Paths: in.Scope.Paths, IDs: in.Scope.IDs, Label: "transact"}
	err = p.store.Update(ctx, sc, func(tx *store.WriteTx) error {
		for i, o := range in.Operations {
			r, err := p.do(tx, o)
			if err != nil {
				return at(i, err)
			}
			out.Results = append(out.Results, r)
		}
		return nil
	})
	if err != nil {
		return transactReply{}, failure(err)
	}
	return out, nil
}

// list streams a listing page by page, each from a snapshot of its own, so that a slow
// reader holds none.
func (p *persist) list(ctx context.Context, in operation, send pluginapi.Sender[listing]) error {
	in.Op = opPage
	cursor := in.Cursor
	for {
		var page store.Page
		if in.Path == nil {
			return failure(lacks("list", "a path"))
		}
		err := p.store.View(ctx, in.ownScope(), func(tx *store.ReadTx) (err error) {
			page, err = tx.Page(*in.Path, cursor, maxPage)
			return err
		})
		if err != nil {
			return failure(err)
		}
		for _, l := range page.Listings {
			if err := send(listing{l.Path, l.ID, store.Cursor(l.Path)}); err != nil {
				return err
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

func (p *persist) read(ctx context.Context, in operation, send pluginapi.Sender[piece]) error {
	in.Op = opLoad
	err := p.store.View(ctx, in.ownScope(), func(tx *store.ReadTx) error {
		id, err := in.target(tx)
		if err != nil {
			return err
		}
		r, err := tx.Open(id)
		if err != nil {
			return err
		}
		buf := make([]byte, readChunk)
		for sent := false; ; sent = true {
			n, err := io.ReadFull(r, buf)
			if n > 0 || err == io.EOF && !sent {
				if err := send(piece{r.Size(), buf[:n]}); err != nil {
					return err
				}
			}
			if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	return failure(err)
}

// write saves a new resource, or replaces the contents of one that is at the path.
func (p *persist) write(ctx context.Context, items pluginapi.Receiver[operation]) (out writeReply, err error) {
	first, err := items.Next()
	if err == io.EOF {
		return out, failure(lacks("write", "a first message, with a path"))
	}
	if err != nil {
		return out, err
	}
	first.Op = "write"
	if first.Path == nil {
		return out, failure(lacks("write", "a path in its first message"))
	}
	err = p.store.Update(ctx, first.ownScope(), func(tx *store.WriteTx) error {
		id, err := tx.Lookup(*first.Path)
		var w *store.Writer
		switch {
		case err == nil && (first.ID == nil || *first.ID == id):
			w, err = tx.Replace(id)
		case err == nil || store.KindOf(err) == store.KindNotFound:
			if id = address.RandomResourceID(p.node); first.ID != nil {
				id = *first.ID
			}
			w, err = tx.Create(*first.Path, id)
		}
		if err != nil {
			return err
		}
		out.ID = id
		for data := first.Data; ; {
			n, err := w.Write(data)
			if err != nil {
				return err
			}
			out.Size += int64(n)
			next, err := items.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			data = next.Data
		}
	})
	if err != nil {
		return writeReply{}, failure(err)
	}
	return out, nil
}

// transaction is an interactive transaction: what does not end by commit is rolled
// back.
func (p *persist) transaction(ctx context.Context, items pluginapi.Receiver[operation], send pluginapi.Sender[result]) error {
	first, err := items.Next()
	if err == io.EOF || err == nil && first.Scope == nil {
		return failure(lacks("transaction", "a first message with its scope"))
	}
	if err != nil {
		return err
	}
	tx, err := p.store.Write(ctx, store.Scope{Paths: first.Scope.Paths, IDs: first.Scope.IDs, Label: "transaction"})
	if err != nil {
		return failure(err)
	}
	defer tx.Close()
	if err := send(result{}); err != nil { // it has its locks
		return err
	}
	type message struct {
		op  operation
		err error
	}
	next := make(chan message)
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with the call: items fails then
		for {
			op, err := items.Next()
			select {
			case next <- message{op, err}:
			case <-ended:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	idle := time.NewTimer(p.idle)
	defer idle.Stop()
	for i := 0; ; i++ {
		var m message
		select {
		case m = <-next:
		case <-idle.C:
			return &pluginapi.Error{
				Code: pluginapi.Aborted, Reason: "transaction_idle",
				Message: "no operation came for " + p.idle.String() + ", so the transaction was rolled back",
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		idle.Reset(p.idle)
		switch {
		case m.err == io.EOF:
			return nil // without commit
		case m.err != nil:
			return m.err
		case m.op.Op == opCommit:
			if err := tx.Commit(ctx); err != nil {
				return failure(err)
			}
			return send(result{})
		}
		r, err := p.do(tx, m.op)
		if err != nil {
			return at(i, err)
		}
		if err := send(r); err != nil {
			return err
		}
	}
}

func (p *persist) check(ctx context.Context, _ struct{}) (struct{}, error) {
	if err := p.store.Check(ctx); err != nil {
		return struct{}{}, failure(err)
	}
	return struct{}{}, nil
}

func (p *persist) backup(ctx context.Context, _ struct{}, send pluginapi.Sender[[]byte]) error {
	_, err := p.store.Backup(ctx, sender(send))
	return failure(err)
}

// sender makes messages of what is written.
type sender pluginapi.Sender[[]byte]

func (s sender) Write(b []byte) (int, error) {
	for n := 0; n < len(b); n += readChunk {
		if err := s(b[n:min(n+readChunk, len(b))]); err != nil {
			return n, err
		}
	}
	return len(b), nil
}

func (p *persist) stats(context.Context, struct{}) (store.Stats, error) { return p.store.Stats(), nil }
