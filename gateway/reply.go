package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// reply writes the answer to one request, in pieces that each have a deadline, so
// that a client which does not read is cut off. Its methods are called by the
// request's goroutine, comment by that which keeps events alive.
type reply struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
	store string // of the sessions
	// unread: the request's body is still being read, so that who is answered now cannot
	// use the connection again.
	unread atomic.Bool

	mu     sync.Mutex
	status int // 0 = it has not begun
	last   time.Time

	sent    int64
	results int
}

func newReply(w http.ResponseWriter, stall time.Duration, store string) *reply {
	return &reply{w: w, rc: http.NewResponseController(w), stall: stall, store: store}
}

// started reports whether the status has been told.
func (p *reply) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status != 0
}

// begin tells the status; the answer has no body, or p.write writes it.
func (p *reply) begin(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beginLocked(status)
}

func (p *reply) beginLocked(status int) {
	p.status = status
	if p.unread.Load() {
		p.w.Header().Set("Connection", "close")
	}
	p.extend()
	p.w.WriteHeader(status)
}

// answer answers with a status and one result; zip compresses it, if it is not nil.
func (p *reply) answer(status int, content string, data []byte, zip *zipper) error {
	h := p.w.Header()
	if zip != nil {
		if small, ok := zip.compress(data); ok {
			data = small
			h.Set("Content-Encoding", "gzip")
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h.Set("Content-Type", content)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	p.beginLocked(status)
	return p.resultLocked(data)
}

// start begins a stream and sends its header at once; if it has begun, start does
// nothing.
func (p *reply) start(content string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startLocked(content)
}

func (p *reply) startLocked(content string) error {
	if p.status != 0 {
		return nil
	}
	h := p.w.Header()
	h.Set("Content-Type", content)
	h.Set("X-Accel-Buffering", "no") // nginx would collect 4 KiB of it first
	p.beginLocked(http.StatusOK)
	return p.flush()
}

// item writes one result of a stream.
func (p *reply) item(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resultLocked(b)
}

func (p *reply) resultLocked(b []byte) error {
	err := p.writeLocked(b)
	if err == nil {
		p.results++
	}
	return err
}

// write writes something of a stream that is no result.
func (p *reply) write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writeLocked(b)
}

// comment keeps a stream of events alive if nothing was written for so long. It
// returns when it would have to be called again.
func (p *reply) comment(every time.Duration) (wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := every - time.Since(p.last); p.status != 0 && left > 0 {
		return left, nil
	}
	if err := p.startLocked(typeEvents); err != nil {
		return 0, err
	}
	return every, p.writeLocked([]byte(":\n\n"))
}

// problem answers with an error.
func (p *reply) problem(f *fault) {
	problem := f.problem()
	body := append(line(problem), '\n')
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.w.Header()
	h.Set("Content-Type", typeProblem)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if v := f.retryAfter(problem.Status); v != "" {
		h.Set("Retry-After", v)
	}
	if problem.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
		if p.store != "" {
			h.Set(headerAuthStore, p.store)
		}
	}
	p.beginLocked(problem.Status)
	_ = p.writeLocked(body) // a client that is gone need not know
}

// writeLocked writes and flushes b, at least a piece within the stall time.
func (p *reply) writeLocked(b []byte) error {
	for {
		n := min(len(b), piece)
		p.extend()
		m, err := p.w.Write(b[:n])
		p.sent += int64(m)
		if err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return p.flush()
		}
	}
}

// flush sends what was written. A writer that cannot has nothing to send early.
func (p *reply) flush() error {
	p.last = time.Now()
	if err := p.rc.Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// extend gives the client time to read; net/http takes the deadline back.
func (p *reply) extend() {
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.stall)) // a writer without deadlines has no slow client
}

func (p *reply) setReadDeadline(at time.Time) {
	_ = p.rc.SetReadDeadline(at) // see extend
}
