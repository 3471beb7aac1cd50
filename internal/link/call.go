package link

import (
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// chunk is the most payload that one Data carries, in bytes: a small frame
// waits behind at most one of them and what is in flight.
const chunk = 32 << 10

// smallFrame is the largest payload of a frame that goes before bulk.
const smallFrame = 4 << 10

// dataCost is what each Data counts on call credit beside its bytes.
const dataCost = 32

// call is one call on one link, from either side; a spliced call is two of
// them. All fields are guarded by conn.mu unless they say otherwise. Calls are
// recycled within their Conn; a ref tells a call from its successor.
type call struct {
	conn *Conn // never changes: read without the lock
	gen  uint32
	callState
}

// callState is what a call starts from anew each time.
type callState struct {
	live bool

	id         uint64 // 0 until its Invoke is written
	ours       bool   // this end made it
	background bool
	kept       bool      // a drain does not end it at once
	units      uint32    // of a call of this end, as its Invoke says
	deadline   time.Time // zero = none

	// Sending.
	q          []item
	qHead      int
	sendCredit int64
	sendEnded  bool // the last Data or a Failure is queued or written
	list       *callList
	prev, next *call

	// Receiving.
	window   int64 // what was promised of memory
	recvLeft int64 // call credit that the other end has
	recvOwed int64 // taken, and not yet granted
	owing    bool  // in conn.owing
	recvDone bool  // the other end said last
	in       *inbox
	open     assembly      // of the message that is coming
	lent     int64         // of Memory, for one message until it is taken
	heldUp   time.Duration // for how long it has kept a simple link from being read, as of heldAt
	heldAt   time.Time

	cancelled bool           // a Cancel came, or was sent
	cause     *conduit.Error // why, of a call that this end serves

	// Splice.
	peer  ref
	join  joined // of a simple link: the message that comes from there
	owner Owner
	tag   uint64
	fault *conduit.Error // it failed from this end, and the other is not done with it yet
	held  bool           // the half that was passed on: its failure may be made good by another attempt

	// Of the half that came, when it is parked or may be passed on again.
	hold  *hold
	try   uint32 // the attempt: refs of earlier ones return no credit
	doubt bool   // an earlier attempt may have done the work
	skip  int64  // what earlier attempts returned of the credit that this one returns
	extra int64  // counted as a window is, beside it

	server *ServerCall
	guest  Guest // on whose right it runs, if that is not the link's
}

// ref points at a call as long as it is the same call. As the other half of a
// splice that may be made again, it is that of one attempt.
type ref struct {
	k        *call
	gen, try uint32
}

func (k *call) ref() ref { return ref{k: k, gen: k.gen} }

// get returns the call if it is still the same and under way; the call's
// conn.mu must be held.
func (r ref) get() *call {
	if r.k == nil || r.k.gen != r.gen || !r.k.live {
		return nil
	}
	return r.k
}

// itemKind says what a queued item becomes on the wire.
type itemKind uint8

const (
	itemData itemKind = iota
	itemInvoke
	itemFailure
)

// item is a frame, or what is left of one, that waits to be written.
type item struct {
	kind itemKind
	data frame.Data
	inv  *queuedInvoke
	body []byte        // of a Failure
	buf  *[]byte       // pooled memory behind data, if it was copied
	wait chan struct{} // told when the item is written or dropped
	from ref           // the call on another link whose credit this returns
	held *holdChunk    // memory behind data that its caller's link holds
	res  *reservation  // memory that was reserved for the message
	// joined: each of the pieces that it was made of has been credited its own cost
	joined bool
}

// assembly is a message whose Data are still arriving.
type assembly struct {
	active bool
	in     *inbox // where it goes
	part   uint32
	ctype  string
	total  int64
	buf    []byte
	got    int64        // of a message that is joined elsewhere, instead of buf
	large  bool         // it does not fit the window: its bytes are granted from Memory
	turn   uint64       // tells this message from the call's others
	res    *reservation // of Memory, or the wait for it
}

// hasMemory reports whether the message was given memory of its own. conn.mu is held.
func (a *assembly) hasMemory() bool { return a.res != nil && a.res.granted }

// pending returns the number of queued items.
func (k *call) pending() int { return len(k.q) - k.qHead }

// push queues an item.
func (k *call) push(it item) {
	if k.qHead > 0 && len(k.q) == cap(k.q) { // else a queue that is never quite empty would grow for ever
		n := copy(k.q, k.q[k.qHead:])
		clear(k.q[n:])
		k.q, k.qHead = k.q[:n], 0
	}
	k.q = append(k.q, it)
}

// front returns the item to be written next.
func (k *call) front() *item { return &k.q[k.qHead] }

// pop removes the front item, whose bytes are written or given up.
func (k *call) pop() {
	it := k.front()
	it.release()
	*it = item{}
	k.qHead++
	if k.qHead == len(k.q) {
		k.q, k.qHead = k.q[:0], 0
	}
}

// release returns what the item holds and wakes who waits for it.
func (it *item) release() {
	if it.buf != nil {
		putBuf(it.buf)
		it.buf = nil
	}
	if it.inv != nil {
		it.inv.release()
		it.inv = nil
	}
	if it.held != nil {
		it.held.release()
		it.held = nil
	}
	if it.wait != nil {
		select {
		case it.wait <- struct{}{}:
		default:
		}
	}
}

// dropQueue gives up all that is queued. Whoever sent it on another link gets
// the credit back.
func (k *call) dropQueue() {
	for k.pending() > 0 {
		switch it := k.front(); {
		case it.res != nil:
			k.conn.later(effect{kind: effectTaken, res: it.res})
		case it.from.k != nil:
			k.conn.later(effect{kind: effectGrant, to: it.from, n: it.cost()})
		}
		k.pop()
	}
	k.join = joined{}
	k.conn.unlist(k)
}

// cost is what is left of an item, as call credit counts it.
func (it *item) cost() int64 {
	if it.kind == itemInvoke {
		return int64(len(it.inv.inv.Data.Bytes)) + dataCost
	}
	if it.joined {
		return int64(len(it.data.Bytes))
	}
	return int64(len(it.data.Bytes)) + dataCost
}

// callList is an intrusive list of calls that have something to write.
type callList struct{ head, tail *call }

func (l *callList) empty() bool { return l.head == nil }

func (l *callList) pushBack(k *call) {
	k.list, k.prev, k.next = l, l.tail, nil
	if l.tail != nil {
		l.tail.next = k
	} else {
		l.head = k
	}
	l.tail = k
}

func (c *Conn) unlist(k *call) {
	l := k.list
	if l == nil {
		return
	}
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.head = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.tail = k.prev
	}
	k.list, k.prev, k.next = nil, nil, nil
}

