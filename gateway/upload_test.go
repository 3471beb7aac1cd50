package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Each line is a message, in whatever pieces the body comes.
func TestLines(t *testing.T) {
	srv, _, _ := overLink(t, Options{})
	long := `"` + strings.Repeat("x", 200_000) + `"`
	for body, want := range map[string]string{
		"":                              "[]",
		"\n \r\n\n":                     "[]",
		"1":                             "[1]",
		"1\n2\n3\n":                     "[1,2,3]",
		"{\"a\":1}\r\n\r\n [ 2 ] \r\n3": `[{"a":1},[ 2 ],3]`,
		long + "\n4\n" + long:           "[" + long + ",4," + long + "]",
	} {
		for _, chunked := range []bool{false, true} {
			r := post("/v1/call/d/e/s/Join", body, "Content-Type", typeNDJSON)
			if chunked {
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(body[:len(body)/2]), strings.NewReader(body[len(body)/2:])))
			}
			res := send(t, srv, r)
			if got := bodyOf(t, res); res.StatusCode != http.StatusOK || got != want+"\n" {
				t.Errorf("%.30q (chunked %v): %s %.100q", body, chunked, res.Status, got)
			}
		}
	}
	for _, content := range []string{typeNDJSON + "; charset=latin1", "application/x-ndjson, application/json"} {
		wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Join", "1", "Content-Type", content)), http.StatusUnsupportedMediaType, reasonMediaType)
	}
	wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Join", "1", "Content-Type", typeNDJSON, "Content-Encoding", "gzip")), http.StatusUnsupportedMediaType, reasonMediaType)
}

// wire is a connection to a server on which a test writes what it likes.
type wire struct {
	net.Conn
	in *bufio.Reader
}

func dialWire(t *testing.T, srv string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &wire{conn, bufio.NewReader(conn)}
}

// begin writes the header of a call whose body comes in chunks.
func (w *wire) begin(t *testing.T, method string, headers ...string) {
	t.Helper()
	w.say(t, "POST /v1/call/d/e/s/"+method+" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: "+typeNDJSON+"\r\n"+strings.Join(append(headers, "\r\n"), "\r\n"))
}

func (w *wire) chunk(t *testing.T, text string) {
	t.Helper()
	w.say(t, fmt.Sprintf("%x\r\n%s\r\n", len(text), text))
}

func (w *wire) say(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) answer(t *testing.T) answer {
	t.Helper()
	res, err := http.ReadResponse(w.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return answer{res}
}

// Results come while the body does, and the end of both leaves nothing behind.
func TestLinesBothWays(t *testing.T) {
	srv, _, _ := overLink(t, Options{})
	w := dialWire(t, srv.URL)
	w.begin(t, "Chat", "Accept: "+typeNDJSON)
	w.chunk(t, "\"one\"\n")
	res := w.answer(t)
	if res.StatusCode != http.StatusOK || !res.Close {
		t.Errorf("%s, closes %v: nobody could tell where the next request begins", res.Status, res.Close)
	}
	down := bufio.NewReader(res.Body)
	for _, next := range []string{`"two"`, "3"} {
		if got := lineOf(t, down); got == "" {
			t.Error("an empty line")
		}
		w.chunk(t, next+"\n")
	}
	if got := lineOf(t, down); got != "3" {
		t.Errorf("the last line is %q", got)
	}
	w.say(t, "0\r\n\r\n")
	if rest, err := io.ReadAll(down); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}

	// A body that has come whole before the answer is like any other.
	w = dialWire(t, srv.URL)
	for range 2 {
		w.begin(t, "Join")
		w.chunk(t, "1\n2")
		w.say(t, "0\r\n\r\n")
		if res := w.answer(t); bodyOf(t, res) != "[1,2]\n" || res.Close {
			t.Errorf("%s, closes %v", res.Status, res.Close)
		}
	}
}

