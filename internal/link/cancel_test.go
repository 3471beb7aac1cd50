//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// CAN-01: after the acknowledgement of a cancel nothing comes for the call, and
// never both a result and a Failure.
func TestCancelAtAnyPoint(t *testing.T) {
	for _, spliced := range []bool{false, true} {
		for seed := range uint64(100) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				size := 60 + rnd.IntN(180_000)
				serve := Options{Handler: handlerFunc(func(in *Incoming) {
					in.Serve(func(ctx context.Context, s *ServerCall) error {
						if err := s.Send(ctx, conduit.Message{Part: 1, Data: []byte("begun")}); err != nil {
							return err
						}
						select {
						case <-time.After(5 * time.Second):
						case <-ctx.Done():
							if seed%2 == 0 { // a handler that does not care
								time.Sleep(time.Second)
								s.Return(conduit.Message{Data: []byte("late")})
								return nil
							}
							return ctx.Err()
						}
						s.Return(conduit.Message{Data: make([]byte, size)})
						return nil
					})
				})}
				front := serve
				if spliced {
					back, _ := pair(t, Options{Duplex: true}, Options{Duplex: true, Handler: serve.Handler})
					var out frame.Invoke
					front.Handler = handlerFunc(func(in *Incoming) {
						out = *in.Invoke
						in.Splice(back, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
					})
				}
				c, r := rawLink(t, front, &conduitv1.Hello{})
				r.send(invokeFrame(1, "M", whole("x", true)))
				at := time.Duration(rnd.Int64N(int64(10 * time.Second)))
				switch rnd.IntN(3) {
				case 0: // near the end
					at = 5*time.Second + time.Duration(rnd.IntN(5)-2)*time.Nanosecond
				case 1:
					at %= 5 * time.Second
				}
				time.Sleep(at)
				r.send(cancelFrame(1, "canceled"))
				time.Sleep(10 * time.Second)
				ends, results := 0, 0
				for _, f := range r.take() {
					if f.Call != 1 {
						continue
					}
					if ends > 0 {
						t.Errorf("seed %d, cancelled at %v: %v after the end", seed, at, f)
					}
					if f.GetFailure() != nil {
						ends++
						if results > 0 && at < 5*time.Second {
							t.Errorf("seed %d, cancelled at %v: a result and a Failure", seed, at)
						}
					}
					if d := f.GetData(); d != nil && d.Part == 0 {
						results++
						if d.Last {
							ends++
						}
						if at < 4*time.Second {
							t.Errorf("seed %d, cancelled at %v: a result all the same", seed, at)
						}
					}
				}
				if ends != 1 {
					t.Errorf("seed %d, cancelled at %v: %d ends", seed, at, ends)
				}
				if _, in := c.Calls(); in != 0 {
					t.Errorf("seed %d: %d calls are left", seed, in)
				}
			})
		}
	}
}

// CAN-03: the remaining time travels, and the handler's context ends with it
// though nobody tells it so.
func TestDeadlineTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 1)
		_, r := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) {
			if at, ok := in.Deadline(); !ok || time.Until(at) != 2*time.Second {
				t.Errorf("deadline %v, %v", time.Until(at), ok)
			}
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				<-ctx.Done()
				ended <- time.Now()
				return context.Cause(ctx)
			})
		})}, &conduitv1.Hello{})
		start := time.Now()
		f := invokeFrame(1, "M", whole("x", true))
		f.GetInvoke().TimeoutMicros = 2_000_000
		r.send(f)
		if d := (<-ended).Sub(start); d != 2*time.Second {
			t.Errorf("ended after %v", d)
		}
		if f := failure(r.take(), 1); f == nil || f.Code != conduitv1.Code_CODE_DEADLINE_EXCEEDED || f.Outcome != conduitv1.Outcome_OUTCOME_UNKNOWN {
			t.Errorf("got %v", f) // a deadline that passed while the work ran: unknown, whichever end saw it
		}
	})
	bubble(t, "over a splice and across a queue", func(t *testing.T) {
		left := make(chan time.Duration, 1)
		toPlugin, _ := pair(t, Options{Duplex: true}, Options{Duplex: true, Handler: handlerFunc(func(in *Incoming) {
			at, _ := in.Deadline()
			left <- time.Until(at)
			in.Serve(func(ctx context.Context, _ *ServerCall) error { <-ctx.Done(); return ctx.Err() })
		})})
		var out frame.Invoke
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			out = *in.Invoke
			in.Splice(toPlugin, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
		})})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		_, err := unary(ctx, c, "M", nil)
		if e := asError(t, err); e.Code != conduit.DeadlineExceeded || time.Since(start) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if d := <-left; d != 2*time.Second {
			t.Errorf("%v were left at the plugin", d)
		}
	})
	bubble(t, "a deadline that has passed sends nothing", func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		for _, d := range []time.Duration{0, -time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			_, err := unary(ctx, c, "M", nil)
			cancel()
			if e := asError(t, err); e.Code != conduit.DeadlineExceeded || e.Outcome != conduit.NotSent {
				t.Errorf("got %v", err)
			}
		}
		if got := r.take(); len(got) != 0 {
			t.Errorf("sent %v", got)
		}
	})
	bubble(t, "of the call, though Recv is given another context", func(t *testing.T) {
		c, _ := rawLink(t, Options{Dialer: true, ProbeInterval: -1}, &conduitv1.Hello{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Last: true})
		start := time.Now()
		_, err := x.Recv(t.Context())
		if e := asError(t, err); e.Code != conduit.DeadlineExceeded || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// frozenPair is a link whose ends can be frozen, as a stopped process is: it reads
// nothing, and what is written to it fills the buffers between.
func frozenPair(t *testing.T, client, server Options) (w *simWire, c, s *Conn) {
	t.Helper()
	w, a, b := newSimWire(128<<10, nil, nil)
	client.Dialer = true
	if server.Handler == nil {
		server.Handler = handlerFunc(echoHandler)
	}
	for _, o := range []*Options{&client, &server} {
		if o.Memory == nil {
			o.Memory = NewMemory(0)
		}
	}
	s, c = New(b, server), New(a, client)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.thaw()
		c.Close(CloseDone, "test over")
		s.Close(CloseDone, "test over")
		checkOver(t, "the dialer", c)
		checkOver(t, "the acceptor", s)
		checkMemory(t, "the dialer", client.Memory)
		checkMemory(t, "the acceptor", server.Memory)
	})
	return w, c, s
}

