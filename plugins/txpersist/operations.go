package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// reads reports whether an operation changes nothing.
func reads(op string) bool {
	switch op {
	case api.OpExists, api.OpLookup, api.OpPaths, api.OpLoad, api.OpTasks, api.OpPage, api.OpExpect:
		return true
	}
	return false
}

func lacks(op, what string) error {
	return &store.Error{Kind: store.KindArgument, Subject: op, Why: "it needs " + what}
}

// target is the resource that an operation names by its id, or by its path.
func target(tx *store.ReadTx, o operation) (address.ResourceID, error) {
	switch {
	case o.ID != nil:
		return *o.ID, nil
	case o.Path != nil:
		return tx.Lookup(*o.Path)
	}
	return address.ResourceID{}, lacks(o.Op, "an id or a path")
}

// perform does an operation that only reads; ok is false if it is none.
func (p *persist) perform(tx *store.ReadTx, o operation) (r result, ok bool, err error) {
	if o.Path == nil && (o.Op == api.OpLookup || o.Op == api.OpPage) {
		return r, true, lacks(o.Op, "a path")
	}
	var id address.ResourceID
	switch o.Op {
	case api.OpExists, api.OpPaths, api.OpLoad, api.OpTasks:
		if id, err = target(tx, o); err != nil {
			return r, true, err
		}
	}
	switch o.Op {
	case api.OpExists:
		exists, err := tx.Exists(id)
		r.Exists = &exists
		return r, true, err
	case api.OpLookup:
		id, err := tx.Lookup(*o.Path)
		r.ID = &id
		return r, true, err
	case api.OpPaths:
		r.Paths, err = tx.Paths(id)
		return r, true, err
	case api.OpLoad:
		r.Data, err = p.load(tx, id)
		r.ID = &id
		return r, true, err
	case api.OpTasks:
		tasks, err := tx.Tasks(id)
		for _, t := range tasks {
			r.Tasks = append(r.Tasks, task{ID: t.ID, DueMS: t.Due.UnixMilli()})
		}
		return r, true, err
	case api.OpPage:
		page, err := tx.Page(*o.Path, o.Cursor, p.pageOf(o))
		for _, l := range page.Listings {
			r.Listings = append(r.Listings, listing{Path: l.Path, ID: l.ID})
		}
		r.Next = page.Next
		return r, true, err
	case api.OpExpect:
		return r, true, expect(tx, o)
	}
	return r, false, nil
}

// load reads contents that fit into an answer.
func (p *persist) load(tx *store.ReadTx, id address.ResourceID) ([]byte, error) {
	r, err := tx.Open(id)
	if err != nil {
		return nil, err
	}
	if r.Size() > p.answer {
		return nil, exceeds("max_answer", p.answer, "contents of %d bytes are too large for one answer: Read gives them in pieces", r.Size())
	}
	data := make([]byte, r.Size())
	_, err = io.ReadFull(r, data)
	return data, err
}

// pageOf is how many entries an operation asks for.
func (p *persist) pageOf(o operation) int {
	if o.Limit == 0 || int64(o.Limit) > p.page {
		return int(p.page)
	}
	return o.Limit
}

// expect is an error unless things are as the operation says.
func expect(tx *store.ReadTx, o operation) error {
	id, err := target(tx, o)
	there := err == nil
	if there {
		there, err = tx.Exists(id)
	}
	if err != nil && store.KindOf(err) != store.KindNotFound {
		return err
	}
	if there == o.Absent {
		return &pluginapi.Error{Code: pluginapi.FailedPrecondition, Reason: api.ReasonPreconditionFailed, Message: "the resource's being there is not as expected"}
	}
	if o.Data == nil || !there {
		return nil
	}
	r, err := tx.Open(id)
	if err != nil && store.KindOf(err) != store.KindNoContents {
		return err
	}
	same := err == nil && r.Size() == int64(len(o.Data)) // contents of another size need no reading
	if same {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		same = bytes.Equal(data, o.Data)
	}
	if !same {
		return &pluginapi.Error{Code: pluginapi.FailedPrecondition, Reason: api.ReasonPreconditionFailed, Message: "the contents are not as expected"}
	}
	return nil
}

