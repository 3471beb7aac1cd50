//nolint:thelper // what is given to bubble is a test, no helper
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

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// flood serves "Flood": messages of 10,000 bytes until the call is cancelled.
func flood(in *Incoming) {
	if string(in.Invoke.Method) != "Flood" {
		echoHandler(in)
		return
	}
	in.Serve(func(ctx context.Context, s *ServerCall) error {
		for {
			if err := s.Send(ctx, conduit.Message{Data: make([]byte, 10_000)}); err != nil {
				return err
			}
		}
	})
}

// FRM-05: a caller that stops to read stalls its own call and nothing else, and
// many of them hold no more memory than they were promised.
func TestUnreadStreams(t *testing.T) {
	for _, host := range []bool{false, true} {
		bubble(t, fmt.Sprintf("host %v", host), func(t *testing.T) {
			mem := NewMemory(4 << 20)
			client, server := Options{Memory: mem}, Options{Handler: handlerFunc(flood)}
			if host {
				back, _ := pair(t, Options{Duplex: true}, Options{Duplex: true, Handler: handlerFunc(flood)})
				var out frame.Invoke
				server.Handler = handlerFunc(func(in *Incoming) {
					out = *in.Invoke
					in.Splice(back, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
				})
			}
			c, _ := pair(t, client, server)
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			var unread []conduit.Exchange
			for range 120 {
				unread = append(unread, c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Flood", Last: true, Streaming: true}))
			}
			time.Sleep(30 * time.Second)
			if windows, held := mem.Usage(); windows > 2<<20 || held > 2<<20 {
				t.Errorf("%d promised, %d held of %d", windows, held, 4<<20)
			}
			c.mu.Lock()
			most := int64(0)
			for _, k := range c.calls {
				k.in.mu.Lock()
				for _, it := range k.in.q[k.in.head:] {
					most += int64(len(it.msg.Data))
				}
				most += int64(len(k.open.buf))
				k.in.mu.Unlock()
			}
			c.mu.Unlock()
			if most == 0 || most > 4<<20 {
				t.Errorf("%d bytes lie unread", most)
			}
			start := time.Now()
			for range 50 {
				if got, err := unary(t.Context(), c, "Echo", []byte("small")); err != nil || string(got) != "small" {
					t.Fatalf("beside them: %q, %v", got, err)
				}
			}
			if d := time.Since(start); d > 0 {
				t.Errorf("the others took %v", d)
			}
			// Read at last, each gives what it holds, and more.
			for _, x := range unread[:10] {
				for range 30 {
					if m, err := x.Recv(t.Context()); err != nil || len(m.Data) != 10_000 {
						t.Fatalf("%d bytes, %v", len(m.Data), err)
					}
				}
			}
			for _, x := range unread {
				x.Cancel(nil)
			}
		})
	}
}

// Of 10,000 streams that nobody reads a process holds what its memory has room for; the
// others are refused, and nothing above it is ever promised.
func TestTenThousandUnread(t *testing.T) {
	bubble(t, "streams", func(t *testing.T) {
		const total = 64 << 20
		mem := NewMemory(total)
		var unread []conduit.Exchange
		refused := 0
		for range 4 { // links of one process, with 2,500 streams each
			c, _ := pair(t, Options{Memory: mem}, Options{Handler: handlerFunc(flood)})
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2500 {
				unread = append(unread, c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Flood", Last: true, Streaming: true}))
			}
		}
		time.Sleep(10 * time.Second)
		windows, held := mem.Usage()
		if windows > total/2 || windows+held > total {
			t.Errorf("%d bytes are promised and %d held, of %d", windows, held, total)
		}
		if windows <= total/2-minWindow {
			t.Errorf("%d bytes are promised, and streams were refused though there was room", windows)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, x := range unread { // each has its messages, or was told that there is no memory
			_, err := x.Recv(ctx)
			if e, ok := errors.AsType[*conduit.Error](err); ok && e.Reason == conduit.ReasonOverloaded && e.Outcome == conduit.NotSent && e.Retryable {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			x.Cancel(nil)
		}
		// One link's share suffices for about 2,000 (shareOf), and half of the memory for
		// the shares of two links.
		if served := len(unread) - refused; served < 4000 {
			t.Errorf("of %d streams %d were served", len(unread), served)
		}
	})
}

// A server that does not read an upload stalls that upload alone.
func TestUnreadUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := pair(t, Options{}, Options{})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Streaming: true})
		go func() {
			var err error
			for err == nil {
				err = x.Send(t.Context(), make([]byte, 20_000))
			}
		}()
		time.Sleep(5 * time.Second)
		time.AfterFunc(20*time.Second, func() { t.Log(dump("c", c), dump("s", s)) })
		if got, err := unary(t.Context(), c, "Echo", make([]byte, 1<<20)); err != nil || len(got) != 1<<20 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		s.mu.Lock()
		windows := s.windows
		s.mu.Unlock()
		if windows != DefaultRequestCredit {
			t.Errorf("%d bytes are promised", windows)
		}
		x.Cancel(nil)
	})
}

