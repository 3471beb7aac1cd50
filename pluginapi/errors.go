package pluginapi

import (
	"errors"
	"fmt"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Error is the one error of a call. An author may make one of his own to give it
// a Reason or Details; Outcome is set by the fabric.
type Error = conduit.Error

// Code says what kind of error it is.
type Code = conduit.Code

// The codes, with gRPC's meanings.
const (
	Canceled           = conduit.Canceled
	Unknown            = conduit.Unknown
	InvalidArgument    = conduit.InvalidArgument
	DeadlineExceeded   = conduit.DeadlineExceeded
	NotFound           = conduit.NotFound
	AlreadyExists      = conduit.AlreadyExists
	PermissionDenied   = conduit.PermissionDenied
	ResourceExhausted  = conduit.ResourceExhausted
	FailedPrecondition = conduit.FailedPrecondition
	Aborted            = conduit.Aborted
	OutOfRange         = conduit.OutOfRange
	Unimplemented      = conduit.Unimplemented
	Internal           = conduit.Internal
	Unavailable        = conduit.Unavailable
	DataLoss           = conduit.DataLoss
	Unauthenticated    = conduit.Unauthenticated
)

// Errorf makes the error that a handler returns to its caller: a code and a
// message, formatted as by fmt.Errorf. What %w wraps stays in this process; its
// text is part of the message. Set Reason to let callers tell causes apart.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{
		Code:    code,
		Reason:  conduit.ReasonUnspecified,
		Message: err.Error(),
		Err:     errors.Unwrap(err),
	}
}

// Refuse is what a handler returns that cannot take the call and has not begun
// it: the call may then be tried elsewhere. The reason is a lower_snake name of
// the cause, such as "no_capacity". Once the handler has sent anything it is an
// error like any other, since the work was begun.
func Refuse(reason string) error { return RefuseFor(reason, 0) }

// RefuseFor is [Refuse] that also asks to be left alone for a while.
func RefuseFor(reason string, retryAfter time.Duration) error {
	code := conduit.Unavailable
	switch reason {
	case "":
		reason = conduit.ReasonUnspecified
	case conduit.ReasonNoCapacity, conduit.ReasonOverloaded:
		code = conduit.ResourceExhausted
	}
	return &refusal{&Error{
		Code:       code,
		Reason:     reason,
		Outcome:    conduit.Refused,
		Retryable:  true,
		RetryAfter: max(retryAfter, 0),
		Message:    "the element refused the call: " + reason,
	}}
}

// refusal tells a handler's own Refuse from a refusal that the handler got from a
// call it made: that one says nothing of what the handler itself has done.
type refusal struct{ err *Error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }
