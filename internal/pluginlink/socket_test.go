package pluginlink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit/internal/link"
)

// socketPair is a carrier at each end of a Unix socket.
func socketPair(t *testing.T, most int) (near, far *socketCarrier) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketBase(t), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // both ends are there by then
	a, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*socketCarrier
	for i, u := range []*net.UnixConn{a, b} {
		if ends[i], err = newSocketCarrier(u, nil, most); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ends[i].Close(link.CloseDone, "") })
	}
	return ends[0], ends[1]
}

// TestSocketCarrier: messages of all sizes come as they were sent, both ways at once, by
// both ways of writing.
func TestSocketCarrier(t *testing.T) {
	const most = 1 << 20
	a, b := socketPair(t, most)
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 3, 4, 5, writtenWhole - 5, writtenWhole - 4, writtenWhole, writtenWhole + 1, socketBuffer - 5, socketBuffer - 4, socketBuffer, socketBuffer + 1, most, 0, most, 7}
	for range 300 {
		sizes = append(sizes, r.IntN(1<<r.IntN(18)))
	}
	filled := func(i, n int) []byte { return bytes.Repeat([]byte{byte(i)}, n) }
	over := make(chan error, 4)
	for _, c := range []*socketCarrier{a, b} {
		write := func() error {
			for i, n := range sizes {
				p := filled(i, n)
				if i%3 == 0 {
					if err := c.WriteMessage(p); err != nil {
						return err
					}
					continue
				}
				done, err := c.TryWriteMessage(p)
				if err == nil && !done {
					err = c.Finish()
				}
				if err != nil {
					return err
				}
				clear(p) // it is written: nobody reads it any more
			}
			return nil
		}
		read := func() error {
			for i, n := range sizes {
				p, err := c.ReadMessage()
				if err != nil {
					return err
				}
				if !bytes.Equal(p, filled(i, n)) {
					return fmt.Errorf("message %d of %d bytes came as %d", i, n, len(p))
				}
			}
			if len(c.buf) > socketBufferKept { // the last one was small
				return fmt.Errorf("a buffer of %d bytes is kept", len(c.buf))
			}
			return nil
		}
		go func() { over <- write() }()
		go func() { over <- read() }()
	}
	for range cap(over) {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// TestSocketTryWrite: what there is no room for waits for Finish, and Close ends that.
func TestSocketTryWrite(t *testing.T) {
	a, b := socketPair(t, 1<<20)
	p := make([]byte, 20_000)
	n, done := 0, true
	var err error
	for ; done && n < 10_000; n++ {
		if done, err = a.TryWriteMessage(p); err != nil {
			t.Fatal(err)
		}
	}
	if done {
		t.Fatal("the socket takes all that is written to it: the test tests nothing")
	}
	finished := make(chan error, 1)
	go func() { finished <- a.Finish() }()
	for i := range n {
		m, err := b.ReadMessage()
		if err != nil || len(m) != len(p) {
			t.Fatalf("message %d of %d: %d bytes, %v", i, n, len(m), err)
		}
	}
	if err := <-finished; err != nil {
		t.Error(err)
	}
	for done = true; done; {
		if done, err = a.TryWriteMessage(p); err != nil {
			t.Fatal(err)
		}
	}
	go func() { finished <- a.Finish() }()
	_ = a.Close(link.CloseGoingAway, "over")
	if e, ok := errors.AsType[*link.CloseError](<-finished); !ok || e.Code != link.CloseGoingAway || e.Remote {
		t.Errorf("Finish of a carrier that was closed: %v", e)
	}
	if _, err := a.TryWriteMessage(p); err == nil {
		t.Error("a carrier that was closed is written to")
	}
}

// TestSocketEnds: each end learns that the other has closed, after all that came before.
func TestSocketEnds(t *testing.T) {
	a, b := socketPair(t, 1<<20)
	for range 3 {
		if err := a.WriteMessage([]byte("last words")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.WriteMessage([]byte("never read, and so a reset")); err != nil {
		t.Fatal(err)
	}
	_ = a.Close(link.CloseGoingAway, "over")
	_ = a.Close(link.CloseDone, "twice")
	for i := range 3 {
		if p, err := b.ReadMessage(); err != nil || string(p) != "last words" {
			t.Errorf("%q, %v", p, err)
		}
		if got, want := b.Buffered(), i < 2; got != want {
			t.Errorf("after message %d the next is there: %v", i, got)
		}
	}
	_, err := b.ReadMessage()
	if e, ok := errors.AsType[*link.CloseError](err); !ok || !e.Remote || e.Code != link.CloseDone {
		t.Errorf("the other end reads %v", err)
	}
	err = b.WriteMessage(make([]byte, 100))
	if e, ok := errors.AsType[*link.CloseError](err); !ok || !e.Remote {
		t.Errorf("the other end writes: %v", err)
	}
	_, err = a.ReadMessage()
	if e, ok := errors.AsType[*link.CloseError](err); !ok || e.Remote || e.Code != link.CloseGoingAway {
		t.Errorf("this end reads %v", err)
	}
}

// TestSocketTooBig: a length above the cap costs the link, and no memory.
func TestSocketTooBig(t *testing.T) {
	a, b := socketPair(t, 1000)
	if err := a.WriteMessage(make([]byte, 1001)); err != nil {
		t.Fatal(err)
	}
	_, err := b.ReadMessage()
	if e, ok := errors.AsType[*link.CloseError](err); !ok || e.Code != link.CloseTooBig {
		t.Errorf("it is taken: %v", err)
	}
	if _, err := io.WriteString(a.conn, "\xff\xff\xff\xff"); err != nil {
		t.Fatal(err)
	}
	if len(b.buf) > socketBuffer {
		t.Errorf("the buffer has %d bytes", len(b.buf))
	}
}

// TestSocketAllocatesNothing: a message costs no allocation, either way.
func TestSocketAllocatesNothing(t *testing.T) {
	a, b := socketPair(t, 1<<20)
	p := make([]byte, 20_000)
	round := func() {
		done, err := a.TryWriteMessage(p)
		if err == nil && !done {
			err = a.Finish()
		}
		if err == nil {
			_, err = b.ReadMessage()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) }

// bothCarriers runs a test with a link of each kind.
func bothCarriers(t *testing.T, test func(t *testing.T, start func() (*Process, *logged))) {
	t.Helper()
	for _, grpc := range []bool{false, true} {
		t.Run(fmt.Sprintf("grpc %v", grpc), func(t *testing.T) {
			ctx := testContext(t)
			test(t, func() (*Process, *logged) {
				t.Helper()
				p, log, err := launch(ctx, t, "serve", func(cfg *LaunchConfig) {
					cfg.GRPC = grpc
					cfg.Carrier = func(c link.Carrier) link.Carrier {
						if _, is := c.(*carrier); is != grpc {
							t.Errorf("the link goes over a %T", c)
						}
						return c
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				return p, log
			})
		})
	}
}

// TestSocketPreface: what begins like a link of another version gets none, and gRPC goes on
// beside it.
func TestSocketPreface(t *testing.T) {
	ctx := testContext(t)
	p, _ := begin(ctx, t, "serve")
	up(ctx, t, p)
	for _, first := range []string{"conduit-link/9\n", "c", "GET / HTTP/1.1\r\n\r\n"} {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.child.socketPath(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, first); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if at, ok := ctx.Deadline(); ok {
			_ = conn.SetReadDeadline(at)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && !isReset(err) { // it ends: nobody keeps it
			t.Errorf("%q: %v", first, err)
		}
		_ = conn.Close()
	}
	c, err := p.OpenLink(ctx, link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(ctx, c, "Echo", nil); err != nil {
		t.Error(err)
	}
}

// TestSocketGone: a plugin to whose socket no further connection can be made has its link
// over gRPC.
func TestSocketGone(t *testing.T) {
	ctx := testContext(t)
	p, log := begin(ctx, t, "serve")
	up(ctx, t, p)
	was := p.child.socketPath()
	p.child.mu.Lock()
	p.child.socket = was + ".none"
	p.child.mu.Unlock()
	c, err := p.OpenLink(ctx, link.Options{})
	p.child.mu.Lock()
	p.child.socket = was
	p.child.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(ctx, c, "Echo", nil); err != nil {
		t.Error(err)
	}
	log.await(ctx, t, "why", has("@message", "goes over gRPC"))
}
