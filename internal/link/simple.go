package link

import (
	"fmt"
	"math"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// The simple profile, for a plugin that is written from one page: on its link each
// message is one Data, there is no credit of either level, and a packet may be as
// long as a message. What credit does elsewhere, the other end does alone:
//
//   - What comes in pieces on another link is joined here before it is passed on. A
//     message above its caller's window has memory reserved for it as one that is
//     assembled for an application, so that its sender waits by its own credit.
//   - What the plugin sends is cut to the credit of the link that it goes to, and held
//     within the same bounds as any other call's: its window, and one message above that
//     for which memory is reserved. When these are used up nobody can tell the plugin,
//     so its link is not read until there is room (stall).
//
// Not to read holds up all calls of the plugin. While there are no others, that is
// what ought to happen: the sender is slowed down. Else the call may do it for a
// second, and for a tenth of its time on the whole; then it is ended, and its bytes
// are dropped as they come. So a caller that does not read costs its neighbours a
// second, once.
const (
	// stallMost is how long a call may keep its link from being read while there are
	// others, and stallShare is one over the part of the time that it gets back.
	stallMost  = time.Second
	stallShare = 10
	// stallLate is how late a timer may be before the time counts for nothing: this
	// process was not run, so its readers were not either.
	stallLate = 250 * time.Millisecond
	// packetRoom is what a packet of a simple link may hold beside one message, in bytes.
	packetRoom = 64 << 10
	// noCredit stands for credit where there is none to be kept: more than anybody sends.
	noCredit = math.MaxInt64 / 4
)

// becomeSimple has the link keep to the simple profile. c.mu is held, or nobody else
// knows of the link.
func (c *Conn) becomeSimple() {
	c.simple = true
	c.o.Hello.Simple = true
	c.o.Hello.MaxPacket = int(min(c.o.Hello.MaxMessage, 1<<30)) + packetRoom
}

// pieceLimit is the most payload of one Data.
func (c *Conn) pieceLimit() int64 {
	if c.simple {
		return noCredit
	}
	return chunk
}

// requestCredit is the call credit that a request of this end starts with.
func (c *Conn) requestCredit() int64 {
	if c.simple {
		return noCredit
	}
	return int64(c.theirs.CallCredit)
}

// wake has a reader that waits for room look again. c.mu is held.
func (c *Conn) wake() {
	if c.stalled {
		select {
		case c.room <- struct{}{}:
		default:
		}
	}
}

// partial says what is wrong with a Data of a simple link, if it is not a whole message or
// flags alone.
func partial(d *frame.Data) string {
	switch {
	case d.More:
		return "a piece of a message: in the simple profile each message is one Data"
	case !d.HasTotal && len(d.Bytes) > 0:
		return "bytes without a total"
	case d.HasTotal && d.Total != uint64(len(d.Bytes)):
		return "a message's length differs from its total"
	}
	return ""
}

// admit waits until there is room for a Data of n bytes that came for a call of a simple
// link, and counts it: within the window, or else, as a large one, in memory of its own,
// which is in k.open then. It returns nil if the call or the link ended meanwhile, and the Data is to
// be dropped. It runs on the reader; c.mu is held on entry and on return, and released
// between.
func (c *Conn) admit(r ref, n int64) (k *call, large bool) {
	for asked := false; ; {
		k = r.get()
		if k == nil || c.err != nil || k.fault != nil || k.recvDone {
			return nil, false
		}
		if asked && k.open.hasMemory() {
			return k, true
		}
		if k.cancelled || n+dataCost <= k.recvLeft { // what is cancelled is dropped where it goes to
			if asked {
				c.askNoMore(k)
			}
			k.recvLeft -= n + dataCost
			return k, false
		}
		// The message of a call that waits for its decision is the Invoke's.
		if !asked && n > k.windowSize()-2*dataCost && !k.open.large && (k.hold == nil || k.hold.state == holdSpliced) {
			asked = true
			c.turn++
			k.open = assembly{large: true, total: n, in: k.in, turn: c.turn}
			c.reserveFor(r)
			continue
		}
		c.stall(r, k)
	}
}

// askNoMore gives up the wait for memory for a message that has room in the window by
// now. c.mu is held.
func (c *Conn) askNoMore(k *call) {
	if v := k.open.res; v != nil && c.memory.forget(v) { // else it is being granted, and given back then
		k.lent = 0
		c.later(effect{kind: effectRelease})
	}
	k.open = assembly{}
}

// stall waits until there may be more room for a call, or ends the call if it has held up
// others for too long. c.mu is held on entry and on return, and released between.
func (c *Conn) stall(r ref, k *call) {
	began := time.Now()
	var timer *time.Timer
	var over <-chan time.Time
	left := time.Duration(0)
	if !k.ours || c.others(k) { // what else the other end asks for is not read: who knows
		k.heldUp = max(0, k.heldUp-began.Sub(k.heldAt)/stallShare)
		k.heldAt = began
		if left = stallMost - k.heldUp; left <= 0 {
			c.faulted(k, c.tooSlow(k))
			if k = r.get(); k != nil {
				c.dropAssembly(k)
			}
			return
		}
		timer = time.NewTimer(left)
		over = timer.C
	}
	c.stalled = true
	c.unlock()
	// What was passed on is to be written, or nobody would ever take it.
	c.flush()
	for _, t := range c.touched {
		t.flush()
	}
	select {
	case <-c.room:
	case <-over:
	}
	if timer != nil {
		timer.Stop()
	}
	c.mu.Lock()
	c.stalled = false
	now := time.Now()
	c.now = now
	if k = r.get(); k == nil || timer == nil {
		return
	}
	if took := now.Sub(began); took < left+stallLate {
		k.heldUp += took
	}
	k.heldAt = now
}

// others reports whether calls beside k wait for this link to be read. c.mu is held.
func (c *Conn) others(k *call) bool {
	n := c.out - c.outBackground - c.outLeft + c.inc - c.incBackground - c.incLeft
	if !k.background {
		n--
	}
	return n > 0
}

// tooSlow is the error of a call that has held up the others of its link.
func (c *Conn) tooSlow(k *call) *conduit.Error {
	what := "too little was taken of what came"
	if k.open.large && !k.open.hasMemory() {
		what = fmt.Sprintf("there was no room for a message of %d bytes", k.open.total)
	}
	e := &conduit.Error{
		Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.OutcomeUnknown, Retryable: true, Op: c.o.Op,
		Message: "the call held up others of its link, which has the simple profile, for " + stallMost.String() + ": " + what +
			"; read faster, have less sent at once, or let the plugin keep credit",
	}
	if !k.ours && k.server == nil && k.peer.k == nil && k.hold == nil {
		e.Outcome = conduit.Refused // nobody has been asked yet
	}
	return e
}

// handOver takes the memory of a message that came whole on a simple link: whoever gets
// the message gives it back. nil if the message needs none. c.mu is held.
func (c *Conn) handOver(k *call) *reservation {
	if !c.simple || !k.open.hasMemory() {
		return nil
	}
	v := k.open.res
	v.passed = true
	k.open = assembly{}
	return v
}

// joining follows the Data of a call that is passed on to a simple link, where its
// pieces are joined, and reserves memory for what does not fit the window, as assemble
// does. What that means for d is noted in p. It returns what is wrong with d. c.mu is held
// on entry and on return, and may be released between; the call may be over then.
func (c *Conn) joining(r ref, d *frame.Data, p *passing) *conduit.Error {
	k := r.get()
	if k == nil {
		return nil
	}
	a := &k.open
	if fault := c.dataFault(a, a.got, d); fault != nil {
		return fault
	}
	if !a.active && !d.More { // whole, or flags only
		return nil
	}
	p.piece = true
	if d.HasTotal {
		c.turn++
		turn := c.turn
		*a = assembly{active: true, part: d.Part, total: int64(d.Total), turn: turn}
		a.large = a.total > k.windowSize()-2*dataCost
		if k.hold != nil && (a.large || !c.takeExtra(k, a.total)) { // what is joined is a second copy
			c.lastAttempt(k)
		}
		if a.large {
			c.reserveFor(r)
			if k = r.get(); k == nil || a.turn != turn {
				return nil
			}
		}
	}
	a.got += int64(len(d.Bytes))
	if a.res != nil {
		a.res.came(a.got, time.Now())
	}
	if p.room = a.hasMemory(); d.More {
		return nil
	}
	if p.room {
		p.res = a.res
		p.res.passed = true
	} else if a.res != nil && c.memory.forget(a.res) {
		k.lent = 0
		c.later(effect{kind: effectRelease})
	}
	*a = assembly{}
	return nil
}

// joined is a message that is passed on to a simple link, as far as it has come. It
// belongs to the half of that link.
type joined struct {
	active bool
	d      frame.Data // but its bytes
	buf    []byte
}

// begin starts with a message's first piece.
func (j *joined) begin(d *frame.Data) {
	*j = joined{active: true, d: *d}
	j.d.Bytes, j.d.More, j.d.Last = nil, false, false
	j.d.ContentType = append([]byte(nil), d.ContentType...)
}

// add adds a piece. room says that there is memory for the whole message, as there is if
// it fits a window.
func (j *joined) add(d *frame.Data, room bool) {
	if total := int(j.d.Total); cap(j.buf) < total && (room || total <= largeBuf) {
		j.buf = append(make([]byte, 0, total), j.buf...)
	}
	j.buf = append(j.buf, d.Bytes...)
}

// join adds a Data to the message that goes to the other end of this simple link, and
// sends it when it is whole. It returns the call credit to give back at once: of the
// bytes, that is none until the message is written. c.mu is held.
func (c *Conn) join(k *call, d *frame.Data, from ref, p passing) (credit int64) {
	j := &k.join
	if !j.active {
		j.begin(d)
	}
	j.add(d, p.room)
	if d.More {
		return dataCost
	}
	whole := j.d
	whole.Bytes, whole.Last = j.buf, d.Last
	*j = joined{}
	if !c.sendData(k, &whole, false, from, nil) {
		it := &k.q[len(k.q)-1]
		it.joined = true
		it.carry(p.res, k)
		return dataCost
	}
	if p.res != nil {
		c.later(effect{kind: effectTaken, res: p.res})
		return dataCost
	}
	return dataCost + int64(len(whole.Bytes))
}

// passing is what a Data that is passed on brings along.
type passing struct {
	held  *holdChunk   // what the bytes lie in if they stay when forward returns
	piece bool         // it is a part of a message that is joined
	res   *reservation // memory of the message that it ends
	room  bool         // the message that it is a part of has memory of its own
}

// drop gives back what a Data holds that goes nowhere, and returns the call credit to
// give back at once. c.mu is held.
func (c *Conn) drop(d *frame.Data, p passing) (credit int64) {
	if p.res != nil {
		c.later(effect{kind: effectTaken, res: p.res})
	}
	switch {
	case p.piece: // of the bytes, nothing goes back: the call is over for its caller soon
		return dataCost
	case p.res != nil:
		return 0 // all of it is in that memory
	}
	return int64(len(d.Bytes)) + dataCost
}

// carry puts the memory of an item's message, if it has any, where it is given back when
// the item is written or dropped.
func (it *item) carry(v *reservation, k *call) {
	if v != nil {
		it.res = v
		v.at.Store(new(k.ref()))
	}
}

// lapsedHere ends a call in whose queue a message lies that has lost its memory.
func (c *Conn) lapsedHere(r ref, v *reservation, err *conduit.Error) {
	c.mu.Lock()
	if k := r.get(); k != nil {
		for i := range k.q[k.qHead:] {
			if k.q[k.qHead+i].res == v {
				c.faulted(k, err)
				break
			}
		}
	}
	c.unlock()
	c.kick()
}

// returned gives back what a piece of n bytes of an item held on the link that it came
// from, now that it is written; last says that no more is left of the item. c.mu is held.
func (c *Conn) returned(it *item, n int64, last bool) {
	switch {
	case it.res != nil && last:
		c.later(effect{kind: effectTaken, res: it.res})
		it.res = nil
	case it.res != nil:
		if now := it.res.got.Load() + n; now < it.res.n {
			it.res.came(now, time.Now())
		}
	case it.from.k == nil:
	case it.joined:
		c.later(effect{kind: effectGrant, to: it.from, n: n})
	default:
		c.grantBack(it.from, n, last)
	}
}
