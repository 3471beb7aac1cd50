package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are what the command line says.
type options struct {
	rounds   int
	window   time.Duration
	warm     time.Duration
	limit    time.Duration
	sizes    []int
	inFlight []int
	systems  []string
	procs    int
	write    bool
	docs     string
	base     string
	profile  bool
	scenario string
	doors    []string
	rate     int
	store    storeSizes
	within   time.Duration // of the rounds of rolling; 0 = no bound
	args     string        // the command line, if it is not the usual one
}

func main() {
	// Children are told to end when the thread that started them does
	// (exec_linux.go), so that thread must live as long as the process.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[0] == "-role" {
		if err := play(args[1], args[2:], stdin, stdout); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", args[1], err)
			return 1
		}
		return 0
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("it took longer than -limit %v", o.limit))
	defer cancel()
	do := bench
	switch {
	case o.scenario != "":
		do = scene
	case o.profile:
		do = profile
	}
	if err := do(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 5, "`windows` of each system in each cell, at least 3; of a scenario, how often (kill: 20, rolling: 3, store: 3)")
	fs.DurationVar(&o.window, "window", 400*time.Millisecond, "how long a window is measured")
	fs.DurationVar(&o.warm, "warm", 150*time.Millisecond, "how long the load runs before each window")
	fs.DurationVar(&o.limit, "limit", 4*time.Minute, "after which all is stopped, whatever it does (kill: 5m, rolling: 10m, store: 30m)")
	fs.IntVar(&o.procs, "procs", runtime.GOMAXPROCS(0), "GOMAXPROCS of every process")
	fs.BoolVar(&o.write, "write", false, "write the tables into the file of -docs, between its markers")
	fs.StringVar(&o.docs, "docs", "../docs/performance.md", "the `file` of -write")
	fs.BoolVar(&o.profile, "profile", false, "instead of measuring, profile caller, host and plugin in the cell of the first of -sizes and the last of -inflight, into *.prof here")
	fs.StringVar(&o.scenario, "scenario", "", "instead of measuring systems, see what happens to the calls of a cluster: `name` is "+strings.Join(scenarioNames(), " or "))
	doors := fs.String("doors", strings.Join(doorNames(), ","), "by what a scenario's calls go in, one after another: the gateway of an external instance, the Go client")
	fs.IntVar(&o.rate, "rate", 2000, "calls per second of the scenario rolling")
	fs.IntVar(&o.store.resources, "resources", 1_000_000, "resources of the scenario store, for memory and opening")
	fs.IntVar(&o.store.paths, "paths", 100_000, "paths of the scenario store's listing")
	fs.DurationVar(&o.within, "within", 0, "after which no further round of the scenario rolling is begun, all -doors together; 0 = all of -rounds")
	sizes := fs.String("sizes", "32,1024,65536,1048576", "payloads in bytes, at least 16")
	inFlight := fs.String("inflight", "1,64", "calls under way at once")
	systems := fs.String("systems", "", "what to measure, of "+strings.Join(systemNames(), ",")+"; ratios are of the first to the others (default: all but "+baseName+"; with -base, conduit,"+baseName+")")
	fs.StringVar(&o.base, "base", "", "a `directory` with a checkout of another revision, which is the system "+baseName)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	err := errors.Join(
		numbers("sizes", *sizes, 2*stamp, &o.sizes),
		numbers("inflight", *inFlight, 1, &o.inFlight),
	)
	switch {
	case *systems != "":
		o.systems = strings.Split(*systems, ",")
	case o.base != "":
		o.systems = []string{"conduit", baseName}
	default:
		o.systems = slices.DeleteFunc(systemNames(), func(name string) bool { return name == baseName })
	}
	if slices.Contains(o.systems, baseName) && o.base == "" {
		err = errors.Join(err, errors.New("-systems: "+baseName+" is what -base has: say where a checkout of it is"))
	}
	if o.base != "" {
		var failed error
		o.base, failed = filepath.Abs(o.base)
		err = errors.Join(err, failed)
	}
	if len(args) > 0 && !slices.Equal(args, []string{"-write"}) {
		o.args = "cd benchmarks && go run . " + strings.Join(args, " ")
	}
	for _, name := range o.systems {
		if !slices.Contains(systemNames(), name) {
			err = errors.Join(err, fmt.Errorf("-systems: there is no %q; there are %s", name, strings.Join(systemNames(), ", ")))
		}
	}
	switch {
	case o.scenario != "":
		err = errors.Join(err, parseScenario(&o, fs, *doors))
	case given(fs)["doors"] || given(fs)["rate"] || given(fs)["within"]:
		for _, name := range []string{"doors", "rate", "within"} {
			if given(fs)[name] {
				err = errors.Join(err, fmt.Errorf("-%s has a meaning only with -scenario", name))
			}
		}
	case o.rounds < 3:
		err = errors.Join(err, errors.New("-rounds: a median of fewer than 3 says nothing"))
	}
	if o.window <= 0 || o.warm <= 0 {
		err = errors.Join(err, errors.New("-window and -warm must be above 0"))
	}
	if fs.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("there are only flags, not %q", fs.Args()))
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return o, err
}

// numbers reads a list such as "1,64".
func numbers(name, text string, least int, into *[]int) error {
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < least {
			return fmt.Errorf("-%s: %q is not a number from %d up", name, one, least)
		}
		*into = append(*into, n)
	}
	return nil
}

// play is the life of a process that this program started from itself: it does its
// part until its standard input ends, which it does when its parent does.
func play(role string, args []string, stdin io.Reader, stdout io.Writer) error {
	part, ok := roles()[role]
	if !ok {
		return errors.New("there is no such role")
	}
	return part(args, stdin, stdout)
}

// roles are the parts that a process of this program can play. The first line that
// a part writes says that it is ready, and where.
func roles() map[string]func(args []string, stdin io.Reader, stdout io.Writer) error {
	return map[string]func([]string, io.Reader, io.Writer) error{
		"caller":         playCaller,
		"line-caller":    playLineCaller,
		"line-server":    playLineServer,
		"grpc-server":    playGRPCServer,
		"nats-server":    playNATSServer,
		"nats-responder": playNATSResponder,
		"floor-relay":    playRelay,
		"floor-echo":     playEcho,
		"store-open":     playOpen(openStoreOf),
		"bbolt-open":     playOpen(openBoltOf),
	}
}
