package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

func msg(content, data string) conduit.Message {
	return conduit.Message{ContentType: content, Data: []byte(data)}
}

func part(n uint32, data string) conduit.Message {
	return conduit.Message{Part: n, ContentType: conduit.ContentJSON, Data: []byte(data)}
}

// TestAnswers is what a finished call looks like, by what the client asked for.
func TestAnswers(t *testing.T) {
	failed := conduit.Errorf(conduit.NotFound, "no_player", conduit.Executed, "no player <b>")
	problem := `{"type":"` + errorPage + `not_found","title":"Not found","status":404,"detail":"no player \u003cb\u003e","code":"not_found","reason":"no_player",` +
		`"outcome":"executed","retryable":false,"address":"*://d/e/s.S","method":"Do"}`
	for _, tt := range []struct {
		name, query, accept string
		what                []any
		status              int
		content, body       string
	}{
		{"nothing", "", "", nil, 204, "", ""},
		{"one", "", "", []any{`{"a": 1}`}, 200, conduit.ContentJSON, "{\"a\": 1}\n"},
		{"one, of the type's own content", "", "", []any{msg("", "1\n")}, 200, conduit.ContentJSON, "1\n"},
		{"one that is empty", "", "", []any{``}, 200, conduit.ContentJSON, "null\n"},
		{"two", "", "", []any{"1", "{\n \"a\": 2\n}"}, 200, typeNDJSON, "1\n{\"a\":2}\n"},
		{"three, JSON named", "", "application/json", []any{"1", "2", "3"}, 200, typeNDJSON, "1\n2\n3\n"},
		{"parts are left out", "", "", []any{part(1, "7"), "1", part(2, "8")}, 200, conduit.ContentJSON, "1\n"},
		{"only parts", "", "", []any{part(1, "7")}, 204, "", ""},
		{"parts", "?parts=1", "", []any{part(1, "7"), "1"}, 200, typeNDJSON, `{"part":1,"value":7}` + "\n" + `{"part":0,"value":1}` + "\n"},
		{"parts not wanted", "?parts=0", "application/x-ndjson", []any{part(1, "7"), "1"}, 200, typeNDJSON, "1\n"},
		{"bytes", "", "", []any{msg(conduit.ContentBytes, "\x00\xff")}, 200, conduit.ContentBytes, "\x00\xff"},
		{"protobuf", "", conduit.ContentProto, []any{msg(conduit.ContentProto, "\x08\x01")}, 200, conduit.ContentProto, "\x08\x01"},
		{"many of bytes", "", "", []any{msg(conduit.ContentBytes, "a"), msg(conduit.ContentBytes, "b")}, 200, typeNDJSON, "\"YQ==\"\n\"Yg==\"\n"},
		{"a page is bytes", "", "", []any{msg("text/html", "<script>")}, 200, conduit.ContentBytes, "<script>"},
		{"nonsense is bytes", "", "", []any{msg("text/html\r\nX: y", "<script>")}, 200, conduit.ContentBytes, "<script>"},
		{"no lines", "", "application/x-ndjson", nil, 200, typeNDJSON, ""},
		{"a line", "", "application/x-ndjson", []any{"1"}, 200, typeNDJSON, "1\n"},
		{"an error", "", "", []any{failed}, 404, typeProblem, problem + "\n"},
		{"an error after one", "", "", []any{"1", failed}, 404, typeProblem, problem + "\n"},
		{"an error after two", "", "", []any{"1", "2", failed}, 200, typeNDJSON, "1\n2\n{\"error\":" + problem + "}\n"},
		{"an error before lines", "", "application/x-ndjson", []any{failed}, 404, typeProblem, problem + "\n"},
		{"an error after a line", "", "application/x-ndjson", []any{"1", failed}, 200, typeNDJSON, "1\n{\"error\":" + problem + "}\n"},
		{"no events", "", "text/event-stream", nil, 200, typeEvents, "event: end\ndata: {\"results\":0}\n\n"},
		{
			"events", "", "text/event-stream",
			[]any{"{\r\n\"a\":1}", part(1, "7"), msg(conduit.ContentBytes, "a")},
			200, typeEvents,
			"id: 1\ndata: {\"a\":1}\n\nid: 2\nevent: part\ndata: {\"part\":1,\"value\":7}\n\nid: 3\ndata: \"YQ==\"\n\nevent: end\ndata: {\"results\":3}\n\n",
		},
		{"an error before events", "", "text/event-stream", []any{failed}, 404, typeProblem, problem + "\n"},
		{"an error after an event", "", "text/event-stream", []any{"1", failed}, 200, typeEvents, "id: 1\ndata: 1\n\nevent: error\ndata: " + problem + "\n\n"},
	} {
		g := answering(t, Options{}, tt.what...)
		res := do(g, post(callPath+tt.query, "", "Accept", tt.accept))
		if body := bodyOf(t, res); res.StatusCode != tt.status || res.Header.Get("Content-Type") != tt.content || body != tt.body {
			t.Errorf("%s: %s %q\n got %q\nwant %q", tt.name, res.Status, res.Header.Get("Content-Type"), body, tt.body)
		}
		if res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", tt.name, res.Header)
		}
	}
}

