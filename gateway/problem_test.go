package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// statuses is the map, once more: whoever changes it must do so twice, and in
// docs/gateway.md.
var statuses = map[conduit.Code]int{
	conduit.Canceled:           499,
	conduit.Unknown:            500,
	conduit.InvalidArgument:    400,
	conduit.DeadlineExceeded:   504,
	conduit.NotFound:           404,
	conduit.AlreadyExists:      409,
	conduit.PermissionDenied:   403,
	conduit.ResourceExhausted:  429,
	conduit.FailedPrecondition: 400,
	conduit.Aborted:            409,
	conduit.OutOfRange:         400,
	conduit.Unimplemented:      501,
	conduit.Internal:           500,
	conduit.Unavailable:        503,
	conduit.DataLoss:           500,
	conduit.Unauthenticated:    401,
}

func TestStatusOfEachCode(t *testing.T) {
	page := document(t)
	for code := conduit.Canceled; code <= conduit.Unauthenticated; code++ {
		for _, outcome := range []conduit.Outcome{conduit.OutcomeUnknown, conduit.NotSent, conduit.Refused, conduit.Executed} {
			e := conduit.Errorf(code, "some_reason", outcome, "text")
			p := wantProblem(t, do(answering(t, Options{}, e), post(callPath, "")), statuses[code], "some_reason")
			if p.Code != code.String() || p.Outcome != outcome || p.Detail != "text" {
				t.Errorf("%v, %v: %+v", code, outcome, p)
			}
		}
		// The row has the anchor that a problem's type names.
		row := fmt.Sprintf(`(?m)^\| <a id="%s"></a>.%s. \| %d \|`, code, code, statuses[code])
		if !regexp.MustCompile(row).MatchString(page) {
			t.Errorf("docs/gateway.md has no row %s", row)
		}
	}
	for _, e := range []*conduit.Error{{}, {Code: 99}} { // of a peer that is newer, or broken
		p := wantProblem(t, do(answering(t, Options{}, e), post(callPath, "")), 500, "")
		if p.Code != "unknown" {
			t.Errorf("%+v", p)
		}
	}
}

