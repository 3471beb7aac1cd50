package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What one hostile peer may make a process hold, garbage that is not collected yet
// included: far more than it does, and far less than it asks for.
const mostHeld = 192 << 20

// held is how many bytes of the heap are in use.
func held() uint64 {
	runtime.GC() // what nobody holds is no fault, however late it is collected
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// neighbour is a link of somebody else's, which must not notice what happens beside it.
func neighbour(ctx context.Context, tb testing.TB, url string) func() {
	tb.Helper()
	at := dialer(tb, ClientOptions{}).Peer(url).At(echoAddress)
	mustEcho(ctx, tb, at, "before")
	return func() {
		tb.Helper()
		mustEcho(ctx, tb, at, "beside")
		mustEcho(ctx, tb, at, strings.Repeat("x", 300<<10))
	}
}

// packets encodes frames into packets of at most a hundred each, as WebSocket frames.
func (w *wire) packets(frames []*conduitv1.Frame) (all [][]byte) {
	w.t.Helper()
	for len(frames) > 0 {
		n := min(len(frames), 100)
		p, err := proto.Marshal(&conduitv1.Packet{Frames: frames[:n]})
		if err != nil {
			w.t.Fatal(err)
		}
		all, frames = append(all, w.frame(final|opBinary, p)), frames[n:]
	}
	return all
}

func creditOf(call, n uint64) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Credit{Credit: &conduitv1.Credit{Bytes: n}}}
}

// TestHostileRequests: who takes his time over a request, or has much to say in it,
// holds a connection for a few seconds and nothing else.
func TestHostileRequests(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	if in.http.ReadHeaderTimeout != upgradeTimeout || in.http.MaxHeaderBytes != maxHeaderBytes {
		t.Fatalf("%v, %d bytes", in.http.ReadHeaderTimeout, in.http.MaxHeaderBytes)
	}
	// slow begins a hundred requests, and ends none.
	slow := func(t *testing.T, addr string) (all []*raw) {
		t.Helper()
		request := upgradeRequest(nil)
		for range 100 {
			c := rawDial(t, addr)
			_, _ = io.WriteString(c, request[:len(request)-3])
			all = append(all, c)
		}
		return all
	}
	t.Run("slow", func(t *testing.T) {
		// They hold no place among those who upgrade, of which there is one.
		in := serve(t, "", ServerOptions{MaxUpgrades: 1})
		all := slow(t, in.addr)
		neighbour(ctx, t, in.url)()
		for _, c := range all {
			_ = c.Close()
		}
	})
	t.Run("slower than is waited for", func(t *testing.T) {
		s := NewServer(ServerOptions{})
		h := s.HTTPServer(s)
		h.ReadHeaderTimeout = 100 * time.Millisecond // less than upgradeTimeout, for the test's sake
		l := listen(t)
		go func() { _ = h.Serve(l) }()
		t.Cleanup(func() { _ = h.Close() })
		for _, c := range slow(t, l.Addr().String()) {
			if b, err := io.ReadAll(c.r); isTimeout(err) || strings.Contains(string(b), " 101 ") {
				t.Fatalf("%q, %v", b, err)
			}
		}
	})
	for name, header := range map[string]string{"a long header": "X-A: " + strings.Repeat("a", 64<<10), "many headers": strings.Repeat("X-A: a\r\n", 8<<10) + "X-A: a"} {
		t.Run(name, func(t *testing.T) {
			beside := neighbour(ctx, t, in.url)
			c := rawDial(t, in.addr)
			wrote := make(chan struct{})
			go func() { // what is sent when the answer is there is not read
				defer close(wrote)
				_, _ = io.WriteString(c, strings.TrimSuffix(upgradeRequest(nil), "\r\n")+header+"\r\n\r\n")
			}()
			if a, _, err := c.answer(); err != nil || a.code != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("%v, %v", a, err)
			}
			beside()
			_ = c.Close()
			wait(t, wrote, "the end of the request")
		})
	}
}

// TestSlowAnswer is the same from the other side: an answer that has no end.
func TestSlowAnswer(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{})
	beside := neighbour(ctx, t, in.url)
	l := listen(t)
	c := dialer(t, ClientOptions{DialTimeout: time.Second})
	dialled := make(chan error, 1)
	go func() {
		_, err := c.DialLink(ctx, "ws://"+l.Addr().String(), LinkHooks{})
		dialled <- err
	}()
	w := accept(t, l, func(r *http.Request) string { return strings.TrimSuffix(accepted(r), "\r\n") })
	beside()
	e := want(t, wait(t, dialled, "the dial"), conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent)
	if !strings.Contains(e.Message, "within 1s") {
		t.Errorf("%v", e)
	}
	if _, err := w.r.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection lives on: %v", err)
	}
}

