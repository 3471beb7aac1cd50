//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// ledger is a Reporter that says what a test wants.
type ledger struct {
	mu      sync.Mutex
	status  Status
	version uint64
	refused []int64
}

func (l *ledger) Refuse(units int64) {
	l.change(func(s *Status) { s.Judged += units })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = append(l.refused, units)
}

func (l *ledger) Version() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version
}

func (l *ledger) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

func (l *ledger) change(how func(s *Status)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how(&l.status)
	l.version++
}

// judged returns what the link has counted since it was last asked.
func (l *ledger) judged() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.refused
	l.refused = nil
	return list
}

func newLedger() *ledger {
	return &ledger{status: Status{Available: 100, Total: 100, State: conduitv1.InstanceState_INSTANCE_STATE_ACTIVE, Digest: []byte("d1")}}
}

// kinds names frames: the order is what counts.
func kinds(frames []*conduitv1.Frame) string {
	var names []string
	for _, f := range frames {
		name := strings.TrimPrefix(string(f.ProtoReflect().WhichOneof(f.ProtoReflect().Descriptor().Oneofs().Get(0)).Name()), "frame_")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func unitsFrame(call uint64, method string, units uint32) *conduitv1.Frame {
	f := invokeFrame(call, method, whole("x", true))
	f.GetInvoke().Units = units
	return f
}

func TestStatusGoesFirst(t *testing.T) {
	bubble(t, "behind the Hello", func(t *testing.T) {
		_, r := rawLink(t, Options{Reporter: newLedger()}, nil)
		got := r.take()
		if kinds(got) != "hello status" {
			t.Fatalf("got %v", got)
		}
		if s := got[1].GetStatus(); s.GetAvailable() != 100 || s.GetTotal() != 100 || string(s.GetDigest()) != "d1" || s.GetState() != conduitv1.InstanceState_INSTANCE_STATE_ACTIVE {
			t.Errorf("got %v", s)
		}
	})
	bubble(t, "before the answers of its packet, when it has changed", func(t *testing.T) {
		l := newLedger()
		_, r := statusLink(t, Options{Reporter: l, Handler: handlerFunc(func(in *Incoming) {
			in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.Refused, "%s", strings.Repeat("no ", 20)))
		})})
		r.send(invokeFrame(1, "M", whole("x", true)))
		if got := r.take(); kinds(got) != "failure" {
			t.Errorf("unchanged: got %v", got)
		}
		l.change(func(s *Status) { s.Available = 99 })
		r.send(invokeFrame(3, "M", whole("x", true)), invokeFrame(5, "M", whole("x", true)), pingFrame(7, false))
		if got := r.take(); kinds(got) != "status failure failure ping" || got[0].GetStatus().GetAvailable() != 99 {
			t.Errorf("changed: got %v", got)
		}
		r.send(pingFrame(8, false))
		if got := r.take(); kinds(got) != "ping" {
			t.Errorf("told already: got %v", got)
		}
	})
	bubble(t, "from a dialer, behind its Hello", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true, Duplex: true, Reporter: newLedger()}, nil)
		c.StatusChanged()
		if got := r.take(); len(got) != 0 {
			t.Errorf("before its Hello: %v", got)
		}
		r.send(helloFrame(&conduitv1.Hello{}))
		if got := r.take(); kinds(got) != "hello status" {
			t.Errorf("got %v", got)
		}
	})
	bubble(t, "from nobody who was not given a Reporter", func(t *testing.T) {
		c, r := rawLink(t, Options{}, nil)
		c.StatusChanged()
		if got := r.take(); kinds(got) != "hello" {
			t.Errorf("got %v", got)
		}
	})
}

// statusLink is rawLink after the first Status.
func statusLink(tb testing.TB, o Options) (*Conn, *rawEnd) {
	tb.Helper()
	c, r := rawLink(tb, o, nil)
	r.send(helloFrame(&conduitv1.Hello{}))
	if got := r.take(); kinds(got) != "hello status" {
		tb.Fatalf("got %v", got)
	}
	return c, r
}

