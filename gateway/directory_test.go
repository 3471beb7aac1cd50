package gateway

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// shelf is a Directory that a test fills.
type shelf struct {
	list   func(ctx context.Context, as conduit.AsWhom, what string, cluster bool) (any, error)
	events func(ctx context.Context, send func(Event) error) error
}

func (s shelf) List(ctx context.Context, as conduit.AsWhom, what string, cluster bool) (any, error) {
	return s.list(ctx, as, what, cluster)
}

func (s shelf) Events(ctx context.Context, _ conduit.AsWhom, send func(Event) error) error {
	return s.events(ctx, send)
}

func (shelf) Methods(context.Context, conduit.AsWhom) ([]Method, error) { return nil, nil }

func get(path string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func TestLists(t *testing.T) {
	type asked struct {
		what    string
		cluster bool
		session string
	}
	var got asked
	o := Options{
		Authenticate: func(r *http.Request) (conduit.AsWhom, error) {
			if r.Header.Get("Authorization") == "bad" {
				return conduit.AsWhom{}, conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused, "no")
			}
			return conduit.AsWhom{Session: r.Header.Get("Authorization")}, nil
		},
		Directory: shelf{list: func(_ context.Context, as conduit.AsWhom, what string, cluster bool) (any, error) {
			got = asked{what, cluster, as.Session}
			switch what {
			case "links":
				return nil, conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused, "not you")
			case "services":
				return nil, errors.New("the secret is hunter2")
			}
			return []map[string]string{{"name": "<b>"}}, nil
		}},
	}
	g := answering(t, o, `1`)
	for _, tt := range []struct {
		path string
		want asked
	}{
		{"/v1/instances", asked{"instances", false, "s"}},
		{"/v1/deployments", asked{"deployments", false, "s"}},
		{"/v1/elements?cluster=1", asked{"elements", true, "s"}},
		{"/v1/methods?cluster=0", asked{"methods", false, "s"}},
	} {
		res := do(g, get(tt.path, "Authorization", "s", "Accept", "application/*"))
		if body := bodyOf(t, res); res.StatusCode != http.StatusOK || body != `[{"name":"\u003cb\u003e"}]`+"\n" || got != tt.want ||
			res.Header.Get("Content-Type") != conduit.ContentJSON || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s %q %v, asked %+v", tt.path, res.Status, body, res.Header, got)
		}
	}
	r := get("/v1/instances")
	r.Method = http.MethodHead
	if res := do(g, r); res.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %s", res.Status)
	}
	got = asked{}
	wantProblem(t, do(g, get("/v1/links")), http.StatusForbidden, conduit.ReasonLevelTooLow)
	if p := wantProblem(t, do(g, get("/v1/services")), http.StatusInternalServerError, conduit.ReasonInternal); strings.Contains(p.Detail, "hunter2") {
		t.Errorf("an inner error is shown: %s", p.Detail)
	}
	got = asked{}
	wantProblem(t, do(g, get("/v1/instances", "Authorization", "bad")), http.StatusUnauthorized, conduit.ReasonUnauthenticated)
	wantProblem(t, do(g, get("/v1/instances", "Accept", "text/html")), http.StatusNotAcceptable, reasonAccept)
	wantProblem(t, do(g, get("/v1/events", "Accept", "application/json")), http.StatusNotAcceptable, reasonAccept)
	wantProblem(t, do(g, get("/v1/instances", "Origin", "https://evil.example")), http.StatusForbidden, reasonOrigin)
	for _, query := range []string{"cluster=1", "x=1", "%zz", "cluster"} {
		wantProblem(t, do(g, get("/v1/instances?"+query)), http.StatusBadRequest, reasonBadRequest)
	}
	for _, query := range []string{"cluster=2", "cluster=", "cluster=1&cluster=1", "Cluster=1"} {
		wantProblem(t, do(g, get("/v1/methods?"+query)), http.StatusBadRequest, reasonBadRequest)
	}
	for _, path := range []string{"/v1/", "/v1/secrets", "/v1/Instances", "/v1/instances/", "/v1/%69nstances", "/v1/../v1/instances"} {
		wantProblem(t, do(g, get(path)), http.StatusNotFound, reasonPath)
	}
	if got != (asked{}) {
		t.Errorf("it was asked all the same: %+v", got)
	}
	for path, allow := range map[string]string{"/v1/instances": "GET, HEAD", "/v1/events": "GET"} {
		for _, m := range []string{http.MethodPost, http.MethodDelete, "BREW"} {
			r := get(path)
			r.Method = m
			res := do(g, r)
			if wantProblem(t, res, http.StatusMethodNotAllowed, reasonHTTPMethod); res.Header.Get("Allow") != allow {
				t.Errorf("%s %s: Allow %q", m, path, res.Header.Get("Allow"))
			}
		}
	}
	// Without a directory there is nothing at its paths.
	wantProblem(t, do(answering(t, Options{}, `1`), get("/v1/instances")), http.StatusNotFound, reasonPath)
}

