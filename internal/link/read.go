package link

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// errStop ends the reader when the link has been failed already.
var errStop = errors.New("link over")

// broken says that the other end broke the protocol; the link ends with 1002.
func (c *Conn) broken(format string, args ...any) error {
	return &CloseError{Code: CloseProtocol, Reason: cut(fmt.Sprintf("protocol: "+format, args...), 120)}
}

// readLoop takes packets until the link ends.
func (c *Conn) readLoop() {
	defer close(c.readEnd)
	defer c.crew.end()
	var p frame.Parser
	var f frame.Frame
	for {
		packet, err := c.carrier.ReadMessage()
		if err != nil {
			c.fail(err)
			return
		}
		if err = c.takePacket(&p, &f, packet); err != nil {
			if !errors.Is(err, errStop) {
				c.fail(err)
			}
			// Read on until the carrier closes, so that what this end says last
			// is not lost to a reset, but take nothing of it.
			for err = nil; err == nil; {
				_, err = c.carrier.ReadMessage()
			}
			return
		}
	}
}

// takePacket handles each frame of a packet, then writes what came of it.
func (c *Conn) takePacket(p *frame.Parser, f *frame.Frame, packet []byte) error {
	err := c.takeFrames(p, f, packet)
	if err == nil && c.ahead != nil && c.ahead.Buffered() {
		return nil // what comes of the next one goes with it
	}
	if err == nil {
		c.flush()
	}
	// Also after a fault: what came before it has been passed on.
	for i, t := range c.touched {
		t.flush()
		c.touched[i] = nil
	}
	c.touched = c.touched[:0]
	return err
}

func (c *Conn) takeFrames(p *frame.Parser, f *frame.Frame, packet []byte) error {
	now := time.Now()
	c.mu.Lock()
	c.now = now
	c.stat.PacketsIn++
	c.stat.BytesIn += uint64(len(packet))
	c.heard(now)
	c.arrived()
	over := c.err != nil
	c.unlock()
	if over {
		return errStop
	}
	if len(packet) > c.o.Hello.MaxPacket {
		return &CloseError{Code: CloseTooBig, Reason: fmt.Sprintf("a packet of %d bytes is above the cap of %d", len(packet), c.o.Hello.MaxPacket)}
	}
	p.Reset(packet)
	for {
		ok, err := p.Next(f)
		if err != nil {
			return c.broken("malformed packet: %v", err)
		}
		if !ok {
			return nil
		}
		if err := c.takeFrame(f); err != nil {
			return err
		}
	}
}

// touch has the reader flush another link at the end of the packet.
func (c *Conn) touch(t *Conn) {
	if !slices.Contains(c.touched, t) {
		c.touched = append(c.touched, t)
	}
}

func (c *Conn) takeFrame(f *frame.Frame) error {
	switch f.Kind {
	case frame.KindHello, frame.KindGoAway, frame.KindUnknown: // a GoAway may say why there is no Hello
	default:
		if !c.greeted {
			return c.broken("%s before Hello", f.Kind)
		}
	}
	switch f.Kind {
	case frame.KindHello:
		if c.greeted {
			return c.broken("a second Hello")
		}
		if f.Call != 0 {
			return c.broken("a Hello on call %d", f.Call)
		}
		return c.takeHello(f.Body)
	case frame.KindInvoke:
		return c.takeInvoke(f)
	case frame.KindData:
		return c.takeData(f)
	case frame.KindFailure:
		return c.takeFailure(f)
	case frame.KindCancel:
		return c.takeCancel(f)
	case frame.KindCredit:
		return c.takeCredit(f)
	case frame.KindGoAway:
		return c.takeGoAway(f.Body)
	case frame.KindStatus:
		if c.o.OnStatus != nil {
			c.o.OnStatus(f.Body)
		}
	case frame.KindPing:
		c.mu.Lock()
		if f.Ping.Ack {
			c.pong(f.Ping.Nonce)
		} else if len(c.ctrl) < packetTarget { // a flood of pings is not worth memory
			c.ctrl = frame.AppendPing(c.ctrl, f.Ping.Nonce, true)
		}
		c.unlock()
	case frame.KindUnknown: // from a later version: skipped
	}
	return nil
}

