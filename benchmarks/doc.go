// Command benchmarks measures a call through Elemental Conduit beside what one
// would use instead: caller, host and plugin as three processes, against NATS
// request/reply through its server, against a dial for each call, and against the
// floor that moving the same bytes over the same two hops costs in Go.
//
//	go run .                    measure and print the tables
//	go run . -write             put them into ../docs/performance.md, too
//	go run . -profile           CPU profiles of caller, host and plugin at 32 B, 64 in flight
//	go run . -scenario kill     what becomes of calls when a worker is killed
//	go run . -scenario rolling  ... when five are restarted one after another
//
// How it measures: closed loop, every system in processes of its own, one window
// after the other with the systems taking turns (A B C D A B C D ...), so that what
// disturbs the machine disturbs all of them. A ratio is the median of the ratios of
// windows that ran side by side, never a ratio of medians. Every reply's first and
// last 8 bytes are checked, every call has a deadline, and CPU is that of all
// processes of a system, the caller's included.
//
// The program is its own caller, NATS server, responder, relay and echo: it starts
// itself with -role. In reading order: main.go (flags), run.go (the turns),
// system.go (what is measured) with conduit.go, nats.go and floor.go, caller.go and
// window.go (what happens in the caller's process), table.go (what comes out).
// The scenarios are apart: scenario.go, cluster.go (the processes), door.go (how
// calls get in), pace.go (the load), kill.go and rolling.go.
package main
