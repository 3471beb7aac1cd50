package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	traceParent = "00-" + traceID + "-b7ad6b7169203331-01"
)

// logged returns the lines of an instance's log with a message.
func (i *instance) logged(message string) (list []map[string]any) {
	for line := range strings.Lines(i.output()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["@message"] == message {
			list = append(list, m)
		}
	}
	return list
}

// TestTraceHops: a trace goes with a call through every hop: from the gateway to an
// element, from that to the next instance, and to an element there. All of them name it
// in their logs, and nobody's bad header stops a call.
func TestTraceHops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, front := prepare(t, []string{built.echo}), prepare(t, nil)
	front.name = "front"
	front.drop(built.echo, "front")
	w.launch("--log-calls", "all")
	w.waitReady()
	front.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--discovery-static", w.url, "--log-calls", "all")
	front.waitReady()
	front.until("the worker to be known", func() bool { return front.ask("call", echoAddr, "Upper", `"x"`).code == 0 })

	body := func(message string) string {
		return `{"address":"` + echoAddr + `","method":"Log","request":{"message":"` + message + `"}}`
	}
	ask := func(message string, header map[string]string) (trace string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, front.gateway+"/v1/call/front/echo/conduit.example.Echo/Chain", bytes.NewReader([]byte(body(message))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for name, value := range header {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		// Log returns nothing, of which Chain complains once it has been done.
		if text := readAll(t, res.Body); !strings.Contains(text, `"outcome":"executed"`) {
			t.Fatalf("%s %s", res.Status, text)
		}
		return res.Header.Get("Conduit-Trace-Id")
	}
	// traced waits for a line of a log and checks its trace.
	traced := func(i *instance, message, trace string, with map[string]any) {
		t.Helper()
		var found []map[string]any
		i.until(message, func() bool {
			for _, line := range i.logged(message) {
				match := line["trace_id"] == trace
				for k, v := range with {
					match = match && line[k] == v
				}
				if match {
					found = append(found, line)
				}
			}
			return len(found) > 0
		})
	}

	if got := ask("from afar", map[string]string{"Traceparent": traceParent, "Tracestate": "a=1"}); got != traceID {
		t.Errorf("the answer names the trace %q", got)
	}
	traced(front, "request", traceID, map[string]any{"method": "Chain", "code": "invalid_argument", "status": 400.0})
	traced(front, "call", traceID, map[string]any{"method": "Chain", "deployment": "front", "outcome": "executed"})
	traced(w, "call", traceID, map[string]any{"method": "Log", "code": "ok"})
	traced(w, "from afar", traceID, nil) // what the plugin wrote
	if log := w.ask("logs", "echo", "-o", "json").out; !strings.Contains(log, traceID) {
		t.Errorf("the log of the deployment has no trace: %s", log)
	}

	for name, bad := range map[string]string{"garbage": "x", "zeros": "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "8 KiB": strings.Repeat("a", 8<<10)} {
		trace := ask(name, map[string]string{"Traceparent": bad})
		if len(trace) != len(traceID) || trace == traceID {
			t.Errorf("%s: the trace is %q", name, trace)
		}
		traced(w, name, trace, nil)
	}

	// One who speaks the protocol himself may write what he likes: no element sees it.
	c := transport.NewClient(transport.ClientOptions{Link: link.Options{}})
	defer c.Close()
	to, err := address.Parse(echoAddr)
	if err != nil {
		t.Fatal(err)
	}
	x := c.Peer(w.url).At(to).Invoke(ctx, &conduit.Invocation{
		Method: "Log", ContentType: conduit.ContentJSON, Request: []byte(`{"message":"forged"}`), HasRequest: true, Last: true,
		TraceParent: `00-"},{"x":"`, TraceState: "\n",
	})
	_, _ = x.Recv(ctx)
	x.Cancel(nil)
	w.until("forged", func() bool { return len(w.logged("forged")) == 1 })
	if id, there := w.logged("forged")[0]["trace_id"]; there {
		t.Errorf("the log has the trace %v", id)
	}
}
