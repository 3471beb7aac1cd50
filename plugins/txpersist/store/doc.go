// Package store keeps resources in one file, in transactions. It is the heart of the
// element txpersist, and usable without it.
//
// A resource has a [address.ResourceID], at least one path, contents or none, and
// tasks. What the operations mean is what the original's do, where a port can keep
// that; docs/persistence.md lists each choice that was open.
//
// # Transactions
//
// Three kinds, each bound to what it declares in its [Scope]:
//
//   - [Store.Read] reads a snapshot. It waits for nobody but an exclusive one, and
//     nobody waits for it but an exclusive one: no writer, no commit.
//   - [Store.Write] locks its scope, reads the newest state of it, its own writes
//     included, and keeps the writes in memory. Writers whose scopes are disjoint run
//     side by side; only their commits take turns, and those that find one under way
//     share the next one's two flushes of the disk.
//   - [Store.Exclusive] has the store to itself.
//
// Locks are granted in the order in which they were asked for, to the whole scope at
// once: transactions never deadlock with each other, and none starves. A goroutine
// that opens a second transaction while it holds one whose scope overlaps waits for
// itself, until its context ends.
//
// Histories are strictly serialisable, with one exception: that a *new* resource's id
// is taken outside of the scope is said at once if the snapshot shows it, and by
// Commit else.
//
// # Files
//
// lock.go scopes and locks; open.go, pages.go what is checked before a file is
// trusted; key.go the layout; tx.go, list.go, contents.go, write.go the operations;
// commit.go one flush for many.
//
// # Walls
//
// It imports bbolt and [address]; neither pluginapi nor anything of a host.
package store
