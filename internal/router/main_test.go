package router

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/peerlink"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is the deadline of a test: far beyond what any needs on a busy machine.
const limit = 30 * time.Second

const workAddress = "*://work/work/test.Work"

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func wait[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(limit):
		t.Fatalf("timed out waiting for %s", what)
		panic("unreachable")
	}
}

// peer is a worker as a registry and a link see one.
type peer struct {
	*transport.Server
	id    address.InstanceID
	name  string
	url   string
	calls atomic.Int64
	// serve decides the calls of the element.
	serve func(p *peer, in *link.Incoming)
}

func (p *peer) Deployments() []*conduitv1.DeploymentInfo {
	method := func(name string, idempotent bool) *conduitv1.MethodDescription {
		return &conduitv1.MethodDescription{Name: name, Remote: true, Idempotent: idempotent}
	}
	return []*conduitv1.DeploymentInfo{{
		Id: address.UniqueDeploymentID("work").String(), Name: "work",
		Elements: []*conduitv1.ElementInfo{{Name: "work", State: "ready", Services: []*conduitv1.ServiceDescription{{
			Name: "test.Work", Methods: []*conduitv1.MethodDescription{method("Plain", false), method("Again", true)},
		}}}},
	}}
}

func (p *peer) State() conduitv1.InstanceState {
	return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
}

func (p *peer) Drain(string, string) {}

func startPeer(t *testing.T, name string, serve func(p *peer, in *link.Incoming)) *peer {
	t.Helper()
	p := &peer{id: address.RandomInstanceID(), name: name, serve: serve}
	services, err := builtin.New(builtin.Options{
		Instance: p.id, Name: name, Epoch: 1, Inventory: p, Lifecycle: p,
		Authorize: func(link.Peer, *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			return "other", conduit.Superuser, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Server = transport.NewServer(transport.ServerOptions{
		Handler: services.Door(builtin.Cluster, handlerFunc(func(in *link.Incoming) {
			p.calls.Add(1)
			p.serve(p, in)
		})),
		Authenticate: func(*http.Request) (link.Peer, error) {
			return link.Peer{Name: "other", User: "other", Level: conduit.Superuser}, nil
		},
		Link: link.Options{Hello: link.Hello{Instance: p.id.String(), Epoch: 1}},
	})
	p.url = "ws://" + l.Addr().String() + transport.Path
	h := p.HTTPServer(p.Server)
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		_ = h.Close()
		_ = p.Close()
	})
	return p
}

type handlerFunc func(in *link.Incoming)

func (f handlerFunc) Handle(in *link.Incoming) { f(in) }

// answers returns the peer's name to every call.
func answers(p *peer, in *link.Incoming) {
	name := p.name
	in.Serve(func(_ context.Context, s *link.ServerCall) error {
		s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"` + name + `"`)})
		return nil
	})
}

// full refuses every call, as an instance without room does.
func full(_ *peer, in *link.Incoming) {
	in.Refuse(&conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, Message: "full"})
}

// dies cuts the link once the call is there.
func dies(_ *peer, in *link.Incoming) {
	conn := in.Conn()
	in.Serve(func(ctx context.Context, _ *link.ServerCall) error {
		conn.Close(link.CloseBug, "it dies")
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// rig is a router between a caller's link and some peers.
type rig struct {
	t      *testing.T
	router *Router
	door   Door
	caller *link.Conn
	passed atomic.Int64
	ended  chan conduit.Outcome
}

// mode is how calls get their links.
type mode string

const (
	shared  mode = "multiplexed"
	perCall mode = "per-call"
)

func inBothModes(t *testing.T, test func(t *testing.T, m mode)) {
	t.Helper()
	for _, m := range []mode{shared, perCall} {
		t.Run(string(m), func(t *testing.T) { test(t, m) })
	}
}

func newRig(t *testing.T, m mode, here locator.Local, peers ...*peer) *rig {
	t.Helper()
	client := transport.NewClient(transport.ClientOptions{})
	urls := make([]string, len(peers))
	for i, p := range peers {
		urls[i] = p.url
	}
	source, err := discovery.NewStatic(urls, false)
	if err != nil {
		t.Fatal(err)
	}
	reg := registry.New(registry.Options{Source: source, Dialer: peerlink.New(client, peerlink.Options{PerCall: m == perCall})})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- reg.Run(ctx) }()

	r := &rig{t: t, ended: make(chan conduit.Outcome, 1000)}
	o := Options{
		Locator: locator.New(locator.Options{Registry: reg, Local: here, PreferLocal: true, Self: address.RandomInstanceID()}),
		ConnOf: func(l registry.Link) *link.Conn {
			p, ok := l.(*peerlink.Link)
			if !ok {
				t.Errorf("a link is %T", l)
			}
			return p.Conn()
		},
	}
	if m == perCall {
		o.ConnOf = nil
		o.Alone = func(ctx context.Context, l registry.Link, units uint32, background bool) (*link.Conn, *conduit.Error) {
			return l.(*peerlink.Link).Alone(ctx, units, background) //nolint:forcetypeassert // as above
		}
	}
	r.router = New(o)
	r.door = Door{
		Here: func(Call, *frame.Invoke) *conduit.Error {
			return conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "nothing is here")
		},
		ToPeer: func(in *frame.Invoke, attempt uint32) (frame.Invoke, *conduit.Error) {
			out := *in
			out.Attempt = attempt
			return out, nil
		},
		Passed: func(*frame.Invoke) func(conduit.Code, conduit.Outcome) {
			r.passed.Add(1)
			return func(_ conduit.Code, outcome conduit.Outcome) {
				select {
				case r.ended <- outcome:
				default: // nobody wants so many
				}
			}
		},
	}
	near, far := link.Pipe(16)
	served := link.New(far, link.Options{Handler: handlerFunc(func(in *link.Incoming) { r.router.Pass(in, r.door) })})
	r.caller = link.New(near, link.Options{Dialer: true})
	t.Cleanup(func() {
		r.caller.Close(link.CloseDone, "")
		<-r.caller.Done()
		<-served.Done()
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		r.router.Close()
	})
	return r
}

// at is what calls an address through the router.
type at struct {
	conn  *link.Conn
	route *link.Route
}

func (a at) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return a.conn.Invoke(ctx, a.route, in)
}

func (r *rig) at(addr string) conduit.Invoker {
	return at{r.caller, link.NewRoute(address.MustParse(addr))}
}

func (r *rig) call(addr, method string) (string, error) {
	return conduit.Call[string](testContext(r.t), r.at(addr), method, "x")
}
