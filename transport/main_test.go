package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is the deadline of a test: far beyond what any needs on a busy machine.
const limit = 30 * time.Second

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), limit)
	tb.Cleanup(cancel)
	return ctx
}

// wait receives from a channel within the test's deadline.
func wait[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(limit):
		b := make([]byte, 1<<20)
		tb.Fatalf("timed out waiting for %s\n%s", what, b[:runtime.Stack(b, true)])
		panic("unreachable")
	}
}

// logBuffer collects what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// echo is the handler of the tests.
type echo struct {
	started chan struct{} // one for each Wait that has begun, if not nil
	ended   chan error    // the cause of each Wait's end, if not nil
	release chan struct{} // ends all Waits in success
	served  atomic.Int64
}

func newEcho() *echo {
	return &echo{started: make(chan struct{}, 10000), ended: make(chan error, 10000), release: make(chan struct{})}
}

func (e *echo) Handle(in *link.Incoming) {
	e.served.Add(1)
	switch string(in.Invoke.Method) {
	case "Echo":
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			m, err := s.Recv(ctx)
			if err != nil {
				return err
			}
			s.Return(m)
			return nil
		})
	case "Who":
		who := in.Peer()
		in.Serve(func(_ context.Context, s *link.ServerCall) error {
			s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: []byte(who.User)})
			return nil
		})
	case "Wait":
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			e.started <- struct{}{}
			select {
			case <-e.release:
				e.ended <- nil
				s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: []byte("done")})
				return nil
			case <-ctx.Done():
				e.ended <- context.Cause(ctx)
				return context.Cause(ctx)
			}
		})
	default:
		in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused, "no such method"))
	}
}

var echoAddress = address.MustParse("*://echo/echo/test.Echo")

// anyone authenticates everybody as ada, and secrets that begin with "bad" as
// nobody.
func anyone(r *http.Request) (link.Peer, error) {
	s := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if strings.HasPrefix(s, "bad") {
		return link.Peer{}, errors.New("the session is unknown")
	}
	return link.Peer{Name: "client", User: "ada", Level: conduit.User}, nil
}

// instance is a Server that listens.
type instance struct {
	*Server
	echo *echo
	http *http.Server
	l    net.Listener
	addr string
	url  string
}

// serve starts a Server on loopback; addr is "" or where another one was.
func serve(tb testing.TB, addr string, o ServerOptions) *instance {
	tb.Helper()
	in := &instance{}
	if o.Handler == nil {
		in.echo = newEcho()
		o.Handler = in.echo
	}
	if o.Authenticate == nil {
		o.Authenticate = anyone
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	in.Server = NewServer(o)
	in.http = in.HTTPServer(in.Server)
	in.l, in.addr = l, l.Addr().String()
	in.url = "ws://" + in.addr + Path
	go func() { _ = in.http.Serve(l) }()
	tb.Cleanup(in.stop)
	return in
}

func (in *instance) stop() {
	_ = in.l.Close() // Serve may not have begun, and then Close would not know of it
	_ = in.http.Close()
	_ = in.Close()
}

func dialer(tb testing.TB, o ClientOptions) *Client {
	tb.Helper()
	c := NewClient(o)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// call makes a unary call and returns its reply.
func call(ctx context.Context, inv conduit.Invoker, method, request string) (string, error) {
	x := inv.Invoke(ctx, &conduit.Invocation{
		Method: method, ContentType: conduit.ContentBytes, Request: []byte(request), HasRequest: true, Last: true,
	})
	m, err := x.Recv(ctx)
	if err != nil {
		return "", err
	}
	if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("after the reply: %w", err)
	}
	return string(m.Data), nil
}

func mustEcho(ctx context.Context, tb testing.TB, inv conduit.Invoker, what string) {
	tb.Helper()
	got, err := call(ctx, inv, "Echo", what)
	if err != nil || got != what {
		tb.Fatalf("Echo(%.20q) = %.20q, %v", what, got, err)
	}
}

// want checks an error's code, reason and outcome.
func want(tb testing.TB, err error, code conduit.Code, reason string, outcome conduit.Outcome) *conduit.Error {
	tb.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		tb.Fatalf("%v (%T) is no *conduit.Error", err, err)
	}
	if e.Code != code || e.Reason != reason || e.Outcome != outcome {
		tb.Fatalf("%v: got %v %q %v, want %v %q %v", err, e.Code, e.Reason, e.Outcome, code, reason, outcome)
	}
	return e
}

