package transport

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455's
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// TestUpgradeRefused is WSP-01, each row, and what else can be wrong with an
// upgrade.
// TestRefusalsAreLogged: the first refused link is told at level warn, with what is wrong;
// those that follow do not fill the log, and are counted.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &logBuffer{}
		s := NewServer(ServerOptions{Log: slog.New(slog.NewTextHandler(logs, nil)), Authenticate: anyone})
		defer s.Close()
		ask := func(change func(r *http.Request)) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil)
			if change != nil {
				change(r)
			}
			s.ServeHTTP(httptest.NewRecorder(), r)
		}
		for range 5 {
			ask(nil)
		}
		if got := logs.String(); strings.Count(got, "link refused") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "status=426") || !strings.Contains(got, "proxy") {
			t.Errorf("the log has\n%s", got)
		}
		time.Sleep(refusedEvery) // of the bubble's clock
		ask(func(r *http.Request) { r.URL.Path = "/elsewhere" })
		if got := logs.String(); strings.Count(got, "link refused") != 2 || !strings.Contains(got, "status=404") || !strings.Contains(got, "more_since_the_last=4") {
			t.Errorf("the log has\n%s", got)
		}
	})
}

func TestUpgradeRefused(t *testing.T) {
	logs := &logBuffer{}
	in := serve(t, "", ServerOptions{Log: logs.logger(), Origins: []string{"https://good.example"}, Link: link.Options{Hello: link.Hello{AuthStore: "store-1"}}})
	for _, test := range []struct {
		name   string
		change map[string]string
		status int
		text   string
		header [2]string
	}{
		{name: "a plain GET", change: map[string]string{"Upgrade": "", "Connection": "", "Sec-WebSocket-Version": "", "Sec-WebSocket-Key": "", "Sec-WebSocket-Protocol": ""}, status: 426, text: "proxy", header: [2]string{"Upgrade", "websocket"}},
		{name: "HTTP/1.0", change: map[string]string{"first": "GET " + Path + " HTTP/1.0"}, status: 426, text: "HTTP/1.0 cannot carry the upgrade", header: [2]string{"Upgrade", "websocket"}},
		{name: "only Upgrade", change: map[string]string{"Connection": ""}, status: 400, text: `"Connection: Upgrade" is missing`},
		{name: "only Connection", change: map[string]string{"Upgrade": ""}, status: 426, text: `"Upgrade: websocket" is missing`},
		{name: "another upgrade", change: map[string]string{"Upgrade": "h2c"}, status: 426, text: `"Upgrade: websocket" is missing`},
		{name: "version 12", change: map[string]string{"Sec-WebSocket-Version": "12"}, status: 426, text: "Sec-WebSocket-Version: 13", header: [2]string{"Sec-Websocket-Version", "13"}},
		{name: "no version", change: map[string]string{"Sec-WebSocket-Version": ""}, status: 426, text: "Sec-WebSocket-Version: 13", header: [2]string{"Sec-Websocket-Version", "13"}},
		{name: "POST", change: map[string]string{"first": "POST " + Path + " HTTP/1.1", "Content-Length": "2", "body": "{}"}, status: 405, text: "GET", header: [2]string{"Allow", "GET"}},
		{name: "with a body", change: map[string]string{"Content-Length": "2", "body": "{}"}, status: 400, text: "no body"},
		{name: "no key", change: map[string]string{"Sec-WebSocket-Key": ""}, status: 400, text: "Sec-WebSocket-Key"},
		{name: "a short key", change: map[string]string{"Sec-WebSocket-Key": "AAAA"}, status: 400, text: "Sec-WebSocket-Key"},
		{name: "no sub-protocol", change: map[string]string{"Sec-WebSocket-Protocol": ""}, status: 400, text: "Sec-WebSocket-Protocol: conduit.v1"},
		{name: "another sub-protocol", change: map[string]string{"Sec-WebSocket-Protocol": "chat, conduit.v2"}, status: 400, text: "Sec-WebSocket-Protocol: conduit.v1"},
		{name: "another path", change: map[string]string{"first": "GET /cluster/v2 HTTP/1.1"}, status: 404, text: "/cluster/v1"},
		{name: "a longer path", change: map[string]string{"first": "GET /cluster/v1/ HTTP/1.1"}, status: 404, text: "/cluster/v1"},
		{name: "an Origin", change: map[string]string{"Origin": "https://evil.example"}, status: 403, text: "cluster.origins"},
		{name: "a null Origin", change: map[string]string{"Origin": "null"}, status: 403, text: "cluster.origins"},
		{name: "a bad session", change: map[string]string{"Authorization": "Bearer bad-s3cr3t-CANARY-91"}, status: 401, text: "the session is unknown", header: [2]string{"Conduit-Auth-Store", "store-1"}},
		{name: "a bad session says how", change: map[string]string{"Authorization": "Bearer bad"}, status: 401, text: "not authenticated", header: [2]string{"Www-Authenticate", `Bearer realm="conduit"`}},
		{name: "a bad session on a bad request", change: map[string]string{"Authorization": "Bearer bad", "Upgrade": ""}, status: 426, text: "Upgrade"},
	} {
		t.Run(test.name, func(t *testing.T) {
			resp, body := rawDial(t, in.addr).ask(upgradeRequest(test.change))
			if resp.code != test.status || !strings.Contains(body, test.text) {
				t.Errorf("%s: %s\nwant %d with %q", resp.status, body, test.status, test.text)
			}
			if strings.Count(body, "\n") != 1 || strings.Contains(body, "CANARY") {
				t.Errorf("the text is not one harmless line: %q", body)
			}
			if k := test.header[0]; k != "" && resp.header.Get(k) != test.header[1] {
				t.Errorf("header %s is %q, want %q", k, resp.header.Get(k), test.header[1])
			}
		})
	}
	t.Run("a listed Origin", func(t *testing.T) {
		resp, _ := rawDial(t, in.addr).ask(upgradeRequest(map[string]string{
			"Origin": "https://good.example", "Sec-WebSocket-Protocol": "conduit.session.s3cr3t-CANARY-91, conduit.v1",
		}))
		if resp.code != http.StatusSwitchingProtocols || resp.header.Get("Sec-Websocket-Protocol") != SubProtocol {
			t.Errorf("%s, sub-protocol %q", resp.status, resp.header.Get("Sec-Websocket-Protocol"))
		}
	})
	t.Run("garbage", func(t *testing.T) {
		if resp, _ := rawDial(t, in.addr).ask("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 garbage\r\n\r\n"); resp.code != 400 {
			t.Errorf("%s", resp.status)
		}
	})
	t.Run("data before the answer", func(t *testing.T) {
		c := rawDial(t, in.addr)
		_, _ = c.Write([]byte(upgradeRequest(nil) + "\x82\x80abcd"))
		if _, _, err := c.answer(); err == nil {
			t.Error("answered")
		}
	})
	if s := logs.String(); strings.Contains(s, "CANARY") || strings.Contains(s, "panic") || strings.Contains(s, "goroutine ") {
		t.Errorf("the log holds a secret or a stack:\n%s", s)
	}
	mustEcho(testContext(t), t, dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress), "still here")
}

