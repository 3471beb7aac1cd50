package pluginlink

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit/internal/link"
)

// messageStream is what both ends of a gRPC stream have.
type messageStream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// carrier is a link.Carrier over one end of the link's stream. gRPC carries no
// close code: to close is to end the stream, and the other end learns only that
// it ended.
type carrier struct {
	stream messageStream
	end    func() // ends the stream; safe at any time

	process *child // at the other end, as its host sees it; nil in the plugin

	out rawMessage // the writer's
	in  rawMessage // the reader's

	once   sync.Once
	closed chan struct{}
	why    link.CloseError // set before closed is closed
}

func newCarrier(s messageStream, end func()) *carrier {
	return &carrier{stream: s, end: end, closed: make(chan struct{})}
}

// ReadMessage implements link.Carrier.
func (c *carrier) ReadMessage() ([]byte, error) {
	c.in.free()
	if err := c.stream.RecvMsg(&c.in); err != nil {
		if c.process != nil {
			if why := lost(c.process, c.closed); why != nil {
				return nil, why
			}
		}
		return nil, c.ended(err)
	}
	return c.in.in.ReadOnlyData(), nil
}

// WriteMessage implements link.Carrier.
func (c *carrier) WriteMessage(p []byte) error {
	c.out.out = p
	err := c.stream.SendMsg(&c.out)
	c.out.out = nil
	if c.process != nil && errors.Is(err, io.EOF) {
		// The stream is over, and only its reader hears why: it fails the link.
		return nil
	}
	if err != nil {
		return c.ended(err)
	}
	return nil
}

// Close implements link.Carrier.
func (c *carrier) Close(code link.CloseCode, reason string) error {
	c.once.Do(func() {
		c.why = link.CloseError{Code: code, Reason: reason}
		close(c.closed)
		c.end()
	})
	return nil
}

// exitMoment bounds how long the reader of a link that has ended waits to learn how
// the process did. The kernel closes the socket first; the status is mostly there
// within a millisecond, and on a machine with far more work than it has processors
// within a hundred. All of it passes only if the process lives on without its link.
const exitMoment = 200 * time.Millisecond

// lost says how the process at the other end of a carrier ended, if it has, and nil if
// the carrier was closed from here.
func lost(process *child, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	default:
	}
	t := time.NewTimer(exitMoment)
	defer t.Stop()
	select {
	case <-process.ended:
		return fmt.Errorf("the process %s", process.exit)
	case <-closed:
	case <-t.C:
	}
	return nil
}

// ended says why the stream ended, given gRPC's error.
func (c *carrier) ended(err error) error {
	select {
	case <-c.closed:
		why := c.why
		return &why
	default:
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return &link.CloseError{Code: link.CloseDone, Reason: "the stream ended", Remote: true}
	}
	return fmt.Errorf("plugin stream: %s", status.Convert(err).Message())
}
