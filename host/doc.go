// Package host runs the plugins of one instance and passes calls on to them.
//
// A [Host] scans the deployments directory, runs each plugin binary as a process
// of its own, supervises it, and dispatches: Take finds the element that a call is
// for, checks that the caller may, and splices the call onto the element's link. Who
// calls it is told: how that is known is its owner's. It never decodes a payload, and has no goroutine
// per call.
//
//	scan.go      which files are there; what is wrong with them (examine.go, unsafe.go)
//	hints.go     when to look at them: events of the file system, which prove nothing
//	store.go     copies of binaries by hash: what runs cannot be changed under it
//	element.go   one element and its goroutine; start.go, supervise.go: what that does
//	describe.go  what an element may say of itself
//	reload.go    another process beside the one that serves, and the end of old ones
//	hold.go      calls that wait for a process that cannot run beside another
//	generation.go  one running process and the calls in flight on it
//	table.go     who can be called, as one immutable value; dispatch.go reads it
//	fromplugin.go  the calls that elements make, and on whose behalf
//	units.go     what calls and claims reserve
//	operate.go   what operators do to deployments: whose turn it is, and what came of it
//	deploy.go    a binary comes, goes, and comes back; enabled.go, cordon.go: off, no new units
//	record.go    what is remembered of that over the end of the host
//	look.go      what others may ask before they call: is it here, ready, is there room
//	host.go      Run, Drain, Stop
//
// Other instances are none of its business.
package host
