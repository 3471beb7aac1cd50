package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handlerFunc serves every call on a goroutine.
type handlerFunc func(in *Incoming)

func (h handlerFunc) Handle(in *Incoming) { h(in) }

// echoHandler answers by the method's name; the tests below lean on it.
func echoHandler(in *Incoming) {
	in.Serve(func(ctx context.Context, s *ServerCall) error {
		switch m := string(s.Invoke().Method); m {
		case "Echo":
			msg, err := s.Recv(ctx)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			s.Return(conduit.Message{ContentType: msg.ContentType, Data: msg.Data})
			return nil
		case "Count":
			msg, err := s.Recv(ctx)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(msg.Data))
			if err != nil {
				return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed, "not a number")
			}
			for i := range n {
				if err := s.Send(ctx, conduit.Message{Data: []byte(strconv.Itoa(i))}); err != nil {
					return err
				}
			}
			return nil
		case "Sum":
			total := 0
			for {
				msg, err := s.Recv(ctx)
				if errors.Is(err, io.EOF) {
					s.Return(conduit.Message{Data: []byte(strconv.Itoa(total))})
					return nil
				}
				if err != nil {
					return err
				}
				total += len(msg.Data)
			}
		case "Chat":
			for {
				msg, err := s.Recv(ctx)
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if err := s.Send(ctx, msg); err != nil {
					return err
				}
			}
		case "Wait":
			<-ctx.Done()
			return context.Cause(ctx)
		case "Panic":
			panic("as asked")
		case "Fail":
			return conduit.Errorf(conduit.NotFound, "no_such_thing", conduit.Executed, "nothing here")
		default:
			return &conduit.Error{Code: conduit.Unimplemented, Reason: conduit.ReasonMethodNotFound, Outcome: conduit.Refused, Message: m}
		}
	})
}

var testRoute = NewRoute(address.MustParse("*://d/e/s.S"))

// pair returns two ends of a link in memory; both are closed with the test.
func pair(tb testing.TB, client, server Options) (*Conn, *Conn) {
	tb.Helper()
	a, b := Pipe(16)
	client.Dialer = true
	if server.Handler == nil {
		server.Handler = handlerFunc(echoHandler)
	}
	for _, o := range []*Options{&client, &server} {
		if o.Memory == nil {
			o.Memory = NewMemory(0)
		}
	}
	s := New(b, server)
	c := New(a, client)
	tb.Cleanup(func() {
		c.Close(CloseDone, "test over")
		s.Close(CloseDone, "test over")
		checkOver(tb, "the dialer", c)
		checkOver(tb, "the acceptor", s)
		checkMemory(tb, "the dialer", client.Memory)
		checkMemory(tb, "the acceptor", server.Memory)
	})
	return c, s
}

func unary(ctx context.Context, c *Conn, method string, req []byte) ([]byte, error) {
	x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: method, Request: req, HasRequest: true, Last: true, ContentType: conduit.ContentBytes})
	m, err := x.Recv(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("after the answer: %w", err)
	}
	return m.Data, nil
}

