// Package conduit is the vocabulary of Elemental Conduit: what a call is, how
// it ends, and the generic helpers that make calls.
//
// A program outside the cluster imports package client, which gives an
// [Invoker] for an address; a plugin's author imports package pluginapi. Both
// call with [Call] and [Stream]:
//
//	reply, err := conduit.Call[GreetReply](ctx, c.At("*://greeter/greeter/example.Greeter"), "Greet", GreetRequest{Name: "Ada"})
//
// A caller gets exactly one outcome of a call: its messages and an end, or one
// [*Error] that says whether the work may have run.
//
// The package imports address and protobuf only; every other package of the
// module may import it.
package conduit