// The reader of a link must not wait for another link's carrier: callers on
// other links go on while one plugin, and one caller, are frozen.
func TestFrozenNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := Options{ProbeInterval: -1, Duplex: true}
		plugin := off
		plugin.Handler = handlerFunc(flood)
		frozen, stuck, _ := frozenPair(t, off, plugin)
		_, healthy, _ := frozenPair(t, off, plugin)
		host := Options{ProbeInterval: -1, Handler: handlerFunc(func(in *Incoming) {
			out := *in.Invoke // two readers use this handler
			to := healthy
			if string(out.Element) == "stuck" {
				to = stuck
			}
			in.Splice(to, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
		})}
		_, c, _ := frozenPair(t, Options{ProbeInterval: -1}, host)
		mute, other, _ := frozenPair(t, Options{ProbeInterval: -1}, host)

		bad := *testRoute
		bad.element = []byte("stuck")
		frozen.freeze(1) // the plugin stops to read
		mute.freeze(0)   // and one caller does
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 100 { // more than all buffers hold
			wg.Go(func() {
				x := c.Invoke(ctx, &bad, &conduit.Invocation{Method: "Echo", Request: make([]byte, 50_000), HasRequest: true, Last: true, Streaming: true})
				_, err := x.Recv(ctx)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("stuck call: %v", err)
				}
			})
		}
		for range 20 { // floods to a caller that reads nothing
			other.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Flood", Last: true, Streaming: true})
		}
		time.Sleep(time.Second)
		start := time.Now()
		for i := range 100 {
			req := bytes.Repeat([]byte{byte(i)}, i*1000)
			if got, err := unary(t.Context(), c, "Echo", req); err != nil || !bytes.Equal(got, req) {
				t.Fatalf("call %d beside the frozen: %d bytes, %v", i, len(got), err)
			}
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("the healthy took %v", d)
		}
		cancel()
		wg.Wait()
		frozen.thaw()
		mute.thaw()
		synctest.Wait()
	})
}

