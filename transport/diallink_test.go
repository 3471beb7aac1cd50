package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// reporter is a link.Reporter of one number.
type reporter struct{ available, judged, version atomic.Int64 }

func (r *reporter) Refuse(units int64) { r.judged.Add(units); r.version.Add(1) }

func (r *reporter) Version() uint64 { return uint64(r.version.Load()) }

func (r *reporter) Status() link.Status {
	return link.Status{Available: r.available.Load(), Total: 100, Judged: r.judged.Load(), State: conduitv1.InstanceState_INSTANCE_STATE_ACTIVE}
}

// heard collects what the hooks of a link are told.
type heard struct {
	status chan *conduitv1.Status
	away   chan string
}

func newHeard() *heard {
	return &heard{status: make(chan *conduitv1.Status, 100), away: make(chan string, 100)}
}

func (h *heard) hooks() LinkHooks {
	return LinkHooks{
		Status: func(body []byte) {
			s := &conduitv1.Status{}
			if proto.Unmarshal(body, s) == nil {
				h.status <- s
			}
		},
		GoAway: func(reason string, after time.Duration) { h.away <- reason + " " + after.String() },
	}
}

func TestDialLink(t *testing.T) {
	ctx := testContext(t)
	rep := &reporter{}
	rep.available.Store(40)
	var made []link.Peer
	in := serve(t, "", ServerOptions{
		Reporter: func(p link.Peer) link.Reporter { made = append(made, p); return rep },
		Link:     link.Options{Hello: link.Hello{Instance: "here", Epoch: 7}},
	})
	c := dialer(t, ClientOptions{IdleTimeout: time.Millisecond})
	h := newHeard()
	l, err := c.DialLink(ctx, in.url, h.hooks())
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Theirs(); got.Instance != "here" || got.Epoch != 7 {
		t.Errorf("its Hello: %+v", got)
	}
	if s := wait(t, h.status, "the first Status"); s.GetAvailable() != 40 {
		t.Errorf("the first Status: %v", s)
	}
	if len(made) != 1 || made[0].User != "ada" {
		t.Errorf("Reporters were made for %v", made)
	}
	x := l.Invoke(ctx, link.NewRoute(echoAddress), &conduit.Invocation{Method: "Nothing", Last: true, Units: 3})
	_, err = x.Recv(ctx)
	want(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused)
	rep.available.Store(2)
	rep.version.Add(1)
	in.StatusChanged()
	for { // the refusal's may come first
		if s := wait(t, h.status, "the next Status"); s.GetAvailable() == 2 {
			if s.GetJudged() != 3 {
				t.Errorf("the next Status: %v", s)
			}
			break
		}
	}

	// It is nobody else's, and not closed for idleness as a Peer's is.
	mustEcho(ctx, t, c.Peer(in.url).At(echoAddress), "x")
	other, err := c.DialLink(ctx, in.url, LinkHooks{})
	if err != nil || other == l {
		t.Fatalf("the next one: %v, %v", other == l, err)
	}
	poll(t, "the Peer's link to be closed", func() bool { return in.Links() == 2 })
	other.Close(link.CloseDone, "")
	wait(t, other.Done(), "the second link's end")
	poll(t, "the Server to see it", func() bool { return in.Links() == 1 })
	if err := l.Err(); err != nil {
		t.Errorf("the idle link: %v", err)
	}

	drained := make(chan error, 1)
	go func() { drained <- in.Drain(ctx) }()
	if got := wait(t, h.away, "the GoAway"); got != "draining 5s" || l.Usable() {
		t.Errorf("GoAway %q; usable: %v", got, l.Usable())
	}
	wait(t, l.Done(), "the link's end")
	if err := wait(t, drained, "the drain"); err != nil {
		t.Error(err)
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

// Close ends links that others own, and dials that are under way.
func TestDialLinkClosedClient(t *testing.T) {
	ctx := testContext(t)
	asked := make(chan struct{}, 10)
	hold := make(chan struct{})
	defer close(hold)
	in := serve(t, "", ServerOptions{Authenticate: func(r *http.Request) (link.Peer, error) {
		if strings.HasSuffix(r.Header.Get("Authorization"), "slow") {
			asked <- struct{}{}
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		return anyone(r)
	}})
	c := dialer(t, ClientOptions{})
	l, err := c.DialLink(ctx, in.url, LinkHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wait(t, l.Done(), "the link's end")
	_, err = c.DialLink(ctx, in.url, LinkHooks{})
	want(t, err, conduit.Canceled, conduit.ReasonAborted, conduit.NotSent)

	slow := dialer(t, ClientOptions{Session: "slow"})
	result := make(chan error, 1)
	go func() {
		_, err := slow.DialLink(ctx, in.url, LinkHooks{})
		result <- err
	}()
	wait(t, asked, "the dial")
	if err := slow.Close(); err != nil {
		t.Error(err)
	}
	want(t, wait(t, result, "the dial's end"), conduit.Canceled, conduit.ReasonAborted, conduit.NotSent)

	hasty := dialer(t, ClientOptions{Session: "slow"})
	short, cancel := context.WithCancel(ctx)
	go func() {
		_, err := hasty.DialLink(short, in.url, LinkHooks{})
		result <- err
	}()
	wait(t, asked, "the next dial")
	cancel()
	want(t, wait(t, result, "its end"), conduit.Canceled, conduit.ReasonCanceled, conduit.NotSent)
}

// passed is a context whose deadline passes when done is closed.
type passed struct {
	context.Context //nolint:containedctx // it is one

	done chan struct{}
}

func (p passed) Done() <-chan struct{} { return p.done }

func (p passed) Err() error {
	select {
	case <-p.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Who takes the connection and says nothing more is not called a passed deadline, though
// the one that passes is the caller's.
func TestDialLinkToTheMute(t *testing.T) {
	ctx := testContext(t)
	mute, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	late := passed{ctx, make(chan struct{})}
	go func() { // the deadline passes when the upgrade has been asked for, and not before
		if c, err := mute.Accept(); err == nil {
			defer c.Close()
			_, _ = c.Read(make([]byte, 1))
			close(late.done)
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	url := "ws://" + mute.Addr().String()
	_, err = dialer(t, ClientOptions{}).DialLink(late, url, LinkHooks{})
	e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
	if !strings.Contains(e.Message, "it takes the connection, and then answers nothing") || !strings.Contains(e.Message, url) {
		t.Errorf("%v", e)
	}
}

// The errors of DialLink are those of Connect.
func TestDialLinkErrors(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	draining := serve(t, "", ServerOptions{})
	if err := draining.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	free, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "ws://" + free.Addr().String()
	_ = free.Close()
	strange := serve(t, "", ServerOptions{Link: link.Options{Hello: link.Hello{VersionMin: 9, VersionMax: 9}}})
	for _, tc := range []struct{ what, url, session string }{
		{"a bad URL", "http://x", ""},
		{"in the clear", "ws://example.com", ""},
		{"a bad session", in.url, "a b"},
		{"401", in.url, "bad"},
		{"503", draining.url, ""},
		{"refused", nobody, ""},
		{"no common version", strange.url, ""},
	} {
		c := dialer(t, ClientOptions{Session: tc.session})
		_, got := c.DialLink(ctx, tc.url, LinkHooks{})
		wanted, ok := errors.AsType[*conduit.Error](c.Peer(tc.url).Connect(ctx))
		if !ok {
			t.Fatalf("%s: Connect: %v", tc.what, wanted)
		}
		if e := want(t, got, wanted.Code, wanted.Reason, conduit.NotSent); e.Message != wanted.Message || e.Retryable != wanted.Retryable {
			t.Errorf("%s: %v, and of Connect %v", tc.what, got, wanted)
		}
		_ = c.Close()
		if n := len(c.open); n != 0 {
			t.Errorf("%s: %d links are left", tc.what, n)
		}
	}
}

// Who may not know what room there is, is not told.
func TestReporterIsForUsers(t *testing.T) {
	ctx := testContext(t)
	var made atomic.Int64
	o := ServerOptions{
		Reporter: func(link.Peer) link.Reporter { made.Add(1); return &reporter{} },
		Authenticate: func(r *http.Request) (link.Peer, error) {
			if r.Header.Get("Authorization") == "" {
				return link.Peer{}, nil
			}
			return anyone(r)
		},
		SocketPeer: link.Peer{Name: "operator", Level: conduit.Superuser}, SocketToken: []byte("t"),
		Link: link.Options{Reporter: &reporter{}}, // not a link's own, so not used
	}
	in := serve(t, "", o)
	h := newHeard()
	nobody, err := dialer(t, ClientOptions{}).DialLink(ctx, in.url, h.hooks())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- in.ServeSocket(l) }()
	operator, err := DialSocket(ctx, path, []byte("t"), link.Options{OnStatus: h.hooks().Status})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*link.Conn{nobody, operator} {
		// What was sent before the answer would have come.
		x := c.Invoke(ctx, link.NewRoute(echoAddress), &conduit.Invocation{Method: "Echo", HasRequest: true, Last: true, Units: 1})
		if _, err := x.Recv(ctx); err != nil {
			t.Error(err)
		}
	}
	if n := made.Load(); n != 0 || len(h.status) != 0 {
		t.Errorf("%d Reporters, %d Status", n, len(h.status))
	}
	operator.Close(link.CloseDone, "")
	wait(t, operator.Done(), "the operator's end")
	_ = l.Close()
	if err := wait(t, served, "the socket's end"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := dialer(t, ClientOptions{Session: "s"}).DialLink(ctx, in.url, h.hooks()); err != nil {
			t.Fatal(err)
		}
		wait(t, h.status, "a user's Status")
	}
	if n := made.Load(); n != 2 {
		t.Errorf("%d Reporters for two links", n)
	}
}

// A drain ends watches at once, and lets calls go on.
func TestDrainEndsBackgroundCalls(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	l, err := dialer(t, ClientOptions{}).DialLink(ctx, in.url, LinkHooks{})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(background bool) conduit.Exchange {
		x := l.Invoke(ctx, link.NewRoute(echoAddress), &conduit.Invocation{Method: "Wait", Last: true, Streaming: true, Background: background})
		wait(t, in.echo.started, "the call")
		return x
	}
	watch, going := begin(true), begin(false)
	drained := make(chan error, 1)
	go func() { drained <- in.Drain(ctx) }()
	_, err = watch.Recv(ctx)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unavailable || e.Reason != conduit.ReasonDraining || !e.Retryable {
		t.Errorf("the watch: %v", err)
	}
	close(in.echo.release)
	if m, err := going.Recv(ctx); err != nil || string(m.Data) != "done" {
		t.Errorf("the call: %q, %v", m.Data, err)
	}
	if err := wait(t, drained, "the drain"); err != nil {
		t.Error(err)
	}
}
