package registry

import (
	"context"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
)

// freshness is the age from which what a peer said of its room may be doubted when
// all are full, and the least time between two rounds of asking.
const freshness = time.Second

// relief is the asking around when all peers are full: one round for all who wait.
type relief struct {
	mu    sync.Mutex
	round *round
	began time.Time
	asks  sync.WaitGroup
}

// round is one asking around.
type round struct {
	done     chan struct{} // closed when all have answered, or will not
	progress chan struct{} // closed and made anew at each answer; guarded by relief.mu
}

// wait returns when nobody asks any more; the registry has stopped.
func (f *relief) wait() {
	f.mu.Lock()   // who saw that it had not stopped has begun by then
	f.mu.Unlock() //nolint:staticcheck // see above: nothing is guarded
	f.asks.Wait()
}

// relieve asks full peers whether they still are, if they were not heard within a
// second, and picks as soon as one has room; full is the error if none has.
func (r *Registry) relieve(ctx context.Context, pl *Place, q Query, full *conduit.Error) (Choice, *conduit.Error) {
	now := r.askAround(pl, &q)
	if now == nil {
		return Choice{}, full
	}
	for {
		r.relief.mu.Lock()
		progress := now.progress
		r.relief.mu.Unlock()
		c, err := r.TryPick(pl, q)
		if err == nil || err.Reason != conduit.ReasonNoCapacity {
			return c, err
		}
		select {
		case <-progress:
		case <-now.done:
			return r.TryPick(pl, q)
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
	if !f.began.IsZero() && now.Sub(f.began) < freshness || r.stopped.Load() {
		return nil
	}
	var asked []*Peer
	for _, m := range r.index.Load().members(pl) {
		heard := m.p.heard.Load()
		if v, _ := m.judge(q); (v == Full || v == Unheard) && now.UnixNano()-heard > int64(freshness) {
			asked = append(asked, m.p)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	f.began = now
	current := &round{done: make(chan struct{}), progress: make(chan struct{})}
	f.round = current
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
