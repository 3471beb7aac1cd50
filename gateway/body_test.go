package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// capture is a gateway that keeps what was invoked.
func capture(t *testing.T, o Options, in *conduit.Invocation) *Gateway {
	t.Helper()
	o.Locate = func(string) conduit.Invoker {
		return invokerFunc(func(i *conduit.Invocation) []any { *in = *i; return []any{`"ok"`} })
	}
	return newGateway(t, o)
}

func TestBodies(t *testing.T) {
	for _, tt := range []struct {
		name, content, body string
		has                 bool
		as                  string
	}{
		{"none", "", "", false, ""},
		{"empty JSON is none", "application/json", "", false, ""},
		{"empty form is none", "application/x-www-form-urlencoded", "", false, ""},
		{"JSON", "application/json", ` {"a":1} `, true, conduit.ContentJSON},
		{"null is a message", "application/json", "null", true, conduit.ContentJSON},
		{"charset", "Application/JSON; charset=UTF-8", `"ü"`, true, conduit.ContentJSON},
		{"bytes", "application/octet-stream", "\x00\xff", true, conduit.ContentBytes},
		{"no bytes are bytes", "application/octet-stream", "", true, conduit.ContentBytes},
		{"an empty protobuf is a message", "application/protobuf", "", true, conduit.ContentProto},
	} {
		for _, chunked := range []bool{false, true} {
			var in conduit.Invocation
			r := post(callPath, tt.body, "Content-Type", tt.content)
			if chunked {
				r.ContentLength = -1
			}
			res := do(capture(t, Options{}, &in), r)
			if res.StatusCode != http.StatusOK || in.HasRequest != tt.has || in.ContentType != tt.as || string(in.Request) != tt.body && tt.has {
				t.Errorf("%s (chunked %v): %s, %+v", tt.name, chunked, res.Status, in)
			}
			if !tt.has && in.Request != nil {
				t.Errorf("%s: a request of %q without HasRequest", tt.name, in.Request)
			}
		}
	}
}

func TestUnsupportedBodies(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate})
	for _, content := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=latin1", "text/json", ";", "application/problem+json"} {
		for _, chunked := range []bool{false, true} {
			r := post(callPath, `{"a":1}`, "Content-Type", content)
			if chunked {
				r.ContentLength = -1
			}
			wantProblem(t, do(g, r), http.StatusUnsupportedMediaType, reasonMediaType)
		}
	}
	wantProblem(t, do(g, post(callPath, `{}`, "Content-Encoding", "gzip")), http.StatusUnsupportedMediaType, reasonMediaType)
	r := post(callPath, `{}`)
	r.Header.Add("Content-Type", "text/plain")
	wantProblem(t, do(g, r), http.StatusUnsupportedMediaType, reasonMediaType)
	if s.count() != 0 {
		t.Errorf("%d calls were made", s.count())
	}
}

func TestJSONIsCheckedBeforeItIsSent(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate})
	for body, want := range map[string]string{
		`{"a":}`:                        "line 1, column 6",
		"{\n  \"ä\": 1,\n  \"b\": x\n}": "line 3, column 8",
		`{"a":1`:                        "line 1, column 7",
		`{} {}`:                         "line 1, column 4",
		"  ":                            "line 1, column 3",
		"\"a\xffb\"":                    "line 1, column 3",
		"\ufeff1":                       "line 1, column 1",
		"[1,]":                          "line 1, column 4",
		strings.Repeat("[", 20_000):     "line 1, column 10001",
	} {
		p := wantProblem(t, do(g, post(callPath, body)), http.StatusBadRequest, conduit.ReasonBadContent)
		if !strings.Contains(p.Detail, want) || p.Code != "invalid_argument" || p.Outcome != conduit.NotSent {
			t.Errorf("%.20q: %+v; want %s", body, p, want)
		}
	}
	if s.count() != 0 {
		t.Errorf("%d calls were made", s.count())
	}
}