// TestListsAreBounded: no more than a few are made at once, and who waits in vain is told.
func TestListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := newGateway(t, Options{
			Locate: newScript().locate, Timeout: time.Minute, Memory: 1 << 20,
			Directory: shelf{list: func(context.Context, conduit.AsWhom, string, bool) (any, error) {
				<-release
				return "", nil
			}},
		})
		answers := make(chan answer, makers)
		for range makers {
			go func() { answers <- do(g, get("/v1/methods")) }()
		}
		synctest.Wait()
		began := time.Now()
		wantProblem(t, do(g, get("/v1/methods")), http.StatusServiceUnavailable, conduit.ReasonOverloaded)
		if time.Since(began) != time.Minute {
			t.Errorf("it waited %v", time.Since(began))
		}
		close(release)
		for range makers {
			if res := <-answers; res.StatusCode != http.StatusOK {
				t.Error(res.Status)
			}
		}
	})
	g := newGateway(t, Options{
		Locate: newScript().locate, Memory: 1000,
		Directory: shelf{list: func(context.Context, conduit.AsWhom, string, bool) (any, error) {
			return strings.Repeat("x", 1000), nil
		}},
	})
	wantProblem(t, do(g, get("/v1/methods")), http.StatusServiceUnavailable, conduit.ReasonOverloaded)
}

func TestEvents(t *testing.T) {
	over := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "going away")
	said := func(err error) Options {
		return Options{Directory: shelf{events: func(_ context.Context, send func(Event) error) error {
			for _, name := range []string{"loaded", "gone"} {
				if err := send(Event{name, map[string]string{"name": "a\nb"}}); err != nil {
					return err
				}
			}
			return err
		}}}
	}
	res := do(answering(t, said(over)), get("/v1/events"))
	body := bodyOf(t, res)
	begin := "id: 1\nevent: loaded\ndata: {\"name\":\"a\\nb\"}\n\nid: 2\nevent: gone\ndata: {\"name\":\"a\\nb\"}\n\nevent: error\ndata: {"
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != typeEvents || !strings.HasPrefix(body, begin) || !strings.Contains(body, `"reason":"draining"`) {
		t.Errorf("%s %q", res.Status, body)
	}
	// One that fails before the first event has a status.
	g := answering(t, Options{Directory: shelf{events: func(context.Context, func(Event) error) error { return over }}})
	wantProblem(t, do(g, get("/v1/events")), http.StatusServiceUnavailable, conduit.ReasonDraining)
	if got := do(answering(t, said(over)), get("/v1/events", "Accept-Encoding", "gzip")).Header.Get("Content-Encoding"); got != "" {
		t.Errorf("a stream is compressed: %s", got)
	}
}

