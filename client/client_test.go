package client

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

func TestCall(t *testing.T) {
	ctx := testContext(t)
	a := start(t, "a")
	for _, who := range []string{session, ""} {
		c := dial(t, Options{Session: who}, a)
		if got, err := name(t, ctx, c); err != nil || got != "a" {
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
}

func TestBadAddress(t *testing.T) {
	a := start(t, "a")
	for _, o := range []Options{{}, {PerCall: true}} {
		c := dial(t, o, a)
		for _, bad := range []string{"", "nonsense", "*://a/b", "x://a/b/c.D"} {
			_, err := conduit.Call[string](testContext(t), c.At(bad), "Name", nil)
			if e := want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent); e.Method != "Name" {
				t.Errorf("%+v", e)
			}
		}
	}
	if n := a.served.Load(); n != 0 {
		t.Errorf("%d calls arrived", n)
	}
}

func TestDialFails(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	ctx := testContext(t)
	a, gone, other := start(t, "a"), start(t, "gone"), start(t, "other")
	gone.stop() // when both have listened, so that their ports differ
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
		for _, perCall := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				test.o.PerCall = perCall
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
	}
	// One of several is enough.
	c := dial(t, Options{Peers: []string{gone.url}}, a)
	if got, err := name(t, ctx, c); err != nil || got != "a" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestDialWaits: who does not answer is waited for within the context, and no
// longer.
func TestDialWaits(t *testing.T) {
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = Dial(ctx, Options{Peers: []string{"ws://" + silent.Addr().String()}})
	e := want(t, err, conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.NotSent)
	if !strings.Contains(e.Message, silent.Addr().String()) || time.Since(begin) > limit/2 {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	_, err = Dial(testContext(t), Options{Peers: []string{"ws://" + silent.Addr().String()}, DialTimeout: 50 * time.Millisecond})
	if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !strings.Contains(e.Message, "50ms") {
		t.Errorf("%v", err)
	}
}

// TestSpread: calls go to all peers that host the element.
func TestSpread(t *testing.T) {
	for _, o := range []Options{{Session: session}, {Session: session, Policy: registry.Headroom}, {}, {PerCall: true}} {
		ctx := testContext(t)
		a, b := start(t, "a"), start(t, "b")
		c := dial(t, o, a, b)
		if !o.PerCall && alive(c) != 2 {
			t.Fatalf("%+v", c.Peers())
		}
		for range 100 {
			if _, err := name(t, ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		// By chance alone, one of a hundred on one side has odds of 1 to 10^28.
		if a.served.Load() < 2 || b.served.Load() < 2 {
			t.Errorf("with %+v, %d and %d calls", o, a.served.Load(), b.served.Load())
		}
	}
}

// TestInstance: an address with an instance goes to the peer that is it.
func TestInstance(t *testing.T) {
	ctx := testContext(t)
	a, b := start(t, "a"), start(t, "b")
	gone := start(t, "gone")
	c := dial(t, Options{Session: session}, a, b)
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
	c = dial(t, Options{Session: session}, a, gone)
	_, err = conduit.Call[string](ctx, c.At(stranger), "Name", nil)
	if e := want(t, err, conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.NotSent); !e.Retryable || !strings.Contains(e.Message, "could not be asked") {
		t.Errorf("%v", err)
	}
}

// TestReroute: what certainly did not start goes to the other peer, and nothing
// else does.
func TestReroute(t *testing.T) {
	for _, test := range []struct {
		name   string
		refuse *conduit.Error
		moves  bool
	}{
		{"draining", refusal(conduit.Unavailable, conduit.ReasonDraining, true), true},
		{"no capacity", refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true), true},
		{"not hosted", refusal(conduit.NotFound, conduit.ReasonDeploymentNotFound, true), true},
		{"not permitted", refusal(conduit.PermissionDenied, conduit.ReasonLevelTooLow, false), false},
	} {
		for _, o := range []Options{{Session: session}, {}, {PerCall: true}} {
			t.Run(test.name, func(t *testing.T) {
				ctx := testContext(t)
				a, b := start(t, "a"), start(t, "b")
				c := dial(t, o, a, b)
				a.refuse.Store(test.refuse)
				for a.served.Load() == 0 { // until one goes to a first
					got, err := name(t, ctx, c)
					switch {
					case a.served.Load() > 0 && !test.moves:
						want(t, err, test.refuse.Code, test.refuse.Reason, conduit.Refused)
					case err != nil || got != "b":
						t.Fatalf("%q, %v", got, err)
					}
				}
				if _, ok := b.attempts.Load(uint32(1)); ok != test.moves {
					t.Errorf("b has seen a second attempt: %v", ok)
				}
			})
		}
	}
	t.Run("executed", func(t *testing.T) {
		a, b := start(t, "a"), start(t, "b")
		c := dial(t, Options{Session: session}, a, b)
		_, err := conduit.Call[string](testContext(t), c.At(where), "Fail", nil)
		want(t, err, conduit.Unavailable, conduit.ReasonUnspecified, conduit.Executed)
		if n := a.served.Load() + b.served.Load(); n != 1 {
			t.Errorf("%d attempts", n)
		}
	})
	t.Run("three attempts at most", func(t *testing.T) {
		for _, o := range []Options{{Session: session}, {PerCall: true}, {Session: session, Attempts: 2}} {
			var peers []*peer
			for _, name := range []string{"a", "b", "c", "d"} {
				p := start(t, name)
				p.refuse.Store(refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true))
				peers = append(peers, p)
			}
			c := dial(t, o, peers...)
			_, err := name(t, testContext(t), c)
			want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
			n := 0
			for _, p := range peers {
				n += int(p.served.Load())
			}
			most := DefaultAttempts
			if o.Attempts > 0 {
				most = o.Attempts
			}
			if n != most {
				t.Errorf("%d attempts, not %d", n, most)
			}
		}
	})
	t.Run("the only peer says when", func(t *testing.T) {
		for _, o := range []Options{{Session: session}, {PerCall: true}} {
			a := start(t, "a")
			busy := refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
			busy.RetryAfter = 10 * time.Millisecond
			a.refuse.Store(busy)
			c := dial(t, o, a)
			_, err := name(t, testContext(t), c)
			want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
			if n := a.served.Load(); n != 3 {
				t.Errorf("%d attempts", n)
			}
			// It does not wait beyond the deadline.
			busy = refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
			busy.RetryAfter = time.Hour
			a.refuse.Store(busy)
			_, err = name(t, testContext(t), c)
			want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
		}
	})
	t.Run("cancelled while it waits", func(t *testing.T) {
		for _, o := range []Options{{Session: session}, {PerCall: true}} {
			a := start(t, "a")
			busy := refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true)
			busy.RetryAfter = limit / 2
			a.refuse.Store(busy)
			c := dial(t, o, a)
			ctx, cancel := context.WithCancel(testContext(t))
			over := make(chan error, 1)
			begin := time.Now()
			go func() { _, err := name(t, ctx, c); over <- err }()
			<-a.started
			cancel()
			if err := <-over; err == nil || time.Since(begin) > limit/3 {
				t.Errorf("%v after %v", err, time.Since(begin))
			}
		}
	})
}

// TestUnknown: a call that may have run goes on elsewhere only if its author said
// that it may run twice. Who is anonymous was not told.
func TestUnknown(t *testing.T) {
	for _, test := range []struct {
		method, session string
		moves           bool
	}{{"DieIdempotent", session, true}, {"Die", session, false}, {"DieIdempotent", "", false}} {
		t.Run(test.method+" "+test.session, func(t *testing.T) {
			ctx := testContext(t)
			a, b := start(t, "a"), start(t, "b")
			c := dial(t, Options{Session: test.session}, a, b)
			type result struct {
				got string
				err error
			}
			over := make(chan result, 1)
			go func() {
				got, err := conduit.Call[string](ctx, c.At(where), test.method, nil)
				over <- result{got, err}
			}()
			other := "b"
			select {
			case <-a.started:
				a.stop()
			case <-b.started:
				b.stop()
				other = "a"
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			}
			r := <-over
			if test.moves {
				if r.err != nil || r.got != other {
					t.Errorf("%q, %v", r.got, r.err)
				}
				return
			}
			if e, ok := errors.AsType[*conduit.Error](r.err); !ok || e.Outcome != conduit.OutcomeUnknown {
				t.Errorf("%q, %v", r.got, r.err)
			}
			if n := a.served.Load() + b.served.Load(); n != 1 {
				t.Errorf("%d attempts", n)
			}
		})
	}
}

// TestPeerComesBack: without a peer that has died calls go to the others, without
// any they fail, and a peer that is back is called again.
func TestPeerComesBack(t *testing.T) {
	ctx := testContext(t)
	a, b := start(t, "a"), start(t, "b")
	c := dial(t, Options{Session: session}, a, b)
	a.stop()
	poll(t, "a to be gone", func() bool { return alive(c) == 1 })
	for range 20 {
		if got, err := name(t, ctx, c); err != nil || got != "b" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	for _, err := range conduit.Stream[int](ctx, c.At(where), "Count", nil) {
		if err != nil {
			t.Errorf("a stream, with one peer gone: %v", err)
		}
	}
	b.stop()
	poll(t, "b to be gone", func() bool { return alive(c) == 0 })
	_, err := name(t, ctx, c)
	if e := want(t, err, conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent); !e.Retryable || e.RetryAfter <= 0 {
		t.Errorf("%+v", e)
	}
	a.serve(t, a.addr)
	poll(t, "a to be back", func() bool {
		got, err := name(t, ctx, c)
		return err == nil && got == "a"
	})
}

func TestFindRemote(t *testing.T) {
	ctx := testContext(t)
	a := start(t, "a")
	c := dial(t, Options{Session: session}, a)
	for _, deployment := range []string{"echo", "*", address.UniqueDeploymentID("echo").String()} {
		if got, err := conduit.Call[string](ctx, c.FindRemote(deployment, "test.Echo"), "Name", nil); err != nil || got != "a" {
			t.Errorf("in %s: %q, %v", deployment, got, err)
		}
	}
	_, err := conduit.Call[string](ctx, c.FindRemote("*", "test.Other"), "Name", nil)
	want(t, err, conduit.NotFound, conduit.ReasonServiceNotFound, conduit.NotSent)
	_, err = conduit.Call[string](ctx, dial(t, Options{}, a).FindRemote("*", "test.Echo"), "Name", nil)
	want(t, err, conduit.NotFound, conduit.ReasonServiceNotFound, conduit.NotSent)
}

// TestGather: every peer is called, those too that are of no use to a pick.
func TestGather(t *testing.T) {
	for _, who := range []string{session, ""} {
		a, b, busy := start(t, "a"), start(t, "b"), start(t, "busy")
		busy.refuse.Store(refusal(conduit.ResourceExhausted, conduit.ReasonNoCapacity, true))
		c := dial(t, Options{Session: who}, a, b, busy)
		g := conduit.Gather[string](testContext(t), c.All(where), "Name", nil)
		got := map[string]bool{}
		for r := range g.All() {
			if r.Err == nil {
				got[r.Value] = true
			}
		}
		r := g.Report()
		if !got["a"] || !got["b"] || r.Nodes() != 3 || len(r.Failed)+len(r.NotReached) != 1 {
			t.Errorf("%v, %+v", got, r)
		}
	}
}

// TestAnonymousUnits: an anonymous caller is not told what room there is, and so
// the peer is the one to judge.
func TestAnonymousUnits(t *testing.T) {
	a := start(t, "a")
	c := dial(t, Options{}, a)
	got, err := conduit.Call[string](testContext(t), c.At(where), "Name", nil, conduit.WithUnits(7))
	if err != nil || got != "a" || a.units.Load() != 7 {
		t.Errorf("%q, %v, %d units", got, err, a.units.Load())
	}
}

func TestExplain(t *testing.T) {
	a, gone := start(t, "a"), start(t, "gone")
	gone.stop()
	c := dial(t, Options{Session: session}, a, gone)
	e, err := c.Explain(where, "Name", 0)
	if err != nil || e.Chosen != a.id || len(e.Candidates) != 2 || e.Candidates[1].Verdict != registry.Unreachable {
		t.Errorf("%+v, %v", e, err)
	}
	e, err = c.Explain("*://other/echo/test.Echo", "Name", 0)
	if err != nil || e.Err == nil || e.Err.Reason != conduit.ReasonDeploymentNotFound {
		t.Errorf("%+v, %v", e, err)
	}
	_, err = c.Explain("nonsense", "Name", 0)
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent)
}

func TestCancel(t *testing.T) {
	for _, o := range []Options{{Session: session}, {PerCall: true}} {
		a := start(t, "a")
		c := dial(t, o, a)
		ctx, cancel := context.WithCancel(testContext(t))
		over := make(chan error, 1)
		go func() { _, err := conduit.Call[string](ctx, c.At(where), "Block", nil); over <- err }()
		<-a.started
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

func TestCallTimeout(t *testing.T) {
	for _, o := range []Options{{Session: session}, {PerCall: true}} {
		a := start(t, "a")
		o.CallTimeout = 50 * time.Millisecond
		c := dial(t, o, a)
		x := c.At(where).Invoke(t.Context(), &conduit.Invocation{Method: "Block", Last: true})
		_, err := x.Recv(t.Context())
		// Both ends mind the deadline; whose word comes first decides the outcome.
		if !errors.Is(err, &conduit.Error{Code: conduit.DeadlineExceeded, Reason: conduit.ReasonDeadline}) {
			t.Errorf("%v", err)
		}
	}
}

// TestClose: calls under way end, later ones fail; that nothing is left is the
// package's leak check.
func TestClose(t *testing.T) {
	for _, o := range []Options{{Session: session}, {PerCall: true}} {
		ctx := testContext(t)
		a, b := start(t, "a"), start(t, "b")
		c := dial(t, o, a, b)
		over := make(chan error, 1)
		go func() { _, err := conduit.Call[string](ctx, c.At(where), "Block", nil); over <- err }()
		select {
		case <-a.started:
		case <-b.started:
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-over; err == nil {
			t.Error("the call has outlived its client")
		}
		_, err := name(t, ctx, c)
		code := conduit.Unavailable
		if o.PerCall {
			code = conduit.Canceled
		}
		if e := want(t, err, code, conduit.ReasonAborted, conduit.NotSent); !strings.Contains(e.Message, "closed") {
			t.Errorf("%v", err)
		}
	}
}

func TestPerCall(t *testing.T) {
	ctx := testContext(t)
	a, gone := start(t, "a"), start(t, "gone")
	gone.stop()
	c := dial(t, Options{PerCall: true}, gone, a)
	for range 4 { // those that are for the one that is gone go on to the other
		if got, err := name(t, ctx, c); err != nil || got != "a" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if c.Peers() != nil {
		t.Errorf("%v", c.Peers())
	}
	_, err := conduit.Call[string](ctx, c.FindRemote("*", "test.Echo"), "Name", nil)
	want(t, err, conduit.Unimplemented, conduit.ReasonUnspecified, conduit.NotSent)
	_, err = c.Explain(where, "Name", 0)
	want(t, err, conduit.Unimplemented, conduit.ReasonUnspecified, conduit.NotSent)
	_, err = c.All(where).Members(ctx)
	want(t, err, conduit.Unimplemented, conduit.ReasonUnspecified, conduit.NotSent)
}