// enlist puts a call where its next frame belongs, or nowhere while it waits
// for credit. Calls keep their place while they stay in the same list.
func (c *Conn) enlist(k *call) {
	var want *callList
	if k.pending() > 0 {
		it := k.front()
		switch {
		case it.kind == itemData && c.ready && k.sendCredit < dataCost+min(1, int64(len(it.data.Bytes))):
		case it.kind == itemInvoke && len(it.inv.inv.Data.Bytes) > smallFrame, it.kind == itemData && len(it.data.Bytes) > smallFrame:
			want = &c.bulk
		default:
			want = &c.small
		}
	}
	if k.list == want {
		return
	}
	c.unlist(k)
	if want != nil {
		want.pushBack(k)
	}
}

// newCall takes a call from the free list or makes one. c.mu is held.
func (c *Conn) newCall() *call {
	var k *call
	if n := len(c.free); n > 0 {
		k = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		k = &call{conn: c}
	}
	k.live = true
	return k
}

// retire takes a call off the link: nothing is sent or received for it any
// more. What depends on its end has been arranged by the caller. c.mu is held.
func (c *Conn) retire(k *call) {
	c.wake()
	k.dropQueue()
	if k.id != 0 {
		delete(c.calls, k.id)
	}
	if k.cancelled && !k.background {
		c.leftBy(k, -1)
	}
	if k.ours {
		c.settle(k)
		c.out--
		if k.background {
			c.outBackground--
		} else {
			c.foreground.Add(-1)
		}
	} else {
		c.inc--
		if k.background {
			c.incBackground--
		}
	}
	if k.parked() {
		c.unpark(k, early(c.lost(conduit.Refused), k.doubt, c.o.Op))
	}
	if k.guest != nil {
		c.later(effect{kind: effectLeft, guest: k.guest})
	}
	c.dropHold(k)
	c.freeExtra(k)
	c.freeWindow(k, k.window)
	c.dropAssembly(k)
	k.gen++
	k.callState = callState{q: k.q[:0]}
	if len(c.free) < maxFree {
		c.free = append(c.free, k)
	}
	if c.idle() {
		c.idleSince = time.Now()
		if c.leaving && c.err == nil {
			c.later(effect{kind: effectClose})
		}
	}
	if c.idleWake != nil && c.inc == 0 {
		close(c.idleWake)
		c.idleWake = nil
	}
}

// cancel notes that a call is cancelled. c.mu is held.
func (c *Conn) cancel(k *call) {
	k.cancelled = true
	if !k.background {
		c.leftBy(k, 1)
	}
}

func (c *Conn) leftBy(k *call, n int) {
	if k.ours {
		c.outLeft += n
	} else {
		c.incLeft += n
	}
}

