package budget

import "github.com/elemental-conduit/conduit"

// Ledger is a budget as one link sees it: it counts the units of the link's
// Invokes that were judged, so that the caller at the other end knows which of
// those it has sent are in the report of what is available, and which are not yet.
//
// Every Invoke that arrives is judged exactly once, with the units that stand in
// it: by Judge, or by Refuse if something else than units decides. All methods
// may be called concurrently.
type Ledger struct {
	b      *Budget
	judged int64 // guarded by b.mu: it is read together with what is available
}

// Ledger returns the ledger of a new link. It needs no end: it holds nothing.
func (b *Budget) Ledger() *Ledger { return &Ledger{b: b} }

// Status is what a link reports to its caller: available and judged as they were
// at one moment.
type Status struct {
	Available, Total int64 // units
	Judged           int64 // units, cumulative from the link's start
	Cordoned         bool
}

// Judge admits an Invoke or refuses it: want units are reserved, all or none, and
// the Invoke's own units count as judged in the same moment. want is the larger of
// those and the method's. The error is that of [Budget.Reserve].
func (l *Ledger) Judge(invoke, want int64) (*Reservation, *conduit.Error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	r, err := l.b.reserve(max(want, invoke))
	l.count(invoke)
	return r, err
}

// Refuse counts an Invoke that ended before it came to its units: it failed, was
// refused for another reason, or was cancelled before it was started.
func (l *Ledger) Refuse(invoke int64) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.count(invoke)
}

// count adds to what was judged, which the other end is to hear of. b.mu is held.
func (l *Ledger) count(invoke int64) {
	if invoke > 0 {
		l.judged += invoke
		l.b.notify()
	}
}

// Status returns what the link's caller is to be told.
func (l *Ledger) Status() Status {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return Status{Available: l.b.available(), Total: l.b.total, Judged: l.judged, Cordoned: l.b.cordoned}
}
