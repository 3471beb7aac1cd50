package peerlink

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

// limit is the deadline of a test: far beyond what any needs on a busy machine.
const limit = 30 * time.Second

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), limit)
	tb.Cleanup(cancel)
	return ctx
}

func wait[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(limit):
		tb.Fatalf("timed out waiting for %s", what)
		panic("unreachable")
	}
}

// poll waits until something is so.
func poll(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(limit); !is(); {
		select {
		case <-tick.C:
		case <-over:
			tb.Fatalf("timed out waiting for %s", what)
		}
	}
}

// instance is a worker as far as a registry sees one: a Server, the built-in
// services, a budget, and an element with the methods Work, Wait and Watch.
type instance struct {
	*transport.Server
	id     address.InstanceID
	budget *budget.Budget
	url    string

	version  atomic.Int64  // of the deployment: the digest changes with it
	asked    atomic.Int64  // calls of WhoAreYou
	begun    chan struct{} // one for each Wait
	release  chan struct{} // ends a Wait each
	behavior func(in *link.Incoming) bool
}

// reporter says what a budget and a link's ledger know.
type reporter struct {
	i      *instance
	ledger *budget.Ledger
	n      *atomic.Uint64
}

func (r *reporter) Refuse(units int64) { r.ledger.Refuse(units); r.n.Add(1) }

func (r *reporter) Version() uint64 { return r.n.Load() }

func (r *reporter) Status() link.Status {
	s := r.ledger.Status()
	return link.Status{
		Available: s.Available, Total: s.Total, Judged: s.Judged, State: conduitv1.InstanceState_INSTANCE_STATE_ACTIVE,
		Digest: r.i.services().Digest(),
	}
}

func (i *instance) Deployments() []*conduitv1.DeploymentInfo {
	return []*conduitv1.DeploymentInfo{{
		Id: address.UniqueDeploymentID("work").String(), Name: "work",
		Elements: []*conduitv1.ElementInfo{{Name: "work", State: "ready", Version: strconv.FormatInt(i.version.Load(), 10), Services: []*conduitv1.ServiceDescription{{
			Name: "test.Work", Methods: []*conduitv1.MethodDescription{
				{Name: "Work", Remote: true, MinLevel: conduitv1.Level_LEVEL_USER, Units: 10}, {Name: "Wait", Remote: true, MinLevel: conduitv1.Level_LEVEL_USER},
			},
		}}}},
	}}
}

func (i *instance) services() *builtin.Services {
	s, err := builtin.New(builtin.Options{
		Instance: i.id, Name: "w", Epoch: 9, Inventory: i, Lifecycle: lifecycle{},
		Authorize: func(p link.Peer, in *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			if in.As.Kind != frame.AsLink { // as on an instance's link
				return "", conduit.Anonymous, nil
			}
			return p.User, p.Level, nil
		},
	})
	if err != nil {
		panic(err)
	}
	return s
}

// lifecycle is that of an instance that goes on for ever.
type lifecycle struct{}

func (lifecycle) State() conduitv1.InstanceState {
	return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
}
func (lifecycle) Drain(string, string) {}

// Handle takes what is not for the built-in services.
func (i *instance) Handle(in *link.Incoming) {
	r, _ := in.Reporter().(*reporter)
	units := int64(in.Invoke.Units)
	hold, refusal := r.ledger.Judge(units, units)
	r.n.Add(1)
	in.MarkJudged()
	if refusal != nil {
		in.Refuse(refusal)
		return
	}
	method := string(in.Invoke.Method)
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		defer func() {
			hold.Release()
			r.n.Add(1)
		}()
		if method != "Work" {
			i.begun <- struct{}{}
			release := i.release
			if method == "Watch" {
				release = nil
			}
			select {
			case <-release:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: []byte("done")})
		return nil
	})
}

