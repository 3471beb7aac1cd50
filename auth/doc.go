// Package auth says who is calling: it reads credentials from requests, resolves
// as whom a call runs, and knows users and their sessions. It speaks of
// principals, not of links, so that it can be tested, and read, without one; who
// wires the two together adapts.
//
// [Accounts] is what is done with users and sessions, on a [Store] that keeps them
// (package boltstore has one); [Sessions] validates secrets for an instance, from
// memory where it can. [Disabled] is for a machine of one's own.
package auth