// raw is a WebSocket client that says what it is told, byte by byte.
type raw struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func rawDial(tb testing.TB, addr string) *raw {
	tb.Helper()
	conn, err := new(net.Dialer).DialContext(tb.Context(), "tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(limit))
	tb.Cleanup(func() { _ = conn.Close() })
	return &raw{t: tb, Conn: conn, r: bufio.NewReader(conn)}
}

// answer is what a server answered.
type answer struct {
	code   int
	status string
	header http.Header
}

// ask sends a request and returns the answer and its text.
func (c *raw) ask(request string) (answer, string) {
	c.t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		c.t.Fatal(err)
	}
	a, body, err := c.answer()
	if err != nil {
		c.t.Fatal(err)
	}
	return a, body
}

// answer reads the answer to a request.
func (c *raw) answer() (answer, string, error) {
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return answer{}, "", err
	}
	defer resp.Body.Close()
	a := answer{resp.StatusCode, resp.Status, resp.Header}
	if a.code == http.StatusSwitchingProtocols {
		return a, "", nil // what follows is frames
	}
	body, err := io.ReadAll(resp.Body)
	return a, string(body), err
}

const rawKey = "dGhlIHNhbXBsZSBub25jZQ==" // RFC 6455's

// upgradeRequest is a proper request for a link; the headers given are replaced
// or, if empty, left out.
func upgradeRequest(changes map[string]string) string {
	h := []struct{ name, value string }{
		{"Host", "test"},
		{"Upgrade", "websocket"},
		{"Connection", "Upgrade"},
		{"Sec-WebSocket-Version", "13"},
		{"Sec-WebSocket-Key", rawKey},
		{"Sec-WebSocket-Protocol", SubProtocol},
	}
	first := "GET " + Path + " HTTP/1.1"
	if l, ok := changes["first"]; ok {
		first = l
	}
	var b strings.Builder
	b.WriteString(first + "\r\n")
	seen := map[string]bool{"first": true, "body": true}
	for _, f := range h {
		seen[f.name] = true
		if v, ok := changes[f.name]; ok {
			f.value = v
		}
		if f.value != "" {
			b.WriteString(f.name + ": " + f.value + "\r\n")
		}
	}
	for name, value := range changes {
		if !seen[name] {
			b.WriteString(name + ": " + value + "\r\n")
		}
	}
	b.WriteString("\r\n" + changes["body"])
	return b.String()
}

// upgrade opens a link as far as the WebSocket goes.
func (c *raw) upgrade() {
	c.t.Helper()
	if resp, body := c.ask(upgradeRequest(nil)); resp.code != http.StatusSwitchingProtocols {
		c.t.Fatalf("%s: %s", resp.status, body)
	}
}

// frame writes one masked frame.
func (c *raw) frame(first byte, payload string) {
	c.t.Helper()
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := [4]byte{1, 2, 3, 4}
	b = append(b, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	_, _ = c.Write(b) // the other end may have closed: what it said is looked at
}

// next reads one frame.
func (c *raw) next() (first byte, payload []byte, err error) {
	var h [2]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(h[1] & 0x7f)
	switch n {
	case 126:
		var l [2]byte
		if _, err := io.ReadFull(c.r, l[:]); err != nil {
			return 0, nil, err
		}
		n = uint64(binary.BigEndian.Uint16(l[:]))
	case 127:
		var l [8]byte
		if _, err := io.ReadFull(c.r, l[:]); err != nil {
			return 0, nil, err
		}
		n = binary.BigEndian.Uint64(l[:])
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(c.r, payload)
	return h[0], payload, err
}

// wantClose reads to the close frame and checks its code; it returns the reason.
func (c *raw) wantClose(code int) string {
	c.t.Helper()
	for {
		first, payload, err := c.next()
		if err != nil {
			c.t.Fatalf("no close frame: %v", err)
		}
		if first&0xf != 8 {
			continue
		}
		if len(payload) < 2 {
			c.t.Fatal("a close frame without a code")
		}
		if got := int(binary.BigEndian.Uint16(payload)); got != code {
			c.t.Fatalf("closed with %d %q, want %d", got, payload[2:], code)
		}
		return string(payload[2:])
	}
}

// proxy is a TCP proxy that can stop.
type proxy struct {
	addr string
	l    net.Listener
	wg   sync.WaitGroup

	mu     sync.Mutex
	frozen chan struct{} // not nil while nothing passes; closed to let it
	conns  []net.Conn
}

func newProxy(tb testing.TB, to string) *proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), l: l}
	p.wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, a, b)
			p.mu.Unlock()
			p.wg.Go(func() { p.copy(a, b) })
			p.wg.Go(func() { p.copy(b, a) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		p.thaw()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// freeze lets nothing pass; both ends see a peer that is silent.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as of a host that died
		}
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) url() string { return "ws://" + p.addr + Path }

func itoa(n int) string { return strconv.Itoa(n) }