func testCtx(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

func TestUnarySizes(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	for _, n := range []int{0, 1, 100, 4096, chunk - 1, chunk, chunk + 1, 70_000, 300_000, 1 << 20, DefaultMaxMessage} {
		req := bytes.Repeat([]byte{byte(n)}, n)
		got, err := unary(testCtx(t), c, "Echo", req)
		if err != nil || !bytes.Equal(got, req) {
			t.Fatalf("echo of %d bytes: %d bytes, %v", n, len(got), err)
		}
	}
}

func TestTooLarge(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	ctx := testCtx(t)
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := unary(ctx, c, "Echo", make([]byte, DefaultMaxMessage+1))
	var e *conduit.Error
	if !errors.As(err, &e) || e.Reason != conduit.ReasonPayloadTooLarge || e.Outcome != conduit.NotSent {
		t.Fatalf("got %v", err)
	}
	if _, err := unary(ctx, c, "Echo", []byte("x")); err != nil {
		t.Fatalf("the link did not survive: %v", err)
	}
}

func TestConcurrentMixedSizes(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	ctx := testCtx(t)
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			for i := range 16 {
				n := (g*7919 + i*104729) % 200_000
				if i%3 == 0 {
					n %= 64
				}
				req := bytes.Repeat([]byte{byte(g + i)}, n)
				got, err := unary(ctx, c, "Echo", req)
				if err != nil || !bytes.Equal(got, req) {
					t.Errorf("goroutine %d call %d (%d bytes): %d bytes, %v", g, i, n, len(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestServerStream(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	ctx := testCtx(t)
	x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Count", Request: []byte("20000"), HasRequest: true, Last: true, Streaming: true})
	for i := 0; ; i++ {
		m, err := x.Recv(ctx)
		if errors.Is(err, io.EOF) {
			if i != 20000 {
				t.Fatalf("ended after %d items", i)
			}
			return
		}
		if err != nil || string(m.Data) != strconv.Itoa(i) {
			t.Fatalf("item %d: %q, %v", i, m.Data, err)
		}
	}
}

func TestUploadAndDuplex(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	ctx := testCtx(t)
	x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Sum", Streaming: true})
	for range 100 {
		if err := x.Send(ctx, make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := x.Recv(ctx); err != nil || string(m.Data) != "1000000" {
		t.Fatalf("sum %q, %v", m.Data, err)
	}
	if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}

	d := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Chat", Streaming: true})
	for i := range 50 {
		want := bytes.Repeat([]byte{byte(i)}, i*3000)
		if err := d.Send(ctx, want); err != nil {
			t.Fatal(err)
		}
		if m, err := d.Recv(ctx); err != nil || !bytes.Equal(m.Data, want) {
			t.Fatalf("round %d: %d bytes, %v", i, len(m.Data), err)
		}
	}
	if err := d.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	c, _ := pair(t, Options{}, Options{})
	for method, want := range map[string]conduit.Error{
		"Fail":  {Code: conduit.NotFound, Reason: "no_such_thing", Outcome: conduit.Executed},
		"Panic": {Code: conduit.Internal, Reason: conduit.ReasonPanic, Outcome: conduit.Executed},
		"Other": {Code: conduit.Unimplemented, Reason: conduit.ReasonMethodNotFound, Outcome: conduit.Refused},
	} {
		_, err := unary(testCtx(t), c, method, nil)
		var e *conduit.Error
		if !errors.As(err, &e) || e.Code != want.Code || e.Reason != want.Reason || e.Outcome != want.Outcome {
			t.Errorf("%s: %v, want %v", method, err, &want)
		}
	}
}

func TestDeadlineInFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pair(t, Options{}, Options{})
		start := time.Now()
		_, err := unary(t.Context(), c, "Wait", nil)
		var e *conduit.Error
		if !errors.As(err, &e) || e.Code != conduit.DeadlineExceeded {
			t.Fatalf("got %v", err)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("ended after %v, want the default of 30s", d)
		}
		synctest.Wait()
		if out, _ := c.Calls(); out != 0 {
			t.Errorf("%d calls left on the caller", out)
		}
		if _, in := s.Calls(); in != 0 {
			t.Errorf("%d calls left on the server", in)
		}
	})
}

func TestSilentPeerIsDeadWithin4500ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(64)
		mute := &muteCarrier{Carrier: b, gate: make(chan struct{})}
		s := New(mute, Options{Handler: handlerFunc(echoHandler)})
		c := New(a, Options{Dialer: true})
		if _, err := unary(t.Context(), c, "Echo", []byte("x")); err != nil {
			t.Fatal(err)
		}
		mute.stop()
		start := time.Now()
		_, err := unary(t.Context(), c, "Wait", nil)
		var e *conduit.Error
		if !errors.As(err, &e) || e.Reason != conduit.ReasonPeerLost || e.Outcome != conduit.OutcomeUnknown {
			t.Fatalf("got %v", err)
		}
		if d := time.Since(start); d > 4500*time.Millisecond || d < 3*time.Second {
			t.Errorf("seen after %v", d)
		}
		close(mute.gate)
		c.Close(CloseDone, "")
		s.Close(CloseDone, "")
		<-c.Done()
		<-s.Done()
	})
}

// muteCarrier can stop to read and write, as a stopped process does.
type muteCarrier struct {
	Carrier
	mu     sync.Mutex
	halted bool
	gate   chan struct{}
}

func (m *muteCarrier) stop() { m.mu.Lock(); m.halted = true; m.mu.Unlock() }

func (m *muteCarrier) wait() {
	m.mu.Lock()
	h := m.halted
	m.mu.Unlock()
	if h {
		<-m.gate
	}
}

func (m *muteCarrier) WriteMessage(p []byte) error { m.wait(); return m.Carrier.WriteMessage(p) }

func (m *muteCarrier) ReadMessage() ([]byte, error) {
	p, err := m.Carrier.ReadMessage()
	m.wait()
	return p, err
}

func TestCancelTellsTheHandlerAndNotTheCallerToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		c, s := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return ctx.Err()
			})
		})})
		ctx, cancel := context.WithCancel(t.Context())
		x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Last: true})
		synctest.Wait()
		cancel()
		_, err := x.Recv(ctx)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if cause := <-ended; !errors.Is(cause, context.Canceled) {
			t.Errorf("the handler's cause is %v", cause)
		}
		synctest.Wait()
		if _, in := s.Calls(); in != 0 {
			t.Errorf("%d calls left", in)
		}
	})
}

func TestGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pair(t, Options{}, Options{})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Chat", Streaming: true})
		synctest.Wait()
		s.GoAway(conduit.ReasonDraining, time.Second)
		synctest.Wait()
		if c.Usable() {
			t.Error("usable after GoAway")
		}
		_, err := unary(t.Context(), c, "Echo", nil)
		var e *conduit.Error
		if !errors.As(err, &e) || e.Reason != conduit.ReasonDraining || e.Outcome != conduit.NotSent || !e.Retryable || e.RetryAfter != time.Second {
			t.Errorf("new call: %v", err)
		}
		if err := x.Send(t.Context(), []byte("still here")); err != nil {
			t.Fatal(err)
		}
		if m, err := x.Recv(t.Context()); err != nil || string(m.Data) != "still here" {
			t.Errorf("call under way: %q, %v", m.Data, err)
		}
		done := make(chan error, 1)
		go func() { done <- s.WaitServed(t.Context()) }()
		if err := x.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWaitServedWritesWhatNobodyHasBegunToWrite: an answer that is in the packet
// while its goroutine has not come as far as to write it is written, not waited
// for without end.
func TestWaitServedWritesWhatNobodyHasBegunToWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pair(t, Options{}, Options{})
		if _, err := unary(t.Context(), c, "Echo", []byte("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.mu.Lock()
		s.wbuf = frame.AppendPing(s.wbuf, 7, true)
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.WaitServed(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestVersionRefusalNamesBothSides(t *testing.T) {
	c, _ := pair(t, Options{Hello: Hello{VersionMin: 7, VersionMax: 9}}, Options{})
	_, err := unary(testCtx(t), c, "Echo", nil)
	var e *conduit.Error
	if !errors.As(err, &e) || e.Outcome != conduit.NotSent {
		t.Fatalf("got %v", err)
	}
	if want := "no common protocol version: this end speaks 7 to 9, the other 1 to 1"; !bytes.Contains([]byte(e.Message), []byte(want)) {
		t.Errorf("message %q does not say %q", e.Message, want)
	}
}

// spliceOwner counts the ends that it is told of.
type spliceOwner struct {
	mu   sync.Mutex
	ends map[uint64]int
}

func (o *spliceOwner) CallEnded(tag uint64, _ conduit.Code, _ conduit.Outcome) {
	o.mu.Lock()
	o.ends[tag]++
	o.mu.Unlock()
}

// chain builds caller -> host -> plugin.
func chain(tb testing.TB, owner Owner) (caller, hostSide, toPlugin, plugin *Conn) {
	tb.Helper()
	toPlugin, plugin = pair(tb, Options{Duplex: true, LostReason: conduit.ReasonPluginLost}, Options{Duplex: true})
	if err := toPlugin.Ready(testCtx(tb)); err != nil {
		tb.Fatal(err)
	}
	var out frame.Invoke
	tag := uint64(0)
	caller, hostSide = pair(tb, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
		out = *in.Invoke
		tag++
		in.Splice(toPlugin, &out, owner, tag)
	})})
	return caller, hostSide, toPlugin, plugin
}

