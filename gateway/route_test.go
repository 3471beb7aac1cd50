package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

func TestRoutes(t *testing.T) {
	for _, tt := range []struct{ path, addr, method string }{
		{"/v1/call/greeter/greeter/example.Greeter/Greet", "*://greeter/greeter/example.Greeter", "Greet"},
		{"/v1/call/d/e%5B3%5D/s.S%23name/Do", "*://d/e[3]/s.S#name", "Do"},
		{"/v1/call/d/e[3]/s.S%23name/Do", "*://d/e[3]/s.S#name", "Do"},
		{"/v1/call/*/a%20b/s/Do", "*://*/a b/s", "Do"},
		{"/v1/call/%2A/e/s/%44o", "*://*/e/s", "Do"},
		{"/v1/call/d/100%2525/s/Do", "*://d/100%25/s", "Do"}, // once, not twice
		{"/v1/call/d/a+b/s/Do", "*://d/a+b/s", "Do"},
		{"/v1/call/d/e/s/Do?instance=" + testInstance, testInstance + "://d/e/s", "Do"},
		{"/v1/call/d/e/s/Do?instance=" + strings.ToUpper(testInstance), testInstance + "://d/e/s", "Do"},
		{"/v1/call/d/e/s/Do?instance=*", "*://d/e/s", "Do"},
	} {
		var got, method string
		g := newGateway(t, Options{Locate: func(addr string) conduit.Invoker {
			got = addr
			return invokerFunc(func(in *conduit.Invocation) []any { method = in.Method; return nil })
		}})
		if res := do(g, post(tt.path, "")); res.StatusCode != http.StatusNoContent || got != tt.addr || method != tt.method {
			t.Errorf("%s: %s, calls %q %q", tt.path, res.Status, got, method)
		}
	}
}

func TestBadRoutes(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate})
	for path, reason := range map[string]string{
		"/v1/call//e/s/m":                                  conduit.ReasonBadAddress,
		"/v1/call/d/e/s/":                                  conduit.ReasonBadAddress,
		"/v1/call/../e/s/m":                                conduit.ReasonBadAddress,
		"/v1/call/d/e%2Ff/s/m":                             conduit.ReasonBadAddress,
		"/v1/call/d%2Fe/s/m/x":                             conduit.ReasonBadAddress,
		"/v1/call/d/e%00/s/m":                              conduit.ReasonBadAddress,
		"/v1/call/d/%ff/s/m":                               conduit.ReasonBadAddress,
		"/v1/call/d/e[x]/s/m":                              conduit.ReasonBadAddress,
		"/v1/call/d/e/s%23a%23b/m":                         conduit.ReasonBadAddress,
		"/v1/call/d/e/s/m%20":                              conduit.ReasonBadAddress,
		"/v1/call/d/e/s/1m":                                conduit.ReasonBadAddress,
		"/v1/call/d/e/s/" + strings.Repeat("m", 129):       conduit.ReasonBadAddress,
		"/v1/call/d/" + strings.Repeat("e", 2000) + "/s/m": conduit.ReasonBadAddress,
		"/v1/call/d/e/s/m?instance=x":                      conduit.ReasonBadAddress,
		"/v1/call/d/e/s/m?instance=":                       conduit.ReasonBadAddress,
		"/v1/call/d/e/s/m?instance=*://x/y":                conduit.ReasonBadAddress,
		"/v1/call/d/e/s/m?instance=*&instance=*":           reasonBadRequest,
		"/v1/call/d/e/s/m?instnace=*":                      reasonBadRequest,
		"/v1/call/d/e/s/m?parts=all":                       reasonBadRequest,
		"/v1/call/d/e/s/m?a;b":                             reasonBadRequest,
		"/v1/call/d/e/s/m?a=%zz":                           reasonBadRequest,
	} {
		wantProblem(t, do(g, post(path, "")), http.StatusBadRequest, reason)
	}
	if s.count() != 0 {
		t.Errorf("%d calls were made", s.count())
	}
}

func TestNamesNeverBecomeMarkup(t *testing.T) {
	g := newGateway(t, Options{Locate: func(string) conduit.Invoker { return nil }})
	for _, name := range []string{`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, `<script>`} {
		for _, path := range []string{"/v1/call/" + url.PathEscape(name) + "/e/s/m", "/v1/call/d/e/s/" + url.PathEscape(name)} {
			res := do(g, post(path, ""))
			body := bodyOf(t, res)
			if res.StatusCode/100 != 4 || strings.ContainsAny(body, "<>") || res.Header.Get("Content-Type") != typeProblem ||
				res.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(res.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s: %s %v %s", path, res.Status, res.Header, body)
			}
		}
	}
}

func TestTimeoutHeader(t *testing.T) {
	for value, want := range map[string]time.Duration{"1500ms": 1500 * time.Millisecond, "2h": 2 * time.Hour, "1m30s": 90 * time.Second} {
		if got, f := timeoutOf(http.Header{headerTimeout: {value}}); f != nil || got != want {
			t.Errorf("%q: %v, %v", value, got, f)
		}
	}
	g := answering(t, Options{}, `1`)
	for _, value := range []string{"5", "0s", "-1s", "soon", "1500 ms", "9999999h9999999h"} {
		wantProblem(t, do(g, post(callPath, "", headerTimeout, value)), http.StatusBadRequest, reasonBadRequest)
	}
}

// FuzzRoute: what is taken is what an address and a method can be, and there is one
// meaning to each path.
func FuzzRoute(f *testing.F) {
	for _, s := range []string{"d/e/s/m", "d/e%5B0%5D/s%23n/M", "*/e/s/m", "../x/y/z", "%2e/e/s/m", "d/e/s", "%", "d/%25%32%46/s/m", "a/b/c/d?e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		r, fault := parseRoute(rest)
		if fault != nil {
			if !r.addr.IsZero() || fault.err.Message == "" || fault.status/100 != 4 {
				t.Fatalf("%q: %+v, %+v", rest, r, fault)
			}
			_ = line(fault.problem())
			return
		}
		if again, err := address.Parse(r.addr.String()); err != nil || again != r.addr {
			t.Fatalf("%q: address %q: %v", rest, r.addr, err)
		}
		_, names, _ := strings.Cut(r.addr.String(), "://")
		parts := append(strings.Split(names, "/"), r.method)
		for i := range parts {
			parts[i] = url.PathEscape(parts[i])
		}
		if again, fault := parseRoute(strings.Join(parts, "/")); fault != nil || !again.addr.Equal(r.addr) || again.method != r.method {
			t.Fatalf("%q: %+v again is %+v, %+v", rest, r, again, fault)
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "instance=*", "instance=" + testInstance, "parts=1", "a=b&c", "%", "instance=*://a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := route{addr: address.MustParse("*://d/e/s"), method: "m"}
		if fault := r.readQuery(raw); fault == nil && (r.addr.Element() != "e" || r.addr.DeploymentText() != "d" || r.addr.Service().String() != "s") {
			t.Fatalf("%q changed the address to %q", raw, r.addr)
		}
	})
}