func TestStatusAlone(t *testing.T) {
	bubble(t, "when it is worth a packet", func(t *testing.T) {
		l := newLedger()
		c, r := statusLink(t, Options{Reporter: l, ProbeInterval: -1})
		for _, tc := range []struct {
			what string
			how  func(s *Status)
			want bool
		}{
			{"a twentieth", func(s *Status) { s.Available -= 5 }, false},
			{"a little more, since it was told", func(s *Status) { s.Available-- }, true},
			{"back up", func(s *Status) { s.Available += 6 }, true},
			{"judged", func(s *Status) { s.Judged += 5 }, false},
			{"more judged", func(s *Status) { s.Judged++ }, true},
			{"calls under way", func(s *Status) { s.InFlight += 100 }, false},
			{"the state", func(s *Status) { s.State = conduitv1.InstanceState_INSTANCE_STATE_CORDONED }, true},
			{"the digest", func(s *Status) { s.Digest = []byte("d2") }, true},
			{"the total", func(s *Status) { s.Total++ }, true},
			{"full", func(s *Status) { s.Available = 0 }, true},
			{"a little room again", func(s *Status) { s.Available++ }, true},
			{"a little more", func(s *Status) { s.Available += 3 }, true},
			{"less", func(s *Status) { s.Available -= 2 }, false},
			{"as it was told", func(s *Status) { s.Available += 2 }, false},
			{"a twentieth of room", func(s *Status) { s.Available++ }, true},
			{"more than that", func(s *Status) { s.Available++ }, false},
		} {
			l.change(tc.how)
			time.Sleep(time.Minute)
			if got := r.take(); strings.Contains(kinds(got), "status") {
				t.Errorf("%s: sent unasked: %v", tc.what, got)
			}
			at := time.Now()
			c.StatusChanged()
			if got := r.take(); (kinds(got) == "status") != tc.want {
				t.Errorf("%s: got %v, want one: %v", tc.what, got, tc.want)
			}
			if d := time.Since(at); d != 0 {
				t.Errorf("%s: after %v", tc.what, d)
			}
		}
	})
	bubble(t, "twice a second at most", func(t *testing.T) {
		l := newLedger()
		c, r := statusLink(t, Options{Reporter: l, ProbeInterval: -1})
		var at []time.Duration
		start, available := time.Now(), int64(0)
		for range 2000 { // one change a millisecond
			l.change(func(s *Status) { s.Available = 100 - (s.Available+37)%100 })
			c.StatusChanged()
			for _, f := range r.take() {
				at, available = append(at, time.Since(start)), int64(f.GetStatus().GetAvailable())
			}
			time.Sleep(time.Millisecond)
		}
		for i, d := range at {
			if i > 0 && d-at[i-1] < statusPause {
				t.Errorf("sent at %v", at)
			}
		}
		if len(at) < 4 {
			t.Errorf("sent at %v", at)
		}
		time.Sleep(statusPause)
		for _, f := range r.take() {
			available = int64(f.GetStatus().GetAvailable())
		}
		if d := available - l.Status().Available; d > 5 || d < -5 {
			t.Errorf("the last that was told is %d, and there are %d", available, l.Status().Available)
		}
	})
	bubble(t, "not by a link that is over", func(t *testing.T) {
		l := newLedger()
		c, _ := statusLink(t, Options{Reporter: l})
		l.change(func(s *Status) { s.Available = 0 })
		c.Close(CloseDone, "")
		<-c.Done()
		c.StatusChanged()
		time.Sleep(time.Minute)
	})
}

func TestStatusEncodes(t *testing.T) {
	for _, s := range []Status{
		{},
		{Available: 1, Total: 1 << 40, Judged: 300, InFlight: 7, State: conduitv1.InstanceState_INSTANCE_STATE_DRAINING, Digest: []byte("0123456789abcdef")},
		{Available: -1, Digest: make([]byte, maxDigest+1)}, // left out
	} {
		var got conduitv1.Status
		if err := proto.Unmarshal(s.append(nil), &got); err != nil {
			t.Fatal(err)
		}
		want := &conduitv1.Status{
			Available: uint64(max(0, s.Available)), Total: uint64(s.Total), Judged: uint64(s.Judged), InFlight: uint64(s.InFlight), State: s.State,
		}
		if len(s.Digest) <= maxDigest {
			want.Digest = s.Digest
		}
		if !proto.Equal(&got, want) {
			t.Errorf("got %v, want %v", &got, want)
		}
	}
}