// TestTextFrame is WSP-09.
func TestTextFrame(t *testing.T) {
	in := serve(t, "", ServerOptions{})
	for name, payload := range map[string]string{"hello": "hello", "empty": "", "invalid UTF-8": "\xff\xfe\x80"} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, in.addr)
			c.upgrade()
			c.frame(0x81, payload)
			if reason := c.wantClose(1003); !strings.Contains(reason, "binary") {
				t.Errorf("reason %q", reason)
			}
		})
	}
}

// TestBadFrames: bytes that are no frames, or no packets, end that link with
// 1002 and nothing else.
func TestBadFrames(t *testing.T) {
	in := serve(t, "", ServerOptions{})
	for name, write := range map[string]func(*raw){
		"reserved bit":             func(c *raw) { c.frame(0xc2, "x") },
		"reserved opcode":          func(c *raw) { c.frame(0x83, "x") },
		"not masked":               func(c *raw) { _, _ = c.Write([]byte{0x82, 1, 'x'}) },
		"continuation of nothing":  func(c *raw) { c.frame(0x80, "x") },
		"a message within another": func(c *raw) { c.frame(0x02, "x"); c.frame(0x82, "y") },
		"a long ping":              func(c *raw) { c.frame(0x89, strings.Repeat("x", 126)) },
		"a ping in pieces":         func(c *raw) { c.frame(0x09, "x") },
		"not a packet":             func(c *raw) { c.frame(0x82, "\xff\xff\xff\xff garbage") },
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, in.addr)
			c.upgrade()
			write(c)
			c.wantClose(1002)
		})
	}
	mustEcho(testContext(t), t, dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress), "still here")
}