// freeze makes a side stop to read.
func (w *simWire) freeze(side int) {
	w.mu.Lock()
	w.frozen[side] = true
	w.mu.Unlock()
}

func (w *simWire) thaw() {
	w.mu.Lock()
	w.frozen = [2]bool{}
	w.change.Broadcast()
	w.mu.Unlock()
}

// CAN-05: who cancels does not wait, whatever state the peer is in.
func TestCancelDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, _ := frozenPair(t, Options{}, Options{})
		w.freeze(1)
		ctx, cancel := context.WithCancel(t.Context())
		x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Wait", Last: true})
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		_, err := x.Recv(ctx)
		if !errors.Is(err, context.Canceled) || time.Since(start) != 200*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
	bubble(t, "with the writer stuck in an upload", func(t *testing.T) {
		w, c, _ := frozenPair(t, Options{ProbeInterval: -1}, Options{ProbeInterval: -1})
		w.freeze(1)
		ctx, cancel := context.WithCancel(t.Context())
		x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Sum", Streaming: true})
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		var err error
		for err == nil {
			err = x.Send(ctx, make([]byte, 10_000))
		}
		if time.Since(start) != 200*time.Millisecond {
			t.Errorf("Send ended after %v with %v", time.Since(start), err)
		}
		if _, err := x.Recv(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if time.Since(start) != 200*time.Millisecond {
			t.Errorf("Recv ended after %v", time.Since(start))
		}
	})
}

// A call whose Invoke is still queued is taken back, and nobody hears of it.
func TestCancelBeforeTheInvokeIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := atomic.Int32{}
		w, c, _ := frozenPair(t, Options{ProbeInterval: -1}, Options{ProbeInterval: -1, Handler: handlerFunc(func(in *Incoming) {
			if string(in.Invoke.Method) == "Queued" {
				ran.Add(1)
			}
			echoHandler(in)
		})})
		w.freeze(1)
		// Uploads, until the writer is stuck.
		for range 8 {
			c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Echo", Request: make([]byte, 60_000), HasRequest: true, Last: true, Streaming: true})
		}
		synctest.Wait()
		c.mu.Lock()
		stuck, next := c.writing, c.nextID
		c.mu.Unlock()
		if !stuck {
			t.Fatal("the writer is not stuck: the test tests nothing")
		}
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Queued", Request: []byte("x"), HasRequest: true, Last: true})
			cancel()
			_, err := x.Recv(ctx)
			if e := asError(t, err); e.Outcome != conduit.NotSent || e.Code != conduit.Canceled {
				t.Errorf("got %v", e)
			}
		}
		c.mu.Lock()
		if c.nextID != next {
			t.Errorf("ids were used: next was %d, is %d", next, c.nextID)
		}
		c.mu.Unlock()
		w.thaw()
		time.Sleep(time.Second)
		if n := ran.Load(); n != 0 {
			t.Errorf("%d of them ran", n)
		}
		if got, err := unary(t.Context(), c, "Echo", []byte("goes on")); err != nil || string(got) != "goes on" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// Cancel while a large message is on its way up, or down, leaves nothing behind:
