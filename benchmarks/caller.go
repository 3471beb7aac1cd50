package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"golang.org/x/sync/errgroup"
)

// request asks a caller for one window, as a line of JSON.
type request struct {
	Size     int           `json:"size"`
	InFlight int           `json:"in_flight"`
	Warm     time.Duration `json:"warm"`
	Window   time.Duration `json:"window"`
	PIDs     []int         `json:"pids"`              // whose CPU counts, the caller's own aside
	Profile  string        `json:"profile,omitempty"` // file for a CPU profile of the caller
}

// sample is what one window gave, as a line of JSON.
type sample struct {
	Calls   int64         `json:"calls"`
	Elapsed time.Duration `json:"elapsed"`
	Usage   []usage       `json:"usage"` // of each process, the caller first; empty = cannot be had here
	Heap    heap          `json:"heap"`  // the caller's, if it was profiled
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Max     time.Duration `json:"max"`
	Error   string        `json:"error,omitempty"`
}

// rate is calls per second.
func (s sample) rate() float64 { return float64(s.Calls) / s.Elapsed.Seconds() }

// cpu is CPU time per call, of all processes together.
func (s sample) cpu() time.Duration {
	if s.Calls == 0 {
		return 0
	}
	var total time.Duration
	for _, u := range s.Usage {
		total += u.CPU
	}
	return total / time.Duration(s.Calls)
}

// playCaller is the caller's process: it dials once, and then makes windows as it
// is asked to.
func playCaller(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: caller SYSTEM TARGET")
	}
	s, err := systemNamed(args[0])
	if err != nil {
		return err
	}
	ctx := context.Background()
	dialling, cancel := context.WithTimeout(ctx, startTimeout/2)
	defer cancel()
	l, err := s.dial(dialling, args[1])
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the process ends with it
	fmt.Fprintln(stdout, "ready", args[1])
	requests, samples := json.NewDecoder(stdin), json.NewEncoder(stdout)
	for {
		var r request
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		got, err := measure(ctx, l, r)
		if err != nil {
			got = sample{Error: err.Error()}
		}
		if err := samples.Encode(got); err != nil {
			return err
		}
	}
}

// Large calls that share a link fairly end together, so that a window of a fixed
// length would catch all of them or none. Both the warm-up and the window
// therefore last until some calls have ended for each that is under way, within
// patience.
const (
	patience   = 3 * time.Second
	countEvery = 2 * time.Millisecond
)

// measure runs one window.
func measure(ctx context.Context, l load, r request) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var w window
	ended := make(chan error, 1)
	go func() { ended <- l.keep(ctx, r.Size, r.InFlight, &w) }()

	// pass lets at least d pass, and so many calls end, if they do within patience.
	pass := func(d time.Duration, calls int64) error {
		tick := time.NewTicker(min(d, countEvery))
		defer tick.Stop()
		from, before := time.Now(), w.ended()
		for {
			select {
			case <-tick.C:
			case err := <-ended:
				return fmt.Errorf("the load ended before it was told to: %w", err)
			}
			past := time.Since(from)
			if past >= d && (w.ended()-before >= calls || past >= patience) {
				return nil
			}
		}
	}
	if err := pass(r.Warm, int64(r.InFlight)); err != nil {
		return sample{}, err
	}
	var heapBefore heap
	if r.Profile != "" {
		heapBefore = heapHere()
		f, err := os.Create(r.Profile)
		if err != nil {
			return sample{}, err
		}
		defer func() { _ = f.Close() }() // a short profile is noticed when it is read
		if err := pprof.StartCPUProfile(f); err != nil {
			return sample{}, err
		}
		defer pprof.StopCPUProfile()
	}
	pids := append([]int{os.Getpid()}, r.PIDs...)
	before, usageErr := usageOf(pids)
	from := time.Now()
	w.phase.Store(measuring)
	if err := pass(r.Window, 2*int64(r.InFlight)); err != nil {
		return sample{}, err
	}
	w.phase.Store(stopping)
	elapsed := time.Since(from)
	after, err := usageOf(pids)
	usageErr = errors.Join(usageErr, err)
	if err := <-ended; err != nil {
		return sample{}, err
	}
	calls, latencies := w.merged()
	if calls == 0 {
		return sample{}, errors.New("no call ended within the window")
	}
	quantile := func(q float64) time.Duration { return time.Duration(latencies.ValueAtQuantile(q)) }
	s := sample{Calls: calls, Elapsed: elapsed, P50: quantile(50), P99: quantile(99), Max: quantile(100)}
	if r.Profile != "" {
		s.Heap = heapHere().less(heapBefore)
	}
	if usageErr == nil {
		for i := range after {
			s.Usage = append(s.Usage, after[i].less(before[i]))
		}
	}
	return s, nil
}

// calls is the load of a system that has calls: as many goroutines as calls under
// way, each waiting for its own.
type calls struct {
	// echo returns what comes back, in memory that is the caller's.
	echo  func(ctx context.Context, payload []byte) ([]byte, error)
	close func() error
}

func (c *calls) Close() error { return c.close() }

func (c *calls) keep(ctx context.Context, size, inFlight int, w *window) error {
	g, ctx := errgroup.WithContext(ctx)
	for worker := range inFlight {
		r := w.recorder()
		g.Go(func() error {
			payload := make([]byte, size)
			for number := uint64(worker) << 32; !w.stopped(); number++ {
				mark(payload, number)
				from := time.Now()
				reply, err := c.call(ctx, payload)
				if err != nil {
					return err
				}
				r.done(time.Since(from))
				if err := check(reply, size, number); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (c *calls) call(ctx context.Context, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.echo(ctx, payload)
}
