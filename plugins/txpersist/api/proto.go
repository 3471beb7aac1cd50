package api

import (
	"encoding"
	"fmt"
	"math"

	"github.com/elemental-conduit/conduit/address"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// The types of this package are what programs work with; what travels are the messages
// of proto/conduit/persist, as protobuf or JSON. Proto and the funcs named ...Of lead from one to
// the other. An error says which text is no path or id.

// text reads a field that is an id or a path.
func text[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](field, s string) (v T, err error) {
	if err := P(&v).UnmarshalText([]byte(s)); err != nil {
		return v, fmt.Errorf("%s: %w", field, err)
	}
	return v, nil
}

// optional reads a field that need not be there.
func optional[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](field string, s *string) (*T, error) {
	if s == nil {
		return nil, nil //nolint:nilnil // the field is not there
	}
	v, err := text[T, P](field, *s)
	return &v, err
}

// texts reads a field that has several.
func texts[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](field string, ss []string) (out []T, err error) {
	for _, s := range ss {
		v, err := text[T, P](field, s)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func written[T fmt.Stringer](v *T) *string {
	if v == nil {
		return nil
	}
	s := (*v).String()
	return &s
}

func writtenAll[T fmt.Stringer](vs []T) []string {
	var out []string
	for _, v := range vs {
		out = append(out, v.String())
	}
	return out
}

// each leads through a list.
func each[T, U any](in []T, fn func(T) U) []U {
	if len(in) == 0 {
		return nil
	}
	out := make([]U, len(in))
	for i, v := range in {
		out[i] = fn(v)
	}
	return out
}

// eachOf is each with errors.
func eachOf[T, U any](in []T, fn func(T) (U, error)) ([]U, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]U, len(in))
	for i, v := range in {
		var err error
		if out[i], err = fn(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Proto is the operation as it travels.
func (o Operation) Proto() *persistpb.Operation {
	out := &persistpb.Operation{
		Op: o.Op, Path: written(o.Path), Id: written(o.ID), Data: o.Data, Offset: o.Offset, Limit: int32(min(max(o.Limit, math.MinInt32), math.MaxInt32)), //nolint:gosec // cut to fit
		Cursor: o.Cursor, Absent: o.Absent, Task: written(o.Task), DueMs: o.DueMS, Key: o.Key, ReadOnly: o.ReadOnly,
	}
	if o.Scope != nil {
		out.Scope = o.Scope.Proto()
	}
	return out
}

// OperationOf reads an operation.
func OperationOf(m *persistpb.Operation) (o Operation, err error) {
	o = Operation{
		Op: m.GetOp(), Data: m.GetData(), Offset: m.GetOffset(), Limit: int(m.GetLimit()), Cursor: m.GetCursor(), Absent: m.GetAbsent(),
		DueMS: m.GetDueMs(), Key: m.GetKey(), ReadOnly: m.GetReadOnly(),
	}
	if m == nil {
		return o, nil
	}
	if o.Path, err = optional[address.Path]("path", m.Path); err != nil {
		return o, err
	}
	if o.ID, err = optional[address.ResourceID]("id", m.Id); err != nil {
		return o, err
	}
	if o.Task, err = optional[address.TaskID]("task", m.Task); err != nil {
		return o, err
	}
	if m.Scope != nil {
		scope, err := ScopeOf(m.GetScope())
		if err != nil {
			return o, err
		}
		o.Scope = &scope
	}
	return o, nil
}

// Proto is the scope as it travels.
func (s Scope) Proto() *persistpb.Scope {
	return &persistpb.Scope{Paths: writtenAll(s.Paths), Ids: writtenAll(s.IDs)}
}

// ScopeOf reads a scope.
func ScopeOf(m *persistpb.Scope) (s Scope, err error) {
	if s.Paths, err = texts[address.Path]("scope.paths", m.GetPaths()); err != nil {
		return s, err
	}
	s.IDs, err = texts[address.ResourceID]("scope.ids", m.GetIds())
	return s, err
}

// Proto is the result as it travels.
func (r Result) Proto() *persistpb.Result {
	return &persistpb.Result{
		Id: written(r.ID), Exists: r.Exists, Removed: r.Removed, Created: r.Created, Data: r.Data, Paths: writtenAll(r.Paths), Ids: writtenAll(r.IDs),
		Listings: each(r.Listings, Listing.Proto), Next: r.Next, Tasks: each(r.Tasks, Task.Proto),
	}
}

// ResultOf reads a result.
func ResultOf(m *persistpb.Result) (r Result, err error) {
	if m == nil {
		return r, nil
	}
	r = Result{Exists: m.Exists, Removed: m.Removed, Created: m.Created, Data: m.GetData(), Next: m.GetNext()}
	if r.ID, err = optional[address.ResourceID]("id", m.Id); err != nil {
		return r, err
	}
	if r.Paths, err = texts[address.Path]("paths", m.GetPaths()); err != nil {
		return r, err
	}
	if r.IDs, err = texts[address.ResourceID]("ids", m.GetIds()); err != nil {
		return r, err
	}
	if r.Listings, err = eachOf(m.GetListings(), ListingOf); err != nil {
		return r, err
	}
	r.Tasks, err = eachOf(m.GetTasks(), TaskOf)
	return r, err
}

// Proto is the listing as it travels.
func (l Listing) Proto() *persistpb.Listing {
	return &persistpb.Listing{Path: l.Path.String(), Id: l.ID.String(), Cursor: l.Cursor, More: each(l.More, Listing.Proto)}
}

// ListingOf reads a listing.
func ListingOf(m *persistpb.Listing) (l Listing, err error) {
	l.Cursor = m.GetCursor()
	if l.Path, err = text[address.Path]("path", m.GetPath()); err != nil {
		return l, err
	}
	if l.ID, err = text[address.ResourceID]("id", m.GetId()); err != nil {
		return l, err
	}
	l.More, err = eachOf(m.GetMore(), ListingOf)
	return l, err
}

// Proto is the task as it travels.
func (t Task) Proto() *persistpb.Task { return &persistpb.Task{Id: t.ID.String(), DueMs: t.DueMS} }

// TaskOf reads a task.
func TaskOf(m *persistpb.Task) (t Task, err error) {
	t.DueMS = m.GetDueMs()
	t.ID, err = text[address.TaskID]("id", m.GetId())
	return t, err
}

// Proto is the batch as it travels.
func (b Batch) Proto() *persistpb.Batch {
	return &persistpb.Batch{Scope: b.Scope.Proto(), Operations: each(b.Operations, Operation.Proto), Key: b.Key}
}

// BatchOf reads a batch.
func BatchOf(m *persistpb.Batch) (b Batch, err error) {
	b.Key = m.GetKey()
	if b.Scope, err = ScopeOf(m.GetScope()); err != nil {
		return b, err
	}
	b.Operations, err = eachOf(m.GetOperations(), OperationOf)
	return b, err
}

// Proto is the reply as it travels.
func (b BatchReply) Proto() *persistpb.BatchReply {
	return &persistpb.BatchReply{Results: each(b.Results, Result.Proto)}
}

// BatchReplyOf reads the reply of a batch.
func BatchReplyOf(m *persistpb.BatchReply) (b BatchReply, err error) {
	b.Results, err = eachOf(m.GetResults(), ResultOf)
	return b, err
}

// Proto is the piece as it travels.
func (p Piece) Proto() *persistpb.Piece { return &persistpb.Piece{Size: p.Size, Data: p.Data} }

// PieceOf reads a piece.
func PieceOf(m *persistpb.Piece) (Piece, error) { return Piece{m.GetSize(), m.GetData()}, nil }

// Proto is the reply as it travels.
func (w WriteReply) Proto() *persistpb.WriteReply {
	return &persistpb.WriteReply{Id: w.ID.String(), Size: w.Size}
}

// WriteReplyOf reads the reply of Write.
func WriteReplyOf(m *persistpb.WriteReply) (w WriteReply, err error) {
	w.Size = m.GetSize()
	w.ID, err = text[address.ResourceID]("id", m.GetId())
	return w, err
}

// Proto is the request as it travels.
func (w WatchRequest) Proto() *persistpb.WatchRequest {
	return &persistpb.WatchRequest{Path: w.Path.String(), Revision: w.Revision}
}

// WatchRequestOf reads the request of Watch.
func WatchRequestOf(m *persistpb.WatchRequest) (w WatchRequest, err error) {
	w.Revision = m.GetRevision()
	w.Path, err = text[address.Path]("path", m.GetPath())
	return w, err
}

// Proto is the event as it travels.
func (e Event) Proto() *persistpb.Event {
	return &persistpb.Event{Kind: e.Kind, Revision: e.Revision, Changes: each(e.Changes, func(c Change) *persistpb.Change {
		return &persistpb.Change{Path: c.Path.String(), Id: written(c.ID), Removed: c.Removed}
	})}
}

// EventOf reads an event.
func EventOf(m *persistpb.Event) (e Event, err error) {
	e.Kind, e.Revision = m.GetKind(), m.GetRevision()
	e.Changes, err = eachOf(m.GetChanges(), func(m *persistpb.Change) (c Change, err error) {
		c.Removed = m.GetRemoved()
		if c.Path, err = text[address.Path]("path", m.GetPath()); err != nil {
			return c, err
		}
		c.ID, err = optional[address.ResourceID]("id", m.Id)
		return c, err
	})
	return e, err
}

// Proto is the request as it travels.
func (t TaskRequest) Proto() *persistpb.TaskRequest {
	return &persistpb.TaskRequest{Path: written(t.Path), Window: int32(min(max(t.Window, math.MinInt32), math.MaxInt32)), LeaseMs: t.LeaseMS} //nolint:gosec // cut to fit
}

// TaskRequestOf reads the request of WatchTasks.
func TaskRequestOf(m *persistpb.TaskRequest) (t TaskRequest, err error) {
	if m == nil {
		return t, nil
	}
	t.Window, t.LeaseMS = int(m.GetWindow()), m.GetLeaseMs()
	t.Path, err = optional[address.Path]("path", m.Path)
	return t, err
}
