package conduit

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit/address"
)

// Content types of messages.
const (
	ContentJSON  = "application/json"
	ContentBytes = "application/octet-stream"
	ContentProto = "application/protobuf"
)

// Message is one argument, result or stream item.
type Message struct {
	// Part is the callback that a message down belongs to: 0 = the return value
	// or a stream item, 1..n = a further result handler.
	Part uint32
	// ContentType says how Data is encoded.
	ContentType string
	// Data is the encoded message. The receiver owns it.
	Data []byte
	// Last says, to who receives it, that nothing follows: the other side has ended its
	// messages with this one, and well. Who has seen it need not receive again to learn
	// that. A message without it may still be the last. It means nothing to who sends.
	Last bool
}

// AsWhomKind says on whose behalf a call runs.
type AsWhomKind uint8

// The kinds of principal that an Invoke may name (design: "as whom").
const (
	AsUnset AsWhomKind = iota
	AsLink
	AsSession
	AsAnonymous
	AsVouched
	AsCaller
	AsSelf
)

// AsWhom says on whose behalf a call runs. Session is a secret: it is never
// printed.
type AsWhom struct {
	Kind    AsWhomKind
	Session string
	Name    string
	Level   Level
}

// String hides the secret.
func (a AsWhom) String() string {
	names := [...]string{"unset", "link", "session", "anonymous", "vouched", "caller", "self"}
	if int(a.Kind) < len(names) {
		return names[a.Kind]
	}
	return "unknown"
}

// GoString hides the secret.
func (a AsWhom) GoString() string { return a.String() }

// Invocation is what a caller asks for: the method of an [Invoker]'s address,
// how, and on whose behalf.
type Invocation struct {
	Method string
	// ContentType is that of the request's messages.
	ContentType string
	// Accept is the content type that the caller can read; empty = the method's own.
	Accept string
	// Request is the first message up. HasRequest tells an empty message from none.
	Request    []byte
	HasRequest bool
	// Last says that Request is all that goes up: a unary call or a server stream.
	Last bool
	// Units of capacity to reserve; the larger of this and the method's counts.
	Units uint32
	// Background marks a watch: it neither probes its link nor keeps it open,
	// and it has no deadline of its own.
	Background bool
	// Streaming says that the caller expects more than one result or sends more
	// than one message; a call that is not streaming gets the default deadline
	// when its context has none.
	Streaming bool
	As        AsWhom
	// Parent is the call on a plugin's link that this one is made in.
	Parent uint64
	// Chain names the elements that the call came through, outermost first.
	Chain       []string
	Attempt     uint32
	TraceParent string
	TraceState  string
}

// Exchange is one call under way, from the caller's side. One goroutine may
// send while another receives; all methods else may be called concurrently.
// Every Exchange must be ended by receiving until an error or a message that is
// Last, or by Cancel.
type Exchange interface {
	// Send sends a further message up and returns when it has been handed to
	// the link; data may be reused then. It returns io.EOF when the call has
	// ended (Recv tells how), an *Error when the message is refused here.
	Send(ctx context.Context, data []byte) error
	// CloseSend says that no more messages go up.
	CloseSend() error
	// Recv returns the next message in order, then io.EOF, or the call's one
	// *Error. When ctx ends it cancels the call.
	Recv(ctx context.Context) (Message, error)
	// Cancel ends the call if it is under way; it never waits.
	Cancel(cause error)
}

// Invoker starts calls of the methods at one address. Invokers are safe for
// concurrent use and cheap to make.
type Invoker interface {
	// Invoke starts a call and returns without waiting for the peer. Whatever
	// is wrong surfaces at the Exchange's Recv.
	Invoke(ctx context.Context, in *Invocation) Exchange
}

// Target is an Invoker that knows its address.
type Target interface {
	Invoker
	Address() address.Address
}

// Caller is what the called side knows of who calls; it holds no secret.
type Caller struct {
	User  string
	Level Level
	// Chain names the elements that the call came through, outermost first.
	Chain []string
	// Peer is the instance that the call came from; empty for a client.
	Peer    string
	Attempt uint32
}

// DefaultCallTimeout bounds a unary call whose context has no deadline.
const DefaultCallTimeout = 30 * time.Second
