package pluginapi

import (
	"context"
	"errors"
	"io"
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
	accept string

	ctx context.Context //nolint:containedctx // the handler's: it bounds what is sent, whatever context a goroutine of the handler comes with
	// Messages go one at a time when a handler sends from several goroutines, and
	// the end of the call after the one that is under way. A sender waits for room
	// at the other end, so the turn is no lock that is held meanwhile: in a
	// synctest bubble time stands still for who waits for a lock.
	mu      sync.Mutex
	turn    sync.Cond // sending has ended; its L is mu
	sending bool
	over    bool // the handler has returned
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
	send, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	return c.send(send, part, value) //nolint:contextcheck // it ends with both
}

// errOver is what a handler's goroutine gets that sends after the return.
var errOver = &Error{Code: FailedPrecondition, Reason: conduit.ReasonAborted, Message: "the handler has returned; nothing can be sent any more"}

// errLeft is what a handler gets whose caller is gone.
var errLeft = &Error{Code: Canceled, Reason: conduit.ReasonCanceled, Message: "the call is over: its caller left or its link was lost"}

func (c *call) send(ctx context.Context, part uint32, value any) error {
	ct, data, err := conduit.EncodeFor(c.accept, value)
	if err != nil {
		return err
	}
	if !c.take() {
		return errOver
	}
	defer c.leave()
	if ctx.Err() != nil {
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	err = c.s.Send(ctx, conduit.Message{Part: part, ContentType: ct, Data: data})
	switch {
	case err != nil && err != io.EOF:
		return err
	case ctx.Err() != nil: // a cancel drops what waits, and lets go of who sends
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	case err == io.EOF:
		return errLeft
	}
	return nil
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

// take waits for the turn to send; it reports false when there will be none.
func (c *call) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sending && !c.over {
		c.turn.Wait()
	}
	if c.over {
		return false
	}
	c.sending = true
	return true
}

// leave gives the turn to the next.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = false
	c.turn.Broadcast()
}

// end closes the call to whatever the handler left running, and waits for the
// message that is under way; the call's context bounds that.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for c.sending {
		c.turn.Wait()
	}
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
		return ctx.Err() // cut short: the link knows why, and that the outcome is not known
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
