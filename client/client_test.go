package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

const limit = 30 * time.Second

const where = "*://echo/echo/test.Echo"

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// peer is an instance with one method, Name, which returns the peer's name, and
// Sum, which adds what comes up.
type peer struct {
	id     address.InstanceID
	name   string
	url    string
	addr   string
	server *transport.Server
	listen net.Listener
	http   *http.Server

	refuse   atomic.Pointer[conduit.Error] // how calls are refused, if at all
	served   atomic.Int64
	attempts sync.Map // attempt -> true
	started  chan struct{}
}

func (p *peer) Handle(in *link.Incoming) {
	p.served.Add(1)
	p.attempts.Store(in.Invoke.Attempt, true)
	if e := p.refuse.Load(); e != nil {
		select {
		case p.started <- struct{}{}:
		default:
		}
		in.Refuse(e)
		return
	}
	switch string(in.Invoke.Method) {
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
	}
}

func start(t *testing.T, name string) *peer {
	t.Helper()
	p := &peer{id: address.RandomInstanceID(), name: name, started: make(chan struct{}, 100)}
	p.server = transport.NewServer(transport.ServerOptions{
		Handler: p,
		Link:    link.Options{Hello: link.Hello{Instance: p.id.String()}},
		Authenticate: func(r *http.Request) (link.Peer, error) {
			if strings.Contains(r.Header.Get("Authorization"), "bad") {
				return link.Peer{}, errors.New("the session is unknown")
			}
			return link.Peer{User: "ada", Level: conduit.User}, nil
		},
	})
	var err error
	p.listen, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = p.listen.Addr().String()
	p.url = "ws://" + p.addr
	p.http = p.server.HTTPServer(p.server)
	go func() { _ = p.http.Serve(p.listen) }()
	t.Cleanup(p.stop)
	return p
}

func (p *peer) stop() {
	_ = p.listen.Close()
	_ = p.http.Close()
	_ = p.server.Close()
}

func dial(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := Dial(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
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

func TestCall(t *testing.T) {
	ctx := testContext(t)
	a := start(t, "a")
	c := dial(t, Options{Peers: []string{a.addr}})
	got, err := conduit.Call[string](ctx, c.At(where), "Name", nil)
	if err != nil || got != "a" {
		t.Errorf("%q, %v", got, err)
	}
	var items []int
	for item, err := range conduit.Stream[int](ctx, c.At(where), "Count", nil) {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	if len(items) != 3 || items[2] != 3 {
		t.Errorf("%v", items)
	}
}

func TestBadAddress(t *testing.T) {
	a := start(t, "a")
	c := dial(t, Options{Peers: []string{a.url}})
	for _, bad := range []string{"", "nonsense", "*://a/b", "x://a/b/c.D"} {
		_, err := conduit.Call[string](testContext(t), c.At(bad), "Name", nil)
		if e := want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent); e.Method != "Name" {
			t.Errorf("%+v", e)
		}
	}
	if n := a.served.Load(); n != 0 {
		t.Errorf("%d calls arrived", n)
	}
}

func TestDialFails(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	ctx := testContext(t)
	a, gone := start(t, "a"), start(t, "gone")
	gone.stop()
	other := start(t, "other")
	other.stop()
	for _, test := range []struct {
		name   string
		o      Options
		code   conduit.Code
		reason string
		texts  []string
	}{
		{"no peers", Options{}, conduit.InvalidArgument, conduit.ReasonBadAddress, []string{"no peers"}},
		{"a bad peer", Options{Peers: []string{"host"}}, conduit.InvalidArgument, conduit.ReasonBadAddress, []string{"host", "port"}},
		{"a secret in a peer", Options{Peers: []string{"ws://u:" + canary + "@127.0.0.1:1"}}, conduit.InvalidArgument, conduit.ReasonBadAddress, []string{"password"}},
		{"not insecure", Options{Peers: []string{"ws://192.0.2.1:7400"}}, conduit.InvalidArgument, conduit.ReasonBadAddress, []string{"cluster.insecure"}},
		{"nobody there", Options{Peers: []string{gone.url}}, conduit.Unavailable, conduit.ReasonPeerUnreachable, []string{gone.addr, "refused"}},
		{"nobody anywhere", Options{Peers: []string{gone.url, other.url}}, conduit.Unavailable, conduit.ReasonPeerUnreachable, []string{gone.addr, other.addr, "none of 2"}},
		{"a bad session", Options{Peers: []string{a.url}, Session: "bad" + canary}, conduit.Unauthenticated, conduit.ReasonUnauthenticated, []string{"401"}},
		{"a bad session and nobody", Options{Peers: []string{gone.url, a.url}, Session: "bad" + canary}, conduit.Unauthenticated, conduit.ReasonUnauthenticated, []string{"401", gone.addr}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Dial(ctx, test.o)
			if c != nil {
				t.Error("a client with an error")
			}
			want(t, err, test.code, test.reason, conduit.NotSent)
			for _, text := range test.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in %v", text, err)
				}
			}
			if strings.Contains(err.Error(), "CANARY") {
				t.Errorf("the secret is in %v", err)
			}
		})
	}
	// One of several is enough.
	c := dial(t, Options{Peers: []string{gone.url, a.url}})
	if got, err := conduit.Call[string](ctx, c.At(where), "Name", nil); err != nil || got != "a" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestInstance: an address with an instance goes to the peer that is it.
