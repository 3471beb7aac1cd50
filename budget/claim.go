package budget

import "github.com/elemental-conduit/conduit"

// Claim is units held for as long as the work behind them lives, beyond the call
// that they were claimed in. All methods may be called concurrently.
type Claim struct {
	b        *Budget
	units    int64
	released bool // guarded by b.mu
}

// Claim claims n units, at least one: all, or none and an error, as [Budget.Reserve]
// does. It is for work outside of calls; in a call see [Reservation.Claim].
func (b *Budget) Claim(n int64) (*Claim, *conduit.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claim(n, nil)
}

// Claim claims n units, at least one, for work that was begun in the call: first
// what the call still has reserved, then the rest from what is available. It is
// all or nothing: when there is not enough, the reservation is left as it was. A
// cordoned budget gives nothing beyond what was reserved. After Release there is
// nothing left to take over.
func (r *Reservation) Claim(n int64) (*Claim, *conduit.Error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.b.claim(n, r)
}

// ClaimReserved is Claim out of what the call still has reserved alone; with less than n
// of that it returns nil, and the reservation is left as it was.
func (r *Reservation) ClaimReserved(n int64) (*Claim, *conduit.Error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if n > r.left {
		return nil, nil
	}
	return r.b.claim(n, r)
}

// claim claims n units, of which those of r come first. b.mu is held.
func (b *Budget) claim(n int64, r *Reservation) (*Claim, *conduit.Error) {
	if n < 1 {
		return nil, notANumberOfUnits(n)
	}
	var over int64
	if r != nil {
		over = min(n, r.left)
	}
	if rest := n - over; rest > 0 {
		if err := b.take(rest, over); err != nil {
			return nil, err
		}
		b.notify()
	}
	if r != nil {
		r.left -= over
	}
	b.reserved -= over
	b.claimed += n
	b.claims++
	return &Claim{b: b, units: n}, nil
}

// Units returns how much was claimed; it never changes.
func (c *Claim) Units() int64 { return c.units }

// Release gives the units back. Only the first call does something; a nil Claim
// may be released.
func (c *Claim) Release() {
	if c == nil {
		return
	}
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.released {
		return
	}
	c.released = true
	b.claims--
	b.claimed -= c.units
	b.notify()
}
