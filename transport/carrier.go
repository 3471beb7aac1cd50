package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/elemental-conduit/conduit/internal/link"
)

const (
	// Path is where an instance serves its links.
	Path = "/cluster/v1"
	// SubProtocol is what both ends of a link speak inside the WebSocket.
	SubProtocol = "conduit.v1"

	// DefaultWriteTimeout bounds the write of one message. A peer that takes
	// nothing for so long is gone, whatever its kernel says.
	DefaultWriteTimeout = 30 * time.Second
	// DefaultUserTimeout is how long the kernel waits for a peer to acknowledge
	// what was sent, or to make room for it (Linux only), where neither
	// UserTimeout nor Link.DeadAfter says.
	DefaultUserTimeout = link.DefaultDeadAfter

	// packetSlack is what a packet may exceed its advertised cap by. It forgives
	// a peer that counts a header differently; more is close 1009.
	packetSlack = 1 << 10

	// readBuffer is gorilla's buffer towards the socket. A read larger than it
	// goes straight into the message, so a larger one does not help big packets;
	// see BenchmarkCarrier.
	readBuffer = 4 << 10
	// serverWriteBuffer holds a frame's header and the first of its payload; the
	// rest goes out of the caller's packet by writev, so it can be small and
	// needs no pool.
	// With gorilla's header it is just what the allocator has: 14 bytes more would take
	// the 4,864 of the next size up, on each idle link.
	serverWriteBuffer = 4<<10 - websocketHeader
	// websocketHeader is what gorilla adds to a write buffer, in bytes.
	websocketHeader = 14
	// clientWriteBuffer is the largest frame that the dialling side writes: it
	// must copy a message to mask it. Buffers of this size are pooled.
	clientWriteBuffer = 64 << 10

	// closeTimeout bounds the whole of Close.
	closeTimeout = time.Second
	// maxCloseReason is what a close frame has room for.
	maxCloseReason = 123
)

// errStalled is in the chain of a write's error when the peer took nothing for
// the write timeout.
var errStalled = errors.New("the peer takes no bytes")

// carrier is a link.Carrier over a WebSocket.
//
// The concurrency is that of link.Carrier: one goroutine reads, one at a time
// writes, anyone may call Close.
type carrier struct {
	ws           *websocket.Conn
	limit        int // bytes of the largest message that is read
	writeTimeout time.Duration
	userTimeout  time.Duration // TCP_USER_TIMEOUT; 0 = none. For errors

	// reading is held while the socket is read: by ReadMessage, or by Close,
	// which reads on to the other end's close frame when nobody else does.
	reading sync.Mutex
	readErr error   // guarded by reading: why there is nothing more to read
	buf     *buffer // guarded by reading: what the last message lies in

	closing atomic.Pointer[link.CloseError] // set once, when this end begins to close
	once    sync.Once                       // the one execution of Close

	pongs struct {
		sync.Mutex
		wait    string // the payload of the latest ping that is unanswered
		pending bool
		running bool // a goroutine is writing pongs
		closed  bool
		done    sync.WaitGroup
	}
}

// newCarrier takes over a WebSocket whose upgrade is done.
func newCarrier(ws *websocket.Conn, maxPacket int, writeTimeout time.Duration) *carrier {
	if maxPacket <= 0 {
		maxPacket = link.DefaultMaxPacket
	}
	if writeTimeout <= 0 {
		writeTimeout = DefaultWriteTimeout
	}
	c := &carrier{ws: ws, limit: maxPacket + packetSlack, writeTimeout: writeTimeout}
	ws.SetPingHandler(func(payload string) error {
		c.pong(payload)
		return nil
	})
	return c
}

// ReadMessage implements link.Carrier.
func (c *carrier) ReadMessage() ([]byte, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.buf != nil { // the last message is done with, so an idle link holds no buffer
		c.buf.free()
		c.buf = nil
	}
	for c.readErr == nil {
		kind, r, err := c.ws.NextReader()
		switch {
		case err != nil:
			c.readErr = c.explainRead(err)
		case c.closing.Load() != nil:
			// Nobody wants it any more: read on to the other end's close frame.
		case kind != websocket.BinaryMessage:
			c.sendClose(link.CloseText, "text messages are refused: "+SubProtocol+" is binary", time.Now().Add(closeTimeout))
		default:
			b := newBuffer()
			err := b.fill(r, c.limit)
			if err == nil {
				c.buf = b
				return b.bytes, nil
			}
			n := len(b.bytes)
			b.free()
			if errors.Is(err, errTooBig) {
				c.sendClose(link.CloseTooBig, fmt.Sprintf("a packet of %d bytes or more, the cap is %d", n, c.limit-packetSlack), time.Now().Add(closeTimeout))
			} else {
				c.readErr = c.explainRead(err)
			}
		}
		if e := c.closing.Load(); e != nil && c.readErr == nil {
			// This end closes. The reader hears of it at once; Close waits for the echo.
			return nil, e
		}
	}
	return nil, c.readErr
}

