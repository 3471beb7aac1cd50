package pluginapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// start runs an element with the one service "test.S", filled by fill, and bounds
// the test's calls.
func start(t *testing.T, fill func(s *pluginapi.Service)) (context.Context, conduit.Invoker) {
	t.Helper()
	s := pluginapi.NewService("test.S")
	fill(s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx, plugintest.Start(t, pluginapi.Element{Name: "e", Services: []*pluginapi.Service{s}}).Service("test.S")
}

func wantError(t *testing.T, err error, code conduit.Code, reason string, outcome conduit.Outcome) *conduit.Error {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != outcome {
		t.Fatalf("the error is %#v, want %s/%s %s", err, code, reason, outcome)
	}
	return e
}

type none = struct{}

func TestGreeter(t *testing.T) {
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.Handle(s, "Greet", greet, pluginapi.Remote())
		pluginapi.HandleStream(s, "Count", count, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
		pluginapi.Handle(s, "Secret", greet)
	})
	if reply, err := conduit.Call[GreetReply](ctx, s, "Greet", GreetRequest{Name: "Ada"}); err != nil || reply.Text != "Hello, Ada!" {
		t.Errorf("got %+v, %v", reply, err)
	}
	_, err := conduit.Call[GreetReply](ctx, s, "Greet", GreetRequest{})
	if e := wantError(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified, conduit.Executed); e.Message != "name is empty" {
		t.Errorf("the message is %q", e.Message)
	}
	_, err = conduit.Call[GreetReply](ctx, s, "Secret", GreetRequest{Name: "Ada"})
	wantError(t, err, conduit.PermissionDenied, conduit.ReasonNotRemote, conduit.Refused)
	var got []int
	for n, err := range conduit.Stream[int](ctx, s, "Count", 3) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
	}
	if !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

func TestProtoMethodsTakeAndGiveJSONToo(t *testing.T) {
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.Handle(s, "Len", func(_ context.Context, in *structpb.ListValue) (*wrapperspb.UInt32Value, error) {
			return wrapperspb.UInt32(uint32(len(in.GetValues()))), nil
		}, pluginapi.Remote())
	})
	list, err := structpb.NewList([]any{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := conduit.Call[*wrapperspb.UInt32Value](ctx, s, "Len", list); err != nil || n.GetValue() != 3 {
		t.Errorf("proto both ways: %v, %v", n, err)
	}
	if n, err := conduit.Call[int](ctx, s, "Len", []int{1, 2}); err != nil || n != 2 {
		t.Errorf("JSON both ways: %v, %v", n, err)
	}
	if n, err := conduit.Call[*wrapperspb.UInt32Value](ctx, s, "Len", []int{1, 2}); err != nil || n.GetValue() != 2 {
		t.Errorf("JSON up, proto down: %v, %v", n, err)
	}
	if n, err := conduit.Call[int](ctx, s, "Len", list); err != nil || n != 3 {
		t.Errorf("proto up, JSON down: %v, %v", n, err)
	}
	m, err := conduit.Call[conduit.Message](ctx, s, "Len", list)
	if err != nil || m.ContentType != conduit.ContentProto || string(m.Data) != "\x08\x03" {
		t.Errorf("its own: %+v, %v", m, err)
	}
	_, err = conduit.Call[int](ctx, s, "Len", "no list")
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused)
}

