//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestGoAwayTellsEachCallWhatBecameOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		var calls []conduit.Exchange
		for range 4 {
			calls = append(calls, c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true}))
		}
		r.take()
		r.send(goAwayFrame(&conduitv1.GoAway{LastCall: 3, Reason: "draining", RetryAfterMicros: 2_000_000}))
		for _, x := range calls[2:] { // 5 and 7
			_, err := x.Recv(t.Context())
			if e := asError(t, err); e.Outcome != conduit.Refused || e.Reason != conduit.ReasonDraining || !e.Retryable || e.RetryAfter != 2*time.Second {
				t.Errorf("above last_call: %v", err)
			}
		}
		r.send(dataFrame(3, whole("still answered", true)))
		if m, err := calls[1].Recv(t.Context()); err != nil || string(m.Data) != "still answered" {
			t.Errorf("%q, %v", m.Data, err)
		}
		if err := r.c.Close(CloseGoingAway, ""); err != nil {
			t.Error(err)
		}
		_, err := calls[0].Recv(t.Context()) // 1 dies with the link
		if e := asError(t, err); e.Outcome != conduit.OutcomeUnknown || e.Reason != conduit.ReasonPeerLost {
			t.Errorf("below last_call: %v", err)
		}
	})
	bubble(t, "calls that come after it are not started", func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Wait", &conduitv1.Data{Last: true}), invokeFrame(3, "Wait", &conduitv1.Data{Last: true}))
		synctest.Wait()
		c.GoAway("draining", 0)
		c.GoAway("again", 0)
		got := r.take()
		if len(got) != 1 || got[0].GetGoAway().GetLastCall() != 3 {
			t.Errorf("got %v", got)
		}
		r.send(invokeFrame(5, "Echo", whole("x", true)), dataFrame(5, whole("y", true)), cancelFrame(5, ""))
		if got := r.take(); len(got) != 0 {
			t.Errorf("a call above last_call was answered: %v", got)
		}
		r.send(cancelFrame(1, ""))
		if f := failure(r.take(), 1); f == nil {
			t.Error("a call below is not served any more")
		}
	})
	bubble(t, "before the Hello", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, nil)
		c.GoAway("draining", 0)
		if got := r.take(); len(got) != 0 {
			t.Errorf("sent %v before its Hello", got)
		}
		r.send(helloFrame(&conduitv1.Hello{}))
		if got := r.take(); len(got) != 2 || got[0].GetHello() == nil || got[1].GetGoAway() == nil {
			t.Errorf("got %v", got)
		}
	})
	bubble(t, "over a splice", func(t *testing.T) {
		owner := &spliceOwner{ends: map[uint64]int{}}
		back, r := rawLink(t, Options{Dialer: true, Duplex: true, LostReason: conduit.ReasonPluginLost}, &conduitv1.Hello{})
		var out frame.Invoke
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			out = *in.Invoke
			in.Splice(back, &out, owner, in.ID())
		})})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
		r.take()
		r.send(goAwayFrame(&conduitv1.GoAway{Reason: "draining"}))
		_, err := x.Recv(t.Context())
		if e := asError(t, err); e.Outcome != conduit.Refused || e.Reason != conduit.ReasonDraining {
			t.Errorf("under way: %v", err)
		}
		_, err = unary(t.Context(), c, "M", nil)
		if e := asError(t, err); e.Outcome != conduit.Refused || e.Reason != conduit.ReasonDraining || !e.Retryable {
			t.Errorf("new: %v", err)
		}
		synctest.Wait()
		if owner.ends[1] != 1 || owner.ends[3] != 1 {
			t.Errorf("ends %v", owner.ends)
		}
	})
}

func TestWaitServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, s := frozenPair(t, Options{ProbeInterval: -1}, Options{ProbeInterval: -1})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Count", Request: []byte("15000"), HasRequest: true, Last: true, Streaming: true})
		synctest.Wait()
		w.freeze(0)
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := s.WaitServed(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a call under way: %v", err)
		}
		w.thaw()
		done := make(chan error, 1)
		go func() { done <- s.WaitServed(t.Context()) }()
		n := 0
		for {
			if _, err := x.Recv(t.Context()); err != nil {
				break
			}
			n++
		}
		if err := <-done; err != nil || n != 15000 {
			t.Errorf("%d items, %v", n, err)
		}
		if err := s.WaitServed(t.Context()); err != nil {
			t.Errorf("idle: %v", err)
		}
		go func() { done <- s.WaitServed(t.Context()) }()
		s.Close(CloseDone, "")
		if err := <-done; err != nil {
			t.Errorf("over: %v", err)
		}
	})
}

// Close says what is decided, closes the carrier with code and reason, and waits
// neither for a peer that reads nothing nor for a write that is stuck.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Echo", whole("x", true)))
		synctest.Wait()
		c.Close(CloseGoingAway, "that is all")
		c.Close(CloseBug, "not this")
		<-c.Done()
		if b, last := data(r.take(), 1); string(b) != "x" || !last {
			t.Errorf("the answer is lost: %q", b)
		}
		if code, why := r.closed(); code != CloseGoingAway || why != "that is all" {
			t.Errorf("closed %d %s", code, why)
		}
	})
	bubble(t, "with the write stuck", func(t *testing.T) {
		w, c, s := frozenPair(t, Options{ProbeInterval: -1}, Options{ProbeInterval: -1, Handler: handlerFunc(flood)})
		w.freeze(0)
		for range 4 {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Flood", Last: true, Streaming: true})
		}
		synctest.Wait()
		s.mu.Lock()
		stuck := s.writing
		s.mu.Unlock()
		if !stuck {
			t.Fatal("the writer is not stuck: the test tests nothing")
		}
		start := time.Now()
		s.Close(CloseGoingAway, "")
		<-s.Done()
		if d := time.Since(start); d > closeWait {
			t.Errorf("over after %v", d)
		}
	})
	bubble(t, "calls after it", func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{})
		c.Close(CloseDone, "")
		_, err := unary(t.Context(), c, "Echo", nil)
		if e := asError(t, err); e.Outcome != conduit.NotSent || !e.Retryable {
			t.Errorf("got %v", err)
		}
		if c.Usable() || c.Err() == nil {
			t.Error("it says that it lives")
		}
	})
}

func TestLiveness(t *testing.T) {
	// probe returns when the raw end sees the first ping, and when the link ends.
	probe := func(t *testing.T, o Options, begin func(c *Conn, r *rawEnd)) (pinged, ended time.Duration) {
		c, r := rawLink(t, o, &conduitv1.Hello{})
		start := time.Now()
		begin(c, r)
		for time.Since(start) < time.Minute {
			for _, f := range r.take() {
				if f.GetPing() != nil && !f.GetPing().Ack && pinged == 0 {
					pinged = time.Since(start)
				}
			}
			if c.Err() != nil {
				return pinged, time.Since(start)
			}
			time.Sleep(100 * time.Millisecond)
		}
		return pinged, 0
	}
	near := func(t *testing.T, what string, got, want time.Duration) {
		t.Helper()
		if got < want || got > want+200*time.Millisecond {
			t.Errorf("%s after %v, want %v", what, got, want)
		}
	}
	bubble(t, "idle", func(t *testing.T) {
		pinged, ended := probe(t, Options{Dialer: true}, func(*Conn, *rawEnd) {})
		near(t, "ping", pinged, 20*time.Second)
		near(t, "end", ended, 23*time.Second)
	})
	bubble(t, "who waits", func(t *testing.T) {
		pinged, ended := probe(t, Options{Dialer: true}, func(c *Conn, _ *rawEnd) {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
		})
		near(t, "ping", pinged, time.Second)
		near(t, "end", ended, 4*time.Second)
	})
	bubble(t, "who waits in the background", func(t *testing.T) {
		pinged, ended := probe(t, Options{Dialer: true}, func(c *Conn, _ *rawEnd) {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Background: true, Streaming: true})
		})
		near(t, "ping", pinged, 20*time.Second)
		near(t, "end", ended, 23*time.Second)
	})
	bubble(t, "who serves", func(t *testing.T) {
		ended := make(chan time.Time, 1)
		start := time.Now()
		pinged, over := probe(t, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				<-ctx.Done()
				ended <- time.Now()
				return ctx.Err()
			})
		})}, func(_ *Conn, r *rawEnd) { r.send(invokeFrame(1, "Wait", &conduitv1.Data{Last: true})) })
		near(t, "ping", pinged, 20*time.Second)
		near(t, "end", over, 23*time.Second)
		near(t, "the handler's end", (<-ended).Sub(start), 23*time.Second)
	})
	bubble(t, "any packet is a sign of life", func(t *testing.T) {
		_, ended := probe(t, Options{Dialer: true}, func(c *Conn, r *rawEnd) {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true})
			go func() {
				for range 50 {
					time.Sleep(900 * time.Millisecond)
					r.send(unknownFrame(0))
				}
			}()
		})
		near(t, "end", ended, 49*time.Second) // 4 s after the last
	})
	bubble(t, "off", func(t *testing.T) {
		_, ended := probe(t, Options{Dialer: true, ProbeInterval: -1}, func(c *Conn, _ *rawEnd) {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true})
		})
		if ended != 0 {
			t.Errorf("ended after %v", ended)
		}
	})
}

