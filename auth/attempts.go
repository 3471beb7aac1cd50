package auth

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/elemental-conduit/conduit"
)

// AttemptsOptions say how often one may try. A zero is its default; a negative
// burst is no limit.
type AttemptsOptions struct {
	// AddressBurst is how many attempts an address has at once (default 60), and
	// AddressEvery after what time it has another one (default 1 s).
	AddressBurst int
	AddressEvery time.Duration
	// UserBurst and UserEvery are the same for attempts to log in as one user
	// (default 10, and 6 s).
	UserBurst int
	UserEvery time.Duration
	// Slots is how many limits of each kind are kept (default 16384).
	Slots int
}

// Attempts limits logins and bad secrets, by the address that they come from
// (of IPv6, the network of 64 bits) and logins by the user as well. A login that
// succeeds counts like any other: who logs in that often should keep a session.
//
// Its memory is bounded: the limits are a fixed number of slots, which addresses
// and names share by a hash that only this Attempts knows. So nobody's limit can
// be pushed out by asking with many names, and a stranger who shares a slot is
// one in thousands. All methods may be called concurrently; a nil Attempts limits
// nothing.
type Attempts struct {
	seed             maphash.Seed
	addresses, users limits
}

// NewAttempts returns an Attempts with all limits unused.
func NewAttempts(o AttemptsOptions) *Attempts {
	slots := orDefault(max(o.Slots, 0), 16<<10)
	return &Attempts{
		seed:      maphash.MakeSeed(),
		addresses: newLimits(slots, o.AddressBurst, 60, o.AddressEvery, time.Second),
		users:     newLimits(slots, o.UserBurst, 10, o.UserEvery, 6*time.Second),
	}
}

// Login counts an attempt to log in; user is the name in its one form, or "".
// The error is of reason too_many_attempts and says when to try again; an attempt
// that it refuses counts no further.
func (a *Attempts) Login(from netip.Addr, user string) error {
	if a == nil {
		return nil
	}
	now := time.Now()
	if wait, ok := a.addresses.take(a.slotOf(from), now); !ok {
		return tooMany("from this address", wait)
	}
	if user == "" {
		return nil
	}
	if wait, ok := a.users.take(maphash.String(a.seed, user), now); !ok {
		return tooMany("for this user", wait)
	}
	return nil
}

// Allow says whether an address may try another secret that may be bad.
func (a *Attempts) Allow(from netip.Addr) error {
	if a == nil {
		return nil
	}
	if wait, ok := a.addresses.peek(a.slotOf(from), time.Now()); !ok {
		return tooMany("from this address", wait)
	}
	return nil
}

// Bad counts a secret that was bad.
func (a *Attempts) Bad(from netip.Addr) {
	if a != nil {
		_, _ = a.addresses.take(a.slotOf(from), time.Now())
	}
}

func (a *Attempts) slotOf(from netip.Addr) uint64 {
	from = from.Unmap().WithZone("")
	if from.Is6() {
		if p, err := from.Prefix(64); err == nil {
			from = p.Addr()
		}
	}
	return maphash.Comparable(a.seed, from)
}

func tooMany(what string, wait time.Duration) error {
	e := refusal(conduit.ResourceExhausted, conduit.ReasonTooManyAttempts, "too many attempts %s; try again in %s", what, wait.Round(time.Second)+time.Second)
	e.RetryAfter = wait
	return e
}

type limits struct {
	slots []atomic.Pointer[rate.Limiter]
	burst int
	every time.Duration
}

func newLimits(slots, burst, defaultBurst int, every, defaultEvery time.Duration) limits {
	return limits{make([]atomic.Pointer[rate.Limiter], slots), orDefault(burst, defaultBurst), orDefault(max(every, 0), defaultEvery)}
}

func (l *limits) slot(hash uint64) *rate.Limiter {
	p := &l.slots[hash%uint64(len(l.slots))]
	if r := p.Load(); r != nil {
		return r
	}
	p.CompareAndSwap(nil, rate.NewLimiter(rate.Every(l.every), l.burst))
	return p.Load()
}

// take takes one attempt, or says how long to wait for one.
func (l *limits) take(hash uint64, now time.Time) (time.Duration, bool) {
	if l.burst < 0 || l.slot(hash).AllowN(now, 1) {
		return 0, true
	}
	return l.wait(hash, now), false
}

func (l *limits) peek(hash uint64, now time.Time) (time.Duration, bool) {
	if l.burst < 0 || l.slot(hash).TokensAt(now) >= 1 {
		return 0, true
	}
	return l.wait(hash, now), false
}

func (l *limits) wait(hash uint64, now time.Time) time.Duration {
	missing := 1 - l.slot(hash).TokensAt(now)
	return time.Duration(min(max(missing, 0), 1) * float64(l.every))
}