func TestHandlersErrors(t *testing.T) {
	typed := pluginapi.Errorf(pluginapi.NotFound, "no %s", "such row")
	typed.Reason = "row_missing"
	handler := map[string]error{
		"Typed":   typed,
		"Wrapped": fmt.Errorf("reading: %w", typed),
		"Plain":   io.ErrUnexpectedEOF,
		"Zero":    &pluginapi.Error{Message: "no code"},
		"Foreign": conduit.Errorf(conduit.Unavailable, conduit.ReasonNoCapacity, conduit.Refused, "of another call"),
		"Refuse":  fmt.Errorf("busy: %w", pluginapi.Refuse(conduit.ReasonOverloaded)),
		"Own":     context.DeadlineExceeded,
	}
	ctx, s := start(t, func(s *pluginapi.Service) {
		for name, err := range handler {
			pluginapi.Handle(s, name, func(context.Context, none) (none, error) { return none{}, err }, pluginapi.Remote())
		}
		pluginapi.Handle(s, "NaN", func(context.Context, none) (any, error) { return func() {}, nil }, pluginapi.Remote())
	})
	call := func(name string) error {
		_, err := conduit.Call[none](ctx, s, name, nil)
		return err
	}
	if e := wantError(t, call("Typed"), conduit.NotFound, "row_missing", conduit.Executed); e.Message != "no such row" {
		t.Errorf("the message is %q", e.Message)
	}
	if e := wantError(t, call("Wrapped"), conduit.NotFound, "row_missing", conduit.Executed); e.Message != "reading: no such row" {
		t.Errorf("the message is %q", e.Message)
	}
	if e := wantError(t, call("Plain"), conduit.Unknown, conduit.ReasonUnspecified, conduit.Executed); e.Message != "unexpected EOF" {
		t.Errorf("the message is %q", e.Message)
	}
	wantError(t, call("Zero"), conduit.Unknown, conduit.ReasonUnspecified, conduit.Executed)
	// A refusal that the handler met is not the handler's: it may have done work.
	wantError(t, call("Foreign"), conduit.Unavailable, conduit.ReasonNoCapacity, conduit.Executed)
	if e := wantError(t, call("Refuse"), conduit.ResourceExhausted, conduit.ReasonOverloaded, conduit.Refused); !e.Retryable {
		t.Error("a refusal cannot be tried elsewhere")
	}
	wantError(t, call("Own"), conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.Executed)
	wantError(t, call("NaN"), conduit.Internal, conduit.ReasonInternal, conduit.Executed)
}

func TestPanicsEndTheirCallOnly(t *testing.T) {
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.Handle(s, "Panic", func(context.Context, none) (none, error) { panic(errors.New("boom")) }, pluginapi.Remote())
		pluginapi.HandleStream(s, "PanicLate", func(_ context.Context, _ none, send pluginapi.Sender[int]) error {
			_ = send(1)
			var empty []int
			return send(slices.Max(empty)) // which panics
		}, pluginapi.Remote())
		pluginapi.Handle(s, "Fine", greet, pluginapi.Remote())
	})
	_, err := conduit.Call[none](ctx, s, "Panic", nil)
	wantError(t, err, conduit.Internal, conduit.ReasonPanic, conduit.Executed)
	items := 0
	for _, err := range conduit.Stream[int](ctx, s, "PanicLate", nil) {
		if err == nil {
			items++
			continue
		}
		wantError(t, err, conduit.Internal, conduit.ReasonPanic, conduit.Executed)
	}
	if items != 1 {
		t.Errorf("%d items before the panic, want 1", items)
	}
	if _, err := conduit.Call[GreetReply](ctx, s, "Fine", GreetRequest{Name: "Ada"}); err != nil {
		t.Error(err)
	}
}

func TestNothingFollowsTheReturn(t *testing.T) {
	late := make(chan error, 2)
	release := make(chan struct{})
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.HandleStream(s, "Leaks", func(ctx context.Context, _ none, send pluginapi.Sender[int]) error {
			go func() {
				<-release
				late <- send(1)
				late <- pluginapi.SendPart(context.WithoutCancel(ctx), 1, "x")
			}()
			return nil
		}, pluginapi.Remote())
	})
	for v, err := range conduit.Stream[int](ctx, s, "Leaks", nil) {
		t.Errorf("the stream yields %v, %v", v, err)
	}
	close(release)
	for range 2 {
		if err := <-late; err == nil {
			t.Error("something was sent after the return")
		}
	}
}

