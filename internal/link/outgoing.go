package link

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Route is an address as Invokes carry it, encoded once for many calls. It is
// immutable.
type Route struct {
	addr                                   address.Address
	instance, deployment, element, service []byte
	ordinal                                uint32
	hasOrdinal                             bool
}

// NewRoute encodes an address.
func NewRoute(a address.Address) *Route {
	r := &Route{
		addr: a, instance: []byte(a.InstanceText()), deployment: []byte(a.DeploymentText()),
		element: []byte(a.Element()), service: []byte(a.Service().String()),
	}
	if n, ok := a.Ordinal(); ok {
		r.ordinal, r.hasOrdinal = uint32(n), true
	}
	return r
}

// Address returns the address that the route was made of.
func (r *Route) Address() address.Address { return r.addr }

// maxHeader bounds what an Invoke carries beside its payload, in bytes, so that
// it always fits a packet and the smallest link credit.
const maxHeader = 16 << 10

// exchange is a call of this end that an application holds.
type exchange struct {
	c        *Conn
	r        ref
	in       *inbox
	route    *Route
	method   string
	deadline time.Time   // of the call where ctx has none
	stop     func() bool // of the context's AfterFunc
	sendOver atomic.Bool
	sendCh   chan struct{}
	ctype    []byte
}

// Invoke starts a call of a method at a route. It does not wait: before the
// other end's Hello the call is queued.
func (c *Conn) Invoke(ctx context.Context, r *Route, in *conduit.Invocation) conduit.Exchange {
	x := &exchange{c: c, route: r, method: in.Method, in: newInbox(), ctype: []byte(in.ContentType)}
	if err := ctx.Err(); err != nil {
		return x.dead(conduit.FromContext(ctx, conduit.NotSent))
	}
	deadline, has := ctx.Deadline()
	now := time.Now()
	switch {
	case has && !deadline.After(now):
		return x.dead(&conduit.Error{Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline, Outcome: conduit.NotSent, Message: "the deadline had passed before the call began"})
	case !has && !in.Streaming && !in.Background && c.o.CallTimeout > 0:
		deadline, has = now.Add(c.o.CallTimeout), true
		x.deadline = deadline
	}
	if n := headerSize(r, in); n > maxHeader {
		return x.dead(conduit.Errorf(conduit.InvalidArgument, conduit.ReasonOverloaded, conduit.NotSent,
			"the call's names and trace context take %d bytes, more than %d", n, maxHeader))
	}
	if err := x.start(in, deadline, has, now); err != nil {
		return x.dead(err)
	}
	if in.Streaming && ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, func() { x.Cancel(context.Cause(ctx)) })
	}
	c.flushShared()
	return x
}

func headerSize(r *Route, in *conduit.Invocation) int {
	n := len(r.instance) + len(r.deployment) + len(r.element) + len(r.service) + len(in.Method) + len(in.ContentType) +
		len(in.Accept) + len(in.As.Session) + len(in.As.Name) + len(in.TraceParent) + len(in.TraceState)
	for _, s := range in.Chain {
		n += len(s)
	}
	return n
}

