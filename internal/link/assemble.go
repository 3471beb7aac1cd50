package link

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// A message that comes in several Data and does not fit the window is given
// memory of its own; what each piece costs beside its bytes goes back as it comes;
// and while a message is open, whatever is due goes back when the sender runs
// low. So once the application has taken what came before, the sender has room
// for the rest of the message, however small its pieces, and no two ends can wait
// for each other.
//
// A call gets memory for one message at a time: until the application has taken
// that one, the next has the window only. Else a stream that nobody reads would
// take all there is.

// assemble takes a Data of a local call: into the message that is open, or as a
// message of its own. It returns what is wrong with it. c.mu is held on entry
// and on return, but not while bytes are copied: only the reader assembles, and
// the call may end meanwhile.
func (c *Conn) assemble(r ref, k *call, in *inbox, a *assembly, d *frame.Data) *conduit.Error {
	n := int64(len(d.Bytes))
	if fault := c.dataFault(a, int64(len(a.buf)), d); fault != nil {
		return fault
	}
	if !a.active && !d.HasTotal {
		c.credit(k, dataCost)
		return nil
	}
	if d.HasTotal && !d.More { // a whole message: the common case
		msg := conduit.Message{Part: d.Part, ContentType: contentType(d.ContentType), Data: append(make([]byte, 0, n), d.Bytes...), Last: d.Last}
		it := inboxItem{msg: msg, cost: n + dataCost}
		if d.Last && (k.ours || k.window == 0 && k.hold == nil) {
			it.cost = 0 // the call holds nothing any more that taking it could return
		}
		if v := a.res; v != nil { // it came on a simple link, and has memory already
			*a = assembly{}
			it.res, it.cost, v.in = v, 0, in
			v.came(n, c.now)
		}
		if !in.put(it) && it.res != nil {
			c.later(effect{kind: effectRelease, res: it.res})
		}
		return nil
	}
	turn := a.turn
	if d.HasTotal {
		c.turn++
		turn = c.turn
		*a = assembly{active: true, in: in, part: d.Part, ctype: contentType(d.ContentType), total: int64(d.Total), turn: turn}
		if a.large = a.total > k.windowSize()-2*dataCost; a.large {
			c.reserveFor(r)
			if k = r.get(); k == nil || a.turn != turn {
				return nil
			}
		}
	}
	buf := a.buf
	if cap(buf) == 0 && !a.large || a.hasMemory() && int64(cap(buf)) < a.total {
		buf = append(make([]byte, 0, a.total), buf...)
	}
	// The copy is made without the lock, and nothing of the call is touched
	// meanwhile: it may end, and be another by then.
	c.unlock()
	buf = append(buf, d.Bytes...)
	c.mu.Lock()
	if k = r.get(); k == nil || a.turn != turn {
		return nil
	}
	a.buf = buf
	c.credit(k, dataCost)
	if a.res != nil {
		a.res.came(int64(len(buf)), c.now)
	}
	if d.More {
		return nil
	}
	it := inboxItem{msg: conduit.Message{Part: a.part, ContentType: a.ctype, Data: buf, Last: d.Last}, cost: a.total}
	if a.hasMemory() {
		it.res, it.cost = a.res, 0 // granted with the reservation
	} else if a.res != nil && c.memory.forget(a.res) {
		// All of it came within the window before its turn: nothing is reserved.
		k.lent = 0
		c.later(effect{kind: effectRelease})
	}
	*a = assembly{}
	if !in.put(it) && it.res != nil {
		c.later(effect{kind: effectRelease, res: it.res})
	}
	return nil
}

// dataFault says what is wrong with a Data, given the message that is open and how much
// of it has come.
func (c *Conn) dataFault(a *assembly, got int64, d *frame.Data) *conduit.Error {
	n := int64(len(d.Bytes))
	switch {
	case !a.active && !d.HasTotal && (n > 0 || d.More):
		return c.badData("bytes without a total while no message is open")
	case a.active && d.HasTotal:
		return c.badData("a new message while one is open")
	case d.HasTotal && d.Total > uint64(c.o.Hello.MaxMessage):
		return tooLarge(int64(min(d.Total, 1<<62)), c.o.Hello.MaxMessage, conduit.OutcomeUnknown, c.o)
	case d.HasTotal && !d.More && uint64(n) != d.Total, d.HasTotal && uint64(n) > d.Total:
		return c.badData("a message's length differs from its total")
	case a.active && d.Part != a.part:
		return c.badData("a Data of another part while a message is open")
	case a.active && (got+n > a.total || !d.More && got+n != a.total):
		return c.badData("a message's length differs from its total")
	case d.Last && d.More:
		return c.badData("last within a message")
	}
	return nil
}