// find returns the call of a frame. A nil call with a nil error is one that has
// ended: the frame is dropped. c.mu is held.
func (c *Conn) find(id uint64) (*call, error) {
	if k := c.calls[id]; k != nil {
		c.units.heard(k.ours, id)
		return k, nil
	}
	if c.used(id) {
		c.units.heard(c.mine(id), id)
		c.stat.Dropped++
		return nil, nil
	}
	return nil, c.broken("call %d was never started", id)
}

// used reports whether an id was given to a call by either end.
func (c *Conn) used(id uint64) bool {
	if id == 0 {
		return false
	}
	if c.mine(id) {
		return id < c.nextID
	}
	return id <= c.lastID
}

// mine reports whether an id is one of those that this end gives.
func (c *Conn) mine(id uint64) bool { return (id%2 == 1) == c.o.Dialer }

// takeInvoke takes a call of the other end, and sees to it that its units are
// judged exactly once, whoever refuses it.
func (c *Conn) takeInvoke(f *frame.Frame) error {
	c.in.units, c.in.judged = f.Invoke.Units, false
	taken, err := c.takeCall(f)
	if taken {
		c.in.judge()
	}
	return err
}

// takeCall takes an Invoke and has it decided. taken is false for one that is not
// to be judged: it is above last_call, or the end of the link.
func (c *Conn) takeCall(f *frame.Frame) (taken bool, _ error) {
	if c.o.Dialer && !c.o.Duplex {
		return false, c.broken("the acceptor of this link may not call")
	}
	if (f.Call%2 == 1) == c.o.Dialer {
		return false, c.broken("call id %d has the wrong parity", f.Call)
	}
	in := &f.Invoke
	c.mu.Lock()
	if c.err != nil { // it ended within this packet: nobody would end this call
		c.unlock()
		return false, errStop
	}
	c.counted(f.Size)
	if f.Call <= c.lastID || f.Call == 0 {
		last := c.lastID
		c.unlock()
		return false, c.broken("call id %d does not grow: the last was %d", f.Call, last)
	}
	c.lastID = f.Call
	if c.refusing {
		// Above last_call: the other end has been told, or will be.
		c.unlock()
		return false, nil
	}
	// Background calls do not count for max_calls, but may be as many again. On a
	// plugin's link they are its claims, which the budget bounds.
	most, kind := int(c.o.Hello.MaxCalls), "calls"
	now := under(c.inc, c.incBackground, c.incLeft, most)
	if in.Background {
		now, kind = c.incBackground, "background calls"
		if c.o.Duplex {
			most = math.MaxInt32
		}
	}
	if now >= 2*most+16 {
		c.unlock()
		return false, &CloseError{Code: CloseTryLater, Reason: "calls go on coming though refused: too many unanswered"}
	}
	k := c.newCall()
	k.id, k.background = f.Call, in.Background
	k.sendCredit = int64(in.ReplyCredit)
	if c.simple {
		k.sendCredit = noCredit
	}
	k.recvLeft = int64(c.o.Hello.CallCredit)
	c.calls[k.id] = k
	c.inc++
	if k.background {
		c.incBackground++
	}
	if in.TimeoutMicros > 0 {
		k.deadline = c.now.Add(time.Duration(min(in.TimeoutMicros, uint64(maxTimeout/time.Microsecond))) * time.Microsecond)
	}
	var refusal *conduit.Error
	payload := int64(len(in.Data.Bytes))
	last, large := in.HasData && in.Data.Last, c.simple && payload+dataCost > k.recvLeft
	switch {
	case int64(f.Size)-payload > maxInvoke:
		refusal = conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.Refused,
			"the Invoke takes %d bytes beside its payload, more than %d", int64(f.Size)-payload, maxInvoke)
	case now >= most:
		refusal = &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Retryable: true, Outcome: conduit.Refused, Op: c.o.Op,
			Message: fmt.Sprintf("%d %s are under way on this link, its limit", most, kind),
		}
	case in.HasData && in.Data.HasTotal && in.Data.Total > uint64(c.o.Hello.MaxMessage):
		refusal = tooLarge(int64(min(in.Data.Total, 1<<62)), c.o.Hello.MaxMessage, conduit.Refused, Options{Op: c.o.Op})
	case c.simple && in.HasData && partial(&in.Data) != "":
		refusal = c.badData(partial(&in.Data))
		refusal.Outcome = conduit.Refused
	case large: // see below
	case !c.simple && in.ReplyCredit < dataCost+1:
		refusal = conduit.Errorf(conduit.Internal, conduit.ReasonProtocol, conduit.Refused, "a reply credit of %d bytes is too small", in.ReplyCredit)
	case in.HasData:
		k.recvLeft -= payload + dataCost
		k.recvDone = in.Data.Last
		if k.recvLeft < 0 {
			refusal = conduit.Errorf(conduit.Internal, conduit.ReasonProtocol, conduit.Refused, "the Invoke's payload is above the call credit of %d bytes", c.o.Hello.CallCredit)
		}
	}
	switch {
	case refusal != nil, large && last: // that one gets memory of its own
	case !last:
		refusal = c.takeRequestWindow(k, int64(c.o.Hello.CallCredit))
	case payload > smallFrame: // smaller ones are few enough by max_calls
		refusal = c.takeRequestWindow(k, payload+dataCost)
	}
	r := k.ref()
	if refusal != nil {
		k.recvDone = true
		c.sendFailure(k, encodeFailure(refusal))
		c.unlock()
		return true, nil
	}
	if large {
		// recvDone only now: nothing more is admitted to a call that is done.
		if k, _ = c.admit(r, payload); k == nil {
			err := c.err
			if k = r.get(); k != nil && !k.sendEnded { // cancelled by this end meanwhile
				c.sendFailure(k, encodeFailure(early(k.cause, false, c.o.Op)))
			}
			c.unlock()
			if err != nil {
				return true, errStop
			}
			return true, nil
		}
		k.recvDone = last
	}
	deadline := k.deadline
	c.unlock()

	c.in.ref, c.in.Invoke, c.in.deadline, c.in.id, c.in.decided = r, in, deadline, f.Call, false
	if c.o.Handler == nil {
		c.in.Refuse(conduit.Errorf(conduit.Unimplemented, conduit.ReasonServiceNotFound, conduit.Refused, "this end serves no calls"))
	} else {
		c.o.Handler.Handle(&c.in)
	}
	if !c.in.decided { // or its caller would wait for ever
		c.in.Refuse(conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "this end did not decide about the call"))
	}
	c.in.ref, c.in.Invoke = ref{}, nil
	return true, nil
}

