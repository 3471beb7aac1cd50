package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// The messages, as the rest of the element names them.
type (
	operation       = api.Operation
	scope           = api.Scope
	result          = api.Result
	listing         = api.Listing
	task            = api.Task
	transactRequest = api.Batch
	transactReply   = api.BatchReply
	piece           = api.Piece
	writeReply      = api.WriteReply
)

// failure turns an error of the store into one that travels. Its reason is the kind;
// what it is about is in the details.
func failure(err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	out := pluginapi.Errorf(pluginapi.Internal, "%s", strings.TrimPrefix(e.Error(), "store: ")) // who calls knows that it calls a store
	out.Details = map[string]string{"subject": e.Subject}
	if e.Limit != "" {
		limit, most := attributeOf(e.Limit), strconv.FormatInt(e.Max, 10)
		out.Details["limit"], out.Details["max"] = limit, most
		out.Message += "; the element's attribute " + limit + " is " + most
	}
	switch e.Kind {
	case store.KindArgument:
		out.Code, out.Reason = pluginapi.InvalidArgument, api.ReasonBadArgument
	case store.KindNode:
		out.Code, out.Reason = pluginapi.InvalidArgument, api.ReasonOtherNode
	case store.KindScope:
		out.Code, out.Reason = pluginapi.FailedPrecondition, api.ReasonNotDeclared
	case store.KindNotFound:
		out.Code, out.Reason = pluginapi.NotFound, api.ReasonNotFound
	case store.KindNoContents:
		out.Code, out.Reason = pluginapi.FailedPrecondition, api.ReasonNoContents
	case store.KindDuplicate:
		out.Code, out.Reason = pluginapi.AlreadyExists, api.ReasonDuplicate
	case store.KindNoTask:
		out.Code, out.Reason = pluginapi.NotFound, api.ReasonNoTask
	case store.KindState:
		out.Code, out.Reason = pluginapi.FailedPrecondition, api.ReasonEnded
	case store.KindExpired:
		out.Code, out.Reason = pluginapi.Aborted, api.ReasonExpired
	case store.KindReused:
		out.Code, out.Reason = pluginapi.FailedPrecondition, api.ReasonKeyReused
	case store.KindLimit:
		out.Code, out.Reason = pluginapi.ResourceExhausted, api.ReasonLimit
	case store.KindFull:
		out.Code, out.Reason = pluginapi.ResourceExhausted, api.ReasonFull
	case store.KindReadOnly:
		out.Code, out.Reason = pluginapi.FailedPrecondition, api.ReasonReadOnly
	case store.KindCorrupt:
		out.Code, out.Reason = pluginapi.DataLoss, api.ReasonDamaged
	case store.KindInUse, store.KindFormat, store.KindForeign, store.KindFailed:
		out.Reason = api.ReasonStorage
	}
	if e.Unknown {
		out.Code, out.Reason = pluginapi.Unknown, api.ReasonOutcome
	}
	return out
}