func TestBodyLimit(t *testing.T) {
	const limit = 100_000
	for _, n := range []int{1, 4095, 4096, 4097, 65_536, limit - 1, limit, limit + 1, 3 * limit} {
		for _, chunked := range []bool{false, true} {
			var in conduit.Invocation
			body := strings.Repeat("x", n)
			r := post(callPath, body, "Content-Type", conduit.ContentBytes)
			if chunked {
				r.ContentLength = -1
			}
			res := do(capture(t, Options{MaxBody: limit}, &in), r)
			if n <= limit {
				if res.StatusCode != http.StatusOK || string(in.Request) != body {
					t.Errorf("%d bytes (chunked %v): %s, %d came", n, chunked, res.Status, len(in.Request))
				}
				continue
			}
			p := wantProblem(t, res, http.StatusRequestEntityTooLarge, conduit.ReasonPayloadTooLarge)
			if p.Details["limit"] != "100000" || in.Method != "" {
				t.Errorf("%d bytes: %+v, called %v", n, p, in.Method != "")
			}
		}
	}
}

// TestBigBodyOverAServer also sees that a client which says too much at first is
// answered without being asked for it.
func TestBigBodyOverAServer(t *testing.T) {
	srv, s := live(t, Options{})
	big := bytes.Repeat([]byte("0123456789abcdef"), DefaultMaxBody/16)
	go func() {
		c := <-s.came
		c.say(t, conduit.Message{ContentType: conduit.ContentBytes, Data: c.in.Request}, io.EOF)
	}()
	r := post(callPath, "x", "Content-Type", conduit.ContentBytes)
	r.Body = io.NopCloser(bytes.NewReader(big))
	if got := bodyOf(t, send(t, srv, r)); got != string(big) {
		t.Errorf("%d bytes came back of %d", len(got), len(big))
	}

	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+callPath, bytes.NewReader(append(big, 'x')))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", conduit.ContentBytes)
	r.Header.Set("Expect", "100-continue")
	tr := &http.Transport{ExpectContinueTimeout: 20 * time.Second}
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	wantProblem(t, answer{res}, http.StatusRequestEntityTooLarge, conduit.ReasonPayloadTooLarge)
}

func TestMemoryOfBodiesIsBounded(t *testing.T) {
	s := newScript()
	g := newGateway(t, Options{Locate: s.locate, Memory: 300_000})
	body := strings.Repeat("x", 100_000)
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- do(g, post(callPath, body, "Content-Type", conduit.ContentBytes)) }()
	}
	a, b := <-s.came, <-s.came
	res := do(g, post(callPath, body+body, "Content-Type", conduit.ContentBytes))
	if wantProblem(t, res, http.StatusServiceUnavailable, conduit.ReasonOverloaded); res.Header.Get("Retry-After") != "1" {
		t.Errorf("no Retry-After: %v", res.Header)
	}
	for _, c := range []*scripted{a, b} {
		c.say(t, `1`, io.EOF)
		if res := <-answers; res.StatusCode != http.StatusOK {
			t.Errorf("a call that had room: %s", res.Status)
		}
	}
	go func() { (<-s.came).say(t, `1`, io.EOF) }()
	if res := do(g, post(callPath, body+body, "Content-Type", conduit.ContentBytes)); res.StatusCode != http.StatusOK {
		t.Errorf("with the room given back: %s", res.Status)
	}
}

// TestStrangersLeaveRoom: slow bodies of callers without a session hold half of the memory
// at most, so that they refuse each other and nobody else.
func TestStrangersLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := inMemory(t, Options{Memory: 1 << 20, Stall: time.Hour, Authenticate: func(r *http.Request) (conduit.AsWhom, error) {
			if secret := r.Header.Get("Session"); secret != "" {
				return conduit.AsWhom{Kind: conduit.AsSession, Session: secret}, nil
			}
			return conduit.AsWhom{Kind: conduit.AsAnonymous}, nil
		}})
		// begin sends all of a body but its last byte.
		begin := func(size int, headers string) net.Conn {
			conn := l.dial()
			t.Cleanup(func() { conn.Close() })
			go func() {
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n%s\r\n%s", callPath, size, headers, strings.Repeat("x", size-1))
			}()
			return conn
		}
		var slow []net.Conn
		for range 4 {
			slow = append(slow, begin(100<<10, ""))
		}
		synctest.Wait()
		wantProblem(t, readAnswer(t, begin(200<<10, "")), http.StatusServiceUnavailable, conduit.ReasonOverloaded)

		own := begin(400<<10, "Session: ada\r\n")
		synctest.Wait()
		go func() { _, _ = io.WriteString(own, "x") }()
		go func() { (<-s.came).say(t, "1", io.EOF) }()
		if res := readAnswer(t, own); res.StatusCode != http.StatusOK {
			t.Errorf("a caller with a session, while strangers hold what they may: %s", res.Status)
		}
		for _, conn := range slow { // which goes on as it would have
			go func() { _, _ = io.WriteString(conn, "x") }()
			go func() { (<-s.came).say(t, "1", io.EOF) }()
			if res := readAnswer(t, conn); res.StatusCode != http.StatusOK {
				t.Errorf("a slow stranger: %s", res.Status)
			}
		}
	})
}