// maxTimeout bounds a deadline that travels, so that sums do not overflow.
const maxTimeout = 365 * 24 * time.Hour

// takeRequestWindow promises memory for a request: a window for one that goes
// on, or what one that is whole holds until it is taken. c.mu is held.
func (c *Conn) takeRequestWindow(k *call, n int64) *conduit.Error {
	if c.windows+n <= c.o.LinkMemory && c.memory.takeWindow(n, n) == n {
		c.windows += n
		k.window = n
		return nil
	}
	return &conduit.Error{
		Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
		Message: "no memory is left on this link for one more request: see cluster.memory and cluster.link_memory",
	}
}

func (c *Conn) takeData(f *frame.Frame) error {
	d := &f.Data
	c.mu.Lock()
	c.counted(f.Size)
	k, err := c.find(f.Call)
	if k == nil {
		c.unlock()
		return err
	}
	if k.recvDone || k.fault != nil {
		c.stat.Dropped++
		if k.fault != nil && d.Last {
			c.ended(k, nil, nil)
		}
		c.unlock()
		return nil
	}
	r := k.ref()
	if fault := c.dataRefused(k, d); fault != nil {
		c.faultedBy(r, fault, d)
		c.unlock()
		return nil
	}
	large := false
	if c.simple {
		if k, large = c.admit(r, int64(len(d.Bytes))); k == nil {
			err := c.err
			c.stat.Dropped++
			c.endFaulted(r, d)
			c.unlock()
			if err != nil {
				return errStop
			}
			return nil
		}
	} else {
		k.recvLeft -= int64(len(d.Bytes)) + dataCost
	}
	if d.Last {
		k.recvDone = true
	}
	if k.in != nil { // a local call
		in, open := k.in, &k.open
		if fault := c.assemble(r, k, in, open, d); fault != nil {
			c.faultedBy(r, fault, d)
			c.unlock()
			return nil
		}
		if d.Last {
			if k.ours {
				c.ended(k, nil, nil)
			} else {
				in.end(nil)
			}
		}
		c.unlock()
		return nil
	}
	if k.peer.k == nil && k.hold == nil { // decided and refused, or being decided
		c.stat.Dropped++
		c.unlock()
		return nil
	}
	// Spliced.
	var p passing
	if large {
		if p.res = c.handOver(k); k.hold != nil {
			c.lastAttempt(k) // only what lies in the window can be passed on again
		}
	}
	var own frame.Data
	if k.hold != nil {
		var pass bool
		if p.held, pass = c.takeHeld(k, d, &own); !pass {
			c.unlock()
			return nil
		}
		if p.held != nil {
			d = &own
		}
	}
	if to := k.peer.k; to != nil && to.conn.simple && p.res == nil && !c.simple {
		fault := c.joining(r, d, &p)
		if fault != nil {
			c.faultedBy(r, fault, d)
		}
		if k = r.get(); fault != nil || k == nil || k.peer.k == nil {
			if p.held != nil {
				p.held.release()
			}
			if p.res != nil {
				c.later(effect{kind: effectTaken, res: p.res})
			}
			c.stat.Dropped++
			c.unlock()
			return nil
		}
	}
	from, to, ended := k.ref(), k.peer, d.Last && k.ours
	from.try = k.try
	k.held = false // an answer begins
	if ended {
		c.ended(k, nil, nil)
		from = ref{}
	}
	c.unlock()
	n := to.k.conn.forward(to, d, from, p)
	if p.held != nil {
		p.held.release()
	}
	if n > 0 && !ended {
		c.mu.Lock()
		if k := from.get(); k != nil && k.try == from.try {
			c.credit(k, n)
		}
		c.unlock()
	}
	c.touch(to.k.conn)
	return nil
}