// do does any operation.
func (p *persist) do(tx *store.WriteTx, o operation) (r result, err error) {
	if r, ok, err := p.perform(tx.ReadTx, o); ok {
		return r, err
	}
	switch o.Op {
	case api.OpSave, api.OpPut, api.OpLinkNew, api.OpLink, api.OpUnlink, api.OpRemoveMatching:
		if o.Path == nil {
			return r, lacks(o.Op, "a path")
		}
	case api.OpUpdate, api.OpAppend, api.OpWriteAt, api.OpRemove, api.OpCreateTask:
		id, err := target(tx.ReadTx, o)
		if err != nil {
			return r, err
		}
		o.ID = &id
	case api.OpDeleteTask, api.OpFinishTask:
		if o.Task == nil {
			return r, lacks(o.Op, "a task")
		}
	}
	if o.ID == nil && (o.Op == api.OpSave || o.Op == api.OpLinkNew) {
		id := address.RandomResourceID(p.node)
		o.ID = &id
	}
	r.ID = o.ID
	switch o.Op {
	case api.OpSave:
		err = tx.Save(*o.Path, *o.ID, o.Data)
	case api.OpPut:
		r, err = p.put(tx, o)
	case api.OpUpdate:
		err = tx.Update(*o.ID, o.Data)
	case api.OpAppend:
		var w io.WriteCloser
		if w, err = tx.Append(*o.ID); err == nil {
			_, err = w.Write(o.Data)
		}
	case api.OpWriteAt:
		err = tx.WriteAt(*o.ID, o.Data, o.Offset)
	case api.OpLinkNew:
		err = tx.LinkNew(*o.ID, *o.Path)
	case api.OpLink:
		if o.ID == nil {
			return r, lacks(o.Op, "an id")
		}
		err = tx.Link(*o.ID, *o.Path)
	case api.OpUnlink:
		var u store.Unlinked
		u, err = tx.Unlink(*o.Path)
		r.ID, r.Removed = &u.ID, &u.Removed
	case api.OpRemove:
		err = tx.Remove(*o.ID)
	case api.OpRemoveMatching:
		r.ID = nil
		r.IDs, err = tx.RemoveMatching(*o.Path, p.pageOf(o))
	case api.OpCreateTask:
		if o.Task == nil {
			id := address.RandomTaskID(*o.ID)
			o.Task = &id
		}
		if o.Task.Resource() != *o.ID {
			return r, lacks(o.Op, "a task of the resource itself")
		}
		err = tx.CreateTask(*o.Task, time.UnixMilli(o.DueMS))
		r.Tasks = []task{{ID: *o.Task, DueMS: o.DueMS}}
	case api.OpDeleteTask:
		r.ID = nil
		err = tx.DeleteTask(*o.Task)
	case api.OpFinishTask:
		r.ID = nil
		var finished bool
		finished, err = tx.FinishTask(*o.Task, time.UnixMilli(o.DueMS))
		r.Removed = &finished
	default:
		err = &store.Error{Kind: store.KindArgument, Subject: o.Op, Why: "there is no such operation"}
	}
	return r, err
}

// put saves a new resource, or gives the one that is at the path other contents.
func (p *persist) put(tx *store.WriteTx, o operation) (r result, err error) {
	id, err := tx.Lookup(*o.Path)
	created := store.KindOf(err) == store.KindNotFound
	switch {
	case created:
		if id = address.RandomResourceID(p.node); o.ID != nil {
			id = *o.ID
		}
		err = tx.Save(*o.Path, id, o.Data)
	case err == nil && o.ID != nil && *o.ID != id:
		err = &store.Error{Kind: store.KindDuplicate, Subject: o.Path.String(), Why: "another resource is at this path"}
	case err == nil:
		err = tx.Update(id, o.Data)
	}
	return result{ID: &id, Created: &created}, err
}