// An idle link is one without calls but those in the background, since the last
// of the others ended.
func TestIdleSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{})
		watch := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Last: true, Background: true, Streaming: true})
		time.Sleep(time.Minute)
		if _, err := unary(t.Context(), c, "Echo", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if at, ok := c.IdleSince(); !ok || time.Since(at) != 10*time.Second {
			t.Errorf("idle for %v, %v", time.Since(at), ok)
		}
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Last: true, Streaming: true})
		if _, ok := c.IdleSince(); ok {
			t.Error("idle with a call under way")
		}
		x.Cancel(nil)
		watch.Cancel(nil)
	})
}

func TestCloseWhenIdle(t *testing.T) {
	bubble(t, "idle", func(t *testing.T) {
		c, s := pair(t, Options{}, Options{})
		synctest.Wait()
		c.CloseWhenIdle()
		<-c.Done()
		<-s.Done()
		if e, ok := errors.AsType[*CloseError](s.Err()); !ok || e.Code != CloseDone {
			t.Errorf("closed with %v", s.Err())
		}
	})
	bubble(t, "after the last call, but not the last watch", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		in := conduit.Invocation{Method: "M", Last: true, Streaming: true}
		watch := in
		watch.Background = true
		calls := []conduit.Exchange{c.Invoke(t.Context(), testRoute, &in), c.Invoke(t.Context(), testRoute, &in)}
		background := c.Invoke(t.Context(), testRoute, &watch)
		c.CloseWhenIdle()
		c.CloseWhenIdle()
		if c.Usable() {
			t.Error("the link is usable")
		}
		late := in
		late.Units = 3
		_, err := c.Invoke(t.Context(), testRoute, &late).Recv(t.Context())
		if e := asError(t, err); e.Outcome != conduit.NotSent || e.Code != conduit.Unavailable || !e.Retryable || c.Unsent() != 3 {
			t.Errorf("a new call: %v, %d unsent", err, c.Unsent())
		}
		calls[0].Cancel(nil)
		r.send(dataFrame(3, whole("first", false)))
		if m, err := calls[1].Recv(t.Context()); err != nil || string(m.Data) != "first" || c.Err() != nil {
			t.Errorf("%q, %v, link %v", m.Data, err, c.Err())
		}
		r.send(dataFrame(3, whole("last", true)))
		if m, err := calls[1].Recv(t.Context()); err != nil || string(m.Data) != "last" {
			t.Errorf("%q, %v", m.Data, err)
		}
		if _, err := calls[1].Recv(t.Context()); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if _, err := background.Recv(t.Context()); asError(t, err).Outcome != conduit.OutcomeUnknown {
			t.Errorf("the watch: %v", err)
		}
		<-c.Done()
		if code, _ := r.closed(); code != CloseDone {
			t.Errorf("closed with %d", code)
		}
		if f := r.take(); !strings.Contains(kinds(f), "cancel") {
			t.Errorf("what was decided is not written: %v", f)
		}
	})
}
