package pluginlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"github.com/elemental-conduit/conduit/internal/link"
)

// A plugin that says socket_link takes its link also as a connection of its own, beside
// those of gRPC, to the one socket that it listens on. What comes first tells them apart:
// HTTP/2 begins with "PRI ". Behind socketPreface, which the host writes, come packets both
// ways, each behind its length in four bytes, the highest first. Part of the protocol.
const (
	socketPreface = "conduit-link/1\n"
	lengthBytes   = 4
)

// Buffers of a socket's carrier, in bytes.
const (
	// socketBuffer is what is read at once; one that had to grow for a packet goes when
	// it is more than socketBufferKept.
	socketBuffer     = 64 << 10
	socketBufferKept = 256 << 10
	// writtenWhole is the largest packet that is copied behind its length and written
	// with it; of a larger one so much is, and the rest goes from where it is.
	writtenWhole = 8 << 10
)

// socketCarrier is a link.Carrier over a Unix socket. gRPC's stream costs a quarter of the
// CPU of host and plugin for small calls, most of it its goroutines between the link and
// the socket (measured: docs/performance.md); here the link reads and writes itself. Like
// gRPC it carries no close codes.
type socketCarrier struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	process *child // at the other end, as its host sees it; nil in the plugin
	most    int    // the longest packet that is taken, in bytes

	// The reader's.
	buf      []byte
	from, to int // what was read and not returned yet

	// The writer's.
	small      []byte // behind head
	head, body []byte // what is left of the packet in hand
	attempt    func(fd uintptr) bool
	attemptErr error

	once   sync.Once
	closed chan struct{}
	why    link.CloseError // set before closed is closed
}

func newSocketCarrier(conn *net.UnixConn, process *child, most int) (*socketCarrier, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &socketCarrier{conn: conn, raw: raw, process: process, most: most, buf: make([]byte, socketBuffer), closed: make(chan struct{})}
	c.attempt = c.tryOnce // once, for it is an allocation
	return c, nil
}

// ReadMessage implements link.Carrier.
func (c *socketCarrier) ReadMessage() ([]byte, error) {
	for {
		n, known := c.next()
		if n > c.most {
			return nil, &link.CloseError{Code: link.CloseTooBig, Reason: fmt.Sprintf("a packet of %d bytes is above the cap of %d", n, c.most)}
		}
		if known && c.to-c.from >= lengthBytes+n {
			p := c.buf[c.from+lengthBytes:][:n:n]
			c.from += lengthBytes + n
			return p, nil
		}
		c.makeRoom(lengthBytes + n)
		got, err := c.conn.Read(c.buf[c.to:])
		c.to += got
		if err != nil {
			return nil, c.readFailed(err)
		}
	}
}

// next returns the length of the packet that comes next, if that has been read.
func (c *socketCarrier) next() (n int, known bool) {
	if c.to-c.from < lengthBytes {
		return 0, false
	}
	return int(binary.BigEndian.Uint32(c.buf[c.from:])), true
}

// Buffered implements link.Buffered.
func (c *socketCarrier) Buffered() bool {
	n, known := c.next()
	return known && (c.to-c.from >= lengthBytes+n || n > c.most)
}

// makeRoom sees to it that n bytes from c.from on fit the buffer, and that a read that
// gets more than them does not end for want of room all the time.
func (c *socketCarrier) makeRoom(n int) {
	held := c.buf[c.from:c.to]
	switch {
	case n > len(c.buf): // lengths have bounds: the next size up is at most twice that
		size := socketBuffer
		for size < n {
			size *= 2
		}
		c.buf = make([]byte, size)
	case len(held) == 0 && len(c.buf) > socketBufferKept:
		c.buf = make([]byte, socketBuffer)
	case len(held) > 0 && len(c.buf)-c.from >= n && len(c.buf)-c.to >= socketBuffer/4:
		return
	}
	c.from, c.to = 0, copy(c.buf, held)
}

// readFailed says why the link ended, given the error of a read.
func (c *socketCarrier) readFailed(err error) error {
	if c.process != nil {
		if why := lost(c.process, c.closed); why != nil {
			return why
		}
	}
	return c.ended(err)
}

func (c *socketCarrier) ended(err error) error {
	select {
	case <-c.closed:
		why := c.why
		return &why
	default:
	}
	// Linux tells of a socket that was closed with bytes unread by a reset.
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return &link.CloseError{Code: link.CloseDone, Reason: "the stream ended", Remote: true}
	}
	return fmt.Errorf("plugin socket: %w", err)
}

