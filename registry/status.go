package registry

import (
	"cmp"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// State says how a URL or the instance behind it is.
type State uint8

// The states. Only an alive peer gets new work.
const (
	StateConnecting  State = iota // not tried yet
	StateAlive                    // it has said what it hosts
	StateDraining                 // it has said goodbye
	StateUnreachable              // it cannot be reached, or did not answer
	StateConflict                 // another instance with the same id came first
	StateSelf                     // it is this instance
	stateAlias                    // another URL of a peer; shown with that
)

// String returns the state's name as operators see it.
func (s State) String() string {
	switch s {
	case StateConnecting:
		return "connecting"
	case StateAlive:
		return "alive"
	case StateDraining:
		return "draining"
	case StateUnreachable:
		return "unreachable"
	case StateConflict:
		return "conflict"
	case StateSelf:
		return "self"
	default:
		return "alias"
	}
}

// inFlightAge is the age from which a Status says nothing any more of calls under way.
const inFlightAge = 2 * time.Second

// PeerStatus is what the registry knows of a peer, or of a URL that has none.
type PeerStatus struct {
	Instance address.InstanceID // zero if it was never heard
	Name     string
	Epoch    uint64
	State    State
	Reason   string // why it is in that state, for people
	Cordoned bool
	// URLs are where discovery has it, the one that it is linked at first; more
	// than one if they are aliases.
	URLs []string
	// In units.
	Effective, Available, Total, Sent, Judged int64
	// InFlight counts calls on that instance, as far as it is known: what its last
	// Status said, if that is younger than 2 s, and never less than Outstanding, which
	// is exact and counts those of this instance there. An older Status is left out,
	// since no Status need come when calls without units end: then InFlight is
	// Outstanding, and calls of others there are not seen.
	InFlight    int64
	Outstanding int
	// Heard is when it last said anything, be it that it is still there; zero = never.
	Heard time.Time
	// Link is the link to it; nil if there is none.
	Link Link
	// Info is its last answer, which must not be changed; nil if there is none.
	Info *conduitv1.InstanceInfo
	// InfoAt is when Info came: what it says of times was so then.
	InfoAt time.Time
}

// Peers returns all that the registry knows, by the first URL.
func (r *Registry) Peers() []PeerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]PeerStatus, 0, len(r.targets))
	for _, t := range r.targets {
		if t.state != stateAlias {
			all = append(all, t.status())
		}
	}
	slices.SortFunc(all, func(a, b PeerStatus) int { return cmp.Compare(a.URLs[0], b.URLs[0]) })
	return all
}

// status is what is known of a target. r.mu is held.
func (t *target) status() PeerStatus {
	s := PeerStatus{State: t.state, Reason: t.reason, URLs: []string{t.url}, Instance: t.id, Epoch: t.epoch}
	if t.last != nil {
		s.Info, s.InfoAt, s.Name = t.last.info, t.last.came, t.last.info.GetName()
	}
	p := t.peer
	if p == nil {
		return s
	}
	for url := range p.aliases {
		s.URLs = append(s.URLs, url)
	}
	slices.Sort(s.URLs[1:])
	s.Outstanding, s.Link = p.link.Outstanding(), p.link
	s.InFlight = int64(s.Outstanding)
	if p.draining.Load() {
		s.State = StateDraining
	}
	if at := p.heard.Load(); at != 0 {
		s.Heard = time.Unix(0, at)
	}
	if l, ok := p.link.(interface{ Heard() time.Time }); ok { // answers of calls, too
		if at := l.Heard(); at.After(s.Heard) {
			s.Heard = at
		}
	}
	if v := p.view.Load(); v != nil {
		sent, debit, _ := p.debit(v)
		s.Available, s.Total, s.Judged, s.Cordoned = v.available, v.total, v.judged, v.cordoned
		s.Sent, s.Effective = sent, v.available-debit
		if time.Since(v.at) < inFlightAge {
			s.InFlight = max(s.InFlight, v.inFlight)
		}
	}
	return s
}
