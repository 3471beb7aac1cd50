package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Incoming is a call that arrived and is to be decided. It belongs to the
// reader and is valid until Handle returns.
type Incoming struct {
	// Invoke is the call as it came; its bytes alias the reader's buffer.
	Invoke *frame.Invoke

	conn     *Conn
	ref      ref
	id       uint64
	deadline time.Time
	units    uint32
	decided  bool
	// judged: the units were counted as judged, or somebody else will see to it. The
	// reader calls judge once Handle has returned. Of a call that is parked the hold
	// owes it (heldCall.owed) until the call is decided about.
	judged bool
}

// Conn returns the link that the call came on.
func (in *Incoming) Conn() *Conn { return in.conn }

// ID returns the call's id on its link.
func (in *Incoming) ID() uint64 { return in.id }

// Peer returns what the link's owner said of its other end.
func (in *Incoming) Peer() Peer { return in.conn.o.Peer }

// Deadline returns when the caller gives up; ok is false if it does not.
func (in *Incoming) Deadline() (at time.Time, ok bool) { return in.deadline, !in.deadline.IsZero() }

// Reporter returns the link's, by which the handler judges a call that it admits;
// nil if the other end is told nothing of this one's room.
func (in *Incoming) Reporter() Reporter { return in.conn.o.Reporter }

// MarkJudged says that the handler has counted the call's units as judged, by the
// link's Reporter. Otherwise the link does it, once Handle has returned.
func (in *Incoming) MarkJudged() { in.judged = true }

// judge counts the units of an Invoke as judged unless that is done: for each that
// the link takes, whatever becomes of it, this is called once, when it is decided.
// No lock of the link is held.
func (in *Incoming) judge() {
	if in.judged {
		return
	}
	in.judged = true
	if r := in.conn.o.Reporter; r != nil && in.units > 0 {
		r.Refuse(int64(in.units))
	}
}

// SetGuest says on whose right the call runs, if that is not the link's own: it is to
// be said before the call is decided about, and once. See [Conn.CancelIncomingOf].
func (in *Incoming) SetGuest(g Guest) {
	c := in.conn
	c.mu.Lock()
	c.host(in.ref.get(), g)
	c.unlock()
}

// KeepInDrain says that the call, one in the background, is not to end as soon as
// this instance drains: it is a claim, which ends with the work behind it.
func (in *Incoming) KeepInDrain() {
	c := in.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := in.ref.get(); k != nil {
		k.kept = true
	}
}

// Refuse ends the call with an error; the outcome becomes Refused unless it is
// Executed.
func (in *Incoming) Refuse(err *conduit.Error) {
	c := in.conn
	in.decided = true
	e := *err
	if e.Outcome != conduit.Executed {
		e.Outcome = conduit.Refused
	}
	if e.Op == "" {
		e.Op = c.o.Op
	}
	body := encodeFailure(&e)
	c.mu.Lock()
	if k := in.ref.get(); k != nil {
		k.recvDone = true
		c.sendFailure(k, body)
	}
	c.unlock()
}

// ServerCall is a call that this end serves, from the handler's side. One
// goroutine may send while another receives.
type ServerCall struct {
	c      *Conn
	r      ref
	id     uint64
	invoke frame.Invoke
	in     inbox
	ctx    callContext
	sent   atomic.Bool
	sendCh chan struct{}
	reply  conduit.Message
	hasRep bool
}

// Serve runs the call on a goroutine of its own.
func (in *Incoming) Serve(fn ServeFunc) {
	c := in.conn
	in.decided = true
	s := c.newServed(in.ref, in.id, in.Invoke, in.deadline)
	d := in.Invoke.Data
	c.mu.Lock()
	k := in.ref.get()
	if k == nil {
		c.unlock()
		s.ctx.end(nil)
		return
	}
	k.server, k.in = s, &s.in
	if k.cancelled {
		s.ctx.end(k.cause)
	}
	if in.Invoke.HasData {
		if fault := c.assemble(in.ref, k, &s.in, &k.open, &d); fault != nil {
			if k = in.ref.get(); k != nil {
				fault.Outcome = conduit.Refused
				c.faulted(k, fault)
			}
			c.unlock()
			s.ctx.end(nil)
			return
		}
		if d.Last {
			s.in.end(nil)
		}
	}
	c.unlock()
	c.serve(served{s: s, fn: fn})
}

// newServed makes what a handler gets of a call.
func (c *Conn) newServed(r ref, id uint64, in *frame.Invoke, deadline time.Time) *ServerCall {
	s := &ServerCall{c: c, r: r, id: id}
	s.ctx.deadline = deadline
	s.in.init()
	cloneInvoke(&s.invoke, in)
	return s
}

// run runs the handler and ends the call with what it returned.
func (s *ServerCall) run(fn ServeFunc) {
	var err error = errNoReturn
	// Deferred, for a handler may end its goroutine (runtime.Goexit, as t.Fatal
	// does): its caller hears of it all the same.
	defer func() { s.finish(err) }()
	err = s.guard(&s.ctx, fn)
}

//nolint:gochecknoglobals // a constant; the caller gets a copy
var errNoReturn = &conduit.Error{
	Code: conduit.Internal, Reason: conduit.ReasonPanic, Outcome: conduit.Executed,
	Message: "the handler ended its goroutine without returning",
}

