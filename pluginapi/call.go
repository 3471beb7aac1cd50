package pluginapi

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// call is one call that the element serves. The handler's context holds it.
type call struct {
	s      *link.ServerCall
	host   *host
	method *method
	caller Caller
	accept string
	// What calls made in this one carry on.
	traceParent, traceState string

	// mu keeps messages whole and in order when a handler sends from several
	// goroutines, and nothing from following the return.
	mu   sync.Mutex
	over bool
}

type callKey struct{}

// callFrom returns the call whose handler has ctx, or nil.
func callFrom(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// SendPart delivers a result for the caller's handler part (1..n), beside the
// return value. It must be given the handler's context, or one derived from it,
// and waits like a [Sender]. Parts come only before the return value.
func SendPart(ctx context.Context, part uint32, value any) error {
	c := callFrom(ctx)
	switch {
	case c == nil:
		return Errorf(FailedPrecondition, "SendPart needs the context of a handler")
	case part == 0:
		return Errorf(InvalidArgument, "SendPart(0): part 0 is the return value; handlers have 1 and up")
	}
	return c.send(ctx, part, value)
}

// errOver is what a handler's goroutine gets that sends after the return.
var errOver = &Error{Code: FailedPrecondition, Reason: conduit.ReasonAborted, Message: "the handler has returned; nothing can be sent any more"}

func (c *call) send(ctx context.Context, part uint32, value any) error {
	ct, data, err := conduit.EncodeFor(c.accept, value)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errOver
	}
	if ctx.Err() != nil {
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	return c.s.Send(ctx, conduit.Message{Part: part, ContentType: ct, Data: data})
}

// reply hands over the return value; struct{} is none.
func (c *call) reply(value any) error {
	if _, none := value.(struct{}); none {
		return nil
	}
	ct, data, err := conduit.EncodeFor(c.accept, value)
	if err != nil {
		e := *conduit.AsError(err, conduit.Executed)
		e.Code, e.Reason, e.Outcome = Internal, conduit.ReasonInternal, conduit.Executed
		e.Message = "the handler's result: " + e.Message
		return &e
	}
	c.s.Return(conduit.Message{ContentType: ct, Data: data})
	return nil
}

// end closes the call to whatever the handler left running.
func (c *call) end() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
}

// failed turns a handler's error into the call's. Only the handler's own Refuse is
// a refusal; all else says that the element ran.
func (c *call) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		e := *r.err
		if c.s.Sent() {
			e.Outcome, e.Retryable = conduit.Executed, false
		}
		return &e
	}
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return conduit.FromContext(ctx, conduit.Executed)
	}
	found := conduit.AsError(err, conduit.Executed)
	e := *found
	e.Outcome = conduit.Executed
	if wrapped := err.Error(); wrapped != found.Error() {
		// Keep what the author wrapped around it, without the code said twice.
		e.Message = strings.Replace(wrapped, found.Error(), found.Message, 1)
	}
	if !e.Code.Valid() {
		e.Code = Unknown
	}
	if e.Reason == "" {
		e.Reason = conduit.ReasonUnspecified
	}
	return &e
}