// TestPacketCap is FRM-03: the sum of a message's fragments is what counts.
func TestPacketCap(t *testing.T) {
	in := serve(t, "", ServerOptions{})
	c := rawDial(t, in.addr)
	c.upgrade()
	piece := strings.Repeat("\x00", 32<<10)
	c.frame(0x02, piece)
	for range 15 {
		c.frame(0x00, piece)
	}
	reason := c.wantClose(1009)
	if !strings.Contains(reason, "262144") || !strings.Contains(reason, "bytes") {
		t.Errorf("the reason does not name the cap: %q", reason)
	}
	t.Run("pieces that just fit", func(t *testing.T) {
		c := rawDial(t, in.addr)
		c.upgrade()
		piece := strings.Repeat("\xff", 32<<10)
		c.frame(0x02, piece)
		for range 6 {
			c.frame(0x00, piece)
		}
		c.frame(0x80, piece) // 256 KiB in all: it is read whole, and is no packet
		c.wantClose(1002)
	})
	t.Run("a length that overflows", func(t *testing.T) {
		c := rawDial(t, in.addr)
		c.upgrade()
		_, _ = c.Write([]byte{0x82, 0x80 | 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4})
		c.wantClose(1009)
	})
}

// TestCompressionIsNotSpoken is SEC-07: whoever offers it is not given it, so that what
// a message grows to when it is inflated is nobody's concern; and what comes compressed
// all the same is refused before it is looked at.
func TestCompressionIsNotSpoken(t *testing.T) {
	in := serve(t, "", ServerOptions{})
	for _, offer := range []string{
		"permessage-deflate", "permessage-deflate; client_max_window_bits; server_max_window_bits=15",
		"permessage-deflate; server_no_context_takeover; client_no_context_takeover", "x-webkit-deflate-frame",
	} {
		c := rawDial(t, in.addr)
		resp, body := c.ask(upgradeRequest(map[string]string{"Sec-WebSocket-Extensions": offer}))
		if resp.code != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %s: %s", offer, resp.status, body)
		}
		if got := resp.header.Values("Sec-Websocket-Extensions"); len(got) > 0 {
			t.Errorf("%s: it agrees to %q", offer, got)
		}
		c.frame(0xc2, bomb())
		c.wantClose(1002)
	}
	mustEcho(testContext(t), t, dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress), "still here")
}

// TestCompressionThatNobodyAskedFor: an endpoint that compresses though the dialer has
// offered nothing is no instance.
func TestCompressionThatNobodyAskedFor(t *testing.T) {
	ctx := testContext(t)
	offered := make(chan []string, 10)
	b := bomb()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		offered <- r.Header.Values("Sec-Websocket-Extensions")
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Protocol: " + SubProtocol + "\r\nSec-WebSocket-Accept: " + acceptOf(r.Header.Get("Sec-Websocket-Key")) +
			"\r\nSec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n\r\n")
		_, _ = buf.Write(binary.BigEndian.AppendUint16([]byte{0xc2, 126}, uint16(len(b))))
		_, _ = buf.WriteString(b)
		_ = buf.Flush()
		_, _ = io.Copy(io.Discard, conn) // to the dialer's end
	}))
	defer h.Close()
	_, err := call(ctx, dialer(t, ClientOptions{}).Peer("ws"+strings.TrimPrefix(h.URL, "http")).At(echoAddress), "Echo", "x")
	e := want(t, err, conduit.Unavailable, conduit.ReasonProtocol, conduit.NotSent)
	if !strings.Contains(e.Message, "permessage-deflate") {
		t.Errorf("%v", err)
	}
	if got := wait(t, offered, "the upgrade"); len(got) > 0 {
		t.Errorf("the dialer offers %q", got)
	}
}

