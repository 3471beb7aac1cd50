package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit/internal/link"
)

const (
	// recordHeader is the length in front of each message: four bytes, big-endian.
	recordHeader = 4
	// socketBuffer is what one read of the socket takes at most while messages
	// are small: header and message in one, and several when they come in a row.
	socketBuffer = 8 << 10
)

// socketCarrier is a link.Carrier over a stream of bytes, such as a Unix socket:
// each message is a record of four bytes of length, big-endian, and the message.
//
// A record of length 0 is the goodbye: whoever closes in order writes it last. A
// stream has no close codes, so the code and the reason that Close is given do
// not travel: the other end learns that the close was in order, as CloseDone.
// Why, if it matters, a GoAway has said before. An end of the stream without a
// goodbye is that of a process which died.
//
// The concurrency is that of link.Carrier: one goroutine reads, one at a time
// writes, anyone may call Close.
type socketCarrier struct {
	conn         net.Conn
	limit        int // bytes of the largest message that is read
	writeTimeout time.Duration

	// reading is held while the socket is read: by ReadMessage, or by Close,
	// which reads on to the other end's end when nobody else does.
	reading sync.Mutex
	r       *bufio.Reader
	buf     []byte // of the last message; grows to the largest
	readErr error

	// writing is held while a record is written.
	writing  sync.Mutex
	writeErr error // a record was cut: nothing may follow it
	head     [recordHeader]byte
	parts    [2][]byte
	record   net.Buffers

	closing atomic.Pointer[link.CloseError] // set once, when this end begins to close
	once    sync.Once
}

// newSocketCarrier takes over a connection. maxPacket is what this end says in
// its Hello that it takes.
func newSocketCarrier(conn net.Conn, maxPacket int, writeTimeout time.Duration) *socketCarrier {
	if maxPacket <= 0 {
		maxPacket = link.DefaultMaxPacket
	}
	if writeTimeout <= 0 {
		writeTimeout = DefaultWriteTimeout
	}
	return &socketCarrier{
		conn: conn, limit: maxPacket + packetSlack, writeTimeout: writeTimeout,
		r: bufio.NewReaderSize(conn, socketBuffer),
	}
}

// ReadMessage implements link.Carrier.
func (c *socketCarrier) ReadMessage() ([]byte, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.readErr != nil {
		return nil, c.readErr
	}
	p, err := c.readRecord()
	if e := c.closing.Load(); e != nil {
		// This end closes. The reader hears of it at once; Close reads on.
		return nil, e
	}
	c.readErr = err
	return p, err
}

// readRecord reads one record. c.reading is held.
func (c *socketCarrier) readRecord() ([]byte, error) {
	head, err := c.r.Peek(recordHeader)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the connection was cut without a goodbye, after %d bytes of a record: %w", len(head), io.ErrUnexpectedEOF)
		}
		return nil, fmt.Errorf("reading from the socket: %w", err)
	}
	n := binary.BigEndian.Uint32(head)
	switch {
	case n == 0:
		return nil, &link.CloseError{Code: link.CloseDone, Remote: true}
	case uint64(n) > uint64(c.limit):
		// Nothing after it can be trusted: text, for one, reads as such a length.
		return nil, &link.CloseError{
			Code: link.CloseTooBig, Reason: fmt.Sprintf("a record of %d bytes, the cap is %d; is it %s at all?", n, c.limit-packetSlack, SubProtocol),
		}
	}
	if _, err := c.r.Discard(recordHeader); err != nil { // they are in the buffer
		return nil, err
	}
	if cap(c.buf) < int(n) {
		c.buf = make([]byte, n)
	}
	p := c.buf[:n]
	if got, err := io.ReadFull(c.r, p); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("the connection was cut in a record of %d bytes, after %d: %w", n, got, err)
	}
	return p, nil
}

// WriteMessage implements link.Carrier. Length and message leave in one writev.
func (c *socketCarrier) WriteMessage(p []byte) error {
	if len(p) == 0 {
		return nil // a packet of nothing; on this carrier its record would say goodbye
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.writeErr != nil {
		return c.writeErr
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return err
	}
	// After the deadline: Close sets its own one after it has set closing, so
	// whichever comes last, a write never outlives Close.
	if e := c.closing.Load(); e != nil {
		return e
	}
	err := c.writeRecord(p)
	if err == nil {
		return nil
	}
	c.writeErr = err
	if e := c.closing.Load(); e != nil {
		return e
	}
	if isTimeout(err) {
		return fmt.Errorf("writing to the socket: %w for %v: %w", errStalled, c.writeTimeout, err)
	}
	return fmt.Errorf("writing to the socket: %w", err)
}

// writeRecord writes a record; an empty one is the goodbye. c.writing is held.
func (c *socketCarrier) writeRecord(p []byte) error {
	binary.BigEndian.PutUint32(c.head[:], uint32(len(p)))
	c.parts = [2][]byte{c.head[:], p}
	c.record = c.parts[:]
	_, err := c.record.WriteTo(c.conn)
	c.parts[1] = nil
	return err
}

// Close implements link.Carrier: it says goodbye, waits for the other end to
// close, and closes; all within a second. With CloseAbnormal it only closes.
func (c *socketCarrier) Close(code link.CloseCode, reason string) error {
	var err error
	c.once.Do(func() {
		c.closing.Store(&link.CloseError{Code: code, Reason: reason})
		if code != link.CloseAbnormal {
			c.sayGoodbye(time.Now().Add(closeTimeout))
		}
		err = c.conn.Close()
		c.reading.Lock() // the reader has left, so nothing of the carrier goes on
		c.readErr = c.closing.Load()
		c.reading.Unlock()
	})
	return err
}

// sayGoodbye ends the stream in order, by the deadline.
func (c *socketCarrier) sayGoodbye(deadline time.Time) {
	// Errors mean that the connection is closed: then nothing below waits.
	_ = c.conn.SetWriteDeadline(deadline)
	_ = c.conn.SetReadDeadline(deadline)
	c.writing.Lock()
	if c.writeErr == nil && c.writeRecord(nil) == nil {
		if half, ok := c.conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	c.writing.Unlock()
	// What is unread when a socket closes makes the kernel send a reset, which
	// takes the last results out of the other end's hands: so read to its end.
	c.reading.Lock()
	defer c.reading.Unlock()
	_, _ = io.Copy(io.Discard, c.r)
}
