package metrics

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Invoker returns an Invoker that counts the calls made through inv on the side
// of the client: from Invoke until their end is received, or they are cancelled.
// deployment and service are those of inv's address, as the caller wrote them.
// If inv is a [conduit.Target], so is the result.
func (c *Calls) Invoker(inv conduit.Invoker, deployment, service string) conduit.Invoker {
	i := &invoker{c: c, inv: inv, deployment: deployment, service: service}
	if t, ok := inv.(conduit.Target); ok {
		return &target{Target: t, counted: i}
	}
	return i
}

type invoker struct {
	c                   *Calls
	inv                 conduit.Invoker
	deployment, service string
}

// Invoke implements conduit.Invoker.
func (i *invoker) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	m := i.c.Find(Client, i.deployment, i.service, in.Method)
	x := &exchange{m: m, begun: m.Begin()}
	x.Exchange = i.inv.Invoke(ctx, in)
	return x
}

// target is an invoker that knows its address.
type target struct {
	conduit.Target

	counted *invoker
}

// Invoke implements conduit.Invoker.
func (t *target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return t.counted.Invoke(ctx, in)
}

// exchange is a call that is counted until its end.
type exchange struct {
	conduit.Exchange

	m     *Method
	begun time.Duration
	ended atomic.Bool
}

// Recv implements conduit.Exchange.
func (x *exchange) Recv(ctx context.Context) (conduit.Message, error) {
	msg, err := x.Exchange.Recv(ctx)
	switch {
	case err == nil && msg.Last, err == io.EOF: // itself: an error that wraps it says that a link broke off
		x.end(0, conduit.Executed)
	case err == nil:
	default:
		x.fail(conduit.AsError(err, conduit.OutcomeUnknown))
	}
	return msg, err
}

// Cancel implements conduit.Exchange. Nobody need receive after it, so the call
// ends here; what became of the work its caller did not want to know.
func (x *exchange) Cancel(cause error) {
	x.Exchange.Cancel(cause)
	e := conduit.Error{Code: conduit.Canceled}
	if c, ok := errors.AsType[*conduit.Error](cause); ok {
		e.Code = c.Code
	}
	x.fail(&e)
}

func (x *exchange) fail(e *conduit.Error) {
	code := e.Code
	if code == 0 { // an error without one is no success
		code = conduit.Unknown
	}
	x.end(code, e.Outcome)
}

func (x *exchange) end(code conduit.Code, outcome conduit.Outcome) {
	if !x.ended.Swap(true) {
		x.m.End(x.begun, code, outcome)
	}
}