// start runs an instance on loopback.
func start(tb testing.TB, units int64) *instance {
	tb.Helper()
	i := &instance{id: address.RandomInstanceID(), budget: budget.New(units), begun: make(chan struct{}, 100), release: make(chan struct{})}
	var n atomic.Uint64
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	door := i.services().Door(builtin.Cluster, i)
	i.Server = transport.NewServer(transport.ServerOptions{
		Handler: handlerFunc(func(in *link.Incoming) {
			if string(in.Invoke.Method) == "WhoAreYou" {
				i.asked.Add(1)
				if i.behavior != nil && i.behavior(in) {
					return
				}
			}
			door.Handle(in)
		}),
		Reporter: func(link.Peer) link.Reporter { return &reporter{i: i, ledger: i.budget.Ledger(), n: &n} },
		Authenticate: func(r *http.Request) (link.Peer, error) {
			if !strings.HasSuffix(r.Header.Get("Authorization"), "good") {
				return link.Peer{}, errors.New("the session is unknown")
			}
			return link.Peer{Name: "other", User: "other", Level: conduit.System, System: true}, nil
		},
		Link: link.Options{Hello: link.Hello{Instance: i.id.String(), Epoch: 9}},
	})
	i.url = "ws://" + l.Addr().String() + transport.Path
	h := i.HTTPServer(i.Server)
	go func() { _ = h.Serve(l) }()
	tb.Cleanup(func() {
		_ = l.Close()
		_ = h.Close()
		_ = i.Close()
	})
	return i
}

type handlerFunc func(in *link.Incoming)

func (h handlerFunc) Handle(in *link.Incoming) { h(in) }

func client(tb testing.TB, session string) *transport.Client {
	tb.Helper()
	c := transport.NewClient(transport.ClientOptions{Session: session, IdleTimeout: time.Millisecond})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// heard collects what hooks are told, in order.
type heard struct{ ch chan any }

func (h heard) hooks() registry.Hooks {
	return registry.Hooks{
		Status: func(s *conduitv1.Status) { h.ch <- s },
		GoAway: func(reason string) { h.ch <- reason },
	}
}

func connect(tb testing.TB, i *instance) (*Link, heard) {
	tb.Helper()
	h := heard{make(chan any, 1000)}
	l, err := New(client(tb, "good"), Options{}).Connect(testContext(tb), i.url, h.hooks())
	if err != nil {
		tb.Fatal(err)
	}
	return l.(*Link), h
}

// status returns the next Status.
func (h heard) status(tb testing.TB) *conduitv1.Status {
	tb.Helper()
	s, ok := wait(tb, h.ch, "a Status").(*conduitv1.Status)
	if !ok {
		tb.Fatal("a GoAway came")
	}
	return s
}

var workAddress = address.MustParse("*://work/work/test.Work")

func begin(ctx context.Context, l *Link, method string, units uint32, background bool) conduit.Exchange {
	return l.Invoke(ctx, link.NewRoute(workAddress), &conduit.Invocation{
		Method: method, ContentType: conduit.ContentBytes, Last: true, Streaming: true, Units: units, Background: background,
	})
}

func TestLink(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 100)
	l, h := connect(t, i)
	if l.Instance() != i.id.String() || l.Epoch() != 9 || !l.Usable() || l.Conn().Err() != nil {
		t.Errorf("it is %s, epoch %d", l.Instance(), l.Epoch())
	}
	if s := h.status(t); s.GetAvailable() != 100 || s.GetTotal() != 100 || len(s.GetDigest()) == 0 {
		t.Errorf("the first Status: %v", s)
	}
	info, err := l.WhoAreYou(ctx, nil)
	if err != nil || info.GetInstance() != i.id.String() || len(info.GetDeployments()) != 1 || info.GetUnchanged() {
		t.Fatalf("%v, %v", info, err)
	}
	again, err := l.WhoAreYou(ctx, info.GetDigest())
	if err != nil || !again.GetUnchanged() || len(again.GetDeployments()) != 0 {
		t.Errorf("with the digest: %v, %v", again, err)
	}

	d := New(nil, Options{})
	route := d.Route(workAddress)
	if _, ok := route.(*link.Route); !ok || route.Address() != workAddress {
		t.Errorf("a route is a %T to %v", route, route.Address())
	}
	for _, r := range []registry.Route{route, foreignRoute{}} {
		asked := time.Now()
		m, err := l.Invoke(ctx, r, &conduit.Invocation{Method: "Work", Last: true, Units: 10}).Recv(ctx)
		if err != nil || string(m.Data) != "done" {
			t.Errorf("%T: %q, %v", r, m.Data, err)
		}
		if at := l.Heard(); at.Before(asked) || at.After(time.Now()) {
			t.Errorf("an answer came at %v to what was asked at %v", at, asked)
		}
	}
	call, watch := begin(ctx, l, "Wait", 0, false), begin(ctx, l, "Watch", 0, true)
	wait(t, i.begun, "the call")
	wait(t, i.begun, "the watch")
	if n := l.Outstanding(); n != 1 {
		t.Errorf("%d outstanding", n)
	}
	call.Cancel(nil)
	watch.Cancel(nil)
}

