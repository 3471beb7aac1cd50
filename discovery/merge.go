package discovery

import (
	"context"
	"sync"
	"time"
)

// Merge returns a source of all that several sources know; a peer that more than
// one of them names is one. It waits for none: what one source knows is published
// though another has not found anything yet.
//
// It is stale when a source is, since the oldest of their moments. When a source
// fails, the others go on and the failure is a problem of the snapshots; only when
// all have failed does Run, with the first error.
func Merge(sources ...Source) Source {
	if len(sources) == 1 {
		return sources[0]
	}
	return merged(sources)
}

type merged []Source

// Run implements Source.
func (m merged) Run(ctx context.Context, publish func(Snapshot)) error {
	if len(m) == 0 {
		publish(Snapshot{At: time.Now()})
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	// Parts are only kept, so that no source waits for a slow publish.
	var mu sync.Mutex
	parts := make([]*Snapshot, len(m))
	failed := make([]error, len(m))
	wake := make(chan struct{}, 1)
	note := func(change func()) {
		mu.Lock()
		change()
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for i, source := range m {
		wg.Go(func() {
			err := source.Run(ctx, func(s Snapshot) { note(func() { parts[i] = &s }) })
			if err != nil {
				note(func() { failed[i] = err })
			}
		})
	}

	var last *Snapshot
	for {
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
		mu.Lock()
		next, err := combine(parts, failed)
		mu.Unlock()
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil
		case next != nil && (last == nil || !same(*last, *next)):
			last = next
			publish(*next)
		}
	}
}

// combine makes one snapshot of those that there are; nil if there is none yet.
func combine(parts []*Snapshot, failed []error) (*Snapshot, error) {
	var all *Snapshot
	failures := 0
	var first error
	var problems []Problem
	for i, part := range parts {
		if failed[i] != nil {
			failures++
			if first == nil {
				first = failed[i]
			}
			problems = append(problems, Problem{Entry: "a source", Err: failed[i]})
			continue
		}
		if part == nil {
			continue
		}
		if all == nil {
			all = &Snapshot{}
		}
		all.Peers = append(all.Peers, part.Peers...)
		all.Problems = append(all.Problems, part.Problems...)
		if part.At.After(all.At) {
			all.At = part.At
		}
		if !part.Stale.IsZero() && (all.Stale.IsZero() || part.Stale.Before(all.Stale)) {
			all.Stale = part.Stale
		}
	}
	if failures == len(parts) {
		return nil, first
	}
	if all != nil {
		all.Peers = normal(all.Peers)
		all.Problems = append(all.Problems, problems...)
	}
	return all, nil
}
