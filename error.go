package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Reasons are stable, append-only names of causes; docs/errors.md lists each
// with its cause and its mend.
const (
	ReasonAborted            = "aborted"              // the caller or the link's owner ended it
	ReasonBadAddress         = "bad_address"          // the address does not parse
	ReasonBadContent         = "bad_content"          // a message does not decode as its content type
	ReasonBadDeployment      = "bad_deployment"       // what was sent, or its name, cannot be deployed
	ReasonBadStore           = "bad_store"            // the auth store is damaged, or another program's
	ReasonBadUser            = "bad_user"             // a name, level or password that no user may have
	ReasonCallLoop           = "call_loop"            // over 16 elements in a chain
	ReasonCanceled           = "canceled"             // the caller cancelled
	ReasonCordoned           = "cordoned"             // takes no new units
	ReasonDeadline           = "deadline_exceeded"    // the deadline passed
	ReasonDeployFailed       = "deploy_failed"        // what was deployed, or started anew, did not come up
	ReasonDeploymentExists   = "deployment_exists"    // a deployment of that name is there, and was not to be replaced
	ReasonDeploymentNotFound = "deployment_not_found" // no such deployment on the peer
	ReasonDisabled           = "disabled"             // an operator has turned the deployment off
	ReasonDraining           = "draining"             // the peer or the generation is going away
	ReasonElementNotFound    = "element_not_found"    // no such element in the deployment
	ReasonInstanceNotFound   = "instance_not_found"   // the address names another instance
	ReasonInternal           = "internal"             // a bug on this side
	ReasonLevelTooLow        = "level_too_low"        // the caller's level is below the method's
	ReasonMethodNotFound     = "method_not_found"     // the service has no such method
	ReasonNoCapacity         = "no_capacity"          // no room for the call's units
	ReasonNoPrevious         = "no_previous"          // there is nothing to roll back to
	ReasonNotRemote          = "not_remote"           // the author did not mark the method remote
	ReasonNotWritable        = "not_writable"         // the deployments directory cannot be written
	ReasonOverloaded         = "overloaded"           // a limit on calls or memory was met
	ReasonPanic              = "panic"                // the handler panicked
	ReasonPayloadTooLarge    = "payload_too_large"    // a message above the cap
	ReasonPeerLost           = "peer_lost"            // the link to the peer died
	ReasonPeerUnreachable    = "peer_unreachable"     // no link to the peer could be made
	ReasonPluginLost         = "plugin_lost"          // the plugin's process died
	ReasonPluginFailed       = "plugin_failed"        // the element is down, and does not come up by itself
	ReasonPluginStarting     = "plugin_starting"      // the element is not ready yet
	ReasonProtocol           = "protocol"             // the other end broke the protocol
	ReasonReloaded           = "reloaded"             // the process was replaced, and the call took too long to end
	ReasonServiceNotFound    = "service_not_found"    // the element exports no such service
	ReasonSessionExpired     = "session_expired"      // the session has ended by its time, or was revoked
	ReasonSessionNotFound    = "session_not_found"    // the auth store has no such session
	ReasonStoreUnavailable   = "store_unavailable"    // the auth store cannot be read or written just now
	ReasonSuperseded         = "superseded"           // another operator's command for the same deployment came after
	ReasonTooManyAttempts    = "too_many_attempts"    // wrong passwords or secrets, too many too fast
	ReasonUnauthenticated    = "unauthenticated"      // no or a bad proof of who calls
	ReasonUnspecified        = "unspecified"          // the element gave no reason
	ReasonUserExists         = "user_exists"          // the auth store has a user of that name
	ReasonUserNotFound       = "user_not_found"       // the auth store has no such user
	ReasonWrongShape         = "wrong_shape"          // the method is of another shape than it was called as
)

// Error is the one error of a call. Callers get it from every API of the
// module that calls; use errors.As, or errors.Is with an *Error that holds the
// Code and Reason to look for. An Error is immutable once returned and safe for
// concurrent use.
type Error struct {
	// Code is the kind of error; never zero.
	Code Code
	// Reason is a stable lower_snake name of the cause, such as "no_capacity".
	Reason string
	// Outcome says whether the work may have run.
	Outcome Outcome
	// Retryable says that another peer, or the same one later, may do better.
	// Reroute needs it and an Outcome of NotSent or Refused.
	Retryable bool
	// RetryAfter is how long the peer asked to be left alone; 0 = not said.
	RetryAfter time.Duration
	// Message is for people.
	Message string
	// Op names the hop and step that made the error, such as "link.invoke".
	Op string
	// Peer is the instance that made the error, or the URL dialled; empty = here.
	Peer string
	// Address and Method name what was called.
	Address string
	Method  string
	// Details are further facts, such as "limit".
	Details map[string]string
	// Err is the local cause; it does not travel.
	Err error
}

// Error returns the message with reason and outcome, on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Code.String())
	if e.Reason != "" && e.Reason != e.Code.String() {
		b.WriteString(" (" + e.Reason + ")")
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	} else if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	b.WriteString(" [" + e.Outcome.String() + "]")
	return b.String()
}

// Unwrap returns the local cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same Code and, if target has
// one, the same Reason. So errors.Is(err, &Error{Code: NotFound}) holds on both
// ends of a link. A canceled error also is context.Canceled, one whose deadline
// passed is context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.Code == Canceled
	case context.DeadlineExceeded:
		return e.Code == DeadlineExceeded
	}
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
}

// Errorf makes an error of a code, with the code's usual reason, an Outcome of
// OutcomeUnknown, and a message.
func Errorf(code Code, reason string, outcome Outcome, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Outcome: outcome, Message: fmt.Sprintf(format, args...)}
}

// AsError returns the *Error in err's chain, or makes one of code Unknown and
// the given outcome that wraps err. It returns nil for a nil err.
func AsError(err error, outcome Outcome) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: DeadlineExceeded, Reason: ReasonDeadline, Outcome: outcome, Message: "the deadline passed", Err: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: Canceled, Reason: ReasonCanceled, Outcome: outcome, Message: "the call was cancelled", Err: err}
	}
	return &Error{Code: Unknown, Reason: ReasonUnspecified, Outcome: outcome, Message: err.Error(), Err: err}
}

// FromContext says why ctx ended, as the error of a call with the given
// outcome. A cause that is an *Error keeps its code, reason and message.
func FromContext(ctx context.Context, outcome Outcome) *Error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*Error](cause); ok {
		c := *e
		c.Outcome = outcome
		return &c
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Code: DeadlineExceeded, Reason: ReasonDeadline, Outcome: outcome, Message: "the deadline passed", Err: cause}
	}
	return &Error{Code: Canceled, Reason: ReasonCanceled, Outcome: outcome, Message: "the call was cancelled", Err: cause}
}