// TestEventsToSlowReaders: who does not read is cut off, and what is to be told is not
// kept for him meanwhile; who sees nothing new is kept alive; too many are refused.
func TestEventsToSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		l, _ := inMemory(t, Options{Stall: 10 * time.Second, Watchers: 1, Directory: shelf{events: func(_ context.Context, send func(Event) error) error {
			for {
				if err := send(Event{"news", strings.Repeat("x", 1000)}); err != nil {
					return err
				}
				told++
			}
		}}})
		conn := l.dial()
		defer conn.Close()
		ask := func(c io.Writer) { _, _ = io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n") }
		go ask(conn)
		r := bufio.NewReaderSize(conn, 16)
		if got := lineOf(t, r); got != "HTTP/1.1 200 OK\r" {
			t.Fatal(got)
		}
		second := l.dial()
		go ask(second)
		wantProblem(t, readAnswer(t, second), http.StatusServiceUnavailable, conduit.ReasonOverloaded)
		second.Close()
		time.Sleep(time.Minute) // a fake minute, in which nobody reads
		synctest.Wait()
		if n, _ := io.Copy(io.Discard, r); told > 100 || n > 100<<10 {
			t.Errorf("%d events were taken for a client that does not read; it got %d bytes then", told, n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		l, _ := inMemory(t, Options{KeepAlive: 15 * time.Second, Directory: shelf{events: func(ctx context.Context, _ func(Event) error) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}}})
		conn := l.dial()
		go func() { _, _ = io.WriteString(conn, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n") }()
		r := bufio.NewReader(conn)
		for lineOf(t, r) != ":" { // the comment, within its chunk
			continue
		}
		conn.Close()
		if err := <-ended; err == nil {
			t.Error("it goes on without a client")
		}
	})
}

// TestEventsEndWithTheSession: whoever may know no more is told no more.
func TestEventsEndWithTheSession(t *testing.T) {
	why := conduit.Errorf(conduit.Unauthenticated, conduit.ReasonSessionExpired, conduit.Refused, "over")
	watched := make(chan func(*conduit.Error), 1)
	g := answering(t, Options{
		Watch: func(_ conduit.AsWhom, ended func(*conduit.Error)) func() { watched <- ended; return func() {} },
		Directory: shelf{events: func(ctx context.Context, send func(Event) error) error {
			if err := send(Event{"news", 1}); err != nil {
				return err
			}
			(<-watched)(why)
			<-ctx.Done()
			return ctx.Err()
		}},
	})
	if body := bodyOf(t, do(g, get("/v1/events"))); !strings.Contains(body, "event: error\ndata: ") || !strings.Contains(body, conduit.ReasonSessionExpired) {
		t.Errorf("%q", body)
	}
}

func TestCompression(t *testing.T) {
	long := `"` + strings.Repeat("so much of the same, ", 1000) + `"`
	g := answering(t, Options{Sessions: &desk{}}, long)
	res := do(g, post(callPath, "", "Accept-Encoding", "br, gzip;q=0.5"))
	raw := bodyOf(t, res)
	if res.Header.Get("Content-Encoding") != "gzip" || res.Header.Get("Vary") != "Accept-Encoding" || len(raw) > len(long)/10 {
		t.Fatalf("%d bytes, %v", len(raw), res.Header)
	}
	z, err := gzip.NewReader(strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(z); err != nil || string(text) != long+"\n" {
		t.Errorf("%d bytes of %d, %v", len(text), len(long), err)
	}
	// The length is no measure of the content.
	lengths := map[string]bool{}
	for range 100 {
		lengths[do(g, post(callPath, "", "Accept-Encoding", "gzip")).Header.Get("Content-Length")] = true
	}
	if len(lengths) < 5 {
		t.Errorf("of 100 answers %v", lengths)
	}
	for name, plain := range map[string]answer{
		"nobody asked":        do(g, post(callPath, "")),
		"refused":             do(g, post(callPath, "", "Accept-Encoding", "gzip;q=0, *")),
		"identity":            do(g, post(callPath, "", "Accept-Encoding", "identity")),
		"a short one":         do(answering(t, Options{}, `"x"`), post(callPath, "", "Accept-Encoding", "gzip")),
		"lines":               do(g, post(callPath, "", "Accept-Encoding", "gzip", "Accept", typeNDJSON)),
		"events":              do(g, post(callPath, "", "Accept-Encoding", "gzip", "Accept", typeEvents)),
		"bytes":               do(answering(t, Options{}, msg(conduit.ContentBytes, long)), post(callPath, "", "Accept-Encoding", "gzip")),
		"a login":             do(g, post("/v1/sessions", `{"user":"ada","password":"geheim"}`, "Accept-Encoding", "gzip")),
		"all of them at work": busy(t, g, func() answer { return do(g, post(callPath, "", "Accept-Encoding", "gzip")) }),
	} {
		if plain.Header.Get("Content-Encoding") != "" || plain.StatusCode >= 300 {
			t.Errorf("%s: %s, %v", name, plain.Status, plain.Header)
		}
	}
}

// busy does something while as much is compressed as may.
func busy(t *testing.T, g *Gateway, do func() answer) answer {
	t.Helper()
	for range cap(g.zips) {
		g.zips <- struct{}{}
	}
	defer func() {
		for range cap(g.zips) {
			<-g.zips
		}
	}()
	return do()
}

func BenchmarkCompress(b *testing.B) {
	g, err := New(Options{Locate: newScript().locate})
	if err != nil {
		b.Fatal(err)
	}
	z := &zipper{g: g, hold: func(int64) {}}
	text := []byte(strings.Repeat(`{"instance":"worker-1","deployment":"echo","element":"echo","state":"ready"},`, 1000))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := z.compress(text); !ok {
			b.Fatal("it was not compressed")
		}
	}
}
