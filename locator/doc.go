// Package locator makes of an address something that can be called: this instance,
// when it hosts the element and has room, or a peer that the registry picks; and
// another one, when the first says that it did not start the work.
//
// A call is tried at most Options.Attempts times in all, on its whole way: each
// Invoke says which attempt it is, and whoever reroutes goes on counting. It is
// tried again only
//
//   - if its request was one message, or none, and no result has come yet;
//   - if it failed with an outcome of not_sent or refused and is retryable, or with
//     unknown and its author declared the method idempotent;
//   - within its deadline, and while the retry budget that all calls share lasts.
package locator
