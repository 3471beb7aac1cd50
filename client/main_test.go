package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 30 * time.Second

const (
	where   = "*://echo/echo/test.Echo"
	session = "ada"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// poll waits until something is so.
func poll(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(limit); !is(); {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// peer is an instance with an element echo in deployment echo.
type peer struct {
	id     address.InstanceID
	name   string
	url    string
	addr   string
	server *transport.Server
	listen net.Listener
	http   *http.Server

	refuse   atomic.Pointer[conduit.Error] // how calls are refused, if at all
	served   atomic.Int64                  // calls of the element
	attempts sync.Map                      // attempt -> true
	units    atomic.Int64                  // of the last call
	started  chan struct{}
}

// info is what the peer says of itself; to who is anonymous, its name alone.
func (p *peer) info(level conduit.Level) *conduitv1.InstanceInfo {
	info := &conduitv1.InstanceInfo{Instance: p.id.String(), Epoch: 7, Name: p.name}
	if level == conduit.Anonymous {
		return info
	}
	var methods []*conduitv1.MethodDescription
	for _, name := range []string{"Name", "Count", "Fail", "Block", "Die"} {
		methods = append(methods, &conduitv1.MethodDescription{Name: name, Remote: true})
	}
	methods = append(methods, &conduitv1.MethodDescription{Name: "DieIdempotent", Remote: true, Idempotent: true})
	info.Digest = []byte{1}
	info.Deployments = []*conduitv1.DeploymentInfo{{
		Id: address.UniqueDeploymentID("echo").String(), Name: "echo", Elements: []*conduitv1.ElementInfo{{
			Name: "echo", State: "ready", Services: []*conduitv1.ServiceDescription{{Name: "test.Echo", Methods: methods}},
		}},
	}}
	return info
}

// Handle implements link.Handler.
func (p *peer) Handle(in *link.Incoming) {
	method := string(in.Invoke.Method)
	if method == "WhoAreYou" {
		level := in.Peer().Level
		in.Serve(func(_ context.Context, s *link.ServerCall) error {
			contentType, data, err := conduit.Encode(p.info(level))
			if err == nil {
				s.Return(conduit.Message{ContentType: contentType, Data: data})
			}
			return err
		})
		return
	}
	p.served.Add(1)
	p.attempts.Store(in.Invoke.Attempt, true)
	p.units.Store(int64(in.Invoke.Units))
	if e := p.refuse.Load(); e != nil {
		select {
		case p.started <- struct{}{}:
		default:
		}
		in.Refuse(e)
		return
	}
	switch method {
	case "Name":
		in.Serve(func(_ context.Context, s *link.ServerCall) error {
			s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"` + p.name + `"`)})
			return nil
		})
	case "Count":
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			for _, d := range []string{"1", "2", "3"} {
				if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(d)}); err != nil {
					return err
				}
			}
			return nil
		})
	case "Fail":
		in.Serve(func(context.Context, *link.ServerCall) error {
			e := conduit.Errorf(conduit.Unavailable, conduit.ReasonUnspecified, conduit.Executed, "the element says no")
			e.Retryable = true
			return e
		})
	case "Block":
		in.Serve(func(ctx context.Context, _ *link.ServerCall) error {
			p.started <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	case "Die", "DieIdempotent": // the first peer that is asked dies, and any other answers
		attempt := in.Invoke.Attempt
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			if attempt > 0 {
				s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"` + p.name + `"`)})
				return nil
			}
			p.started <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	default:
		in.Refuse(refusal(conduit.NotFound, conduit.ReasonMethodNotFound, true))
	}
}

func start(t *testing.T, name string) *peer {
	t.Helper()
	p := &peer{id: address.RandomInstanceID(), name: name, started: make(chan struct{}, 100)}
	p.serve(t, "127.0.0.1:0")
	return p
}

// serve listens, also once more after stop.
func (p *peer) serve(t *testing.T, addr string) {
	t.Helper()
	p.server = transport.NewServer(transport.ServerOptions{
		Handler: p,
		Link:    link.Options{Hello: link.Hello{Instance: p.id.String(), Epoch: 7}},
		Authenticate: func(r *http.Request) (link.Peer, error) {
			switch who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); who {
			case "":
				return link.Peer{}, nil
			case session:
				return link.Peer{User: who, Level: conduit.User}, nil
			default:
				return link.Peer{}, errors.New("the session is unknown")
			}
		},
	})
	var err error
	p.listen, err = new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p.addr = p.listen.Addr().String()
	p.url = "ws://" + p.addr
	p.http = p.server.HTTPServer(p.server)
	h, l := p.http, p.listen
	go func() { _ = h.Serve(l) }()
	t.Cleanup(p.stop)
}

func (p *peer) stop() {
	_ = p.listen.Close()
	_ = p.http.Close()
	_ = p.server.Close()
}

// dial returns a Client that knows all of its peers, as a user unless the options
// say otherwise.
func dial(t *testing.T, o Options, peers ...*peer) *Client {
	t.Helper()
	for _, p := range peers {
		o.Peers = append(o.Peers, p.url)
	}
	c, err := Dial(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.WaitPeers(testContext(t))
	return c
}

func name(t *testing.T, ctx context.Context, c *Client) (string, error) { //nolint:revive // t is first in a test's helper
	t.Helper()
	return conduit.Call[string](ctx, c.At(where), "Name", nil)
}

// alive counts the peers that are alive.
func alive(c *Client) int {
	return len(slices.DeleteFunc(c.Peers(), func(p registry.PeerStatus) bool { return p.State != registry.StateAlive }))
}

func want(t *testing.T, err error, code conduit.Code, reason string, outcome conduit.Outcome) *conduit.Error {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != outcome {
		t.Fatalf("%v, want %v %q %v", err, code, reason, outcome)
	}
	return e
}

func refusal(code conduit.Code, reason string, retryable bool) *conduit.Error {
	e := conduit.Errorf(code, reason, conduit.Refused, "refused for the test")
	e.Retryable = retryable
	return e
}