func TestSendersShareACall(t *testing.T) {
	const senders, each = 8, 50
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.HandleStream(s, "Many", func(ctx context.Context, _ none, send pluginapi.Sender[[]byte]) error {
			var wg sync.WaitGroup
			for i := range senders {
				wg.Go(func() {
					for range each {
						if send(make([]byte, 40_000)) != nil || pluginapi.SendPart(ctx, uint32(i)+1, i) != nil {
							t.Error("a send failed")
						}
					}
				})
			}
			wg.Wait()
			return nil
		}, pluginapi.Remote())
	})
	parts := 0
	var opts []conduit.CallOption
	for i := range senders {
		opts = append(opts, conduit.OnPart(uint32(i)+1, func(conduit.Message) { parts++ }))
	}
	items := 0
	for data, err := range conduit.Stream[[]byte](ctx, s, "Many", nil, opts...) {
		if err != nil || len(data) != 40_000 {
			t.Fatal(len(data), err)
		}
		items++
	}
	if items != senders*each || parts != senders*each {
		t.Errorf("got %d items and %d parts", items, parts)
	}
}

// TestEndWaitsForWhatIsBeingSent: a goroutine that the handler left behind is in
// the middle of a message, which a slow caller has no room for.
func TestEndWaitsForWhatIsBeingSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type report struct {
			sent int
			err  error
		}
		left := make(chan report, 1)
		ctx, s := start(t, func(s *pluginapi.Service) {
			pluginapi.Handle(s, "Leaks", func(ctx context.Context, _ none) (int, error) {
				go func() {
					ctx := context.WithoutCancel(ctx)
					for n := 0; ; n++ {
						if err := pluginapi.SendPart(ctx, 1, make([]byte, 60_000)); err != nil {
							left <- report{n, err}
							return
						}
					}
				}()
				<-time.After(time.Second)
				return 7, nil
			}, pluginapi.Remote())
		})
		x := s.Invoke(ctx, &conduit.Invocation{Method: "Leaks", Last: true})
		<-time.After(2 * time.Second)
		parts := 0
		for {
			m, err := x.Recv(ctx)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.Part == 1 && len(m.Data) == 60_000 {
				parts++
			} else if m.Part != 0 || string(m.Data) != "7" {
				t.Errorf("got %d bytes of part %d", len(m.Data), m.Part)
			}
		}
		if r := <-left; r.sent != parts || !errors.Is(r.err, &conduit.Error{Code: conduit.FailedPrecondition}) {
			t.Errorf("%d parts were sent, then %v; the caller got %d", r.sent, r.err, parts)
		}

		// A caller that leaves instead frees the handler and what it left behind.
		x = s.Invoke(ctx, &conduit.Invocation{Method: "Leaks", Last: true})
		<-time.After(2 * time.Second)
		x.Cancel(nil)
		// Either is true by now: the caller is gone, and the handler has returned.
		if r := <-left; !errors.Is(r.err, context.Canceled) && !errors.Is(r.err, &conduit.Error{Code: conduit.FailedPrecondition}) {
			t.Errorf("after %d parts: %v", r.sent, r.err)
		}
	})
}

func TestSendPartNeedsACall(t *testing.T) {
	if err := pluginapi.SendPart(t.Context(), 1, "x"); !errors.Is(err, &conduit.Error{Code: conduit.FailedPrecondition}) {
		t.Errorf("outside of a call: %v", err)
	}
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.Handle(s, "Zero", func(ctx context.Context, _ none) (none, error) {
			return none{}, pluginapi.SendPart(ctx, 0, "x")
		}, pluginapi.Remote())
	})
	_, err := conduit.Call[none](ctx, s, "Zero", nil)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified, conduit.Executed)
	if c := pluginapi.CallerFrom(t.Context()); c.Level != pluginapi.Anonymous || c.User != "" {
		t.Errorf("outside of a call the caller is %+v", c)
	}
}

