package ops

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ask(h http.Handler, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:7490"+path, nil)
	r.RemoteAddr = "127.0.0.1:50000"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestReady(t *testing.T) {
	var reasons, notes []string
	h := handler(func() []string { return reasons }, func() []string { return notes }, nil)
	if w := ask(h, "/readyz", nil); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("ready: %d %q", w.Code, w.Body)
	}
	reasons = []string{"draining", "element echo/echo is starting"}
	if w := ask(h, "/readyz", nil); w.Code != 503 || w.Body.String() != "draining\nelement echo/echo is starting\n" {
		t.Errorf("not ready: %d %q", w.Code, w.Body)
	}
	w := ask(h, "/readyz", func(r *http.Request) { r.Header.Set("Accept", "application/json") })
	if w.Code != 503 || w.Body.String() != `{"ready":false,"reasons":["draining","element echo/echo is starting"]}`+"\n" {
		t.Errorf("not ready, as JSON: %d %q", w.Code, w.Body)
	}
	reasons, notes = nil, []string{"given up: x", "given up: y"}
	if w := ask(h, "/readyz", nil); w.Code != 200 || w.Body.String() != "ok\ngiven up: x\ngiven up: y\n" {
		t.Errorf("ready, with notes: %d %q", w.Code, w.Body)
	}
	w = ask(h, "/readyz", func(r *http.Request) { r.Header.Set("Accept", "application/json") })
	if w.Code != 200 || w.Body.String() != `{"ready":true,"notes":["given up: x","given up: y"]}`+"\n" {
		t.Errorf("ready, with notes, as JSON: %d %q", w.Code, w.Body)
	}
	if w := ask(h, "/livez", nil); w.Code != 200 {
		t.Errorf("live whatever the readiness: %d", w.Code)
	}
}

// WEB-03: nothing but what is meant to be there, and the profiler to loopback.
func TestPaths(t *testing.T) {
	h := handler(func() []string { return nil }, nil, nil)
	for path, want := range map[string]int{
		"/debug/pprof/":      200,
		"/debug/pprof/heap":  200,
		"/debug/vars":        404,
		"/":                  404,
		"/metrics":           404, // nobody counts, so there is no page
		"/admin":             404,
		"/cluster/v1":        404,
		"/LIVEZ":             404,
		"//livez":            404, // nothing is cleaned up, nor redirected
		"/x/../livez":        404,
		"/debug/pprof/../..": 404,
	} {
		w := ask(h, path, nil)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
		if want == 404 && strings.TrimSpace(w.Body.String()) != "404 page not found" {
			t.Errorf("%s says more than that it is not there: %q", path, w.Body)
		}
	}
	if w := ask(h, "/livez", func(r *http.Request) { r.Method = http.MethodPost }); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// The page of metrics is for all who reach the listener, as a scraper is on
// another machine, and for reading alone.
func TestMetrics(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "conduit_build_info 1\n") })
	h := handler(func() []string { return []string{"draining"} }, nil, page)
	w := ask(h, "/metrics", func(r *http.Request) { r.RemoteAddr, r.Host = "192.0.2.7:50000", "worker-1:7490" })
	if w.Code != 200 || w.Body.String() != "conduit_build_info 1\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: %q", got)
	}
	for path, want := range map[string]int{"/metrics/": 404, "/metrics/x": 404} {
		if w := ask(h, path, nil); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	if w := ask(h, "/metrics", func(r *http.Request) { r.Method = http.MethodPost }); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestProfilerToLoopbackOnly(t *testing.T) {
	h := handler(func() []string { return nil }, nil, nil)
	for name, tc := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"IPv6":            {func(r *http.Request) { r.RemoteAddr, r.Host = "[::1]:50000", "[::1]:7490" }, 200},
		"mapped IPv4":     {func(r *http.Request) { r.RemoteAddr = "[::ffff:127.0.0.1]:50000" }, 200},
		"by name":         {func(r *http.Request) { r.Host = "localhost" }, 200},
		"from outside":    {func(r *http.Request) { r.RemoteAddr = "192.0.2.7:50000" }, 404},
		"another Host":    {func(r *http.Request) { r.Host = "rebound.example:7490" }, 404},
		"a web page":      {func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:8000") }, 404},
		"through a proxy": {func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.7") }, 404},
	} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
			if w := ask(h, path, tc.change); w.Code != tc.want {
				t.Errorf("%s, %s: %d, want %d", name, path, w.Code, tc.want)
			}
		}
		if w := ask(h, "/livez", tc.change); w.Code != 200 {
			t.Errorf("%s: /livez is for all: %d", name, w.Code)
		}
	}
}

func TestServeAndClose(t *testing.T) {
	var draining atomic.Bool
	s := New(Options{Unready: func() []string {
		if draining.Load() {
			return []string{"draining"}
		}
		return nil
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func() int {
		t.Helper()
		r, err := client.Get("http://" + l.Addr().String() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r.StatusCode
	}
	if got := get(); got != 200 {
		t.Errorf("got %d", got)
	}
	draining.Store(true)
	if got := get(); got != 503 {
		t.Errorf("got %d while draining", got)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