// Whatever becomes of an Invoke, its units are judged once.
func TestJudgedOnce(t *testing.T) {
	bubble(t, "by the link", func(t *testing.T) {
		l := newLedger()
		handler := handlerFunc(func(in *Incoming) {
			switch string(in.Invoke.Method) {
			case "Undecided":
			case "Admitted":
				if in.Reporter() != Reporter(l) {
					t.Error("the handler was given another Reporter")
				}
				in.Reporter().Refuse(int64(in.Invoke.Units))
				in.MarkJudged()
				fallthrough
			default:
				echoHandler(in)
			}
		})
		c, r := statusLink(t, Options{Reporter: l, Handler: handler, Hello: Hello{MaxMessage: 1000, MaxCalls: 2}})
		id := uint64(1)
		for _, tc := range []struct {
			what   string
			change func(*conduitv1.Invoke)
		}{
			{"Echo", nil},
			{"Refuse", nil},
			{"Undecided", nil},
			{"Admitted", nil},
			{"too large", func(in *conduitv1.Invoke) { in.Data = piece(1001, "x") }},
			{"a bad credit", func(in *conduitv1.Invoke) { in.ReplyCredit = 1 }},
			{"a large header", func(in *conduitv1.Invoke) { in.Element = strings.Repeat("e", maxInvoke) }},
			{"Wait", nil},
			{"Wait", nil},
			{"over max_calls", nil},
		} {
			f := unitsFrame(id, tc.what, 7)
			if tc.change != nil {
				tc.change(f.GetInvoke())
			}
			r.send(f)
			r.take()
			if got := l.judged(); len(got) != 1 || got[0] != 7 {
				t.Errorf("%s: judged %v", tc.what, got)
			}
			id += 2
		}
		r.send(cancelFrame(15, ""))
		r.send(unitsFrame(id, "Echo", 0))
		r.take()
		if got := l.judged(); len(got) != 0 {
			t.Errorf("without units: judged %v", got)
		}
		c.GoAway(conduit.ReasonDraining, 0)
		r.send(unitsFrame(id+2, "Echo", 7))
		r.take()
		if got := l.judged(); len(got) != 0 {
			t.Errorf("above last_call: judged %v", got)
		}
	})
	bubble(t, "without a handler", func(t *testing.T) {
		l := newLedger()
		c, s := Pipe(16)
		client, server := New(c, Options{Dialer: true}), New(s, Options{Reporter: l})
		x := client.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Units: 9})
		if _, err := x.Recv(t.Context()); err == nil {
			t.Error("it was served")
		}
		if got := l.judged(); len(got) != 1 || got[0] != 9 {
			t.Errorf("judged %v", got)
		}
		client.Close(CloseDone, "")
		<-client.Done()
		<-server.Done()
	})
}

