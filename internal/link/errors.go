package link

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// errDeadline is the cause of a served call's context at its deadline.
//
//nolint:gochecknoglobals // immutable, and one for each call would be waste
var errDeadline = &conduit.Error{Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline, Message: "the deadline passed"}

// encodeFailure gives an error's form on the wire: at most maxFailure bytes, of
// which the message has up to 4 KiB and the details what is left. The local
// cause stays here.
func encodeFailure(e *conduit.Error) []byte {
	const most = 1 << 10 // of each name
	f := &conduitv1.Failure{
		Code: conduitv1.Code(e.Code), Reason: text(cut(e.Reason, most)), Outcome: conduitv1.Outcome(e.Outcome),
		Retryable: e.Retryable, RetryAfterMicros: uint64(max(0, e.RetryAfter.Microseconds())),
		Message: text(cut(e.Message, 4<<10)), Op: text(cut(e.Op, most)), Peer: text(cut(e.Peer, most)),
		Address: text(cut(e.Address, most)), Method: text(cut(e.Method, most)),
	}
	room := 4 << 10
	for key, value := range e.Details {
		if room -= len(key) + len(value) + 8; room < 0 {
			break
		}
		if f.Details == nil {
			f.Details = make(map[string]string, len(e.Details))
		}
		f.Details[text(key)] = text(value)
	}
	body, err := proto.Marshal(f)
	if err != nil { // no string is left that could do this
		return nil
	}
	return body
}

// decodeFailure reads an error off the wire.
func decodeFailure(body []byte) (*conduit.Error, error) {
	var f conduitv1.Failure
	if err := proto.Unmarshal(body, &f); err != nil {
		return nil, err
	}
	code := conduit.Code(min(max(f.Code, 0), 255))
	if !code.Valid() {
		code = conduit.Unknown
	}
	outcome := conduit.Outcome(min(max(f.Outcome, 0), 255))
	if outcome > conduit.Executed {
		outcome = conduit.OutcomeUnknown
	}
	e := &conduit.Error{
		Code: code, Reason: f.Reason, Outcome: outcome, Retryable: f.Retryable,
		RetryAfter: time.Duration(min(f.RetryAfterMicros, uint64(24*time.Hour/time.Microsecond))) * time.Microsecond,
		Message:    f.Message, Op: f.Op, Peer: f.Peer, Address: f.Address, Method: f.Method, Details: f.Details,
	}
	if e.Reason == "" {
		e.Reason = conduit.ReasonUnspecified
	}
	return e, nil
}

// cut shortens s to n bytes at a rune's edge.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// cancelReason names on the wire why a call is cancelled; causeOf reads it.
func cancelReason(cause *conduit.Error) string {
	if cause == nil || cause.Reason == "" {
		return conduit.ReasonCanceled
	}
	return cause.Reason
}

// causeOf makes the cause of a served call's context from a Cancel's reason.
func causeOf(reason string) *conduit.Error {
	switch reason {
	case "", conduit.ReasonCanceled, conduit.ReasonAborted:
		return &conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled, Message: "the caller cancelled the call"}
	case conduit.ReasonDeadline:
		return &conduit.Error{Code: conduit.DeadlineExceeded, Reason: reason, Message: "the deadline passed"}
	default:
		return &conduit.Error{Code: conduit.Unavailable, Reason: reason, Message: "the call was ended: " + reason}
	}
}
