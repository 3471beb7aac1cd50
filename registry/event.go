package registry

// EventKind says what has happened.
type EventKind uint8

// The kinds of events.
const (
	EventAdded   EventKind = iota // a peer is alive, from now on picked
	EventChanged                  // what it hosts, or its state, is another
	EventRemoved                  // it is gone, or discovery names its URL no more
)

// String returns the kind's name.
func (k EventKind) String() string {
	switch k {
	case EventAdded:
		return "added"
	case EventChanged:
		return "changed"
	default:
		return "removed"
	}
}

// Event is a change of one peer, or of a URL that has none.
type Event struct {
	Kind EventKind
	// Peer is as it was when the event happened.
	Peer PeerStatus
}

type subscriber struct{ fn func(Event) }

// Subscribe calls fn with what there is, as peers added, and then with each
// change, in order and one at a time, after picks see it. The first calls come
// before Subscribe returns. fn must return soon: it holds up the news of all. It
// may pick, but not subscribe, nor call stop. After stop has returned fn is not
// called any more.
func (r *Registry) Subscribe(fn func(Event)) (stop func()) {
	r.deliver.Lock()
	defer r.deliver.Unlock()
	s := &subscriber{fn}
	// Events that were not delivered yet are in the present state already; all the
	// others hear of them with the next publish.
	r.mu.Lock()
	events := r.events
	r.events = nil
	var present []PeerStatus
	for _, t := range r.targets {
		if t.peer != nil {
			present = append(present, t.status())
		}
	}
	r.mu.Unlock()
	r.tell(events)
	for _, p := range present {
		fn(Event{Kind: EventAdded, Peer: p})
	}
	r.subscribers[s] = struct{}{}
	return func() {
		r.deliver.Lock()
		defer r.deliver.Unlock()
		delete(r.subscribers, s)
	}
}

// note keeps an event for the publisher. r.mu is held.
func (r *Registry) note(kind EventKind, t *target) {
	r.events = append(r.events, Event{Kind: kind, Peer: t.status()})
	r.touch()
}

// tell delivers events. r.deliver is held.
func (r *Registry) tell(events []Event) {
	for _, e := range events {
		for s := range r.subscribers {
			s.fn(e)
		}
	}
}