func TestStatusOfReasons(t *testing.T) {
	for _, tt := range []struct {
		code   conduit.Code
		reason string
		want   int
	}{
		{conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, 413},
		{conduit.ResourceExhausted, conduit.ReasonOverloaded, 503},
		{conduit.ResourceExhausted, conduit.ReasonNoCapacity, 429},
		{conduit.InvalidArgument, conduit.ReasonPayloadTooLarge, 400},
		{conduit.Internal, conduit.ReasonOverloaded, 500},
	} {
		if got := Status(conduit.Errorf(tt.code, tt.reason, conduit.Refused, "")); got != tt.want {
			t.Errorf("%v, %s: %d; want %d", tt.code, tt.reason, got, tt.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		code      conduit.Code
		outcome   conduit.Outcome
		retryable bool
		wait      time.Duration
		want      string
	}{
		{conduit.Unavailable, conduit.NotSent, true, 0, "1"},
		{conduit.Unavailable, conduit.Refused, false, 0, "1"},
		{conduit.Unavailable, conduit.Refused, true, 2500 * time.Millisecond, "3"},
		{conduit.Unavailable, conduit.OutcomeUnknown, true, 0, ""}, // it may have run
		{conduit.Unavailable, conduit.OutcomeUnknown, true, time.Hour, ""},
		{conduit.Unavailable, conduit.Executed, false, 0, ""},
		{conduit.Unavailable, conduit.Executed, false, 4 * time.Second, "4"}, // the element asks for it
		{conduit.ResourceExhausted, conduit.Refused, true, 0, "1"},
		{conduit.ResourceExhausted, conduit.Refused, false, 0, ""},
		{conduit.ResourceExhausted, conduit.Executed, true, 0, ""},
		{conduit.NotFound, conduit.Refused, true, 0, ""},
	} {
		e := &conduit.Error{Code: tt.code, Reason: "r", Outcome: tt.outcome, Retryable: tt.retryable, RetryAfter: tt.wait}
		res := do(answering(t, Options{}, e), post(callPath, ""))
		p := wantProblem(t, res, statuses[tt.code], "r")
		if got := res.Header.Get("Retry-After"); got != tt.want || p.Retryable != tt.retryable || (p.RetryAfter != "") != (tt.wait > 0) {
			t.Errorf("%+v: Retry-After %q, %+v", tt, got, p)
		}
	}
}

func TestProblemSaysWhatTheErrorSays(t *testing.T) {
	e := &conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Outcome: conduit.Refused, Retryable: true, RetryAfter: 1500 * time.Millisecond,
		Message: "it drains", Op: "cluster.invoke", Peer: testInstance, Address: "*://d/<script>/s", Method: "Do", Details: map[string]string{"limit": "3"},
		Err: errors.New("of no concern to others"),
	}
	res := do(answering(t, Options{}, e), post("/v1/call/d/%3Cscript%3E/s/Do", ""))
	body := bodyOf(t, res)
	want := `{"type":"` + errorPage + `unavailable","title":"Unavailable","status":503,"detail":"it drains","code":"unavailable","reason":"draining","outcome":"refused",` +
		`"retryable":true,"retry_after":"1.5s","peer":"` + testInstance + `","address":"*://d/\u003cscript\u003e/s","method":"Do","details":{"limit":"3"}}` + "\n"
	if body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
	var p Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil || p.Address != e.Address {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestReasonsAreDocumented: each reason of the gateway's own is on its page.
func TestReasonsAreDocumented(t *testing.T) {
	page := document(t)
	for _, reason := range []string{reasonBadRequest, reasonHost, reasonHTTPMethod, reasonAccept, reasonOrigin, reasonPath, reasonMediaType} {
		if !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("docs/gateway.md does not list %s", reason)
		}
	}
	for _, header := range []string{headerTimeout, headerContentType} {
		if !strings.Contains(page, header) {
			t.Errorf("docs/gateway.md does not mention %s", header)
		}
	}
}

func document(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestObserve(t *testing.T) {
	var seen []Observation
	o := Options{Observe: func(o Observation) { seen = append(seen, o) }}
	last := func() Observation {
		t.Helper()
		if len(seen) != 1 {
			t.Fatalf("%d observations of one request", len(seen))
		}
		o := seen[0]
		seen = nil
		if o.Duration < 0 {
			t.Errorf("it took %v", o.Duration)
		}
		if tracecontext.ID([]byte("00-"+o.TraceID+"-b7ad6b7169203331-01")) == "" {
			t.Errorf("the trace is %q", o.TraceID)
		}
		o.Duration, o.TraceID = 0, ""
		return o
	}

	do(answering(t, o, `1`, `2`), post("/v1/call/d/e/s.S%23n/Do", `{}`))
	if got, want := last(), (Observation{Path: "/v1/call/d/e/s.S%23n/Do", Deployment: "d", Service: "s.S#n", Method: "Do", Status: 200, Results: 2, Sent: 4, Received: 2}); got != want {
		t.Errorf("a stream: %+v; want %+v", got, want)
	}
	e := conduit.Errorf(conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused, "x")
	do(answering(t, o, e), post(callPath, ""))
	if got := last(); got.Status != http.StatusNotFound || got.Err == nil || got.Err.Reason != conduit.ReasonMethodNotFound || got.Method != "Do" {
		t.Errorf("an error: %+v", got)
	}
	do(answering(t, o, `1`, `2`, e), post(callPath, ""))
	if got := last(); got.Status != http.StatusOK || got.Err == nil || got.Err.Code != conduit.NotFound || got.Results != 2 {
		t.Errorf("a late error: %+v", got)
	}
	// What never was a call has no names, whatever stood in the path.
	for _, path := range []string{"/x", "/v1/call/.d/e/s/m", "/v1/call/d/e/s/m%20"} {
		do(answering(t, o), post(path, ""))
		if got := last(); got.Deployment != "" || got.Service != "" || got.Method != "" || got.Err == nil {
			t.Errorf("%s: %+v", path, got)
		}
	}
}
