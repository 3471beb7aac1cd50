package client

import (
	"context"
	"io"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// Tx is an interactive transaction: each of its operations is a message to the store and
// back. One goroutine may use it. The store ends it, by rollback, at the first operation
// that fails, and when none comes for the element's attribute idle (30 s).
type Tx struct {
	call *conduit.DuplexCall[*persistpb.Operation, *persistpb.Result]
	err  error // what ended it
}

// Update runs fn in a transaction that reads and writes, and commits it if fn returns
// nil; else it returns fn's error, and nothing has happened. It is never tried again: if
// the link is lost in the commit, the error has the outcome unknown.
func (c *Client) Update(ctx context.Context, scope Scope, fn func(*Tx) error) error {
	return c.transaction(ctx, scope, false, fn)
}

// View runs fn in a snapshot, and returns its error.
func (c *Client) View(ctx context.Context, scope Scope, fn func(*Tx) error) error {
	return c.transaction(ctx, scope, true, fn)
}

func (c *Client) transaction(ctx context.Context, scope Scope, readOnly bool, fn func(*Tx) error) error {
	inv, err := c.invoker(ctx, subject{scope.Paths, scope.IDs})
	if err != nil {
		return err
	}
	tx := &Tx{call: conduit.Duplex[*persistpb.Operation, *persistpb.Result](ctx, inv, "Transaction")}
	defer tx.call.Close()
	if _, err := tx.Do(api.Operation{Scope: &scope, ReadOnly: readOnly}); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	_, err = tx.Do(api.Operation{Op: api.OpCommit})
	return err
}

// Do makes one operation, of those of a batch.
func (t *Tx) Do(o api.Operation) (api.Result, error) {
	if t.err != nil {
		return api.Result{}, t.err
	}
	err := t.call.Send(o.Proto())
	if err != nil && err != io.EOF { // it cannot be sent, and the transaction goes on
		return api.Result{}, err
	}
	m, err := t.call.Recv()
	if err == io.EOF {
		err = conduit.Errorf(conduit.Aborted, api.ReasonEnded, conduit.Executed, "the transaction has ended")
	}
	r, err := read(api.ResultOf, m, err)
	t.err = err
	return r, err
}

// Get returns the contents of the resource at a path, with what the transaction wrote.
func (t *Tx) Get(p address.Path) ([]byte, error) {
	r, err := t.Do(api.Operation{Op: api.OpLoad, Path: &p})
	return r.Data, err
}

// Lookup returns the resource at a path.
func (t *Tx) Lookup(p address.Path) (address.ResourceID, error) {
	return idOf(t.Do(api.Operation{Op: api.OpLookup, Path: &p}))
}

// List returns what a pattern matches, up to 1000 entries behind the cursor, which is ""
// at first; next is the cursor of what follows, and "" at the end.
func (t *Tx) List(pattern address.Path, cursor string) (found []api.Listing, next string, err error) {
	r, err := t.Do(api.Operation{Op: api.OpPage, Path: &pattern, Cursor: cursor})
	return r.Listings, r.Next, err
}

// Put gives the resource at a path these contents; if there is none it makes one.
func (t *Tx) Put(p address.Path, data []byte) (address.ResourceID, error) {
	return idOf(t.Do(api.Operation{Op: api.OpPut, Path: &p, Data: data}))
}

// Link adds a path to a resource.
func (t *Tx) Link(id address.ResourceID, p address.Path) error {
	_, err := t.Do(api.Operation{Op: api.OpLink, ID: &id, Path: &p})
	return err
}

// Delete removes a path, and with the last one the resource; removed says that it was
// that.
func (t *Tx) Delete(p address.Path) (removed bool, err error) {
	r, err := t.Do(api.Operation{Op: api.OpUnlink, Path: &p})
	return r.Removed != nil && *r.Removed, err
}

// Remove removes a resource with all its paths.
func (t *Tx) Remove(id address.ResourceID) error {
	_, err := t.Do(api.Operation{Op: api.OpRemove, ID: &id})
	return err
}

// CreateTask gives a resource a task.
func (t *Tx) CreateTask(id address.ResourceID, due time.Time) (Task, error) {
	r, err := t.Do(api.Operation{Op: api.OpCreateTask, ID: &id, DueMS: due.UnixMilli()})
	if err != nil || len(r.Tasks) != 1 {
		return Task{}, err
	}
	return taskOf(r.Tasks[0]), nil
}

// Finish ends a task together with what the transaction does for it: so that is done
// once, however often the task was delivered. finished is false if it was ended before;
// then there is nothing left to do.
func (t *Tx) Finish(task Task) (finished bool, err error) {
	r, err := t.Do(api.Operation{Op: api.OpFinishTask, Task: &task.ID, DueMS: task.Due.UnixMilli()})
	return r.Removed != nil && *r.Removed, err
}
