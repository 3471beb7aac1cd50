// Package client is what a Go program outside of the cluster imports to call
// elements:
//
//	c, err := client.Dial(ctx, client.Options{Peers: []string{"wss://host:7400"}, Session: secret})
//	if err != nil { ... }
//	defer c.Close()
//	reply, err := conduit.Call[GreetReply](ctx, c.At("*://greeter/greeter/example.Greeter"), "Greet", GreetRequest{Name: "Ada"})
//
// # Which peer a call goes to
//
// A Client has a link to each of its peers, asks each what it hosts, and hears what
// room it has. A call goes to a peer that has the element, is ready and has room for
// the call's units; of these, Options.Policy picks. An address that names an instance
// goes to that one. Peers do not pass a client's calls on: what none of Options.Peers
// hosts cannot be called.
//
// A call that did not start is tried again elsewhere, if another peer may do better;
// one that may have run only if its author declared the method idempotent. There are
// Options.Attempts in all, and the first answer ends them. Only a call whose whole
// request is at hand can be tried again: one message up, or none, and while nothing
// has come down.
//
// Anonymous clients are told no more of a peer than that it is there. Their calls go
// to any peer, are judged there, and nothing is taken for idempotent.
//
// # Links
//
// A link is dialled anew, with growing pauses of up to 5 s, when it is lost. It stays
// open while the Client does, calls or not: it is asked and pinged, which keeps it
// known to the middle boxes on the way. A program that calls now and then may as well
// dial a Client each time.
//
// With Options.PerCall there are no links but one for each call, and nothing is known
// of the peers: they are called in turn, also an address that names an instance. A
// call that did not start is tried again at the next.
package client