// finish ends the call with what its handler returned.
func (s *ServerCall) finish(err error) {
	cause := s.ctx.why()
	s.ctx.end(nil)
	c := s.c
	if err == nil && s.hasRep {
		err = s.fits(&s.reply)
	}
	var body []byte
	if err != nil {
		body = encodeFailure(s.failure(err, cause))
	}
	s.in.end(nil)
	c.mu.Lock()
	k := s.r.get()
	if k != nil { // what still comes up is dropped
		k.recvDone = true
		c.wake()
		c.dropAssembly(k)
	}
	switch {
	case k == nil:
	case err == nil && k.cancelled:
		// Cancelled before the answer was handed over: one Failure, no result.
		c.sendFailure(k, canceledBody(k, c.o.Op))
	case err != nil:
		c.sendFailure(k, body)
	default:
		k.server = nil
		d := frame.Data{Last: true}
		if s.hasRep {
			d.Part, d.Bytes, d.Total, d.HasTotal = s.reply.Part, s.reply.Data, uint64(len(s.reply.Data)), true
			d.ContentType = typeBytes(s.reply.ContentType)
		}
		if !k.sendEnded {
			c.sendData(k, &d, false, ref{}, nil)
		}
	}
	c.unlock()
	if v := s.in.drain(nil); v != nil {
		c.memory.release(v)
	}
	c.flushShared()
}

// guard turns a panic into an error, so that one call fails and not the process.
func (s *ServerCall) guard(ctx context.Context, fn ServeFunc) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.c.log.ErrorContext(ctx, "handler panicked", "panic", fmt.Sprint(v), "method", string(s.invoke.Method), "stack", string(debug.Stack()))
			err = &conduit.Error{
				Code: conduit.Internal, Reason: conduit.ReasonPanic, Outcome: conduit.Executed,
				Message: fmt.Sprintf("the handler panicked: %v; the log of its process has the stack", v),
			}
		}
	}()
	return fn(ctx, s)
}

// failure is a handler's error as it travels. A handler that ran has executed,
// unless it refuses before it has sent anything.
func (s *ServerCall) failure(err, cause error) *conduit.Error {
	e := *conduit.AsError(err, conduit.Executed)
	var c *conduit.Error
	if cause != nil && errors.As(cause, &c) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF)) {
		// The work was cut short from outside: how far it came, nobody knows. EOF is what
		// Send says of a call that ended while it waited.
		e.Code, e.Reason, e.Message, e.Retryable = c.Code, c.Reason, c.Message, c.Retryable
		e.Outcome = conduit.OutcomeUnknown
	} else if e.Outcome != conduit.Refused || s.sent.Load() {
		e.Outcome = conduit.Executed
	}
	if e.Op == "" {
		e.Op = s.c.o.Op
	}
	return &e
}

// ID returns the call's id on its link: the parent of calls made in it.
func (s *ServerCall) ID() uint64 { return s.id }

// Conn returns the link that the call came on.
func (s *ServerCall) Conn() *Conn { return s.c }

// Invoke returns the call's header. It must not be changed.
func (s *ServerCall) Invoke() *frame.Invoke { return &s.invoke }

// Recv returns the next message of the request, then io.EOF, or why there will
// be none.
func (s *ServerCall) Recv(ctx context.Context) (conduit.Message, error) {
	it, err := s.in.take(ctx, nil, time.Time{}, nil)
	if err != nil {
		return conduit.Message{}, err
	}
	s.c.taken(s.r, it)
	if it.msg.ContentType == "" {
		it.msg.ContentType = contentType(s.invoke.ContentType)
	}
	return it.msg, nil
}

// Send sends a message down and returns when it has been handed to the link. It
// returns io.EOF when the call has ended; ctx's cause tells why.
func (s *ServerCall) Send(ctx context.Context, m conduit.Message) error {
	if err := ctx.Err(); err != nil {
		return conduit.FromContext(ctx, conduit.Executed)
	}
	if err := s.fits(&m); err != nil {
		return err
	}
	s.sent.Store(true)
	d := frame.Data{Part: m.Part, ContentType: typeBytes(m.ContentType), Bytes: m.Data, Total: uint64(len(m.Data)), HasTotal: true}
	return s.c.sendAndWait(ctx, s.r, &d, &s.sendCh)
}

// fits says why a message cannot travel.
func (s *ServerCall) fits(m *conduit.Message) error {
	if !utf8.ValidString(m.ContentType) || len(m.ContentType) > maxName {
		return conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Executed, "the content type of a message is not UTF-8, or longer than 1 KiB")
	}
	// theirs is set before the first call comes, and not changed.
	if int64(len(m.Data)) > s.c.theirs.MaxMessage {
		return s.c.tooLarge(int64(len(m.Data)), conduit.Executed)
	}
	return nil
}

// Return sets what the call returns; it is sent with the call's end.
func (s *ServerCall) Return(m conduit.Message) { s.reply, s.hasRep = m, true }

// Sent reports whether a message has gone down, so that the call cannot be
// refused any more.
func (s *ServerCall) Sent() bool { return s.sent.Load() }