// A line that is wrong ends the call, and says that what came before it may have been used.
func TestBadLines(t *testing.T) {
	const limit = 100_000
	for name, tt := range map[string]struct {
		body, reason, detail string
		status               int
	}{
		"no JSON":  {"1\n\n{\"a\":}\n4", conduit.ReasonBadContent, "line 3, column 6", http.StatusBadRequest},
		"two":      {"1\n2 3\n", conduit.ReasonBadContent, "line 2, column 3", http.StatusBadRequest},
		"no UTF-8": {"\"\xff\"\n", conduit.ReasonBadContent, "line 1, column 2", http.StatusBadRequest},
		"too long": {"1\n\"" + strings.Repeat("x", limit) + "\"\n", conduit.ReasonPayloadTooLarge, "line 2 of the body has more than 100000 bytes", http.StatusRequestEntityTooLarge},
	} {
		srv, _, _ := overLink(t, Options{MaxBody: limit})
		p := wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Join", tt.body, "Content-Type", typeNDJSON)), tt.status, tt.reason)
		if !strings.Contains(p.Detail, tt.detail) || !strings.Contains(p.Detail, "what it has done stays done") || p.Outcome != conduit.OutcomeUnknown || p.Method != "Join" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// After the first result it is the last line.
	srv, _, _ := overLink(t, Options{})
	w := dialWire(t, srv.URL)
	w.begin(t, "Chat", "Accept: "+typeNDJSON)
	w.chunk(t, "1\n")
	down := bufio.NewReader(w.answer(t).Body)
	if got := lineOf(t, down); got != "1" {
		t.Errorf("got %q", got)
	}
	w.chunk(t, "no\n")
	if got := lineOf(t, down); !strings.HasPrefix(got, `{"error":{`) || !strings.Contains(got, conduit.ReasonBadContent) {
		t.Errorf("got %q", got)
	}
	if rest, err := io.ReadAll(down); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// A call that fails is answered although the client says no more, and does not end its body.
func TestLinesOfACallThatIsOver(t *testing.T) {
	srv, _, _ := overLink(t, Options{})
	for _, more := range []string{"", strings.Repeat("1\n", 1<<20)} {
		w := dialWire(t, srv.URL)
		w.begin(t, "Missing")
		go fmt.Fprintf(w, "%x\r\n%s\r\n", len("1\n"+more), "1\n"+more) // nobody reads it to its end
		res := w.answer(t)
		if !res.Close {
			t.Error("the connection is said to be of further use")
		}
		wantProblem(t, res, http.StatusNotFound, conduit.ReasonMethodNotFound)
		if b, err := io.ReadAll(w.in); len(b) > 0 { // it may be a reset, with so much unread
			t.Errorf("after the answer: %q, %v", b, err)
		}
	}
}

// Who leaves has the call cancelled.
func TestLinesOfAClientThatLeaves(t *testing.T) {
	srv, e, _ := overLink(t, Options{})
	w := dialWire(t, srv.URL)
	w.begin(t, "Chat", "Accept: "+typeNDJSON)
	w.chunk(t, "1\n")
	if got := lineOf(t, bufio.NewReader(w.answer(t).Body)); got != "1" {
		t.Errorf("got %q", got)
	}
	w.Close()
	select {
	case <-e.ended:
	case <-time.After(time.Minute):
		t.Fatal("the handler goes on")
	}
}

// Between lines there is time to think; a line that has begun must come, and a body that
// says nothing for very long is given up.
func TestSlowLines(t *testing.T) {
	for name, tt := range map[string]struct {
		say   string
		after time.Duration
	}{
		"a line that does not end": {"2", DefaultStall},
		"nothing":                  {"", restFactor * DefaultStall},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, s := inMemory(t, Options{})
				w := &wire{Conn: l.dial()}
				defer w.Close()
				w.in = bufio.NewReader(w)
				w.begin(t, "Do")
				w.chunk(t, "1\n")
				c := <-s.came
				if got := <-c.up; got != "1" {
					t.Errorf("%q came first", got)
				}
				time.Sleep(restFactor*DefaultStall - time.Second)
				w.chunk(t, "\n") // which is no message, and says that somebody is there
				began := time.Now()
				if tt.say != "" {
					w.chunk(t, tt.say)
				}
				p := wantProblem(t, w.answer(t), http.StatusRequestTimeout, conduit.ReasonDeadline)
				if took := time.Since(began); took != tt.after || p.Outcome != conduit.OutcomeUnknown {
					t.Errorf("after %v: %+v", took, p)
				}
				<-c.canceled
			})
		})
	}
}

// What bodies of lines hold is bounded, for all of them together.
func TestLinesMemory(t *testing.T) {
	srv, _, _ := overLink(t, Options{Memory: 2 * piece})
	p := wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Join", `"`+strings.Repeat("x", 3*piece)+`"`, "Content-Type", typeNDJSON)), http.StatusServiceUnavailable, conduit.ReasonOverloaded)
	if p.Outcome != conduit.OutcomeUnknown {
		t.Errorf("%+v", p)
	}
	// Many messages need no more than one. The first answer may be here before what its
	// request held is given back, so this is another gateway.
	srv, _, _ = overLink(t, Options{Memory: 2 * piece})
	body := strings.Repeat("1\n", 4*piece)
	if res := send(t, srv, post("/v1/call/d/e/s/Join", body, "Content-Type", typeNDJSON)); len(bodyOf(t, res)) != 2*4*piece+2 {
		t.Errorf("%s", res.Status)
	}
}
