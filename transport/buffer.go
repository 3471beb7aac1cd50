package transport

import (
	"errors"
	"io"
	"sync"
)

// errTooBig says that a message exceeds the carrier's cap.
var errTooBig = errors.New("message over the cap")

const (
	// smallBuffer holds the usual packet: a busy link writes while under 64 KiB
	// are unreturned.
	smallBuffer = 64 << 10
	// bigBuffer holds any packet of a link with the default cap, its slack, and
	// the byte that tells an excess.
	bigBuffer = 256<<10 + packetSlack + 1
)

// The pools are the process's, not a link's: the point is that links that are
// idle at different times share buffers.
//
//nolint:gochecknoglobals // pools without configuration; nothing depends on what is in them
var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, 0, smallBuffer)} }}
	bigBuffers   = sync.Pool{New: func() any { return &buffer{bytes: make([]byte, 0, bigBuffer)} }}
)

// buffer holds one message while it is read and decided on.
type buffer struct{ bytes []byte }

// newBuffer returns an empty buffer that grows as it is filled.
func newBuffer() *buffer {
	b, _ := smallBuffers.Get().(*buffer)
	return b
}

// fill reads r to its end. A message over limit is errTooBig, and no more than
// limit+1 bytes of it are held.
func (b *buffer) fill(r io.Reader, limit int) error {
	for {
		if len(b.bytes) == cap(b.bytes) {
			b.grow(limit)
		}
		n, err := r.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case len(b.bytes) > limit:
			return errTooBig
		case errors.Is(err, io.EOF): // the reader's own end; a cut is another error
			return nil
		case err != nil:
			return err
		}
	}
}

// grow makes room: first by a pooled buffer, then by doubling, never far beyond
// limit.
func (b *buffer) grow(limit int) {
	if cap(b.bytes) < bigBuffer {
		if big, ok := bigBuffers.Get().(*buffer); ok {
			big.bytes = append(big.bytes[:0], b.bytes...)
			b.bytes, big.bytes = big.bytes, b.bytes[:0]
			big.free()
			return
		}
	}
	// Only the simple profile has packets so large.
	more := make([]byte, len(b.bytes), max(min(2*cap(b.bytes), limit+1), cap(b.bytes)+1))
	copy(more, b.bytes)
	b.bytes = more
}

// free returns the buffer to where one of its size is looked for.
func (b *buffer) free() {
	b.bytes = b.bytes[:0]
	switch cap(b.bytes) {
	case smallBuffer:
		smallBuffers.Put(b)
	case bigBuffer:
		bigBuffers.Put(b)
	}
}

// writeBuffers is gorilla's pool of the dialling side's write buffers.
//
//nolint:gochecknoglobals // as above
var writeBuffers sync.Pool
