package link

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// liveness tells a dead peer from a slow one. One timer a link serves all of
// it; conn.mu guards it.
type liveness struct {
	timer   *time.Timer
	due     time.Time // when the timer should fire
	lastIn  time.Time // when a packet came last
	probing time.Time // when the first probe without an answer was written; zero = none
	probes  int
	nonce   uint64
	sentAt  time.Time // of the probe with that nonce
	off     bool
	syncs   uint64                   // pings that Sync has sent
	reading map[uint64]chan struct{} // closed when they are answered
}

// startLiveness arms the timer for the Hello. c.mu is held.
func (c *Conn) startLiveness() {
	l := &c.live
	l.lastIn = c.now
	l.due = c.now.Add(c.o.HelloTimeout)
	l.timer = time.AfterFunc(c.o.HelloTimeout, c.tick)
}

// beginLiveness sets the timer for the life after the Hello. c.mu is held.
func (c *Conn) beginLiveness() {
	if l := &c.live; !l.off && c.o.ProbeInterval > 0 {
		d := c.o.PingInterval
		if c.out > c.outBackground {
			d = c.o.ProbeInterval
		}
		c.arm(c.now, d)
	}
}

func (c *Conn) stopLiveness() {
	c.live.off = true
	if c.live.timer != nil {
		c.live.timer.Stop()
	}
}

// heard notes that the peer lives. c.mu is held.
func (c *Conn) heard(now time.Time) {
	l := &c.live
	l.lastIn = now
	if !l.probing.IsZero() {
		l.probing, l.probes = time.Time{}, 0
	}
}

// waitBegins sees to it that the timer fires soon enough when this end begins
// to wait for an answer. c.mu is held.
func (c *Conn) waitBegins() {
	if l := &c.live; c.ready && !l.off && c.o.ProbeInterval > 0 && time.Until(l.due) > c.o.ProbeInterval {
		c.arm(time.Now(), c.o.ProbeInterval)
	}
}

func (c *Conn) arm(now time.Time, d time.Duration) {
	c.live.due = now.Add(d)
	c.live.timer.Reset(d)
}

// syncNonce tells the pings of Sync from probes.
const syncNonce = 1 << 63

// Sync returns when the other end has read everything that was handed to the
// carrier before: a carrier may keep what it was given for a while, and a process
// that ends takes that along.
func (c *Conn) Sync(ctx context.Context) error {
	read := make(chan struct{})
	c.mu.Lock()
	if c.err != nil || !c.ready {
		defer c.unlock()
		return c.lost(conduit.NotSent)
	}
	nonce := syncNonce | c.live.syncs
	c.live.syncs++
	if c.live.reading == nil {
		c.live.reading = make(map[uint64]chan struct{})
	}
	c.live.reading[nonce] = read
	c.ctrl = frame.AppendPing(c.ctrl, nonce, false)
	c.unlock()
	c.kick() // a write that is stuck must not outlast ctx
	defer func() {
		c.mu.Lock()
		delete(c.live.reading, nonce)
		c.unlock()
	}()
	select {
	case <-read:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pong takes an answer to a probe. c.mu is held.
func (c *Conn) pong(nonce uint64) {
	if read := c.live.reading[nonce]; read != nil {
		close(read)
		delete(c.live.reading, nonce)
		return
	}
	if nonce >= sampleNonce {
		c.sampled(nonce)
		return
	}
	if l := &c.live; nonce == l.nonce && !l.sentAt.IsZero() {
		c.roundTrip(c.now.Sub(l.sentAt))
		l.sentAt = time.Time{}
	}
}

// tick decides what the timer stands for now: the Hello is overdue, a probe is
// due, the peer is dead, or there is nothing to do for a while.
func (c *Conn) tick() {
	c.mu.Lock()
	l := &c.live
	now := time.Now()
	if l.off || c.err != nil {
		c.unlock()
		return
	}
	late := now.Sub(l.due)
	if !c.ready {
		c.failLocked(&CloseError{Code: CloseProtocol, Reason: "no Hello within " + c.o.HelloTimeout.String()})
		c.unlock()
		return
	}
	if c.o.ProbeInterval < 0 {
		c.unlock()
		return
	}
	if c.stalled { // the answer to a probe would not be read
		l.probing, l.probes = time.Time{}, 0
		c.arm(now, c.o.ProbeInterval)
		c.unlock()
		return
	}
	waiting := c.out > c.outBackground
	interval := c.o.PingInterval
	if waiting {
		interval = c.o.ProbeInterval
	}
	if late > c.o.ProbeInterval/2 && !l.probing.IsZero() {
		// This end was starved, so the peer's answer may lie unread: it gets
		// the whole time again.
		l.probing, l.probes = now, 0
	}
	quiet := now.Sub(l.lastIn)
	switch {
	case !l.probing.IsZero() && now.Sub(l.probing) >= c.o.DeadAfter && l.probes >= 2:
		c.dead()
		return
	case quiet >= interval || !l.probing.IsZero():
		if l.probing.IsZero() {
			l.probing = now
		}
		l.probes++
		l.nonce++
		l.sentAt = now
		c.ctrl = frame.AppendPing(c.ctrl, l.nonce, false)
		next := min(c.o.ProbeInterval, l.probing.Add(c.o.DeadAfter).Sub(now))
		c.arm(now, max(next, time.Millisecond))
	default:
		c.arm(now, max(interval-quiet, time.Millisecond))
	}
	if c.out == 0 && c.inc == 0 && !c.writing && len(c.wbuf) == 0 {
		c.wbuf, c.spare = nil, nil // an idle link holds no packet
	}
	c.unlock()
	c.flush()
}

// dead ends a link whose peer answered no probe; c.mu is held, and released.
func (c *Conn) dead() {
	if c.out == c.outBackground && c.inc > 0 && !c.o.Dialer {
		c.log.Debug("peer is silent; its calls are cancelled", "calls", c.inc)
	}
	c.failLocked(&silentError{after: c.o.DeadAfter})
	c.unlock()
}

// silentError says that the peer answered no probe.
type silentError struct{ after time.Duration }

func (e *silentError) Error() string {
	return "the peer has answered no probe for " + e.after.String() + ": it is dead, stopped, or cut off"
}

func (e *silentError) Is(target error) bool {
	return (&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonPeerLost}).Is(target)
}
