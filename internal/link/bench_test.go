package link

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkSplicedBulk is what larger messages cost over a host, by size and how
// many are under way.
func BenchmarkSplicedBulk(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		for _, many := range []int{1, 64} {
			b.Run(fmt.Sprintf("%dKiBx%d", size>>10, many), func(b *testing.B) {
				c, _, _, _ := chain(b, &spliceOwner{ends: map[uint64]int{}})
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
