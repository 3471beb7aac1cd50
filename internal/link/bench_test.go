package link

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// BenchmarkSplicedBulk is what larger messages cost over a host, by size and how
// many are under way.
func BenchmarkSplicedBulk(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		for _, many := range []int{1, 64} {
			b.Run(fmt.Sprintf("%dKiBx%d", size>>10, many), func(b *testing.B) {
				c, h, _, _ := chain(b, &spliceOwner{ends: map[uint64]int{}})
				defer func() { b.ReportMetric(float64(max(c.limitNow(), h.limitNow())), "credit") }()
				req := make([]byte, size)
				b.SetBytes(int64(2 * size))
				b.ReportAllocs()
				b.SetParallelism(max(1, many/2))
				run := func() error { _, err := unary(context.Background(), c, "Echo", req); return err }
				if many == 1 {
					for b.Loop() {
						if err := run(); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := run(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkLongLine is bulk over a line of 50 ms: how much of it is used, and the link
// credit in the end.
func BenchmarkLongLine(b *testing.B) {
	for _, rate := range []int{10_000_000, 50_000_000} {
		b.Run(fmt.Sprintf("%dMBps", rate/1_000_000), func(b *testing.B) {
			w, near, far := newSimWire(64<<20, func() time.Duration { return 25 * time.Millisecond }, nil)
			w.rate = rate
			s := New(far, Options{Handler: handlerFunc(func(in *Incoming) {
				in.Serve(func(ctx context.Context, s *ServerCall) error {
					_, err := s.Recv(ctx)
					return err
				})
			})})
			c := New(near, Options{Dialer: true})
			defer func() {
				c.Close(CloseDone, "")
				s.Close(CloseDone, "")
				checkOver(b, "dialer", c)
				checkOver(b, "acceptor", s)
			}()
			const size = 4 << 20
			b.SetBytes(size)
			b.SetParallelism(2)
			start := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					x := c.Invoke(context.Background(), testRoute, &conduit.Invocation{Method: "M", Request: make([]byte, size), HasRequest: true, Last: true})
					for {
						if _, err := x.Recv(context.Background()); err != nil {
							break
						}
					}
				}
			})
			b.ReportMetric(100*float64(b.N)*size/time.Since(start).Seconds()/float64(rate), "%line")
			b.ReportMetric(float64(s.limitNow()), "credit")
		})
	}
}
