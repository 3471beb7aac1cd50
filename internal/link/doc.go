// Package link is the one multiplexer of the fabric: many calls over one
// message carrier, with credit, cancel, drain, liveness and splice. A
// WebSocket, a plugin's gRPC stream, a Unix socket and a pair of channels are
// all carriers under it, so that every hop has the same rules; docs/protocol.md
// states them.
//
// # Shape
//
// A [Conn] has one mutex, and all that is in flight on the link stands in the
// Conn and its calls under that mutex. A call is one struct, on each link that
// it passes; a spliced call is two of them that point at each other. The locks
// of two links are never held together: what one link owes another is done
// after its lock is released.
//
// # Goroutines
//
// A link has one goroutine that reads. It never blocks but in the carrier's
// ReadMessage: frames for a local call go into that call's inbox, which credit
// bounds; frames for a spliced call go straight into the other link's packet.
// Whoever has something to write and finds the link unwritten writes, and what
// others queue meanwhile goes with the next packet: there is no timer, and an
// idle link adds no delay. While 64 KiB or more are unreturned (sent, and not
// yet credited by the other end) a write might block, so a goroutine is started
// for the backlog and ends with it. A served call has a goroutine of its own on
// the side that serves it; a spliced call has none.
//
// # Memory and the line
//
// Windows take at most half of a process's [Memory]; messages above a window take
// turns in the other half, and give way when they do not come on (turns.go). Link
// credit grows where the way is long (grow.go).
//
// # Decided later, and again
//
// A call can be parked ([Incoming.Park]) and decided about later, from any
// goroutine, and a splice can be made so that its [Router] has the call back when
// it fails before an answer began ([Incoming.SpliceHeld]). For both, the caller's
// link holds a copy of the request, within the window that it promised for it. The
// link itself never sends a call twice: only the router decides, and one outcome
// reaches the caller. If an earlier attempt may have done the work, that outcome
// never denies it. Attempts are numbered, so that what an earlier one still returns
// of credit counts for nothing, and a byte of the request is credited once.
//
// # Ownership of bytes
//
// What the reader hands out aliases the carrier's buffer until the next
// message: it is copied when it must wait, and only then. What is held of a request
// is copied once; a queue on another link aliases it.
package link
