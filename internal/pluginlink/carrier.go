package pluginlink

import (
	"errors"
	"fmt"
	"io"
	"sync"

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
		return nil, c.ended(err)
	}
	return c.in.in.ReadOnlyData(), nil
}

// WriteMessage implements link.Carrier.
func (c *carrier) WriteMessage(p []byte) error {
	c.out.out = p
	err := c.stream.SendMsg(&c.out)
	c.out.out = nil
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
