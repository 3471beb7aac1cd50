// Package router passes on the calls that come in at an instance's own doors, for
// its operators and its plugins, to wherever the locator says: to this instance's
// own elements, or over a link to a peer.
//
// It works below Invokers: a call is spliced from the link that it came on to the
// link that it goes to, so that it costs no goroutine and no decoding. A call that
// fails before anything of an answer came, and whose request is still held whole,
// goes to another peer if the locator's plan permits that.
//
// What arrives at /cluster/v1 never comes here: an instance serves its own elements
// to others and forwards nothing, so there are no loops.
package router
