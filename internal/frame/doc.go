// Package frame turns the bytes of a packet into frames and back: pure
// functions, no state beyond a position, no allocation, no copy of a payload.
//
// It owns the hot path's reading of proto/conduit/v1/conduit.proto, which stays
// the norm: a differential fuzz test holds the parser to the generated code.
// What frames mean (order, credit, faults) is package link's; this package
// never imports it, nor anything else of the module outside tests.
//
// # The wire
//
// One carrier message (a WebSocket binary message, a message of a plugin's gRPC
// stream, a length-prefixed record on a Unix socket) is one Packet. Everything
// is protobuf: a tag is (number<<3 | wire type) as a varint, and a message or
// string is its length as a varint, then its bytes.
//
//	Packet  +----+-----+-------+----+-----+-------+ ...
//	        | 0a | len | Frame | 0a | len | Frame |        frames = 1, repeated
//	        +----+-----+-------+----+-----+-------+ ...
//	                   '-------'
//	                   Frame.Size: what link credit counts
//
//	Frame   +----+------+------+-----+------+
//	        | 08 | call | kind | len | Body |              call is left out when 0
//	        +----+------+------+-----+------+
//	                       |
//	  12 Hello    1a Invoke   22 Data     2a Failure  32 Cancel
//	  3a Credit   42 GoAway   4a Status   52 Ping
//
//	Data    08 part  12 content_type  18 total  22 bytes  28 more  30 last
//
//	Invoke  0a instance      12 deployment  1a element        22 service
//	        2a method        30 ordinal     3a content_type   42 accept
//	        48 timeout_us    50 units       58 reply_credit   60 attempt
//	        68 background    72 Data        7a AsWhom         82 01 Caller
//	        88 01 parent     92 01 chain    9a 01 traceparent a2 01 tracestate
//
//	AsWhom  08 kind  12 session  1a name  20 level
//	Caller  0a user  10 level    1a chain 22 peer  28 attempt
//	Cancel  0a reason
//	Credit  08 bytes
//	Ping    08 nonce  10 ack
//
// The other kinds are rare; the parser gives their Body, which is for
// proto.Unmarshal. Their content is not looked into here: that is the one thing
// in which the parser takes what protobuf refuses, until the Body is read.
//
// # As protobuf
//
// Fields may come in any order; unknown ones are skipped, groups included. A
// known field with another wire type is unknown. A scalar that comes twice has
// its last value; varints keep their low 32 bits in 32-bit fields. Of two kinds
// in one Frame the last wins; one of an unknown number is an unknown field, so a
// frame of a later version is a [KindUnknown]. Refused are: truncation, a varint
// over 64 bits, field number 0 or over 2^29-1, wire types 6 and 7, groups that do
// not match, and strings that are not UTF-8.
//
// # Stricter than protobuf
//
// No encoder writes any of these, so refusing them costs nobody anything and
// spares us the merging of messages and unbounded growth:
//
//   - "repeated kind": a Frame with the same kind twice in a row, which protobuf
//     merges.
//   - "repeated data in invoke", "repeated as in invoke", "repeated caller in
//     invoke": an Invoke with that field twice, which protobuf merges.
//   - "chain too long": over [MaxChain] entries in a chain.
//   - "enum value over 255": a level or an AsWhom kind that a uint8 cannot hold,
//     negative ones included. Smaller values without a name pass.
package frame
