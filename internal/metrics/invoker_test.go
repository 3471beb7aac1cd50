package metrics

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// script is an Invoker whose calls yield messages and then end as it says.
type script struct {
	messages int
	end      error
	last     bool // the last message says that it is
}

func (s script) Invoke(context.Context, *conduit.Invocation) conduit.Exchange {
	return &scripted{s: s}
}

type scripted struct{ s script }

func (x *scripted) Send(context.Context, []byte) error { return nil }
func (x *scripted) CloseSend() error                   { return nil }
func (x *scripted) Cancel(error)                       {}

func (x *scripted) Recv(context.Context) (conduit.Message, error) {
	if x.s.messages == 0 {
		return conduit.Message{}, x.s.end
	}
	x.s.messages--
	return conduit.Message{Last: x.s.last && x.s.messages == 0, ContentType: conduit.ContentJSON, Data: []byte("1")}, nil
}

type addressed struct{ script }

func (addressed) Address() address.Address { return address.MustParse("*://d/e/s") }

func TestInvokerCountsEachEndOnce(t *testing.T) {
	broken := &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonPeerLost, Err: io.EOF}
	for name, tc := range map[string]struct {
		s       script
		call    func(*testing.T, conduit.Invoker)
		code    string
		outcome string
	}{
		"success": {script{1, io.EOF, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			if v, err := conduit.Call[int](t.Context(), inv, "m", nil); v != 1 || err != nil {
				t.Errorf("%v, %v", v, err)
			}
		}, "ok", "executed"},
		"success with a last message": {script{2, nil, true}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			x := inv.Invoke(t.Context(), &conduit.Invocation{Method: "m", Last: true})
			for range 2 { // nobody looks for the end, nor cancels
				if _, err := x.Recv(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}, "ok", "executed"},
		"refused": {script{0, conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused, "full"), false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			if _, err := conduit.Call[int](t.Context(), inv, "m", nil); !errors.Is(err, &conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonNoCapacity}) {
				t.Error(err)
			}
		}, "resource_exhausted", "refused"},
		"a link that broke off": {script{0, broken, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			if _, err := conduit.Call[int](t.Context(), inv, "m", nil); err == nil {
				t.Error("no error")
			}
		}, "unavailable", "unknown"},
		"an error of no code": {script{0, &conduit.Error{}, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			if _, err := inv.Invoke(t.Context(), &conduit.Invocation{Method: "m"}).Recv(t.Context()); err == nil {
				t.Error("no error")
			}
		}, "unknown", "unknown"},
		"a stream that is left": {script{5, io.EOF, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			for v, err := range conduit.Stream[int](t.Context(), inv, "m", nil) {
				if v != 1 || err != nil {
					t.Errorf("%v, %v", v, err)
				}
				break
			}
		}, "canceled", "unknown"},
		"a stream to its end": {script{5, io.EOF, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			n := 0
			for v, err := range conduit.Stream[int](t.Context(), inv, "m", nil) {
				if err != nil {
					t.Error(err)
				}
				n += v
			}
			if n != 5 {
				t.Errorf("%d items", n)
			}
		}, "ok", "executed"},
		"end upon end": {script{0, io.EOF, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			x := inv.Invoke(t.Context(), &conduit.Invocation{Method: "m"})
			for range 3 {
				if _, err := x.Recv(t.Context()); err != io.EOF {
					t.Error(err)
				}
				x.Cancel(errors.New("late"))
			}
		}, "ok", "executed"},
		"cancelled for a reason": {script{1, io.EOF, false}, func(t *testing.T, inv conduit.Invoker) {
			t.Helper()
			x := inv.Invoke(t.Context(), &conduit.Invocation{Method: "m"})
			x.Cancel(conduit.Errorf(conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.OutcomeUnknown, "late"))
		}, "deadline_exceeded", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Options{})
			m.Calls().Declare("d", map[string][]string{"s": {"m"}})
			tc.call(t, m.Calls().Invoker(tc.s, "d", "s"))
			p := scrape(t, m)
			at := "deployment=d,method=m,outcome=" + tc.outcome + ",service=s,side=client}"
			if got := p["conduit_calls_total{code="+tc.code+","+at]; got != 1 {
				t.Errorf("it is not counted as %s, %s: %v", tc.code, tc.outcome, p.of("conduit_calls"))
			}
			if got := p["conduit_call_duration_seconds_count{deployment=d,method=m,service=s,side=client}"]; got != 1 {
				t.Errorf("%v durations, want 1", got)
			}
			if got := p["conduit_calls_in_flight{side=client}"]; got != 0 {
				t.Errorf("%v calls are in flight", got)
			}
		})
	}
}

func TestInvokerIsInFlightUntilItsEnd(t *testing.T) {
	m := New(Options{})
	x := m.Calls().Invoker(script{1, io.EOF, false}, "d", "s").Invoke(t.Context(), &conduit.Invocation{Method: "m"})
	for _, want := range []float64{1, 1, 0} {
		if got := scrape(t, m)["conduit_calls_in_flight{side=client}"]; got != want {
			t.Errorf("%v in flight, want %v", got, want)
		}
		_, _ = x.Recv(t.Context())
	}
}

// Errors name the address of a Target; it is to be seen through the counting.
func TestInvokerKeepsTheAddress(t *testing.T) {
	c := New(Options{}).Calls()
	inv := c.Invoker(addressed{script{0, io.EOF, false}}, "d", "s")
	if got, ok := inv.(conduit.Target); !ok || got.Address().String() != "*://d/e/s" {
		t.Errorf("%T", inv)
	}
	if _, ok := c.Invoker(script{}, "d", "s").(conduit.Target); ok {
		t.Error("an Invoker without an address has become a Target")
	}
	_, _ = inv.Invoke(t.Context(), &conduit.Invocation{Method: "m"}).Recv(t.Context())
	if got := c.Find(Client, "", "", "").begun.Load() + c.Find(Client, "d", "s", "m").begun.Load(); got != 1 {
		t.Errorf("%d calls are counted", got)
	}
}