// Two ends that call each other and flood each other, over carriers that hold
// little, do not wait for each other for ever.
func TestMutualFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := newSimWire(64<<10, nil, nil)
		mem := [2]*Memory{NewMemory(0), NewMemory(0)}
		ends := [2]*Conn{
			New(a, Options{Dialer: true, Duplex: true, Handler: handlerFunc(echoHandler), Memory: mem[0]}),
			New(b, Options{Duplex: true, Handler: handlerFunc(echoHandler), Memory: mem[1]}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for e, c := range ends {
			for g := range 20 {
				wg.Go(func() {
					for i := range 20 {
						req := bytes.Repeat([]byte{byte(i)}, (g*i*4931+e)%90_000)
						if got, err := unary(ctx, c, "Echo", req); err != nil || !bytes.Equal(got, req) {
							t.Errorf("end %d: %d bytes of %d, %v", e, len(got), len(req), err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		synctest.Wait()
		checkCredit(t, ends[0], ends[1])
		for i, c := range ends {
			c.Close(CloseDone, "")
			checkOver(t, "end", c)
			checkMemory(t, "end", mem[i])
		}
	})
}

// Small frames overtake bulk, and bulk still gets its eighth.
func TestWriteOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{CallCredit: 10 << 20, LinkCredit: 64 << 20})
		// What is queued while a write is under way goes by this order; so hold the writer.
		c.mu.Lock()
		c.writing = true
		c.mu.Unlock()
		start := func(method string, n int) conduit.Exchange {
			return c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: method, Request: make([]byte, n), HasRequest: true, Last: true, Streaming: true})
		}
		var all []conduit.Exchange
		for range 3 {
			all = append(all, start("bulk", 2<<20))
		}
		for range 400 {
			all = append(all, start("small", 3000))
		}
		c.mu.Lock()
		c.ctrl = frame.AppendPing(c.ctrl, 7, false)
		c.write(false)
		got := r.take()
		for _, x := range all {
			x.Cancel(nil)
		}
		if got[0].GetPing() == nil {
			t.Errorf("control is not first: %v", got[0].GetKind())
		}
		small, sinceBulk, bulkFirst, lastID := 0, 0, 0, uint64(0)
		runs := map[uint64]int{}
		for _, f := range got {
			if in := f.GetInvoke(); in != nil {
				if f.Call <= lastID {
					t.Errorf("call %d after %d", f.Call, lastID)
				}
				lastID = f.Call
				if in.Method == "small" {
					small++
					sinceBulk += len(in.Data.Bytes)
					continue
				}
			}
			if f.GetData() == nil && f.GetInvoke() == nil {
				continue
			}
			runs[f.Call]++
			if small < 400 {
				bulkFirst++
				if sinceBulk > 8*chunk {
					t.Errorf("bulk waited for %d bytes of small frames", sinceBulk)
				}
			}
			sinceBulk = 0
		}
		if small != 400 || bulkFirst == 0 || bulkFirst > 8 {
			t.Errorf("%d small calls, %d bulk chunks before the last of them", small, bulkFirst)
		}
		for id, n := range runs { // bulk calls take turns
			if n < 64 {
				t.Errorf("call %d has %d chunks", id, n)
			}
		}
	})
}

// Many calls at once fit a link with the usual limits.
func TestManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 1900 {
			wg.Go(func() {
				if _, err := unary(ctx, c, "Wait", []byte("x")); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		time.Sleep(time.Second)
		if out, _ := c.Calls(); out != 1900 {
			t.Errorf("%d are under way", out)
		}
		cancel()
		wg.Wait()
	})
}

// A call that finds no memory says so at once, and what was turned away works later.
func TestMemoryRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t, Options{LinkMemory: 64 << 10}, Options{})
		var held []conduit.Exchange
		for {
			x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Wait", Last: true, Streaming: true})
			c.mu.Lock()
			n := c.out
			c.mu.Unlock()
			if n == len(held) {
				_, err := x.Recv(t.Context())
				if e := asError(t, err); e.Reason != conduit.ReasonOverloaded || e.Outcome != conduit.NotSent || !e.Retryable {
					t.Errorf("got %v", err)
				}
				break
			}
			held = append(held, x)
		}
		if len(held) < 8 || len(held) > 16 {
			t.Errorf("%d calls fit", len(held))
		}
		for _, x := range held {
			x.Cancel(nil)
		}
		if got, err := unary(t.Context(), c, "Echo", []byte("now")); err != nil || string(got) != "now" {
			t.Errorf("%q, %v", got, err)
		}
	})
	bubble(t, "for requests", func(t *testing.T) {
		_, r := rawLink(t, Options{LinkMemory: 200 << 10}, &conduitv1.Hello{})
		for id := uint64(1); id < 8; id += 2 {
			r.send(invokeFrame(id, "Wait", nil)) // 64 KiB each
		}
		got := r.take()
		if f := failure(got, 7); f == nil || f.Reason != conduit.ReasonOverloaded || !f.Retryable || failure(got, 5) != nil {
			t.Errorf("got %v", got)
		}
		alive(t, r, 9)                                                           // a small one that is whole needs no window
		r.send(invokeFrame(11, "Wait", whole(string(make([]byte, 9000)), true))) // a larger one does, while it is not taken
		if f := failure(r.take(), 11); f == nil || f.Reason != conduit.ReasonOverloaded {
			t.Errorf("got %v", f)
		}
		r.send(cancelFrame(1, ""))
		synctest.Wait()
		r.send(invokeFrame(13, "Echo", whole(string(make([]byte, 9000)), true)))
		if b, _ := data(r.take(), 13); len(b) != 9000 {
			t.Errorf("%d bytes", len(b))
		}
	})
}

