package budget

import "github.com/elemental-conduit/conduit"

// Reservation is what one call holds from before its work starts until its
// handler has ended or its process is gone. All methods may be called
// concurrently.
type Reservation struct {
	b        *Budget
	left     int64 // guarded by b.mu, as is released
	released bool
}

// Reserve reserves n units for a call: all, or none and an error that is cordoned
// or no_capacity, refused and retryable, with Details "available" and "total". It
// is for calls that come on no link; those that do are judged by a [Ledger].
//
// Zero units are always given; the reservation is there for a later Release.
func (b *Budget) Reserve(n int64) (*Reservation, *conduit.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserve(n)
}

// reserve is Reserve with b.mu held.
func (b *Budget) reserve(n int64) (*Reservation, *conduit.Error) {
	switch {
	case n < 0:
		return nil, notANumberOfUnits(n)
	case n > 0:
		if err := b.take(n, 0); err != nil {
			return nil, err
		}
		b.notify()
	}
	b.reserved += n
	b.reservations++
	return &Reservation{b: b, left: n}, nil
}

// Units returns what is still reserved: less than at first once a claim has taken
// over, nothing after Release.
func (r *Reservation) Units() int64 {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.left
}

// Release gives back what no claim has taken over. Only the first call does
// something; a nil Reservation may be released.
func (r *Reservation) Release() {
	if r == nil {
		return
	}
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	b.reservations--
	if r.left > 0 {
		b.reserved -= r.left
		r.left = 0
		b.notify()
	}
}
