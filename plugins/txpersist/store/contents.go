package store

import (
	"bytes"
	"io"
	"maps"

	"github.com/elemental-conduit/conduit/address"
)

// contents are those of a resource as the transaction left them: chunks that it wrote,
// on top of what is committed, of which it keeps the rest.
type contents struct {
	none   bool // there are none, which is not the same as no bytes
	size   int64
	below  record // what shows through, if anything
	chunks map[uint32][]byte
	staged uint64 // what has, in the file, all whole chunks that are not in chunks; 0 = nothing is there
}

// held is how many bytes are in memory.
func (c *contents) held() (n int64) {
	for _, chunk := range c.chunks {
		n += int64(len(chunk))
	}
	return n
}

// chunkOf reads one chunk of a record.
func (b base) chunkOf(r record, index uint32) ([]byte, error) {
	switch r.kind {
	case contentsInline:
		return r.inline, nil
	case contentsChunked:
		return b.chunk(r.id, index)
	case contentsNone:
	}
	return nil, corrupt("contents that are not there were read")
}

// chunk returns a chunk as the transaction sees it; not to be changed.
func (t *ReadTx) chunk(c *contents, index uint32) ([]byte, error) {
	if data, ok := c.chunks[index]; ok {
		return data, nil
	}
	if c.staged != 0 {
		return base{t.snap}.chunk(c.staged, index)
	}
	return t.base().chunkOf(c.below, index)
}

// contents returns what the transaction sees of a resource's contents.
func (t *ReadTx) contents(u uuid) (*contents, error) {
	if t.edits != nil {
		if r, ok := t.edits.resources[u]; ok && r.contents != nil {
			return r.contents, nil
		}
	}
	r, ok, err := t.base().record(u)
	if err != nil {
		return nil, err
	}
	return &contents{none: !ok || r.kind == contentsNone, size: r.size, below: r}, nil
}

// Reader reads the contents of a resource. It belongs to its transaction and fails
// with the error of an ended one after that. One goroutine may use it at a time.
type Reader struct {
	t    *ReadTx
	id   address.ResourceID
	size int64
	pos  int64
	rest []byte // of the chunk that was read last
}

// Open reads a resource's contents, as they are now in the transaction: what is
// written to them later may or may not be read. Errors: KindNode, KindScope,
// KindNotFound, KindNoContents.
func (t *ReadTx) Open(id address.ResourceID) (r *Reader, err error) {
	err = t.do(func() error {
		u, err := t.existing(id)
		if err != nil {
			return err
		}
		c, err := t.contents(u)
		if err != nil {
			return err
		}
		if c.none {
			return fail(KindNoContents, id.String(), "the resource was linked and never saved")
		}
		r = &Reader{t: t, id: id, size: c.size}
		return nil
	})
	return r, err
}

// Load returns a resource's contents as a whole; errors are those of Open.
func (t *ReadTx) Load(id address.ResourceID) ([]byte, error) {
	r, err := t.Open(id)
	if err != nil {
		return nil, err
	}
	b := make([]byte, r.Size())
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}

// Size returns how many bytes there are in all.
func (r *Reader) Size() int64 { return r.size }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.pos += int64(n)
	return n, nil
}