// windowSize is the call credit that the other end started with.
func (k *call) windowSize() int64 {
	if k.window > 0 {
		return k.window
	}
	return int64(k.conn.o.Hello.CallCredit)
}

// credit notes that a part of what a call took of its window may be used again,
// and sees to it that the other end hears so when it is half of it, or needed to
// finish a message. c.mu is held.
func (c *Conn) credit(k *call, n int64) {
	if k.skip > 0 { // the other end has it since an earlier attempt
		over := min(n, k.skip)
		k.skip -= over
		if n -= over; n == 0 {
			return
		}
	}
	if h := k.hold; h != nil {
		h.paid += n
		if k.recvDone { // nothing more will come, but what came is still held
			h.unfreed += n
			return
		}
	}
	if k.recvDone {
		c.freeWindow(k, n) // nothing more will come
		return
	}
	if c.simple {
		k.recvLeft += n
		c.wake()
		return
	}
	k.recvOwed += n
	if w := k.windowSize(); k.recvOwed >= w/2 || k.open.active && k.recvLeft < w/4 {
		c.owe(k)
	}
}

// reserveFor sets memory aside for the large message that a call has open, and
// grants all of it when it is there. It does nothing while the call holds memory
// for an earlier one; taken calls it again. c.mu is held on entry and on return,
// and released between.
func (c *Conn) reserveFor(r ref) {
	k := r.get()
	if k == nil || !k.open.large || k.open.res != nil || k.lent > 0 {
		return
	}
	v := &reservation{conn: c, r: r, in: k.open.in, n: k.open.total, who: claimant{conn: c}}
	if s := k.server; s != nil && s.invoke.HasCaller {
		v.who.user, v.who.peer = string(s.invoke.Caller.User), string(s.invoke.Caller.Peer)
	}
	v.got.Store(int64(len(k.open.buf)))
	k.lent, k.open.res = v.n, v
	c.unlock()
	c.memory.reserve(v)
	c.mu.Lock()
}

// granted has the sender of a large message told of the memory that is there for it.
// No lock is held.
func (c *Conn) granted(v *reservation) {
	c.mu.Lock()
	k := v.r.get()
	ok := k != nil && k.open.res == v
	if ok {
		v.granted = true
		if c.simple {
			c.wake()
		} else {
			k.recvOwed += v.n
			c.owe(k)
		}
	}
	c.unlock()
	if ok {
		c.kick()
		return
	}
	c.memory.release(v) // it came whole, or ended, meanwhile
	c.mu.Lock()
	c.lendAgain(v.r)
	c.unlock()
}

// lendAgain notes that a call holds no memory any more, and asks for the message
// that may be waiting for it. c.mu is held as with reserveFor.
func (c *Conn) lendAgain(r ref) {
	if k := r.get(); k != nil {
		k.lent = 0
		c.reserveFor(r)
	}
}

// dropAssembly gives up the message that a call has open. c.mu is held.
func (c *Conn) dropAssembly(k *call) {
	a := &k.open
	switch {
	case a.res == nil:
	case a.hasMemory():
		c.later(effect{kind: effectRelease, res: a.res})
	case c.memory.forget(a.res):
		c.later(effect{kind: effectRelease})
	}
	*a = assembly{}
}

func (c *Conn) badData(what string) *conduit.Error {
	return &conduit.Error{
		Code: conduit.Internal, Reason: conduit.ReasonProtocol, Outcome: conduit.OutcomeUnknown, Op: c.o.Op, Peer: c.o.Peer.Name,
		Message: "the other end broke the protocol of this call: " + what,
	}
}

//nolint:gochecknoglobals // constants, as bytes
var jsonType, bytesType, protoType = []byte(conduit.ContentJSON), []byte(conduit.ContentBytes), []byte(conduit.ContentProto)

// typeBytes is contentType's inverse. The result must not be written to.
func typeBytes(s string) []byte {
	switch s {
	case "":
		return nil
	case conduit.ContentJSON:
		return jsonType
	case conduit.ContentBytes:
		return bytesType
	case conduit.ContentProto:
		return protoType
	}
	return []byte(s)
}

// contentType interns the usual content types.
func contentType(b []byte) string {
	switch string(b) {
	case conduit.ContentJSON:
		return conduit.ContentJSON
	case conduit.ContentBytes:
		return conduit.ContentBytes
	case conduit.ContentProto:
		return conduit.ContentProto
	}
	return string(b)
}
