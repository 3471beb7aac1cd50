//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// stubborn serves "Stuck", which ends when let and not before, and all else as echo.
func stubborn(let <-chan struct{}) Handler {
	return handlerFunc(func(in *Incoming) {
		if string(in.Invoke.Method) != "Stuck" {
			echoHandler(in)
			return
		}
		in.Serve(func(context.Context, *ServerCall) error { <-let; return nil })
	})
}

// Calls that were given up and whose handlers go on are shown, do not keep the link
// from other calls, and still have a bound; on one link and over a host.
func TestGivenUpCallsDoNotStarveTheLink(t *testing.T) {
	const most = 8
	for _, host := range []bool{false, true} {
		for _, how := range []string{"cancel", "deadline"} {
			name := how
			if host {
				name += " over a host"
			}
			bubble(t, name, func(t *testing.T) {
				let := make(chan struct{})
				served := Options{Handler: stubborn(let), Hello: Hello{MaxCalls: most}}
				links := []*Conn{}
				if host {
					stuck, far := pair(t, Options{Duplex: true}, Options{Duplex: true, Handler: stubborn(let)})
					healthy, _ := pair(t, Options{Duplex: true}, Options{Duplex: true})
					links = append(links, stuck, far)
					served.Handler = handlerFunc(func(in *Incoming) {
						out, to := *in.Invoke, healthy
						if string(out.Method) == "Stuck" {
							to = stuck
						}
						in.Splice(to, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
					})
				}
				c, s := pair(t, Options{}, served)
				links = append(links, s)
				if err := c.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				leave := func() error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					x := c.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Stuck", Last: true, Streaming: how == "cancel"})
					if how == "cancel" {
						time.AfterFunc(time.Millisecond, func() { x.Cancel(nil) })
					}
					_, err := x.Recv(ctx)
					synctest.Wait()
					return err
				}
				for i := range most {
					if e := asError(t, leave()); e.Outcome != conduit.OutcomeUnknown {
						t.Fatalf("call %d: %v", i, e)
					}
				}
				for _, l := range links {
					if n := l.Overdue(); n != most {
						t.Errorf("%d calls are overdue", n)
					}
				}
				if n := c.Overdue(); n != 0 {
					t.Errorf("%d of the caller's own are overdue", n)
				}
				if got, err := unary(t.Context(), c, "Echo", make([]byte, 100_000)); err != nil || len(got) != 100_000 {
					t.Errorf("beside them: %d bytes, %v", len(got), err)
				}
				for range most {
					if e := asError(t, leave()); e.Reason == conduit.ReasonOverloaded {
						t.Fatalf("got %v", e)
					}
				}
				if e := asError(t, leave()); e.Reason != conduit.ReasonOverloaded || e.Outcome != conduit.Refused {
					t.Errorf("there is no bound: %v", e)
				}
				close(let)
				synctest.Wait()
				for _, l := range append(links, c) {
					if n := l.Overdue(); n != 0 {
						t.Errorf("%d are overdue at the end", n)
					}
				}
				if got, err := unary(t.Context(), c, "Echo", []byte("x")); err != nil || string(got) != "x" {
					t.Errorf("at the end: %q, %v", got, err)
				}
			})
		}
	}
}

// A router's link to an instance is not starved either.
func TestGivenUpCallsDoNotStarveTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4
		back, worker := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{MaxCalls: most})
		_, caller := rawLink(t, Options{Handler: spliceTo(back, &spliceOwner{ends: map[uint64]int{}})}, &conduitv1.Hello{})
		id := uint64(1)
		for ; id < 2*most; id += 2 {
			caller.send(invokeFrame(id, "M", whole("x", true)))
			caller.send(cancelFrame(id, "canceled"))
		}
		worker.take()
		caller.send(invokeFrame(id, "M", whole("y", true)))
		got := worker.take()
		if len(got) != 1 || got[0].GetInvoke() == nil {
			t.Fatalf("the next call is not passed on: %v, %v", got, caller.take())
		}
		worker.send(dataFrame(got[0].Call, whole("answer", true)))
		if b, _ := data(caller.take(), id); string(b) != "answer" {
			t.Errorf("got %q", b)
		}
	})
}

// A cancelled upload gives back the memory that its rest was promised, though its
// handler goes on.
func TestCancelledUploadGivesMemoryBack(t *testing.T) {
	for _, host := range []bool{false, true} {
		bubble(t, map[bool]string{false: "served", true: "over a host"}[host], func(t *testing.T) {
			let := make(chan struct{})
			defer close(let)
			mem := NewMemory(0)
			o := Options{Memory: mem, LinkMemory: 200 << 10, ProbeInterval: -1, Handler: stubborn(let)}
			if host {
				back, _ := rawLink(t, Options{Dialer: true, Duplex: true, ProbeInterval: -1}, &conduitv1.Hello{})
				o.Handler = spliceTo(back, &spliceOwner{ends: map[uint64]int{}})
			}
			_, r := rawLink(t, o, &conduitv1.Hello{})
			for id := uint64(1); id < 20; id += 2 { // far more than fit at once
				r.send(invokeFrame(id, "Stuck", piece(1<<20, string(make([]byte, 1000)))))
				if f := failure(r.take(), id); f != nil {
					t.Fatalf("call %d: %v", id, f)
				}
				r.send(cancelFrame(id, ""))
				r.send(dataFrame(id, &conduitv1.Data{Bytes: make([]byte, 1000), More: true})) // had crossed
			}
			if r.take(); !host {
				if windows, held := mem.Usage(); windows > 20_000 || held != 0 {
					t.Errorf("%d bytes are promised and %d held", windows, held)
				}
			}
		})
	}
}
