package registry

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// Policy says which candidate is picked.
type Policy uint8

const (
	// P2C draws two candidates at random and takes the one with more effective
	// headroom, or, for a call without units, with fewer calls under way.
	P2C Policy = iota
	// Headroom takes the candidate with the most effective headroom of all, ties
	// at random; for a call without units, too.
	Headroom
)

// String returns the policy's name in the configuration.
func (p Policy) String() string {
	if p == Headroom {
		return "headroom"
	}
	return "p2c"
}

// Query is what a pick is for.
type Query struct {
	Method string
	// Units that the caller asks for; the larger of these and the method's count.
	Units uint32
	// Tried are instances that are not to be picked again.
	Tried []address.InstanceID
}

// Choice is a peer that was picked for one call, whose units count as sent from
// then on. It must be used for exactly one call, or abandoned; only one goroutine
// may use it.
type Choice struct {
	Peer *Peer
	// Units is what the Invoke must carry: what was debited.
	Units  uint32
	Method Method
	place  *Place
	used   bool
}

// Invoke makes the call.
func (c *Choice) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	c.used = true
	if in.Units != c.Units {
		with := *in
		with.Units = c.Units
		in = &with
	}
	return c.Peer.link.Invoke(ctx, c.place.route, in)
}

// Handed says that the call was handed to the peer's [Link] by other means than
// Invoke, with the choice's Units: from here on the link counts them.
func (c *Choice) Handed() { c.used = true }

// Abandon gives the units back if the call was never made. It may be called
// always, and more than once.
func (c *Choice) Abandon() {
	if !c.used && c.Peer != nil {
		c.used = true
		c.Peer.picked.Add(-uint64(c.Units))
	}
}

// TryPick picks a peer for a call, without waiting for anything: for those who
// cannot wait. The error says why there is none, as Pick's does. It takes no lock
// and allocates nothing when there is a peer to pick.
func (r *Registry) TryPick(pl *Place, q Query) (Choice, *conduit.Error) {
	ix := r.index.Load()
	ms := ix.members(pl)
	if c, ok := pick(ms, pl, &q, r.o.Policy); ok {
		return c, nil
	}
	return r.noPick(ix, pl, &q)
}

// noPick is the rest of TryPick, which may cost more.
func (r *Registry) noPick(ix *index, pl *Place, q *Query) (Choice, *conduit.Error) {
	why := r.why(ix, pl, q)
	if why.Reason == conduit.ReasonMethodNotFound && why.Retryable {
		// Nobody speaks of the method. The caller may not be meant to see it, or it
		// is newer than what was heard: a peer will say.
		open := *q
		open.Method = ""
		if c, ok := pick(ix.members(pl), pl, &open, r.o.Policy); ok {
			return c, nil
		}
		return Choice{}, r.why(ix, pl, &open)
	}
	return Choice{}, why
}

// pick picks among members, and debits.
func pick(ms []member, pl *Place, q *Query, policy Policy) (Choice, bool) {
	for {
		m, w, ok := choose(ms, q, policy)
		if !ok {
			return Choice{}, false
		}
		// If someone else picked it meanwhile, it may not be the best any more, or
		// have no room: look again. That is somebody's progress each time.
		if w.units == 0 || m.p.take(w.units, w.picked) {
			return Choice{Peer: m.p, Units: w.units, Method: w.method.value(), place: pl}, true
		}
	}
}

// weight is a member as a pick sees it.
type weight struct {
	units     uint32  // that the call costs there
	method    *Method // nil if it is not known
	effective int64
	picked    uint64 // that effective was computed with
}

// weigh reports whether a member is a candidate, and how good a one.
func (m *member) weigh(q *Query, w *weight) bool {
	p := m.p
	if !m.o.ready || p.off.Load() || p.draining.Load() || !p.link.Usable() {
		return false
	}
	if slices.Contains(q.Tried, p.id) {
		return false
	}
	w.units, w.method = q.Units, nil
	if !m.o.open && q.Method != "" {
		method, ok := m.o.methods[q.Method]
		if !ok {
			return false
		}
		w.method = method
		w.units = max(w.units, method.Units)
	}
	if w.units == 0 {
		return true
	}
	v := p.view.Load()
	switch {
	case v == nil && m.o.open && p.meta.Load().opaque:
		// It tells who asks neither what it has nor what room there is, and never
		// will: it is the one to judge.
		w.picked = p.picked.Load()
		return true
	case v == nil || v.cordoned:
		return false
	}
	w.effective, w.picked = p.effective(v)
	return w.effective >= int64(w.units)
}

// tries is how many members p2c draws before it looks at all of them.
const tries = 8

// choose picks among members, without a debit. m is nil if none is a candidate.
func choose(ms []member, q *Query, policy Policy) (m *member, w weight, ok bool) {
	if policy == Headroom {
		return mostHeadroom(ms, q)
	}
	var wf, ws weight
	first, second := draw(ms, q, &wf, &ws)
	switch {
	case first == nil:
		return nil, w, false
	case second == nil || betterThan(first, &wf, second, &ws):
		return first, wf, true
	default:
		return second, ws, true
	}
}

// draw is the first half of p2c: two candidates at random, in random order. second
// is nil if there is just one, first if there is none.
func draw(ms []member, q *Query, wf, ws *weight) (first, second *member) {
	n := uint64(len(ms))
	if n == 0 {
		return nil, nil
	}
	if n > 2 {
		var bits uint64
		for try := range tries {
			if bits <<= 32; try%2 == 0 { // one number serves two draws
				bits = rand.Uint64()
			}
			m := &ms[bits>>32*n>>32]
			if m == first {
				continue
			}
			if first == nil {
				if m.weigh(q, wf) {
					first = m
				}
			} else if m.weigh(q, ws) {
				second = m
				break
			}
		}
	}
	if second == nil {
		// Few are there, or few are candidates: all are looked at, from a random one
		// on, so that nobody is always first.
		start := int(rand.Uint64N(n))
		for i := range ms {
			j := start + i
			if j >= len(ms) {
				j -= len(ms)
			}
			m := &ms[j]
			if m == first {
				continue
			}
			if first == nil {
				if m.weigh(q, wf) {
					first = m
				}
			} else if m.weigh(q, ws) {
				second = m
				break
			}
		}
	}
	return first, second
}

// betterThan compares two candidates by p2c's rule. They were drawn in random
// order, so the first may win a tie.
func betterThan(a *member, wa *weight, b *member, wb *weight) bool {
	if wa.units > 0 && wb.units > 0 {
		return wa.effective >= wb.effective
	}
	return a.p.link.Outstanding() <= b.p.link.Outstanding()
}

// headroom is weigh for the rule of Headroom, which looks at the room for a call
// without units, too.
func (m *member) headroom(q *Query, w *weight) bool {
	if !m.weigh(q, w) {
		return false
	}
	if w.units == 0 {
		if v := m.p.view.Load(); v != nil {
			w.effective, _ = m.p.effective(v)
		}
	}
	return true
}

// mostHeadroom is the rule of Headroom: one in n of n that are equal.
func mostHeadroom(ms []member, q *Query) (best *member, w weight, ok bool) {
	equal := uint64(0)
	for i := range ms {
		m := &ms[i]
		var one weight
		if !m.headroom(q, &one) {
			continue
		}
		switch {
		case best == nil || one.effective > w.effective:
			best, w, equal = m, one, 1
		case one.effective == w.effective:
			equal++
			if rand.Uint64N(equal) == 0 {
				best, w = m, one
			}
		}
	}
	return best, w, best != nil
}
