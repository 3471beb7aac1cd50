// Package registry knows which instances of the cluster are alive, what they host
// and what room they have, and picks one for a call.
//
// Discovery says which URLs there are. For each of them one goroutine dials, asks
// who is there over the link that it got, asks again from time to time, and dials
// anew, with growing pauses, when the link is gone: so no peer waits for another.
// Identity is the InstanceID and epoch of the link's Hello, never the URL.
//
//	discovery -> target (one for each URL) -> Peer (one for each instance) -> index -> pick
//
// The index is what a pick reads: immutable, replaced as a whole, so that a pick
// takes no lock and allocates nothing. What must hold at once (a peer that died,
// drains, is cordoned or full) is read from the peer itself at each pick.
//
// # Room
//
// A peer tells each caller what it has available and how many units of that
// caller's Invokes it has judged. So what a caller may count on is
//
//	effective = available - (sent - judged)
//
// sent is counted at the pick: a peer that was picked for n units has n less from
// that moment on, for all goroutines, and gets them back if the call never leaves.
// A peer is a candidate for n units if n = 0 or effective >= n; it judges itself.
package registry