func TestInstance(t *testing.T) {
	ctx := testContext(t)
	a, b := start(t, "a"), start(t, "b")
	gone := start(t, "gone")
	c := dial(t, Options{Peers: []string{a.url, b.url}})
	for _, p := range []*peer{b, a, b} {
		at := c.At(address.MustParse(where).WithInstance(p.id).String())
		if got, err := conduit.Call[string](ctx, at, "Name", nil); err != nil || got != p.name {
			t.Errorf("%q, %v; want %q", got, err, p.name)
		}
	}
	// Refused by the one, it does not go to the other.
	b.refuse.Store(refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true))
	_, err := conduit.Call[string](ctx, c.At(address.MustParse(where).WithInstance(b.id).String()), "Name", nil)
	want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)

	stranger := address.MustParse(where).WithInstance(gone.id).String()
	_, err = conduit.Call[string](ctx, c.At(stranger), "Name", nil)
	want(t, err, conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.NotSent)

	gone.stop()
	c = dial(t, Options{Peers: []string{a.url, gone.url}})
	_, err = conduit.Call[string](ctx, c.At(stranger), "Name", nil)
	if e := want(t, err, conduit.Unavailable, conduit.ReasonInstanceNotFound, conduit.NotSent); !strings.Contains(e.Message, gone.addr) {
		t.Errorf("%v", err)
	}
}

