package frame

import (
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// goodCase is a packet that must be taken. Without packet, the bytes are what
// the generated code makes of the frames.
type goodCase struct {
	name, about string
	packet      []byte
	frames      []*conduitv1.Frame
}

// faultCase is a packet that must be refused, after the frames before the fault.
type faultCase struct {
	name, about string
	packet      []byte
	what        string
	offset      int
	frames      []*conduitv1.Frame
	sizes       []int
}

// hx reads hex with spaces.
func hx(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// nest wraps body, of under 16 KiB, as the field with a one-byte tag.
func nest(tag byte, body []byte) []byte {
	if len(body) < 128 {
		return append([]byte{tag, byte(len(body))}, body...)
	}
	return append([]byte{tag, byte(len(body)) | 0x80, byte(len(body) >> 7)}, body...)
}

func packetOf(frame []byte) []byte  { return nest(0x0a, frame) }
func invokeOf(invoke []byte) []byte { return packetOf(nest(0x1a, invoke)) }

func dataFrame(call uint64, d *conduitv1.Data) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Data{Data: d}}
}

func invokeFrame(call uint64, in *conduitv1.Invoke) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Invoke{Invoke: in}}
}

func creditFrame(call, n uint64) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Credit{Credit: &conduitv1.Credit{Bytes: n}}}
}

func pingFrame(nonce uint64, ack bool) *conduitv1.Frame {
	return &conduitv1.Frame{Kind: &conduitv1.Frame_Ping{Ping: &conduitv1.Ping{Nonce: nonce, Ack: ack}}}
}

// fullInvoke has every field set.
func fullInvoke() *conduitv1.Invoke {
	return &conduitv1.Invoke{
		Instance: "i-1", Deployment: "shop", Element: "cart", Service: "example.Cart#eu", Method: "Add",
		Ordinal: proto.Uint32(3), ContentType: "application/json", Accept: "application/cbor",
		TimeoutMicros: 2_500_000, Units: 2, ReplyCredit: 262144, Attempt: 1, Background: true,
		Data: &conduitv1.Data{
			Part: 1, ContentType: "application/protobuf", Total: proto.Uint64(300), Bytes: []byte("part of it"), More: true, Last: true,
		},
		As:     &conduitv1.AsWhom{Kind: conduitv1.AsWhom_KIND_SESSION, Session: "not a real one", Name: "element:shop", Level: conduitv1.Level_LEVEL_SYSTEM},
		Caller: &conduitv1.Caller{User: "ada", Level: conduitv1.Level_LEVEL_USER, Chain: []string{"web", "shop/cart"}, Peer: "i-2", Attempt: 2},
		Parent: 7, Chain: []string{"web", "", "zaïre"},
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Tracestate: "a=b",
	}
}

