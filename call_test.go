package conduit_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// script is an Invoker whose calls go as written down; it shows that the helpers
// keep to the rules of Exchange whatever the other end does.
type script struct {
	down []conduit.Message
	end  error // after down; nil = it waits until the call is cancelled
	// sends bounds the messages that Send takes before it says that the call has
	// ended; -1 = no bound.
	sends int

	in        conduit.Invocation
	up        []string
	closed    bool
	cancelled chan struct{}
	cancels   int
	recvs     int
}

func play(end error, down ...conduit.Message) *script {
	return &script{down: down, end: end, sends: -1, cancelled: make(chan struct{})}
}

func (s *script) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	s.in = *in
	return s
}

func (s *script) Address() address.Address { return address.MustParse("*://d/e/some.Service") }

func (s *script) Send(_ context.Context, data []byte) error {
	if s.sends == 0 {
		return io.EOF
	}
	s.sends--
	s.up = append(s.up, string(data))
	return nil
}

func (s *script) CloseSend() error { s.closed = true; return nil }

func (s *script) Recv(ctx context.Context) (conduit.Message, error) {
	s.recvs++
	if s.recvs <= len(s.down) {
		return s.down[s.recvs-1], nil
	}
	if s.end != nil {
		return conduit.Message{}, s.end
	}
	select {
	case <-s.cancelled:
		return conduit.Message{}, conduit.Errorf(conduit.Canceled, conduit.ReasonCanceled, conduit.OutcomeUnknown, "cancelled")
	case <-ctx.Done():
		return conduit.Message{}, conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
}

func (s *script) Cancel(error) {
	s.cancels++
	if s.cancels == 1 {
		close(s.cancelled)
	}
}

func result(text string) conduit.Message {
	return conduit.Message{ContentType: conduit.ContentJSON, Data: []byte(text)}
}

func partOf(n uint32, text string) conduit.Message {
	return conduit.Message{Part: n, ContentType: conduit.ContentJSON, Data: []byte(text)}
}

func want(t *testing.T, err error, code conduit.Code, reason string, outcome conduit.Outcome) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != outcome || e.Method != "M" {
		t.Errorf("got %#v, want %s/%s %s of method M", err, code, reason, outcome)
	}
}

var errRemote = &conduit.Error{Code: conduit.Aborted, Reason: "theirs", Outcome: conduit.Executed}

func TestCallReturnsAfterTheEnd(t *testing.T) {
	s := play(io.EOF, result("5"))
	n, err := conduit.Call[int](t.Context(), s, "M", "request", conduit.WithUnits(3))
	if err != nil || n != 5 || s.recvs != 2 {
		t.Errorf("got %d, %v after %d receives", n, err, s.recvs)
	}
	in := s.in
	if in.Method != "M" || string(in.Request) != `"request"` || !in.HasRequest || !in.Last || in.Streaming || in.Units != 3 ||
		in.ContentType != conduit.ContentJSON || in.Accept != conduit.ContentJSON {
		t.Errorf("invoked %+v", in)
	}
	// A message that says it is the last spares the look for the end.
	last := result("6")
	last.Last = true
	s = play(nil, last)
	if n, err := conduit.Call[int](t.Context(), s, "M", nil); err != nil || n != 6 || s.recvs != 1 || s.cancels != 0 {
		t.Errorf("got %d, %v after %d receives and %d cancels", n, err, s.recvs, s.cancels)
	}
	// An error behind the value is the outcome: the value does not count.
	_, err = conduit.Call[int](t.Context(), play(errRemote, result("5")), "M", nil)
	want(t, err, conduit.Aborted, "theirs", conduit.Executed)
	if errRemote.Method != "" {
		t.Error("a shared error was changed")
	}
}

func TestCallOutcomes(t *testing.T) {
	ctx := t.Context()
	_, err := conduit.Call[int](ctx, play(io.EOF), "M", nil)
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	_, err = conduit.Call[int](ctx, play(io.EOF, result(`"x"`)), "M", nil)
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	_, err = conduit.Call[int](ctx, play(io.EOF), "M", make(chan int))
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.NotSent)
	_, err = conduit.Call[int](ctx, nil, "M", nil)
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent)
	_, err = conduit.Call[int](ctx, play(io.EOF), "M", nil, conduit.OnPart(0, func(conduit.Message) {}))
	want(t, err, conduit.InvalidArgument, conduit.ReasonWrongShape, conduit.NotSent)

	many := play(nil, result("1"), result("2"))
	_, err = conduit.Call[int](ctx, many, "M", nil)
	want(t, err, conduit.InvalidArgument, conduit.ReasonWrongShape, conduit.OutcomeUnknown)
	if many.cancels == 0 {
		t.Error("the call goes on")
	}

	_, err = conduit.Call[int](ctx, play(nil), "M", nil, conduit.WithTimeout(time.Millisecond))
	want(t, err, conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.OutcomeUnknown)
}

func TestNothingSendsNoMessage(t *testing.T) {
	for _, request := range []any{nil, struct{}{}} {
		s := play(io.EOF)
		if _, err := conduit.Call[struct{}](t.Context(), s, "M", request); err != nil {
			t.Error(err)
		}
		if s.in.HasRequest || !s.in.Last || s.in.Accept != "" {
			t.Errorf("invoked %+v", s.in)
		}
	}
}

