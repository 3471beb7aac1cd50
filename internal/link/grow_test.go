//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// line joins two links by a wire of a speed (bytes/s) and a round trip.
func line(t *testing.T, rate int, trip time.Duration, client, server Options) (c, s *Conn) {
	t.Helper()
	w, a, b := newSimWire(64<<20, func() time.Duration { return trip / 2 }, nil)
	w.rate = rate
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
	t.Cleanup(func() {
		c.Close(CloseDone, "test over")
		s.Close(CloseDone, "test over")
		checkOver(t, "the dialer", c)
		checkOver(t, "the acceptor", s)
		checkMemory(t, "the dialer", client.Memory)
		checkMemory(t, "the acceptor", server.Memory)
	})
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// carry has many calls at a time carry messages of a size up and down, and returns how
// long it takes.
func carry(t *testing.T, c *Conn, calls, each, size int) time.Duration {
	t.Helper()
	start := time.Now()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			for range each {
				if got, err := unary(t.Context(), c, "Echo", make([]byte, size)); err != nil || len(got) != size {
					t.Errorf("%d bytes of %d, %v", len(got), size, err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

func (c *Conn) limitNow() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grow.limit
}

// A line of 50 ms carries at least 80 % of what it can, either way, with credit that
// fits it; and credit does not grow beyond what the line holds, or its most.
func TestLinkCreditGrows(t *testing.T) {
	const trip = 50 * time.Millisecond
	for _, rate := range []int{1_000_000, 8_000_000, 20_000_000, 60_000_000, 1_000_000_000} {
		bubble(t, fmt.Sprintf("%d MB/s", rate/1_000_000), func(t *testing.T) {
			c, s := line(t, rate, trip, Options{CallTimeout: -1}, Options{})
			if rate > 100_000_000 {
				carry(t, c, 8, 2, 8<<20)
				if a, b := c.limitNow(), s.limitNow(); a != maxLinkCredit || b != maxLinkCredit {
					t.Errorf("grew to %d and %d", a, b)
				}
				return
			}
			n := max(1, rate*4/(4<<20)/4) // about 4 s of it
			took := carry(t, c, 4, n, 4<<20)
			ideal := time.Duration(4*n) * (4 << 20) * time.Second / time.Duration(rate)
			holds := int64(float64(rate) * trip.Seconds())
			for _, end := range []*Conn{c, s} {
				if got, most := end.limitNow(), max(DefaultLinkCredit, 3*holds); got > most || got < min(holds, maxLinkCredit*3/4) {
					t.Errorf("the line holds %d bytes, credit is %d", holds, got)
				}
			}
			// All are up at about the same time, and then come down.
			if took > 2*ideal*10/8 {
				t.Errorf("%d MB up and down took %v, at best %v", 16*n, took, 2*ideal)
			}
			time.Sleep(time.Second)
			checkCredit(t, c, s)
		})
	}
}

// Bulk in one direction alone fills the line too.
func TestOneWayFillsTheLine(t *testing.T) {
	const rate, size, many = 25_000_000, 10_000_000, 12
	for _, up := range []bool{true, false} {
		bubble(t, map[bool]string{true: "up", false: "down"}[up], func(t *testing.T) {
			c, _ := line(t, rate, 50*time.Millisecond, Options{CallTimeout: -1}, Options{Handler: handlerFunc(func(in *Incoming) {
				in.Serve(func(ctx context.Context, s *ServerCall) error {
					if _, err := s.Recv(ctx); err != nil {
						return err
					}
					if !up {
						s.Return(conduit.Message{Data: make([]byte, size)})
					}
					return nil
				})
			})})
			req := []byte("x")
			if up {
				req = make([]byte, size)
			}
			start := time.Now()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for range many / 3 {
						x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Request: req, HasRequest: true, Last: true})
						m, err := x.Recv(t.Context())
						if err == io.EOF && up {
							continue
						}
						if err != nil || up || len(m.Data) != size {
							t.Errorf("%d bytes, %v", len(m.Data), err)
						}
					}
				})
			}
			wg.Wait()
			took := time.Since(start)
			share := float64(many*size) / took.Seconds() / rate
			t.Logf("%.0f %% of the line", share*100)
			if share < 0.8 {
				t.Errorf("%.0f %% of the line", share*100)
			}
		})
	}
}

// Where the way is short, or the line slow, credit stays, and a small call beside bulk
// waits no longer than it did.
func TestLinkCreditStays(t *testing.T) {
	for _, c := range []struct {
		name string
		rate int
		trip time.Duration
	}{
		{"loopback", 500_000_000, 100 * time.Microsecond},
		{"a slow network next door", 12_500_000, 300 * time.Microsecond},
		{"a slow line", 2_000_000, 20 * time.Millisecond},
		{"a line that the first credit fills", 12_500_000, 10 * time.Millisecond},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a, b := line(t, c.rate, c.trip, Options{CallTimeout: -1}, Options{})
			over := make(chan struct{})
			go func() {
				defer close(over)
				carry(t, a, 4, 3, 4<<20)
			}()
			worst := time.Duration(0)
			for done := false; !done; {
				start := time.Now()
				if _, err := unary(t.Context(), a, "Echo", []byte("small")); err != nil {
					t.Error(err)
				}
				worst = max(worst, time.Since(start))
				select {
				case <-over:
					done = true
				case <-time.After(10 * time.Millisecond):
				}
			}
			if x, y := a.limitNow(), b.limitNow(); x != DefaultLinkCredit || y != DefaultLinkCredit {
				t.Errorf("grew to %d and %d", x, y)
			}
			// Behind what is on its way in either direction, and a packet.
			if most := 2*(DefaultLinkCredit+packetTarget+chunk)*time.Second/time.Duration(c.rate) + 2*c.trip; worst > most {
				t.Errorf("a small call took %v, more than %v", worst, most)
			}
		})
	}
}

// Without memory to spare, credit does not grow. Bulk goes one way, since how fast it
// comes back would hang on how far the other end's credit grew.
func TestLinkCreditIsCounted(t *testing.T) {
	for _, c := range []struct {
		name        string
		memory      int64
		least, most int64
	}{
		{"plenty", 0, 2 << 20, maxLinkCredit},
		{"1.5 MiB to spare", 6 << 20, DefaultLinkCredit + 1, DefaultLinkCredit + 6<<20/4},
	} {
		bubble(t, c.name, func(t *testing.T) {
			const size = 1 << 20
			mem := NewMemory(c.memory)
			conn, _ := line(t, 60_000_000, 50*time.Millisecond, Options{CallTimeout: -1, Memory: mem}, Options{Handler: handlerFunc(func(in *Incoming) {
				in.Serve(func(ctx context.Context, s *ServerCall) error {
					if _, err := s.Recv(ctx); err != nil {
						return err
					}
					s.Return(conduit.Message{Data: make([]byte, size)})
					return nil
				})
			})})
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 20 {
						if got, err := unary(t.Context(), conn, "M", nil); err != nil || len(got) != size {
							t.Errorf("%d bytes, %v", len(got), err)
						}
					}
				})
			}
			wg.Wait()
			if got := conn.limitNow(); got < c.least || got > c.most {
				t.Errorf("grew to %d, not between %d and %d", got, c.least, c.most)
			}
			checkMemory(t, "the dialer", mem, conn)
		})
	}
}
