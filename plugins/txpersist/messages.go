package main

import (
	"errors"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// operation is one step of a transaction.
type operation struct {
	Op     string              `json:"op,omitempty"`
	Path   *address.Path       `json:"path,omitempty"`
	ID     *address.ResourceID `json:"id,omitempty"`
	Data   []byte              `json:"data,omitempty"`
	Offset int64               `json:"offset,omitempty"`
	Limit  int                 `json:"limit,omitempty"`
	Cursor string              `json:"cursor,omitempty"`
	Absent bool                `json:"absent,omitempty"`
	Task   *address.TaskID     `json:"task,omitempty"`
	DueMS  int64               `json:"due_ms,omitempty"` // Unix milliseconds
	// Scope declares what an interactive transaction may touch, in its first message.
	Scope *scope `json:"scope,omitempty"`
}

type scope struct {
	Paths []address.Path       `json:"paths,omitempty"`
	IDs   []address.ResourceID `json:"ids,omitempty"`
}

type result struct {
	ID       *address.ResourceID  `json:"id,omitempty"`
	Exists   *bool                `json:"exists,omitempty"`
	Removed  *bool                `json:"removed,omitempty"`
	Data     []byte               `json:"data,omitempty"`
	Paths    []address.Path       `json:"paths,omitempty"`
	IDs      []address.ResourceID `json:"ids,omitempty"`
	Listings []listing            `json:"listings,omitempty"`
	Next     string               `json:"next,omitempty"`
	Tasks    []task               `json:"tasks,omitempty"`
}

type listing struct {
	Path   address.Path       `json:"path"`
	ID     address.ResourceID `json:"id"`
	Cursor string             `json:"cursor,omitempty"` // List goes on behind this one
}

type task struct {
	ID    address.TaskID `json:"id"`
	DueMS int64          `json:"due_ms"`
}

type transactRequest struct {
	Scope      scope       `json:"scope"`
	Operations []operation `json:"operations"`
}

type transactReply struct {
	Results []result `json:"results"`
}

type piece struct {
	Size int64  `json:"size"` // of all, in each piece
	Data []byte `json:"data,omitempty"`
}

type writeReply struct {
	ID   address.ResourceID `json:"id"`
	Size int64              `json:"size"`
}

// failure turns an error of the store into one that travels. Its reason is the kind;
// what it is about is in the details.
func failure(err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	out := pluginapi.Errorf(pluginapi.Internal, "%v", e)
	out.Details = map[string]string{"subject": e.Subject}
	switch e.Kind {
	case store.KindArgument:
		out.Code, out.Reason = pluginapi.InvalidArgument, "bad_argument"
	case store.KindNode:
		out.Code, out.Reason = pluginapi.InvalidArgument, "other_node"
	case store.KindScope:
		out.Code, out.Reason = pluginapi.FailedPrecondition, "not_declared"
	case store.KindNotFound:
		out.Code, out.Reason = pluginapi.NotFound, "resource_not_found"
	case store.KindNoContents:
		out.Code, out.Reason = pluginapi.FailedPrecondition, "no_contents"
	case store.KindDuplicate:
		out.Code, out.Reason = pluginapi.AlreadyExists, "duplicate"
	case store.KindNoTask:
		out.Code, out.Reason = pluginapi.NotFound, "no_such_task"
	case store.KindState:
		out.Code, out.Reason = pluginapi.FailedPrecondition, "transaction_ended"
	case store.KindExpired:
		out.Code, out.Reason = pluginapi.Aborted, "transaction_expired"
	case store.KindLimit:
		out.Code, out.Reason = pluginapi.ResourceExhausted, "limit"
	case store.KindFull:
		out.Code, out.Reason = pluginapi.ResourceExhausted, "store_full"
	case store.KindReadOnly:
		out.Code, out.Reason = pluginapi.FailedPrecondition, "store_read_only"
	case store.KindCorrupt:
		out.Code, out.Reason = pluginapi.DataLoss, "store_damaged"
	case store.KindInUse, store.KindFormat, store.KindForeign, store.KindFailed:
		out.Reason = "storage_failed"
	}
	if e.Unknown {
		out.Code, out.Reason = pluginapi.Unknown, "outcome_unknown"
	}
	return out
}
