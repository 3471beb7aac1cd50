package registry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
)

// Defaults of a Registry.
const (
	DefaultRefresh        = 30 * time.Second
	DefaultRefreshTimeout = 1 * time.Second
	DefaultDialTimeout    = 5 * time.Second
)

// Options say how a Registry works. The zero value of a number is its default.
type Options struct {
	Source discovery.Source
	Dialer Dialer
	// Self and SelfEpoch are what this instance's own Hello says; zero for a client,
	// which is no instance.
	Self      address.InstanceID
	SelfEpoch uint64
	Policy    Policy
	// Refresh is the time between two questions to a peer that says nothing of a
	// change by itself; each peer's own is up to a fifth shorter or longer.
	Refresh time.Duration
	// RefreshTimeout bounds the wait for one peer's answer.
	RefreshTimeout time.Duration
	// DialTimeout bounds the wait for a link.
	DialTimeout time.Duration
	// Log takes what there is to say; nil = nothing.
	Log *slog.Logger
}

// Registry knows the instances of the cluster. It works while its Run does. All
// methods may be called concurrently; a pick takes no lock.
type Registry struct {
	o       Options
	log     *slog.Logger
	index   atomic.Pointer[index]
	stopped atomic.Bool
	dirty   chan struct{} // something changed that the index, or a subscriber, is to see
	settled chan struct{}
	leaving chan struct{} // closed by Leave
	leave   func()        // closes it once
	relief  relief
	shapes  shapes

	mu       sync.Mutex
	running  bool
	targets  map[string]*target
	byID     map[address.InstanceID]*Peer
	regroup  bool // the peers, or what they host, are others than in the index
	listed   bool // discovery has spoken
	events   []Event
	loops    sync.WaitGroup // the targets' goroutines
	problems []discovery.Problem

	deliver     sync.Mutex // held while events are delivered, so that their order is one
	subscribers map[*subscriber]struct{}
}

// New returns a Registry that knows nobody yet. Source and Dialer must be set.
func New(o Options) *Registry {
	if o.Refresh <= 0 {
		o.Refresh = DefaultRefresh
	}
	if o.RefreshTimeout <= 0 {
		o.RefreshTimeout = DefaultRefreshTimeout
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{
		o: o, log: o.Log, dirty: make(chan struct{}, 1), settled: make(chan struct{}),
		targets: map[string]*target{}, byID: map[address.InstanceID]*Peer{}, subscribers: map[*subscriber]struct{}{},
	}
	r.leaving = make(chan struct{})
	r.leave = sync.OnceFunc(func() { close(r.leaving) })
	ix := newIndex(1, nil)
	ix.asking = 1 // discovery itself
	r.index.Store(ix)
	return r
}

var (
	errRunTwice = errors.New("registry: Run was called before")
	errStopping = errors.New("this instance is stopping")
)

// Run finds and watches peers until ctx ends; then it releases all links and
// returns nil. An error is the discovery source's, or says that Run was called
// before: a Registry runs once.
func (r *Registry) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return errRunTwice
	}
	r.running = true
	r.mu.Unlock()

	ctx, cancel := context.WithCancelCause(ctx)
	var own sync.WaitGroup
	own.Go(func() { r.publishLoop(ctx) })
	err := r.o.Source.Run(ctx, func(s discovery.Snapshot) { r.apply(ctx, s) })
	r.stopped.Store(true)
	cancel(errStopping)
	r.loops.Wait()
	r.relief.wait()
	own.Wait()
	r.publish() // that all are gone
	return err
}

// Leave says that this instance goes away. From now on nobody is dialled who has not
// been a peer, and what discovery tells counts no more. Peers stay until Run ends, and
// one whose link is lost is dialled again: calls under way may need it. It may be called
// at any time, and again.
func (r *Registry) Leave() { r.leave() }

// leaves reports whether Leave was called.
func (r *Registry) leaves() bool {
	select {
	case <-r.leaving:
		return true
	default:
		return false
	}
}

// Settled is closed once discovery has spoken and each URL that it named at first
// was asked, or found not to answer: what a pick says before may just be early.
func (r *Registry) Settled() <-chan struct{} { return r.settled }

// Problems returns what discovery could make no use of.
func (r *Registry) Problems() []discovery.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems
}

// apply begins with new URLs and ends with those that are gone.
func (r *Registry) apply(ctx context.Context, s discovery.Snapshot) {
	listed := make(map[string]bool, len(s.Peers))
	for _, url := range s.Peers {
		listed[url] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listed && r.leaves() {
		return
	}
	r.problems = s.Problems
	for url, t := range r.targets {
		t.withdrawn = !listed[url]
	}
	for url := range listed {
		if r.targets[url] == nil {
			r.add(ctx, url)
		}
	}
	r.dropWithdrawn()
	r.listed = true
	r.touch()
}

// add begins with a URL. r.mu is held.
func (r *Registry) add(ctx context.Context, url string) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &target{r: r, url: url, cancel: cancel}
	r.targets[url] = t
	r.loops.Go(func() {
		defer cancel(nil)
		t.run(ctx)
	})
	r.log.InfoContext(ctx, "peer discovered", "url", url)
}

// errWithdrawn ends the dialling of a URL that discovery names no more.
var errWithdrawn = errors.New("discovery names it no more")

