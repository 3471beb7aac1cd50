package client

import (
	"errors"
	"strconv"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/plugins/txpersist/api"
)

// What errors of the store are, for errors.Is: the error of a call has more in it.
var (
	// ErrNotFound: there is no such resource.
	ErrNotFound error = &conduit.Error{Code: conduit.NotFound, Reason: api.ReasonNotFound}
	// ErrNoContents: the resource has no contents, which are not contents of no bytes.
	ErrNoContents error = &conduit.Error{Code: conduit.FailedPrecondition, Reason: api.ReasonNoContents}
	// ErrNoTask: the resource has no such task.
	ErrNoTask error = &conduit.Error{Code: conduit.NotFound, Reason: api.ReasonNoTask}
	// ErrDuplicate: the id or the path is taken.
	ErrDuplicate error = &conduit.Error{Code: conduit.AlreadyExists, Reason: api.ReasonDuplicate}
	// ErrPrecondition: an expect of a batch or a transaction did not hold.
	ErrPrecondition error = &conduit.Error{Code: conduit.FailedPrecondition, Reason: api.ReasonPreconditionFailed}
	// ErrNotDeclared: the transaction did not declare what it was to touch.
	ErrNotDeclared error = &conduit.Error{Code: conduit.FailedPrecondition, Reason: api.ReasonNotDeclared}
	// ErrBadArgument: what was asked for cannot be, whatever is stored.
	ErrBadArgument error = &conduit.Error{Code: conduit.InvalidArgument, Reason: api.ReasonBadArgument}
	// ErrOtherNode: an id or a path is of another node than the store.
	ErrOtherNode error = &conduit.Error{Code: conduit.InvalidArgument, Reason: api.ReasonOtherNode}
	// ErrKeyReused: the key was used for something else.
	ErrKeyReused error = &conduit.Error{Code: conduit.FailedPrecondition, Reason: api.ReasonKeyReused}
	// ErrExpired: the transaction was open for too long, and is rolled back.
	ErrExpired error = &conduit.Error{Code: conduit.Aborted, Reason: api.ReasonExpired}
	// ErrIdle: the transaction had no operation for too long, and is rolled back.
	ErrIdle error = &conduit.Error{Code: conduit.Aborted, Reason: api.ReasonIdle}
	// ErrAmbiguous: several nodes have a store, and the call names none of them.
	ErrAmbiguous error = &conduit.Error{Code: conduit.InvalidArgument, Reason: ReasonAmbiguous}
)

// ReasonAmbiguous is the reason of [ErrAmbiguous]. It never travels.
const ReasonAmbiguous = "ambiguous_node"

// Operation returns which operation of a batch or a transaction failed, counted from 0;
// ok is false if the error is not of one.
func Operation(err error) (i int, ok bool) {
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		return 0, false
	}
	i, err = strconv.Atoi(e.Details["operation"])
	return i, err == nil
}
