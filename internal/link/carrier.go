package link

import "fmt"

// Carrier carries whole messages between two ends: a WebSocket, a plugin's gRPC
// stream, a Unix socket, or memory. Each message is one encoded Packet.
//
// One goroutine reads; at most one goroutine at a time writes, beside it. Close
// may be called at any time from any goroutine.
type Carrier interface {
	// ReadMessage returns the next message. Its bytes are valid until the next
	// ReadMessage. When the other end closed in order, the error is a *CloseError.
	ReadMessage() ([]byte, error)
	// WriteMessage writes one message. p may be reused once it has returned.
	// After an error the carrier is of no more use.
	WriteMessage(p []byte) error
	// Close closes the carrier with a code and a reason of at most 123 bytes,
	// and unblocks ReadMessage and WriteMessage. It is idempotent and waits a
	// second at most.
	Close(code CloseCode, reason string) error
}

// TryWriter is a Carrier that can write without waiting. Then whoever has something to
// write never waits for the other end to read, however much is unreturned.
type TryWriter interface {
	Carrier
	// TryWriteMessage writes as much of a message as there is room for. If done is false,
	// Finish has to follow it, and p must not change until then.
	TryWriteMessage(p []byte) (done bool, err error)
	// Finish writes the rest, and waits for room as WriteMessage does.
	Finish() error
}

// Buffered is a Carrier that knows of messages that it has read already.
type Buffered interface {
	Carrier
	// Buffered reports whether the next ReadMessage returns without reading. It is
	// called by the goroutine that reads.
	Buffered() bool
}

// CloseCode says why a link was closed, in WebSocket's numbers (RFC 6455 §7.4).
type CloseCode uint16

// The codes that a link is closed with.
const (
	CloseDone      CloseCode = 1000 // nothing more to say
	CloseGoingAway CloseCode = 1001 // draining
	CloseProtocol  CloseCode = 1002 // the other end broke the protocol
	CloseText      CloseCode = 1003 // a text message on a binary protocol
	CloseAbnormal  CloseCode = 1006 // never sent: the carrier ended without a close
	CloseAuth      CloseCode = 1008 // the principal may not use the link any more
	CloseTooBig    CloseCode = 1009 // a packet above the cap
	CloseBug       CloseCode = 1011 // a fault on this side
	CloseTryLater  CloseCode = 1013 // too many links
)

// CloseError is how a carrier tells that the other end closed in order, and how
// a link tells why it ended.
type CloseError struct {
	Code   CloseCode
	Reason string
	// Remote says that the other end closed.
	Remote bool
}

// Error names who closed, the code and the reason.
func (e *CloseError) Error() string {
	who := "this end"
	if e.Remote {
		who = "the other end"
	}
	return fmt.Sprintf("link closed by %s: %d %s", who, e.Code, e.Reason)
}