// start puts the Invoke into the next packet or the queue.
func (x *exchange) start(in *conduit.Invocation, deadline time.Time, timed bool, now time.Time) *conduit.Error {
	c := x.c
	c.mu.Lock()
	defer c.unlock()
	if c.err != nil {
		return c.lost(conduit.NotSent)
	}
	if c.goneAway != nil {
		e := *c.goneAway
		e.Outcome = conduit.NotSent
		return &e
	}
	if c.ready && int64(len(in.Request)) > c.theirs.MaxMessage {
		return c.tooLarge(int64(len(in.Request)), conduit.NotSent)
	}
	if c.ready && c.out-c.outBackground >= int(c.theirs.MaxCalls) {
		return &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.NotSent, Retryable: true, Op: c.o.Op, Peer: c.o.Peer.Name,
			Message: fmt.Sprintf("%d calls are under way on this link, the peer's limit", c.theirs.MaxCalls),
		}
	}
	window := shareOf(c.o.LinkMemory-c.windows, DefaultReplyCredit, minWindow)
	if window > 0 {
		window = c.memory.takeWindow(window, minWindow)
	}
	if window == 0 {
		return &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.NotSent, Retryable: true, Op: c.o.Op,
			Message: "no memory is left for the reply of one more call: see cluster.memory and cluster.link_memory",
		}
	}
	c.windows += window
	k := c.newOutgoing(window, in.Background)
	k.in, k.ex = x.in, x
	if timed {
		k.deadline = deadline
	}
	x.r = k.ref()

	f := &c.scratch
	chain := f.Chain[:0]
	*f = frame.Invoke{
		Instance: x.route.instance, Deployment: x.route.deployment, Element: x.route.element, Service: x.route.service,
		Method: []byte(in.Method), Ordinal: x.route.ordinal, HasOrdinal: x.route.hasOrdinal,
		ContentType: x.ctype, Units: in.Units, ReplyCredit: uint32(window), Attempt: in.Attempt, Background: in.Background,
		Parent: in.Parent,
	}
	if in.Accept != "" {
		f.Accept = []byte(in.Accept)
	}
	for _, s := range in.Chain {
		chain = append(chain, []byte(s))
	}
	f.Chain = chain
	if in.TraceParent != "" {
		f.TraceParent, f.TraceState = []byte(in.TraceParent), []byte(in.TraceState)
	}
	if in.As.Kind != conduit.AsUnset {
		f.HasAs = true
		f.As = frame.AsWhom{Kind: frame.AsKind(in.As.Kind), Session: []byte(in.As.Session), Name: []byte(in.As.Name), Level: uint8(in.As.Level)}
	}
	if in.HasRequest || in.Last {
		f.HasData = true
		f.Data = frame.Data{Last: in.Last}
		if in.HasRequest {
			f.Data.Total, f.Data.HasTotal, f.Data.Bytes = uint64(len(in.Request)), true, in.Request
		}
	}
	if timed {
		f.TimeoutMicros = micros(deadline.Sub(now))
	}
	k.sendEnded = in.Last
	c.sendInvoke(k, f, false)
	return nil
}

// newOutgoing makes a call of this end. c.mu is held.
func (c *Conn) newOutgoing(window int64, background bool) *call {
	k := c.newCall()
	k.ours, k.background = true, background
	k.window, k.recvLeft = window, window
	if c.out == c.outBackground && !background {
		c.waitBegins()
	}
	c.out++
	if background {
		c.outBackground++
	}
	return k
}

// sendInvoke writes the Invoke of a call of this end into the next packet, or
// queues it; with copied, its payload is copied when it must wait. c.mu is held.
func (c *Conn) sendInvoke(k *call, f *frame.Invoke, copied bool) {
	if !c.writing && len(f.Data.Bytes) <= chunk && c.ready && int64(len(f.Data.Bytes))+dataCost <= int64(c.theirs.CallCredit) {
		// Behind a write under way an Invoke waits in the queue, where it can be
		// taken back without a trace.
		size := frame.InvokeSize(c.nextID, f)
		if c.mayAppend(size, len(f.Data.Bytes)) {
			k.id = c.takeID()
			c.calls[k.id] = k
			k.sendCredit = int64(c.theirs.CallCredit)
			if f.HasData {
				k.sendCredit -= int64(len(f.Data.Bytes)) + dataCost
			}
			c.wbuf = frame.AppendInvoke(c.wbuf, k.id, f)
			c.spend(size)
			return
		}
	}
	k.push(item{kind: itemInvoke, inv: queueInvoke(f, copied)})
	c.enlist(k)
}

// dead ends an exchange before it began.
func (x *exchange) dead(err *conduit.Error) conduit.Exchange {
	x.name(err)
	x.in.end(err)
	return x
}

// name fills in what the call was, where the error does not say.
func (x *exchange) name(err *conduit.Error) {
	if err.Address == "" && x.route != nil {
		err.Address = x.route.addr.String()
	}
	if err.Method == "" {
		err.Method = x.method
	}
}

// Recv implements conduit.Exchange.
func (x *exchange) Recv(ctx context.Context) (conduit.Message, error) {
	it, err := x.in.take(ctx, x.deadline, x.expire)
	if err != nil {
		if x.stop != nil {
			x.stop()
		}
		if e, ok := err.(*conduit.Error); ok { //nolint:errorlint // the inbox holds nothing wrapped
			named := *e
			x.name(&named)
			return conduit.Message{}, &named
		}
		return conduit.Message{}, err
	}
	x.c.taken(x.r, it)
	return it.msg, nil
}

