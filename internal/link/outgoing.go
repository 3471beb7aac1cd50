package link

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unicode/utf8"

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

// exchange is a call of this end that an application holds.
type exchange struct {
	c        *Conn
	r        ref
	in       inbox
	route    *Route
	method   string
	deadline time.Time   // of the call; zero = none
	stop     func() bool // of the context's AfterFunc
	sendOver atomic.Bool
	sendCh   chan struct{}
}

// Invoke starts a call of a method at a route. It does not wait: before the
// other end's Hello the call is queued.
func (c *Conn) Invoke(ctx context.Context, r *Route, in *conduit.Invocation) conduit.Exchange {
	x := &exchange{c: c, route: r, method: in.Method}
	x.in.init()
	if err := ctx.Err(); err != nil {
		return x.dead(in, conduit.FromContext(ctx, conduit.NotSent))
	}
	deadline, has := ctx.Deadline()
	now := time.Now()
	switch {
	case has && !deadline.After(now):
		return x.dead(in, &conduit.Error{Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline, Outcome: conduit.NotSent, Message: "the deadline had passed before the call began"})
	case !has && !in.Streaming && !in.Background && c.o.CallTimeout > 0:
		deadline, has = now.Add(c.o.CallTimeout), true
	}
	x.deadline = deadline
	if err := checkHeader(r, in); err != nil {
		return x.dead(in, err)
	}
	if err := x.start(in, deadline, has, now); err != nil {
		return x.dead(in, err)
	}
	if in.Streaming && ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, func() { x.cancel(context.Cause(ctx)) })
	}
	c.flushShared()
	return x
}

// checkHeader says what of a call cannot travel: what an Invoke has no room for,
// and text that is not UTF-8, for which the other end would close the link.
func checkHeader(r *Route, in *conduit.Invocation) *conduit.Error {
	n := len(r.instance) + len(r.deployment) + len(r.element) + len(r.service) + len(in.Method) + len(in.ContentType) +
		len(in.Accept) + len(in.As.Session) + len(in.As.Name) + len(in.TraceParent) + len(in.TraceState)
	ok := utf8.ValidString(in.Method) && utf8.ValidString(in.ContentType) && utf8.ValidString(in.Accept) &&
		utf8.ValidString(in.As.Session) && utf8.ValidString(in.As.Name) && utf8.ValidString(in.TraceParent) && utf8.ValidString(in.TraceState)
	for _, s := range in.Chain {
		n += len(s)
		ok = ok && utf8.ValidString(s)
	}
	switch {
	case !ok:
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.NotSent,
			"the call's method, content types, principal, chain or trace context is not UTF-8")
	case n > maxHeader || len(in.Chain) > frame.MaxChain || len(in.ContentType) > maxName:
		return conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.NotSent,
			"the call's names and trace context take %d bytes and its chain %d elements; the most are %d and %d", n, len(in.Chain), maxHeader, frame.MaxChain)
	}
	return nil
}

// start puts the Invoke into the next packet or the queue.
func (x *exchange) start(in *conduit.Invocation, deadline time.Time, timed bool, now time.Time) *conduit.Error {
	c := x.c
	c.mu.Lock()
	defer c.unlock()
	if c.err != nil || c.leaving {
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
	if most := int(c.theirs.MaxCalls); c.ready && under(c.out, c.outBackground, c.outLeft, most) >= most {
		return &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.NotSent, Retryable: true, Op: c.o.Op, Peer: c.o.Peer.Name,
			Message: fmt.Sprintf("%d calls are under way on this link, the peer's limit", c.theirs.MaxCalls),
		}
	}
	window := c.takeReplyWindow(DefaultReplyCredit)
	if window == 0 {
		return &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.NotSent, Retryable: true, Op: c.o.Op,
			Message: "no memory is left for the reply of one more call: see cluster.memory and cluster.link_memory",
		}
	}
	k := c.newOutgoing(window, in.Background)
	k.in = &x.in
	if timed {
		k.deadline = deadline
	}
	x.r = k.ref()

	// The strings become bytes in a scratch of the link's: what is kept of them is
	// copied before the lock is released.
	f, s := &c.scratch, c.strings[:0]
	put := func(v string) []byte {
		if v == "" {
			return nil
		}
		at := len(s)
		s = append(s, v...)
		return s[at:len(s):len(s)]
	}
	chain := f.Chain[:0]
	*f = frame.Invoke{
		Instance: x.route.instance, Deployment: x.route.deployment, Element: x.route.element, Service: x.route.service,
		Method: put(in.Method), Ordinal: x.route.ordinal, HasOrdinal: x.route.hasOrdinal,
		ContentType: put(in.ContentType), Accept: put(in.Accept), Units: in.Units, ReplyCredit: uint32(window), Attempt: in.Attempt, Background: in.Background,
		Parent: in.Parent,
	}
	for _, v := range in.Chain {
		chain = append(chain, put(v))
	}
	f.Chain = chain
	if in.TraceParent != "" {
		f.TraceParent, f.TraceState = put(in.TraceParent), put(in.TraceState)
	}
	if in.As.Kind != conduit.AsUnset {
		f.HasAs = true
		f.As = frame.AsWhom{Kind: frame.AsKind(in.As.Kind), Session: put(in.As.Session), Name: put(in.As.Name), Level: uint8(in.As.Level)}
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
	clear(s) // a secret may be among them
	c.strings = s[:0]
	return nil
}

