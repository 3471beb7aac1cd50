package link

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// encodeFailure gives an error's form on the wire. The local cause stays here.
func encodeFailure(e *conduit.Error) []byte {
	f := &conduitv1.Failure{
		Code: conduitv1.Code(e.Code), Reason: e.Reason, Outcome: conduitv1.Outcome(e.Outcome),
		Retryable: e.Retryable, RetryAfterMicros: uint64(max(0, e.RetryAfter.Microseconds())),
		Message: cut(e.Message, 4096), Op: e.Op, Peer: e.Peer, Address: e.Address, Method: e.Method, Details: e.Details,
	}
	body, err := proto.Marshal(f)
	if err != nil { // a string that is not UTF-8: say what can be said
		body, err = proto.Marshal(&conduitv1.Failure{
			Code: f.Code, Outcome: f.Outcome, Retryable: f.Retryable, Reason: conduit.ReasonInternal,
			Message: "the error's text is not UTF-8",
		})
		if err != nil {
			return nil
		}
	}
	return body
}

// decodeFailure reads an error off the wire. A body that does not parse is an
// error of its own, since the call has ended all the same.
func decodeFailure(body []byte, peer string) *conduit.Error {
	var f conduitv1.Failure
	if err := proto.Unmarshal(body, &f); err != nil {
		return &conduit.Error{
			Code: conduit.Internal, Reason: conduit.ReasonProtocol, Outcome: conduit.OutcomeUnknown,
			Message: "the peer's error does not decode", Op: "link.failure", Peer: peer, Err: err,
		}
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
	if e.Peer == "" {
		e.Peer = peer
	}
	if e.Reason == "" {
		e.Reason = conduit.ReasonUnspecified
	}
	return e
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
