package link

import (
	"bytes"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const (
	// statusPause is the least time between two Status that have a packet of their
	// own: a busy instance has many links, and what moves comes with answers anyway.
	statusPause = 500 * time.Millisecond
	// newsPause is the same for what a caller goes wrong without: another state, and
	// other deployments, neither of which changes often.
	newsPause = 50 * time.Millisecond
	// lookPause is the least time between two looks at whether a Status is worth a
	// packet, so that an instance whose units change all the time spends little on
	// links that nobody uses.
	lookPause = 20 * time.Millisecond
	// statusShare of the total is what must have moved for a packet: one in so many.
	statusShare = 20
	// maxDigest is the longest digest that is sent, in bytes: a Status fits what a
	// packet has left behind packetTarget.
	maxDigest = 64
)

// Status is what an end says of its room, in units.
type Status struct {
	Available, Total int64
	// Judged is the sum of the units of this link's Invokes that were judged, as of
	// the same moment as Available.
	Judged int64
	// InFlight is the number of calls under way on the whole instance.
	InFlight int64
	State    conduitv1.InstanceState
	// Digest is InstanceInfo.digest, at most 64 bytes, else it is left out. It is
	// kept, so it must not be changed.
	Digest []byte
}

// Reporter is what a link tells its other end of this instance's room, and where
// it counts the units of the Invokes that came in. Each link has one of its own.
// All methods are called concurrently and must not block; Version and Status are
// called with the link's lock held, so they call no method of it.
//
// Every Invoke that the link takes is judged exactly once. The handler judges
// those that it admits, or refuses for want of units, by the Reporter itself and
// calls [Incoming.MarkJudged]; all others the link counts by Refuse: those that the
// handler refused without, and those that it never saw. An Invoke above the last
// call of this end's GoAway is not judged: the other end counts it as unsent.
type Reporter interface {
	// Refuse counts the units of an Invoke as judged that ended before it came to
	// its units. It is called once for each, with no lock of the link held.
	Refuse(units int64)
	// Version is another number whenever Status is another. It is asked for each
	// packet and should cost no more than an atomic load.
	Version() uint64
	// Status returns what the other end is to know.
	Status() Status
}

// reporting is the state of a link that has a Reporter.
type reporting struct {
	born  time.Time
	timer *time.Timer  // runs lookAtStatus; nil without a Reporter
	asked atomic.Bool  // the timer is set, or the link is over
	next  atomic.Int64 // no look before; nanoseconds since born

	// Guarded by Conn.mu.
	told    bool // one was sent
	due     bool // it is worth a packet of its own
	version uint64
	sent    Status
	alone   time.Time // when one was last worth a packet
	behind  int       // bytes of wbuf that a Status must not go before: this end's Hello
	body    []byte
}

// startReporting is called before anybody knows of the link.
func (c *Conn) startReporting() {
	if c.o.Reporter == nil {
		return
	}
	r := &c.report
	r.born = c.now
	r.timer = time.AfterFunc(time.Hour, c.lookAtStatus)
	r.timer.Stop()
}

// stopReporting ends what StatusChanged starts. c.mu is held.
func (c *Conn) stopReporting() {
	if r := &c.report; r.timer != nil {
		r.asked.Store(true)
		r.timer.Stop()
	}
}

// StatusChanged says that the Reporter's Status may have become another, so that it
// is sent though no other packet leaves, if that is worth one: when the state, the
// total or the digest has changed, or what is available or judged has moved by
// more than a twentieth of the total since the other end was last told, or there is
// more room than the less than a twentieth that it was told of; and then once in 500 ms at most, or in 50 if the state or the digest is another. It takes no lock and does not wait.
func (c *Conn) StatusChanged() {
	r := &c.report
	if r.timer == nil || r.asked.Swap(true) {
		return
	}
	r.timer.Reset(max(0, time.Duration(r.next.Load())-time.Since(r.born)))
}

// lookAtStatus decides whether the Status is worth a packet of its own.
func (c *Conn) lookAtStatus() {
	c.mu.Lock()
	r := &c.report
	if c.err != nil {
		c.unlock()
		return
	}
	now := time.Now()
	r.next.Store(int64(now.Sub(r.born) + lookPause))
	r.asked.Store(false) // before the look: what changes from now on asks again
	if !r.told || c.o.Reporter.Version() == r.version {
		c.unlock()
		return // it went, or goes with the Hello
	}
	s := c.o.Reporter.Status()
	if !s.worthTelling(&r.sent) {
		c.unlock()
		return
	}
	pause := statusPause
	if s.isNews(&r.sent) {
		pause = newsPause
	}
	if rest := pause - now.Sub(r.alone); rest > 0 {
		r.asked.Store(true)
		r.timer.Reset(rest)
		c.unlock()
		return
	}
	r.alone, r.due = now, true
	c.unlock()
	c.flush()
}

// worthTelling says whether a Status differs enough from the one that was sent.
func (s *Status) worthTelling(sent *Status) bool {
	if s.isNews(sent) || s.Total != sent.Total {
		return true
	}
	far := func(a, b int64) bool { return max(a-b, b-a) > s.Total/statusShare }
	if far(s.Available, sent.Available) || far(s.Judged, sent.Judged) {
		return true
	}
	// Who was told of next to nothing sends nothing, so no answer tells it that there is
	// room again; and of a full instance any room is news.
	return sent.Available < s.Total/statusShare && s.Available > sent.Available
}

// isNews says whether a Status tells of more than units.
func (s *Status) isNews(sent *Status) bool {
	return s.State != sent.State || !bytes.Equal(s.Digest, sent.Digest)
}

// putStatus puts a Status that has changed before all that the packet holds but
// this end's Hello: what is answered is not known before it. c.mu is held.
func (c *Conn) putStatus(p []byte) []byte {
	r := &c.report
	behind := r.behind
	r.behind = 0
	if c.o.Dialer && !c.ready {
		return p // nothing may go before this end's Hello, which comes later
	}
	r.due = false
	version := c.o.Reporter.Version() // before the Status, so that a change in between is sent again
	if r.told && version == r.version {
		return p
	}
	r.told, r.version, r.sent = true, version, c.o.Reporter.Status()
	r.body = r.sent.append(r.body[:0])
	size := len(p)
	p = frame.AppendBody(p, 0, frame.KindStatus, r.body)
	if size > behind {
		added := len(p) - size
		p = append(p, p[size:]...) // once more, as the room to move by
		copy(p[behind+added:size+added], p[behind:size])
		copy(p[behind:behind+added], p[size+added:])
		p = p[:size+added]
	}
	return p
}

// append encodes a Status as conduit.v1.Status.
func (s *Status) append(dst []byte) []byte {
	put := func(field protowire.Number, v int64) {
		if v > 0 {
			dst = protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(v))
		}
	}
	put(1, s.Available)
	put(2, s.Total)
	put(3, s.Judged)
	put(4, s.InFlight)
	put(5, int64(s.State))
	if n := len(s.Digest); n > 0 && n <= maxDigest {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, 6, protowire.BytesType), s.Digest)
	}
	return dst
}