// TestNoHello: who has upgraded and says nothing is not waited for.
func TestNoHello(t *testing.T) {
	in := serve(t, "", ServerOptions{Link: link.Options{HelloTimeout: 100 * time.Millisecond}})
	c := rawDial(t, in.addr)
	c.upgrade()
	if reason := c.wantClose(1002); !strings.Contains(reason, "no Hello within 100ms") {
		t.Errorf("reason %q", reason)
	}
}

// TestManyOpens: 20,000 calls on one link.
func TestManyOpens(t *testing.T) {
	const calls = 20_000
	invokes := func(w *wire) (all []*conduitv1.Frame) {
		for range calls {
			all = append(all, w.invoke("Wait", nil))
		}
		return all
	}
	t.Run("in one go, with no credit for what is said of them", func(t *testing.T) {
		ctx := testContext(t)
		ended := make(chan error, 10)
		in := serve(t, "", ServerOptions{Link: link.Options{Hello: link.Hello{MaxCalls: 100}, OnClose: func(err error) { ended <- err }}})
		beside := neighbour(ctx, t, in.url)
		before := held()
		w := againstServer(t, in, ended)
		all := w.packets(invokes(w))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			w.send(all...)
		}()
		w.wantClose(1013)
		wait(t, sent, "the calls")
		if n := len(in.echo.started); n > 100 {
			t.Errorf("%d calls were started", n)
		}
		if n := held(); n > before+mostHeld {
			t.Errorf("%d bytes are held", n-before)
		}
		beside()
	})
	t.Run("and all that is said of them is read", func(t *testing.T) {
		ctx := testContext(t)
		in := serve(t, "", ServerOptions{})
		beside := neighbour(ctx, t, in.url)
		before := held()
		w := againstServer(t, in, make(chan error, 10))
		w.packet(creditOf(0, 1<<30))
		refused := 0
		for i, p := range w.packets(invokes(w)) {
			w.send(p)
			// Not too far ahead of the refusals.
			for refused < (i+1)*100-link.DefaultMaxCalls {
				w.until("refusal", func(f *conduitv1.Frame) bool {
					e := f.GetFailure()
					if e != nil && (e.Code != conduitv1.Code_CODE_RESOURCE_EXHAUSTED || e.Reason != conduit.ReasonOverloaded || e.Outcome != conduitv1.Outcome_OUTCOME_REFUSED || !e.Retryable) {
						t.Fatalf("call %d: %v", f.Call, e)
					}
					return e != nil
				})
				refused++
			}
		}
		poll(t, "the calls to be started", func() bool { return len(in.echo.started) == link.DefaultMaxCalls })
		if n := held(); n > before+mostHeld {
			t.Errorf("%d bytes are held", n-before)
		}
		beside()
		close(in.echo.release)
		done := 0
		w.until("the answers", func(f *conduitv1.Frame) bool {
			if f.GetData().GetLast() {
				done++
			}
			return done == link.DefaultMaxCalls
		})
		w.alive()
	})
}

// TestGames: what costs a link nothing, however much of it there is, or costs it that
// link alone; against both ends.
func TestGames(t *testing.T) {
	endless := func(w *wire) error { // fragments of a message that never ends
		all := w.frame(opBinary, nil)
		for {
			if _, err := w.Write(all); err != nil {
				return err
			}
			all = []byte(strings.Repeat(string(w.frame(opMore, nil)), 1000))
		}
	}
	hasty := link.Options{PingInterval: 100 * time.Millisecond, ProbeInterval: 100 * time.Millisecond, DeadAfter: 500 * time.Millisecond}
	for _, row := range []struct {
		name string
		link link.Options
		do   func(*wire) error
		end  bool // the link is lost
	}{
		{name: "pings whose answers are not read", do: func(w *wire) error {
			all := strings.Repeat(string(w.frame(final|opPing, []byte(strings.Repeat("x", 125)))), 10_000)
			w.send([]byte(all), w.frame(final|opPing, []byte("the last")))
			w.wantPong("the last")
			return nil
		}},
		{name: "credit by the byte", do: func(w *wire) error {
			var all []*conduitv1.Frame
			for i := range 10_000 {
				all = append(all, creditOf(0, uint64(i%2)))
			}
			w.send(w.packets(all)...)
			return nil
		}},
		{name: "empty packets", do: func(w *wire) error {
			w.send([]byte(strings.Repeat(string(w.frame(final|opBinary, nil)), 10_000)))
			return nil
		}},
		// They are no packet, so no sign of life either.
		{name: "empty fragments without end", link: hasty, do: endless, end: true},
	} {
		for _, role := range []string{"server", "client"} {
			t.Run(row.name+"/our "+role, func(t *testing.T) {
				ctx := testContext(t)
				in := serve(t, "", ServerOptions{})
				beside := neighbour(ctx, t, in.url)
				before := held()
				var w *wire
				if role == "server" {
					ended := make(chan error, 1)
					o := row.link
					o.OnClose = func(err error) { ended <- err }
					w = againstServer(t, serve(t, "", ServerOptions{Link: o}), ended)
				} else {
					w = againstClient(ctx, t, dialer(t, ClientOptions{Link: row.link}))
				}
				err := row.do(w)
				if n := held(); n > before+mostHeld {
					t.Errorf("%d bytes are held", n-before)
				}
				if !row.end {
					w.alive()
				} else {
					if isTimeout(err) {
						t.Fatalf("the link lives on: %v", err)
					}
					poll(t, "the link's end", func() bool { over, _ := w.link(); return over })
					if _, err := w.link(); !strings.Contains(err.Error(), "500ms") {
						t.Errorf("the link ended with %v", err)
					}
				}
				beside()
			})
		}
	}
}