func TestContentTypesOfTheirOwn(t *testing.T) {
	for said, want := range map[string]string{"text/html": "text/html", "image/png": "image/png", `text/plain; charset="utf-8"`: "text/plain; charset=utf-8", "": "", "text/html\r\nX: y": ""} {
		res := do(answering(t, Options{}, msg(said, `1`)), post(callPath, ""))
		if got := res.Header.Get(headerContentType); got != want || res.Header.Get("X") != "" {
			t.Errorf("%q: %q", said, got)
		}
	}
}

func TestResultsThatLie(t *testing.T) {
	bad := `{"a":`
	wantProblem(t, do(answering(t, Options{}, bad), post(callPath, "")), http.StatusInternalServerError, conduit.ReasonBadContent)
	wantProblem(t, do(answering(t, Options{}, bad), post(callPath, "", "Accept", typeNDJSON)), http.StatusInternalServerError, conduit.ReasonBadContent)
	wantProblem(t, do(answering(t, Options{}, bad), post(callPath, "", "Accept", typeEvents)), http.StatusInternalServerError, conduit.ReasonBadContent)
	for accept, last := range map[string]string{typeNDJSON: "1\n{\"error\":", typeEvents: "id: 1\ndata: 1\n\nevent: error\n"} {
		if body := bodyOf(t, do(answering(t, Options{}, "1", bad, "2"), post(callPath, "", "Accept", accept))); !strings.HasPrefix(body, last) || strings.Contains(body, bad) {
			t.Errorf("%s: %q", accept, body)
		}
	}
}

// TestStreamsArriveAsProduced reads each result before the next one is made.
func TestStreamsArriveAsProduced(t *testing.T) {
	for accept, want := range map[string][]string{
		typeNDJSON: {"1", "2", "3"},
		typeEvents: {"id: 1\ndata: 1\n", "id: 2\ndata: 2\n", "id: 3\ndata: 3\n"},
	} {
		srv, s := live(t, Options{})
		answer := make(chan answer)
		go func() { answer <- send(t, srv, post(callPath, "", "Accept", accept)) }()
		c := <-s.came
		c.say(t, "1")
		res := <-answer // its header has come, and the call goes on
		r := bufio.NewReader(res.Body)
		for i, w := range want {
			if i > 0 {
				c.say(t, strconv.Itoa(i+1))
			}
			for l := range strings.SplitSeq(w, "\n") {
				if got := lineOf(t, r); got != l {
					t.Fatalf("%s: got %q, want %q", accept, got, l)
				}
			}
		}
		c.say(t, io.EOF)
		if _, err := io.ReadAll(r); err != nil {
			t.Errorf("%s: at the end: %v", accept, err)
		}
	}
}

