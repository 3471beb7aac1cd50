package link

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// hold is what a link keeps of a call that is parked, or that may be passed on
// once more: the Invoke, and each Data of the request. It belongs to the
// caller's link, whose mutex guards it, and is recycled there.
//
// Memory. The bytes of a request lie within the window that its link promised
// when the call came: no credit is returned while a call is parked, and a hold
// that grows beyond the window is dropped. A frame that waits in the other link's
// queue aliases the hold, so nothing is held twice. For the same reason the part
// of the window that a request needs no more is given back only when the hold
// ends ([Conn.credit]). What no window covers is counted beside it, as call.extra:
// the Invoke, the payload of a small request (which has no window), and, when a
// call is passed on again, what its caller was credited for before.
type hold struct {
	conn *Conn  // never changes: read without the lock
	turn uint64 // of decisions: a Parked of an earlier one means nothing
	heldCall
}

// heldCall is what a hold starts from anew each time.
type heldCall struct {
	call ref
	id   uint64
	refs int // the call, whoever is to decide, and who passes it on

	state    holdState
	over     *conduit.Error // why it ended while it was parked
	deadline time.Time
	timer    *time.Timer
	done     chan struct{}

	inv    frame.Invoke
	chunks []*holdChunk
	pieces []holdPiece // the Data behind the Invoke
	size   int64       // as call credit counts it
	next   int         // the piece to be passed on next
	lost   bool        // no other attempt follows: too much has come, an answer has begun, or the caller has cancelled

	owner  Owner  // of the last attempt; nil = there was none
	router Router // nil if it does not want the call back
	tag    uint64
	failed *conduit.Error // what the last attempt ended with
	// owed are units of the Invoke that count as judged once the call is decided about.
	owed  uint32
	early *attemptEnd // it ended before all was passed on

	paid    int64 // what the caller was credited for, in bytes
	unfreed int64 // of the window, given back with the hold
	counted int64 // of paid, in call.extra
}

type holdState uint8

const (
	holdParked  holdState = iota // somebody is to decide about the call
	holdPassing                  // somebody passes it on
	holdSpliced                  // it is passed on
	holdOver                     // it ended while it was parked
)

// holdChunk is pooled memory of a hold. It goes back to the pool when the hold
// has ended and no queue aliases it.
type holdChunk struct {
	refs atomic.Int32
	mem  *[]byte
}

//nolint:gochecknoglobals // a pool, shared by all links of a process on purpose
var chunkPool = sync.Pool{New: func() any { return new(holdChunk) }}

func newChunk(n int) *holdChunk {
	ch, ok := chunkPool.Get().(*holdChunk)
	if !ok {
		ch = new(holdChunk)
	}
	ch.mem = getBuf(n)
	ch.refs.Store(1)
	return ch
}

func (ch *holdChunk) release() {
	if ch.refs.Add(-1) == 0 {
		putBuf(ch.mem)
		ch.mem = nil
		chunkPool.Put(ch)
	}
}

// holdPiece is a Data whose bytes, and behind them its content type, lie in a
// chunk. It is as large as what a Data costs beside its bytes, so that a flood of
// empty ones is counted too.
type holdPiece struct {
	total            uint64
	at, n            uint32
	part             uint32
	chunk, ctype     uint16
	hasTotal         bool
	more, last, none bool // none: no room is taken
}

// newHold takes a hold from the free list or makes one. c.mu is held.
func (c *Conn) newHold() *hold {
	c.holds++
	if n := len(c.freeHolds); n > 0 {
		h := c.freeHolds[n-1]
		c.freeHolds = c.freeHolds[:n-1]
		return h
	}
	return &hold{conn: c}
}

// keepInvoke copies an Invoke and its payload. c.mu is held.
func (h *hold) keepInvoke(in *frame.Invoke) {
	ch := newChunk(headerBytes(in) + len(in.Data.Bytes))
	*ch.mem = copyInto(&h.inv, in, *ch.mem, true)
	h.chunks = append(h.chunks, ch)
	if in.HasData {
		h.size = int64(len(in.Data.Bytes)) + dataCost
	}
}