// taken gives back what a message held.
func (c *Conn) taken(r ref, it inboxItem) {
	if it.reserved > 0 {
		c.memory.release(it.reserved)
	}
	if it.cost > 0 {
		c.grantQuiet(r, it.cost)
	}
}

// grantQuiet is grant without the cost of a flush when the call has ended.
func (c *Conn) grantQuiet(r ref, n int64) {
	c.mu.Lock()
	k := r.get()
	if k == nil || k.recvDone {
		c.unlock()
		return
	}
	c.unlock()
	c.grant(r, n)
}

// Send implements conduit.Exchange.
func (x *exchange) Send(ctx context.Context, data []byte) error {
	if x.sendOver.Load() {
		return conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonWrongShape, conduit.OutcomeUnknown, "a message after the last")
	}
	d := frame.Data{Total: uint64(len(data)), HasTotal: true, Bytes: data}
	if err := x.c.sendAndWait(ctx, x.r, &d, &x.sendCh); err != nil {
		if e, ok := err.(*conduit.Error); ok { //nolint:errorlint // made here
			x.name(e)
		}
		return err
	}
	return nil
}

// sendAndWait sends one message of a call and returns when its bytes are no
// more needed. It returns io.EOF when the call has ended.
func (c *Conn) sendAndWait(ctx context.Context, r ref, d *frame.Data, ch *chan struct{}) error {
	c.mu.Lock()
	k := r.get()
	if k == nil || k.sendEnded || k.cancelled {
		c.unlock()
		return io.EOF
	}
	if c.ready && int64(d.Total) > c.theirs.MaxMessage {
		err := c.tooLarge(int64(d.Total), conduit.OutcomeUnknown)
		c.unlock()
		return err
	}
	if *ch == nil {
		*ch = make(chan struct{}, 1)
	}
	written := c.sendData(k, d, false, ref{}, *ch)
	c.unlock()
	c.flushShared()
	if written {
		return nil
	}
	select {
	case <-*ch:
	case <-ctx.Done():
		c.mu.Lock()
		if k := r.get(); k != nil && k.ours {
			c.tellCancel(k, conduit.ReasonCanceled)
			c.ended(k, conduit.FromContext(ctx, conduit.OutcomeUnknown), nil)
		} else if k != nil {
			k.dropQueue()
		}
		c.unlock()
		<-*ch // the queue was dropped, or the item written in between
		c.flush()
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	c.mu.Lock()
	ended := r.get() == nil
	c.unlock()
	if ended {
		return io.EOF
	}
	return nil
}

// CloseSend implements conduit.Exchange.
func (x *exchange) CloseSend() error {
	if x.sendOver.Swap(true) {
		return nil
	}
	c := x.c
	c.mu.Lock()
	k := x.r.get()
	if k == nil || k.sendEnded {
		c.unlock()
		return nil
	}
	c.sendData(k, &frame.Data{Last: true}, false, ref{}, nil)
	c.unlock()
	c.flushShared()
	return nil
}

// Cancel implements conduit.Exchange.
func (x *exchange) Cancel(cause error) {
	e := &conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled, Message: "the call was cancelled", Err: cause}
	if cause != nil {
		c := *conduit.AsError(cause, conduit.OutcomeUnknown)
		if c.Code != conduit.Unknown {
			e = &c
			e.Outcome = conduit.OutcomeUnknown
		}
	}
	x.expire(e)
	if n := x.in.drain(); n > 0 {
		x.c.memory.release(n)
	}
	if x.stop != nil {
		x.stop()
	}
}

// expire ends the call from this side; the peer is told without waiting.
func (x *exchange) expire(err *conduit.Error) {
	c := x.c
	c.mu.Lock()
	k := x.r.get()
	if k == nil {
		c.unlock()
		x.in.end(err)
		return
	}
	e := *err
	if k.id == 0 {
		e.Outcome = conduit.NotSent
	}
	e.Op, e.Peer = c.o.Op, c.o.Peer.Name
	c.tellCancel(k, cancelReason(&e))
	c.ended(k, &e, nil)
	c.unlock()
	// The writer may be held up by a peer that does not read: the caller is not.
	c.kick()
}
