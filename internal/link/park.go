package link

import (
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Router owns spliced calls that it may pass on again. Each call that was given
// to [Incoming.SpliceHeld] or [Parked.SpliceHeld] ends with exactly one
// CallEnded, whatever the number of attempts, with the tag of its last one; code
// and outcome are those of that attempt, or of the decision that ended the call.
type Router interface {
	Owner
	// Failed says that an attempt ended with an error before anything of an answer
	// was passed on, while the whole request is still held: the other end said so,
	// its link died or goes away, or could not take the call. err is what the
	// caller would be told; its outcome is that of this attempt alone. The work of
	// an attempt that ended as unknown may still go on.
	//
	// If Failed returns true, p is the router's to decide: within Failed or later,
	// from any goroutine, and exactly once, also if the call is over by then. The
	// attempt is over; CallEnded follows only after that decision. If it returns
	// false without having decided, err goes to the caller, and CallEnded follows
	// at once. When an attempt's failure cannot be made good any more (an answer has
	// begun, the request is larger than its window, the caller has cancelled), Failed
	// is not asked.
	//
	// It runs on a goroutine of a link (a reader, as a rule) or on the one that
	// passed the call on, with no lock of a link held, and must not block.
	Failed(p Parked, tag uint64, err *conduit.Error) bool
}

// Parked is a call that waits for its decision: one of Splice, SpliceHeld, Serve,
// Refuse and Fail, to be made exactly once, from any goroutine; a second one does
// nothing. Until then the request is held as it comes, within its window, and its
// caller gets no credit for more.
//
// The caller's Cancel, its deadline and the loss of its link end the call at once,
// as they end any other; Done tells. The decision is to be made even so: it costs
// nothing then, gives back what is held, and tells the owner.
//
// The units of the Invoke count as judged with the first decision: until then they
// are sent, and not judged.
//
// A Parked is a small value; copies stand for the same decision. Its methods may
// be called concurrently.
type Parked struct {
	h    *hold
	turn uint64
}

// Park takes the call, to decide about it later. When there is no memory to hold
// it, it is refused and over already.
func (in *Incoming) Park() Parked {
	c := in.conn
	in.decided = true
	c.mu.Lock()
	h, why := c.startHold(in)
	var p Parked
	if why == nil {
		p = c.park(h.call.get(), h)
		c.letGo(h)
		if !in.judged {
			in.judged, h.owed = true, in.units
		}
	} else {
		h.turn++
		h.state, h.over = holdOver, why
		p = Parked{h, h.turn}
		if k := in.ref.get(); k != nil {
			k.recvDone = true
			c.sendFailure(k, encodeFailure(why))
		}
	}
	c.unlock()
	return p
}

// SpliceHeld is Splice for a router that may want the call back. It costs one copy
// of the request, of at most its window (64 KiB): a request that grows beyond that
// is spliced as any other from then on, and so is one for which there is no memory.
// When the link cannot take the call, router.Failed is asked before it returns.
func (in *Incoming) SpliceHeld(to *Conn, out *frame.Invoke, router Router, tag uint64) {
	c := in.conn
	in.decided = true
	c.mu.Lock()
	h, why := c.startHold(in)
	if why == nil {
		h.pass(h.call.get(), to, out, router, router, tag)
		c.touch(to)
		return
	}
	c.letGo(h)
	room := in.ref.get() != nil && why.Reason == conduit.ReasonOverloaded
	c.unlock()
	if !room {
		to.units.neverSent(out.Units)
		router.CallEnded(tag, why.Code, why.Outcome)
		in.Refuse(why)
		return
	}
	in.Splice(to, out, router, tag)
}

// startHold begins to hold a call. The error says why it is not held; then the hold
// has no call. One reference is the caller's of this. c.mu is held.
func (c *Conn) startHold(in *Incoming) (*hold, *conduit.Error) {
	h := c.newHold()
	h.keepInvoke(in.Invoke)
	h.id, h.deadline, h.refs = in.id, in.deadline, 1
	k := in.ref.get()
	switch {
	case k == nil:
		return h, early(c.lost(conduit.Refused), false, c.o.Op)
	case k.cancelled:
		return h, early(k.cause, false, c.o.Op)
	case !c.takeExtra(k, h.extraOf(k)):
		return h, c.noRoomToHold()
	}
	h.call, k.hold = k.ref(), h
	h.refs++
	return h, nil
}

// noRoomToHold is the error of a request for which no memory is left.
func (c *Conn) noRoomToHold() *conduit.Error {
	return &conduit.Error{
		Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
		Message: "no memory is left on this link to hold one more request: see cluster.memory and cluster.link_memory",
	}
}

// Conn returns the link that the call came on.
func (p Parked) Conn() *Conn { return p.h.conn }

// ID returns the call's id on its link. As with Deadline and Invoke, it must be
// asked before the decision.
func (p Parked) ID() uint64 { return p.h.id }

// Peer returns what the link's owner said of its other end.
func (p Parked) Peer() Peer { return p.h.conn.o.Peer }

// Deadline returns when the caller gives up; ok is false if it does not.
func (p Parked) Deadline() (at time.Time, ok bool) { return p.h.deadline, !p.h.deadline.IsZero() }

// Invoke returns the call as it came. It must not be changed, and is valid until
// the decision, also when the call is over.
func (p Parked) Invoke() *frame.Invoke { return &p.h.inv }

// Reporter returns the link's: see [Incoming.Reporter].
func (p Parked) Reporter() Reporter { return p.h.conn.o.Reporter }

// MarkJudged says that whoever decides about the call counts its units as judged, by the
// link's Reporter, and returns how many: none if they were counted before it was parked.
// Otherwise the decision does it.
func (p Parked) MarkJudged() (units int64) {
	h := p.h
	h.conn.mu.Lock()
	defer h.conn.mu.Unlock()
	if h.turn == p.turn {
		units, h.owed = int64(h.owed), 0
	}
	return units
}

// SetGuest says on whose right the call runs: see [Incoming.SetGuest]. The guest of one
// that is over, or was decided about, hears at once that it is.
func (p Parked) SetGuest(g Guest) {
	h, c := p.h, p.h.conn
	c.mu.Lock()
	var k *call
	if h.turn == p.turn && h.state == holdParked {
		k = h.call.get()
	}
	c.host(k, g)
	c.unlock()
}

// Done is closed when the call is over or decided about.
func (p Parked) Done() <-chan struct{} {
	h := p.h
	h.conn.mu.Lock()
	defer h.conn.mu.Unlock()
	if h.turn == p.turn && h.state == holdParked {
		if h.done == nil {
			h.done = make(chan struct{})
		}
		return h.done
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Splice passes the call on, as [Incoming.Splice] does. owner hears of the end
// exactly once, also when the call is over or was decided about before.
func (p Parked) Splice(to *Conn, out *frame.Invoke, owner Owner, tag uint64) {
	p.splice(to, out, owner, nil, tag)
}

// SpliceHeld passes the call on, as [Incoming.SpliceHeld] does: if this attempt
// fails too, the router may have the call back.
func (p Parked) SpliceHeld(to *Conn, out *frame.Invoke, router Router, tag uint64) {
	p.splice(to, out, router, router, tag)
}

func (p Parked) splice(to *Conn, out *frame.Invoke, owner Owner, router Router, tag uint64) {
	h, c := p.h, p.h.conn
	k, first := p.claim()
	if k == nil {
		to.units.neverSent(out.Units) // whoever picked the link counted them as sent
		e := attemptEnd{err: causeOf(""), owner: owner, tag: tag}
		if first {
			e.err = h.over
			c.letGo(h)
		}
		c.unlock()
		e.tell()
		return
	}
	h.pass(k, to, out, owner, router, tag)
	to.flush()
	c.flush()
}

// Refuse ends the call with an error. The outcome becomes Refused unless it is
// Executed, or an earlier attempt may have done the work: then it is unknown.
func (p Parked) Refuse(err *conduit.Error) {
	e := *err
	if e.Outcome != conduit.Executed {
		e.Outcome = conduit.Refused
	}
	p.Fail(&e)
}

// Fail ends the call with an error and its outcome. Only NotSent becomes Refused,
// since the caller did send the call, and both become unknown if an earlier attempt
// may have done the work.
func (p Parked) Fail(err *conduit.Error) {
	e := *err
	if e.Op == "" {
		e.Op = p.h.conn.o.Op
	}
	p.end(&e, nil)
}

// end ends the call with an error, of which body is the form on the wire if there
// is one already. It does nothing if the call was decided about.
func (p Parked) end(err *conduit.Error, body []byte) {
	h, c := p.h, p.h.conn
	k, first := p.claim()
	if !first {
		c.unlock()
		return
	}
	e := attemptEnd{err: h.over, owner: h.owner, tag: h.tag}
	var r ref
	if k != nil {
		e.err, e.body, r = told(err, k.doubt), body, k.ref()
		c.dropHold(k)
	}
	c.letGo(h)
	c.unlock()
	if e.owner != nil {
		e.tell()
	}
	if r.k != nil {
		c.failCall(r, e.wire(), false)
	}
}

// Serve runs the call here, on a goroutine of its own. The owner of an attempt that
// was made before hears of its end at once, with the error of that attempt.
func (p Parked) Serve(fn ServeFunc) {
	h, c := p.h, p.h.conn
	k, first := p.claim()
	if !first {
		c.unlock()
		return
	}
	if h.owner != nil {
		e := attemptEnd{err: h.over, owner: h.owner, tag: h.tag}
		if k != nil {
			e.err = h.failed
		}
		c.later(effect{kind: effectOwner, owner: e.owner, tag: e.tag, code: e.err.Code, outcome: e.err.Outcome})
	}
	if k == nil {
		c.letGo(h)
		c.unlock()
		return
	}
	r := k.ref()
	s := c.newServed(r, h.id, &h.inv, h.deadline)
	c.begin(k, h, nil, nil, 0)
	fault := h.into(r, s)
	k = r.get()
	c.letGo(h)
	if k == nil || fault != nil {
		if k != nil {
			fault.Outcome = conduit.Refused
			c.faulted(k, told(fault, k.doubt))
		}
		c.unlock()
		s.ctx.end(nil)
		if v := s.in.drain(nil); v != nil {
			c.memory.release(v)
		}
		c.flush()
		return
	}
	c.dropHold(k)
	k.server, k.in = s, &s.in
	if k.recvDone {
		s.in.end(nil)
	}
	if k.cancelled {
		s.ctx.end(k.cause)
		s.in.end(k.cause)
	}
	c.unlock()
	c.serve(served{s: s, fn: fn})
	c.flush()
}

// takeHeld keeps a Data of a call that is held. pass says that it is to be passed
// on now: as it came if it is not held any more, else from own, which lies in a
// chunk that the caller is to release. c.mu is held.
func (c *Conn) takeHeld(k *call, d, own *frame.Data) (ch *holdChunk, pass bool) {
	h := k.hold
	may := int64(c.o.Hello.CallCredit)
	if k.lent > 0 { // the Invoke's message has memory beside the window
		may += k.lent + dataCost
	}
	full := h.size+int64(len(d.Bytes))+dataCost > may
	switch {
	case full && h.state == holdSpliced:
		c.dropHold(k)
		return nil, true
	case full && h.state == holdParked:
		// It was passed on before, or its caller had no credit for this. Now it
		// cannot be passed on again.
		c.endParked(k, told(h.failed, k.doubt))
		return nil, false
	case full:
		h.lost = true // it goes on to whom it is being passed on to, and to no one else
	}
	h.keep(d)
	if h.state != holdSpliced {
		return nil, false
	}
	*own, ch = h.piece(len(h.pieces) - 1)
	ch.refs.Add(1)
	return ch, true
}

// lastAttempt notes that no other attempt follows: something of an answer goes to
// the caller, or it has cancelled. c.mu is held.
func (c *Conn) lastAttempt(k *call) {
	if k.hold.state == holdSpliced {
		c.dropHold(k)
	} else {
		k.hold.lost = true
	}
}

// into puts what is held into the inbox of a call that this end serves, and what
// comes meanwhile. c.mu is held on entry and on return; see assemble.
func (h *hold) into(r ref, s *ServerCall) *conduit.Error {
	c := h.conn
	d, has := h.inv.Data, h.inv.HasData
	for {
		k := r.get()
		if k == nil {
			return nil
		}
		if has {
			if fault := c.assemble(r, k, &s.in, &k.open, &d); fault != nil {
				return fault
			}
		}
		if k = r.get(); k == nil || h.next == len(h.pieces) {
			return nil
		}
		d, _ = h.piece(h.next)
		h.next, has = h.next+1, true
	}
}

// claim makes the decision that p stands for. first is false if it was made before.
// k is nil if the call is over. The caller of claim has the reference to the hold
// that p had, if it is the first. c.mu is held on return.
func (p Parked) claim() (k *call, first bool) {
	h := p.h
	// Before what comes of it, so that a Status which goes with that says so; and with
	// no lock of the link held.
	if r := h.conn.o.Reporter; r != nil {
		if units := p.MarkJudged(); units > 0 {
			r.Refuse(units)
		}
	}
	h.conn.mu.Lock()
	if h.turn != p.turn {
		return nil, false
	}
	h.turn++
	h.settle()
	if h.state == holdOver {
		return nil, true
	}
	return h.call.get(), true
}

// settle lets go of who waits for the end of a parked call. c.mu is held.
func (h *hold) settle() {
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if h.done != nil {
		close(h.done)
		h.done = nil
	}
}

// park has a call wait for its decision. c.mu is held.
func (c *Conn) park(k *call, h *hold) Parked {
	h.turn++
	h.refs++
	h.state = holdParked
	k.peer = ref{}
	k.try++ // what the last attempt still returns is not counted
	if !h.deadline.IsZero() {
		turn := h.turn
		h.timer = time.AfterFunc(time.Until(h.deadline), func() { c.parkedTooLong(h, turn) })
	}
	return Parked{h, h.turn}
}

// parkedTooLong ends a call whose deadline passed while it was parked.
func (c *Conn) parkedTooLong(h *hold, turn uint64) {
	c.mu.Lock()
	if h.turn == turn && h.state == holdParked {
		k := h.call.get()
		c.endParked(k, early(errDeadline, k.doubt, c.o.Op))
	}
	c.unlock()
	c.kick()
}

// endParked ends a parked call with an error. c.mu is held.
func (c *Conn) endParked(k *call, err *conduit.Error) {
	c.unpark(k, err)
	k.recvDone = true
	c.wake()
	c.sendFailure(k, encodeFailure(err))
}

// unpark notes that a parked call is over, and why. Its owner hears of it when the
// decision is made. c.mu is held.
func (c *Conn) unpark(k *call, why *conduit.Error) {
	h := k.hold
	h.state, h.over = holdOver, why
	h.settle()
	c.dropHold(k)
}

// parked reports whether a call waits for its decision. c.mu is held.
func (k *call) parked() bool { return k.hold != nil && k.hold.state == holdParked }

// begin begins an attempt: from now until the state changes, what comes of the
// request is held and not passed on. c.mu is held.
func (c *Conn) begin(k *call, h *hold, owner Owner, router Router, tag uint64) {
	h.state, h.owner, h.router, h.tag = holdPassing, owner, router, tag
	h.early, h.next = nil, 0
	if k.open.active {
		k.open = assembly{} // all of the request goes once more
	}
	k.try++
	k.skip = h.paid
}

// pass makes an attempt. It is given c.mu and a reference to the hold, and releases
// both.
func (h *hold) pass(k *call, to *Conn, out *frame.Invoke, owner Owner, router Router, tag uint64) {
	c := h.conn
	c.begin(k, h, owner, router, tag)
	if more := h.paid - h.counted; more > 0 && !k.recvDone {
		// What the caller was credited for comes to wait once more, beside what it
		// may send now.
		if !c.takeExtra(k, more) {
			to.units.neverSent(out.Units)
			c.attemptOver(k, h, attemptEnd{err: c.noRoomToHold(), owner: owner, tag: tag})
			return
		}
		h.counted = h.paid
	}
	from := spliceFrom{call: h.call, deadline: h.deadline, credit: h.inv.ReplyCredit, chunk: h.chunks[0], held: router != nil, res: c.handOver(k)}
	h.lost = h.lost || from.res != nil // what is to be passed on again lies in the window
	from.call.try = k.try
	c.unlock()
	out.Data, out.HasData = h.inv.Data, h.inv.HasData
	out.TimeoutMicros = 0
	if !h.deadline.IsZero() {
		out.TimeoutMicros = micros(time.Until(h.deadline))
	}
	b, paid, err := to.spliced(&from, out, owner, tag)
	if err != nil {
		to.units.neverSent(out.Units)
	}
	c.mu.Lock()
	if err != nil {
		if from.res != nil {
			c.later(effect{kind: effectTaken, res: from.res})
		}
		c.attemptOver(h.call.get(), h, attemptEnd{err: err, owner: owner, tag: tag})
		return
	}
	if d := h.inv.Data; to.simple && h.inv.HasData && d.More {
		if fault := c.joining(h.call, &d, new(passing)); fault != nil {
			c.faulted(h.call.get(), fault)
		}
	}
	h.follow(b, from.call, paid)
}

// follow passes on what came behind the Invoke, of which the caller is to be
// credited for paid, until all is with the other link; from then on the reader does.
// It is given c.mu and a reference to the hold, and releases both.
func (h *hold) follow(b, from ref, paid int64) {
	c, to := h.conn, b.k.conn
	var k *call
	for {
		k = h.call.get()
		if k == nil || k.cancelled || k.sendEnded || h.early != nil {
			break
		}
		if paid > 0 {
			c.credit(k, paid)
		}
		if h.next == len(h.pieces) {
			break
		}
		d, ch := h.piece(h.next)
		h.next++
		p := passing{held: ch}
		if to.simple {
			ch.refs.Add(1) // the hold may go when the lock is released
			fault := c.joining(h.call, &d, &p)
			if k = h.call.get(); k != nil && fault != nil {
				c.faulted(k, fault)
			}
			if k == nil || fault != nil {
				ch.release()
				paid = 0
				continue
			}
		}
		c.unlock()
		paid = to.forward(b, &d, from, p)
		if to.simple {
			ch.release()
		}
		c.mu.Lock()
	}
	switch {
	case h.early != nil:
		c.attemptOver(k, h, *h.early)
		return
	case k == nil || k.sendEnded: // answered already, or this link died meanwhile
		c.later(effect{kind: effectCancel, to: b, reason: c.o.LostReason})
		if k != nil { // its answer waits; the attempt's end is nobody's here
			h.state = holdSpliced
			c.dropHold(k)
		}
	default:
		k.peer, h.state = b, holdSpliced
		c.wake()
		if k.cancelled {
			c.later(effect{kind: effectCancel, to: b, reason: k.cause.Reason})
		}
		if h.lost || h.router == nil {
			c.dropHold(k)
		}
	}
	c.letGo(h)
	c.unlock()
}

// attemptEnd is how an attempt ended that may be followed by another.
type attemptEnd struct {
	err   *conduit.Error
	body  []byte // the same on the wire, if it came so
	owner Owner
	tag   uint64
}

func (e *attemptEnd) tell() { e.owner.CallEnded(e.tag, e.err.Code, e.err.Outcome) }

func (e *attemptEnd) wire() []byte {
	if e.body != nil {
		return e.body
	}
	return encodeFailure(e.err)
}

// attemptFailed takes what the other link says of the end of an attempt.
func (c *Conn) attemptFailed(r ref, e attemptEnd) {
	c.mu.Lock()
	k := r.get()
	if k != nil && k.hold != nil && k.hold.state == holdPassing {
		k.hold.early = &e // whoever passes it on goes on with it
		c.unlock()
		return
	}
	if k == nil || k.hold == nil {
		if k != nil {
			e.err = told(e.err, k.doubt)
		}
		c.unlock()
		c.giveUp(r, e)
		return
	}
	k.hold.refs++
	c.attemptOver(k, k.hold, e)
}

// attemptOver asks the router about a failed attempt, if the call can be passed on
// once more, and else passes the failure on. k is nil if the call is over. It is
// given a reference to the hold, and c.mu, and releases both.
func (c *Conn) attemptOver(k *call, h *hold, e attemptEnd) {
	if k == nil {
		c.letGo(h)
		c.unlock()
		e.tell()
		return
	}
	r := k.ref()
	h.state = holdSpliced
	if k.sendEnded || h.lost || h.router == nil || k.hold != h {
		e.err = told(e.err, k.doubt)
		c.dropHold(k)
		c.letGo(h)
		c.unlock()
		c.giveUp(r, e)
		return
	}
	e.err = told(e.err, false)
	h.failed = told(e.err, k.doubt)
	if e.err.Outcome != conduit.Refused {
		k.doubt = true
	}
	p, router := c.park(k, h), h.router
	c.letGo(h)
	c.unlock()
	if !router.Failed(p, e.tag, e.err) {
		p.end(e.err, e.body)
	}
}

// giveUp passes the failure of an attempt on to the caller.
func (c *Conn) giveUp(r ref, e attemptEnd) {
	e.tell()
	c.failCall(r, e.wire(), false)
}

// told is an error as the caller of a passed on call hears it: it did send the
// call, and if an earlier attempt may have done the work, that is not denied.
func told(err *conduit.Error, doubt bool) *conduit.Error {
	outcome := err.Outcome
	if outcome == conduit.NotSent {
		outcome = conduit.Refused
	}
	if doubt && outcome == conduit.Refused {
		outcome = conduit.OutcomeUnknown
	}
	if outcome == err.Outcome {
		return err
	}
	e := *err
	e.Outcome = outcome
	return &e
}

// early is the error of a call that ended before it was decided about.
func early(cause *conduit.Error, doubt bool, op string) *conduit.Error {
	e := *cause
	e.Outcome, e.Op = conduit.Refused, op
	return told(&e, doubt)
}