// Units that the other end will never judge.
func TestUnsent(t *testing.T) {
	start := func(ctx context.Context, c *Conn, units uint32) conduit.Exchange {
		return c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true, Units: units})
	}
	check := func(t *testing.T, c *Conn, what string, want uint64) {
		t.Helper()
		synctest.Wait()
		if got := c.Unsent(); got != want {
			t.Errorf("%s: %d are unsent, want %d", what, got, want)
		}
	}
	bubble(t, "dead before they began", func(t *testing.T) {
		c, _ := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{MaxCalls: 1, MaxMessage: 10})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		start(gone, c, 1)
		check(t, c, "cancelled", 1)
		late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-1))
		defer cancel()
		start(late, c, 10)
		check(t, c, "too late", 11)
		c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "\xff", Units: 100})
		check(t, c, "no UTF-8", 111)
		c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", HasRequest: true, Request: make([]byte, 11), Units: 1000})
		check(t, c, "too large", 1111)
		start(t.Context(), c, 5)
		check(t, c, "sent", 1111)
		start(t.Context(), c, 10_000)
		check(t, c, "over max_calls", 11_111)
		c.Close(CloseDone, "")
		<-c.Done()
		check(t, c, "lost", 11_111)
		start(t.Context(), c, 100_000)
		check(t, c, "on a link that is over", 111_111)
	})
	bubble(t, "never written", func(t *testing.T) {
		c, _ := rawLink(t, Options{Dialer: true}, nil)
		x := start(t.Context(), c, 1)
		start(t.Context(), c, 10)
		check(t, c, "queued", 0)
		x.Cancel(nil)
		x.Cancel(nil)
		check(t, c, "taken back", 1)
		c.Close(CloseDone, "")
		<-c.Done()
		check(t, c, "with the link", 11)
	})
	bubble(t, "above last_call", func(t *testing.T) {
		told := make(chan string, 2)
		var link *Conn
		var ended conduit.Exchange
		c, r := rawLink(t, Options{Dialer: true, OnGoAway: func(reason string, after time.Duration) {
			if link.Usable() || after != 2*time.Second {
				t.Errorf("usable %v, after %v", link.Usable(), after)
			}
			if _, err := ended.Recv(t.Context()); asError(t, err).Outcome != conduit.Refused {
				t.Errorf("the call had ended with %v", err)
			}
			told <- reason
		}}, &conduitv1.Hello{})
		link = c
		var calls []conduit.Exchange
		for i := range 7 { // 1, 3, ... 13
			calls = append(calls, start(t.Context(), c, uint32(1)<<i))
		}
		ended = calls[4]
		r.take()
		for _, i := range []int{0, 1, 3, 5} { // written, and given up
			calls[i].Cancel(nil)
		}
		r.send(failureFrame(3, &conduitv1.Failure{Code: conduitv1.Code(conduit.Canceled)}))
		check(t, c, "given up", 0)
		r.send(goAwayFrame(&conduitv1.GoAway{LastCall: 7, Reason: "draining", RetryAfterMicros: 2_000_000}))
		r.send(goAwayFrame(&conduitv1.GoAway{LastCall: 1, Reason: "again"}))
		check(t, c, "9 and 13 under way, 11 given up", 1<<4+1<<5+1<<6)
		calls[2].Cancel(nil)
		check(t, c, "5 is the other end's", 1<<4+1<<5+1<<6)
		start(t.Context(), c, 1<<10)
		check(t, c, "after it", 1<<4+1<<5+1<<6+1<<10)
		if len(told) != 1 || <-told != conduit.ReasonDraining {
			t.Error("OnGoAway was not called once")
		}
	})
	bubble(t, "what is remembered is bounded", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		for i := range 3000 {
			start(t.Context(), c, 1).Cancel(nil)
			if id := uint64(2*i + 1); i%2 == 0 {
				r.send(creditFrame(0, 10_000), failureFrame(id, &conduitv1.Failure{Code: conduitv1.Code(conduit.Canceled)}))
				synctest.Wait()
			}
		}
		c.mu.Lock()
		n := len(c.units.left)
		c.mu.Unlock()
		if n > 130 {
			t.Errorf("%d calls are remembered", n)
		}
		var a accounts
		for i := range uint64(3 * mostLeft) {
			a.leave(leftCall{i + 1, 1})
		}
		if n := len(a.left); n > 2*mostLeft || a.left[n-1].id != 3*mostLeft {
			t.Errorf("%d of calls that are never answered, up to %d", n, a.left[n-1].id)
		}
	})
	bubble(t, "passed on", func(t *testing.T) {
		back, r := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{MaxCalls: 1})
		var out frame.Invoke
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			out = *in.Invoke
			out.Units = 50
			in.Splice(back, &out, &spliceOwner{ends: map[uint64]int{}}, in.ID())
		})})
		start(t.Context(), c, 1)
		check(t, back, "passed on", 0)
		x := start(t.Context(), c, 1)
		check(t, back, "over max_calls", 50)
		check(t, c, "refused further on", 0)
		if _, err := x.Recv(t.Context()); asError(t, err).Reason != conduit.ReasonOverloaded {
			t.Error(err)
		}
		r.send(goAwayFrame(&conduitv1.GoAway{}))
		check(t, back, "above last_call", 100)
	})
}

