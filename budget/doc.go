// Package budget counts the units of an instance: one configured total, and who
// holds how much of it.
//
// A call's units are reserved before its work starts; a [Claim] takes over what
// its call has reserved and holds it for as long as the work behind it lives.
// Both are all or nothing, and released once, however often Release is called.
//
//	total = available + reserved + claimed
//
// The package decides nothing else: which method costs what, and when a handler
// has ended, is for the host to say.
package budget
