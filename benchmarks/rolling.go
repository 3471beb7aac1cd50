package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// rollingWorkers are restarted one after another.
const rollingWorkers = 5

// calm is how long the load runs before the first restart, for comparison, and
// after the last.
const calm = 2 * time.Second

// The kinds of calls of the rolling restart, each half of them.
const (
	idempotentCalls = "idempotent"
	plainCalls      = "plain"
)

// rollingScenario restarts five workers one after another, under a load at a fixed
// rate, through each door in turn. A call that fails is an error, whatever its kind, and
// so is a worker that is not called again.
func rollingScenario(ctx context.Context, l *lab, o options, stdout, stderr io.Writer) error {
	c, err := startCluster(ctx, l, rollingWorkers)
	if err != nil {
		return err
	}
	head := []string{
		"door", "restarts", "calls", "calls/s", "idempotent, failed", "others, failed", "others, unknown",
		"CPUs used before", "before: p50 / p99", "meanwhile: p50 / p99 / max", "back in use after: p50 / max",
	}
	row(stdout, head)
	row(stdout, append([]string{"---"}, slices.Repeat([]string{"--:"}, len(head)-1)...))
	var troubles []string
	for _, name := range o.doors {
		d, err := c.open(ctx, name)
		if err != nil {
			return err
		}
		r := &roll{c: c, d: d}
		if err := errors.Join(r.run(ctx, o, stderr), d.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		row(stdout, r.row(name))
		troubles = append(troubles, r.troubles(name)...)
	}
	if len(troubles) > 0 {
		return errors.New("not all went well:\n" + strings.Join(troubles, "\n"))
	}
	return nil
}

// troubles are what must not have happened, by one door.
func (r *roll) troubles(name string) (all []string) {
	for _, err := range r.lost {
		all = append(all, fmt.Sprintf("%s: a worker did not come back: %v", name, err))
	}
	for _, t := range r.load.troubles() {
		all = append(all, name+": "+t)
	}
	if n := r.load.late; n > 0 {
		all = append(all, fmt.Sprintf("%s: %d calls were not made, as %d were under way", name, n, mostUnderWay))
	}
	return all
}

// roll is the load by one door and the restarts under it.
type roll struct {
	c    *cluster
	d    door
	load *paced

	restarts      int
	cpus          float64                 // that all processes took together before the restarts; 0 = cannot be had here
	before, while *hdrhistogram.Histogram // latencies
	watches       sync.WaitGroup

	mu    sync.Mutex
	backs []float64 // from when a worker said that it was ready until it was called, in ns
	lost  []error   // why one was not called
}

func (r *roll) row(name string) []string {
	p := r.load
	at := func(h *hdrhistogram.Histogram, q float64) string { return millis(float64(h.ValueAtQuantile(q))) }
	return []string{
		name, strconv.Itoa(r.restarts), thousands(float64(p.made)), thousands(p.achieved()),
		strconv.Itoa(p.failed(idempotentCalls, "")), strconv.Itoa(p.failed(plainCalls, "")), strconv.Itoa(p.failed(plainCalls, "unknown")),
		short(r.cpus), at(r.before, 50) + " / " + at(r.before, 99),
		at(r.while, 50) + " / " + at(r.while, 99) + " / " + at(r.while, 100),
		millis(middle(r.backs)) + " / " + millis(slices.Max(r.backs)),
	}
}

// run loads and restarts.
func (r *roll) run(ctx context.Context, o options, stderr io.Writer) error {
	r.load = newPaced(o.rate, []string{idempotentCalls, plainCalls}, r.call)
	loading, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.load.run(loading)
	}()
	err := r.roll(ctx, o, stderr)
	stop()
	<-over
	r.watches.Wait()
	return err
}

// call makes the n-th call.
func (r *roll) call(ctx context.Context, n int) error {
	if n%2 == 0 {
		return r.d.call(ctx, "", "Where", "{}", nil)
	}
	var reply string
	err := r.d.call(ctx, "", "Upper", `"x"`, &reply)
	if err == nil && reply != "X" {
		err = fmt.Errorf("for X came %q", reply)
	}
	return err
}

// roll restarts each worker in each round.
func (r *roll) roll(ctx context.Context, o options, stderr io.Writer) error {
	from := time.Now()
	if err := r.calm(ctx); err != nil {
		return err
	}
	for round := range o.rounds {
		if share := o.within / time.Duration(len(o.doors)); share > 0 && round > 0 && time.Since(from) > share {
			fmt.Fprintf(stderr, "no more rounds after %d of %d: -within is over\n", round, o.rounds)
			break
		}
		for _, w := range r.c.workers {
			at := time.Since(from)
			if err := r.c.restart(ctx, w); err != nil {
				return err
			}
			r.restarts++
			fmt.Fprintf(stderr, "round %d of %d: %s went at %.1f s and was ready again at %.1f s\n", round+1, o.rounds, w.name, at.Seconds(), time.Since(from).Seconds())
			r.watch(ctx, w)
		}
	}
	r.while = r.load.takeLatencies()
	return sleep(ctx, calm)
}

// calm is the time before the restarts.
func (r *roll) calm(ctx context.Context) error {
	pids := []int{os.Getpid()}
	for _, i := range append([]*instance{r.c.front}, r.c.workers...) {
		pids = append(append(pids, i.pid()), descendants(i.pid())...)
	}
	before, err := usageOf(pids)
	from := time.Now()
	if err := sleep(ctx, calm); err != nil {
		return err
	}
	r.before = r.load.takeLatencies()
	after, afterErr := usageOf(pids)
	if errors.Join(err, afterErr) != nil {
		return nil //nolint:nilerr // on this system it cannot be had
	}
	var used time.Duration
	for i := range after {
		used += after[i].less(before[i]).CPU
	}
	r.cpus = used.Seconds() / time.Since(from).Seconds()
	return nil
}

// watch finds out when a worker that has just become ready is called again.
func (r *roll) watch(ctx context.Context, w *instance) {
	ready := time.Now()
	r.watches.Go(func() {
		err := reach(ctx, r.d, w)
		took := time.Since(ready)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.backs = append(r.backs, float64(took))
		if err != nil {
			r.lost = append(r.lost, err)
		}
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