// Messages above the windows wait for their turn, first come first served, also
// when the first gives up.
func TestLargeMessagesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(2 << 20) // 1 MiB for messages
		_, r := rawLink(t, Options{Memory: mem}, &conduitv1.Hello{})
		first := func(id uint64, total int) {
			r.send(invokeFrame(id, "Sum", piece(total, "x")))
		}
		granted := func(id uint64, frames []*conduitv1.Frame) (n uint64) {
			for _, f := range frames {
				if f.Call == id {
					n += f.GetCredit().GetBytes()
				}
			}
			return n
		}
		first(1, 700_000)
		if n := granted(1, r.take()); n < 700_000 {
			t.Fatalf("the first was granted %d", n)
		}
		first(3, 600_000)
		first(5, 300_000) // would fit, but is not first
		if got := r.take(); granted(3, got)+granted(5, got) != 0 {
			t.Fatalf("granted out of turn: %v", got)
		}
		r.send(cancelFrame(3, "")) // the one that blocks gives up
		if n := granted(5, r.take()); n < 300_000 {
			t.Fatalf("the next was granted %d", n)
		}
		first(7, 900_000)
		if got := r.take(); granted(7, got) != 0 {
			t.Fatalf("granted: %v", got)
		}
		r.send(cancelFrame(1, ""), cancelFrame(5, ""))
		if n := granted(7, r.take()); n < 900_000 {
			t.Fatalf("at the end %d", n)
		}
		r.send(cancelFrame(7, ""))
		r.take()
		first(9, 3_000_000) // more than there is at all: alone, it fits
		if n := granted(9, r.take()); n < 3_000_000 {
			t.Fatalf("alone, the largest was granted %d", n)
		}
	})
}

func TestPartsBetweenResults(t *testing.T) {
	c, _, _, _ := chain(t, &spliceOwner{ends: map[uint64]int{}}) // the plugin echoes
	plain, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
		in.Serve(func(ctx context.Context, s *ServerCall) error {
			for i := range 60 {
				m := conduit.Message{Part: uint32(i % 4), ContentType: "application/x-" + strconv.Itoa(i), Data: bytes.Repeat([]byte{byte(i)}, i*i*40)}
				if err := s.Send(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	})})
	x := plain.Invoke(testCtx(t), testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true})
	for i := 0; ; i++ {
		m, err := x.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			if i != 60 {
				t.Errorf("%d messages", i)
			}
			break
		}
		if err != nil || m.Part != uint32(i%4) || m.ContentType != "application/x-"+strconv.Itoa(i) || !bytes.Equal(m.Data, bytes.Repeat([]byte{byte(i)}, i*i*40)) {
			t.Fatalf("message %d: part %d, %s, %d bytes, %v", i, m.Part, m.ContentType, len(m.Data), err)
		}
	}
	if got, err := unary(testCtx(t), c, "Echo", []byte("x")); err != nil || string(got) != "x" {
		t.Error(err)
	}
}

// A plugin may call the host in a call, and itself through the host.
func TestDuplexAndBackIntoOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var plugin *Conn
		depth := func(in *Incoming) {
			in.Serve(func(ctx context.Context, s *ServerCall) error {
				msg, err := s.Recv(ctx)
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(string(msg.Data))
				if err != nil {
					return err
				}
				if n == 0 {
					s.Return(conduit.Message{Data: []byte("bottom")})
					return nil
				}
				x := plugin.Invoke(ctx, testRoute, &conduit.Invocation{Method: "Down", Request: []byte(strconv.Itoa(n - 1)), HasRequest: true, Last: true, Parent: s.ID()})
				m, err := x.Recv(ctx)
				if err != nil {
					return err
				}
				if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
					return fmt.Errorf("after the answer: %w", err)
				}
				s.Return(conduit.Message{Data: append(m.Data, '.')})
				return nil
			})
		}
		owner := &spliceOwner{ends: map[uint64]int{}}
		var host *Conn
		tag := uint64(0)
		parents := 0
		host, plugin = pair(t, Options{Duplex: true, Handler: handlerFunc(func(in *Incoming) {
			tag++
			if got, ok := in.Conn().Spliced(in.Invoke.Parent); ok && got == tag-1 {
				parents++
			}
			out := *in.Invoke
			in.Splice(in.Conn(), &out, owner, tag) // back to where it came from
		})}, Options{Duplex: true, Handler: handlerFunc(depth)})
		got, err := unary(t.Context(), host, "Down", []byte("9"))
		if err != nil || string(got) != "bottom........." {
			t.Errorf("%q, %v", got, err)
		}
		synctest.Wait()
		owner.mu.Lock()
		if len(owner.ends) != 9 || parents != 8 {
			t.Errorf("%d calls were passed on, %d had a parent that was", len(owner.ends), parents)
		}
		owner.mu.Unlock()
		checkCredit(t, host, plugin)
	})
}