// takeReplyWindow promises memory for the reply of one more call of this end, up
// to want; 0 = there is none. c.mu is held.
func (c *Conn) takeReplyWindow(want int64) int64 {
	least := min(want, minWindow)
	window := shareOf(c.o.LinkMemory, c.windows, c.out, want, least)
	if window > 0 {
		window = c.memory.takeWindow(window, least)
	}
	c.windows += window
	return window
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
	} else {
		c.foreground.Add(1)
	}
	c.wake() // it is one more that is held up
	return k
}

// sendInvoke writes the Invoke of a call of this end into the next packet, or
// queues it; with copied, its payload is copied when it must wait. It reports
// whether it is in the packet. c.mu is held.
func (c *Conn) sendInvoke(k *call, f *frame.Invoke, copied bool) (written bool) {
	k.units = f.Units
	if !c.writing && len(f.Data.Bytes) <= chunk && c.ready && int64(len(f.Data.Bytes))+dataCost <= c.requestCredit() {
		// Behind a write under way an Invoke waits in the queue, where it can be
		// taken back without a trace.
		size := frame.InvokeSize(c.nextID, f)
		if c.mayAppend(size, len(f.Data.Bytes)) {
			k.id = c.takeID()
			c.calls[k.id] = k
			k.sendCredit = c.requestCredit()
			if f.HasData {
				k.sendCredit -= int64(len(f.Data.Bytes)) + dataCost
			}
			c.wbuf = frame.AppendInvoke(c.wbuf, k.id, f)
			c.spend(size)
			return true
		}
	}
	k.push(item{kind: itemInvoke, inv: queueInvoke(f, copied)})
	c.enlist(k)
	return false
}

// dead ends an exchange before it began.
func (x *exchange) dead(in *conduit.Invocation, err *conduit.Error) conduit.Exchange {
	x.c.units.neverSent(in.Units)
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
	deadline := x.deadline
	if at, ok := ctx.Deadline(); ok && !at.After(deadline) {
		deadline = time.Time{} // ctx will tell
	}
	it, err := x.in.take(ctx, x.c, deadline, x.expire)
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
	if it.cost == 0 && it.res == nil {
		return
	}
	if it.res != nil {
		c.memory.release(it.res)
	}
	c.mu.Lock()
	k := r.get()
	if k == nil {
		c.unlock()
		return
	}
	if it.res != nil {
		it.res.passed = false
	}
	if it.cost > 0 {
		c.credit(k, it.cost)
	}
	if it.res != nil {
		c.lendAgain(r)
	}
	k = r.get()
	owes := k != nil && k.owing
	c.unlock()
	if owes {
		c.flush()
	}
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
			c.takeBack(k, conduit.FromContext(ctx, conduit.Executed))
		}
		c.unlock()
		<-*ch // the queue was dropped, or the item written in between
		c.kick()
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	c.mu.Lock()
	k = r.get()
	ended := k == nil || k.cancelled
	c.unlock()
	if ended {
		return io.EOF
	}
	return nil
}

// takeBack takes the message that a served call sends last off its queue. If the
// other end has a part of it already, the call cannot go on. c.mu is held.
func (c *Conn) takeBack(k *call, err *conduit.Error) {
	if k.pending() == 0 || k.sendEnded {
		return
	}
	if last := &k.q[len(k.q)-1]; !last.data.HasTotal {
		c.faulted(k, err)
		return
	}
	k.dropQueue() // it is all there is: who sends waits until it is written
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
	x.cancel(cause)
	if x.stop != nil {
		x.stop()
	}
}

func (x *exchange) cancel(cause error) {
	e := &conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled, Message: "the call was cancelled", Err: cause}
	if cause != nil {
		c := *conduit.AsError(cause, conduit.OutcomeUnknown)
		if c.Code != conduit.Unknown {
			e = &c
			e.Outcome = conduit.OutcomeUnknown
		}
	}
	x.expire(e)
	if v := x.in.drain(e); v != nil {
		x.c.memory.release(v)
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
