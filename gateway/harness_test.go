package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

const testInstance = "0100acbd18db4cc2385cadef654fccc4a4d8"

// script is an Invoker that hands each call to a test, which plays the element.
type script struct {
	mu    sync.Mutex
	calls []*scripted
	came  chan *scripted
}

func newScript() *script { return &script{came: make(chan *scripted, 100)} }

func (s *script) locate(addr string) conduit.Invoker { return &located{s, addr} }

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

type located struct {
	s    *script
	addr string
}

func (l *located) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	c := &scripted{addr: l.addr, in: *in, down: make(chan any), up: make(chan string), canceled: make(chan struct{})}
	c.deadline, c.hasDeadline = ctx.Deadline()
	l.s.mu.Lock()
	l.s.calls = append(l.s.calls, c)
	l.s.mu.Unlock()
	l.s.came <- c
	return c
}

// scripted is a call whose results the test sends one by one.
type scripted struct {
	addr        string
	in          conduit.Invocation
	deadline    time.Time
	hasDeadline bool

	down     chan any // conduit.Message, or the error at the end
	once     sync.Once
	canceled chan struct{}
	cause    error

	up chan string // what was sent after the first message; "" = that was all
}

func (c *scripted) Send(ctx context.Context, data []byte) error {
	select {
	case c.up <- string(data):
		return nil
	case <-c.canceled:
		return io.EOF
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *scripted) CloseSend() error { return c.Send(context.Background(), nil) }

func (c *scripted) Cancel(cause error) {
	c.once.Do(func() { c.cause = cause; close(c.canceled) })
}

func (c *scripted) Recv(ctx context.Context) (conduit.Message, error) {
	select {
	case v := <-c.down:
		if m, ok := v.(conduit.Message); ok {
			return m, nil
		}
		return conduit.Message{}, v.(error)
	case <-ctx.Done():
		c.Cancel(context.Cause(ctx))
		return conduit.Message{}, conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
}

// say sends results and ends; an error among them is the end.
func (c *scripted) say(t *testing.T, what ...any) {
	t.Helper()
	for _, v := range what {
		if s, ok := v.(string); ok {
			v = conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(s)}
		}
		select {
		case c.down <- v:
		case <-c.canceled:
			t.Errorf("the call was cancelled before %v was said: %v", v, c.cause)
			return
		}
	}
}

// invokerFunc answers every call at once.
type invokerFunc func(in *conduit.Invocation) []any

func (f invokerFunc) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	return &answers{left: f(in)}
}

type answers struct {
	conduit.Exchange
	left []any
}

func (a *answers) Recv(context.Context) (conduit.Message, error) {
	if len(a.left) == 0 {
		return conduit.Message{}, io.EOF
	}
	v := a.left[0]
	a.left = a.left[1:]
	switch v := v.(type) {
	case error:
		return conduit.Message{}, v
	case string:
		return conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(v)}, nil
	default:
		return v.(conduit.Message), nil
	}
}

func (*answers) Cancel(error) {}

// answering is a gateway in front of an element that answers every call the same.
func answering(t *testing.T, o Options, what ...any) *Gateway {
	t.Helper()
	o.Locate = func(string) conduit.Invoker { return invokerFunc(func(*conduit.Invocation) []any { return what }) }
	return newGateway(t, o)
}

func newGateway(t *testing.T, o Options) *Gateway {
	t.Helper()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n, m := g.InFlight(), g.memory.Load(); n != 0 || m != 0 {
			t.Errorf("after the test: %d calls under way, %d bytes held", n, m)
		}
	})
	return g
}

// served is a gateway for a server, whose Close does not wait for handlers: the
// test does, before it looks at what they left.
func served(t *testing.T, o Options) http.Handler {
	t.Helper()
	g := newGateway(t, o)
	var running sync.RWMutex
	t.Cleanup(func() { running.Lock(); running.Unlock() }) //nolint:staticcheck // it waits for the readers
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.RLock()
		defer running.RUnlock()
		g.ServeHTTP(w, r)
	})
}

const callPath = "/v1/call/d/e/s.S/Do"

// post makes a request for a recorder; headers are name, value pairs.
func post(path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", conduit.ContentJSON)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return r
}

// answer is a response whose body the harness closes, or that has nothing to close.
type answer struct{ *http.Response }

func do(g *Gateway, r *http.Request) answer {
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return answer{w.Result()}
}

// readAnswer reads a response from a connection that the test closes.
func readAnswer(t *testing.T, r io.Reader) answer {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return answer{res}
}

func bodyOf(t *testing.T, res answer) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantProblem reads an answer as problem details and checks what all have.
func wantProblem(t *testing.T, res answer, status int, reason string) Problem {
	t.Helper()
	body := bodyOf(t, res)
	var p Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%s %q is no problem: %v", res.Status, body, err)
	}
	if res.StatusCode != status || p.Status != status || p.Reason != reason {
		t.Fatalf("got %s %s; want %d with reason %s", res.Status, body, status, reason)
	}
	if got := res.Header.Get("Content-Type"); got != typeProblem {
		t.Errorf("a problem of content type %q", got)
	}
	if p.Title == "" || p.Type != errorPage+p.Code {
		t.Errorf("type %q and title %q for code %q", p.Type, p.Title, p.Code)
	}
	if res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("no nosniff: %v", res.Header)
	}
	return p
}

// live is a gateway behind a real server.
func live(t *testing.T, o Options) (*httptest.Server, *script) {
	t.Helper()
	s := newScript()
	o.Locate = s.locate
	srv := httptest.NewServer(served(t, o))
	t.Cleanup(srv.Close)
	return srv, s
}

// send sends a request to a real server, and returns once its header has come.
func send(t *testing.T, srv *httptest.Server, r *http.Request) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(r.Context(), r.Method, srv.URL+r.URL.String(), r.Body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = r.Header
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return answer{res}
}

// pipeListener accepts connections in memory, which synctest understands.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (l *pipeListener) dial() net.Conn {
	a, b := net.Pipe()
	l.conns <- b
	return a
}

// inMemory serves a gateway inside of a synctest bubble until the test is over.
func inMemory(t *testing.T, o Options) (*pipeListener, *script) {
	t.Helper()
	s := newScript()
	o.Locate = s.locate
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: served(t, o)}
	over := make(chan struct{})
	go func() { defer close(over); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-over })
	return l, s
}

// lineOf reads a line within a test's patience.
func lineOf(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("after %q: %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}
