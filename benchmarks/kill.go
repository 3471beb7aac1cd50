package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	first, last time.Duration // from before the kill to the first and the last failure
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
	row(stdout, []string{"door", "kills", "first failure, p50", "last failure, p50", "last failure, max", "later calls", "on the dead worker", "failed"})
	row(stdout, []string{"---", "--:", "--:", "--:", "--:", "--:", "--:", "--:"})
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
			fmt.Fprintf(stderr, "%s, round %d of %d: %v\n", name, round+1, o.rounds, k.last)
			all = append(all, k)
		}
		if err := d.Close(); err != nil {
			return err
		}
		row(stdout, killRow(name, all))
	}
	return nil
}

func killRow(name string, all []killed) []string {
	var first, last []float64
	var rerouted, failed int
	for _, k := range all {
		first, last = append(first, float64(k.first)), append(last, float64(k.last))
		rerouted += k.rerouted
		failed += k.failed
	}
	return []string{
		name, fmt.Sprint(len(all)), millis(middle(first)), millis(middle(last)), millis(slices.Max(last)),
		thousands(float64(laterCalls * len(all))), fmt.Sprint(rerouted), fmt.Sprint(failed),
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
	from := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return k, err
	}
	for n := range pendingCalls {
		f := <-failures
		e, ok := errors.AsType[*conduit.Error](f.err)
		if !ok || e.Reason != conduit.ReasonPeerLost || e.Outcome != conduit.OutcomeUnknown {
			return k, fmt.Errorf("a call under way ended with %w instead of peer_lost, unknown", f.err)
		}
		if took := f.at.Sub(from); n == 0 {
			k.first, k.last = took, took
		} else {
			k.first, k.last = min(k.first, took), max(k.last, took)
		}
	}
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

// millis is a number of nanoseconds in milliseconds.
func millis(nanoseconds float64) string { return short(nanoseconds/float64(time.Millisecond)) + " ms" }
