package budget

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/elemental-conduit/conduit"
)

// DefaultTotal is the total of an instance that is not told another.
const DefaultTotal = 1000

// Budget is the units of one instance. All methods may be called concurrently,
// and none waits for more than the lock.
type Budget struct {
	mu           sync.Mutex
	total        int64
	reserved     int64 // by calls under way
	claimed      int64
	reservations int
	claims       int
	cordoned     bool

	watchers map[chan struct{}]struct{}
	version  atomic.Uint64
}

// New returns a budget of total units. A negative total counts as none.
func New(total int64) *Budget {
	return &Budget{total: max(total, 0), watchers: map[chan struct{}]struct{}{}}
}

// Snapshot is a budget at one moment. All numbers but the counts of reservations
// and claims are units.
type Snapshot struct {
	Total, Available, Reserved, Claimed int64
	Reservations, Claims                int
	Cordoned                            bool
}

// Snapshot returns the budget as it is now.
func (b *Budget) Snapshot() Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Snapshot{
		Total: b.total, Available: b.available(), Reserved: b.reserved, Claimed: b.claimed,
		Reservations: b.reservations, Claims: b.claims, Cordoned: b.cordoned,
	}
}

// available is what nobody holds. b.mu is held.
func (b *Budget) available() int64 { return b.total - b.reserved - b.claimed }

// Cordon says whether the budget gives no new units. What is held stays held, and
// a claim may still take over what its call has reserved.
func (b *Budget) Cordon(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cordoned != on {
		b.cordoned = on
		b.notify()
	}
}

// Subscribe returns a channel that gets a value after each change, changes that
// come before the last one was received counting as one. The watcher reads what
// has become of it with Snapshot, or a [Ledger]'s Status. stop may be called more
// than once; nothing is received afterwards.
func (b *Budget) Subscribe() (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers[c] = struct{}{}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, c)
		select {
		case <-c:
		default:
		}
	}
}

// Version returns another number after each change, of the budget itself or of what
// one of its ledgers has judged. It takes no lock.
func (b *Budget) Version() uint64 { return b.version.Load() }

// notify wakes the watchers. b.mu is held.
func (b *Budget) notify() {
	b.version.Add(1)
	for c := range b.watchers {
		select {
		case c <- struct{}{}:
		default: // it has one to receive already
		}
	}
}

// take gives n units out of what is available, or says why not; over are those of the
// same request that were reserved before. b.mu is held.
func (b *Budget) take(n, over int64) *conduit.Error {
	switch {
	case b.cordoned:
		return b.refuse(conduit.Unavailable, conduit.ReasonCordoned, "this instance is cordoned: it takes no new units until its operator says conduit-host uncordon")
	case n > b.available():
		message := fmt.Sprintf("%d units were asked for, %d of %d are available", n+over, b.available(), b.total)
		if over > 0 {
			message += fmt.Sprintf(" beyond the %d that the call has reserved", over)
		}
		return b.refuse(conduit.ResourceExhausted, conduit.ReasonNoCapacity, message)
	}
	return nil
}

// refuse makes the error of what was not given; it says how much there is. b.mu
// is held.
func (b *Budget) refuse(code conduit.Code, reason, message string) *conduit.Error {
	return &conduit.Error{
		Code: code, Reason: reason, Outcome: conduit.Refused, Retryable: true, Message: message, Op: "budget.take",
		Details: map[string]string{
			"available": strconv.FormatInt(b.available(), 10),
			"total":     strconv.FormatInt(b.total, 10),
		},
	}
}

// notANumberOfUnits is the error of a claim or reservation of less than it can be.
func notANumberOfUnits(n int64) *conduit.Error {
	return &conduit.Error{
		Code: conduit.InvalidArgument, Reason: conduit.ReasonUnspecified, Outcome: conduit.Refused, Op: "budget.take",
		Message: fmt.Sprintf("%d is no number of units that can be held", n),
	}
}