func TestSplice(t *testing.T) {
	owner := &spliceOwner{ends: map[uint64]int{}}
	c, h, p, _ := chain(t, owner)
	ctx := testCtx(t)
	for _, n := range []int{0, 1, 5000, chunk + 1, 300_000, DefaultMaxMessage} {
		req := bytes.Repeat([]byte{7}, n)
		if got, err := unary(ctx, c, "Echo", req); err != nil || !bytes.Equal(got, req) {
			t.Fatalf("echo of %d bytes: %d bytes, %v", n, len(got), err)
		}
	}
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 20 {
				req := bytes.Repeat([]byte{byte(g)}, (g*i*977)%120_000)
				if got, err := unary(ctx, c, "Echo", req); err != nil || !bytes.Equal(got, req) {
					t.Errorf("%d bytes: %d, %v", len(req), len(got), err)
					return
				}
			}
		})
	}
	wg.Wait()
	x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Sum", Streaming: true})
	for range 200 {
		if err := x.Send(ctx, make([]byte, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := x.Recv(ctx); err != nil || string(m.Data) != "1000000" {
		t.Fatalf("sum %q, %v", m.Data, err)
	}
	s := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Count", Request: []byte("5000"), HasRequest: true, Last: true, Streaming: true})
	for i := range 5000 {
		if m, err := s.Recv(ctx); err != nil || string(m.Data) != strconv.Itoa(i) {
			t.Fatalf("item %d: %q, %v", i, m.Data, err)
		}
	}
	if _, err := s.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := unary(ctx, c, "Fail", nil); !errors.Is(err, &conduit.Error{Code: conduit.NotFound, Reason: "no_such_thing"}) {
		t.Fatalf("got %v", err)
	}
	if _, in := h.Calls(); in != 0 {
		t.Errorf("%d calls left on the host", in)
	}
	if out, _ := p.Calls(); out != 0 {
		t.Errorf("%d calls left towards the plugin", out)
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	for tag, n := range owner.ends {
		if n != 1 {
			t.Errorf("call %d ended %d times", tag, n)
		}
	}
	if len(owner.ends) != 6+16*20+3 {
		t.Errorf("%d ends", len(owner.ends))
	}
}

func TestSpliceCancelAndLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner := &spliceOwner{ends: map[uint64]int{}}
		c, h, p, plug := chain(t, owner)
		ctx, cancel := context.WithCancel(t.Context())
		x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Wait", Last: true})
		synctest.Wait()
		cancel()
		if _, err := x.Recv(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, in := plug.Calls(); in != 0 {
			t.Errorf("%d calls left in the plugin", in)
		}
		if _, in := h.Calls(); in != 0 {
			t.Errorf("%d calls left on the host", in)
		}
		y := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Last: true})
		synctest.Wait()
		p.Close(CloseDone, "plugin gone")
		_, err := y.Recv(t.Context())
		var e *conduit.Error
		if !errors.As(err, &e) || e.Reason != conduit.ReasonPluginLost || e.Outcome != conduit.OutcomeUnknown {
			t.Errorf("got %v", err)
		}
		_, err = unary(t.Context(), c, "Echo", nil)
		if !errors.As(err, &e) || e.Reason != conduit.ReasonPluginLost || e.Outcome != conduit.Refused || !e.Retryable {
			t.Errorf("after: %v", err)
		}
		synctest.Wait()
		owner.mu.Lock()
		defer owner.mu.Unlock()
		if owner.ends[1] != 1 || owner.ends[2] != 1 || owner.ends[3] != 1 {
			t.Errorf("ends %v", owner.ends)
		}
	})
}

func BenchmarkUnary32(b *testing.B) {
	c, _ := pair(b, Options{}, Options{})
	ctx := b.Context()
	req := make([]byte, 32)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unary(ctx, c, "Echo", req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSpliced32x64(b *testing.B) {
	c, _, _, _ := chain(b, &spliceOwner{ends: map[uint64]int{}})
	req := make([]byte, 32)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := unary(context.Background(), c, "Echo", req); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
