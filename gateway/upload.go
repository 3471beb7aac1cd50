package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

const (
	// restFactor times the stall time is how long a body of lines may rest between two
	// of them: somebody may type them, and nobody keeps a call for ever by saying nothing.
	restFactor = 10
	// leftover is how much of a body is read when its call is over, so that its
	// connection can be used again.
	leftover = 256 << 10
)

// upload sends the lines of a request's body as the messages of a call while its
// results go the other way. One goroutine reads the body; finish waits for it.
type upload struct {
	q    *request
	x    conduit.Exchange
	done chan struct{}         // closed when nobody reads the body any more
	bad  atomic.Pointer[fault] // why the call was cancelled, if the body is to blame

	mu   sync.Mutex
	over bool // the call is, and so is the time for its body

	in   *bufio.Reader
	line int    // of the body, that is being read, from 1
	buf  []byte // of the line, reused
}

// startUpload begins to read the body.
func (q *request) startUpload(ctx context.Context, x conduit.Exchange) *upload {
	u := &upload{q: q, x: x, done: make(chan struct{})}
	if q.r.ProtoMajor == 1 {
		_ = q.reply.rc.EnableFullDuplex() // a writer that cannot has no connection to wait for
		q.reply.unread.Store(true)
	}
	go func() {
		defer close(u.done)
		if f := u.send(ctx); f != nil {
			e := *f.err
			e.Outcome = conduit.OutcomeUnknown
			e.Message += "; the call was under way and is cancelled: what it has done stays done"
			u.bad.Store(&fault{err: &e, status: f.status})
			x.Cancel(&e)
		}
		u.discard()
	}()
	return u
}

// finish is called when the call is over, and returns when nobody reads the body: at
// once if all of it has come, or else when a little more has, or a second has passed.
func (u *upload) finish() {
	u.mu.Lock()
	u.over = true
	u.q.reply.setReadDeadline(time.Now().Add(u.patience()))
	u.mu.Unlock()
	<-u.done
	if u.q.read {
		u.q.reply.setReadDeadline(time.Time{})
	}
}

// patience is how long a body is waited for that nobody wants any more.
func (u *upload) patience() time.Duration {
	if u.q.r.ProtoMajor > 1 { // the stream is reset, and nothing of it stands in another's way
		return 0
	}
	return min(time.Second, u.q.g.o.Stall/2)
}

// give gives the client time to send, unless the call is over.
func (u *upload) give(d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		u.q.reply.setReadDeadline(time.Now().Add(d))
	}
}

// Read reads the body; an error other than io.EOF is one of the body.
func (u *upload) Read(b []byte) (int, error) {
	n, err := u.q.r.Body.Read(b)
	u.q.received += int64(n)
	if errors.Is(err, io.EOF) {
		u.q.read = true
		u.q.reply.unread.Store(false)
	}
	return n, err
}

// send sends until there is no more, or the call has ended.
func (u *upload) send(ctx context.Context) *fault {
	if !u.q.hold(piece) {
		return u.noRoom()
	}
	u.in = bufio.NewReaderSize(u, piece)
	for {
		data, f := u.next()
		if f != nil {
			return f
		}
		if data == nil {
			_ = u.x.CloseSend() // Recv tells how the call ends
			return nil
		}
		if err := u.x.Send(ctx, data); err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil // Recv tells
			}
			return &fault{err: conduit.AsError(err, conduit.OutcomeUnknown)}
		}
	}
}

// next returns the next message, nil at the end of the body.
func (u *upload) next() ([]byte, *fault) {
	for {
		line, f := u.readLine()
		if f != nil || line == nil {
			return nil, f
		}
		if data := bytes.TrimSpace(line); len(data) > 0 {
			return data, checkJSON(data, u.line)
		}
	}
}

// readLine returns the next line, nil at the end of the body. Its first byte may take
// long to come; from then on it is held to what bodies are.
func (u *upload) readLine() ([]byte, *fault) {
	if cap(u.buf) > piece { // one long line is no reason to hold as much from then on
		u.q.unhold(int64(cap(u.buf)))
		u.buf = nil
	}
	u.buf = u.buf[:0]
	u.line++
	if u.in.Buffered() == 0 {
		u.give(restFactor * u.q.g.o.Stall)
	}
	if _, err := u.in.Peek(1); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, bodyFault(err, 0)
	}
	for began := time.Now(); ; {
		if u.q.tooLate(began, len(u.buf)) {
			return nil, tooSlow()
		}
		u.give(u.q.g.o.Stall)
		part, err := u.in.ReadSlice('\n')
		if f := u.add(part); f != nil {
			return nil, f
		}
		switch {
		case err == nil, errors.Is(err, io.EOF):
			return u.buf, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, bodyFault(err, 0)
		}
	}
}

// add appends to the line, and counts the memory for it.
func (u *upload) add(part []byte) *fault {
	size := len(u.buf) + len(part)
	if limit := u.q.g.o.MaxBody; int64(size) > limit+2 { // with the line's end
		f := bodyTooLarge(0, limit)
		f.err.Message = "line " + strconv.Itoa(u.line) + " of " + f.err.Message
		return f
	}
	if size > cap(u.buf) {
		grow := max(size, min(2*cap(u.buf), int(u.q.g.o.MaxBody)+2), 512)
		room := u.q.hold(int64(grow))
		grown := append(make([]byte, 0, grow), u.buf...)
		u.q.unhold(int64(cap(u.buf)))
		u.buf = grown
		if !room {
			return u.noRoom()
		}
	}
	u.buf = append(u.buf, part...)
	return nil
}

func (u *upload) noRoom() *fault {
	return overloaded("the bodies of the calls under way hold %d bytes, the gateway's limit", u.q.g.o.Memory)
}

// discard reads a little of what nobody wants any more.
func (u *upload) discard() {
	if u.q.read || u.q.r.ProtoMajor > 1 || u.q.r.Body == http.NoBody {
		return
	}
	u.give(u.patience())
	_, _ = io.CopyN(io.Discard, u, leftover) // what comes of it, Read has noted
}
