package link

import (
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Splice passes the call on to another link: from now on the two links' readers
// move its frames, and no goroutine waits for it. out is the Invoke as the
// other end of that link is to see it; its payload, its remaining time and its
// reply credit are filled in here. owner hears of the end exactly once, also
// when the other link cannot take the call: then the call is refused.
func (in *Incoming) Splice(to *Conn, out *frame.Invoke, owner Owner, tag uint64) {
	from := in.conn
	out.Data, out.HasData = in.Invoke.Data, in.Invoke.HasData
	out.TimeoutMicros = 0
	if !in.deadline.IsZero() {
		out.TimeoutMicros = micros(time.Until(in.deadline))
	}
	in.decided = true
	half := spliceFrom{call: in.ref, deadline: in.deadline, credit: in.Invoke.ReplyCredit}
	if from.simple {
		from.mu.Lock()
		if a := in.ref.get(); a != nil {
			half.res = from.handOver(a)
		}
		from.unlock()
	}
	b, paid, err := to.spliced(&half, out, owner, tag)
	if err != nil {
		if half.res != nil {
			from.taken(half.res.r, inboxItem{res: half.res})
		}
		to.units.neverSent(out.Units)
		owner.CallEnded(tag, err.Code, err.Outcome)
		in.Refuse(err)
		return
	}
	from.mu.Lock()
	a := in.ref.get()
	switch {
	case a == nil: // answered already, or this link died meanwhile
		from.later(effect{kind: effectCancel, to: b, reason: from.o.LostReason})
	case a.cancelled:
		a.peer = b
		from.later(effect{kind: effectCancel, to: b, reason: a.cause.Reason})
	default:
		a.peer = b
		if paid > 0 {
			from.credit(a, paid)
		}
		if to.simple && in.Invoke.HasData && in.Invoke.Data.More {
			fault := from.joining(in.ref, &in.Invoke.Data, new(passing))
			if a = in.ref.get(); a != nil && fault != nil {
				from.faulted(a, fault)
			}
		}
	}
	from.unlock()
	from.touch(to)
}

// Spliced returns the tag of a call that was passed on to this link and is under
// way under this id, as the parent of the calls that a plugin makes in it.
func (c *Conn) Spliced(id uint64) (tag uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.calls[id]; k != nil && k.ours && k.owner != nil {
		return k.tag, true
	}
	return 0, false
}

// spliceFrom is the half of a splice that came.
type spliceFrom struct {
	call     ref
	deadline time.Time
	credit   uint32       // for the reply
	chunk    *holdChunk   // what the payload lies in, if it stays when spliced returns
	held     bool         // another attempt may follow
	res      *reservation // memory of the payload
}

// spliced starts this link's half of a splice. paid is the credit for the payload of
// the Invoke that goes back at once, since it is in a packet; else it goes back when it is.
func (c *Conn) spliced(in *spliceFrom, out *frame.Invoke, owner Owner, tag uint64) (_ ref, paid int64, _ *conduit.Error) {
	if n := frame.InvokeSize(0, out) - len(out.Data.Bytes); n > maxInvoke || len(out.Chain) > frame.MaxChain {
		return ref{}, 0, conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.Refused,
			"the Invoke takes %d bytes beside its payload, more than %d, or %d elements in its chain", n, maxInvoke, len(out.Chain))
	}
	c.mu.Lock()
	defer c.unlock()
	if c.err != nil || c.goneAway != nil || c.leaving {
		return ref{}, 0, c.lost(conduit.Refused)
	}
	if c.o.Simple && !c.ready { // what becomes of the request is not known yet
		return ref{}, 0, c.lost(conduit.Refused)
	}
	var first joined
	if d := out.Data; c.simple && out.HasData {
		if fault := c.dataFault(&assembly{}, 0, &d); fault != nil && fault.Reason != conduit.ReasonPayloadTooLarge {
			fault.Outcome = conduit.Refused
			return ref{}, 0, fault
		}
	}
	if total := int64(min(out.Data.Total, 1<<62)); c.ready && out.Data.HasTotal && total > c.theirs.MaxMessage {
		return ref{}, 0, c.tooLarge(total, conduit.Refused)
	}
	if c.simple && out.HasData && out.Data.More { // the message follows when it is whole
		first.begin(&out.Data)
		first.add(&out.Data, false)
		out.Data, out.HasData = frame.Data{}, false
	}
	if most := int(c.theirs.MaxCalls); c.ready && under(c.out, c.outBackground, c.outLeft, most) >= most {
		return ref{}, 0, &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
			Message: "the element serves as many calls as its link takes",
		}
	}
	want := min(int64(in.credit), DefaultReplyCredit)
	if c.simple || in.credit == 0 { // there is no credit on either, or on the caller's link
		want = DefaultReplyCredit
	}
	window := c.takeReplyWindow(want)
	if window == 0 {
		return ref{}, 0, &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
			Message: "no memory is left to pass on one more call",
		}
	}
	k := c.newOutgoing(window, out.Background)
	k.deadline = in.deadline
	k.peer, k.owner, k.tag, k.held = in.call, owner, tag, in.held
	k.sendEnded = out.HasData && out.Data.Last
	out.ReplyCredit = uint32(window)
	k.join = first
	written := c.sendInvoke(k, out, in.chunk == nil)
	switch {
	case first.active:
		return k.ref(), dataCost, nil
	case !out.HasData:
	case !written:
		it := k.front()
		it.from = in.call
		it.carry(in.res, k)
		if in.chunk != nil {
			in.chunk.refs.Add(1)
			it.held = in.chunk
		}
	default:
		paid = c.drop(&out.Data, passing{res: in.res}) // written, and so over
	}
	return k.ref(), paid, nil
}