// acceptOf is what a server answers to a Sec-WebSocket-Key.
func acceptOf(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455's
	return base64.StdEncoding.EncodeToString(sum[:])
}

// bomb is 2 MiB of zeros, deflated: eight times what a packet may have.
var bomb = sync.OnceValue(func() string {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(make([]byte, 2<<20))
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\x00\x00\xff\xff")
})

// TestPings: pings are answered, the latest at least, also while calls wait.
func TestPings(t *testing.T) {
	in := serve(t, "", ServerOptions{})
	c := rawDial(t, in.addr)
	c.upgrade()
	for i := range 10 {
		c.frame(0x89, "ping "+itoa(i))
	}
	for {
		first, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if first == 0x8a && string(payload) == "ping 9" {
			break
		}
	}
	c.frame(0x8a, "unasked")
	c.frame(0x88, "\x03\xe8bye")
	c.wantClose(1000)
}

// TestCloseIsAnswered: a close from the other end is echoed, and the link is gone.
func TestCloseIsAnswered(t *testing.T) {
	gone := make(chan error, 1)
	in := serve(t, "", ServerOptions{Link: link.Options{OnClose: func(err error) { gone <- err }}})
	c := rawDial(t, in.addr)
	c.upgrade()
	c.frame(0x88, "\x03\xe9going away")
	c.wantClose(1001)
	e, ok := errors.AsType[*link.CloseError](wait(t, gone, "OnClose"))
	if !ok || e.Code != link.CloseGoingAway || e.Reason != "going away" || !e.Remote {
		t.Errorf("the link ended with %v", e)
	}
	if n := in.Links(); n != 0 {
		t.Errorf("%d links are left", n)
	}
}