// frame has p written next.
func (c *socketCarrier) frame(p []byte) {
	n := len(p)
	if n > writtenWhole {
		n = writtenWhole - lengthBytes
	}
	c.small = append(binary.BigEndian.AppendUint32(c.small[:0], uint32(len(p))), p[:n]...)
	c.head, c.body = c.small, p[n:]
}

// WriteMessage implements link.Carrier.
func (c *socketCarrier) WriteMessage(p []byte) error {
	c.frame(p)
	return c.Finish()
}

// TryWriteMessage implements link.TryWriter.
func (c *socketCarrier) TryWriteMessage(p []byte) (done bool, err error) {
	c.frame(p)
	c.attemptErr = nil
	if err = c.raw.Write(c.attempt); err == nil {
		err = c.attemptErr
	}
	if err != nil {
		return true, c.writeFailed(err)
	}
	return len(c.head)+len(c.body) == 0, nil
}

// tryOnce writes what the socket has room for. It is called by the poller, which it tells
// not to wait.
func (c *socketCarrier) tryOnce(fd uintptr) bool {
	for _, left := range [...]*[]byte{&c.head, &c.body} {
		for len(*left) > 0 {
			n, err := unix.Write(int(fd), *left)
			switch {
			case err == nil:
				*left = (*left)[n:]
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return true
			default:
				c.attemptErr = os.NewSyscallError("write", err)
				return true
			}
		}
	}
	return true
}

// Finish implements link.TryWriter.
func (c *socketCarrier) Finish() error {
	for _, left := range [...]*[]byte{&c.head, &c.body} {
		p := *left
		*left = nil
		if len(p) == 0 {
			continue
		}
		if _, err := c.conn.Write(p); err != nil {
			c.body = nil
			return c.writeFailed(err)
		}
	}
	return nil
}

func (c *socketCarrier) writeFailed(err error) error {
	c.head, c.body = nil, nil
	select {
	case <-c.closed:
	default:
		if c.process != nil && (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)) {
			// The connection is over, and only its reader hears why: it fails the link.
			return nil
		}
	}
	return c.ended(err)
}

// Close implements link.Carrier.
func (c *socketCarrier) Close(code link.CloseCode, reason string) error {
	var err error
	c.once.Do(func() {
		c.why = link.CloseError{Code: code, Reason: reason}
		close(c.closed)
		err = c.conn.Close()
	})
	return err
}

// dialSocket makes the connection of a link to a plugin that takes one.
func (p *Process) dialSocket(ctx context.Context) (*socketCarrier, error) {
	path := p.child.socketPath()
	if p.attached != nil {
		path = p.cfg.Path
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("a connection to a Unix socket is a %T", conn)
	}
	if p.attached != nil { // another process may have come to listen there
		_, err = sameUser(u)
	}
	if err == nil {
		_, err = io.WriteString(u, socketPreface)
	}
	var c *socketCarrier
	if err == nil {
		c, err = newSocketCarrier(u, p.child, int(p.cfg.MaxMessage)+envelope)
	}
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	return c, nil
}

// takesSockets is how a plugin's server tells a link's connection from those of gRPC: it
// looks at what comes first, and takes a link's away from gRPC. take has a goroutine of
// its own.
type takesSockets struct {
	credentials.TransportCredentials
	take func(*net.UnixConn)
}

// ServerHandshake implements credentials.TransportCredentials.
func (t *takesSockets) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return t.TransportCredentials.ServerHandshake(conn)
	}
	is, err := isSocketLink(u)
	switch {
	case err != nil:
		return nil, nil, err
	case !is:
		return t.TransportCredentials.ServerHandshake(conn)
	}
	go t.take(u)
	return nil, nil, credentials.ErrConnDispatched
}

// Clone implements credentials.TransportCredentials.
func (t *takesSockets) Clone() credentials.TransportCredentials {
	return &takesSockets{t.TransportCredentials.Clone(), t.take}
}

// isSocketLink waits for the first byte, which stays unread unless a link's preface
// begins with it; that is read whole.
func isSocketLink(u *net.UnixConn) (bool, error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return false, err
	}
	var first [1]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, failed = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return false, err
	case failed != nil:
		return false, os.NewSyscallError("recvfrom", failed)
	case n == 0:
		return false, io.EOF
	case first[0] != socketPreface[0]:
		return false, nil
	}
	preface := make([]byte, len(socketPreface))
	if _, err := io.ReadFull(u, preface); err != nil {
		return false, err
	}
	if string(preface) != socketPreface {
		return false, fmt.Errorf("a connection began with %q, which is neither HTTP/2 nor a link of this version", preface)
	}
	return true, nil
}
