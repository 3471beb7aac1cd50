// Package auth says who is calling: it reads credentials from requests, and
// resolves as whom a call runs. It speaks of principals, not of links, so that
// it can be tested, and read, without one; who wires the two together adapts.
//
// Sessions, users and their stores come with an issue of their own. Until then
// there is [Disabled], for a machine of one's own.
package auth