// TestNobodyCanTell: who could not be authenticated just now may come again, and is not told
// that its session is bad; who may not come in is.
func TestNobodyCanTell(t *testing.T) {
	refused := func(code conduit.Code, reason string, after time.Duration) error {
		e := conduit.Errorf(code, reason, conduit.Refused, "so it is")
		e.RetryAfter = after
		return e
	}
	for name, c := range map[string]struct {
		err    error
		status int
		after  string
		code   conduit.Code
		reason string
	}{
		"the store is away": {refused(conduit.Unavailable, conduit.ReasonStoreUnavailable, 0), 503, "1", conduit.Unavailable, conduit.ReasonStoreUnavailable},
		"too many ask":      {refused(conduit.ResourceExhausted, conduit.ReasonOverloaded, 100*time.Millisecond), 503, "1", conduit.ResourceExhausted, conduit.ReasonOverloaded},
		"too many guesses":  {refused(conduit.ResourceExhausted, conduit.ReasonTooManyAttempts, 1500*time.Millisecond), 429, "2", conduit.ResourceExhausted, conduit.ReasonTooManyAttempts},
		"it takes too long": {refused(conduit.DeadlineExceeded, conduit.ReasonDeadline, 0), 503, "1", conduit.Unavailable, conduit.ReasonPeerUnreachable},
		"a bad session":     {refused(conduit.Unauthenticated, conduit.ReasonUnauthenticated, 0), 401, "", conduit.Unauthenticated, conduit.ReasonUnauthenticated},
		"a plain error":     {errors.New("no"), 401, "", conduit.Unauthenticated, conduit.ReasonUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			in := serve(t, "", ServerOptions{Authenticate: func(*http.Request) (link.Peer, error) { return link.Peer{}, c.err }})
			resp, body := rawDial(t, in.addr).ask(upgradeRequest(nil))
			if resp.code != c.status || resp.header.Get("Retry-After") != c.after || (resp.code == 401) != (resp.header.Get("WWW-Authenticate") != "") {
				t.Errorf("%s %v: %s", resp.status, resp.header, body)
			}
			_, err := call(testContext(t), dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress), "Echo", "x")
			if e := want(t, err, c.code, c.reason, conduit.NotSent); e.Retryable != (c.status != 401) {
				t.Errorf("retryable: %v", e.Retryable)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	t.Run("links", func(t *testing.T) {
		in := serve(t, "", ServerOptions{MaxLinks: 1})
		rawDial(t, in.addr).upgrade()
		resp, body := rawDial(t, in.addr).ask(upgradeRequest(nil))
		if resp.code != http.StatusServiceUnavailable || resp.header.Get("Retry-After") != "1" || resp.header.Get(HeaderReason) != "overloaded" || !strings.Contains(body, "max_links") {
			t.Errorf("%s %v: %s", resp.status, resp.header, body)
		}
		_, err := call(testContext(t), dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress), "Echo", "x")
		e := want(t, err, conduit.ResourceExhausted, conduit.ReasonOverloaded, conduit.NotSent)
		if !e.Retryable || e.RetryAfter != time.Second {
			t.Errorf("retryable %v after %v", e.Retryable, e.RetryAfter)
		}
	})
	t.Run("anonymous links", func(t *testing.T) {
		in := serve(t, "", ServerOptions{MaxLinks: 8, Authenticate: func(*http.Request) (link.Peer, error) { return link.Peer{}, nil }})
		for range 2 {
			rawDial(t, in.addr).upgrade()
		}
		if resp, body := rawDial(t, in.addr).ask(upgradeRequest(nil)); resp.code != http.StatusServiceUnavailable || !strings.Contains(body, "anonymous") {
			t.Errorf("%s: %s", resp.status, body)
		}
	})
	t.Run("upgrades", func(t *testing.T) {
		asked, answer := make(chan struct{}, 1), make(chan struct{})
		in := serve(t, "", ServerOptions{MaxUpgrades: 1, Authenticate: func(r *http.Request) (link.Peer, error) {
			asked <- struct{}{}
			<-answer
			return anyone(r)
		}})
		first := rawDial(t, in.addr)
		if _, err := first.Write([]byte(upgradeRequest(nil))); err != nil {
			t.Fatal(err)
		}
		wait(t, asked, "the first upgrade")
		if resp, body := rawDial(t, in.addr).ask(upgradeRequest(nil)); resp.code != http.StatusServiceUnavailable || !strings.Contains(body, "in progress") {
			t.Errorf("%s: %s", resp.status, body)
		}
		close(answer)
		if resp, _, err := first.answer(); err != nil || resp.code != 101 {
			t.Errorf("the first: %v, %v", resp, err)
		}
	})
	t.Run("nobody is authenticated by default", func(t *testing.T) {
		s := NewServer(ServerOptions{Handler: newEcho()})
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", Path, nil)
		for k, v := range map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": rawKey, "Sec-WebSocket-Protocol": SubProtocol} {
			r.Header.Set(k, v)
		}
		s.ServeHTTP(w, r)
		if w.Code != 401 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestDrainWaits is DRN-01: calls under way end in success, new ones are
// refused, and every link is closed with 1001.
func TestDrainWaits(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	idle := rawDial(t, in.addr)
	idle.upgrade()
	c := dialer(t, ClientOptions{})
	at := c.Peer(in.url).At(echoAddress)
	result := make(chan error, 1)
	go func() {
		got, err := call(ctx, at, "Wait", "")
		if err == nil && got != "done" {
			err = errors.New("got " + got)
		}
		result <- err
	}()
	wait(t, in.echo.started, "the call")

	drained := make(chan error, 1)
	go func() { drained <- in.Drain(ctx) }()
	if reason := idle.wantClose(1001); reason != "draining" {
		t.Errorf("reason %q", reason)
	}
	resp, _ := rawDial(t, in.addr).ask(upgradeRequest(nil))
	if resp.code != http.StatusServiceUnavailable || resp.header.Get(HeaderReason) != "draining" || resp.header.Get("Retry-After") == "" {
		t.Errorf("%s %v", resp.status, resp.header)
	}
	// The link has said GoAway, so the next call dials, and is told to go elsewhere.
	_, err := call(ctx, at, "Echo", "x")
	if errors.Is(err, &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining}) && conduit.AsError(err, 0).Outcome == conduit.Refused {
		_, err = call(ctx, at, "Echo", "x") // the first was on its way when the GoAway came
	}
	e := want(t, err, conduit.Unavailable, conduit.ReasonDraining, conduit.NotSent)
	if !e.Retryable || e.RetryAfter <= 0 {
		t.Errorf("retryable %v after %v", e.Retryable, e.RetryAfter)
	}
	select {
	case err := <-drained:
		t.Fatalf("drained with a call under way: %v", err)
	default:
	}
	close(in.echo.release)
	if err := wait(t, result, "the call's result"); err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := wait(t, drained, "the drain"); err != nil {
		t.Error(err)
	}
	if n := in.Links(); n != 0 {
		t.Errorf("%d links are left", n)
	}
}

// TestManyWriters is WSP-05: answers of all sizes, pings and at last a close are
// written to one connection from many goroutines, and none lands within another.
func TestManyWriters(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{Link: link.Options{PingInterval: 10 * time.Millisecond, ProbeInterval: 10 * time.Millisecond}})
	ended := make(chan error, 1)
	l, err := dialer(t, ClientOptions{Link: link.Options{
		PingInterval: 10 * time.Millisecond, ProbeInterval: 10 * time.Millisecond, OnClose: func(err error) { ended <- err },
	}}).DialLink(ctx, in.url, LinkHooks{})
	if err != nil {
		t.Fatal(err)
	}
	at := onLink{l, link.NewRoute(echoAddress)}
	waits := make(chan error, 1)
	go func() { _, err := call(ctx, at, "Wait", ""); waits <- err }()
	wait(t, in.echo.started, "the call that holds the drain up")

	const calls = 120 // 8 MiB in all: within what one link may hold
	var wg sync.WaitGroup
	var good, refused atomic.Int32
	half := make(chan struct{})
	for i := range calls {
		wg.Go(func() {
			request := strings.Repeat(string(rune('a'+i%26)), i*i*14) // up to 200 KB
			switch got, err := call(ctx, at, "Echo", request); {
			case err == nil && got == request:
				if good.Add(1) == calls/2 {
					close(half)
				}
			case errors.Is(err, &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining}) && conduit.AsError(err, 0).Outcome != conduit.Executed:
				refused.Add(1)
			default:
				t.Errorf("call %d: %d of %d bytes, %v", i, len(got), len(request), err)
			}
		})
	}
	wait(t, half, "half of the calls")
	drained := make(chan error, 1)
	go func() { drained <- in.Drain(ctx) }()
	wg.Wait()
	close(in.echo.release)
	if err := errors.Join(wait(t, waits, "the call under way"), wait(t, drained, "the drain")); err != nil {
		t.Error(err)
	}
	e, ok := errors.AsType[*link.CloseError](wait(t, ended, "the end of the link"))
	if !ok || e.Code != link.CloseGoingAway || !e.Remote {
		t.Errorf("the link ended with %v", e)
	}
	if n := good.Load() + refused.Load(); n != calls {
		t.Errorf("%d of %d calls have ended", n, calls)
	}
}

