package pluginlink

import (
	"slices"
	"sync"
)

// bufferPool gives the codec its memory. gRPC's default pool has no size between
// 32 KiB and 1 MiB and clears what it hands out: for a packet of 64 KiB it would
// write a mebibyte of zeros, twice (measured: 42 % of a host's CPU at 64 KiB).
// Here the sizes are those of packets, and nobody reads beyond what was written.
type bufferPool struct {
	sizes []int
	pools []sync.Pool
}

// packets is shared by all links of the process; it holds memory and no state.
//
//nolint:gochecknoglobals // see above
var packets = newBufferPool(4<<10, 16<<10+64, 36<<10, 68<<10, 100<<10, 260<<10)

func newBufferPool(sizes ...int) *bufferPool {
	return &bufferPool{sizes: sizes, pools: make([]sync.Pool, len(sizes))}
}

// Get implements mem.BufferPool. The bytes are whatever they were.
func (p *bufferPool) Get(length int) *[]byte {
	i, _ := slices.BinarySearch(p.sizes, length)
	if i == len(p.sizes) {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.pools[i].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, p.sizes[i])
	return &b
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(b *[]byte) {
	if i, ok := slices.BinarySearch(p.sizes, cap(*b)); ok {
		p.pools[i].Put(b)
	}
}
