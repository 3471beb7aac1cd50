package router

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/locator"
)

// local hosts everything, and has room as long as the test says.
type local struct{ standing locator.Standing }

func (l *local) At(address.Address) conduit.Invoker {
	return at{} // it stands for being here: a router passes calls on below Invokers
}
func (l *local) Look(address.Address, string, uint32) locator.Standing { return l.standing }
func (l *local) Nodes(address.Address) []string                        { return nil }
func (l *local) FindService(string, address.ServiceKey) (address.Address, bool) {
	return address.Address{}, false
}

func wantError(t *testing.T, err error, reason string, outcome conduit.Outcome) {
	t.Helper()
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != reason || e.Outcome != outcome {
		t.Errorf("got %v, want %s with outcome %s", err, reason, outcome)
	}
}

// A first call waits for the first answers of the peers, and then goes to one.
func TestFirstCall(t *testing.T) { inBothModes(t, testFirstCall) }

func testFirstCall(t *testing.T, m mode) {
	t.Helper()
	p := startPeer(t, "a", answers)
	r := newRig(t, m, nil, p)
	if got, err := r.call(workAddress, "Plain"); err != nil || got != "a" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := r.call(p.id.String()+"://work/work/test.Work", "Plain"); err != nil || got != "a" {
		t.Errorf("by its id: %q, %v", got, err)
	}
	if n := r.passed.Load(); n != 2 {
		t.Errorf("%d calls were passed on", n)
	}
	for range 2 {
		wait(t, r.ended, "the end of a call")
	}
}

// What one peer refuses without having begun goes to the other, whatever the method.
func TestRefusedGoesOn(t *testing.T) { inBothModes(t, testRefusedGoesOn) }

func testRefusedGoesOn(t *testing.T, m mode) {
	t.Helper()
	a, b := startPeer(t, "a", full), startPeer(t, "b", answers)
	r := newRig(t, m, nil, a, b)
	calls := int64(0)
	// Which one is found first, and picked, is chance.
	for ; calls < 20 || a.calls.Load() == 0; calls++ {
		if got, err := r.call(workAddress, "Plain"); err != nil || got != "b" {
			t.Fatalf("%q, %v", got, err)
		}
		if calls > 100_000 {
			t.Fatal("no call comes to the one that refuses")
		}
	}
	if n := r.passed.Load(); n != calls {
		t.Errorf("%d calls counted as %d", calls, n)
	}
}

// When a peer dies, a call that may run twice goes on, and another is unknown.
func TestLostGoesOnIfIdempotent(t *testing.T) { inBothModes(t, testLostGoesOnIfIdempotent) }

func testLostGoesOnIfIdempotent(t *testing.T, m mode) {
	t.Helper()
	a, b := startPeer(t, "a", dies), startPeer(t, "b", answers)
	r := newRig(t, m, nil, a, b)
	unknown := 0
	// Which one is picked is chance, and the dead one is away for a while.
	for n := 0; unknown == 0 || a.calls.Load() < 3; n++ {
		if n > 10000 {
			t.Fatalf("%d calls came to the one that dies, %d ended as unknown", a.calls.Load(), unknown)
		}
		if got, err := r.call(workAddress, "Again"); err != nil || got != "b" {
			t.Fatalf("idempotent: %q, %v", got, err)
		}
		if _, err := r.call(workAddress, "Plain"); err != nil {
			wantError(t, err, conduit.ReasonPeerLost, conduit.OutcomeUnknown)
			unknown++
		}
	}
}

// All refuse: the caller hears the last one's refusal, after as many attempts as
// there may be.
func TestAllRefuse(t *testing.T) { inBothModes(t, testAllRefuse) }

func testAllRefuse(t *testing.T, m mode) {
	t.Helper()
	a, b, c := startPeer(t, "a", full), startPeer(t, "b", full), startPeer(t, "c", full)
	d := startPeer(t, "d", full)
	r := newRig(t, m, nil, a, b, c, d)
	_, err := r.call(workAddress, "Plain")
	wantError(t, err, conduit.ReasonOverloaded, conduit.Refused)
	if n := a.calls.Load() + b.calls.Load() + c.calls.Load() + d.calls.Load(); n != locator.DefaultAttempts {
		t.Errorf("%d attempts", n)
	}
	if got := wait(t, r.ended, "the end"); got != conduit.Refused {
		t.Errorf("it ended as %s", got)
	}
}

// A call that this instance may take and refuses after all goes to a peer; one that
// it takes goes nowhere else.
func TestHereFirst(t *testing.T) { inBothModes(t, testHereFirst) }