// neither end may wait for credit that will never come.
func TestCancelWithinALargeMessage(t *testing.T) {
	for _, host := range []bool{false, true} {
		for _, method := range []string{"Sum", "Big"} {
			for step := range 12 {
				synctest.Test(t, func(t *testing.T) {
					_, a, b := newSimWire(128<<10, func() time.Duration { return time.Millisecond }, nil)
					big := handlerFunc(func(in *Incoming) {
						if string(in.Invoke.Method) != "Big" {
							echoHandler(in)
							return
						}
						in.Serve(func(_ context.Context, s *ServerCall) error {
							s.Return(conduit.Message{Data: make([]byte, 8<<20)})
							return nil
						})
					})
					owner := &spliceOwner{ends: map[uint64]int{}}
					front := Options{Handler: big, Memory: NewMemory(0)}
					spliced := 0
					if host {
						back, _ := pair(t, Options{Duplex: true}, Options{Duplex: true, Handler: big})
						var out frame.Invoke
						front.Handler = handlerFunc(func(in *Incoming) {
							spliced++
							out = *in.Invoke
							in.Splice(back, &out, owner, 1)
						})
					}
					s := New(b, front)
					mem := NewMemory(0)
					c := New(a, Options{Dialer: true, Memory: mem})
					x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: method, Streaming: true, Last: method == "Big"})
					done := make(chan error, 1)
					if method == "Sum" {
						go func() { done <- x.Send(t.Context(), make([]byte, 8<<20)) }()
					} else {
						done <- nil
					}
					time.Sleep(time.Duration(step*step) * 700 * time.Microsecond)
					x.Cancel(nil)
					<-done
					if _, err := x.Recv(t.Context()); !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
						t.Errorf("step %d: %v", step, err)
					}
					time.Sleep(2 * time.Second)
					if out, _ := c.Calls(); out != 0 {
						t.Errorf("step %d: %d calls are left on the caller", step, out)
					}
					if _, in := s.Calls(); in != 0 {
						t.Errorf("step %d, %s, host %v: %d calls are left on the server\n%s", step, method, host, in, dump("server", s))
					}
					owner.mu.Lock()
					if owner.ends[1] != spliced {
						t.Errorf("step %d: the owner of %d was told %d times", step, spliced, owner.ends[1])
					}
					owner.mu.Unlock()
					checkMemory(t, "caller", mem, c)
					checkMemory(t, "server", front.Memory, s)
					checkCredit(t, c, s)
					if got, err := unary(t.Context(), c, "Echo", []byte("on")); !host && (err != nil || string(got) != "on") {
						t.Errorf("step %d: %q, %v", step, got, err)
					}
					c.Close(CloseDone, "")
					s.Close(CloseDone, "")
					checkOver(t, "caller", c)
					checkOver(t, "server", s)
				})
			}
		}
	}
}

// A handler whose Send runs out of its own time may go on with the call, unless
// a part of the message is gone already.
func TestSendThatRunsOutOfTime(t *testing.T) {
	for _, size := range []int{100, 100_000} {
		synctest.Test(t, func(t *testing.T) {
			_, r := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) {
				in.Serve(func(ctx context.Context, s *ServerCall) error {
					for {
						short, cancel := context.WithTimeout(ctx, time.Second)
						err := s.Send(short, conduit.Message{Data: make([]byte, size)})
						cancel()
						if err != nil {
							s.Return(conduit.Message{Data: []byte("went on")})
							return nil //nolint:nilerr // the handler goes on without that message
						}
					}
				})
			})}, &conduitv1.Hello{})
			f := invokeFrame(1, "M", whole("x", true))
			f.GetInvoke().ReplyCredit = 150
			r.send(f)
			time.Sleep(2 * time.Second)
			got := r.take()
			r.send(creditFrame(1, 1000))
			got = append(got, r.take()...)
			fail := failure(got, 1)
			if size == 100 {
				if b, last := data(got, 1); fail != nil || !last || string(b[100:]) != "went on" {
					t.Errorf("%v, %d bytes", fail, len(b))
				}
			} else if fail == nil || fail.Code != conduitv1.Code_CODE_DEADLINE_EXCEEDED {
				t.Errorf("a message was cut and the call ended with %v", got)
			}
		})
	}
}

func TestCancelIncoming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		for id := uint64(1); id < 20; id += 2 {
			r.send(invokeFrame(id, "Wait", &conduitv1.Data{Last: true}))
		}
		synctest.Wait()
		c.CancelIncoming(&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Message: "going"})
		got := r.take()
		for id := uint64(1); id < 20; id += 2 {
			if f := failure(got, id); f == nil || f.Reason != conduit.ReasonDraining || f.Outcome != conduitv1.Outcome_OUTCOME_EXECUTED {
				t.Errorf("call %d: %v", id, f)
			}
		}
	})
}
