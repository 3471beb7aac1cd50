package gateway

import (
	"net/http"
	"strings"

	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// trace is the W3C trace context of a request. A bad header never stops a call.
type trace struct{ parent, state string }

// parseTrace reads the headers of https://www.w3.org/TR/trace-context/. A bad state
// is dropped, and the parent kept; where there is none a trace begins, so that a call can
// be found in the logs of all that it went through.
func parseTrace(h http.Header) trace {
	parents := h.Values("Traceparent")
	if len(parents) != 1 {
		return trace{parent: tracecontext.New()}
	}
	parent, ok := tracecontext.ParseParent(parents[0])
	if !ok {
		return trace{parent: tracecontext.New()}
	}
	state := strings.Join(h.Values("Tracestate"), ",")
	if !tracecontext.ValidState(state) {
		state = ""
	}
	return trace{parent: parent, state: state}
}

// id is the trace's.
func (t trace) id() string { return t.parent[3:35] }
