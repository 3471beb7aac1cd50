package host

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// drainingBit is set in generation.state once the generation takes no more
// calls; the rest of the word counts the calls in flight, in steps of two.
const drainingBit = 1

// generation is one running process of an element, and the calls in flight on
// it. It implements link.Owner for them. All methods may be called concurrently.
type generation struct {
	el      *element
	number  uint64
	process *pluginlink.Process
	sum     string // of the binary
	conn    *link.Conn
	desc    *conduitv1.Description
	// methods by service key, then by name; never changes.
	methods map[string]map[string]*method

	state atomic.Int64
	idle  chan struct{} // closed when it drains and the last call has ended
	once  sync.Once

	callers callers
}

// method is what dispatch must know of one.
type method struct {
	remote bool
	level  conduit.Level
}

func newGeneration(el *element, number uint64, d *conduitv1.Description) *generation {
	g := &generation{el: el, number: number, desc: d, methods: map[string]map[string]*method{}, idle: make(chan struct{})}
	for _, s := range d.GetServices() {
		m := map[string]*method{}
		for _, md := range s.GetMethods() {
			m[md.GetName()] = &method{remote: md.GetRemote(), level: conduit.Level(md.GetMinLevel())}
		}
		g.methods[s.GetName()] = m
	}
	return g
}

// enter counts a call in. It fails once the generation drains; then the caller
// looks again for one that does not.
func (g *generation) enter() bool {
	if g.state.Add(2)&drainingBit != 0 {
		g.leave()
		return false
	}
	return true
}

// leave counts a call out.
func (g *generation) leave() {
	if g.state.Add(-2) == drainingBit {
		g.once.Do(func() { close(g.idle) })
	}
}

// drain lets no more calls in; idle is closed when those inside have left.
func (g *generation) drain() {
	if g.state.Or(drainingBit) == 0 {
		g.once.Do(func() { close(g.idle) })
	}
}

// calls returns how many are in flight.
func (g *generation) calls() int64 { return g.state.Load() >> 1 }

// CallEnded implements link.Owner.
func (g *generation) CallEnded(tag uint64, _ conduit.Code, _ conduit.Outcome) {
	g.callers.remove(tag)
	g.el.inflight.Add(-1)
	g.leave()
}

// caller is on whose behalf a call runs; what the element calls in it inherits
// it.
type caller struct {
	Principal
	peer  string
	chain []string
}

// callers remembers the caller of each call in flight on a generation, by a tag.
type callers struct {
	mu    sync.Mutex
	slots []callerSlot
	free  []uint32
}

type callerSlot struct {
	use  uint32 // counts the uses of the slot: a late look finds a stranger out
	live bool
	c    caller
}

// add keeps a call's caller and returns its tag. It allocates only when there
// are more calls than ever before, or a chain.
func (cs *callers) add(p Principal, peer string, chain [][]byte, last string) uint64 {
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
	s.c.Principal, s.c.peer, s.c.chain = p, peer, nil
	for _, link := range chain {
		s.c.chain = append(s.c.chain, string(link))
	}
	if last != "" {
		s.c.chain = append(s.c.chain, last)
	}
	return uint64(s.use)<<32 | uint64(i)
}

func (cs *callers) remove(tag uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	i := uint32(tag)
	s := &cs.slots[i]
	s.live = false
	s.c = caller{}
	cs.free = append(cs.free, i)
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
