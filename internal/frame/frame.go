package frame

import "strconv"

// MaxPacket is the largest packet, encoded, that a link outside the simple
// profile carries. It is part of the wire's contract and must not change within
// conduit.v1. The parser does not check it: the carrier's read limit does, since
// a peer may advertise less and the simple profile takes more.
const MaxPacket = 256 << 10

// MaxChain is the largest number of entries that the parser takes in
// [Invoke.Chain] or [Caller.Chain]. It bounds what one packet can make a reader
// hold; the loop rule (over 16) is the host's and much lower.
const MaxChain = 64

// Kind says what a frame is. The values are this package's own; on the wire
// kind k is field k+1 of Frame.
type Kind uint8

// The kinds of frames.
const (
	KindUnknown Kind = iota // no kind, or one from a later version: skip the frame
	KindHello               // field 2, first in each direction
	KindInvoke              // field 3, opens a call
	KindData                // field 4, messages and the end of a direction
	KindFailure             // field 5, ends a call with an error
	KindCancel              // field 6, asks the other end to stop a call
	KindCredit              // field 7, link credit on call 0, else call credit
	KindGoAway              // field 8, no calls above an id will be started
	KindStatus              // field 9, room of an instance
	KindPing                // field 10, liveness
)

// String returns the kind's name as conduit.proto spells it.
func (k Kind) String() string {
	switch k {
	case KindUnknown:
		return "unknown"
	case KindHello:
		return "hello"
	case KindInvoke:
		return "invoke"
	case KindData:
		return "data"
	case KindFailure:
		return "failure"
	case KindCancel:
		return "cancel"
	case KindCredit:
		return "credit"
	case KindGoAway:
		return "go_away"
	case KindStatus:
		return "status"
	case KindPing:
		return "ping"
	default:
		return "kind " + strconv.Itoa(int(k))
	}
}

// AsKind is AsWhom.Kind of conduit.proto, with the same numbers. Values beyond
// the named ones pass through, as enums are open.
type AsKind uint8

// On whose behalf a call runs.
const (
	AsUnset     AsKind = 0 // "anonymous" on an instance's link, "link" on any other, "caller" from a plugin
	AsLink      AsKind = 1 // the link's own principal
	AsSession   AsKind = 2 // the principal of AsWhom.Session
	AsAnonymous AsKind = 3 // nobody
	AsVouched   AsKind = 4 // AsWhom.Name, on the word of the instance that says so
	AsCaller    AsKind = 5 // from a plugin: the principal of the call Invoke.Parent
	AsSelf      AsKind = 6 // from a plugin: the element itself
)

// Frame is a view of one frame.
//
// Every byte slice in it aliases the packet that was parsed and is valid while
// the packet is; its capacity is cut to its length, so that an append cannot
// write into the packet. The two Chain slices are the Frame's own and are
// overwritten by the next parse into the same Frame: a copy of a Frame shares
// them. A Frame must not be used concurrently with a parse into it.
//
// Of Invoke, Data, Credit, Ping and Reason only the one that Kind names is
// valid: the others may hold what an earlier parse left there.
type Frame struct {
	// Call is the call's id; 0 is the link itself.
	Call uint64
	Kind Kind
	// Size is the encoded length of the Frame message in bytes, without its tag
	// and length in the Packet: what link credit counts.
	Size int
	// Body is the kind's encoded sub-message, nil for KindUnknown. Of Hello,
	// Failure, GoAway and Status it is all there is, and not yet checked: use
	// proto.Unmarshal with the generated type.
	Body []byte

	Invoke Invoke // of KindInvoke
	Data   Data   // of KindData; the Data in an Invoke is Invoke.Data
	Credit uint64 // of KindCredit, in bytes
	Ping   Ping   // of KindPing
	Reason []byte // of KindCancel
}

// Ping is the body of a KindPing frame.
type Ping struct {
	Nonce uint64
	Ack   bool
}

// Data is the body of a KindData frame and the first Data of an Invoke. From
// the parser, the slices alias the packet; for AppendData they are only read.
type Data struct {
	// Part is 0 for the return value or a stream item, 1..n for a further result.
	Part        uint32
	ContentType []byte
	// Total is the length of the whole message in bytes, when HasTotal.
	Total    uint64
	HasTotal bool
	Bytes    []byte
	// More: this message goes on in the call's next Data.
	More bool
	// Last: the sender is done with this call's direction.
	Last bool
}

// Invoke is the body of a KindInvoke frame. From the parser, the slices alias
// the packet and strings are valid UTF-8; for AppendInvoke they are only read.
type Invoke struct {
	Instance, Deployment, Element []byte
	Service                       []byte // "Type" or "Type#name"
	Method                        []byte
	Ordinal                       uint32 // when HasOrdinal
	HasOrdinal                    bool
	ContentType                   []byte
	Accept                        []byte // empty means the method's own
	// TimeoutMicros is the remaining time; 0 is no deadline.
	TimeoutMicros uint64
	Units         uint32
	ReplyCredit   uint32 // in bytes
	Attempt       uint32
	Background    bool

	Data    Data // the first of the request, when HasData
	HasData bool

	As    AsWhom // when HasAs
	HasAs bool

	Caller    Caller // when HasCaller: from a host to a plugin
	HasCaller bool

	// Parent, from a plugin, is the call on the same link that this one is made in.
	Parent uint64
	// Chain is the elements that the call came through, outermost first.
	Chain                   [][]byte
	TraceParent, TraceState []byte
}

// AsWhom says on whose behalf a call runs.
type AsWhom struct {
	Kind AsKind
	// Session is a secret: never log it.
	Session []byte
	Name    []byte
	Level   uint8
}

// Caller is what a plugin learns of who calls; never a secret.
type Caller struct {
	User    []byte
	Level   uint8
	Chain   [][]byte // outermost first
	Peer    []byte
	Attempt uint32
}
