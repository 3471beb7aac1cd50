package link

import (
	"container/list"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

// What memory for a message costs its sender while others wait for theirs. Who
// announces a large message has memory for all of it, so it must come, and be taken.
const (
	// A message must come on by slowBytes in slowAfter, 16 KiB/s: a tenth of what the
	// default deadline of a call asks of the largest message, so that it does not
	// matter to who keeps that, and is far below what a dozen of them at once get
	// over a poor line.
	slowBytes = 160 << 10
	slowAfter = 10 * time.Second
	// takeWithin is how long a message that is there may wait for its application.
	takeWithin = 20 * time.Second
	// Others must have waited so long before a message gives way to them. A process
	// that was stopped has read by then what came meanwhile.
	yieldAfter = 5 * time.Second
	// waitMost is how long the memory may stand still, nobody getting any of it,
	// before those who wait are told: longer than what may keep it from them for good.
	waitMost = 30 * time.Second
	// turnTick is how often this is looked at, while somebody waits.
	turnTick = 2500 * time.Millisecond
)

// turns are the reservations of a Memory, guarded by its mu: those that hold bytes
// for a message that comes, and those that wait.
type turns struct {
	held     int64 // by holders
	holders  list.List
	waiters  list.List
	heldBy   map[claimant]int64
	watching time.Time // since when somebody waits
	moved    time.Time // when a waiter got memory last, or the first came
	due      time.Time // when timer should fire
	timer    *time.Timer
}

// claimant is whose messages take turns among themselves: all of a link, or on a
// plugin's, which carries everybody's calls, those of one caller.
type claimant struct {
	conn       *Conn
	user, peer string
}

type reservationState uint8

const (
	reservationNew   reservationState = iota
	reservationWaits                  // in turns.waiters
	reservationHeld                   // in turns.holders
	reservationOver
)

// reservation is memory for one large message, or the wait for it.
type reservation struct {
	conn *Conn
	r    ref
	in   *inbox
	n    int64
	who  claimant

	// conn.mu guards these and in.
	granted bool // the sender may know of it
	passed  bool // the message lies in another link's queue

	// at is the half of a splice in whose queue the message lies; nil if it never did.
	at atomic.Pointer[ref]

	// Memory.mu guards these.
	state reservationState
	place *list.Element
	asked time.Time

	// Whoever assembles the message writes these, and the watch reads them.
	got   atomic.Int64
	from  atomic.Int64 // what had come when the measure began
	since atomic.Int64 // when that was, after Memory.start
}

// came notes that n bytes of the message are there now.
func (v *reservation) came(n int64, now time.Time) {
	if v.got.Store(n); n == v.n || n-v.from.Load() >= slowBytes {
		v.measure(now)
	}
}

// measure begins to measure how the message comes.
func (v *reservation) measure(now time.Time) {
	v.from.Store(v.got.Load())
	v.since.Store(int64(now.Sub(v.conn.memory.start)))
}

// room is what messages may take: the half that windows cannot have, so that
// the largest message always fits.
func (m *Memory) room() int64 { return m.total / 2 }

// reserve sets v.n bytes aside for a message and grants them, at once or when
// earlier reservations have been released. Those of one claimant are served in
// their order; among claimants, who holds least is first. The call may be told that
// its memory has lapsed, from another goroutine. No lock is held; v may have been
// forgotten before.
func (m *Memory) reserve(v *reservation) {
	m.mu.Lock()
	switch {
	case v.state != reservationNew:
		m.mu.Unlock()
	case m.waiters.Len() == 0 && m.fits(v):
		m.hold(v)
		m.mu.Unlock()
		v.conn.granted(v)
	default:
		now := time.Now()
		v.state, v.asked = reservationWaits, now
		v.place = m.waiters.PushBack(v)
		if m.waiters.Len() == 1 {
			m.watching, m.moved = now, now
			m.arm(now)
		}
		m.mu.Unlock()
	}
}

// fits reports whether there is room. One always fits alone, or a message above the
// whole budget would block every other for ever.
func (m *Memory) fits(v *reservation) bool { return m.held == 0 || m.held+v.n <= m.room() }

func (m *Memory) hold(v *reservation) {
	if m.heldBy == nil {
		m.heldBy = make(map[claimant]int64)
	}
	m.held += v.n
	m.heldBy[v.who] += v.n
	v.state = reservationHeld
	v.place = m.holders.PushBack(v)
	v.measure(time.Now())
}

// forget drops a reservation that was not granted; it reports false if it was
// granted, or is being granted, or has lapsed. After true, release(nil) must be
// called, without any lock held: who waits behind may fit now.
func (m *Memory) forget(v *reservation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch v.state {
	case reservationNew:
	case reservationWaits:
		m.waiters.Remove(v.place)
	case reservationHeld, reservationOver:
		return false
	}
	v.state, v.place = reservationOver, nil
	return true
}

// release returns the memory of a reservation, if it is not nil, and grants to those
// who wait.
func (m *Memory) release(v *reservation) {
	m.mu.Lock()
	if v != nil && v.state == reservationHeld {
		m.holders.Remove(v.place)
		v.state, v.place = reservationOver, nil
		m.held -= v.n
		if m.heldBy[v.who] -= v.n; m.heldBy[v.who] == 0 {
			delete(m.heldBy, v.who)
		}
	}
	var grants []*reservation
	for w := m.next(); w != nil && m.fits(w); w = m.next() {
		m.waiters.Remove(w.place)
		m.hold(w)
		grants = append(grants, w)
	}
	if len(grants) > 0 {
		m.moved = time.Now()
	}
	if m.waiters.Len() == 0 && m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	m.mu.Unlock()
	for _, w := range grants {
		w.conn.granted(w)
	}
}

// next returns who is to get memory next, nil if nobody waits.
func (m *Memory) next() *reservation {
	var best *reservation
	least := int64(0)
	for e := m.waiters.Front(); e != nil; e = e.Next() {
		w, ok := e.Value.(*reservation)
		if held := m.heldBy[w.who]; ok && (best == nil || held < least) {
			if best, least = w, held; least == 0 {
				break
			}
		}
	}
	return best
}

// arm sets the timer of the watch.
func (m *Memory) arm(now time.Time) {
	m.due = now.Add(turnTick)
	if m.timer == nil {
		m.timer = time.AfterFunc(turnTick, m.watch)
		return
	}
	m.timer.Reset(turnTick)
}

// watch ends what keeps memory from others and makes no use of it, and tells those
// who wait when nothing helps.
func (m *Memory) watch() {
	now := time.Now()
	m.mu.Lock()
	if m.waiters.Len() == 0 || m.timer == nil {
		m.mu.Unlock()
		return
	}
	if now.Sub(m.due) > turnTick/2 {
		// This process was starved: what it has not read is not its senders' fault.
		m.watching, m.moved = now, now
	}
	m.arm(now)
	want := m.held - m.room()
	var lapsed []*reservation
	for e := m.waiters.Front(); e != nil; e = e.Next() {
		w, ok := e.Value.(*reservation)
		if !ok {
			continue
		}
		if now.Sub(w.asked) >= waitMost && now.Sub(m.moved) >= waitMost {
			lapsed = append(lapsed, w)
			continue
		}
		want += w.n
	}
	for _, w := range lapsed {
		m.waiters.Remove(w.place)
		w.state, w.place = reservationOver, nil
	}
	if now.Sub(m.watching) >= yieldAfter {
		lapsed = append(lapsed, m.idlers(now, want)...)
	}
	m.mu.Unlock()
	for _, v := range lapsed {
		v.conn.lapsed(v)
	}
	m.release(nil)
}

// idlers returns those whose memory goes to others, as many as it takes to free want
// bytes: first those whose messages have come on least. They hold it until they let
// go.
func (m *Memory) idlers(now time.Time, want int64) []*reservation {
	type idler struct {
		v    *reservation
		came int64
	}
	var list []idler
	for e := m.holders.Front(); e != nil; e = e.Next() {
		v, ok := e.Value.(*reservation)
		if !ok {
			continue
		}
		got, limit := v.got.Load(), slowAfter
		if got == v.n {
			limit = takeWithin
		}
		if now.Sub(m.start)-time.Duration(v.since.Load()) >= limit {
			list = append(list, idler{v, got - v.from.Load()})
		}
	}
	slices.SortStableFunc(list, func(a, b idler) int { return int(a.came - b.came) })
	var out []*reservation
	for _, i := range list {
		if want <= 0 {
			break
		}
		want -= i.v.n
		out = append(out, i.v)
	}
	return out
}

// lapsed ends the call of a message that has lost its memory, or its place among
// those who wait.
func (c *Conn) lapsed(v *reservation) {
	moved := "came"
	if c.simple { // it comes whole, and is cut for another link
		moved = "was taken"
	}
	what := "others waited for it, and too little of the message " + moved + ", less than " + strconv.Itoa(slowBytes) + " bytes in " + slowAfter.String()
	switch {
	case !v.isGranted():
		what = "none became free in " + waitMost.String()
	case v.got.Load() == v.n:
		what = "others waited for it, and the application did not take the message within " + takeWithin.String()
	}
	err := &conduit.Error{
		Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.OutcomeUnknown, Retryable: true, Op: c.o.Op,
		Message: fmt.Sprintf("no memory is left for a message of %d bytes: %s; send it later or in smaller ones, or raise cluster.memory", v.n, what),
	}
	c.mu.Lock()
	var held *reservation
	if v.in != nil && v.in.keeps(v) {
		held = v.in.drain(err) // before its application hears of the end, and takes it
	}
	var at *ref
	switch k := v.r.get(); {
	case k == nil: // over; the message waited all the same
		at = v.at.Load()
	case k.open.res == v || held != nil || v.passed:
		c.faulted(k, err)
		if k = v.r.get(); k != nil {
			c.dropAssembly(k)
		}
	case !v.granted: // it came whole within the window, just now
		c.lendAgain(v.r)
	}
	c.unlock()
	if held != nil {
		c.memory.release(held)
	}
	c.kick()
	if at != nil {
		at.k.conn.lapsedHere(*at, v, err)
	}
}

func (v *reservation) isGranted() bool {
	v.conn.mu.Lock()
	defer v.conn.mu.Unlock()
	return v.granted
}
