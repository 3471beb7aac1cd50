package link

import (
	"runtime"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

const (
	// packetTarget is where a packet is full enough: more would only wait. It
	// leaves room for a header or two below the least packet that an end takes.
	packetTarget = 60 << 10
	// inlineLimit is how much may be unreturned for a write to be made by
	// whoever asks: so much surely fits the carrier's buffers.
	inlineLimit = 64 << 10
	// inlineRounds is how many packets a borrowed goroutine writes before a
	// writer of its own takes over.
	inlineRounds = 4
	// creditPiggyback and creditAlone say when link credit is returned: with a
	// packet that leaves anyway, or in one of its own; at the latest when a
	// quarter of it is due.
	creditPiggyback = 4 << 10
	creditAlone     = 32 << 10
	// leastPiece is the least of a message that is worth a frame of its own
	// while link credit is short, in bytes.
	leastPiece = 1 << 10
)

// mayAppend reports whether a frame may go straight into the next packet:
// nothing waits that should go before it, and credit allows it. c.mu is held.
func (c *Conn) mayAppend(size int, payload int) bool {
	if !c.ready || c.err != nil || c.linkCredit < int64(size) || !c.small.empty() {
		return false
	}
	if payload > smallFrame {
		return !c.writing && c.bulk.empty() && len(c.wbuf)+size <= packetTarget
	}
	// Behind a write under way a small frame waits in the packet only while it
	// is short, so that the order of calls is decided late.
	return len(c.wbuf)+size <= packetTarget/4 || !c.writing && len(c.wbuf)+size <= packetTarget
}

// spend counts a frame against link credit.
func (c *Conn) spend(size int) {
	if c.simple {
		return
	}
	c.linkCredit -= int64(size)
	c.unreturned += int64(size)
}

// hasWork reports whether a packet can be written. c.mu is held.
func (c *Conn) hasWork() bool {
	if c.shut {
		return false
	}
	if len(c.wbuf) > 0 || c.report.due || len(c.ctrl) > 0 || len(c.owing) > 0 || c.linkOwed >= min(creditAlone, int64(c.o.Hello.LinkCredit)/4) {
		return true
	}
	return c.ready && c.err == nil && !c.blocked && (!c.small.empty() || !c.bulk.empty())
}

// flush writes what is ready, or sees to it that somebody does.
func (c *Conn) flush() {
	c.mu.Lock()
	if c.writing || !c.hasWork() {
		c.unlock()
		return
	}
	c.writing = true
	c.write(true)
}

// flushShared is flush for application goroutines: while other calls are under
// way it lets them run first, so that their frames ride along.
func (c *Conn) flushShared() {
	c.mu.Lock()
	if c.writing || c.yielding || !c.hasWork() {
		c.unlock()
		return
	}
	if c.out+c.inc > 1 {
		c.yielding = true
		c.unlock()
		runtime.Gosched()
		c.mu.Lock()
		c.yielding = false
		if c.writing || !c.hasWork() {
			c.unlock()
			return
		}
	}
	c.writing = true
	c.write(true)
}

// kick is flush for those who must not write themselves.
func (c *Conn) kick() {
	c.mu.Lock()
	if c.writing || !c.hasWork() {
		c.unlock()
		return
	}
	c.writing = true
	c.unlock()
	go c.writeLoop()
}

func (c *Conn) writeLoop() {
	c.mu.Lock()
	c.write(false)
}

// write writes packets until there is nothing to write. It is called with c.mu
// held and c.writing set, and returns with c.mu released.
func (c *Conn) write(inline bool) {
	for round := 0; ; round++ {
		if !c.hasWork() {
			c.writing = false
			if c.idleWriter != nil {
				close(c.idleWriter)
				c.idleWriter = nil
			}
			c.unlock()
			return
		}
		if inline && (round == inlineRounds || c.try == nil && (c.unreturned >= inlineLimit || c.far() || c.simple)) {
			c.unlock()
			go c.writeLoop()
			return
		}
		p := c.build()
		c.stat.PacketsOut++
		c.stat.BytesOut += uint64(len(p))
		c.unlock()
		var err error
		switch {
		case len(p) == 0:
		case inline && c.try != nil:
			var done bool
			if done, err = c.try.TryWriteMessage(p); err == nil && !done {
				go c.finish(p)
				return
			}
		default:
			err = c.carrier.WriteMessage(p)
		}
		c.mu.Lock()
		c.wrote(p, err)
	}
}

// finish writes the rest of a packet for which there was no room at once, and what waits
// behind it.
func (c *Conn) finish(p []byte) {
	err := c.try.Finish()
	c.mu.Lock()
	c.wrote(p, err)
	c.write(false)
}

// wrote notes what became of a packet. c.mu is held.
func (c *Conn) wrote(p []byte, err error) {
	if cap(p) <= 2*packetTarget {
		c.spare = p[:0]
	}
	if err != nil {
		c.wbuf, c.ctrl, c.owing = c.wbuf[:0], c.ctrl[:0], c.owing[:0]
		c.linkOwed = 0
		c.failLocked(err)
	}
}

// build completes the next packet from what waits: control first, then calls
// whose next frame is small, then bulk, which gets at least an eighth.
func (c *Conn) build() []byte {
	p := c.wbuf
	c.wbuf, c.spare = c.spare[:0], nil // what is added meanwhile goes with the next one
	if c.o.Reporter != nil {
		p = c.putStatus(p)
	}
	if !c.bulk.empty() {
		c.smallRun += len(p)
	}
	if n := wholeFrames(c.ctrl, packetTarget-len(p)); n == len(c.ctrl) {
		p = append(p, c.ctrl...)
		c.ctrl = c.ctrl[:0]
	} else {
		p = append(p, c.ctrl[:n]...)
		c.ctrl = append(c.ctrl[:0], c.ctrl[n:]...)
		return p
	}
	if c.linkOwed >= creditPiggyback {
		p = frame.AppendCredit(p, 0, uint64(c.linkOwed))
		c.linkOwed = 0
	}
	p = c.appendCredits(p)
	if !c.ready || c.err != nil {
		return p
	}
	const limit = packetTarget
	for len(p) < limit {
		l := &c.small
		if l.empty() || !c.bulk.empty() && c.smallRun >= 7*chunk {
			l = &c.bulk
		}
		k := l.head
		if k == nil {
			break
		}
		before := len(p)
		var ok bool
		if p, ok = c.encodeNext(p, k, limit); !ok {
			break
		}
		if l == &c.bulk {
			c.smallRun = 0
		} else if !c.bulk.empty() {
			c.smallRun += len(p) - before
		}
	}
	return p
}

// appendCredits writes the credit that calls owe into the packet, as much of it
// as fits. c.mu is held.
func (c *Conn) appendCredits(p []byte) []byte {
	n := 0
	for n < len(c.owing) && len(p) < packetTarget {
		if k := c.owing[n].get(); k != nil {
			k.owing = false
			if k.recvOwed > 0 && k.id != 0 {
				k.recvLeft += k.recvOwed
				p = frame.AppendCredit(p, k.id, uint64(k.recvOwed))
				k.recvOwed = 0
			}
		}
		n++
	}
	left := copy(c.owing, c.owing[n:])
	clear(c.owing[left:])
	c.owing = c.owing[:left]
	return p
}

// wholeFrames returns how many bytes of encoded frames fit n bytes without
// cutting one.
func wholeFrames(b []byte, n int) int {
	if len(b) <= n {
		return len(b)
	}
	at := 0
	for at < len(b) {
		size, lead := protowire.ConsumeVarint(b[at+1:]) // behind the tag, which is one byte
		if next := at + 1 + lead + int(size); lead > 0 && next <= n {
			at = next
			continue
		}
		break
	}
	return at
}

// encodeNext writes the next frame of a call into the packet and puts the call
// where it belongs then. It reports false when the frame must wait for link
// credit or for the next packet.
func (c *Conn) encodeNext(p []byte, k *call, limit int) ([]byte, bool) {
	it := k.front()
	switch it.kind { //nolint:exhaustive // what follows is itemData
	case itemFailure:
		size := frame.BodySize(k.id, len(it.body))
		if len(p) > 0 && len(p)+size > limit {
			return p, false
		}
		if c.linkCredit < int64(size) {
			return p, c.wait()
		}
		p = frame.AppendBody(p, k.id, frame.KindFailure, it.body)
		c.spend(size)
		k.pop()
		c.afterItem(k, true)
		return p, true

	case itemInvoke:
		in := &it.inv.inv
		if k.deadline.IsZero() {
			in.TimeoutMicros = 0
		} else if left := time.Until(k.deadline); left > 0 {
			in.TimeoutMicros = micros(left)
		} else {
			c.ended(k, &conduit.Error{
				Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline, Outcome: conduit.NotSent,
				Message: "the deadline passed before the call could be sent", Op: c.o.Op, Peer: c.o.Peer.Name,
			}, nil)
			return p, true
		}
		if in.HasData && in.Data.HasTotal && in.Data.Total > uint64(c.theirs.MaxMessage) {
			c.ended(k, c.tooLarge(int64(in.Data.Total), conduit.NotSent), nil)
			return p, true
		}
		k.sendCredit = c.requestCredit()
		whole := in.Data
		all := int64(len(whole.Bytes))
		n := min(all, c.pieceLimit(), k.sendCredit-dataCost)
		cutTo := func(to int64) int {
			if n = to; n < all {
				in.Data.Bytes, in.Data.More, in.Data.Last = whole.Bytes[:n], true, false
			}
			return frame.InvokeSize(c.nextID, in)
		}
		size := cutTo(n)
		if len(p) > 0 && len(p)+size > limit {
			in.Data = whole
			return p, false
		}
		if over := int64(size) - c.linkCredit; over > 0 {
			if n-over < leastPiece {
				in.Data = whole
				return p, c.wait()
			}
			size = cutTo(n - over - 2) // more takes two bytes
		}
		k.id = c.takeID()
		c.calls[k.id] = k
		p = frame.AppendInvoke(p, k.id, in)
		c.spend(size)
		if in.HasData {
			k.sendCredit -= n + dataCost
		}
		c.returned(it, n, n == all)
		if n < all {
			// The rest of the request becomes a Data of its own, in the same place.
			rest := whole
			rest.Bytes, rest.HasTotal = whole.Bytes[n:], false
			it.kind, it.data = itemData, rest
			it.data.ContentType = nil
			if it.inv.buf != nil { // the bytes live in the queued Invoke's memory
				it.buf, it.inv.buf = it.inv.buf, nil
			}
			it.inv.release()
			it.inv = nil
			c.relist(k)
			return p, true
		}
		k.pop()
		c.afterItem(k, false)
		return p, true
	}

	d := &it.data
	n := int64(len(d.Bytes))
	if d.HasTotal && d.Total > uint64(c.theirs.MaxMessage) {
		c.oversized(k, int64(d.Total))
		return p, true
	}
	n = min(n, c.pieceLimit(), k.sendCredit-dataCost)
	one := *d
	one.Bytes = d.Bytes[:n]
	if n < int64(len(d.Bytes)) {
		one.More, one.Last = true, false
	}
	size := frame.DataSize(k.id, &one)
	if len(p) > 0 && len(p)+size > limit {
		return p, false
	}
	if over := int64(size) - c.linkCredit; over > 0 {
		// Cut the chunk to the credit there is rather than wait for a whole one.
		if n-over < leastPiece {
			return p, c.wait()
		}
		n -= over + 2 // more takes two bytes
		one.Bytes, one.More, one.Last = d.Bytes[:n], true, false
		size = frame.DataSize(k.id, &one)
	}
	p = frame.AppendData(p, k.id, &one)
	c.spend(size)
	k.sendCredit -= n + dataCost
	c.returned(it, n, n == int64(len(d.Bytes)))
	if n < int64(len(d.Bytes)) {
		d.Bytes, d.HasTotal, d.ContentType = d.Bytes[n:], false, nil
		c.relist(k)
		return p, true
	}
	last := d.Last
	k.pop()
	c.afterItem(k, last && !k.ours)
	return p, true
}

// grantBack returns call credit on the link that a piece of n bytes came from.
// The source counted one Data: each piece but the last costs this link alone.
func (c *Conn) grantBack(to ref, n int64, last bool) {
	if last {
		n += dataCost
	}
	c.later(effect{kind: effectGrant, to: to, n: n})
}

// afterItem files a call whose front item was written; over ends it.
func (c *Conn) afterItem(k *call, over bool) {
	if over {
		c.answered(k)
		return
	}
	c.relist(k)
}

// relist puts a call at the back of the list it belongs to now.
func (c *Conn) relist(k *call) {
	c.unlist(k)
	c.enlist(k)
}

// wait notes that nothing more can be written until link credit comes.
func (c *Conn) wait() bool {
	c.blocked = true
	return false
}

// answered takes a call of the other end off the link, its last frame written.
func (c *Conn) answered(k *call) {
	if k.in != nil {
		k.in.end(nil)
	}
	c.retire(k)
}

// takeID gives the next Invoke its id.
func (c *Conn) takeID() uint64 {
	id := c.nextID
	c.nextID += 2
	return id
}

// micros is a remaining time as it travels: at least one, for none is no deadline.
func micros(d time.Duration) uint64 { return uint64(max(1, d.Microseconds())) }
