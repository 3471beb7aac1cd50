package main

import (
	"log/slog"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/gateway"
	"github.com/elemental-conduit/conduit/host"
)

// The log of calls (log.calls): a line for each call to an element of this instance and
// each request to its gateway, when it is over. It has names and no payload.

// wantsCalls reports whether calls that ended with a code are logged.
func (i *instance) wantsCalls() func(code conduit.Code) bool {
	switch i.c.String("log.calls") {
	case "all":
		return func(conduit.Code) bool { return true }
	case "failed":
		return func(code conduit.Code) bool { return code != 0 }
	default:
		return nil
	}
}

// callLog returns what logs calls to elements; nil if none is.
func (i *instance) callLog() func(host.CallRecord) {
	wants := i.wantsCalls()
	if wants == nil {
		return nil
	}
	log := i.log.Named("calls")
	return func(r host.CallRecord) {
		if !wants(r.Code) {
			return
		}
		args := []any{
			"deployment", utf8Text(r.Deployment), "element", utf8Text(r.Element), "service", utf8Text(r.Service), "method", utf8Text(r.Method),
			"code", codeText(r.Code), "outcome", r.Outcome.String(), "took_ms", milliseconds(r.Took),
		}
		for _, more := range [][2]string{{"reason", r.Reason}, {"user", r.User}, {"peer", r.Peer}, {"trace_id", r.TraceID}} {
			if more[1] != "" {
				args = append(args, more[0], more[1])
			}
		}
		log.Info("call", args...)
	}
}

// requestLog returns what logs requests to the gateway; nil if none is.
func (i *instance) requestLog() func(gateway.Observation) {
	wants := i.wantsCalls()
	if wants == nil {
		return nil
	}
	log := slogTo(i.log.Named("calls"))
	return func(o gateway.Observation) {
		var code conduit.Code
		if o.Err != nil {
			code = o.Err.Code
		}
		if !wants(code) {
			return
		}
		args := []any{
			slog.String("path", o.Path), slog.String("deployment", o.Deployment), slog.String("service", o.Service), slog.String("method", o.Method),
			slog.Int("status", o.Status), slog.String("code", codeText(code)), slog.Int("results", o.Results), slog.Int64("received", o.Received), slog.Int64("sent", o.Sent),
			slog.Float64("took_ms", milliseconds(o.Duration)), slog.String("trace_id", o.TraceID),
		}
		if o.Err != nil {
			args = append(args, slog.String("reason", o.Err.Reason), slog.String("outcome", o.Err.Outcome.String()))
		}
		log.Info("request", args...)
	}
}

// codeText is a call's code as metrics name it.
func codeText(code conduit.Code) string {
	if code == 0 {
		return "ok"
	}
	return code.String()
}

// milliseconds with three places.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
