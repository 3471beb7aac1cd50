// Package loadgen makes calls at a fixed rate, whatever becomes of those before, and
// measures each from the moment at which it was due.
//
// Whoever begins the next call when the last one has ended measures a stalled service
// once, and not the hundred callers who would have come meanwhile ("coordinated
// omission"). Here the times of all calls stand before the first is made. A call that
// begins late, since too many are under way or this machine is slow, has waited by then,
// and that counts.
package loadgen
