package discovery

import (
	"context"
	"slices"
	"time"
)

// Source says which hosts may be instances, for as long as it runs.
//
// Package discoverytest holds what every Source must do.
type Source interface {
	// Run calls publish with what the source knows: once as soon as it knows
	// anything (that there is nobody is something), and then whenever that
	// changes, until ctx ends; then it returns nil. An error says that the source
	// cannot work at all, and comes before the first snapshot; what goes wrong
	// later is part of a snapshot.
	//
	// publish is called by one goroutine at a time and not after Run has
	// returned. It should return soon: the source may hear of nothing new
	// meanwhile, and skips what is outdated when it returns. A Source may be run
	// again after its Run has returned, but by one Run at a time.
	Run(ctx context.Context, publish func(Snapshot)) error
}

// Snapshot is all that a source knows at one moment, and not what has changed. It
// is immutable.
type Snapshot struct {
	// Peers are the URLs of hosts in the normal form of [ParsePeer], each once, in
	// order.
	Peers []string
	// Problems are entries that are in no use, such as names that do not resolve.
	Problems []Problem
	// At is when the source learned it.
	At time.Time
	// Stale says that the source could not look anew, and since when: it repeats
	// what it knew then. Zero = it is not stale.
	Stale time.Time
}

// Problem says why an entry of a source gives no peer.
type Problem struct {
	// Entry is what was listed, without what may be a secret.
	Entry string
	Err   error
}

// normal sorts and dedupes peers in place.
func normal(peers []string) []string {
	slices.Sort(peers)
	return slices.Compact(peers)
}

// same reports whether two snapshots say the same, whenever they were taken.
func same(a, b Snapshot) bool {
	return slices.Equal(a.Peers, b.Peers) && a.Stale.IsZero() == b.Stale.IsZero() &&
		slices.EqualFunc(a.Problems, b.Problems, func(p, q Problem) bool {
			return p.Entry == q.Entry && p.Err.Error() == q.Err.Error()
		})
}