// dropWithdrawn ends with the URLs that discovery names no more, but for one whose
// peer has another URL that it does name: one link serves them all. r.mu is held.
func (r *Registry) dropWithdrawn() {
	for _, t := range r.targets {
		if t.withdrawn && t.peer == nil {
			r.drop(t)
		}
	}
	for _, t := range r.targets { // now that the aliases are right
		if t.withdrawn && !t.peer.hasAlias() {
			r.drop(t)
		}
	}
}

// drop ends with a URL. r.mu is held.
func (r *Registry) drop(t *target) {
	delete(r.targets, t.url)
	if t.alias != nil {
		delete(t.alias.aliases, t.url)
		t.alias = nil
	}
	if t.peer != nil {
		t.peer.off.Store(true) // at once; the goroutine does the rest
	}
	t.reason = errWithdrawn.Error()
	t.cancel(errWithdrawn)
	if t.state != stateAlias {
		r.note(EventRemoved, t)
	}
	r.log.Info("peer withdrawn", "url", t.url)
}

// hasAlias reports whether another URL leads to the peer. The registry's mu is held.
func (p *Peer) hasAlias() bool { return p != nil && len(p.aliases) > 0 }

// touch makes the publisher look. It may be called with or without r.mu.
func (r *Registry) touch() {
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// publishLoop makes the index anew after changes; those that come while it does so
// are the next one's.
func (r *Registry) publishLoop(ctx context.Context) {
	for {
		select {
		case <-r.dirty:
			r.publish()
		case <-ctx.Done():
			return
		}
	}
}

// publish makes what has changed visible: first to picks, then to subscribers.
func (r *Registry) publish() {
	r.deliver.Lock()
	defer r.deliver.Unlock()

	r.mu.Lock()
	old := r.index.Load()
	ix := old.again()
	if r.regroup {
		r.regroup = false
		peers := make([]*Peer, 0, len(r.byID))
		for _, p := range r.byID {
			peers = append(peers, p)
		}
		ix = newIndex(old.generation+1, peers)
	}
	if !r.listed {
		ix.asking++
	}
	ix.problems = r.problems
	for _, t := range r.targets {
		if !t.tried {
			ix.asking++
		}
		if t.peer == nil && t.state != stateAlias {
			o := other{url: t.url, state: t.state, reason: t.reason, id: t.id, last: t.last, next: t.next}
			if t.last != nil {
				o.name = t.last.info.GetName()
			}
			ix.others = append(ix.others, o)
		}
	}
	slices.SortFunc(ix.others, func(a, b other) int { return cmp.Compare(a.url, b.url) })
	events := r.events
	r.events = nil
	r.mu.Unlock()

	r.index.Store(ix)
	close(old.replaced)
	if ix.asking == 0 {
		select {
		case <-r.settled:
		default:
			close(r.settled)
		}
	}
	r.tell(events)
}

// Pick picks a peer for a call. It waits at most for two things, within ctx: for
// the first answers of peers, when the registry has just begun; and when all
// candidates are full, for the answers of those that were not heard for a while, asked
// by all who wait together: 50 ms as long as asking finds room, and up to a second
// while it does not.
//
// The error is an *conduit.Error of outcome not_sent: no_capacity, cordoned,
// draining, plugin_starting, peer_unreachable, or one of the _not_found reasons.
func (r *Registry) Pick(ctx context.Context, pl *Place, q Query) (Choice, *conduit.Error) {
	c, err := r.TryPick(pl, q)
	if err != nil && err.Reason != conduit.ReasonNoCapacity {
		c, err = r.early(ctx, pl, q)
	}
	if err != nil && err.Reason == conduit.ReasonNoCapacity {
		c, err = r.relieve(ctx, pl, q, err)
	}
	return c, err
}

// early picks once more as peers give their first answers, if any of them are still
// to come, and for no longer than these may take.
func (r *Registry) early(ctx context.Context, pl *Place, q Query) (Choice, *conduit.Error) {
	select {
	case <-r.settled: // URLs that came later are nobody's to wait for
		return r.TryPick(pl, q)
	default:
	}
	limit := time.NewTimer(r.o.DialTimeout + r.o.RefreshTimeout)
	defer limit.Stop()
	for {
		ix := r.index.Load()
		c, err := r.TryPick(pl, q)
		if err == nil || err.Reason == conduit.ReasonNoCapacity || ix.asking == 0 || r.stopped.Load() {
			return c, err
		}
		select {
		case <-ix.replaced:
		case <-limit.C:
			return c, err
		case <-ctx.Done():
			return Choice{}, conduit.FromContext(ctx, conduit.NotSent)
		}
	}
}

// Await is Pick for a call that has nowhere else to go: while nobody can be picked
// it waits for peers to come, for up to d. The error is the last pick's.
func (r *Registry) Await(ctx context.Context, pl *Place, q Query, d time.Duration) (Choice, *conduit.Error) {
	limit := time.NewTimer(d)
	defer limit.Stop()
	for {
		ix := r.index.Load()
		c, err := r.TryPick(pl, q)
		if err == nil || r.stopped.Load() {
			return c, err
		}
		select {
		case <-ix.replaced:
		case <-limit.C:
			return c, err
		case <-ctx.Done():
			return c, err
		}
	}
}

// WaitSettled waits until the registry is settled, for no longer than first answers
// may take, and within ctx: for those who want all peers that there are.
func (r *Registry) WaitSettled(ctx context.Context) {
	limit := time.NewTimer(r.o.DialTimeout + r.o.RefreshTimeout)
	defer limit.Stop()
	select {
	case <-r.settled:
	case <-limit.C:
	case <-ctx.Done():
	}
}