// TestSlowBodyHoldsMemory: a body that comes slowly, though steadily, is cut off while
// there is little memory left, and only then.
func TestSlowBodyHoldsMemory(t *testing.T) {
	for memory, want := range map[int64]int{1 << 20: http.StatusRequestTimeout, 16 << 20: http.StatusOK} {
		synctest.Test(t, func(t *testing.T) {
			l, s := inMemory(t, Options{Memory: memory, Stall: 30 * time.Second})
			conn := l.dial()
			defer conn.Close()
			const size = 1 << 20
			go func() {
				_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", callPath, size-1)
				for sent := 0; sent < size-1 && err == nil; {
					n := min(piece, size-1-sent)
					_, err = io.WriteString(conn, strings.Repeat("x", n))
					sent += n
					time.Sleep(20 * time.Second) // of the bubble: 3 KiB a second
				}
			}()
			began := time.Now()
			go func() {
				select {
				case c := <-s.came:
					c.say(t, "1", io.EOF)
				case <-time.After(time.Hour):
				}
			}()
			res := readAnswer(t, conn)
			if res.StatusCode != want {
				t.Errorf("with %d bytes: %s", memory, res.Status)
			}
			if took := time.Since(began); want != http.StatusOK && took > 4*time.Minute {
				t.Errorf("it held its memory for %v", took)
			}
			time.Sleep(2 * time.Hour) // what waits above ends
		})
	}
}

func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := inMemory(t, Options{Stall: 10 * time.Second})
		conn := l.dial()
		defer conn.Close()
		go func() {
			_, _ = io.WriteString(conn, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		}()
		began := time.Now()
		res := readAnswer(t, conn)
		wantProblem(t, res, http.StatusRequestTimeout, conduit.ReasonDeadline)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if !res.Close || s.count() != 0 {
			t.Errorf("close %v, %d calls", res.Close, s.count())
		}
	})
}

// A body that comes slowly takes no place of a call, so that a few bytes on many
// connections shut nobody out; and when it is there and all places are taken, the
// request is refused as any other.
func TestSlowBodyTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := inMemory(t, Options{Concurrency: 1, Stall: time.Hour})
		slow := l.dial()
		defer slow.Close()
		if _, err := io.WriteString(slow, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n\""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until all there is of its body is read

		quick := l.dial()
		defer quick.Close()
		go func() {
			_, _ = io.WriteString(quick, "POST "+callPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		}()
		synctest.Wait()
		if s.count() != 1 {
			t.Fatal("a call does not get the one place, which a slow body has")
		}
		go func() { _, _ = io.WriteString(slow, "x\"") }()
		wantProblem(t, readAnswer(t, slow), http.StatusServiceUnavailable, conduit.ReasonOverloaded)
		if s.count() != 1 {
			t.Errorf("%d calls were made at once, and there is one place", s.count())
		}
		go func() { (<-s.came).say(t, "1", io.EOF) }()
		if res := readAnswer(t, quick); res.StatusCode != http.StatusOK {
			t.Errorf("the call that had the place: %s", res.Status)
		}
	})
}

// TestSlowBodyOfRefused: net/http reads on in what the gateway does not want.
func TestSlowBodyOfRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := inMemory(t, Options{Stall: 10 * time.Second})
		conn := l.dial()
		defer conn.Close()
		go func() {
			_, _ = io.WriteString(conn, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		}()
		began := time.Now()
		res := readAnswer(t, conn)
		wantProblem(t, res, http.StatusNotFound, reasonPath)
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestBodyThatBreaksOff(t *testing.T) {
	s := newScript()
	r := httptest.NewRequest(http.MethodPost, callPath, io.MultiReader(strings.NewReader(`{"a"`), brokenReader{}))
	r.Header.Set("Content-Type", conduit.ContentJSON)
	wantProblem(t, do(newGateway(t, Options{Locate: s.locate}), r), http.StatusBadRequest, reasonBadRequest)
	if s.count() != 0 {
		t.Error("half a request was sent")
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