func goodCases() []goodCase {
	return []goodCase{
		{name: "empty packet", about: "A packet without frames is well formed.", packet: []byte{}},
		{
			name: "hello", about: "The first frame in each direction.",
			frames: []*conduitv1.Frame{{Kind: &conduitv1.Frame_Hello{Hello: &conduitv1.Hello{
				VersionMin: 1, VersionMax: 1, Required: []string{"credit"}, Supported: []string{"credit", "status"},
				Instance: "i-1", Epoch: 1 << 63, MaxMessage: 10 << 20, MaxPacket: 256 << 10, MaxCalls: 4096,
				LinkCredit: 256 << 10, CallCredit: 64 << 10, AuthStore: "s-1", Build: "v0.1.0", Token: []byte{0, 255}, Simple: true,
			}}}},
		},
		{
			name: "invoke unary", about: "A whole unary request in one frame: the first Data is also the last.",
			frames: []*conduitv1.Frame{invokeFrame(1, &conduitv1.Invoke{
				Deployment: "greeter", Element: "greeter", Service: "example.Greeter", Method: "Greet",
				ContentType: "application/json", TimeoutMicros: 1_000_000, ReplyCredit: 262144,
				Data: &conduitv1.Data{Total: proto.Uint64(14), Bytes: []byte(`{"name":"Ada"}`), Last: true},
			})},
		},
		{name: "invoke full", about: "Every field of Invoke, AsWhom, Caller and Data; an empty chain entry stays.", frames: []*conduitv1.Frame{invokeFrame(129, fullInvoke())}},
		{name: "invoke empty", about: "An Invoke without any field still has its kind.", frames: []*conduitv1.Frame{invokeFrame(1, &conduitv1.Invoke{})}},
		{
			name: "invoke present zeros", about: "Ordinal 0, an empty Data, AsWhom and Caller differ from none.",
			frames: []*conduitv1.Frame{invokeFrame(1, &conduitv1.Invoke{
				Ordinal: proto.Uint32(0), Data: &conduitv1.Data{}, As: &conduitv1.AsWhom{}, Caller: &conduitv1.Caller{},
			})},
		},
		{
			name: "data answer", about: "A unary answer: one message, whole, and the end.",
			frames: []*conduitv1.Frame{dataFrame(1, &conduitv1.Data{ContentType: "application/json", Total: proto.Uint64(2), Bytes: []byte("{}"), Last: true})},
		},
		{
			name: "data in pieces", about: "One message in three Data of one call, the last of them with the end.",
			frames: []*conduitv1.Frame{
				dataFrame(5, &conduitv1.Data{Total: proto.Uint64(6), Bytes: []byte("ab"), More: true}),
				dataFrame(5, &conduitv1.Data{Bytes: []byte("cd"), More: true}),
				dataFrame(5, &conduitv1.Data{Bytes: []byte("ef"), Last: true}),
			},
		},
		{name: "data empty message", about: "total 0 is an empty message.", frames: []*conduitv1.Frame{dataFrame(1, &conduitv1.Data{Total: proto.Uint64(0), Last: true})}},
		{name: "data only flags", about: "Without total and with no message open: no message, only the end.", frames: []*conduitv1.Frame{dataFrame(1, &conduitv1.Data{Last: true})}},
		{name: "data result handler", about: "A further result has a part above 0.", frames: []*conduitv1.Frame{dataFrame(1, &conduitv1.Data{Part: 300, Total: proto.Uint64(1), Bytes: []byte{0}})}},
		{
			name: "failure", about: "An error ends a call.",
			frames: []*conduitv1.Frame{{Call: 3, Kind: &conduitv1.Frame_Failure{Failure: &conduitv1.Failure{
				Code: conduitv1.Code_CODE_RESOURCE_EXHAUSTED, Reason: "overloaded", Outcome: conduitv1.Outcome_OUTCOME_REFUSED, Retryable: true,
				RetryAfterMicros: 50_000, Message: "4096 calls", Op: "invoke", Peer: "i-2", Address: "*://shop/cart", Method: "Add",
				Details: map[string]string{"limit": "4096"},
			}}}},
		},
		{name: "cancel", about: "The caller does not want call 3 any more.", frames: []*conduitv1.Frame{{Call: 3, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: "deadline"}}}}},
		{name: "cancel bare", about: "A Cancel without a reason.", frames: []*conduitv1.Frame{{Call: 3, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{}}}}},
		{name: "credit of link and call", about: "Call 0 is the link; the largest increment has ten bytes.", frames: []*conduitv1.Frame{creditFrame(0, 131072), creditFrame(9, 1<<64-1)}},
		{
			name: "go away", about: "Calls above 41 were not started.",
			frames: []*conduitv1.Frame{{Kind: &conduitv1.Frame_GoAway{GoAway: &conduitv1.GoAway{LastCall: 41, Reason: "draining", RetryAfterMicros: 1_000_000, Message: "restart"}}}},
		},
		{
			name: "status", about: "The room of an instance.",
			frames: []*conduitv1.Frame{{Kind: &conduitv1.Frame_Status{Status: &conduitv1.Status{
				Available: 90, Total: 100, Judged: 12, InFlight: 10, State: conduitv1.InstanceState_INSTANCE_STATE_CORDONED, Digest: []byte{1, 2, 3},
			}}}},
		},
		{name: "ping and ack", about: "A probe and its answer.", frames: []*conduitv1.Frame{pingFrame(77, false), pingFrame(77, true)}},
		{
			name: "batch", about: "What was queued goes out as one packet: order between frames is kept.",
			frames: []*conduitv1.Frame{creditFrame(0, 65536), invokeFrame(1, &conduitv1.Invoke{Element: "a", Method: "B"}), dataFrame(1, &conduitv1.Data{Last: true}), pingFrame(1, false)},
		},
		{name: "call largest", about: "An id of 64 bits.", frames: []*conduitv1.Frame{dataFrame(1<<64-1, &conduitv1.Data{})}},
		{name: "frame empty", about: "A frame without a kind is skipped, not refused.", frames: []*conduitv1.Frame{{}}},

		{
			name: "unknown kind", about: "Kind 11 is of a later version: the frame has no kind that we know.",
			packet: hx("0a 06 08 05 5a 02 08 01"), frames: []*conduitv1.Frame{{Call: 5}},
		},
		{
			name: "unknown fields", about: "Fields 15 to 17 of each wire type in Packet, Frame and Data are skipped, a group included.",
			packet: hx("7a 01 ff 0a 1c 78 01 08 05 22 16 81 01 0102030405060708 8d 01 01020304 30 01 7b 08 01 7c"),
			frames: []*conduitv1.Frame{dataFrame(5, &conduitv1.Data{Last: true})},
		},
		{
			name: "other wire types", about: "A known field with another wire type is an unknown field: call as bytes, bytes as varint.",
			packet: hx("0a 09 0a 01 61 22 04 20 01 30 01"), frames: []*conduitv1.Frame{dataFrame(0, &conduitv1.Data{Last: true})},
		},
		{
			name: "field order", about: "Fields may come in any order: the kind before the call, bytes before part.",
			packet: hx("0a 09 22 05 22 01 61 08 02 08 05"), frames: []*conduitv1.Frame{dataFrame(5, &conduitv1.Data{Part: 2, Bytes: []byte("a")})},
		},
		{
			name: "scalar twice", about: "The last value of a scalar wins, in Frame and in Data.",
			packet: hx("0a 0c 08 01 08 02 22 06 22 01 61 22 01 62"), frames: []*conduitv1.Frame{dataFrame(2, &conduitv1.Data{Bytes: []byte("b")})},
		},
		{
			name: "two kinds", about: "The last kind of a frame wins, here Credit, then Data.",
			packet: hx("0a 08 3a 02 08 05 22 02 30 01"), frames: []*conduitv1.Frame{dataFrame(0, &conduitv1.Data{Last: true})},
		},
		{
			name: "kind again behind another", about: "Data, Credit, Data: the last stands alone, nothing of the first is kept.",
			packet: hx("0a 0c 22 02 28 01 3a 02 08 05 22 02 30 01"), frames: []*conduitv1.Frame{dataFrame(0, &conduitv1.Data{Last: true})},
		},
		{
			name: "long varints", about: "Varints may be longer than they need be, tags and lengths too.",
			packet: hx("8a 00 87 00 88 80 00 85 80 80 00"), frames: []*conduitv1.Frame{{Call: 5}},
		},
		{
			name: "varint beyond 32 bits", about: "A 32-bit field keeps the low 32 bits: part 2^32+1 is part 1.",
			packet: hx("0a 08 22 06 08 81 80 80 80 10"), frames: []*conduitv1.Frame{dataFrame(0, &conduitv1.Data{Part: 1})},
		},
		{
			name: "enum without a name", about: "Enums are open: level 9 and kind 255 pass.",
			packet: invokeOf(hx("7a 05 08 ff 01 20 09")),
			frames: []*conduitv1.Frame{invokeFrame(0, &conduitv1.Invoke{As: &conduitv1.AsWhom{Kind: 255, Level: 9}})},
		},
		{
			name: "chain of 64", about: "The longest chain that is taken.",
			packet: invokeOf(chainOf(64)),
			frames: []*conduitv1.Frame{invokeFrame(0, &conduitv1.Invoke{Chain: make([]string, 64)})},
		},
	}
}