// onLink calls an address on one link.
type onLink struct {
	l  *link.Conn
	to *link.Route
}

func (o onLink) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return o.l.Invoke(ctx, o.to, in)
}

// TestDrainCancels: calls that outlast the drain are cancelled, and their
// callers and handlers hear why.
func TestDrainCancels(t *testing.T) {
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	passed, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for why, over := range map[string]context.Context{"the drain was cut short": cut, "the drain timeout passed": passed} {
		t.Run(why, func(t *testing.T) { testDrainCancels(over, t, why) })
	}
}

func testDrainCancels(over context.Context, t *testing.T, why string) {
	t.Helper()
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	at := dialer(t, ClientOptions{}).Peer(in.url).At(echoAddress)
	result := make(chan error, 1)
	go func() {
		_, err := call(ctx, at, "Wait", "")
		result <- err
	}()
	wait(t, in.echo.started, "the call")
	if err := in.Drain(over); err == nil || err.Error() != why+": 1 calls were cancelled" {
		t.Errorf("Drain: %v", err)
	}
	cause := wait(t, in.echo.ended, "the handler")
	if !errors.Is(cause, &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining}) {
		t.Errorf("the handler's cause: %v", cause)
	}
	want(t, wait(t, result, "the call"), conduit.Unavailable, conduit.ReasonDraining, conduit.Executed)
}