// Calls in the background are beside max_calls, and bounded by themselves.
func TestBackgroundLimits(t *testing.T) {
	bubble(t, "served", func(t *testing.T) {
		_, r := rawLink(t, Options{Hello: Hello{MaxCalls: 3}}, &conduitv1.Hello{})
		for id := uint64(1); id <= 9; id += 2 {
			background := invokeFrame(id, "Wait", whole("", true))
			background.GetInvoke().Background = true
			r.send(background)
			if f := failure(r.take(), id); (f != nil) != (id > 5) || f != nil && (f.Reason != conduit.ReasonOverloaded || f.Outcome != conduitv1.Outcome_OUTCOME_REFUSED) {
				t.Errorf("background call %d: %v", id, f)
			}
		}
		for id := uint64(101); id <= 109; id += 2 {
			r.send(invokeFrame(id, "Wait", whole("", true)))
			if f := failure(r.take(), id); (f != nil) != (id > 105) || f != nil && f.Reason != conduit.ReasonOverloaded {
				t.Errorf("call %d: %v", id, f)
			}
		}
		again := invokeFrame(111, "Echo", whole("", true))
		again.GetInvoke().Background = true
		r.send(cancelFrame(1, ""))
		r.take()
		r.send(again)
		if got := r.take(); failure(got, 111) != nil {
			t.Errorf("after one had ended: %v", got)
		}
	})
	bubble(t, "made", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{MaxCalls: 1})
		in := conduit.Invocation{Method: "M", Last: true, Streaming: true}
		watch := in
		watch.Background = true
		for range 3 {
			c.Invoke(t.Context(), testRoute, &watch)
		}
		if n := c.Outstanding(); n != 0 {
			t.Errorf("%d outstanding", n)
		}
		x := c.Invoke(t.Context(), testRoute, &in)
		if got := r.take(); kinds(got) != "invoke invoke invoke invoke" || c.Outstanding() != 1 {
			t.Errorf("got %v, %d outstanding", got, c.Outstanding())
		}
		if _, err := c.Invoke(t.Context(), testRoute, &in).Recv(t.Context()); asError(t, err).Reason != conduit.ReasonOverloaded {
			t.Errorf("over max_calls: %v", err)
		}
		x.Cancel(nil)
		if n := c.Outstanding(); n != 0 {
			t.Errorf("%d outstanding at the end", n)
		}
	})
	bubble(t, "beyond patience", func(t *testing.T) {
		_, r := rawLink(t, Options{Hello: Hello{MaxCalls: 1}}, nil)
		r.send(helloFrame(&conduitv1.Hello{LinkCredit: minLinkCredit}))
		r.take()
		// Refusals fill the link's credit, which is not returned; then they wait.
		for id := uint64(1); id < 4000; id += 2 {
			f := invokeFrame(id, "Wait", whole("", true))
			f.GetInvoke().Background = true
			r.send(f, creditFrame(0, 0))
		}
		if code, reason := r.closed(); code != CloseTryLater {
			t.Errorf("closed with %v %q", code, reason)
		}
	})
}

func TestCancelBackground(t *testing.T) {
	bubble(t, "watches end, claims and calls do not", func(t *testing.T) {
		c, s := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			if string(in.Invoke.Method) == "Claim" {
				in.KeepInDrain()
			}
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})})
		begin := func(method string, background bool) conduit.Exchange {
			return c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: method, Last: true, Streaming: true, Background: background})
		}
		watch, claim, call := begin("Watch", true), begin("Claim", true), begin("Call", false)
		synctest.Wait()
		s.CancelBackground(&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Retryable: true, Message: "the instance is going away"})
		_, err := watch.Recv(t.Context())
		if e := asError(t, err); e.Code != conduit.Unavailable || e.Reason != conduit.ReasonDraining || !e.Retryable {
			t.Errorf("the watch: %v", err)
		}
		synctest.Wait()
		if out, _ := c.Calls(); out != 2 {
			t.Errorf("%d calls are under way", out)
		}
		for what, x := range map[string]conduit.Exchange{"claim": claim, "call": call} {
			x.Cancel(nil)
			if _, err := x.Recv(t.Context()); !errors.Is(err, &conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled}) {
				t.Errorf("the %s had ended: %v", what, err)
			}
		}
	})
}
