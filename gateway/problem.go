package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Reasons of requests that never became a call; docs/gateway.md lists them.
const (
	reasonBadRequest = "bad_request"            // a header or the query is not of the right form
	reasonHost       = "host_not_allowed"       // the gateway does not go by that name
	reasonHTTPMethod = "method_not_allowed"     // not POST
	reasonAccept     = "not_acceptable"         // the client reads nothing that the gateway writes
	reasonOrigin     = "origin_not_allowed"     // pages of that origin may not call
	reasonPath       = "path_not_found"         // there is nothing at the path
	reasonMediaType  = "unsupported_media_type" // the body is of no known content type
)

// errorPage is where each code is explained; a problem's type is its fragment.
const errorPage = "https://github.com/elemental-conduit/conduit/blob/main/docs/gateway.md#"

// Problem is how an error is written: problem details of RFC 9457, and what an
// *conduit.Error says beyond them. Retryable and Outcome have the meaning that
// they have there.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	Code       string            `json:"code"`
	Reason     string            `json:"reason,omitempty"`
	Outcome    conduit.Outcome   `json:"outcome"`
	Retryable  bool              `json:"retryable"`
	RetryAfter string            `json:"retry_after,omitempty"` // a Go duration
	Peer       string            `json:"peer,omitempty"`
	Address    string            `json:"address,omitempty"`
	Method     string            `json:"method,omitempty"`
	Details    map[string]string `json:"details,omitempty"`
}

// Status is the HTTP status of an error. It depends on the code alone, but for the
// reasons payload_too_large and overloaded, which HTTP has a status of their own
// for. docs/gateway.md has the table.
func Status(e *conduit.Error) int {
	switch e.Reason {
	case conduit.ReasonPayloadTooLarge:
		if e.Code == conduit.ResourceExhausted {
			return http.StatusRequestEntityTooLarge
		}
	case conduit.ReasonOverloaded:
		if e.Code == conduit.ResourceExhausted {
			return http.StatusServiceUnavailable
		}
	}
	switch e.Code {
	case conduit.InvalidArgument, conduit.FailedPrecondition, conduit.OutOfRange:
		return http.StatusBadRequest
	case conduit.Unauthenticated:
		return http.StatusUnauthorized
	case conduit.PermissionDenied:
		return http.StatusForbidden
	case conduit.NotFound:
		return http.StatusNotFound
	case conduit.AlreadyExists, conduit.Aborted:
		return http.StatusConflict
	case conduit.ResourceExhausted:
		return http.StatusTooManyRequests
	case conduit.Canceled:
		return statusClientClosed
	case conduit.Unimplemented:
		return http.StatusNotImplemented
	case conduit.Unavailable:
		return http.StatusServiceUnavailable
	case conduit.DeadlineExceeded:
		return http.StatusGatewayTimeout
	default: // unknown, internal, data_loss, and codes that a newer peer may have
		return http.StatusInternalServerError
	}
}

// statusClientClosed is what proxies log for a client that left.
const statusClientClosed = 499

// fault is an error and how HTTP says it.
type fault struct {
	err *conduit.Error
	// status is set where it is not that of the error.
	status int
}

func refuse(status int, code conduit.Code, reason, format string, args ...any) *fault {
	e := conduit.Errorf(code, reason, conduit.NotSent, format, args...)
	return &fault{err: e, status: status}
}

func badRequest(format string, args ...any) *fault {
	return refuse(http.StatusBadRequest, conduit.InvalidArgument, reasonBadRequest, format, args...)
}

func badAddress(format string, args ...any) *fault {
	return refuse(http.StatusBadRequest, conduit.InvalidArgument, conduit.ReasonBadAddress, format, args...)
}

func overloaded(format string, args ...any) *fault {
	f := refuse(http.StatusServiceUnavailable, conduit.ResourceExhausted, conduit.ReasonOverloaded, format, args...)
	f.err.Retryable = true
	return f
}

// problem is the fault as it is written.
func (f *fault) problem() *Problem {
	e, code := f.err, f.err.Code
	if !code.Valid() {
		code = conduit.Unknown
	}
	p := &Problem{
		Type: errorPage + code.String(), Title: title(code), Status: f.status, Detail: e.Message,
		Code: code.String(), Reason: e.Reason, Outcome: e.Outcome, Retryable: e.Retryable,
		Peer: e.Peer, Address: e.Address, Method: e.Method, Details: e.Details,
	}
	if p.Status == 0 {
		p.Status = Status(e)
	}
	if e.RetryAfter > 0 {
		p.RetryAfter = e.RetryAfter.String()
	}
	return p
}

// title is the code in words.
func title(c conduit.Code) string {
	words := strings.ReplaceAll(c.String(), "_", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// retryAfter is the header's value, "" for none. Clients and proxies take the header
// as leave to send the request again, so where the work may have run it is not sent,
// whoever asked for it; where it has, only if its element did.
func (f *fault) retryAfter(status int) string {
	if f.err.Outcome == conduit.OutcomeUnknown {
		return ""
	}
	wait := f.err.RetryAfter
	if wait <= 0 {
		again := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests && f.err.Retryable
		if !again || f.err.Outcome != conduit.NotSent && f.err.Outcome != conduit.Refused {
			return ""
		}
		wait = time.Second
	}
	return strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10)
}

// line is v as one line of JSON without an end. Markup in it is escaped.
func line(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // what is given here can be written
		panic(fmt.Sprintf("gateway: %T: %v", v, err))
	}
	return b
}
