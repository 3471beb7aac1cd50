// Package ops owns the listener for whoever runs the machine: is the process
// alive, does it want work, and what is it doing. It serves nothing of the
// cluster, and nothing here changes the instance.
//
//	/livez          200 while the process answers at all
//	/readyz         200, or 503 with a reason on each line; then what else is to be known
//	/metrics        numbers for Prometheus
//	/debug/pprof/   the Go profiler, to loopback only
//
// It uses a mux of its own: net/http/pprof publishes itself on the default one,
// which therefore no listener of this module may ever serve.
//
// The package imports nothing of this module: what readiness means
// and what is counted it is told.
package ops
