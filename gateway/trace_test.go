package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

const goodParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceContext(t *testing.T) {
	members := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, "k"+strings.Repeat("a", i)+"=v")
		}
		return strings.Join(list, ",")
	}
	seen := map[string]bool{}
	for _, tt := range []struct {
		name, parent, state   string
		wantParent, wantState string
	}{
		{"none", "", "", "", ""},
		{"good", goodParent, "a=1,b@c=2", goodParent, "a=1,b@c=2"},
		{"state alone", "", "a=1", "", ""},
		{"x", "x", "a=1", "", ""},
		{"dashes", strings.Repeat("-", 55), "", "", ""},
		{"8 KiB", strings.Repeat("0", 8<<10), "", "", ""},
		{"no trace id", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "", "", ""},
		{"no span id", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "", "", ""},
		{"upper case", strings.ToUpper(goodParent), "", "", ""},
		{"version ff", "ff" + goodParent[2:], "", "", ""},
		{"longer", goodParent + "-x", "", "", ""},
		{"later version", "01" + goodParent[2:] + "-more", "a=1", goodParent, "a=1"},
		{"later version, run on", "01" + goodParent[2:] + "more", "", "", ""},
		{"40 members", goodParent, members(40), goodParent, ""},
		{"32 members", goodParent, members(32), goodParent, members(32)},
		{"twice", goodParent, "a=1,a=2", goodParent, ""},
		{"upper key", goodParent, "A=1", goodParent, ""},
		{"no value", goodParent, "a", goodParent, ""},
		{"equals", goodParent, "a=b=c", goodParent, ""},
		{"too long", goodParent, "a=" + strings.Repeat("x", 300), goodParent, ""},
		{"empty members", goodParent, "a=1, ,b=2", goodParent, "a=1, ,b=2"},
	} {
		var in conduit.Invocation
		res := do(capture(t, Options{}, &in), post(callPath, "", "Traceparent", tt.parent, "Tracestate", tt.state))
		if tt.wantParent == "" { // a trace of its own, and none of what was sent
			if id := tracecontext.ID([]byte(in.TraceParent)); id == "" || seen[id] || strings.Contains(tt.parent, id) {
				t.Errorf("%s: the parent is %q", tt.name, in.TraceParent)
			} else {
				seen[id], tt.wantParent = true, in.TraceParent
			}
		}
		if res.StatusCode != http.StatusOK || in.TraceParent != tt.wantParent || in.TraceState != tt.wantState {
			t.Errorf("%s: %s, parent %q, state %q", tt.name, res.Status, in.TraceParent, in.TraceState)
		}
		if id := res.Header.Get("Conduit-Trace-Id"); id != tracecontext.ID([]byte(in.TraceParent)) {
			t.Errorf("%s: the answer names the trace %q", tt.name, id)
		}
	}
	h := http.Header{"Traceparent": {goodParent, goodParent}}
	if got := parseTrace(h); got.parent == goodParent || tracecontext.ID([]byte(got.parent)) == "" {
		t.Errorf("of two parents: %+v", got)
	}
	h = http.Header{"Traceparent": {goodParent}, "Tracestate": {"a=1", "b=2"}}
	if got := parseTrace(h); got.state != "a=1,b=2" || got.id() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("of two states: %+v", got)
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(goodParent, "a=1,b@c=2")
	f.Add("01"+goodParent[2:]+"-x", "a/b*c=~")
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := parseTrace(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
		if tracecontext.ID([]byte(got.parent)) == "" || len(got.state) > tracecontext.MaxState {
			t.Fatalf("%q, %q: %+v", parent, state, got)
		}
		if again := parseTrace(http.Header{"Traceparent": {got.parent}, "Tracestate": {got.state}}); again != got {
			t.Fatalf("%+v again is %+v", got, again)
		}
	})
}