func testHereFirst(t *testing.T, m mode) {
	t.Helper()
	p := startPeer(t, "a", answers)
	here := &local{standing: locator.Standing{Hosted: true, Ready: true, Room: true}}
	r := newRig(t, m, here, p)
	asked, takes := 0, false
	r.door.Here = func(c Call, inv *frame.Invoke) *conduit.Error {
		asked++
		if !takes {
			return &conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonNoCapacity, Outcome: conduit.Refused, Retryable: true, Message: "room has gone"}
		}
		h, _ := c.(hereFirst)
		in, ok := h.Call.(*link.Incoming)
		if !ok || string(inv.Method) != "Plain" {
			t.Errorf("it is a %T of %s", c, inv.Method)
			return conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "no")
		}
		in.Serve(func(_ context.Context, s *link.ServerCall) error {
			s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(`"here"`)})
			return nil
		})
		return nil
	}
	if got, err := r.call(workAddress, "Plain"); err != nil || got != "a" || asked != 1 {
		t.Errorf("%q, %v, asked %d times", got, err, asked)
	}
	takes = true
	if got, err := r.call(workAddress, "Plain"); err != nil || got != "here" {
		t.Errorf("%q, %v", got, err)
	}
	if p.calls.Load() != 1 {
		t.Errorf("the peer was called %d times", p.calls.Load())
	}
}

// owner counts the ends of the calls that it is told of.
type owner struct{ ends chan uint64 }

func (o *owner) CallEnded(tag uint64, _ conduit.Code, _ conduit.Outcome) { o.ends <- tag }

// An element here that refuses a call, or whose process dies in it, is not the end:
// the call goes to a peer, as if the peer had been picked first. The host hears of the
// end of its attempt, once.
func TestHereFails(t *testing.T) { inBothModes(t, testHereFails) }

func testHereFails(t *testing.T, m mode) {
	t.Helper()
	p := startPeer(t, "a", answers)
	r := newRig(t, m, &local{standing: locator.Standing{Hosted: true, Ready: true, Room: true, Idempotent: true}}, p)
	for what, serve := range map[string]func(in *link.Incoming){
		"refuses": func(in *link.Incoming) { full(nil, in) },
		"dies":    func(in *link.Incoming) { dies(nil, in) },
	} {
		t.Run(what, func(t *testing.T) {
			near, far := link.Pipe(16)
			served := link.New(far, link.Options{Handler: handlerFunc(serve)})
			plugin := link.New(near, link.Options{Dialer: true, LostReason: conduit.ReasonPluginLost})
			t.Cleanup(func() {
				plugin.Close(link.CloseDone, "")
				<-plugin.Done()
				<-served.Done()
			})
			if err := plugin.Ready(testContext(t)); err != nil {
				t.Fatal(err)
			}
			host := &owner{ends: make(chan uint64, 10)}
			r.door.Here = func(c Call, inv *frame.Invoke) *conduit.Error {
				out := *inv
				c.Splice(plugin, &out, host, 7)
				return nil
			}
			if got, err := r.call(workAddress, "Again"); err != nil || got != "a" {
				t.Errorf("%q, %v", got, err)
			}
			if tag := wait(t, host.ends, "the end of the attempt here"); tag != 7 || len(host.ends) != 0 {
				t.Errorf("tag %d, and %d more ends", tag, len(host.ends))
			}
		})
	}
}

// Nobody there, an address that is none, one of another instance, and a chain that is
// too long.
func TestErrors(t *testing.T) { inBothModes(t, testErrors) }

func testErrors(t *testing.T, m mode) {
	t.Helper()
	r := newRig(t, m, nil)
	_, err := r.call(workAddress, "Plain")
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Outcome != conduit.Refused || e.Code != conduit.NotFound && e.Code != conduit.Unavailable {
		t.Errorf("nobody there: %v", err)
	}
	_, err = r.call(address.RandomInstanceID().String()+"://work/work/test.Work", "Plain")
	wantError(t, err, conduit.ReasonInstanceNotFound, conduit.Refused)

	p := startPeer(t, "a", answers)
	r = newRig(t, m, nil, p)
	r.door.ToPeer = func(*frame.Invoke, uint32) (frame.Invoke, *conduit.Error) {
		return frame.Invoke{}, conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonCallLoop, conduit.Refused, "a circle")
	}
	_, err = r.call(workAddress, "Plain")
	wantError(t, err, conduit.ReasonCallLoop, conduit.Refused)
	if p.calls.Load() != 0 || r.passed.Load() != 0 {
		t.Error("it went out all the same")
	}
}

