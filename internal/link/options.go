package link

import (
	"context"
	"log/slog"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Version is the protocol version that this package speaks.
//
// History: 1 is the first.
const Version = 1

// Defaults of a link; design and docs/protocol.md give the reasons.
const (
	DefaultMaxMessage    = 10 << 20
	DefaultMaxPacket     = 256 << 10
	DefaultMaxCalls      = 4096
	DefaultLinkCredit    = 256 << 10
	DefaultRequestCredit = 64 << 10
	DefaultReplyCredit   = 256 << 10
	DefaultPingInterval  = 20 * time.Second
	DefaultProbeInterval = 1 * time.Second
	DefaultDeadAfter     = 3 * time.Second
	DefaultHelloTimeout  = 5 * time.Second
)

// The least that an end may offer in its Hello, in bytes, and the most of what
// cannot be cut: so that a frame that nobody can cut always fits a packet and
// what is left of either credit when the other end need not return it yet.
const (
	minPacket     = 64 << 10
	minLinkCredit = 64 << 10
	minCallCredit = 4 << 10
	maxHeader     = 16 << 10         // of an Invoke, as its caller counts it: all but the payload
	maxInvoke     = maxHeader + 4096 // the same as encoded, with what a host adds
	maxFailure    = 16 << 10         // of an encoded Failure
	maxName       = 1 << 10          // of a content type in a Data
	maxReason     = 64               // of a Cancel
)

// Hello is what an end says of itself before anything else. Zero numbers mean
// the defaults.
type Hello struct {
	VersionMin, VersionMax uint32
	// Required are features without which the end cannot go on.
	Required  []string
	Supported []string
	// Instance is the end's InstanceID string, empty for a client.
	Instance   string
	Epoch      uint64
	MaxMessage int64  // bytes of the largest message it takes
	MaxPacket  int    // bytes of the largest packet it takes
	MaxCalls   uint32 // calls it serves at once on the link
	LinkCredit uint32 // bytes
	CallCredit uint32 // bytes, for a request
	AuthStore  string
	Build      string
	// Token proves who dials on carriers without another proof. Never logged.
	Token []byte
	// Simple asks for the simple profile: each message in one Data, no credit.
	Simple bool
}

// Peer is what the owner of a link knows of its other end; a handler reads it.
type Peer struct {
	// Name is for logs and errors: an InstanceID, "client", or a plugin's name.
	Name string
	// User and Level are the link's principal.
	User  string
	Level conduit.Level
	// System: the other end is an instance and may vouch for others.
	System bool
	// From is the address that the other end has, for logs; "" if it has none.
	From string
	// Guest is what who let the link in keeps of its other end, for itself: the
	// link only hands it on. It must be comparable, as a pointer is.
	Guest any
}

// Guest is a right by which calls run that is not their link's own, such as the
// session that a call names, and counts those calls. It must be comparable, as a
// pointer is.
type Guest interface {
	// CallLeft says that a call of the guest is over, for each that was given to
	// SetGuest once. No lock of a link is held, and it must not block.
	CallLeft()
}

// Options say how a link behaves. The zero value of a number is its default.
type Options struct {
	// Dialer: this end dialled; it reads the other's Hello before it writes its
	// own. The acceptor writes first. Calls go from the dialer to the acceptor.
	Dialer bool
	// Duplex: both ends may call (a plugin's link).
	Duplex bool
	// Hello is what this end says.
	Hello Hello
	// Simple: the other end may ask for the simple profile, in which a message is one
	// Data and there is no credit (simple.go). Calls are not passed on to such a link
	// before it is ready.
	Simple bool
	// Check may refuse the other end by its Hello; it runs on the reader and
	// must not block. The error's text goes to the other end.
	Check func(theirs Hello) error
	// Handler decides each call that arrives; nil refuses all.
	Handler Handler
	// Peer is handed to the handler.
	Peer Peer
	// Memory bounds what all links of a process hold; nil = one of its own.
	Memory *Memory
	// LinkMemory bounds what this link holds, in bytes; 0 = 16 MiB.
	LinkMemory int64
	// CallTimeout bounds a call that is neither streaming nor in the background
	// and whose context has no deadline; 0 = 30 s, negative = none.
	CallTimeout time.Duration

	PingInterval  time.Duration
	ProbeInterval time.Duration // negative = the other end is never found dead
	DeadAfter     time.Duration
	HelloTimeout  time.Duration

	// Op names this link's hop in errors, such as "cluster" or "plugin".
	Op string
	// LostReason is the reason of calls that die with the link: peer_lost
	// (the default) or plugin_lost.
	LostReason string
	// OnClose is called once, on a goroutine of the link, after every call of
	// the link has ended.
	OnClose func(err error)
	// OnStatus is called on the reader with the encoded Status, which is valid until
	// it returns; it must not block.
	OnStatus func(body []byte)
	// OnGoAway is called once, on the reader, when the other end has said that it
	// takes no new calls: after Usable says false, and after the calls that it will
	// not start were ended. retryAfter is 0 if it did not say. It must not block.
	OnGoAway func(reason string, retryAfter time.Duration)
	// Reporter is asked for this end's Status, and told of the Invokes that came in;
	// nil = none is sent.
	Reporter Reporter
	// Log takes what the link has to say at debug level; nil = nothing.
	Log *slog.Logger
}

// Handler decides what becomes of each call that arrives on a link.
type Handler interface {
	// Handle runs on the link's reader and must not block: it calls one of
	// in's Refuse, Serve, Splice, SpliceHeld and Park before it returns. in and its
	// Invoke are valid until then only.
	Handle(in *Incoming)
}

// Owner hears of the end of each spliced call that it owns, exactly once, after
// the plugin can no more work on it. CallEnded runs on a reader, with no lock of
// a link held, and must not block. code is 0 for success.
type Owner interface {
	CallEnded(tag uint64, code conduit.Code, outcome conduit.Outcome)
}

// ServeFunc runs a call on a goroutine of its own. ctx carries the call's
// deadline and ends with it, with the call, or with the link. A nil error ends
// the call in success, with what s.Return was given, if anything.
type ServeFunc func(ctx context.Context, s *ServerCall) error
