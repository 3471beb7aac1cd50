package registry

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

// The age from which what a peer said of its room is doubted when all are full, which is
// also the least time between the beginnings of two rounds of asking. It is short while
// asking pays: where work comes and goes, units are given back all the time, and a peer
// says so unasked twice a second at most. Each round that finds nothing doubles it, so
// where nothing ends nobody is asked more than once a second.
const (
	leastDoubt = 50 * time.Millisecond
	mostDoubt  = time.Second
	// mostAsked are asked in a round that comes sooner than that, those that were not
	// heard for longest: a hundred full peers are not all asked twenty times a second.
	mostAsked = 16
)

// relief is the asking around when all peers are full: one round for all who wait.
type relief struct {
	mu    sync.Mutex
	round *round // that is under way
	last  *round // that began last, over or not
	began time.Time
	doubt time.Duration // that last began with
	asks  sync.WaitGroup
}

// round is one asking around.
type round struct {
	done     chan struct{} // closed when all have answered, or will not
	progress chan struct{} // closed and made anew at each answer; guarded by relief.mu
	paid     atomic.Bool   // somebody found room by it
}

// wait returns when nobody asks any more; the registry has stopped.
func (f *relief) wait() {
	f.mu.Lock()   // who saw that it had not stopped has begun by then
	f.mu.Unlock() //nolint:staticcheck // see above: nothing is guarded
	f.asks.Wait()
}

// relieve asks full peers whether they still are, if they were not heard just now, and
// picks as soon as one has room; full is the error if none has.
func (r *Registry) relieve(ctx context.Context, pl *Place, q Query, full *conduit.Error) (Choice, *conduit.Error) {
	now := r.askAround(pl, &q)
	if now == nil {
		return Choice{}, full
	}
	for over := false; ; {
		r.relief.mu.Lock()
		progress := now.progress
		r.relief.mu.Unlock()
		c, err := r.TryPick(pl, q)
		if err == nil {
			now.paid.Store(true)
		}
		if over || err == nil || err.Reason != conduit.ReasonNoCapacity {
			return c, err
		}
		select {
		case <-progress:
		case <-now.done:
			over = true
		case <-ctx.Done():
			return Choice{}, conduit.FromContext(ctx, conduit.NotSent)
		}
	}
}

// askAround returns the round of asking that is under way, or begins one; nil if
// there is nobody to ask, or it is too soon.
func (r *Registry) askAround(pl *Place, q *Query) *round {
	f := &r.relief
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.round != nil {
		return f.round
	}
	doubt := leastDoubt
	if f.last != nil && !f.last.paid.Load() {
		doubt = min(2*f.doubt, mostDoubt)
	}
	if f.last != nil && now.Sub(f.began) < doubt || r.stopped.Load() {
		return nil
	}
	var asked []*Peer
	for _, m := range r.index.Load().members(pl) {
		heard := m.p.heard.Load()
		if v, _ := m.judge(q); (v == Full || v == Unheard) && now.UnixNano()-heard > int64(doubt) {
			asked = append(asked, m.p)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	if doubt < mostDoubt && len(asked) > mostAsked {
		slices.SortFunc(asked, func(a, b *Peer) int { return cmp.Compare(a.heard.Load(), b.heard.Load()) })
		asked = asked[:mostAsked]
	}
	current := &round{done: make(chan struct{}), progress: make(chan struct{})}
	f.began, f.doubt, f.round, f.last = now, doubt, current, current
	f.asks.Go(func() {
		var each sync.WaitGroup
		for _, p := range asked {
			answered := p.refreshed()
			each.Go(func() {
				select {
				case <-answered:
				case <-p.gone:
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				close(current.progress)
				current.progress = make(chan struct{})
			})
		}
		each.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.round = nil
		close(current.done)
	})
	return current
}