// chainOf is n empty entries of Invoke.chain.
func chainOf(n int) []byte {
	return []byte(strings.Repeat("\x92\x01\x00", n))
}

func faultCases() []faultCase {
	ping := []*conduitv1.Frame{pingFrame(1, false)}
	pingHex := "0a 04 52 02 08 01 "
	return []faultCase{
		{name: "truncated tag", about: "A tag's varint ends with the packet.", packet: hx("8a"), what: faultTruncated},
		{name: "truncated length", about: "A frame without its length.", packet: hx("0a"), what: faultTruncated, offset: 1},
		{name: "truncated frame", about: "A frame longer than the packet.", packet: hx("0a 05 08 01"), what: faultTruncated, offset: 1},
		{name: "truncated body", about: "A sub-message longer than its frame, though the packet has more bytes.", packet: hx("0a 04 22 05 30 01 0a 00"), what: faultTruncated, offset: 3},
		{name: "truncated bytes", about: "Bytes longer than their Data.", packet: hx("0a 04 22 02 22 7f"), what: faultTruncated, offset: 5},
		{name: "truncated call", about: "A varint ends with its frame, though the packet has more bytes.", packet: hx("0a 02 08 80 0a 00"), what: faultTruncated, offset: 3},
		{name: "truncated fixed", about: "An unknown fixed64 of four bytes.", packet: hx("0a 05 79 01 02 03 04"), what: faultTruncated, offset: 2},
		{name: "truncated group", about: "An unknown group that does not end.", packet: hx("0a 03 7b 08 01"), what: faultTruncated, offset: 2},
		{name: "length of 2^63", about: "A length that no int holds.", packet: hx("0a 80 80 80 80 80 80 80 80 80 01"), what: faultTruncated, offset: 1},
		{name: "varint overflow", about: "A varint of 65 bits.", packet: hx("0a 0b 08 ff ff ff ff ff ff ff ff ff 02"), what: faultVarint, offset: 3},
		{name: "varint overflow in tag", about: "A tag of eleven bytes.", packet: hx("8a 80 80 80 80 80 80 80 80 80 00"), what: faultVarint},
		{name: "varint overflow in unknown field", about: "What is skipped must be well formed too.", packet: hx("0a 0b 78 ff ff ff ff ff ff ff ff ff 02"), what: faultVarint, offset: 2},
		{name: "field number 0", about: "There is no field 0.", packet: hx("0a 02 00 01"), what: faultFieldNumber, offset: 2},
		{name: "field number 2^29", about: "The largest field number is 2^29-1.", packet: hx("80 80 80 80 10 01"), what: faultFieldNumber},
		{name: "wire type 6", about: "Wire types 6 and 7 are reserved.", packet: hx("0a 02 0e 01"), what: faultWireType, offset: 2},
		{name: "wire type 7", about: "Wire types 6 and 7 are reserved.", packet: hx("0a 04 22 02 27 01"), what: faultWireType, offset: 4},
		{name: "end of no group", about: "A group ends that did not begin.", packet: hx("0a 01 7c"), what: faultGroup, offset: 2},
		{name: "end of another group", about: "Group 15 ends as group 14.", packet: hx("0a 02 7b 74"), what: faultGroup, offset: 2},
		{name: "UTF-8 in content type", about: "Strings are UTF-8.", packet: hx("0a 05 22 03 12 01 ff"), what: faultUTF8, offset: 5},
		{name: "UTF-8 in method", about: "Strings are UTF-8: a surrogate is none.", packet: invokeOf(hx("2a 03 ed a0 80")), what: faultUTF8, offset: 5},
		{name: "UTF-8 in chain", about: "Strings are UTF-8: a cut rune is none.", packet: invokeOf(hx("92 01 01 c3")), what: faultUTF8, offset: 6},
		{name: "UTF-8 in session", about: "Strings are UTF-8.", packet: invokeOf(hx("7a 03 12 01 80")), what: faultUTF8, offset: 7},
		{name: "UTF-8 in user", about: "Strings are UTF-8.", packet: invokeOf(hx("82 01 03 0a 01 80")), what: faultUTF8, offset: 8},
		{name: "UTF-8 in cancel", about: "Strings are UTF-8.", packet: hx("0a 05 32 03 0a 01 80"), what: faultUTF8, offset: 5},
		{name: "UTF-8 in a value that is replaced", about: "The last value wins, but each must be well formed.", packet: hx("0a 08 22 06 12 01 ff 12 01 61"), what: faultUTF8, offset: 5},
		{name: "fault in a kind that is replaced", about: "The last kind wins, but each must be well formed.", packet: hx("0a 07 22 03 12 01 ff 3a 00"), what: faultUTF8, offset: 5},
		{name: "fault behind a good frame", about: "Frames before the fault are returned.", packet: hx(pingHex + "0a 02 22 05"), what: faultTruncated, offset: 9, frames: ping, sizes: []int{4}},

		{name: "repeated kind", about: "Protobuf merges two Data of one frame; we refuse them.", packet: hx("0a 08 22 02 28 01 22 02 30 01"), what: faultRepeatedKind, offset: 6},
		{name: "repeated kind, cold", about: "The same for a kind that is not parsed further.", packet: hx("0a 04 12 00 12 00"), what: faultRepeatedKind, offset: 4},
		{name: "repeated kind behind a good frame", about: "Frames before the fault are returned.", packet: hx(pingHex + "0a 04 52 00 52 00"), what: faultRepeatedKind, offset: 10, frames: ping, sizes: []int{4}},
		{name: "repeated data", about: "Protobuf merges two Data of one Invoke; we refuse them.", packet: invokeOf(hx("72 00 72 02 30 01")), what: faultRepeatedData, offset: 6},
		{name: "repeated as", about: "Protobuf merges two AsWhom of one Invoke; we refuse them.", packet: invokeOf(hx("7a 02 08 01 7a 00")), what: faultRepeatedAs, offset: 8},
		{name: "repeated caller", about: "Protobuf merges two Caller of one Invoke; we refuse them.", packet: invokeOf(hx("82 01 00 82 01 00")), what: faultRepeatedCaller, offset: 7},
		{name: "chain of 65", about: "A chain has at most 64 entries.", packet: invokeOf(chainOf(65)), what: faultChain, offset: 6 + 64*3},
		{
			name: "caller chain of 65", about: "A chain has at most 64 entries.",
			packet: invokeOf(append([]byte{0x82}, nest(0x01, []byte(strings.Repeat("\x1a\x00", 65)))...)), what: faultChain, offset: 10 + 64*2,
		},
		{name: "level 256", about: "A level has 8 bits.", packet: invokeOf(hx("7a 03 20 80 02")), what: faultEnum, offset: 6},
		{name: "caller level 256", about: "A level has 8 bits.", packet: invokeOf(hx("82 01 03 10 80 02")), what: faultEnum, offset: 7},
		{name: "as kind -1", about: "A negative enum value is over 255.", packet: invokeOf(hx("7a 0b 08 ff ff ff ff ff ff ff ff ff 01")), what: faultEnum, offset: 6},
	}
}