// TestJSONBecomesLines holds the first result until the second is there, and no
// longer.
func TestJSONBecomesLines(t *testing.T) {
	srv, s := live(t, Options{})
	answer := make(chan answer)
	go func() { answer <- send(t, srv, post(callPath, "")) }()
	c := <-s.came
	c.say(t, "1")
	select {
	case res := <-answer:
		t.Fatalf("the first result was not held: %s", res.Status)
	default:
	}
	c.say(t, "2")
	res := <-answer
	r := bufio.NewReader(res.Body)
	if a, b := lineOf(t, r), lineOf(t, r); a != "1" || b != "2" || res.Header.Get("Content-Type") != typeNDJSON {
		t.Fatalf("%q, %q as %s", a, b, res.Header.Get("Content-Type"))
	}
	c.say(t, "3")
	if got := lineOf(t, r); got != "3" {
		t.Fatalf("got %q", got)
	}
	c.say(t, conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "gone"))
	if got := lineOf(t, r); !strings.HasPrefix(got, `{"error":{`) || !strings.Contains(got, `"reason":"peer_lost"`) {
		t.Fatalf("got %q", got)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after the error: %v", err)
	}
}

// TestClientLeaves cancels the call, whether it has answered or not.
func TestClientLeaves(t *testing.T) {
	for _, accept := range []string{"", typeNDJSON, typeEvents} {
		for _, before := range []int{0, 1} {
			if accept == "" && before == 1 {
				before = 2 // one is held
			}
			t.Run(fmt.Sprintf("%s after %d", accept, before), func(t *testing.T) {
				seen := make(chan Observation, 1)
				srv, s := live(t, Options{Observe: func(o Observation) { seen <- o }})
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+callPath, strings.NewReader(`{"body":1}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", conduit.ContentJSON)
				r.Header.Set("Accept", accept)
				over := make(chan error, 1)
				go func() {
					res, err := srv.Client().Do(r)
					if err == nil {
						_, err = io.ReadAll(res.Body)
						res.Body.Close()
					}
					over <- err
				}()
				c := <-s.came
				for i := range before {
					c.say(t, strconv.Itoa(i))
				}
				leave()
				<-c.canceled
				if o := <-seen; o.Err == nil || o.Err.Code != conduit.Canceled || o.Results > before {
					t.Errorf("observed %+v", o)
				}
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Errorf("the client has %v", err)
				}
			})
		}
	}
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			accept, header string
			o              Options
			want           time.Duration // 0 = none
		}{
			{"", "", Options{}, 30 * time.Second},
			{"", "", Options{Timeout: time.Second}, time.Second},
			{"", "", Options{Timeout: -1}, 0},
			{"", "1500ms", Options{}, 1500 * time.Millisecond},
			{"", "2h", Options{}, 2 * time.Hour},
			{typeNDJSON, "", Options{}, 0},
			{typeEvents, "", Options{}, 0},
			{typeEvents, "5m", Options{}, 5 * time.Minute},
		} {
			s := newScript()
			tt.o.Locate = s.locate
			tt.o.KeepAlive = -1
			g := newGateway(t, tt.o)
			ctx, cancel := context.WithCancel(t.Context())
			answer := make(chan answer, 1)
			began := time.Now()
			go func() {
				answer <- do(g, post(callPath, "", "Accept", tt.accept, headerTimeout, tt.header).WithContext(ctx))
			}()
			c := <-s.came
			if tt.want == 0 {
				if c.hasDeadline {
					t.Errorf("%+v: a deadline of %v", tt, c.deadline.Sub(began))
				}
				cancel()
				<-answer
				continue
			}
			p := wantProblem(t, <-answer, http.StatusGatewayTimeout, conduit.ReasonDeadline)
			if took := time.Since(began); took != tt.want || c.deadline.Sub(began) != tt.want || p.Outcome != conduit.OutcomeUnknown {
				t.Errorf("%+v: after %v: %+v", tt, took, p)
			}
			cancel()
		}
	})
}

func TestEventsAreKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := inMemory(t, Options{})
		conn := l.dial()
		defer conn.Close()
		go func() {
			_, _ = io.WriteString(conn, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
		}()
		c := <-s.came
		began := time.Now()
		res := readAnswer(t, conn)
		r := bufio.NewReader(res.Body)
		comment := func(at time.Duration) {
			t.Helper()
			if got := lineOf(t, r) + lineOf(t, r); got != ":" || time.Since(began) != at {
				t.Fatalf("after %v: %q", time.Since(began), got)
			}
		}
		comment(15 * time.Second)
		comment(30 * time.Second)
		time.Sleep(10 * time.Second)
		go c.say(t, "1")
		if got := lineOf(t, r) + lineOf(t, r) + lineOf(t, r); got != "id: 1data: 1" {
			t.Fatalf("got %q", got)
		}
		comment(55 * time.Second) // 15 after the result, not after the last comment
		// With the answer begun an error can have no status any more.
		go c.say(t, conduit.Errorf(conduit.NotFound, "x", conduit.Executed, "x"))
		if got := lineOf(t, r); got != "event: error" {
			t.Fatalf("got %q", got)
		}
		if _, err := io.ReadAll(r); err != nil {
			t.Error(err)
		}
	})
}

// TestClientThatReadsNothing is cut off after the time that a piece may take.
func TestClientThatReadsNothing(t *testing.T) {
	for _, accept := range []string{"", typeNDJSON, typeEvents} {
		synctest.Test(t, func(t *testing.T) {
			seen := make(chan Observation, 1)
			l, s := inMemory(t, Options{Stall: 10 * time.Second, Observe: func(o Observation) { seen <- o }})
			conn := l.dial()
			defer conn.Close()
			go func() {
				_, _ = io.WriteString(conn, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\nAccept: "+accept+"\r\n\r\n")
			}()
			c := <-s.came
			began := time.Now()
			go func() {
				c.down <- conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)}
			}()
			if accept == "" {
				synctest.Wait()
				go func() { c.down <- io.EOF }()
			}
			<-c.canceled
			if took := time.Since(began); took != 10*time.Second {
				t.Errorf("%q: it took %v", accept, took)
			}
			if o := <-seen; o.Err == nil || o.Err.Code != conduit.Canceled || o.Err.Outcome != conduit.OutcomeUnknown {
				t.Errorf("%q: observed %+v", accept, o)
			}
		})
	}
}

// TestClientThatReadsSlowly gets a big answer as long as each piece comes through.
func TestClientThatReadsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := inMemory(t, Options{Stall: 10 * time.Second})
		conn := l.dial()
		defer conn.Close()
		go func() { _, _ = io.WriteString(conn, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\n\r\n") }()
		text := `"` + strings.Repeat("x", 20*piece) + `"`
		go (<-s.came).say(t, text, io.EOF)
		began := time.Now()
		res := readAnswer(t, slowConn{conn})
		if got := bodyOf(t, res); got != text+"\n" {
			t.Errorf("got %d bytes", len(got))
		}
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("it took only %v: the client was not slow", took)
		}
	})
}

// slowConn takes 100 ms for each read of at most 4 KiB.
type slowConn struct{ net.Conn }

func (c slowConn) Read(b []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	return c.Conn.Read(b[:min(len(b), 4<<10)])
}

func TestConcurrency(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate, Concurrency: 2})
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- do(g, post(callPath, "")) }()
	}
	a, b := <-s.came, <-s.came
	if g.InFlight() != 2 {
		t.Errorf("%d in flight", g.InFlight())
	}
	res := do(g, post(callPath, ""))
	p := wantProblem(t, res, http.StatusServiceUnavailable, conduit.ReasonOverloaded)
	if res.Header.Get("Retry-After") != "1" || !p.Retryable || p.Outcome != conduit.NotSent || p.Code != "resource_exhausted" {
		t.Errorf("%v %+v", res.Header, p)
	}
	a.say(t, "1", io.EOF)
	<-answers
	go func() { (<-s.came).say(t, "3", io.EOF) }()
	if res := do(g, post(callPath, "")); res.StatusCode != http.StatusOK {
		t.Errorf("with a place free: %s", res.Status)
	}
	b.say(t, "2", io.EOF)
	<-answers
}

func TestAuthenticate(t *testing.T) {
	const secret = "swordfish"
	var in conduit.Invocation
	g := capture(t, Options{Authenticate: func(r *http.Request) (conduit.AsWhom, error) {
		switch s := r.Header.Get("Authorization"); s {
		case "":
			return conduit.AsWhom{Kind: conduit.AsAnonymous}, nil
		case "Bearer " + secret:
			return conduit.AsWhom{Kind: conduit.AsSession, Session: secret}, nil
		case "Bearer broken":
			return conduit.AsWhom{}, errors.New("the store at " + secret + " is broken")
		default:
			return conduit.AsWhom{}, conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent, "the session is not valid")
		}
	}}, &in)
	if res := do(g, post(callPath, "")); res.StatusCode != http.StatusOK || in.As.Kind != conduit.AsAnonymous {
		t.Errorf("without a credential: %s, %v", res.Status, in.As)
	}
	if res := do(g, post(callPath, "", "Authorization", "Bearer "+secret)); res.StatusCode != http.StatusOK || in.As.Session != secret {
		t.Errorf("with a session: %s, %v", res.Status, in.As)
	}
	in = conduit.Invocation{}
	res := do(g, post(callPath, "", "Authorization", "Bearer other"))
	p := wantProblem(t, res, http.StatusUnauthorized, conduit.ReasonUnauthenticated)
	if res.Header.Get("WWW-Authenticate") != "Bearer" || strings.Contains(fmt.Sprint(p), "other") {
		t.Errorf("%v %+v", res.Header, p)
	}
	p = wantProblem(t, do(g, post(callPath, "", "Authorization", "Bearer broken")), http.StatusInternalServerError, conduit.ReasonInternal)
	if strings.Contains(fmt.Sprint(p), secret) || in.Method != "" {
		t.Errorf("%+v, called %v", p, in.Method != "")
	}
	capture(t, Options{}, &in).ServeHTTP(discardWriter{http.Header{}}, post(callPath, ""))
	if in.As != (conduit.AsWhom{}) {
		t.Errorf("without Authenticate: %v", in.As)
	}
}

// discardWriter can neither flush nor keep time.
type discardWriter struct{ h http.Header }

func (d discardWriter) Header() http.Header { return d.h }

func (discardWriter) Write(b []byte) (int, error) { return len(b), nil }

func (discardWriter) WriteHeader(int) {}

// TestForeignErrors: what an Invoker returns beyond its contract may say anything.
func TestForeignErrors(t *testing.T) {
	g := answering(t, Options{}, errors.New("dial unix /secret/path"))
	p := wantProblem(t, do(g, post(callPath, "")), http.StatusInternalServerError, conduit.ReasonInternal)
	if strings.Contains(fmt.Sprint(p), "secret") || p.Outcome != conduit.OutcomeUnknown || p.Address != "*://d/e/s.S" {
		t.Errorf("%+v", p)
	}
}

// TestHTTP2 is the same over TLS: a stream that arrives as produced, and a client
// that leaves it.
func TestHTTP2(t *testing.T) {
	s := newScript()
	srv := httptest.NewUnstartedServer(served(t, Options{Locate: s.locate}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	answers := make(chan answer)
	go func() {
		answers <- send(t, srv, post(callPath, `{"body":1}`, "Accept", typeNDJSON).WithContext(ctx))
	}()
	c := <-s.came
	c.say(t, "1")
	res := <-answers
	r := bufio.NewReader(res.Body)
	for _, want := range []string{"1", "2"} {
		if got := lineOf(t, r); got != want || res.ProtoMajor != 2 {
			t.Fatalf("%s: got %q", res.Proto, got)
		}
		if want == "1" {
			c.say(t, "2")
		}
	}
	leave()
	<-c.canceled
	wantProblem(t, send(t, srv, post("/nothing", "{}")), http.StatusNotFound, reasonPath)
}