// WriteTo implements io.WriterTo: it hands on chunk by chunk.
func (r *Reader) WriteTo(w io.Writer) (total int64, err error) {
	for {
		if len(r.rest) == 0 {
			if err := r.next(); err == io.EOF {
				return total, nil
			} else if err != nil {
				return total, err
			}
		}
		n, err := w.Write(r.rest)
		r.rest = r.rest[n:]
		r.pos += int64(n)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// next reads the chunk at r.pos.
func (r *Reader) next() error {
	return r.t.do(func() error {
		if r.pos >= r.size {
			return io.EOF
		}
		u := r.id.UUID()
		c, err := r.t.contents(u)
		if err != nil {
			return err
		}
		index, at := uint32(r.pos/chunkSize), r.pos%chunkSize
		if c.none || r.pos >= c.size {
			return fail(KindNotFound, r.id.String(), "the contents were removed while they were read")
		}
		data, err := r.t.chunk(c, index)
		if err != nil {
			return err
		}
		// What the writer of an ended transaction leaves alone, an open one may change.
		data = bytes.Clone(data)
		if want := min(c.size-int64(index)*chunkSize, chunkSize); int64(len(data)) < want {
			return corrupt("chunk %d of resource %s has %d bytes, not %d", index, r.id, len(data), want)
		}
		data = data[at:]
		r.rest = data[:min(int64(len(data)), r.size-r.pos)]
		return nil
	})
}

// Writer appends to the contents of a resource. It belongs to its transaction: what
// was written counts at once, is read by it and committed with it, whether or not
// Close was called. One goroutine may use it at a time.
type Writer struct {
	t      *WriteTx
	id     address.ResourceID
	c      *contents
	closed bool
}

// Write implements io.Writer. It may be called for contents that are larger than memory:
// see Options.MaxWrites; then it waits for the disk now and again. Errors: KindState after
// Close or the transaction's end, or once the resource was removed or written anew;
// KindLimit, KindFull and whatever else Commit may say of the file. After each n bytes
// were written, as if there had been no more.
func (w *Writer) Write(p []byte) (n int, err error) {
	for first := true; first || n < len(p); first = false {
		var m int
		err = w.t.do(func() (err error) {
			m, err = w.write(p[n:])
			return err
		})
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// write writes as much as memory should have at once.
func (w *Writer) write(p []byte) (int, error) {
	t := w.t.ReadTx
	r := t.edits.resources[w.id.UUID()]
	if w.closed || r == nil || r.contents != w.c {
		return 0, fail(KindState, w.id.String(), "the writer is closed, or the contents are other ones by now")
	}
	if err := t.fitsContents(w.id, w.c.size+int64(len(p))); err != nil { // before any of it is written
		return 0, err
	}
	if err := t.stage(w.c); err != nil {
		return 0, err
	}
	if t.stageable(w.c) {
		p = p[:min(int64(len(p)), t.s.opts.stageAt())]
	}
	return len(p), t.writeAt(w.c, w.id, p, w.c.size)
}

// fitsContents refuses contents that are too large.
func (t *ReadTx) fitsContents(id address.ResourceID, size int64) error {
	if limit := t.s.opts.MaxContents; size > limit {
		return tooMuch("MaxContents", limit, id.String(), "contents of %d bytes are larger than %d", size, limit)
	}
	return nil
}

// Close ends writing. It never fails, and the transaction does not need it.
func (w *Writer) Close() error {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.closed = true
	return nil
}

// writeAt writes into contents, at most behind their end.
func (t *ReadTx) writeAt(c *contents, id address.ResourceID, p []byte, at int64) error {
	end := at + int64(len(p))
	if at < 0 || at > c.size {
		return fail(KindArgument, id.String(), "cannot write at %d: the contents have %d bytes, and no holes", at, c.size)
	}
	if err := t.fitsContents(id, end); err != nil {
		return err
	}
	// Get hold of the chunks, and count them, before any of them is changed.
	var cost int64
	first, last := uint32(at/chunkSize), uint32((max(end, 1)-1)/chunkSize)
	loaded := map[uint32][]byte{}
	for i := first; i <= last && len(p) > 0; i++ {
		from := int64(i) * chunkSize
		old, held := c.chunks[i]
		if !held && from < c.size {
			var err error
			if old, err = t.chunk(c, i); err != nil {
				return err
			}
			loaded[i] = bytes.Clone(old)
			cost += int64(len(old))
		}
		cost += max(min(end-from, chunkSize)-int64(len(old)), 0)
	}
	if err := t.spend(cost); err != nil {
		return err
	}
	maps.Copy(c.chunks, loaded)
	for len(p) > 0 {
		i, off := uint32(at/chunkSize), at%chunkSize
		n := min(int64(len(p)), chunkSize-off)
		data := c.chunks[i]
		if grow := off + n - int64(len(data)); grow > 0 {
			data = append(data, make([]byte, grow)...)
		}
		copy(data[off:], p[:n])
		c.chunks[i] = data
		p, at = p[n:], at+n
	}
	c.size = max(c.size, end)
	return nil
}
