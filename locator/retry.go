package locator

import (
	"sync"
	"sync/atomic"
	"time"
)

// The retry budget when nothing else is said. In the long run a storm of failures
// makes a tenth more attempts, and not three times as many. What may be saved up
// suffices for the calls that one lost peer has under way.
const (
	defaultRatio = 0.1
	defaultFloor = 10 // a second
	firstRetries = 128
	mostRetries  = 4096
)

// milli is the unit in which retries are counted.
const milli = 1000

// retryBudget is a bucket of retries: each call puts a part of one in, each retry
// takes one out, and time puts in a few. All methods may be called concurrently.
type retryBudget struct {
	each   int64 // of a call, in milli retries
	tokens atomic.Int64
	floor  float64 // retries a second

	mu   sync.Mutex
	last time.Time // when time last put in something
}

func newRetryBudget(ratio, floor float64) *retryBudget {
	b := &retryBudget{each: int64(ratio * milli), floor: floor, last: time.Now()}
	b.tokens.Store(firstRetries * milli)
	return b
}

// deposit counts a call.
func (b *retryBudget) deposit() {
	if b.tokens.Load() < mostRetries*milli {
		b.tokens.Add(b.each)
	}
}

// withdraw takes a retry, if there is one.
func (b *retryBudget) withdraw() bool {
	if b.take() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	n := int64(min(now.Sub(b.last).Seconds(), 1) * b.floor * milli)
	if n > 0 {
		b.last = now
		b.tokens.Add(n)
	}
	return b.take()
}

// refund gives back a retry that was not made.
func (b *retryBudget) refund() { b.tokens.Add(milli) }

func (b *retryBudget) take() bool {
	for {
		n := b.tokens.Load()
		if n < milli {
			return false
		}
		if b.tokens.CompareAndSwap(n, n-milli) {
			return true
		}
	}
}
