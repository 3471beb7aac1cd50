package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/elemental-conduit/conduit"
)

// mostUnderWay bounds the calls that a paced load has under way: a cluster that
// hangs must not take the machine with it.
const mostUnderWay = 4096

// paced is an open loop: calls begin at the times of a fixed rate, whatever became
// of those before.
type paced struct {
	rate int // calls a second
	// call makes the n-th one.
	call func(ctx context.Context, n int) error
	// kinds says what is counted by itself: call n is of kind n modulo their number.
	kinds []string

	mu        sync.Mutex
	made      int // begun
	late      int // not begun in their time: too many were under way
	underWay  int
	counts    map[string]int // "kind: ok" or "kind: outcome/reason"
	examples  map[string]string
	latencies *hdrhistogram.Histogram // of those that went well, from when they were to begin
	elapsed   time.Duration
}

func newPaced(rate int, kinds []string, call func(ctx context.Context, n int) error) *paced {
	return &paced{
		rate: rate, kinds: kinds, call: call, counts: map[string]int{}, examples: map[string]string{},
		latencies: hdrhistogram.New(leastLatency, mostLatency, latencyDigits),
	}
}

// run makes calls until ctx ends, and waits for those that are under way.
func (p *paced) run(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	from := time.Now()
	each := time.Second / time.Duration(p.rate)
	for n := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.elapsed = time.Since(from)
			return
		}
		for ; ctx.Err() == nil; n++ {
			due := from.Add(time.Duration(n) * each)
			if time.Now().Before(due) {
				break
			}
			if !p.begin() {
				continue
			}
			number := n // n goes on
			calls.Go(func() {
				// Not ctx: what has begun is to end by itself.
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
				defer cancel()
				err := p.call(one, number)
				p.ended(number, time.Since(due), time.Since(from), err)
			})
		}
	}
}

// begin counts a call in, if there is room for it.
func (p *paced) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay >= mostUnderWay {
		p.late++
		return false
	}
	p.made++
	p.underWay++
	return true
}

func (p *paced) ended(n int, took, at time.Duration, err error) {
	how := "ok"
	if err != nil {
		how = howFailed(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWay--
	key := p.kinds[n%len(p.kinds)] + ": " + how
	if p.counts[key]++; err != nil && p.examples[key] == "" {
		p.examples[key] = fmt.Sprintf("at %.1f s, after %v: %v", at.Seconds(), took.Round(time.Millisecond), err)
	}
	if err == nil {
		_ = p.latencies.RecordValue(min(max(int64(took), leastLatency), mostLatency)) // within its range
	}
}

// takeLatencies returns the latencies of what has ended since it was called last.
func (p *paced) takeLatencies() *hdrhistogram.Histogram {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.latencies
	p.latencies = hdrhistogram.New(leastLatency, mostLatency, latencyDigits)
	return taken
}

// howFailed is an error's outcome and reason.
func howFailed(err error) string {
	if e, ok := errors.AsType[*conduit.Error](err); ok {
		return e.Outcome.String() + "/" + e.Reason
	}
	return "wrong reply"
}

// failed is how many calls of a kind failed, and how many of them with an outcome;
// empty = any.
func (p *paced) failed(kind, outcome string) (n int) {
	for key, count := range p.counts {
		how, ok := strings.CutPrefix(key, kind+": ")
		if ok && how != "ok" && (outcome == "" || strings.HasPrefix(how, outcome+"/")) {
			n += count
		}
	}
	return n
}

// achieved is the rate at which calls were begun.
func (p *paced) achieved() float64 { return float64(p.made) / p.elapsed.Seconds() }

// troubles are the kinds of failures, with one of each.
func (p *paced) troubles() []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(p.examples)) {
		all = append(all, fmt.Sprintf("%d × %s; the first %s", p.counts[key], key, p.examples[key]))
	}
	return all
}
