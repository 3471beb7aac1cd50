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
	b, err := to.spliced(in, out, owner, tag)
	if err != nil {
		owner.CallEnded(tag, err.Code, err.Outcome)
		in.Refuse(err)
		return
	}
	credit := int64(0)
	from.mu.Lock()
	if a := in.ref.get(); a != nil && !a.sendEnded {
		a.peer = b
		if a.cancelled {
			from.later(effect{kind: effectCancel, to: b, reason: conduit.ReasonCanceled})
		}
		// The payload in the Invoke is on its way or held once: its credit goes
		// back as if it were written.
		if in.Invoke.HasData && !a.recvDone {
			credit = int64(len(in.Invoke.Data.Bytes)) + dataCost
			a.recvOwed += credit
		}
	}
	from.unlock()
	from.touch(to)
}

// spliced starts this link's half of a splice.
func (c *Conn) spliced(in *Incoming, out *frame.Invoke, owner Owner, tag uint64) (ref, *conduit.Error) {
	c.mu.Lock()
	defer c.unlock()
	if c.err != nil || c.goneAway != nil {
		e := c.lost(conduit.Refused)
		return ref{}, e
	}
	if c.ready && c.out-c.outBackground >= int(c.theirs.MaxCalls) {
		return ref{}, &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
			Message: "the element serves as many calls as its link takes",
		}
	}
	want := min(int64(in.Invoke.ReplyCredit), DefaultReplyCredit)
	window := shareOf(c.o.LinkMemory-c.windows, want, min(want, minWindow))
	if window > 0 {
		window = c.memory.takeWindow(window, min(window, minWindow))
	}
	if window == 0 {
		return ref{}, &conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Op: c.o.Op,
			Message: "no memory is left to pass on one more call",
		}
	}
	c.windows += window
	k := c.newOutgoing(window, out.Background)
	k.deadline = in.deadline
	k.peer, k.owner, k.tag = in.ref, owner, tag
	k.sendEnded = in.Invoke.HasData && in.Invoke.Data.Last
	out.ReplyCredit = uint32(window)
	c.sendInvoke(k, out, true)
	return k.ref(), nil
}
