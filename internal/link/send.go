package link

import (
	"strconv"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// sendData sends a Data of a call: into the next packet if it may, else into
// the call's queue, where it aliases d.Bytes until it is written or dropped.
// With copied, the bytes are copied when they must wait. It reports whether the
// frame is in the packet. c.mu is held.
func (c *Conn) sendData(k *call, d *frame.Data, copied bool, from ref, wait chan struct{}) (written bool) {
	if d.Last {
		k.sendEnded = true
	}
	if k.pending() == 0 && k.id != 0 && int64(len(d.Bytes))+dataCost <= k.sendCredit && len(d.Bytes) <= chunk+smallFrame {
		size := frame.DataSize(k.id, d)
		if c.mayAppend(size, len(d.Bytes)) {
			c.wbuf = frame.AppendData(c.wbuf, k.id, d)
			c.spend(size)
			k.sendCredit -= int64(len(d.Bytes)) + dataCost
			if d.Last && !k.ours {
				c.answered(k)
			}
			return true
		}
	}
	it := item{kind: itemData, data: *d, from: from, wait: wait}
	if copied {
		it.buf = getBuf(len(d.Bytes) + len(d.ContentType))
		b := append(*it.buf, d.Bytes...)
		b = append(b, d.ContentType...)
		*it.buf = b
		it.data.Bytes, it.data.ContentType = b[:len(d.Bytes):len(d.Bytes)], b[len(d.Bytes):]
	}
	k.push(it)
	c.enlist(k)
	return false
}

// sendFailure ends a call of the other end with an encoded Failure, behind what
// is queued. c.mu is held.
func (c *Conn) sendFailure(k *call, body []byte) {
	if k.sendEnded {
		return
	}
	k.sendEnded = true
	size := frame.BodySize(k.id, len(body))
	if k.pending() == 0 && c.mayAppend(size, len(body)) {
		c.wbuf = frame.AppendBody(c.wbuf, k.id, frame.KindFailure, body)
		c.spend(size)
		c.answered(k)
		return
	}
	k.push(item{kind: itemFailure, body: body})
	c.enlist(k)
}

// failCall ends the other half of a splice, or does nothing if it has ended. With cut,
// what is queued of it is given up.
func (c *Conn) failCall(r ref, body []byte, cut bool) {
	c.mu.Lock()
	if k := r.get(); k != nil && !k.ours {
		if k.doubt {
			body = doubtful(body)
		}
		if cut && !k.sendEnded {
			k.dropQueue()
		}
		c.sendFailure(k, body)
	}
	c.unlock()
	c.flush()
}

// doubtful is a Failure of a call whose work an earlier attempt may have done.
func doubtful(body []byte) []byte {
	e, err := decodeFailure(body)
	if err != nil || told(e, true) == e {
		return body
	}
	return encodeFailure(told(e, true))
}

// grant gives the other end more call credit, when enough of it is due.
func (c *Conn) grant(r ref, n int64) {
	c.mu.Lock()
	if k := r.get(); k != nil && k.try == r.try {
		c.credit(k, n)
	}
	c.unlock()
	c.flush()
}

// owe puts a call on the list of those whose credit goes with the next packet.
func (c *Conn) owe(k *call) {
	if !k.owing {
		k.owing = true
		c.owing = append(c.owing, k.ref())
	}
}

// tooLarge is the error of a message above the other end's cap.
func (c *Conn) tooLarge(n int64, outcome conduit.Outcome) *conduit.Error {
	return tooLarge(n, c.theirs.MaxMessage, outcome, c.o)
}

func tooLarge(n, limit int64, outcome conduit.Outcome, o Options) *conduit.Error {
	return &conduit.Error{
		Code: conduit.ResourceExhausted, Reason: conduit.ReasonPayloadTooLarge, Outcome: outcome, Op: o.Op, Peer: o.Peer.Name,
		Message: "a message of " + strconv.FormatInt(n, 10) + " bytes is above the limit of " + strconv.FormatInt(limit, 10) +
			": send it as a stream of smaller ones, or raise cluster.max_payload on both sides",
		Details: map[string]string{"size": strconv.FormatInt(n, 10), "limit": strconv.FormatInt(limit, 10)},
	}
}

// oversized ends a call whose queued message is above the other end's cap.
// c.mu is held.
func (c *Conn) oversized(k *call, n int64) {
	if k.ours {
		c.faulted(k, c.tooLarge(n, conduit.OutcomeUnknown))
		return
	}
	c.faulted(k, c.tooLarge(n, conduit.Executed))
}

// tellCancel sends a Cancel for a call of this end, once. c.mu is held.
func (c *Conn) tellCancel(k *call, reason string) {
	if !k.cancelled && k.id != 0 {
		c.wake()
		c.cancel(k)
		if len(reason) > maxReason || !utf8.ValidString(reason) {
			reason = conduit.ReasonCanceled
		}
		c.ctrl = frame.AppendCancel(c.ctrl, k.id, reason)
	}
}