// forward passes a Data on to the other half of a splice. It returns the call
// credit to give back at once; the rest is given back when it is written.
func (c *Conn) forward(to ref, d *frame.Data, from ref, p passing) (credit int64) {
	c.mu.Lock()
	defer c.unlock()
	k := to.get()
	if k == nil || k.sendEnded {
		return c.drop(d, p)
	}
	if k.hold != nil {
		c.lastAttempt(k)
	}
	if k.cancelled && !k.ours {
		// Nothing is sent for it any more but one Failure.
		if d.Last {
			c.sendFailure(k, canceledBody(k, c.o.Op))
		}
		return c.drop(d, p)
	}
	if d.HasTotal && d.Total > uint64(c.theirs.MaxMessage) {
		c.oversized(k, int64(min(d.Total, 1<<62)))
		if p.res != nil {
			c.drop(d, p)
		}
		return 0
	}
	if c.simple && (d.More || k.join.active) {
		return c.join(k, d, from, p)
	}
	if c.sendData(k, d, p.held == nil, from, nil) {
		return c.drop(d, p) // written, and so over
	}
	it := &k.q[len(k.q)-1]
	it.carry(p.res, k)
	if p.held != nil {
		p.held.refs.Add(1)
		it.held = p.held
	}
	return 0
}

