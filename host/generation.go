package host

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The word generation.state: drainingBit is set once the generation takes no more
// calls; above it the calls in flight are counted, and above those the claims.
const (
	drainingBit = 1
	oneCall     = 2
	oneClaim    = 1 << 32
)

// generation is one running process of an element, the calls in flight on it and
// the claims that it holds. It implements link.Owner for the calls. All methods may
// be called concurrently.
type generation struct {
	el      *element
	number  uint64    // 0 until it serves
	served  time.Time // since when it could
	process *pluginlink.Process
	over    <-chan struct{} // closed when the process has ended
	box     *box
	binary  *binary
	sum     string // of the binary
	round   uint64 // of the finding that it was started for
	conn    *link.Conn
	desc    *conduitv1.Description
	// methods by service key, then by name; never changes.
	methods map[string]map[string]*method
	// byKey is the same for who has a key and is not to make its text.
	byKey map[address.ServiceKey]map[string]*method

	state atomic.Int64
	idle  chan struct{} // closed when it drains and the last call and claim have ended
	once  sync.Once

	unclaimed chan struct{} // holds one token when the last claim was given back
	refuses   atomic.Bool   // no call may claim: the generation is to stop before another can start
	away      chan struct{} // closed when the process has said by itself that it takes no more calls
	told

	callers callers

	mu   sync.Mutex
	gone bool                  // the process has been ended
	held []*budget.Reservation // of calls whose link ended before the process
}

// method is what dispatch must know of one.
type method struct {
	remote     bool
	level      conduit.Level
	units      uint32
	idempotent bool
	observer   MethodObserver // nil if there is none
}

func newGeneration(el *element, d *conduitv1.Description, observer Observer) *generation {
	g := &generation{
		el: el, desc: d, methods: map[string]map[string]*method{}, byKey: map[address.ServiceKey]map[string]*method{},
		idle: make(chan struct{}), unclaimed: make(chan struct{}, 1), away: make(chan struct{}),
	}
	for _, s := range d.GetServices() {
		m := map[string]*method{}
		for _, md := range s.GetMethods() {
			m[md.GetName()] = &method{
				remote: md.GetRemote(), level: conduit.Level(md.GetMinLevel()), units: md.GetUnits(), idempotent: md.GetIdempotent(),
			}
			if observer != nil {
				m[md.GetName()].observer = observer.Method(el.deployment, s.GetName(), md.GetName())
			}
		}
		g.methods[s.GetName()] = m
		if key, err := address.ParseServiceKey(s.GetName()); err == nil { // checkDescription let no other through
			g.byKey[key] = m
		}
	}
	return g
}

// enter counts a call in. It fails once the generation drains; then the caller
// looks again for one that does not.
func (g *generation) enter() bool {
	if g.state.Add(oneCall)&drainingBit != 0 {
		g.leave()
		return false
	}
	return true
}

// leave counts a call out.
func (g *generation) leave() { g.out(oneCall) }

// enterClaim counts a claim in. On a generation that drains it fails, unless the
// claim is made in one of the calls that the drain waits for.
func (g *generation) enterClaim(inCall bool) bool {
	if g.state.Add(oneClaim)&drainingBit != 0 && (!inCall || g.refuses.Load()) {
		g.out(oneClaim)
		return false
	}
	g.el.claims.Add(1)
	return true
}

// leaveClaim counts a claim out.
func (g *generation) leaveClaim() {
	g.el.claims.Add(-1)
	g.out(oneClaim)
}

func (g *generation) out(one int64) {
	left := g.state.Add(-one)
	if left == drainingBit {
		g.once.Do(func() { close(g.idle) })
	}
	if one == oneClaim && left < oneClaim {
		select {
		case g.unclaimed <- struct{}{}:
		default:
		}
	}
}

// drainUnclaimed drains, unless a claim is held, and has no call under way claim any
// more. It reports whether it did.
func (g *generation) drainUnclaimed() bool {
	g.refuses.Store(true) // before the bit by which it comes to matter
	for {
		s := g.state.Load()
		if s >= oneClaim {
			g.refuses.Store(false)
			return false
		}
		if g.state.CompareAndSwap(s, s|drainingBit) {
			g.drain() // closes idle if nothing is under way
			return true
		}
	}
}

// drain lets no more calls in; idle is closed when those inside have left, and no
// claim is held.
func (g *generation) drain() {
	if g.state.Or(drainingBit)&^drainingBit == 0 {
		g.once.Do(func() { close(g.idle) })
	}
}

