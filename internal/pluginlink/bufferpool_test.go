package pluginlink

import (
	"testing"

	"google.golang.org/grpc/mem"
)

func TestBufferPool(t *testing.T) {
	var _ mem.BufferPool = packets
	p := newBufferPool(10, 20)
	for _, c := range []struct{ length, capacity int }{{0, 10}, {1, 10}, {10, 10}, {11, 20}, {20, 20}, {21, 21}} {
		b := p.Get(c.length)
		if len(*b) != c.length || cap(*b) != c.capacity {
			t.Errorf("Get(%d): length %d, capacity %d; want capacity %d", c.length, len(*b), cap(*b), c.capacity)
		}
		*b = (*b)[:0] // whoever had it may have cut it
		p.Put(b)
		if again := p.Get(c.length); len(*again) != c.length {
			t.Errorf("Get(%d) after Put: length %d", c.length, len(*again))
		}
	}
}

func BenchmarkCodec64KiB(b *testing.B) {
	m := &rawMessage{out: make([]byte, 64<<10)}
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	for b.Loop() {
		s, err := rawCodec{}.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		s.Free()
	}
}