func TestPartsBeforeTheValue(t *testing.T) {
	var got []string
	note := func(m conduit.Message) { got = append(got, string(m.Data)) }
	s := play(io.EOF, partOf(1, "a"), partOf(2, "b"), partOf(3, "dropped"), partOf(1, "c"), result("5"))
	n, err := conduit.Call[int](t.Context(), s, "M", nil, conduit.OnPart(1, note), conduit.OnPart(2, note))
	if err != nil || n != 5 || !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %d, %v, parts %v", n, err, got)
	}
}

func TestStreamYieldsOneError(t *testing.T) {
	ctx := t.Context()
	for name, s := range map[string]*script{
		"theirs":  play(errRemote, result("1"), result("2")),
		"content": play(nil, result("1"), result("2"), result(`"x"`), result("4")),
	} {
		items, failures := 0, 0
		for n, err := range conduit.Stream[int](ctx, s, "M", nil) {
			if err != nil {
				failures++
				if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Method != "M" || e.Address == "" || n != 0 {
					t.Errorf("%s: %d, %#v", name, n, err)
				}
				continue
			}
			items++
		}
		// A call that has ended over there has nothing to cancel; one that is ended
		// for its content has.
		if items != 2 || failures != 1 || (s.cancels > 0) != (name == "content") || !s.in.Streaming {
			t.Errorf("%s: %d items, %d errors, %d cancels", name, items, failures, s.cancels)
		}
	}

	left := play(nil, result("1"), result("2"))
	for range conduit.Stream[int](ctx, left, "M", nil) { //nolint:errcheck // there is none to yield
		break
	}
	if left.cancels == 0 || left.recvs != 1 {
		t.Errorf("leaving the loop: %d cancels, %d receives", left.cancels, left.recvs)
	}
	func() {
		defer func() { _ = recover() }()
		panics := play(nil, result("1"))
		defer func() {
			if panics.cancels == 0 {
				t.Error("a panic in the loop leaves the call")
			}
		}()
		for range conduit.Stream[int](ctx, panics, "M", nil) { //nolint:errcheck // there is none to yield
			panic("the loop's own")
		}
	}()
}

func TestUpload(t *testing.T) {
	s := play(io.EOF, result("6"))
	n, err := conduit.Upload[int](t.Context(), s, "M", slices.Values([]int{1, 2, 3}))
	if err != nil || n != 6 || !slices.Equal(s.up, []string{"1", "2", "3"}) || !s.closed {
		t.Errorf("got %d, %v, sent %v", n, err, s.up)
	}
	if s.in.HasRequest || s.in.Last || !s.in.Streaming || s.in.ContentType != conduit.ContentJSON {
		t.Errorf("invoked %+v", s.in)
	}

	// The call ends before the items do: its end counts.
	s = play(errRemote)
	s.sends = 2
	taken := 0
	_, err = conduit.Upload[int](t.Context(), s, "M", func(yield func(int) bool) {
		for yield(taken) {
			taken++
		}
	})
	want(t, err, conduit.Aborted, "theirs", conduit.Executed)
	if taken != 2 {
		t.Errorf("%d items were taken, want 2", taken)
	}

	// An item that cannot be sent ends the call; how far it had come is unknown.
	_, err = conduit.Upload[int](t.Context(), play(nil), "M", slices.Values([]any{1, make(chan int)}))
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.OutcomeUnknown)
	_, err = conduit.Upload[int](t.Context(), play(nil), "M", slices.Values([]any{1, []byte("raw")}))
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.OutcomeUnknown)

	s = play(nil)
	func() {
		defer func() { _ = recover() }()
		_, _ = conduit.Upload[int](t.Context(), s, "M", func(func(int) bool) { panic("the sequence's own") })
	}()
	if s.cancels == 0 {
		t.Error("a panic in the sequence leaves the call")
	}
}

func TestDuplex(t *testing.T) {
	s := play(io.EOF, result("1"), partOf(1, "p"), result("2"))
	var parts int
	d := conduit.Duplex[string, int](t.Context(), s, "M", conduit.OnPart(1, func(conduit.Message) { parts++ }))
	if err := d.Send("up"); err != nil || s.up[0] != `"up"` {
		t.Errorf("sent %v, %v", s.up, err)
	}
	var got []int
	for n, err := range d.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
	}
	if !slices.Equal(got, []int{1, 2}) || parts != 1 {
		t.Errorf("got %v and %d parts", got, parts)
	}
	if _, err := d.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}

	broken := conduit.Duplex[string, int](t.Context(), nil, "M")
	if err := broken.Send("x"); err != io.EOF {
		t.Errorf("Send of a call that is none: %v", err)
	}
	_, err := broken.Recv()
	want(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent)
	broken.Close()
}

func TestFailedExchange(t *testing.T) {
	x := conduit.FailedExchange(errRemote)
	x.Cancel(nil)
	if err := x.Send(t.Context(), nil); err != io.EOF {
		t.Errorf("Send: %v", err)
	}
	if _, err := x.Recv(t.Context()); !errors.Is(err, errRemote) {
		t.Errorf("Recv: %v", err)
	}
}