// Closing does not wait for a peer that asked to be left alone for an hour: the call
// ends with what that peer said.
func TestClose(t *testing.T) { inBothModes(t, testClose) }

func testClose(t *testing.T, m mode) {
	t.Helper()
	p := startPeer(t, "a", func(_ *peer, in *link.Incoming) {
		in.Refuse(&conduit.Error{
			Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused, Retryable: true, RetryAfter: time.Hour, Message: "full",
		})
	})
	r := newRig(t, m, nil, p)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := conduit.Call[string](ctx, r.at(workAddress), "Plain", "x")
		ended <- err
	}()
	for over := time.After(limit); p.calls.Load() == 0; {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait: %v", err)
		case <-over:
			t.Fatal("the call does not come")
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond): // it has been refused, or is about to be: either will do
	}
	r.router.Close()
	wantError(t, wait(t, ended, "the call"), conduit.ReasonOverloaded, conduit.Refused)
}

// A link that was dialled for one call carries no other, and ends with it; the
// registry's stays.
func TestAlone(t *testing.T) {
	conns := make(chan *link.Conn, 100)
	p := startPeer(t, "a", func(p *peer, in *link.Incoming) {
		conns <- in.Conn()
		answers(p, in)
	})
	r := newRig(t, perCall, nil, p)
	seen := map[*link.Conn]bool{}
	for range 5 {
		if got, err := r.call(workAddress, "Plain"); err != nil || got != "a" {
			t.Fatalf("%q, %v", got, err)
		}
		conn := wait(t, conns, "the call's link")
		seen[conn] = true
		wait(t, conn.Done(), "the call's link to end")
	}
	if len(seen) != 5 {
		t.Errorf("5 calls went over %d links", len(seen))
	}
	for _, l := range p.OpenLinks() {
		if seen[l.Conn] {
			t.Error("a link outlives its call")
		}
	}

	// Who gives up ends the call and the link.
	begun := make(chan struct{})
	p.serve = func(_ *peer, in *link.Incoming) {
		conns <- in.Conn()
		in.Serve(func(ctx context.Context, _ *link.ServerCall) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() {
		_, err := conduit.Call[string](ctx, r.at(workAddress), "Plain", "x")
		ended <- err
	}()
	wait(t, begun, "the call")
	cancel()
	if e := conduit.AsError(wait(t, ended, "the caller"), 0); e.Code != conduit.Canceled {
		t.Errorf("%v", e)
	}
	wait(t, wait(t, conns, "the call's link").Done(), "the call's link to end")
}

// A request in several messages goes where it began, and is whole there.
func TestUpload(t *testing.T) { inBothModes(t, testUpload) }

func testUpload(t *testing.T, m mode) {
	t.Helper()
	p := startPeer(t, "a", func(_ *peer, in *link.Incoming) {
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			n := 0
			for {
				m, err := s.Recv(ctx)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return err
				}
				n += len(m.Data)
			}
			s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(strconv.Itoa(n))})
			return nil
		})
	})
	r := newRig(t, m, nil, p)
	item := []byte(strings.Repeat("x", 50<<10))
	got, err := conduit.Upload[int](testContext(t), r.at(workAddress), "Plain", slices.Values([][]byte{item, item, item, item, item, item, item, item, item, item}))
	if err != nil || got != 500<<10 {
		t.Errorf("%d, %v", got, err)
	}
}

// Callers that make up addresses do not fill the memory.
func TestTargetsAreBounded(t *testing.T) {
	r := newRig(t, shared, nil)
	for i := range 3 * maxTargets {
		if _, err := r.router.target(&frame.Invoke{Deployment: []byte("d" + strconv.Itoa(i)), Element: []byte("e"), Service: []byte("a.B")}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.router.targets); n > maxTargets {
		t.Errorf("%d targets are kept", n)
	}
	if _, err := r.router.target(&frame.Invoke{Deployment: []byte("d"), Element: []byte("e/f"), Service: []byte("a.B")}); err == nil || err.Reason != conduit.ReasonBadAddress {
		t.Errorf("a bad address: %v", err)
	}
	one, _ := r.router.target(&frame.Invoke{Deployment: []byte("d"), Element: []byte("e"), Service: []byte("a.B"), HasOrdinal: true})
	other, _ := r.router.target(&frame.Invoke{Deployment: []byte("d"), Element: []byte("e"), Service: []byte("a.B")})
	if one == other {
		t.Error("an ordinal of 0 is none")
	}
}
