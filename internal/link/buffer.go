package link

import (
	"sync"

	"github.com/elemental-conduit/conduit/internal/frame"
)

// Frames that must wait are copied into pooled memory of these sizes.
const (
	smallBuf = 2 << 10
	largeBuf = 36 << 10 // a chunk and its header
)

//nolint:gochecknoglobals // pools are shared by all links of a process on purpose
var (
	smallBufs  = sync.Pool{New: func() any { b := make([]byte, 0, smallBuf); return &b }}
	largeBufs  = sync.Pool{New: func() any { b := make([]byte, 0, largeBuf); return &b }}
	invokePool = sync.Pool{New: func() any { return new(queuedInvoke) }}
)

// getBuf returns an empty buffer of at least n bytes of capacity.
func getBuf(n int) *[]byte {
	pool := &largeBufs
	if n <= smallBuf {
		pool = &smallBufs
	}
	b, ok := pool.Get().(*[]byte)
	if !ok || cap(*b) < n {
		fresh := make([]byte, 0, n)
		return &fresh
	}
	*b = (*b)[:0]
	return b
}

func putBuf(b *[]byte) {
	switch c := cap(*b); {
	case c >= largeBuf && c < 2*largeBuf:
		largeBufs.Put(b)
	case c >= smallBuf && c < 2*smallBuf:
		smallBufs.Put(b)
	}
}

// queuedInvoke is an Invoke that waits to be written, with memory of its own.
type queuedInvoke struct {
	inv frame.Invoke
	buf *[]byte
}

func (q *queuedInvoke) release() {
	if q.buf != nil {
		putBuf(q.buf)
		q.buf = nil
	}
	chain, callers := q.inv.Chain[:0], q.inv.Caller.Chain[:0]
	q.inv = frame.Invoke{Chain: chain}
	q.inv.Caller.Chain = callers
	invokePool.Put(q)
}

// queueInvoke copies an Invoke; with keep, the payload is copied too, else it
// goes on aliasing the caller's bytes.
func queueInvoke(in *frame.Invoke, keep bool) *queuedInvoke {
	q, ok := invokePool.Get().(*queuedInvoke)
	if !ok {
		q = new(queuedInvoke)
	}
	q.buf = copyInvoke(&q.inv, in, keep)
	return q
}

// headerBytes is the length of all that an Invoke refers to but its payload.
func headerBytes(src *frame.Invoke) int {
	n := len(src.Instance) + len(src.Deployment) + len(src.Element) + len(src.Service) + len(src.Method) +
		len(src.ContentType) + len(src.Accept) + len(src.As.Session) + len(src.As.Name) + len(src.Caller.User) +
		len(src.Caller.Peer) + len(src.TraceParent) + len(src.TraceState) + len(src.Data.ContentType)
	for _, s := range src.Chain {
		n += len(s)
	}
	for _, s := range src.Caller.Chain {
		n += len(s)
	}
	return n
}

// copyInvoke deep-copies src into dst and returns the pooled memory behind it.
func copyInvoke(dst, src *frame.Invoke, payload bool) *[]byte {
	n := headerBytes(src)
	if payload {
		n += len(src.Data.Bytes)
	}
	mem := getBuf(n)
	*mem = copyInto(dst, src, *mem, payload)
	return mem
}

// copyInto deep-copies src into dst and b, which has room for it.
func copyInto(dst, src *frame.Invoke, b []byte, payload bool) []byte {
	take := func(s []byte) []byte {
		if len(s) == 0 {
			return nil
		}
		at := len(b)
		b = append(b, s...)
		return b[at:len(b):len(b)]
	}
	chain, callers := dst.Chain[:0], dst.Caller.Chain[:0]
	*dst = *src
	dst.Instance, dst.Deployment, dst.Element = take(src.Instance), take(src.Deployment), take(src.Element)
	dst.Service, dst.Method = take(src.Service), take(src.Method)
	dst.ContentType, dst.Accept = take(src.ContentType), take(src.Accept)
	dst.As.Session, dst.As.Name = take(src.As.Session), take(src.As.Name)
	dst.Caller.User, dst.Caller.Peer = take(src.Caller.User), take(src.Caller.Peer)
	dst.TraceParent, dst.TraceState = take(src.TraceParent), take(src.TraceState)
	dst.Data.ContentType = take(src.Data.ContentType)
	if payload {
		dst.Data.Bytes = take(src.Data.Bytes)
	}
	for _, s := range src.Chain {
		chain = append(chain, take(s))
	}
	for _, s := range src.Caller.Chain {
		callers = append(callers, take(s))
	}
	dst.Chain, dst.Caller.Chain = chain, callers
	return b
}

// cloneInvoke copies an Invoke's header into memory of its own; the payload is
// left out.
func cloneInvoke(dst, src *frame.Invoke) {
	copyInto(dst, src, make([]byte, 0, headerBytes(src)), false)
	dst.Data, dst.HasData = frame.Data{}, false
}
