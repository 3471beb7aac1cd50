package discovery

import (
	"context"
	"sync"
	"time"
)

// Static is the source of a list that somebody wrote: discovery.static or --peer.
// All methods may be called concurrently.
type Static struct {
	insecure bool

	mu      sync.Mutex
	current Snapshot
	changed chan struct{} // closed and made anew at each change
}

// NewStatic returns the source of a list in the forms of [ParseStatic]. The error
// is an *[EntryError].
func NewStatic(entries []string, insecure bool) (*Static, error) {
	s := &Static{insecure: insecure, changed: make(chan struct{})}
	if err := s.Reload(entries); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload takes a new list in place of the old one. If one of its entries is bad,
// the old list stays, and the error is an *[EntryError].
func (s *Static) Reload(entries []string) error {
	peers, err := ParseStatic(entries, s.insecure)
	if err != nil {
		return err
	}
	next := Snapshot{Peers: normal(peers), At: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.current.At.IsZero() && same(s.current, next) {
		return nil
	}
	s.current = next
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Run implements Source.
func (s *Static) Run(ctx context.Context, publish func(Snapshot)) error {
	for {
		s.mu.Lock()
		current, changed := s.current, s.changed
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		publish(current)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
