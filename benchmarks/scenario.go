package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// scenario is something that happens to a cluster of real processes under calls.
type scenario struct {
	rounds int           // unless -rounds says otherwise
	limit  time.Duration // unless -limit does
	about  string        // what its rounds are
	run    func(ctx context.Context, l *lab, o options, stdout, stderr io.Writer) error
}

func scenarios() map[string]scenario {
	return map[string]scenario{
		"kill": {
			rounds: 20, limit: 5 * time.Minute, run: killScenario,
			about: fmt.Sprintf("%d calls are under way at one of two workers when it is killed with SIGKILL. The reset is when a connection that carries nothing sees the worker gone. "+
				"When the last of them has failed, %d calls that may go anywhere are made, one after another: one that had to be tried twice was sent to the dead worker first.", pendingCalls, laterCalls),
		},
		"store": {
			rounds: 3, limit: 30 * time.Minute, run: storeScenario,
			about: "stores that do the same work side by side: `plugins/txpersist` called directly and as an element, bbolt used directly, PostgreSQL 15.",
		},
		"line": {
			rounds: 5, limit: 8 * time.Minute, run: lineScenario,
			about: "small calls at a fixed rate beside large transfers over the same connection, of each system in turn; a small call's latency counts from when it was to begin.",
		},
		"rolling": {
			rounds: 3, limit: 10 * time.Minute, run: rollingScenario,
			about: fmt.Sprintf("%d workers get SIGTERM, end, start again and say that they are ready, one after another, each of them once a round. "+
				"Half of the calls are `Where`, which is idempotent, the others `Upper`, which is not. They begin at a fixed rate whatever became of those before, "+
				"and a call's latency counts from when it was to begin.", rollingWorkers),
		},
	}
}

func scenarioNames() []string { return slices.Sorted(maps.Keys(scenarios())) }

// parseScenario completes the options of a scenario.
func parseScenario(o *options, fs *flag.FlagSet, doors string) error {
	s, ok := scenarios()[o.scenario]
	if !ok {
		return fmt.Errorf("-scenario: there is no %q; there are %s", o.scenario, strings.Join(scenarioNames(), ", "))
	}
	set := given(fs)
	if !set["rounds"] {
		o.rounds = s.rounds
	}
	if !set["limit"] {
		o.limit = s.limit
	}
	var err error
	o.store.window = storeWindow
	forbidden := []string{"window", "warm", "write", "docs", "profile", "sizes", "inflight", "systems"}
	if o.scenario == "store" {
		if forbidden = forbidden[1:]; set["window"] {
			o.store.window = o.window
		}
		if o.store.resources < 1 || o.store.paths < 1 {
			err = errors.Join(err, errors.New("-resources and -paths must be 1 or more"))
		}
	} else {
		forbidden = append(forbidden, "resources", "paths")
	}
	for _, name := range forbidden {
		if set[name] {
			err = errors.Join(err, fmt.Errorf("-%s has no meaning with -scenario", name))
		}
	}
	if o.rounds < 1 {
		err = errors.Join(err, errors.New("-rounds must be 1 or more"))
	}
	if o.rate < 1 || o.rate > mostRate {
		err = errors.Join(err, fmt.Errorf("-rate must be from 1 to %d calls a second", mostRate))
	}
	if set["within"] && (o.scenario != "rolling" || o.within <= 0) {
		err = errors.Join(err, errors.New("-within has a meaning with -scenario rolling alone, and must be above 0"))
	}
	o.doors = strings.Split(doors, ",")
	for _, name := range o.doors {
		if !slices.Contains(doorNames(), name) {
			err = errors.Join(err, fmt.Errorf("-doors: there is no %q; there are %s", name, strings.Join(doorNames(), ", ")))
		}
	}
	return err
}

// given are the names of the flags that the command line has.
func given(fs *flag.FlagSet) map[string]bool {
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	return set
}

// mostRate is what one process can be asked to begin.
const mostRate = 100_000

// scene runs the scenario of the options and prints what came of it.
func scene(ctx context.Context, o options, stdout, stderr io.Writer) error {
	s := scenarios()[o.scenario]
	m := thisMachine(ctx)
	l, err := newLab(o.procs)
	if err != nil {
		return err
	}
	defer l.close()
	fmt.Fprintf(stdout, "Measured %s on %s.\n%s. GOMAXPROCS=%d in every process. %s\n\n`%s`: %s\n\n", m.date, m.hardware, m.software, o.procs, m.busy(), o.command(), s.about)
	return s.run(ctx, l, o, stdout, stderr)
}
