package gateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestNewRefuses(t *testing.T) {
	locate := newScript().locate
	for _, o := range []Options{
		{},
		{Locate: locate, Origins: []string{"app.example.com"}},
		{Locate: locate, Origins: []string{"https://app.example.com/"}},
		{Locate: locate, Origins: []string{"null"}},
		{Locate: locate, Hosts: []string{""}},
		{Locate: locate, Hosts: []string{"https://a.example"}},
		{Locate: locate, Hosts: []string{"*.example"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v) took it", o)
		}
	}
}

func TestUnknownPaths(t *testing.T) {
	g := answering(t, Options{}, `1`)
	for _, path := range []string{
		"/", "/v1", "/v1/call", "/v1/call/", "/v1/call/d", "/v1/call/d/e/s", "/v1/call/d/e/s/m/", "/v1/call/d/e/s/m/x",
		"//v1/call/d/e/s/m", "/V1/CALL/d/e/s/m", "/v1//call/d/e/s/m", "/v1/x/../call/d/e/s/m", "/debug/pprof/", "/metrics",
		"/v1%2fcall/d/e/s/m", "/v1/call%2Fd/e/s/m",
	} {
		r := post("/", "")
		r.URL.Path, r.URL.RawPath = path, path
		r.RequestURI = path
		p := wantProblem(t, do(g, r), http.StatusNotFound, reasonPath)
		if strings.Contains(p.Detail, "go1") || strings.Contains(p.Detail, path) && len(path) > 1 && path != "/v1/call" && path != "/v1/call/" {
			t.Errorf("%s: the detail is %q", path, p.Detail)
		}
	}
}

func TestMethods(t *testing.T) {
	g := answering(t, Options{}, `1`)
	for _, m := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		r := httptest.NewRequest(m, callPath, nil)
		res := do(g, r)
		wantProblem(t, res, http.StatusMethodNotAllowed, reasonHTTPMethod)
		if got := res.Header.Get("Allow"); got != "POST" {
			t.Errorf("%s: Allow: %q", m, got)
		}
	}
}

func TestHosts(t *testing.T) {
	on := func(ip string) context.Context {
		return context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.ParseIP(ip), Port: 7480}))
	}
	for _, tt := range []struct {
		listed  []string
		local   string
		host    string
		allowed bool
	}{
		{nil, "127.0.0.1", "127.0.0.1:7480", true},
		{nil, "127.0.0.1", "localhost:7480", true},
		{nil, "127.0.0.1", "LOCALHOST", true},
		{nil, "::1", "[::1]:7480", true},
		{nil, "::1", "[::1]", true},
		{nil, "127.0.0.1", "evil.example", false},
		{nil, "127.0.0.1", "127.0.0.1.evil.example:7480", false},
		{nil, "127.0.0.1", "localhost.evil.example", false},
		{nil, "127.0.0.1", "", false},
		{nil, "192.0.2.1", "any.example", true},
		{[]string{"api.example"}, "127.0.0.1", "api.example", true},
		{[]string{"api.example"}, "192.0.2.1", "API.example:8443", true},
		{[]string{"api.example."}, "192.0.2.1", "api.example.", true},
		{[]string{"api.example"}, "192.0.2.1", "evil.example", false},
		{[]string{"api.example"}, "127.0.0.1", "localhost", false},
		{[]string{"api.example:8443"}, "192.0.2.1", "api.example:8443", true},
		{[]string{"api.example:8443"}, "192.0.2.1", "api.example:9", false},
		{[]string{"2001:db8::1"}, "192.0.2.1", "[2001:db8::1]:80", true},
	} {
		g := answering(t, Options{Hosts: tt.listed}, `1`)
		r := post(callPath, "").WithContext(on(tt.local))
		r.Host = tt.host
		res := do(g, r)
		if tt.allowed && res.StatusCode != http.StatusOK {
			t.Errorf("%v on %s: Host %q: %s", tt.listed, tt.local, tt.host, res.Status)
		}
		if !tt.allowed {
			wantProblem(t, res, http.StatusMisdirectedRequest, reasonHost)
		}
	}
}

func TestOrigins(t *testing.T) {
	for _, tt := range []struct {
		listed  []string
		headers []string
		allowed bool
	}{
		{nil, nil, true},
		{nil, []string{"Origin", "https://app.example"}, false},
		{nil, []string{"Origin", "http://example.com"}, false}, // the same as the Host is no better: names can be pointed here
		{nil, []string{"Origin", "null"}, false},
		{nil, []string{"Sec-Fetch-Site", "cross-site"}, false},
		{nil, []string{"Sec-Fetch-Site", "same-site"}, false},
		{nil, []string{"Sec-Fetch-Site", "none"}, true},
		{[]string{"https://App.example:443"}, []string{"Origin", "https://app.example"}, true},
		{[]string{"https://app.example"}, []string{"Origin", "https://app.example:8443"}, false},
		{[]string{"https://app.example"}, []string{"Origin", "http://app.example"}, false},
		{[]string{"https://app.example"}, []string{"Origin", "https://app.example.evil.example"}, false},
		{[]string{"https://app.example"}, nil, true},
		{[]string{"*"}, []string{"Origin", "https://any.example"}, true},
	} {
		g := answering(t, Options{Origins: tt.listed}, `1`)
		res := do(g, post(callPath, "", tt.headers...))
		origin := ""
		if len(tt.headers) > 0 && tt.headers[0] == "Origin" {
			origin = tt.headers[1]
		}
		if !tt.allowed {
			p := wantProblem(t, res, http.StatusForbidden, reasonOrigin)
			if origin != "" && strings.Contains(p.Detail, origin) || res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%v, %v: %+v", tt.listed, tt.headers, res.Header)
			}
			continue
		}
		if res.StatusCode != http.StatusOK || res.Header.Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("%v, %v: %s %v", tt.listed, tt.headers, res.Status, res.Header)
		}
		if vary := res.Header.Get("Vary"); (vary == "Origin") != (len(tt.listed) > 0) {
			t.Errorf("%v: Vary: %q", tt.listed, vary)
		}
	}
}

func TestTwoOrigins(t *testing.T) {
	r := post(callPath, "")
	r.Header["Origin"] = []string{"https://app.example", "https://evil.example"}
	wantProblem(t, do(answering(t, Options{Origins: []string{"https://app.example"}}, `1`), r), http.StatusForbidden, reasonOrigin)
}

func TestPreflight(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate, Origins: []string{"https://app.example"}})
	ask := func(origin string) answer {
		r := httptest.NewRequest(http.MethodOptions, callPath, nil)
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", "POST")
		r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		return do(g, r)
	}
	res := ask("https://app.example")
	h := res.Header
	if res.StatusCode != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Access-Control-Allow-Methods") != "POST" ||
		!strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%s %v", res.Status, h)
	}
	wantProblem(t, ask("https://evil.example"), http.StatusForbidden, reasonOrigin)
	if s.count() != 0 {
		t.Error("a preflight made a call")
	}
}