// freeWindow returns up to n bytes of what a call was promised. c.mu is held.
func (c *Conn) freeWindow(k *call, n int64) {
	if n = min(n, k.window); n > 0 {
		k.window -= n
		c.windows -= n
		c.memory.giveWindow(n)
	}
}

// maxFree bounds the calls that a link keeps for reuse.
const maxFree = 256

// effect is what a link owes others after its lock is released.
type effect struct {
	kind    effectKind
	to      ref
	n       int64
	res     *reservation
	body    []byte
	cut     bool // what is queued before the Failure goes nowhere
	reason  string
	owner   Owner
	tag     uint64
	code    conduit.Code
	outcome conduit.Outcome
	err     *conduit.Error
	guest   Guest
}

type effectKind uint8

const (
	effectGrant   effectKind = iota // return call credit on another link
	effectFail                      // end the other half with a Failure
	effectCancel                    // cancel the other half
	effectOwner                     // tell a splice's owner
	effectRelease                   // return reserved memory
	effectTaken                     // return that of a message which was passed on
	effectClose                     // the last call of CloseWhenIdle has ended
	effectAttempt                   // an attempt failed that may be followed by another
	effectLeft                      // tell a guest that a call of its is over
)

// unlock releases c.mu and then does what was put off meanwhile.
func (c *Conn) unlock() {
	if len(c.effects) == 0 {
		c.mu.Unlock()
		return
	}
	list := c.effects
	c.effects = c.spareEffects
	c.spareEffects = nil
	c.mu.Unlock()
	for i := range list {
		e := &list[i]
		switch e.kind {
		case effectGrant:
			e.to.k.conn.grant(e.to, e.n)
		case effectFail:
			e.to.k.conn.failCall(e.to, e.body, e.cut)
		case effectCancel:
			e.to.k.conn.cancelCall(e.to, e.reason)
		case effectOwner:
			e.owner.CallEnded(e.tag, e.code, e.outcome)
		case effectRelease:
			c.memory.release(e.res)
		case effectTaken:
			e.res.conn.taken(e.res.r, inboxItem{res: e.res})
		case effectClose:
			c.Close(CloseDone, "nothing more is sent on this link")
		case effectAttempt:
			e.to.k.conn.attemptFailed(e.to, attemptEnd{err: told(e.err, false), body: e.body, owner: e.owner, tag: e.tag})
		case effectLeft:
			e.guest.CallLeft()
		}
	}
	clear(list)
	c.mu.Lock()
	if c.spareEffects == nil && cap(list) <= 1024 {
		c.spareEffects = list[:0]
	}
	c.mu.Unlock()
}

// later puts an effect off until unlock.
func (c *Conn) later(e effect) { c.effects = append(c.effects, e) }

// ended arranges what follows from the end of a call that this end made, and
// takes it off the link. c.mu is held. For a spliced call, failure is passed on
// to the other half unless it is nil (then the end has been passed on already).
func (c *Conn) ended(k *call, err *conduit.Error, body []byte) {
	if k.held && k.peer.k != nil && err != nil {
		c.later(effect{kind: effectAttempt, to: k.peer, err: err, body: body, owner: k.owner, tag: k.tag})
		c.retire(k)
		return
	}
	if k.owner != nil {
		e := effect{kind: effectOwner, owner: k.owner, tag: k.tag}
		why := err
		if k.fault != nil {
			why = k.fault
		}
		if why != nil {
			e.code, e.outcome = why.Code, why.Outcome
		}
		c.later(e)
	}
	if k.peer.k != nil && err != nil {
		if body == nil {
			e := *err
			if e.Outcome == conduit.NotSent { // not by this link; the caller did send it
				e.Outcome = conduit.Refused
			}
			body = encodeFailure(&e)
		}
		c.later(effect{kind: effectFail, to: k.peer, body: body})
	}
	if k.in != nil {
		k.in.end(err)
	}
	c.retire(k)
}

// orphan fails a call that this end passed on: the caller hears of it at once,
// but the call stays until the other end is done with it, since its owner is
// promised to hear of the end of the work. c.mu is held.
func (c *Conn) orphan(k *call, err *conduit.Error) {
	if k.fault != nil {
		return
	}
	if k.id == 0 { // it never left
		e := *err
		e.Outcome = conduit.NotSent
		c.ended(k, &e, nil)
		return
	}
	k.fault, k.sendEnded = err, true
	c.wake()
	k.dropQueue()
	c.tellCancel(k, err.Reason)
	if k.peer.k != nil {
		// What a simple link has too much of must not wait for its reader any longer.
		c.later(effect{kind: effectFail, to: k.peer, body: encodeFailure(err), cut: c.simple})
		k.peer = ref{}
	}
}