// TestSilentReaders: who asks for much, gives all credit that there is, and reads
// nothing, loses its link at the write timeout; until then it is promised what one link is.
func TestSilentReaders(t *testing.T) {
	const writeTimeout = time.Second
	t.Run("our server", func(t *testing.T) {
		ctx := testContext(t)
		ended := make(chan error, 10)
		in := serve(t, "", ServerOptions{WriteTimeout: writeTimeout, UserTimeout: -1, Link: link.Options{OnClose: func(err error) { ended <- err }}})
		beside := neighbour(ctx, t, in.url)
		before := held()
		w := againstServer(t, in, ended)
		w.packet(creditOf(0, 1<<39))
		request := make([]byte, 32<<10)
		var asked int
		for over := false; !over; asked++ {
			f := w.invoke("Echo", request)
			f.GetInvoke().ReplyCredit = 1 << 30
			p, err := proto.Marshal(&conduitv1.Packet{Frames: []*conduitv1.Frame{f}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err = w.Write(w.frame(final|opBinary, p)); isTimeout(err) {
				t.Fatal("the link lives on")
			}
			over = err != nil
			if asked%100 == 0 {
				if n := held(); n > before+mostHeld {
					t.Fatalf("%d bytes are held after %d calls", n-before, asked)
				}
			}
		}
		poll(t, "the link's end", func() bool { over, _ := w.link(); return over })
		_, err := w.link()
		e, ok := errors.AsType[*link.CloseError](err)
		if stalled := errors.Is(err, errStalled); !stalled && !(ok && e.Code == link.CloseTryLater) {
			t.Errorf("after %d calls: %v", asked, err)
		}
		beside()
	})
	t.Run("our client", func(t *testing.T) {
		ctx := testContext(t)
		in := serve(t, "", ServerOptions{})
		c := dialer(t, ClientOptions{WriteTimeout: writeTimeout, UserTimeout: -1})
		at := c.Peer(in.url).At(echoAddress)
		mustEcho(ctx, t, at, "before")
		l := listen(t)
		silent := c.Peer("ws://" + l.Addr().String()).At(echoAddress)
		before := held()
		payload := strings.Repeat("x", 1<<20)
		const calls = 64
		errs := make([]error, calls)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = call(ctx, silent, "Echo", payload) })
		}
		w := accept(t, l, accepted)
		w.packet(hello, creditOf(0, 1<<39))
		var grants []*conduitv1.Frame
		for id := uint64(1); id < 2*calls; id += 2 {
			grants = append(grants, creditOf(id, 1<<30))
		}
		seen := map[uint64]bool{}
		w.until("all Invokes", func(f *conduitv1.Frame) bool {
			if f.GetInvoke() != nil {
				seen[f.Call] = true
			}
			return len(seen) == calls
		})
		w.send(w.packets(grants)...)
		mustEcho(ctx, t, at, "beside")
		done := make(chan struct{})
		go func() {
			defer close(done)
			wg.Wait()
		}()
		wait(t, done, "the calls to a peer that reads nothing")
		for i, err := range errs {
			if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unavailable || e.Reason != conduit.ReasonPeerLost || e.Outcome != conduit.OutcomeUnknown || !strings.Contains(fmt.Sprint(e.Message, e.Err), "no bytes") {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if n := held(); n > before+mostHeld {
			t.Errorf("%d bytes are held", n-before)
		}
		if tcp, ok := w.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		mustEcho(ctx, t, at, strings.Repeat("x", 300<<10))
	})
}