// dataRefused says what is wrong with a Data whatever is open, and whatever becomes of
// it. c.mu is held.
func (c *Conn) dataRefused(k *call, d *frame.Data) *conduit.Error {
	switch {
	case c.simple && partial(d) != "":
		return c.badData(partial(d))
	case !c.simple && k.recvLeft < int64(len(d.Bytes))+dataCost:
		return c.badData("more data than call credit allows")
	case len(d.ContentType) > maxName:
		return c.badData("a content type of over 1 KiB")
	case d.HasTotal && d.Total > uint64(c.o.Hello.MaxMessage):
		o := Options{Op: c.o.Op} // whose limit it is tells this end's callers nothing
		if k.in != nil {
			o = c.o
		}
		return tooLarge(int64(min(d.Total, 1<<62)), c.o.Hello.MaxMessage, conduit.OutcomeUnknown, o)
	}
	return nil
}

// faultedBy ends a call by a Data that came for it. c.mu is held.
func (c *Conn) faultedBy(r ref, err *conduit.Error, d *frame.Data) {
	if k := r.get(); k != nil {
		c.faulted(k, err)
		c.endFaulted(r, d)
	}
}

// endFaulted takes a call off the link that was failed before the last Data of its answer
// came: nothing follows that. c.mu is held.
func (c *Conn) endFaulted(r ref, d *frame.Data) {
	if k := r.get(); k != nil && k.fault != nil && d.Last {
		c.ended(k, nil, nil)
	}
}

// violated ends a call whose other end broke the rules of that call alone.
// c.mu is held.
func (c *Conn) violated(k *call, what string) {
	c.faulted(k, &conduit.Error{
		Code: conduit.Internal, Reason: conduit.ReasonProtocol, Outcome: conduit.OutcomeUnknown, Op: c.o.Op, Peer: c.o.Peer.Name,
		Message: "the other end broke the protocol of this call: " + what,
	})
}

// faulted ends a call from this end with an error, both ways. c.mu is held.
func (c *Conn) faulted(k *call, err *conduit.Error) {
	c.wake()
	if k.ours {
		if k.owner != nil {
			c.orphan(k, err)
			return
		}
		c.tellCancel(k, err.Reason)
		c.ended(k, err, nil)
		return
	}
	if k.server != nil {
		k.server.ctx.end(err)
	}
	if k.in != nil {
		k.in.end(err)
	}
	if k.parked() {
		c.unpark(k, told(err, k.doubt))
	}
	if k.peer.k != nil {
		c.later(effect{kind: effectCancel, to: k.peer, reason: err.Reason})
	}
	k.recvDone = true
	k.dropQueue()
	k.sendEnded = false
	c.sendFailure(k, encodeFailure(err))
}

func (c *Conn) takeFailure(f *frame.Frame) error {
	c.mu.Lock()
	defer c.unlock()
	c.counted(f.Size)
	k, err := c.find(f.Call)
	if k == nil {
		return err
	}
	if !k.ours {
		return c.broken("a Failure for call %d, which the other end made itself", f.Call)
	}
	e, err := decodeFailure(f.Body)
	if err != nil {
		return c.broken("the Failure of call %d does not decode", f.Call)
	}
	var body []byte
	if k.peer.k != nil {
		body = c.passedOn(f.Body, e)
	}
	if e.Outcome == conduit.NotSent { // it was: here is the answer
		e.Outcome = conduit.Refused
	}
	if e.Peer == "" {
		e.Peer = c.o.Peer.Name
	}
	c.ended(k, e, body)
	return nil
}

// passedOn is a Failure as it goes on to the caller: as it came, but cut if it is too
// long; with the instance that made it, if this link is to one and nobody said so
// before; and not saying of a call that came here that it was not sent. What is
// appended to an encoded message stands in place of what it says before. c.mu is held.
func (c *Conn) passedOn(body []byte, e *conduit.Error) []byte {
	const outcome, peer = 3, 8 // fields of Failure
	if len(body) > maxFailure {
		body = encodeFailure(e)
	}
	from := ""
	if e.Peer == "" {
		from = cut(c.theirs.Instance, maxName)
	}
	out := append(make([]byte, 0, len(body)+len(from)+8), body...)
	if e.Outcome == conduit.NotSent {
		out = protowire.AppendVarint(protowire.AppendTag(out, outcome, protowire.VarintType), uint64(conduit.Refused))
	}
	if from != "" {
		out = protowire.AppendString(protowire.AppendTag(out, peer, protowire.BytesType), from)
	}
	return out
}

