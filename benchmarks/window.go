package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in nanoseconds, to 1 %.
const (
	leastLatency  = int64(100)
	mostLatency   = int64(time.Minute)
	latencyDigits = 2
)

// The phases of a window.
const (
	warming int32 = iota
	measuring
	stopping
)

// window is what a load records into. All methods may be called concurrently.
type window struct {
	phase atomic.Int32

	mu        sync.Mutex
	recorders []*recorder
}

// stopped says that no more calls should be started.
func (w *window) stopped() bool { return w.phase.Load() == stopping }

// recorder returns a recorder for one goroutine.
func (w *window) recorder() *recorder {
	r := &recorder{w: w, latencies: hdrhistogram.New(leastLatency, mostLatency, latencyDigits)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorders = append(w.recorders, r)
	return r
}

// merged is what all recorders hold. The load must have ended.
func (w *window) merged() (calls int64, latencies *hdrhistogram.Histogram) {
	w.mu.Lock()
	defer w.mu.Unlock()
	latencies = hdrhistogram.New(leastLatency, mostLatency, latencyDigits)
	for _, r := range w.recorders {
		calls += r.calls
		latencies.Merge(r.latencies)
	}
	return calls, latencies
}

// ended is how many calls have ended so far, those of the warm-up included.
func (w *window) ended() (calls int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.recorders {
		calls += r.ended.Load()
	}
	return calls
}

// recorder counts the calls of one goroutine.
type recorder struct {
	w         *window
	ended     atomic.Int64
	calls     int64
	latencies *hdrhistogram.Histogram
}

// done records a call that has just ended.
func (r *recorder) done(took time.Duration) {
	r.ended.Add(1)
	if r.w.phase.Load() != measuring {
		return
	}
	r.calls++
	_ = r.latencies.RecordValue(min(max(int64(took), leastLatency), mostLatency)) // within its range
}

// stamp is how many bytes at each end of a payload tell one call from another.
const stamp = 8

// mark writes a call's number at both ends of its payload.
func mark(payload []byte, number uint64) {
	binary.LittleEndian.PutUint64(payload, number)
	binary.LittleEndian.PutUint64(payload[len(payload)-stamp:], ^number)
}

// check says whether a reply is the one to the call of that number.
func check(reply []byte, size int, number uint64) error {
	if len(reply) != size {
		return fmt.Errorf("a reply has %d bytes instead of %d", len(reply), size)
	}
	first, last := binary.LittleEndian.Uint64(reply), binary.LittleEndian.Uint64(reply[size-stamp:])
	if first != number || last != ^number {
		return fmt.Errorf("a reply is not what was sent: call %#x came back as %#x and %#x", number, first, ^last)
	}
	return nil
}
