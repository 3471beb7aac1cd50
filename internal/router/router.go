package router

import (
	"context"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/locator"
	"github.com/elemental-conduit/conduit/registry"
)

// maxTargets bounds how many addresses are kept parsed; callers choose them.
const maxTargets = 4096

// Options say how a Router works.
type Options struct {
	Locator *locator.Locator
	// ConnOf returns the connection behind a link of the locator's registry.
	ConnOf func(registry.Link) *link.Conn
	// Alone makes a connection of its own for one call of so many units to the peer
	// behind a link, which then counts them. It may wait, within ctx. The connection is
	// closed when that attempt has ended. nil = calls go on that of ConnOf.
	Alone func(ctx context.Context, l registry.Link, units uint32, background bool) (*link.Conn, *conduit.Error)
}

// Router passes calls on. All methods may be called concurrently.
type Router struct {
	o Options
	// closing ends when Close is called; who waits for a next attempt waits no longer.
	closing context.Context //nolint:containedctx // the life of the Router
	stop    context.CancelFunc
	waiting sync.WaitGroup // calls that wait for their next attempt

	mu      sync.RWMutex
	closed  bool
	targets map[string]*locator.Target
}

// New returns a Router.
func New(o Options) *Router {
	closing, stop := context.WithCancel(context.Background())
	return &Router{o: o, closing: closing, stop: stop, targets: map[string]*locator.Target{}}
}

// Call is one that is to be decided: a *link.Incoming, or a link.Parked.
type Call interface {
	Conn() *link.Conn
	Splice(to *link.Conn, out *frame.Invoke, owner link.Owner, tag uint64)
	SpliceHeld(to *link.Conn, out *frame.Invoke, router link.Router, tag uint64)
	Refuse(err *conduit.Error)
}

// Door is what is known of a call by where it came in.
type Door struct {
	// Here passes a call to this instance's own elements, for host.Host.Take. An error
	// says that it did not, and leaves the call as it was.
	Here func(c Call, inv *frame.Invoke) *conduit.Error
	// ToPeer makes the Invoke that a peer gets of the one that came: who calls, and
	// through whom. An error is why it goes to no peer.
	ToPeer func(inv *frame.Invoke, attempt uint32) (frame.Invoke, *conduit.Error)
	// Passed is told of a call that goes to a peer, once, and returns who is to hear
	// how it ended; nil = nobody is. Neither may block.
	Passed func(inv *frame.Invoke) (ended func(code conduit.Code, outcome conduit.Outcome))
}

// Pass passes a call on, or refuses it. It runs on the reader of the call's link
// and does not block.
func (r *Router) Pass(in *link.Incoming, d Door) {
	inv := in.Invoke
	target, err := r.target(inv)
	if err != nil {
		in.Refuse(err)
		return
	}
	p := r.passing(inv, target, d)
	if !p.tryNow(in, inv) {
		p.wait(in.Park())
	}
}

// Close ends the calls that wait for their next attempt, and returns when none does.
// Calls on their way go on; those that come later are not waited with.
func (r *Router) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.waiting.Wait()
}

// later runs what waits, unless it is too late for that.
func (r *Router) later(wait func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.waiting.Go(wait)
	return true
}

// PassParked is Pass for a call that was parked, once it is known what is to become
// of it. It runs on any goroutine and does not block.
func (r *Router) PassParked(c link.Parked, d Door) {
	inv := c.Invoke()
	target, err := r.target(inv)
	if err != nil {
		c.Refuse(err)
		return
	}
	p := r.passing(inv, target, d)
	if !p.tryNow(c, inv) {
		p.wait(c)
	}
}

func (r *Router) passing(inv *frame.Invoke, target *locator.Target, d Door) *passing {
	p := &passing{r: r, door: d}
	p.in = conduit.Invocation{Method: string(inv.Method), Units: inv.Units, Attempt: inv.Attempt}
	p.plan = target.Plan(&p.in)
	return p
}

// target returns what calls the address of an Invoke.
func (r *Router) target(inv *frame.Invoke) (*locator.Target, *conduit.Error) {
	var room [256]byte
	key := room[:0]
	for _, part := range [...][]byte{inv.Instance, inv.Deployment, inv.Element, inv.Service} {
		key = append(append(key, part...), 0)
	}
	if inv.HasOrdinal {
		key = append(key, byte(inv.Ordinal>>24), byte(inv.Ordinal>>16), byte(inv.Ordinal>>8), byte(inv.Ordinal))
	}
	r.mu.RLock()
	t := r.targets[string(key)]
	r.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	a, err := address.FromParts(anyIfEmpty(inv.Instance), anyIfEmpty(inv.Deployment), string(inv.Element), int(inv.Ordinal), inv.HasOrdinal, string(inv.Service))
	if err != nil {
		return nil, conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.Refused, "%v", err)
	}
	t = r.o.Locator.Target(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.targets) >= maxTargets {
		clear(r.targets) // whoever makes up so many makes up more
	}
	r.targets[string(key)] = t
	return t, nil
}

func anyIfEmpty(part []byte) string {
	if len(part) == 0 {
		return "*"
	}
	return string(part)
}