func TestReceiverGoesOnWhereALoopWasLeft(t *testing.T) {
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.HandleUpload(s, "Pieces", func(_ context.Context, items pluginapi.Receiver[int]) ([]int, error) {
			var got []int
			for n, err := range items {
				if err != nil {
					return nil, err
				}
				got = append(got, n)
				break
			}
			n, err := items.Next()
			if err != nil {
				return nil, err
			}
			got = append(got, n)
			for n, err := range items {
				if err != nil {
					return nil, err
				}
				got = append(got, n)
			}
			if _, err := items.Next(); err != io.EOF {
				return nil, fmt.Errorf("after the end: %w", err)
			}
			return got, nil
		}, pluginapi.Remote())
		pluginapi.HandleUpload(s, "First", func(_ context.Context, items pluginapi.Receiver[int]) (int, error) { return items.Next() }, pluginapi.Remote())
	})
	got, err := conduit.Upload[[]int](ctx, s, "Pieces", slices.Values([]int{1, 2, 3, 4}))
	if err != nil || !slices.Equal(got, []int{1, 2, 3, 4}) {
		t.Errorf("got %v, %v", got, err)
	}
	// A handler may return before the upload is over: the caller's loop ends.
	forever := func(yield func(int) bool) {
		for i := 5; yield(i); i++ { //nolint:revive // the loop is all there is
		}
	}
	if n, err := conduit.Upload[int](ctx, s, "First", forever); err != nil || n != 5 {
		t.Errorf("got %d, %v", n, err)
	}
}

// TestPartsDuringAnUpload would stand still if the caller did not receive while it
// sends: both directions are full.
func TestPartsDuringAnUpload(t *testing.T) {
	const items, size = 50, 50_000
	ctx, s := start(t, func(s *pluginapi.Service) {
		pluginapi.HandleUpload(s, "Mirror", func(ctx context.Context, in pluginapi.Receiver[[]byte]) (int, error) {
			n := 0
			for data, err := range in {
				if err != nil {
					return 0, err
				}
				if err := pluginapi.SendPart(ctx, 1, data); err != nil {
					return 0, err
				}
				n++
			}
			return n, nil
		}, pluginapi.Remote())
	})
	seq := func(yield func([]byte) bool) {
		for range items {
			if !yield(make([]byte, size)) {
				return
			}
		}
	}
	parts := 0
	n, err := conduit.Upload[int](ctx, s, "Mirror", seq, conduit.OnPart(1, func(m conduit.Message) { parts += len(m.Data) }))
	if err != nil || n != items || parts != items*size {
		t.Errorf("got %d items, %d bytes of parts, %v", n, parts, err)
	}
}

// TestSlowCallerHoldsTheHandlerBack: credit, seen from an author's side.
func TestSlowCallerHoldsTheHandlerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		ctx, s := start(t, func(s *pluginapi.Service) {
			pluginapi.HandleStream(s, "Fast", func(_ context.Context, _ none, send pluginapi.Sender[[]byte]) error {
				for range 1000 {
					if err := send(make([]byte, 10_000)); err != nil {
						return err
					}
					sent++
				}
				return nil
			}, pluginapi.Remote())
		})
		for _, err := range conduit.Stream[[]byte](ctx, s, "Fast", nil) {
			if err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if sent > 300 {
				t.Errorf("%d items of 10 kB are out, and the caller has taken one", sent)
			}
			break
		}
	})
}

func TestCancelReachesTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := make(chan error, 1)
		ctx, s := start(t, func(s *pluginapi.Service) {
			pluginapi.HandleDuplex(s, "Wait", func(ctx context.Context, _ pluginapi.Receiver[int], send pluginapi.Sender[int]) error {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				if err := send(1); err == nil {
					t.Error("a send after the cancel succeeds")
				}
				return ctx.Err()
			}, pluginapi.Remote())
		})
		d := conduit.Duplex[int, int](ctx, s, "Wait")
		synctest.Wait()
		d.Close()
		if err := <-cause; !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's cause is %v", err)
		}
	})
}