type foreignRoute struct{}

func (foreignRoute) Address() address.Address { return workAddress }

// By the time that an answer is known, so is the Status that belongs to it.
func TestStatusComesBeforeTheAnswer(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 1_000_000)
	l, h := connect(t, i)
	judged := uint64(0)
	for n := range 200 {
		i.version.Add(1) // the digest changes; the next packet tells
		x := begin(ctx, l, "Work", 1, false)
		info, err := l.WhoAreYou(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		var last *conduitv1.Status
		for len(h.ch) > 0 {
			last = h.status(t)
		}
		// The call was read, and so judged, before the question was.
		if judged++; last.GetJudged() != judged || string(last.GetDigest()) != string(info.GetDigest()) {
			t.Fatalf("round %d: %d are judged; the Status is %v, the answer %v", n, judged, last, info)
		}
		if _, err := x.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// What was sent is judged, or known to be unsent, over a GoAway.
func TestUnsentOverGoAway(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 1000)
	l, h := connect(t, i)
	var calls []conduit.Exchange
	sent := uint64(0)
	for n := range uint32(20) {
		calls = append(calls, begin(ctx, l, "Wait", 1+n, false))
		sent += uint64(1 + n)
	}
	for range 20 {
		wait(t, i.begun, "a call")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	begin(gone, l, "Wait", 1000, false)
	sent += 1000
	drained := make(chan error, 1)
	go func() { drained <- i.Drain(ctx) }()
	for n := uint32(0); l.Usable(); n++ { // some cross with the GoAway
		calls = append(calls, begin(ctx, l, "Work", 3, false))
		sent += 3
	}
	calls = append(calls, begin(ctx, l, "Work", 3, false))
	sent += 3
	close(i.release)
	for _, x := range calls {
		if _, err := x.Recv(ctx); err != nil {
			if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Outcome != conduit.Refused && e.Outcome != conduit.NotSent {
				t.Errorf("a call: %v", err)
			}
		}
		x.Cancel(nil)
	}
	if err := wait(t, drained, "the drain"); err != nil {
		t.Error(err)
	}
	wait(t, l.Done(), "the link's end")
	judged, away := uint64(0), 0
	for len(h.ch) > 0 {
		switch m := (<-h.ch).(type) {
		case *conduitv1.Status:
			judged = m.GetJudged()
		case string:
			away++
			if m != conduit.ReasonDraining {
				t.Errorf("GoAway: %q", m)
			}
		}
	}
	if away != 1 || l.Unsent() < 1003 || judged < 210 || judged+l.Unsent() != sent {
		t.Errorf("%d units were sent: %d judged, %d unsent; %d GoAways", sent, judged, l.Unsent(), away)
	}
}

func TestConnectErrors(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 1)
	l, err := New(client(t, "bad"), Options{}).Connect(ctx, i.url, registry.Hooks{})
	if !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated, Reason: conduit.ReasonUnauthenticated}) || l != nil {
		t.Errorf("401: %v, %v", l, err)
	}
	l, err = New(client(t, "good"), Options{}).Connect(ctx, "http://x", registry.Hooks{})
	if !errors.Is(err, &conduit.Error{Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress}) || l != nil {
		t.Errorf("a bad URL: %v, %v", l, err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err = New(client(t, "good"), Options{}).Connect(over, i.url, registry.Hooks{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// A question that is refused, and one that is not answered in time.
	i.behavior = func(in *link.Incoming) bool {
		in.Refuse(conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused, "no"))
		return true
	}
	peer, _ := connect(t, i)
	if _, err := peer.WhoAreYou(ctx, nil); !errors.Is(err, &conduit.Error{Code: conduit.PermissionDenied, Reason: conduit.ReasonLevelTooLow}) {
		t.Errorf("refused: %v", err)
	}
}

// A released link ends with its last call; a watch does not keep it.
func TestRelease(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 100)
	l, _ := connect(t, i)
	call, watch := begin(ctx, l, "Wait", 1, false), begin(ctx, l, "Watch", 0, true)
	wait(t, i.begun, "the call")
	wait(t, i.begun, "the watch")
	l.Release()
	if l.Usable() {
		t.Error("it is usable")
	}
	_, err := begin(ctx, l, "Work", 5, false).Recv(ctx)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Outcome != conduit.NotSent || !e.Retryable || l.Unsent() != 5 {
		t.Errorf("a late call: %v, %d unsent", err, l.Unsent())
	}
	select {
	case <-l.Done():
		t.Error("the link has ended with a call under way")
	default:
	}
	i.release <- struct{}{}
	if m, err := call.Recv(ctx); err != nil || string(m.Data) != "done" {
		t.Errorf("the call: %q, %v", m.Data, err)
	}
	wait(t, l.Done(), "the link's end")
	_, err = watch.Recv(ctx)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unavailable {
		t.Errorf("the watch: %v", err)
	}

	idle, _ := connect(t, i)
	idle.Release()
	wait(t, idle.Done(), "the idle link's end")
	poll(t, "the server to see it", func() bool { return i.Links() == 0 })
}

// A Status that does not decode is left out, and costs nothing else.
func TestBadStatus(t *testing.T) {
	var got []*conduitv1.Status
	on := New(nil, Options{}).hooks("ws://x", registry.Hooks{Status: func(s *conduitv1.Status) { got = append(got, s) }})
	on.Status([]byte{0xff})
	body, err := proto.Marshal(&conduitv1.Status{Available: 3})
	if err != nil {
		t.Fatal(err)
	}
	on.Status(body)
	if len(got) != 1 || got[0].GetAvailable() != 3 {
		t.Errorf("got %v", got)
	}
	if on.GoAway != nil {
		t.Error("a hook that was not given is called")
	}
}

// A whole registry over it: it finds the instance, sees its room, and lets go.
func TestRegistry(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 100)
	source, err := discovery.NewStatic([]string{i.url}, true)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, "good")
	r := registry.New(registry.Options{Source: source, Dialer: New(c, Options{}), Refresh: 20 * time.Millisecond})
	life, end := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() { over <- r.Run(life) }()
	find := func() registry.PeerStatus {
		if all := r.Peers(); len(all) == 1 {
			return all[0]
		}
		return registry.PeerStatus{}
	}
	poll(t, "the peer", func() bool { p := find(); return p.State == registry.StateAlive && p.Effective == 100 })
	if p := find(); p.Instance != i.id || p.Epoch != 9 {
		t.Errorf("%+v", p)
	}
	asked := i.asked.Load()
	poll(t, "some refreshes over an idle link", func() bool { return i.asked.Load() > asked+3 })
	if n := i.Links(); n != 1 {
		t.Errorf("%d links", n)
	}
	end()
	wait(t, over, "the registry's end")
	poll(t, "the link's end", func() bool { return i.Links() == 0 })
}

