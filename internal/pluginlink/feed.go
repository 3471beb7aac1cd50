package pluginlink

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The events that a host tells its elements.
const (
	DeploymentLoaded   = "deployment_loaded"
	DeploymentUnloaded = "deployment_unloaded"
	ElementLoaded      = "element_loaded"
	Resync             = "resync"
)

// EventNames are those that can be subscribed to.
func EventNames() []string { return []string{DeploymentLoaded, DeploymentUnloaded, ElementLoaded} }

// FeedDepth is how many changes wait for one subscriber before it gets a resync in
// place of them.
const FeedDepth = 256

// Feed hands events to those who subscribe: to each the present state first, then
// every change in order. Whoever tells of a change waits for nobody. The zero Feed
// has nothing to tell and is ready. All methods may be called concurrently.
type Feed struct {
	depth int // 0 = FeedDepth

	mu      sync.Mutex
	seq     uint64
	present []*conduitv1.HostEvent // what holds; never changed in place
	subs    map[*subscriber]struct{}
	over    *conduit.Error // why it has ended
}

// subscriber is one who is told. Its fields belong to Feed.mu.
type subscriber struct {
	names  []string
	state  []*conduitv1.HostEvent // what is left to tell of the present state
	queue  []*conduitv1.HostEvent // changes after it
	behind bool                   // changes were dropped
	wake   chan struct{}          // holds one token when there is something to tell
}

func (s *subscriber) wants(e *conduitv1.HostEvent) bool {
	return len(s.names) == 0 || slices.Contains(s.names, e.GetName())
}

// Publish tells changes, which it numbers, and says which events tell the present
// state once they have happened. The events are the feed's from then on; those of
// the state may be used again.
func (f *Feed) Publish(present []*conduitv1.HostEvent, changes ...*conduitv1.HostEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range changes {
		f.seq++
		e.Sequence = f.seq
	}
	f.present = present
	most := f.depth
	if most == 0 {
		most = FeedDepth
	}
	for s := range f.subs {
		for _, e := range changes {
			switch {
			case s.behind || !s.wants(e):
			case len(s.queue) == most:
				// It is told what holds then, not what has been.
				s.behind, s.state, s.queue = true, nil, nil
			default:
				s.queue = append(s.queue, e)
			}
		}
		s.poke()
	}
}

func (s *subscriber) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Resync has every subscriber told the present state anew, as if it had missed
// changes.
func (f *Feed) Resync() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs {
		s.behind, s.state, s.queue = true, nil, nil
		s.poke()
	}
}

// End ends all subscriptions, and refuses further ones, with an error.
func (f *Feed) End(why *conduit.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil {
		f.over = why
	}
	for s := range f.subs {
		s.poke()
	}
}

// Serve tells one subscriber: of the events named, or of all if none is. send may
// wait for the subscriber as long as it likes. It returns why the subscription has
// ended: what ctx, send or End says.
func (f *Feed) Serve(ctx context.Context, names []string, send func(*conduitv1.HostEvent) error) error {
	for _, name := range names {
		if !slices.Contains(EventNames(), name) {
			return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused,
				"there is no event %q to subscribe to; there are %s", name, strings.Join(EventNames(), ", "))
		}
	}
	s := &subscriber{names: names, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	if f.over == nil {
		s.state = f.stateFor(s)
		if f.subs == nil {
			f.subs = map[*subscriber]struct{}{}
		}
		f.subs[s] = struct{}{}
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, s)
	}()
	for {
		e, over := f.next(s)
		switch {
		case over != nil:
			return over
		case e != nil:
			if err := send(e); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns what a subscriber is to be told now, nil if nothing is.
func (f *Feed) next(s *subscriber) (*conduitv1.HostEvent, *conduit.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over != nil {
		return nil, f.over
	}
	if s.behind {
		// What holds now and what comes after it fit together, since both are looked at
		// under one lock.
		s.behind = false
		s.state = append([]*conduitv1.HostEvent{{Name: Resync, Sequence: f.seq}}, f.stateFor(s)...)
	}
	for _, list := range []*[]*conduitv1.HostEvent{&s.state, &s.queue} {
		if len(*list) > 0 {
			e := (*list)[0]
			(*list)[0] = nil
			if *list = (*list)[1:]; len(*list) == 0 {
				*list = nil
			}
			return e, nil
		}
	}
	return nil, nil
}

// stateFor returns the events by which a subscriber is told the present state.
// f.mu is held.
func (f *Feed) stateFor(s *subscriber) (list []*conduitv1.HostEvent) {
	for _, e := range f.present {
		if s.wants(e) {
			list = append(list, &conduitv1.HostEvent{
				Name: e.GetName(), Sequence: f.seq, Present: true, Deployment: e.GetDeployment(), DeploymentId: e.GetDeploymentId(),
				Element: e.GetElement(), Version: e.GetVersion(), Generation: e.GetGeneration(), State: e.GetState(),
			})
		}
	}
	return list
}

// Subscribers returns how many there are.
func (f *Feed) Subscribers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs)
}
