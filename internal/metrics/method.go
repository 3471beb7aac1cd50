package metrics

import (
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Method counts the calls of one method on one side. It is a [MethodObserver]:
// all methods may be called concurrently, never block and allocate nothing. They
// run once for every call that a host passes on, so they are some atomic
// additions to memory that is this method's own, and nothing else; what that
// makes of labels and families is left to the scrape.
type Method struct {
	epoch time.Time
	begun atomic.Uint64
	ended [conduit.Unauthenticated + 1][conduit.Executed + 1]atomic.Uint64 // by code (0 = success) and outcome
	took  durations
}

// Begin counts a call as being in flight. What it returns is End's.
func (m *Method) Begin() time.Duration {
	m.begun.Add(1)
	return time.Since(m.epoch)
}

// End counts a call out that Begin has counted in; it is called once for each.
// code is 0 for success.
func (m *Method) End(begun time.Duration, code conduit.Code, outcome conduit.Outcome) {
	m.took.add(time.Since(m.epoch) - begun)
	m.count(code, outcome)
}

// Refuse counts a call that was never begun.
func (m *Method) Refuse(code conduit.Code, outcome conduit.Outcome) {
	m.begun.Add(1)
	m.count(code, outcome)
}

// count counts how a call ended. Both numbers may come from another process.
func (m *Method) count(code conduit.Code, outcome conduit.Outcome) {
	switch {
	case code == 0:
		outcome = conduit.Executed // what succeeded has run
	case !code.Valid():
		code = conduit.Unknown
	}
	if outcome > conduit.Executed {
		outcome = conduit.OutcomeUnknown
	}
	m.ended[code][outcome].Add(1)
}

// bounds are the upper ends of the buckets: steps of about 2.5 from what a call to
// a neighbour takes to twice the default limit of a call.
//
//nolint:gochecknoglobals // a constant
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, 60 * time.Second,
}

// durations is a histogram. The library's own adds to its sum in a loop of
// compare-and-swap; this one is read as nothing but counters.
type durations struct {
	buckets [len(bounds) + 1]atomic.Uint64 // each its own calls; the last those above all bounds
	// micros is the sum in microseconds. In nanoseconds, a thousand long calls at
	// once would fill it within months.
	micros atomic.Uint64
}

func (h *durations) add(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.micros.Add(uint64(d.Round(time.Microsecond) / time.Microsecond))
	h.buckets[i].Add(1)
}

// read returns the number of calls, their sum, and how many took no longer than
// each bound, in seconds.
func (h *durations) read() (n uint64, seconds float64, cumulative map[float64]uint64) {
	cumulative = make(map[float64]uint64, len(bounds))
	for i := range h.buckets {
		n += h.buckets[i].Load()
		if i < len(bounds) {
			cumulative[bounds[i].Seconds()] = n
		}
	}
	return n, float64(h.micros.Load()) / 1e6, cumulative
}