// Each attempt is told once, with who answered or why nobody did; one that was called
// off is none.
func TestDialledIsTold(t *testing.T) {
	ctx := testContext(t)
	i := start(t, 1)
	type attempt struct {
		url, instance string
		err           error
	}
	told := make(chan attempt, 10)
	o := Options{Dialled: func(url, instance string, err error) { told <- attempt{url, instance, err} }}
	l, err := New(client(t, "good"), o).Connect(ctx, i.url, registry.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if got := wait(t, told, "the link"); got.url != i.url || got.instance != i.id.String() || got.err != nil {
		t.Errorf("a link: %+v", got)
	}
	l.Release()

	_, err = New(client(t, "bad"), o).Connect(ctx, i.url, registry.Hooks{})
	if got := wait(t, told, "the refusal"); got.url != i.url || got.instance != "" || err == nil || !errors.Is(got.err, err) {
		t.Errorf("a refusal: %+v, and the caller gets %v", got, err)
	}

	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := New(client(t, "good"), o).Connect(over, i.url, registry.Hooks{}); err == nil {
		t.Error("a dial that was called off made a link")
	}
	late, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	_, err = New(client(t, "good"), o).Connect(late, i.url, registry.Hooks{})
	if got := wait(t, told, "the one that was too slow"); err == nil || !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("too slow: %+v", got)
	}
	if len(told) > 0 {
		t.Errorf("one more is told: %+v", <-told)
	}
}
