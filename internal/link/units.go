package link

import "sync/atomic"

// mostLeft bounds what is remembered of calls that this end gave up and that the
// other has not answered yet. An end that keeps to the protocol answers each, and
// far fewer can be on their way.
const mostLeft = 1 << 14

// accounts are the units of this end's calls that the other end will never judge.
//
// A call that is written and then given up leaves the link at once, and may turn
// out later to be above the other end's last_call. So its units are remembered
// until a frame for it or for a later call says that the other end had it by then:
// Invokes leave, and are read, in the order of their ids.
type accounts struct {
	unsent atomic.Uint64 // never falls

	// Guarded by Conn.mu.
	reached uint64     // the highest call that the other end has surely read
	left    []leftCall // given up, above reached when they were
	sweep   int        // of how many left ones those that were reached are looked for
}

type leftCall struct {
	id    uint64
	units uint32
}

// neverSent counts a call that was not even begun.
func (a *accounts) neverSent(units uint32) {
	if units > 0 {
		a.unsent.Add(uint64(units))
	}
}

// heard notes a frame for a call of this end. Conn.mu is held.
func (a *accounts) heard(ours bool, id uint64) {
	if ours && id > a.reached {
		a.reached = id
	}
}

// settle is called when a call of this end leaves the link. c.mu is held.
func (c *Conn) settle(k *call) {
	a := &c.units
	switch {
	case k.units == 0:
	case k.id == 0, c.goneAway != nil && k.id > c.goneLast:
		a.neverSent(k.units)
	case c.goneAway == nil && c.err == nil && k.id > a.reached:
		a.leave(leftCall{k.id, k.units})
	}
}

// leave remembers a call that was given up.
func (a *accounts) leave(l leftCall) {
	if len(a.left) >= max(a.sweep, 64) {
		kept := a.left[:0]
		for _, l := range a.left {
			if l.id > a.reached {
				kept = append(kept, l)
			}
		}
		if len(kept) >= mostLeft {
			kept = kept[:copy(kept, kept[len(kept)/2:])]
		}
		a.left, a.sweep = kept, 2*len(kept)
	}
	a.left = append(a.left, l)
}

// settleGone counts the calls that were given up and are above the other end's
// last call. Those that are still under way are settled as they end. c.mu is held.
func (c *Conn) settleGone() {
	a := &c.units
	for _, l := range a.left {
		if l.id > c.goneLast {
			a.neverSent(l.units)
		}
	}
	a.left = nil
}
