package main

import (
	"context"
	"fmt"
	"time"
)

// system is one way for a call to get to what answers it and back.
type system struct {
	name  string // as -systems has it
	title string // as tables have it
	about string // a sentence for the tables' legend
	// start starts everything but the caller.
	start func(ctx context.Context, l *lab) (fixture, error)
	// dial runs in the caller's process. The deadline of ctx bounds the dialling.
	dial func(ctx context.Context, target string) (load, error)
}

// fixture is a started system without its caller.
type fixture struct {
	target string // what the caller dials
	pids   []int  // the processes that a call goes through
	caller string // the program to call with; "" = this one
	ops    string // URL of the ops listener, if it has one
	dir    string // where its files are, if it has any
}

// load makes calls in the caller's process.
type load interface {
	// keep keeps inFlight calls of size bytes under way and records them in w
	// until w stops, then waits for those that are under way.
	keep(ctx context.Context, size, inFlight int, w *window) error
	Close() error
}

// callTimeout is the deadline of each call, in every system that has deadlines.
const callTimeout = 15 * time.Second

// systems are all that can be measured, the one that others are compared with first.
func systems() []system {
	return []system{
		{
			name: "conduit", title: "conduit", start: startConduit, dial: dialConduit,
			about: "caller → `/cluster/v1` → host → plugin: three processes, one link kept for all calls",
		},
		{
			name: "nats", title: "NATS", start: startNATS, dial: dialNATS,
			about: "request/reply, caller → nats-server → responder: three processes, two connections kept",
		},
		{
			name: "dial", title: "dial per call", start: startConduit, dial: dialPerCall,
			about: "the same host and plugin, a new `/cluster/v1` link for each call",
		},
		{
			name: baseName, title: "base", start: startBase, dial: dialConduit,
			about: "as `conduit`, of the revision in the directory of -base: caller, host and plugin",
		},
		{
			name: "floor", title: "floor", start: startFloor, dial: dialFloor,
			about: "the same bytes over the same two hops (TCP, then a Unix socket) through two Go processes that look at nothing and move up to 256 KiB at once: what no request/reply system reaches",
		},
	}
}

// baseName is the system that another revision is.
const baseName = "conduit-base"

func systemNames() []string {
	var names []string
	for _, s := range systems() {
		names = append(names, s.name)
	}
	return names
}

func systemNamed(name string) (system, error) {
	for _, s := range systems() {
		if s.name == name {
			return s, nil
		}
	}
	return system{}, fmt.Errorf("there is no system %q", name)
}