// keep copies a Data. c.mu is held.
func (h *hold) keep(d *frame.Data) {
	p := holdPiece{
		total: d.Total, n: uint32(len(d.Bytes)), part: d.Part, ctype: uint16(len(d.ContentType)),
		hasTotal: d.HasTotal, more: d.More, last: d.Last,
	}
	if n := len(d.Bytes) + len(d.ContentType); n == 0 {
		p.none = true
	} else {
		ch := h.chunks[len(h.chunks)-1]
		if cap(*ch.mem)-len(*ch.mem) < n {
			ch = newChunk(n)
			h.chunks = append(h.chunks, ch)
		}
		p.chunk, p.at = uint16(len(h.chunks)-1), uint32(len(*ch.mem))
		*ch.mem = append(append(*ch.mem, d.Bytes...), d.ContentType...)
	}
	h.pieces = append(h.pieces, p)
	h.size += int64(len(d.Bytes)) + dataCost
}

// piece returns a Data that is held, and what its bytes lie in. c.mu is held.
func (h *hold) piece(i int) (d frame.Data, ch *holdChunk) {
	p := &h.pieces[i]
	d = frame.Data{Part: p.part, Total: p.total, HasTotal: p.hasTotal, More: p.more, Last: p.last}
	if p.none {
		return d, h.chunks[0]
	}
	ch = h.chunks[p.chunk]
	b := *ch.mem
	end := p.at + p.n
	d.Bytes = b[p.at:end:end]
	if p.ctype > 0 {
		d.ContentType = b[end : end+uint32(p.ctype) : end+uint32(p.ctype)]
	}
	return d, ch
}

// extraOf is what the first chunk of a hold takes beside the call's window.
func (h *hold) extraOf(k *call) int64 {
	n := int64(cap(*h.chunks[0].mem))
	if k.window > 0 || k.open.hasMemory() {
		n -= int64(len(h.inv.Data.Bytes))
	}
	return n
}

// takeExtra counts n bytes more for a call, beside its window. c.mu is held.
func (c *Conn) takeExtra(k *call, n int64) bool {
	if n <= 0 {
		return true
	}
	if c.windows+n > c.o.LinkMemory || c.memory.takeWindow(n, n) != n {
		return false
	}
	c.windows += n
	k.extra += n
	return true
}

// freeExtra gives back what was counted beside a call's window. c.mu is held.
func (c *Conn) freeExtra(k *call) {
	if k.extra > 0 {
		c.windows -= k.extra
		c.memory.giveWindow(k.extra)
		k.extra = 0
	}
}

// dropHold ends the hold of a call: it is not passed on again. c.mu is held.
func (c *Conn) dropHold(k *call) {
	h := k.hold
	if h == nil {
		return
	}
	k.hold = nil
	c.wake()
	if h.unfreed > 0 {
		c.freeWindow(k, h.unfreed)
		h.unfreed = 0
	}
	c.letGo(h)
}

// letGo drops one reference to a hold. c.mu is held.
func (c *Conn) letGo(h *hold) {
	if h.refs--; h.refs > 0 {
		return
	}
	c.holds--
	for i, ch := range h.chunks {
		ch.release()
		h.chunks[i] = nil
	}
	chain, callers := h.inv.Chain[:0], h.inv.Caller.Chain[:0]
	chunks, pieces := h.chunks[:0], h.pieces[:0]
	if cap(pieces) > maxFree {
		pieces = nil
	}
	h.heldCall = heldCall{chunks: chunks, pieces: pieces}
	h.inv.Chain, h.inv.Caller.Chain = chain, callers
	if len(c.freeHolds) < maxFree {
		c.freeHolds = append(c.freeHolds, h)
	}
}
