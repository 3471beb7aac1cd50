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
// A call goes to one of the peers that the Client was given; peers do not pass
// calls on. An address that names an instance goes to the peer that is it, any
// other to the first peer that can be reached, in the order of Options.Peers,
// those with a link before those without.
//
// A call that certainly did not start at one peer goes on to the next: if it
// could not be sent, or was refused for a reason that another peer need not
// share (draining, no capacity, or that the peer does not host the element).
// There are at most three attempts in all, and the first answer ends them. A
// call that may have started is never sent again. Only calls whose whole request
// is at hand can be: one message up, or none, and no stream.
package client
