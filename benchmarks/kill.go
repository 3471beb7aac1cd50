package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit"
)

const (
	// pendingCalls are under way at the worker that is killed.
	pendingCalls = 64
	// laterCalls are made as soon as they have failed.
	laterCalls = 200
	// pendingLimit is when those calls would end by themselves: a failure after
	// that would not be the kill's.
	pendingLimit = 30 * time.Second
)

// killed is what one kill gave.
type killed struct {
	// From before the kill: when the kernel had closed the worker's connections, as
	// one that carries nothing shows, and when the last call had failed.
	reset, last time.Duration
	// Of the calls after that: how many needed more than one attempt, and failed.
	rerouted, failed int
}

// killScenario kills one of two workers again and again, with calls under way
// there, through each door in turn.
func killScenario(ctx context.Context, l *lab, o options, stdout, stderr io.Writer) error {
	c, err := startCluster(ctx, l, 2)
	if err != nil {
		return err
	}
	head := []string{"door", "kills", "kill to reset: p50 / max", "reset to last failure: p50 / max", "over 50 ms", "later calls", "on the dead worker", "failed"}
	row(stdout, head)
	row(stdout, append([]string{"---"}, slices.Repeat([]string{"--:"}, len(head)-1)...))
	for _, name := range o.doors {
		d, err := c.open(ctx, name)
		if err != nil {
			return err
		}
		var all []killed
		for round := range o.rounds {
			k, err := c.kill(ctx, d, c.workers[round%2])
			if err != nil {
				return errors.Join(fmt.Errorf("%s, round %d: %w", name, round+1, err), d.Close())
			}
			fmt.Fprintf(stderr, "%s, round %d of %d: reset after %v, the last call failed after %v\n", name, round+1, o.rounds, k.reset, k.last)
			all = append(all, k)
		}
		if err := d.Close(); err != nil {
			return err
		}
		row(stdout, killRow(name, all))
	}
	return nil
}

// failWithin is how long after the reset the last call may fail.
const failWithin = 50 * time.Millisecond

func killRow(name string, all []killed) []string {
	var reset, last []float64
	var over, rerouted, failed int
	for _, k := range all {
		after := max(k.last-k.reset, 0) // who sees it first is chance
		if after > failWithin {
			over++
		}
		reset, last = append(reset, float64(k.reset)), append(last, float64(after))
		rerouted += k.rerouted
		failed += k.failed
	}
	spread := func(v []float64) string { return millis(middle(v)) + " / " + millis(slices.Max(v)) }
	return []string{
		name, strconv.Itoa(len(all)), spread(reset), spread(last), strconv.Itoa(over),
		thousands(float64(laterCalls * len(all))), strconv.Itoa(rerouted), strconv.Itoa(failed),
	}
}

// kill is one round.
func (c *cluster) kill(ctx context.Context, d door, victim *instance) (killed, error) {
	var k killed
	pending, cancel := context.WithTimeout(ctx, pendingLimit)
	defer cancel()
	type failure struct {
		at  time.Time
		err error
	}
	failures := make(chan failure, pendingCalls)
	for range pendingCalls {
		go func() {
			err := d.call(pending, victim.id, "Delay", `{"ms":60000}`, nil)
			failures <- failure{time.Now(), err}
		}()
	}
	err := until(pending, func() (bool, error) {
		n, err := victim.serving(pending)
		return n >= pendingCalls, err
	})
	if err != nil {
		return k, fmt.Errorf("the calls are not under way: %w", err)
	}
	reset, err := resetOf(pending, victim.addr)
	if err != nil {
		return k, err
	}
	from := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return k, err
	}
	for range pendingCalls {
		f := <-failures
		e, ok := errors.AsType[*conduit.Error](f.err)
		if !ok || e.Reason != conduit.ReasonPeerLost || e.Outcome != conduit.OutcomeUnknown {
			return k, fmt.Errorf("a call under way ended with %w instead of peer_lost, unknown", f.err)
		}
		k.last = max(k.last, f.at.Sub(from))
	}
	k.reset = (<-reset).Sub(from)
	for range laterCalls {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		var who struct{ Attempt uint32 }
		err := d.call(one, "", "WhoAmI", "null", &who)
		cancel()
		switch {
		case err != nil:
			k.failed++
		case who.Attempt > 0: // the first went to the only other worker, the dead one
			k.rerouted++
		}
	}
	<-victim.gone
	if err := c.launch(victim); err != nil {
		return k, err
	}
	if err := victim.await(ctx); err != nil {
		return k, err
	}
	return k, reach(ctx, d, victim)
}

// resetOf connects to an address and returns when the other end was gone.
func resetOf(ctx context.Context, addr string) (<-chan time.Time, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	gone := make(chan time.Time, 1)
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // it says nothing, so this is its end
		gone <- time.Now()
		_ = conn.Close()
	}()
	return gone, nil
}

// millis is a number of nanoseconds in milliseconds.
func millis(nanoseconds float64) string { return short(nanoseconds/float64(time.Millisecond)) + " ms" }