// explainRead turns an error of gorilla's into one of the link's.
func (c *carrier) explainRead(err error) error {
	if e := c.closing.Load(); e != nil {
		return e
	}
	if e, ok := errors.AsType[*websocket.CloseError](err); ok {
		switch e.Code {
		case websocket.CloseAbnormalClosure:
			return fmt.Errorf("the connection to %s was cut without a close: %w", c.ws.RemoteAddr(), io.ErrUnexpectedEOF)
		case websocket.CloseNoStatusReceived:
			return &link.CloseError{Code: link.CloseDone, Remote: true}
		}
		return &link.CloseError{Code: link.CloseCode(e.Code), Reason: e.Text, Remote: true}
	}
	if errors.Is(err, websocket.ErrReadLimit) { // a length that overflows; gorilla says nothing to the peer
		c.sendClose(link.CloseTooBig, "a frame's length overflows", time.Now().Add(closeTimeout))
		return c.closing.Load()
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("reading from %s: %w", c.ws.RemoteAddr(), explainTimeout(err, c.userTimeout))
	}
	// What is left is not I/O: the peer's bytes are no WebSocket frames. gorilla
	// has told it so with close 1002.
	e := &link.CloseError{Code: link.CloseProtocol, Reason: err.Error()}
	c.closing.CompareAndSwap(nil, e)
	return e
}

// WriteMessage implements link.Carrier.
func (c *carrier) WriteMessage(p []byte) error {
	if e := c.closing.Load(); e != nil {
		return e
	}
	deadline := time.Now().Add(c.writeTimeout)
	if err := c.ws.SetWriteDeadline(deadline); err != nil {
		return err
	}
	err := c.ws.WriteMessage(websocket.BinaryMessage, p)
	if err == nil {
		return nil
	}
	if e := c.closing.Load(); e != nil {
		return e
	}
	if errors.Is(err, websocket.ErrCloseSent) {
		// gorilla has closed, within a read that is about to say why: the other end did, or
		// broke the protocol.
		c.reading.Lock()
		defer c.reading.Unlock()
		if c.readErr != nil {
			return c.readErr
		}
	}
	if isTimeout(err) && !time.Now().Before(deadline) { // gorilla leaves no more of an error than that it is one of time
		return fmt.Errorf("writing to %s: %w for %v (the write timeout): %w", c.ws.RemoteAddr(), errStalled, c.writeTimeout, err)
	}
	return fmt.Errorf("writing to %s: %w", c.ws.RemoteAddr(), explainTimeout(err, c.userTimeout))
}

// Close implements link.Carrier: it sends the close frame, waits for the other
// end's, and closes the socket. It may be called by the goroutine that reads.
func (c *carrier) Close(code link.CloseCode, reason string) error {
	var err error
	c.once.Do(func() {
		deadline := time.Now().Add(closeTimeout)
		if code == link.CloseAbnormal {
			// The socket is broken, closed by the other end, or its peer is dead.
			c.closing.CompareAndSwap(nil, &link.CloseError{Code: code, Reason: reason})
			err = abort(c.ws.NetConn())
			deadline = time.Time{}
		} else {
			c.sendClose(code, reason, deadline)
		}
		// Bytes that are unread when a socket closes make the kernel send a
		// reset, which takes the last results out of the peer's buffer; so read
		// to the echo. The deadline ends a ReadMessage that holds the lock.
		if !deadline.IsZero() {
			_ = c.ws.SetReadDeadline(deadline) // an error means that the socket is closed: then reads end, too
		}
		c.reading.Lock()
		for c.readErr == nil {
			if _, _, e := c.ws.NextReader(); e != nil {
				c.readErr = c.explainRead(e)
			}
		}
		if c.buf != nil {
			// It may still be in the reader's hands: leave it to the collector.
			c.buf = nil
		}
		c.reading.Unlock()

		switch {
		case deadline.IsZero():
		case time.Now().Before(deadline):
			err = c.ws.Close()
		default:
			err = abort(c.ws.NetConn())
		}
		c.pongs.Lock()
		c.pongs.closed = true
		c.pongs.Unlock()
		c.pongs.done.Wait()
	})
	return err
}

// sendClose begins the closing of this end, unless that was begun: it notes why
// and tells the other end.
func (c *carrier) sendClose(code link.CloseCode, reason string, deadline time.Time) {
	if len(reason) > maxCloseReason {
		n := maxCloseReason
		for n > 0 && !utf8.RuneStart(reason[n]) {
			n--
		}
		reason = reason[:n]
	}
	if !c.closing.CompareAndSwap(nil, &link.CloseError{Code: code, Reason: reason}) {
		return
	}
	frame := websocket.FormatCloseMessage(int(code), reason)
	// An error means that the socket is beyond telling: a writer is stuck in it,
	// or it is closed. Close closes it all the same.
	_ = c.ws.WriteControl(websocket.CloseMessage, frame, deadline)
}

// pong answers a ping without making the reader wait: a pong must wait while a
// message is being written, and a peer that does not read can make that long.
// Only the latest of the pings that are unanswered is answered, as RFC 6455
// (5.5.3) allows, so a flood of pings queues nothing.
func (c *carrier) pong(payload string) {
	p := &c.pongs
	p.Lock()
	defer p.Unlock()
	p.wait, p.pending = payload, true
	if p.running || p.closed {
		return
	}
	p.running = true
	p.done.Go(c.writePongs)
}

// writePongs writes what pong left, until there is nothing left.
func (c *carrier) writePongs() {
	p := &c.pongs
	for {
		p.Lock()
		if !p.pending || p.closed {
			p.running = false
			p.Unlock()
			return
		}
		payload := p.wait
		p.pending = false
		p.Unlock()
		if err := c.ws.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(c.writeTimeout)); err != nil {
			// The reader or the next write says why. No more pongs are begun.
			p.Lock()
			p.closed, p.running = true, false
			p.Unlock()
			return
		}
	}
}

// abort closes a connection whose peer does not answer. tls.Conn.Close would
// first wait 5 s for its alert to be taken.
func abort(conn net.Conn) error {
	return bare(conn).Close()
}