// ownScope is what an operation that is alone declares.
func ownScope(ctx context.Context, o operation) store.Scope {
	sc := store.Scope{Label: o.Op, Owner: ownerOf(ctx)}
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
		switch {
		case !reads(op):
			r, err = once(ctx, p, ownScope(ctx, o), o.Key, o, func(tx *store.WriteTx) (result, error) { return p.do(tx, o) })
		case o.Key != "":
			err = errKey(op)
		default:
			err = p.store.View(ctx, ownScope(ctx, o), func(tx *store.ReadTx) (err error) {
				if r, _, err = p.perform(tx, o); err == nil {
					_, err = p.fits(r, 0)
				}
				return err
			})
		}
		if err != nil {
			return result{}, failure(err)
		}
		return r, nil
	}
}

// errKey refuses a key where it would do nothing.
func errKey(op string) error {
	return &store.Error{Kind: store.KindArgument, Subject: op, Why: "a key goes with a method that writes with one message, and with a batch as a whole"}
}

// once does something in a transaction of its own. With a key it is done once, however
// often the caller asks for the same: its answer is committed with what it has written,
// and given again.
func once[T any](ctx context.Context, p *persist, sc store.Scope, key string, request any, fn func(*store.WriteTx) (T, error)) (out T, err error) {
	if key != "" {
		body, err := json.Marshal(request)
		if err != nil {
			return out, err
		}
		sc.Once = &store.Once{Owner: pluginapi.CallerFrom(ctx).User, Key: key, Request: body}
	}
	err = p.store.Update(ctx, sc, func(tx *store.WriteTx) error {
		if key != "" {
			answer, found, err := tx.Recall()
			if err != nil {
				return err
			}
			if found {
				return json.Unmarshal(answer, &out)
			}
		}
		if out, err = fn(tx); err != nil || key == "" {
			return err
		}
		answer, err := json.Marshal(out)
		if err != nil {
			return err
		}
		return tx.Remember(answer)
	})
	return out, err
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

func (p *persist) transact(ctx context.Context, in transactRequest) (transactReply, error) {
	sc := store.Scope{Paths: in.Scope.Paths, IDs: in.Scope.IDs, Label: "transact", Owner: ownerOf(ctx)}
	if int64(len(in.Operations)) > p.operations {
		return transactReply{}, failure(exceeds("max_operations", p.operations, "a batch of %d operations", len(in.Operations)))
	}
	out, err := once(ctx, p, sc, in.Key, in, func(tx *store.WriteTx) (out transactReply, err error) {
		size := int64(0)
		for i, o := range in.Operations {
			r, err := p.step(tx, o)
			if err == nil {
				size, err = p.fits(r, size)
			}
			if err != nil {
				return out, at(i, err)
			}
			out.Results = append(out.Results, r)
		}
		return out, nil
	})
	if err != nil {
		return transactReply{}, failure(err)
	}
	return out, nil
}

// step is do in a transaction of several operations.
func (p *persist) step(tx *store.WriteTx, o operation) (result, error) {
	if o.Key != "" {
		return result{}, errKey(o.Op)
	}
	return p.do(tx, o)
}

// list streams a listing page by page, each from a snapshot of its own, so that a slow
// reader holds none. A message has as many entries as the caller asks for, and one of those
// who do not.
func (p *persist) list(ctx context.Context, in operation, send pluginapi.Sender[listing]) error {
	in.Op = api.OpPage
	cursor := in.Cursor
	for {
		var page store.Page
		if in.Path == nil {
			return failure(lacks("list", "a path"))
		}
		err := p.store.View(ctx, ownScope(ctx, in), func(tx *store.ReadTx) (err error) {
			page, err = tx.Page(*in.Path, cursor, int(p.page))
			return err
		})
		if err != nil {
			return failure(err)
		}
		for rest := page.Listings; len(rest) > 0; {
			var out listing
			out, rest = together(rest, in.Limit)
			if err := send(out); err != nil {
				return err
			}
		}
		if cursor = page.Next; cursor == "" {
			return nil
		}
	}
}

// together makes a message of up to limit entries, which is not much larger than a piece
// of contents. entries has some.
func together(entries []store.Listing, limit int) (out listing, rest []store.Listing) {
	n, size := 0, 0
	for n < len(entries) && (n == 0 || n < limit && size < readChunk) {
		size += len(entries[n].Path.String()) + entryCost
		n++
	}
	all := make([]listing, n)
	for i, l := range entries[:n] {
		all[i] = listing{Path: l.Path, ID: l.ID}
	}
	all[n-1].Cursor = store.Cursor(all[n-1].Path)
	out, out.More = all[0], all[1:]
	return out, entries[n:]
}

func (p *persist) read(ctx context.Context, in operation, send pluginapi.Sender[piece]) error {
	in.Op = api.OpLoad
	err := p.store.View(ctx, ownScope(ctx, in), func(tx *store.ReadTx) error {
		id, err := target(tx, in)
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
				if err := send(piece{Size: r.Size(), Data: buf[:n]}); err != nil {
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
	if first.Key != "" {
		return out, failure(errKey("write"))
	}
	err = p.store.Update(ctx, ownScope(ctx, first), func(tx *store.WriteTx) error {
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

// interactive is a transaction that is under way.
type interactive struct {
	step   func(operation) (result, error)
	commit func(context.Context) error
	close  func()
}

// open begins the transaction that a first message asks for.
func (p *persist) open(ctx context.Context, first operation) (*interactive, error) {
	sc := store.Scope{Paths: first.Scope.Paths, IDs: first.Scope.IDs, Label: "transaction", Owner: ownerOf(ctx)}
	if first.Key != "" {
		return nil, errKey("transaction")
	}
	if !first.ReadOnly {
		tx, err := p.store.Write(ctx, sc)
		if err != nil {
			return nil, err
		}
		return &interactive{func(o operation) (result, error) { return p.step(tx, o) }, tx.Commit, tx.Close}, nil
	}
	tx, err := p.store.Read(ctx, sc)
	if err != nil {
		return nil, err
	}
	read := func(o operation) (result, error) {
		r, ok, err := p.perform(tx, o)
		if !ok {
			err = &store.Error{Kind: store.KindArgument, Subject: o.Op, Why: "it is none that a transaction has that only reads"}
		}
		return r, err
	}
	return &interactive{read, func(context.Context) error { return nil }, tx.Close}, nil
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
	tx, err := p.open(ctx, first)
	if err != nil {
		return failure(err)
	}
	defer tx.close()
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
				Code: pluginapi.Aborted, Reason: api.ReasonIdle,
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
		case m.op.Op == api.OpCommit:
			if err := tx.commit(ctx); err != nil {
				return failure(err)
			}
			return send(result{})
		}
		var r result
		if int64(i) >= p.operations {
			err = exceeds("max_operations", p.operations, "the transaction has had %d operations", i)
		} else if r, err = tx.step(m.op); err == nil {
			_, err = p.fits(r, 0)
		}
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

func (p *persist) stats(context.Context, struct{}) (*persistpb.StatsReply, error) {
	st := p.store.Stats()
	out := &persistpb.StatsReply{
		Node: p.node.String(), FileBytes: st.FileBytes, UsedBytes: st.UsedBytes, FreeBytes: st.FreeBytes, PendingBytes: st.PendingBytes, MaxBytes: st.MaxBytes,
		Waiting: int32(st.Waiting), Watches: int32(st.Watches), //nolint:gosec // both have limits
		Commits: st.Commits, Batches: st.Batches, Expired: st.Expired, Refused: st.Refused, Failed: st.Failed,
	}
	for _, t := range st.Transactions {
		out.Transactions = append(out.Transactions, &persistpb.OpenTransaction{Id: t.ID, Kind: t.Kind, Label: t.Label, Owner: t.Owner, SinceMs: t.Since.UnixMilli()})
	}
	return out, nil
}