func (c *Conn) takeCancel(f *frame.Frame) error {
	c.mu.Lock()
	k, err := c.find(f.Call)
	if k == nil {
		c.unlock()
		return err
	}
	if k.ours {
		c.unlock()
		return c.broken("a Cancel for call %d, which the other end serves", f.Call)
	}
	r, cause := k.ref(), causeOf(cut(string(f.Reason), maxReason))
	c.unlock()
	c.cancelServed(r, cause)
	return nil
}

// cancelServed cancels a call that this end serves: its handler sees the cause,
// what is queued of its answer is dropped, and one Failure ends it. An answer
// that is written has won; one that is queued has not, since it may wait for
// credit from a caller that is gone.
func (c *Conn) cancelServed(r ref, cause *conduit.Error) {
	c.mu.Lock()
	defer c.unlock()
	k := r.get()
	if k == nil || k.cancelled {
		return
	}
	c.cancel(k)
	k.cause = cause
	if k.parked() {
		c.endParked(k, early(cause, k.doubt, c.o.Op))
		return
	}
	if k.hold != nil {
		c.lastAttempt(k)
	}
	if k.sendEnded && k.pending() > 0 {
		body := canceledBody(k, c.o.Op)
		if last := &k.q[len(k.q)-1]; last.kind == itemFailure {
			body = last.body
		}
		k.dropQueue()
		k.sendEnded = false
		c.sendFailure(k, body)
		return
	}
	k.dropQueue()
	c.stopTaking(k)
	if k.server != nil {
		k.server.ctx.end(cause)
		k.in.end(cause)
	}
	if k.peer.k != nil {
		c.later(effect{kind: effectCancel, to: k.peer, reason: cause.Reason})
	}
}

// stopTaking gives up what a cancelled call was promised for what it would still
// have sent: its handler may go on for long. c.mu is held.
func (c *Conn) stopTaking(k *call) {
	if k.hold != nil { // somebody passes it on, from there
		return
	}
	c.dropAssembly(k)
	if k.recvDone {
		return
	}
	k.recvDone, k.recvOwed = true, 0
	c.wake()
	keep := int64(0) // what lies in another link's queue is dropped there
	if k.in != nil {
		keep = k.in.cost()
	}
	c.freeWindow(k, k.window-keep)
}

// canceledBody is the Failure of a cancelled call whose work was done.
func canceledBody(k *call, op string) []byte {
	e := *k.cause
	e.Outcome, e.Op = conduit.Executed, op
	return encodeFailure(&e)
}

// cancelCall cancels the half of a splice that this link's other end serves.
// The half goes on until that end is done with the call.
func (c *Conn) cancelCall(r ref, reason string) {
	c.mu.Lock()
	if k := r.get(); k != nil && k.ours {
		if k.id == 0 {
			cause := causeOf(reason)
			cause.Outcome, cause.Op = conduit.Refused, c.o.Op
			c.ended(k, cause, nil)
		} else {
			k.dropQueue()
			k.sendEnded = true
			c.tellCancel(k, reason)
		}
	}
	c.unlock()
	c.flush()
}

func (c *Conn) takeCredit(f *frame.Frame) error {
	const most = int64(1) << 40
	c.mu.Lock()
	defer c.unlock()
	if c.simple {
		return nil // there is none to be given
	}
	if f.Call == 0 {
		n := int64(min(f.Credit, uint64(most)))
		c.linkCredit += n
		if over := n - c.unreturned; over > 0 && n <= most {
			c.grow.given += over
		}
		c.unreturned = max(0, c.unreturned-n)
		c.blocked = false
		if f.Credit > uint64(most) || c.linkCredit > most {
			return c.broken("link credit overflow")
		}
		return nil
	}
	k, err := c.find(f.Call)
	if k == nil {
		return err
	}
	if f.Credit > uint64(most) || k.sendCredit+int64(f.Credit) > most {
		c.violated(k, "call credit overflow")
		return nil
	}
	k.sendCredit += int64(f.Credit)
	if k.list == nil {
		c.enlist(k)
	}
	return nil
}