// When what the plugin sends is at fault, the caller hears at once, and the
// owner when the plugin is done with the call.
func TestOwnerHearsWhenTheWorkIsOver(t *testing.T) {
	for name, bad := range map[string]*conduitv1.Frame{
		"above the cap":   dataFrame(1, piece(DefaultMaxMessage+1, "x")),
		"credit overflow": creditFrame(1, 1<<62),
		"too much":        dataFrame(1, whole(string(make([]byte, 200_000)), false)),
	} {
		for _, end := range []*conduitv1.Frame{dataFrame(1, &conduitv1.Data{Last: true}), failureFrame(1, &conduitv1.Failure{Code: 1})} {
			bubble(t, name, func(t *testing.T) {
				owner := &spliceOwner{ends: map[uint64]int{}}
				back, r := rawLink(t, Options{Dialer: true, Duplex: true, LinkMemory: 1 << 20}, &conduitv1.Hello{})
				var out frame.Invoke
				c, h := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
					out = *in.Invoke
					in.Splice(back, &out, owner, 1)
				})})
				x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Streaming: true})
				r.take()
				r.send(bad)
				_, err := x.Recv(t.Context())
				if e := asError(t, err); e.Outcome != conduit.OutcomeUnknown {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				if n := owner.ends[1]; n != 0 {
					t.Errorf("the owner was told %d times while the plugin works", n)
				}
				if _, in := h.Calls(); in != 0 {
					t.Errorf("%d calls are left towards the caller", in)
				}
				canceled := false
				for _, f := range r.take() {
					canceled = canceled || f.GetCancel() != nil
				}
				if !canceled {
					t.Error("the plugin was not told")
				}
				r.send(dataFrame(1, whole("what it still says", false)), end)
				synctest.Wait()
				owner.mu.Lock()
				defer owner.mu.Unlock()
				if n := owner.ends[1]; n != 1 {
					t.Errorf("the owner was told %d times", n)
				}
				if out, _ := back.Calls(); out != 0 {
					t.Errorf("%d calls are left towards the plugin", out)
				}
			})
		}
	}
}

// The credit of a splice's first payload comes back though it fills the window.
func TestSplicedInvokeThatFillsTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back, _ := pair(t, Options{Duplex: true}, Options{Duplex: true})
		var out frame.Invoke
		_, r := rawLink(t, Options{Hello: Hello{CallCredit: minCallCredit}, Handler: handlerFunc(func(in *Incoming) {
			out = *in.Invoke
			in.Splice(back, &out, &spliceOwner{ends: map[uint64]int{}}, 1)
		})}, &conduitv1.Hello{})
		if err := back.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		fill := minCallCredit - dataCost
		r.send(invokeFrame(1, "Sum", piece(fill+10, string(make([]byte, fill)))))
		left := uint64(0)
		for _, f := range r.take() {
			if f.Call == 1 {
				left += f.GetCredit().GetBytes()
			}
		}
		if left != minCallCredit {
			t.Fatalf("%d came back", left)
		}
		r.send(dataFrame(1, &conduitv1.Data{Bytes: make([]byte, 10), Last: true}))
		if b, _ := data(r.take(), 1); string(b) != strconv.Itoa(fill+10) {
			t.Errorf("sum %q", b)
		}
	})
}
