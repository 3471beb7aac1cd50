package link

import (
	"time"

	"github.com/elemental-conduit/conduit/internal/frame"
)

// Link credit keeps short what lies between two readers, and so bounds how fast the
// link can be: its bytes go round once in a round trip. What Hello gives fills any
// line of less than about a millisecond. For a longer one it grows with what is
// measured, and never shrinks.
//
// The round trip is the least one of any ping, and of the Hellos, when nothing is in
// the way yet: one that is measured beside bulk waits behind it, and says nothing but
// how much credit there is. How fast bytes come is measured from a
// ping to its answer. The two multiplied are what the line itself holds; only when
// that comes near the credit can it be the credit that holds the sender up.
const (
	// maxLinkCredit is as far as it grows, in bytes.
	maxLinkCredit = 4 << 20
	// growFrom is the least round trip worth growing for. Below it the first credit
	// is good for 256 MB/s, and what is measured is how goroutines are scheduled.
	growFrom = time.Millisecond
	// firstSamples is how often the round trip is measured at the start of a link that
	// looks as if it were worth growing for: busy processes make a short way look long.
	firstSamples = 8
	// sampleNonce tells the pings of samples from probes and those of Sync.
	sampleNonce = 1 << 62
)

// growth is what this end knows of the line to it, and has given the other end for
// it. conn.mu guards it.
type growth struct {
	limit int64         // link credit given in all, used or not, in bytes
	extra int64         // of limit, as Memory counts it
	floor time.Duration // the least round trip; 0 = none was measured
	got   int64         // bytes that count, since the sample began, or since the last one
	began time.Time     // when the sample's ping was written, or at first the Hello; zero = there is no sample
	nonce uint64
	holds int64   // bytes that the line holds, by the last sample; 0 = that does not count
	rate  float64 // bytes/s that came when the limit was raised last
	given int64   // what the other end has given beyond its Hello, as far as is known
}

// sample begins to measure: it asks for an answer. c.mu is held.
func (c *Conn) sample() {
	g := &c.grow
	g.nonce++
	g.began, g.got = c.now, 0
	c.ctrl = frame.AppendPing(c.ctrl, sampleNonce|g.nonce, false)
}

// arrived notes that a packet came. c.mu is held.
func (c *Conn) arrived() {
	if g := &c.grow; c.ready && !c.simple && g.began.IsZero() && g.nonce < firstSamples && g.floor >= growFrom/2 {
		c.sample()
	}
}

// counted notes that a counted frame was taken off the carrier. c.mu is held.
func (c *Conn) counted(size int) {
	if c.simple {
		return
	}
	c.linkOwed += int64(size)
	g := &c.grow
	g.got += int64(size)
	if g.began.IsZero() && g.got >= g.limit/2 && g.limit < maxLinkCredit && g.floor >= growFrom {
		c.sample()
	}
}

// roundTrip takes the time that an answer took. c.mu is held.
func (c *Conn) roundTrip(took time.Duration) {
	c.stat.RTT = took
	if g := &c.grow; g.floor == 0 || took < g.floor {
		g.floor = max(took, 1)
	}
}

// sampled takes the answer to the ping of a sample. c.mu is held.
func (c *Conn) sampled(nonce uint64) {
	g := &c.grow
	if g.began.IsZero() || nonce != sampleNonce|g.nonce {
		return
	}
	took, got := max(c.now.Sub(g.began), 1), g.got
	g.began, g.got = time.Time{}, 0
	c.roundTrip(took)
	rate := float64(got) / took.Seconds()
	holds := int64(rate * g.floor.Seconds())
	// Twice in succession: one sample may have caught what came while this process did
	// not run.
	holds, g.holds = min(holds, g.holds), holds
	if g.floor < growFrom || holds < g.limit*2/3 || rate < g.rate*5/4 || c.err != nil {
		return // what it was raised to last has not helped yet, or does not
	}
	more := min(2*holds, maxLinkCredit) - g.limit
	if more <= 0 || !c.memory.takeSpare(more) {
		return
	}
	g.limit += more
	g.extra += more
	g.rate, g.holds = rate, 0
	c.linkOwed += more // given by returning more than was sent
}

// shrink gives back what growth took of Memory. c.mu is held.
func (c *Conn) shrink() {
	c.memory.giveWindow(c.grow.extra)
	c.grow.extra = 0
}

// far reports whether the other end may give more link credit than it said, so that
// what is unreturned may be more than it seems to be. c.mu is held.
func (c *Conn) far() bool { return c.grow.floor >= growFrom/2 || c.grow.given > 0 }
