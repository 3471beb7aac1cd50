package gateway

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// element answers calls that came over a link, by the method's name.
type element struct {
	waiting chan struct{} // a call of Wait has begun
	ended   chan error    // and why it ended
}

func (e *element) Handle(in *link.Incoming) {
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		i := s.Invoke()
		switch string(i.Method) {
		case "Echo":
			m, err := s.Recv(ctx)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			s.Return(m)
			return nil
		case "Names":
			text := string(i.Deployment) + "/" + string(i.Element) + "/" + string(i.Service) + " " + string(i.TraceParent)
			s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: []byte(text)})
			return nil
		case "Count":
			for _, n := range []string{"1", "2", "3"} {
				if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(n)}); err != nil {
					return err
				}
			}
			return nil
		case "Join":
			var all []string
			for {
				m, err := s.Recv(ctx)
				if err == io.EOF {
					break
				}
				if err != nil {
					return err
				}
				all = append(all, string(m.Data))
			}
			s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte("[" + strings.Join(all, ",") + "]")})
			return nil
		case "Chat":
			for {
				m, err := s.Recv(ctx)
				if err == io.EOF {
					return nil
				}
				if err == nil {
					err = s.Send(ctx, m)
				}
				if err != nil {
					if e.ended != nil {
						e.ended <- context.Cause(ctx)
					}
					return err
				}
			}
		case "Wait":
			e.waiting <- struct{}{}
			<-ctx.Done()
			e.ended <- context.Cause(ctx)
			return context.Cause(ctx)
		default:
			return conduit.Errorf(conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused, "there is no method of this name")
		}
	})
}

type linked struct {
	conn  *link.Conn
	route *link.Route
}

func (l linked) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return l.conn.Invoke(ctx, l.route, in)
}

// overLink is a gateway whose calls go over a real link to an element.
func overLink(t *testing.T, o Options) (*httptest.Server, *element, *link.Conn) {
	t.Helper()
	e := &element{waiting: make(chan struct{}, 1), ended: make(chan error, 1)}
	a, b := link.Pipe(16)
	server := link.New(b, link.Options{Handler: e, Memory: link.NewMemory(0)})
	conn := link.New(a, link.Options{Dialer: true, Memory: link.NewMemory(0), Peer: link.Peer{Name: testInstance}})
	o.Locate = func(addr string) conduit.Invoker { return linked{conn, link.NewRoute(address.MustParse(addr))} }
	srv := httptest.NewServer(served(t, o))
	t.Cleanup(func() {
		srv.Close()
		conn.Close(link.CloseDone, "test over")
		server.Close(link.CloseDone, "test over")
	})
	return srv, e, conn
}

func TestOverLink(t *testing.T) {
	srv, _, _ := overLink(t, Options{})
	for _, tt := range []struct {
		method, body, accept, want string
		status                     int
	}{
		{"Echo", `{"a":[1,2]}`, "", `{"a":[1,2]}` + "\n", 200},
		{"Echo", `"` + strings.Repeat("x", 1<<20) + `"`, "", `"` + strings.Repeat("x", 1<<20) + `"` + "\n", 200},
		{"Echo", "", "", "", 204},
		{"Names", "", "", "d/a b/s.S#n " + goodParent, 200},
		{"Count", "", "", "1\n2\n3\n", 200},
		{"Count", "", typeEvents, "id: 1\ndata: 1\n\nid: 2\ndata: 2\n\nid: 3\ndata: 3\n\nevent: end\ndata: {\"results\":3}\n\n", 200},
	} {
		res := send(t, srv, post("/v1/call/d/a%20b%5B0%5D/s.S%23n/"+tt.method, tt.body, "Accept", tt.accept, "Traceparent", goodParent))
		if got := bodyOf(t, res); res.StatusCode != tt.status || got != tt.want {
			t.Errorf("%s of %.20q: %s %.200q", tt.method, tt.body, res.Status, got)
		}
	}
	p := wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Nothing", "")), http.StatusNotFound, conduit.ReasonMethodNotFound)
	if p.Outcome != conduit.Refused || p.Method != "Nothing" || p.Address != "*://d/e/s" || p.Peer != testInstance {
		t.Errorf("%+v", p)
	}
}

// TestCancelOverLink: what the client does ends the handler at the far end.
func TestCancelOverLink(t *testing.T) {
	srv, e, conn := overLink(t, Options{})
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-e.waiting; leave() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/call/d/e/s/Wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := srv.Client().Do(r); err == nil {
		res.Body.Close()
		t.Fatalf("an answer: %s", res.Status)
	}
	if err := <-e.ended; err == nil {
		t.Error("the handler ended without a cause")
	}

	p := wantProblem(t, send(t, srv, post("/v1/call/d/e/s/Wait", "", headerTimeout, "50ms")), http.StatusGatewayTimeout, conduit.ReasonDeadline)
	<-e.waiting
	<-e.ended
	if p.Outcome != conduit.OutcomeUnknown && p.Outcome != conduit.Executed { // whichever end was first
		t.Errorf("%+v", p)
	}

	// A link that dies under a call: it may have run, so nobody is asked to try again.
	go func() { <-e.waiting; conn.Close(link.CloseDone, "gone") }()
	res := send(t, srv, post("/v1/call/d/e/s/Wait", ""))
	if p := wantProblem(t, res, http.StatusServiceUnavailable, conduit.ReasonPeerLost); p.Outcome != conduit.OutcomeUnknown || res.Header.Get("Retry-After") != "" {
		t.Errorf("%s %+v", res.Status, p)
	}
	<-e.ended
}

// TestLog has what helps, and neither payload nor credential.
func TestLog(t *testing.T) {
	var out safeBuilder
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g := answering(t, Options{Log: log}, conduit.Errorf(conduit.NotFound, "no_player", conduit.Executed, "x"))
	do(g, post(callPath, `"payload"`, "Authorization", "Bearer swordfish", "Traceparent", goodParent))
	got := out.String()
	for _, want := range []string{"*://d/e/s.S", "method=Do", "status=404", "reason=no_player", "outcome=executed", "trace_id=0af7651916cd43dd8448eb211c80319c"} {
		if !strings.Contains(got, want) {
			t.Errorf("the log lacks %s: %s", want, got)
		}
	}
	for _, bad := range []string{"payload", "swordfish"} {
		if strings.Contains(got, bad) {
			t.Errorf("the log has %s: %s", bad, got)
		}
	}
}

type safeBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *safeBuilder) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuilder) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestManyAtOnce is for the race detector: calls of all kinds over one link.
func TestManyAtOnce(t *testing.T) {
	srv, _, _ := overLink(t, Options{KeepAlive: time.Millisecond})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, accept := range []string{"", typeNDJSON, typeEvents, typeEvents} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/call/d/e/s/Count", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Accept", accept)
				res, err := srv.Client().Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(b), "3\n") {
					t.Errorf("%s: %s %q %v", accept, res.Status, b, err)
				}
			}
		})
	}
	wg.Wait()
}