// TestDrainFlood is DRN-03, smaller: upgrades that land while a drain begins
// are refused or drained; nothing hangs or is left.
func TestDrainFlood(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		ctx := testContext(t)
		in := serve(t, "", ServerOptions{})
		var clients sync.WaitGroup
		begun := make(chan struct{}, 64)
		for range 8 {
			c := dialer(t, ClientOptions{})
			clients.Go(func() {
				at := c.Peer(in.url).At(echoAddress)
				for {
					_, err := call(ctx, at, "Echo", "x")
					select {
					case begun <- struct{}{}:
					default:
					}
					if err == nil {
						continue
					}
					e, ok := errors.AsType[*conduit.Error](err)
					if !ok || e.Outcome == conduit.OutcomeUnknown || e.Outcome == conduit.Executed {
						t.Errorf("a call during the drain: %v", err)
						return
					}
					if e.Reason == conduit.ReasonDraining && e.Op == "transport.dial" {
						return
					}
				}
			})
		}
		wait(t, begun, "the first call")
		if err := in.Drain(ctx); err != nil {
			t.Error(err)
		}
		clients.Wait()
		if n := in.Links(); n != 0 {
			t.Errorf("%d links are left", n)
		}
		in.stop()
	}
}

// The end of each link is told once, when it is listed no more, with the numbers that
// it had at last.
func TestEndedIsTold(t *testing.T) {
	ctx := testContext(t)
	ended := make(chan OpenLink, 10)
	listed := make(chan int, 10)
	var in *instance
	in = serve(t, "", ServerOptions{Ended: func(l OpenLink) {
		listed <- in.Links()
		ended <- l
	}})
	c := dialer(t, ClientOptions{})
	l, err := c.DialLink(ctx, in.url, LinkHooks{})
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "the link to be listed", func() bool { return in.Links() == 1 })
	open := in.OpenLinks()[0]
	_, err = l.Invoke(ctx, link.NewRoute(echoAddress), &conduit.Invocation{Method: "Nothing", Last: true}).Recv(ctx)
	want(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused)
	if len(ended) > 0 {
		t.Fatal("an open link is said to have ended")
	}
	l.Close(link.CloseDone, "")
	got := wait(t, ended, "the end")
	if got.Conn != open.Conn || got.Peer.User != "ada" || got.Remote != open.Remote {
		t.Errorf("the link %+v ended, and %+v is told", open, got)
	}
	if n := wait(t, listed, "the list"); n != 0 {
		t.Errorf("%d links are listed when the only one has ended", n)
	}
	wait(t, l.Done(), "the link's end")
	theirs, ours := got.Conn.Stats(), l.Stats()
	if ours.BytesIn == 0 || theirs.BytesOut < ours.BytesIn || theirs.BytesIn < 1 || theirs.PacketsIn < 2 {
		t.Errorf("the last numbers are %+v, the other end has %+v", theirs, ours)
	}

	// Also of those that Close ends.
	if _, err := c.DialLink(ctx, in.url, LinkHooks{}); err != nil {
		t.Fatal(err)
	}
	poll(t, "the next link to be listed", func() bool { return in.Links() == 1 })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, ended, "the end of the next")
	if len(ended) > 0 {
		t.Error("an end is told twice")
	}
}
