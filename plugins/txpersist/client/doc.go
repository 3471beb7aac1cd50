// Package client calls stores of resources: the elements txpersist of a cluster.
//
//	c := client.Open(cluster, client.Options{Deployment: "txpersist"}) // cluster: a *client.Client of this module
//	id, err := c.Put(ctx, path, data)
//	data, err = c.Get(ctx, path)
//	err = c.Update(ctx, client.Scope{Paths: []address.Path{path}}, func(tx *client.Tx) error { ... })
//
// # Which store
//
// Every node has a store of its own. An id names its node, and so may the context of a
// path: such a call goes there. A path without a context says nothing of a node; if there
// is one node, or Options.Node says which, it is that one, and else the call is refused
// with [ErrAmbiguous], which names them: to pick one would be a guess, and the next call
// might guess otherwise.
//
// # What is done twice
//
// Each one-shot method that writes and each batch carries a key, so a call whose outcome
// is not known is made again without being done again, Options.Attempts times in all,
// also when the element was restarted meanwhile. Transactions are never tried again by
// themselves: what of a lost commit became is for the caller to look up.
//
// # Errors
//
// Errors are *conduit.Error; errors.Is tells those of this package apart, such as
// [ErrNotFound].
package client