// TestFailover: what certainly did not start goes to the next peer, and nothing
// else does.
func TestFailover(t *testing.T) {
	for _, test := range []struct {
		name   string
		refuse *conduit.Error
		moves  bool
	}{
		{"draining", refusal(conduit.Unavailable, conduit.ReasonDraining, true), true},
		{"no capacity", refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true), true},
		{"not hosted", refusal(conduit.NotFound, conduit.ReasonDeploymentNotFound, false), true},
		{"no such method", refusal(conduit.NotFound, conduit.ReasonMethodNotFound, false), false},
		{"not permitted", refusal(conduit.PermissionDenied, conduit.ReasonLevelTooLow, false), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := testContext(t)
			a, b := start(t, "a"), start(t, "b")
			c := dial(t, Options{Peers: []string{a.url, b.url}})
			for _, p := range c.peers { // both have a link, so that the order is the list's
				if err := p.Connect(ctx); err != nil {
					t.Fatal(err)
				}
			}
			a.refuse.Store(test.refuse)
			got, err := conduit.Call[string](ctx, c.At(where), "Name", nil)
			if test.moves {
				if err != nil || got != "b" {
					t.Errorf("%q, %v", got, err)
				}
				if _, ok := b.attempts.Load(uint32(1)); !ok {
					t.Error("the second attempt does not say that it is one")
				}
				return
			}
			want(t, err, test.refuse.Code, test.refuse.Reason, conduit.Refused)
			if n := b.served.Load(); n != 0 {
				t.Errorf("b was asked %d times", n)
			}
		})
	}
	t.Run("executed", func(t *testing.T) {
		a, b := start(t, "a"), start(t, "b")
		c := dial(t, Options{Peers: []string{a.url, b.url}})
		_, err := conduit.Call[string](testContext(t), c.At(where), "Fail", nil)
		want(t, err, conduit.Unavailable, conduit.ReasonUnspecified, conduit.Executed)
		if n := a.served.Load() + b.served.Load(); n != 1 {
			t.Errorf("%d attempts", n)
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		ctx := testContext(t)
		a, b := start(t, "a"), start(t, "b")
		c := dial(t, Options{Peers: []string{a.url, b.url}})
		a.stop()
		for range 2 { // the first may still find the link that dies, and go on from there
			if got, err := conduit.Call[string](ctx, c.At(where), "Name", nil); err != nil || got != "b" {
				if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Outcome != conduit.OutcomeUnknown {
					t.Errorf("%q, %v", got, err)
				}
			}
		}
		for _, err := range conduit.Stream[int](ctx, c.At(where), "Count", nil) {
			if err != nil {
				t.Errorf("a stream, with one peer gone: %v", err)
			}
		}
		b.stop()
		for range 2 {
			_, err := conduit.Call[string](ctx, c.At(where), "Name", nil)
			e, ok := errors.AsType[*conduit.Error](err)
			if !ok || e.Code != conduit.Unavailable {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("three attempts at most", func(t *testing.T) {
		var urls []string
		var peers []*peer
		for _, name := range []string{"a", "b", "c", "d"} {
			p := start(t, name)
			p.refuse.Store(refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true))
			peers, urls = append(peers, p), append(urls, p.url)
		}
		c := dial(t, Options{Peers: urls})
		_, err := conduit.Call[string](testContext(t), c.At(where), "Name", nil)
		if e := want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused); !strings.Contains(e.Message, "attempt 3") {
			t.Errorf("%v", err)
		}
		n := int64(0)
		for _, p := range peers {
			n += p.served.Load()
		}
		if n != 3 {
			t.Errorf("%d attempts", n)
		}
	})
	t.Run("the only peer says when", func(t *testing.T) {
		a := start(t, "a")
		busy := refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
		busy.RetryAfter = 10 * time.Millisecond
		a.refuse.Store(busy)
		c := dial(t, Options{Peers: []string{a.url}})
		_, err := conduit.Call[string](testContext(t), c.At(where), "Name", nil)
		want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
		if n := a.served.Load(); n != 3 {
			t.Errorf("%d attempts", n)
		}
		// It does not wait beyond the deadline.
		busy = refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
		busy.RetryAfter = time.Hour
		a.refuse.Store(busy)
		_, err = conduit.Call[string](testContext(t), c.At(where), "Name", nil)
		want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
	})
	t.Run("cancelled while it waits", func(t *testing.T) {
		a := start(t, "a")
		busy := refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
		busy.RetryAfter = limit / 2
		a.refuse.Store(busy)
		c := dial(t, Options{Peers: []string{a.url}})
		ctx, cancel := context.WithCancel(testContext(t))
		over := make(chan error, 1)
		begin := time.Now()
		go func() { _, err := conduit.Call[string](ctx, c.At(where), "Name", nil); over <- err }()
		<-a.started
		cancel()
		if err := <-over; err == nil || time.Since(begin) > limit/3 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

func TestCancel(t *testing.T) {
	a := start(t, "a")
	c := dial(t, Options{Peers: []string{a.url}})
	ctx, cancel := context.WithCancel(testContext(t))
	over := make(chan error, 1)
	go func() { _, err := conduit.Call[string](ctx, c.At(where), "Block", nil); over <- err }()
	<-a.started
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestCallTimeout(t *testing.T) {
	a := start(t, "a")
	c := dial(t, Options{Peers: []string{a.url}, CallTimeout: 50 * time.Millisecond})
	x := c.At(where).Invoke(t.Context(), &conduit.Invocation{Method: "Block", Last: true})
	_, err := x.Recv(t.Context())
	// Both ends mind the deadline; whose word comes first decides the outcome.
	if !errors.Is(err, &conduit.Error{Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline}) {
		t.Errorf("%v", err)
	}
}

func TestPerCall(t *testing.T) {
	a := start(t, "a")
	c := dial(t, Options{Peers: []string{a.url}, PerCall: true})
	for range 2 {
		if got, err := conduit.Call[string](testContext(t), c.At(where), "Name", nil); err != nil || got != "a" {
			t.Errorf("%q, %v", got, err)
		}
	}
}