// CAN-07: a call that a handler makes ends with the handler's own, and what the handler
// has taken out of it goes on.
func TestCancelReachesInnerCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, outlives := make(chan error, 1), make(chan error, 1)
		inner := pluginapi.NewService("test.Inner")
		pluginapi.Handle(inner, "Wait", func(ctx context.Context, _ none) (none, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return none{}, ctx.Err()
		}, pluginapi.Remote())
		pluginapi.Handle(inner, "Slow", func(ctx context.Context, _ none) (string, error) {
			select {
			case <-time.After(10 * time.Second):
				return "done", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
		at := func(ctx context.Context) conduit.Invoker {
			return pluginapi.HostFrom(ctx).At("*://other/inner/test.Inner")
		}
		outer := pluginapi.NewService("test.Outer")
		pluginapi.Handle(outer, "Wait", func(ctx context.Context, _ none) (none, error) {
			return conduit.Call[none](ctx, at(ctx), "Wait", nil)
		}, pluginapi.Remote())
		pluginapi.Handle(outer, "Leave", func(ctx context.Context, _ none) (none, error) {
			to, detached := at(ctx), context.WithoutCancel(ctx)
			go func() {
				got, err := conduit.Call[string](detached, to, "Slow", nil)
				if err == nil && got != "done" {
					err = errors.New("it is " + got)
				}
				outlives <- err
			}()
			return none{}, nil
		}, pluginapi.Remote())
		c := plugintest.Start(t, pluginapi.Element{Name: "outer", Services: []*pluginapi.Service{outer}},
			plugintest.Beside("other", pluginapi.Element{Name: "inner", Services: []*pluginapi.Service{inner}}))
		s := c.As("ada", pluginapi.User).Service("test.Outer")

		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { _, err := conduit.Call[none](ctx, s, "Wait", nil); over <- err }()
		time.Sleep(5 * time.Second) // it waits in the inner one
		select {
		case err := <-ended:
			t.Fatalf("the inner call has ended by itself: %v", err)
		default:
		}
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the inner handler's cause is %v", err)
			}
		default:
			t.Error("the inner handler works on")
		}
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("the outer call: %v", err)
		}

		if _, err := conduit.Call[none](t.Context(), s, "Leave", nil); err != nil {
			t.Fatal(err)
		}
		if err := <-outlives; err != nil {
			t.Errorf("the call that was taken out of its own: %v", err)
		}
	})
}

func TestCallsOfAnElement(t *testing.T) {
	inner := pluginapi.NewService("test.Inner")
	pluginapi.Handle(inner, "Level", func(ctx context.Context, _ none) (string, error) {
		c := pluginapi.CallerFrom(ctx)
		return c.User + "/" + c.Level.String(), nil
	}, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
	pluginapi.Handle(inner, "Deadline", func(ctx context.Context, _ none) (none, error) {
		<-ctx.Done()
		return none{}, ctx.Err()
	}, pluginapi.Remote())

	const addr = "*://other/inner/test.Inner"
	outer := pluginapi.NewService("test.Outer")
	var host pluginapi.Host
	pluginapi.Handle(outer, "Ask", func(ctx context.Context, how string) (string, error) {
		switch how {
		case "self":
			ctx = pluginapi.AsSelf(ctx)
		case "detached":
			return conduit.Call[string](context.Background(), host.At(addr), "Level", nil) //nolint:contextcheck // a context of no call
		case "nowhere":
			return conduit.Call[string](ctx, host.At("nonsense"), "Level", nil)
		}
		return conduit.Call[string](ctx, pluginapi.HostFrom(ctx).At(addr), "Level", nil)
	}, pluginapi.Remote())
	pluginapi.Handle(outer, "Wait", func(ctx context.Context, _ none) (none, error) {
		return conduit.Call[none](ctx, pluginapi.HostFrom(ctx).At(addr), "Deadline", nil)
	}, pluginapi.Remote(), pluginapi.Timeout(time.Second))

	synctest.Test(t, func(t *testing.T) {
		c := plugintest.Start(t, pluginapi.Element{
			Name: "outer", Services: []*pluginapi.Service{outer},
			Start: func(_ context.Context, h pluginapi.Host) error { host = h; return nil },
		}, plugintest.Beside("other", pluginapi.Element{Name: "inner", Services: []*pluginapi.Service{inner}}))
		ada := c.As("ada", pluginapi.Superuser).Service("test.Outer")
		for how, want := range map[string]string{"": "ada/superuser", "self": "element:outer/user", "detached": "/anonymous"} {
			if got, err := conduit.Call[string](t.Context(), ada, "Ask", how); err != nil || got != want {
				t.Errorf("%q: called as %s, %v; want %s", how, got, err, want)
			}
		}
		_, err := conduit.Call[string](t.Context(), ada, "Ask", "nowhere")
		wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.Executed)

		// The inner call ends with the outer one's time.
		_, err = conduit.Call[none](t.Context(), ada, "Wait", nil)
		wantError(t, err, conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.Executed)
	})
}
