package loadgen

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/elemental-conduit/conduit"
)

// Options is a load.
type Options struct {
	// Rate is how many calls are due each second; it must be positive.
	Rate float64
	// Warmup is how long calls are made that do not count, before those that do.
	Warmup time.Duration
	// Duration is how long calls are made that count.
	Duration time.Duration
	// MaxInFlight bounds the calls that are under way; it must be positive.
	MaxInFlight int
	// Call makes the n-th call, from 0, those of the warm-up included, and returns when
	// it has ended. It is called concurrently, and must end soon after its context does.
	Call func(ctx context.Context, n int) error
	// Each is told about every second how it goes; nil: nobody is. It must not block.
	Each func(Progress)
}

// Progress is how far a load is.
type Progress struct {
	// Elapsed is the time since the first call was due, of Whole.
	Elapsed, Whole time.Duration
	// Answered and Failed count the calls that have ended and count.
	Answered, Failed int64
	// InFlight is how many calls are under way.
	InFlight int
}

// Result is what a load has measured, of the calls after the warm-up.
type Result struct {
	// Due is how many calls were due: those that were answered, failed, were not
	// started, and were interrupted.
	Due int64
	// Answered is how many calls ended well.
	Answered int64
	// NotStarted is how many could not be made in the time, since MaxInFlight were under way.
	NotStarted int64
	// Interrupted is how many were under way when the context of Run ended.
	Interrupted int64
	// Failures are the calls that failed, by why, the most frequent first.
	Failures []Failure
	// Elapsed is the time from when the first call was due until the last one ended.
	Elapsed time.Duration
	// MostInFlight is how many calls were under way at most.
	MostInFlight int
	// Latency is of the calls that were answered, in microseconds, from when each was due.
	Latency *hdrhistogram.Histogram
	// Lag is how much later than due calls began, in microseconds: much of it says that
	// MaxInFlight was reached, or that it is this machine that was measured.
	Lag *hdrhistogram.Histogram
}

// Failed is how many calls failed.
func (r *Result) Failed() int64 {
	var n int64
	for _, f := range r.Failures {
		n += f.Count
	}
	return n
}

// Throughput is how many calls a second were answered.
func (r *Result) Throughput() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Answered) / r.Elapsed.Seconds()
}

// Failure is why calls failed.
type Failure struct {
	// Example is the error of the first of them.
	Example *conduit.Error
	// Count is how many there were.
	Count int64
}

// What the histograms hold, in microseconds, and how exactly.
const (
	leastMicros = 1
	mostMicros  = int64(time.Hour / time.Microsecond)
	digits      = 3
)

// why is what makes failures alike.
type why struct {
	code    conduit.Code
	reason  string
	outcome conduit.Outcome
}

type run struct {
	o     Options
	slots chan struct{}
	begin time.Time // when the first call that counts is due

	mu       sync.Mutex
	result   Result
	failures map[why]*Failure
	last     time.Time // when the last call that counts ended
	inFlight int
}

// Run makes the calls, and returns when all have ended. When ctx ends it makes no more,
// ends those under way, and returns what it has measured.
func Run(ctx context.Context, o Options) *Result {
	start := time.Now()
	r := &run{
		o: o, slots: make(chan struct{}, o.MaxInFlight), begin: start.Add(o.Warmup), failures: map[why]*Failure{},
		result: Result{
			Latency: hdrhistogram.New(leastMicros, mostMicros, digits),
			Lag:     hdrhistogram.New(leastMicros, mostMicros, digits),
		},
	}
	stop := r.watch(start)
	r.makeCalls(ctx, start)
	stop()
	r.result.Elapsed = max(r.last.Sub(r.begin), 0)
	for _, f := range r.failures {
		r.result.Failures = append(r.result.Failures, *f)
	}
	slices.SortFunc(r.result.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Example.Reason, b.Example.Reason))
	})
	return &r.result
}

// makeCalls begins each call when it is due, and waits for the last.
func (r *run) makeCalls(ctx context.Context, start time.Time) {
	var calls sync.WaitGroup
	defer calls.Wait()
	whole := r.o.Warmup + r.o.Duration
	total := int(r.o.Rate * whole.Seconds())
	over := time.NewTimer(whole)
	defer over.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	late := false // the time is over, and calls are made only as long as nothing hinders them
	for n := range total {
		due := start.Add(time.Duration(float64(n) / r.o.Rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			pause.Reset(wait)
			select {
			case <-pause.C:
			case <-ctx.Done():
				return
			}
		}
		counts := !due.Before(r.begin)
		if ctx.Err() != nil {
			return
		}
		select {
		case r.slots <- struct{}{}:
		default:
			if !late {
				select {
				case r.slots <- struct{}{}:
				case <-over.C:
					late = true
				case <-ctx.Done():
					return
				}
			}
			if late {
				r.notStarted(counts)
				continue
			}
		}
		r.started(due, counts)
		calls.Go(func() {
			err := r.o.Call(ctx, n)
			<-r.slots
			r.ended(ctx, due, counts, err)
		})
	}
}

func (r *run) notStarted(counts bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if counts {
		r.result.Due++
		r.result.NotStarted++
	}
}

func (r *run) started(due time.Time, counts bool) {
	lag := time.Since(due)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight++
	if !counts {
		return
	}
	r.result.Due++
	r.result.MostInFlight = max(r.result.MostInFlight, r.inFlight)
	record(r.result.Lag, lag)
}

func (r *run) ended(ctx context.Context, due time.Time, counts bool, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	if !counts {
		return
	}
	r.last = now // they end in this order, as far as the lock says
	switch {
	case err == nil:
		r.result.Answered++
		record(r.result.Latency, now.Sub(due))
	case ctx.Err() != nil:
		r.result.Interrupted++
	default:
		e := conduit.AsError(err, conduit.OutcomeUnknown)
		key := why{e.Code, e.Reason, e.Outcome}
		f := r.failures[key]
		if f == nil {
			f = &Failure{Example: e}
			r.failures[key] = f
		}
		f.Count++
	}
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), leastMicros), mostMicros)) // within its range
}

// watch tells Each how it goes until it is stopped.
func (r *run) watch(start time.Time) (stop func()) {
	if r.o.Each == nil {
		return func() {}
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.o.Each(r.progress(start))
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}

func (r *run) progress(start time.Time) Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{Elapsed: time.Since(start), Whole: r.o.Warmup + r.o.Duration, Answered: r.result.Answered, InFlight: r.inFlight}
	for _, f := range r.failures {
		p.Failed += f.Count
	}
	return p
}