// calls returns how many are in flight; claims how many are held.
func (g *generation) calls() int64  { return g.state.Load() & (oneClaim - 1) / oneCall }
func (g *generation) claims() int64 { return g.state.Load() / oneClaim }

// CallEnded implements link.Owner.
func (g *generation) CallEnded(tag uint64, code conduit.Code, outcome conduit.Outcome) {
	c := g.callers.remove(tag)
	if c.observer != nil {
		c.observer.End(c.begun, code, outcome)
	}
	if c.record != nil {
		c.record.tell(g.el.h.o.Calls, code, outcome)
	}
	if c.units != nil {
		g.giveBack(c.units)
	}
	g.el.inflight.Add(-1)
	g.leave()
}

// giveBack releases what a call had reserved. A link may end before its process
// does: the handler may go on then, and its units are held until the process is gone.
func (g *generation) giveBack(units *budget.Reservation) {
	if g.conn != nil && g.conn.Err() != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		select {
		case <-g.over:
		default:
			if !g.gone {
				g.held = append(g.held, units)
				return
			}
		}
	}
	units.Release()
}

// ended releases what calls had reserved whose link ended before the process.
func (g *generation) ended() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	for _, units := range g.held {
		units.Release()
	}
	g.held = nil
}

// caller is on whose behalf a call runs; what the element calls in it inherits
// it.
type caller struct {
	Principal
	from  *link.Conn // whose call it is
	peer  string
	chain []string
	units *budget.Reservation // what its call has reserved; nil if that was none
	// observer hears of the call's end; nil if nobody does. begun is its own word.
	observer MethodObserver
	begun    time.Duration
	record   *underWay // nil if nobody asks for it
}

// callers remembers the caller of each call in flight on a generation, by a tag.
type callers struct {
	mu    sync.Mutex
	slots []callerSlot
	free  []uint32
	links map[*link.Conn]int64 // how many each link has
}

// join counts a call to its link, unless that has as many as it may; it returns how many
// that are.
func (cs *callers) join(from *link.Conn, most int64) (n int64, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if n = cs.links[from]; n > 0 && n >= most {
		return n, false
	}
	if cs.links == nil {
		cs.links = map[*link.Conn]int64{}
	}
	cs.links[from] = n + 1
	return n + 1, true
}

// part takes back a join.
func (cs *callers) part(from *link.Conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.leave(from)
}

// leave is part with cs.mu held.
func (cs *callers) leave(from *link.Conn) {
	if n := cs.links[from] - 1; n > 0 {
		cs.links[from] = n
	} else {
		delete(cs.links, from)
	}
}

type callerSlot struct {
	use  uint32 // counts the uses of the slot: a late look finds a stranger out
	live bool
	c    caller
}

// add keeps the caller of a call that has joined and returns its tag. It allocates only
// when there are more calls than ever before, or a chain.
func (cs *callers) add(from *link.Conn, p Principal, peer string, chain [][]byte, last string, units *budget.Reservation, observer MethodObserver) uint64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.free) == 0 {
		cs.slots = append(cs.slots, callerSlot{})
		cs.free = append(cs.free, uint32(len(cs.slots)-1))
	}
	i := cs.free[len(cs.free)-1]
	cs.free = cs.free[:len(cs.free)-1]
	s := &cs.slots[i]
	s.use++
	s.live = true
	s.c.from = from
	s.c.Principal, s.c.peer, s.c.chain, s.c.units = p, peer, nil, units
	if s.c.observer = observer; observer != nil {
		s.c.begun = observer.Begin()
	}
	for _, link := range chain {
		s.c.chain = append(s.c.chain, string(link))
	}
	if last != "" {
		s.c.chain = append(s.c.chain, last)
	}
	return uint64(s.use)<<32 | uint64(i)
}

// remove forgets a caller, and returns what was kept of it.
func (cs *callers) remove(tag uint64) caller {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	i := uint32(tag)
	s := &cs.slots[i]
	c := s.c
	cs.leave(c.from)
	s.live = false
	s.c = caller{}
	cs.free = append(cs.free, i)
	return c
}

// find returns the caller of a call that is still in flight.
func (cs *callers) find(tag uint64) (caller, bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	i := uint32(tag)
	if int(i) >= len(cs.slots) || !cs.slots[i].live || cs.slots[i].use != uint32(tag>>32) {
		return caller{}, false
	}
	c := cs.slots[i].c
	c.chain = slices.Clone(c.chain)
	return c, true
}

// outgoing is the memory of an Invoke that is being written to a plugin.
type outgoing struct {
	inv        frame.Invoke
	user, peer []byte
	chain      [][]byte
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }} //nolint:gochecknoglobals // memory, no state
