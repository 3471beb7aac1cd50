// Package transport carries calls between processes over WebSocket: [Client]
// dials and calls, [Server] accepts on /cluster/v1 and answers. It is the one
// package that knows WebSocket; what a call is, and every rule about it, is
// internal/link's. docs/protocol.md describes the wire.
//
// # Who does what
//
// The dialer calls, the acceptor answers, and only the dialer closes a link
// for idleness, so no call can be lost to that. A Client holds one link per
// peer and credential; the first call dials, and all calls that come meanwhile
// wait for that one dial. A link that is dead or that was told to go away is
// never handed out.
//
// # Memory of an idle link
//
// An idle link holds its two small buffers of gorilla/websocket (4 KiB to read
// from the socket; 4 KiB to write on the accepting side, none on the dialling
// side) and nothing for messages: those buffers are pooled, and taken only
// while a message is read, decided on, or written. carrier_test.go holds the
// benchmark that the sizes come from.
package transport
