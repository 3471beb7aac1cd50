package registry

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
)

// Place is an address as the registry looks it up: made once, for many picks. It
// is safe for concurrent use.
type Place struct {
	addr     address.Address
	key      key
	pinned   bool
	instance address.InstanceID
	route    Route
	// found is who had something there in the index of the last pick, so that most
	// picks look nothing up.
	found atomic.Pointer[found]
}

type found struct {
	generation uint64
	members    []member
}

// Place returns the place of an address.
func (r *Registry) Place(a address.Address) *Place {
	p := &Place{addr: a, key: keyOf(a), route: r.o.Dialer.Route(a)}
	id, anyInstance := a.Instance()
	p.instance, p.pinned = id, !anyInstance
	return p
}

// Address returns the place's address.
func (p *Place) Address() address.Address { return p.addr }

func keyOf(a address.Address) key {
	k := key{ordinal: -1, element: a.Element(), service: a.Service()}
	k.deployment, k.any = a.Deployment()
	if n, ok := a.Ordinal(); ok {
		k.ordinal = int32(n)
	}
	return k
}

// member is a peer that has something at a key.
type member struct {
	p *Peer
	o *offer
}

// index is who there is: immutable, replaced at each change.
type index struct {
	// generation tells the peers, and what they have, from those of other indexes.
	generation uint64

	peers  []*Peer // by id
	byID   map[address.InstanceID]*Peer
	groups map[key][]member
	// all are the peers with the built-in services, which is all of them; opaque
	// those that may have anything.
	all, opaque []member
	others      []other
	// asking is the number of URLs that have not been tried once.
	asking int
	// problems are what discovery could make no use of.
	problems []discovery.Problem
	// replaced is closed when there is a newer index.
	replaced chan struct{}
}

// other is a URL that has no peer to pick.
type other struct {
	url    string
	state  State
	reason string
	// Of the instance that was last there, if any.
	id   address.InstanceID
	name string
	last *catalog
	next time.Time // of the next dial; zero = none is planned
}

// again returns an index of the same peers.
func (ix *index) again() *index {
	return &index{
		generation: ix.generation, peers: ix.peers, byID: ix.byID, groups: ix.groups, all: ix.all, opaque: ix.opaque, replaced: make(chan struct{}),
	}
}

func newIndex(generation uint64, peers []*Peer) *index {
	ix := &index{
		generation: generation, peers: peers, byID: make(map[address.InstanceID]*Peer, len(peers)), groups: map[key][]member{}, replaced: make(chan struct{}),
	}
	slices.SortFunc(peers, func(a, b *Peer) int { return a.id.Compare(b.id) })
	ix.all = make([]member, 0, len(peers))
	for _, p := range peers {
		ix.byID[p.id] = p
		ix.all = append(ix.all, member{p, anything})
		c := p.meta.Load()
		if c.opaque {
			ix.opaque = append(ix.opaque, member{p, anything})
			continue
		}
		for k, o := range c.offers {
			ix.groups[k] = append(ix.groups[k], member{p, o})
		}
	}
	if len(ix.opaque) > 0 {
		for k, ms := range ix.groups {
			ix.groups[k] = append(ms, ix.opaque...)
		}
	}
	return ix
}

// members returns who has something at a place.
func (ix *index) members(pl *Place) []member {
	if f := pl.found.Load(); f != nil && f.generation == ix.generation {
		return f.members
	}
	f := &found{generation: ix.generation, members: ix.find(pl)}
	pl.found.Store(f)
	return f.members
}

func (ix *index) find(pl *Place) []member {
	if !pl.pinned {
		return ix.at(&pl.key)
	}
	if p := ix.byID[pl.instance]; p != nil {
		if o := p.meta.Load().at(pl.key); o != nil {
			return []member{{p, o}}
		}
	}
	return nil
}

// at returns who has something at a key.
func (ix *index) at(k *key) []member {
	if ms := ix.groups[*k]; ms != nil {
		return ms
	}
	if k.deployment == builtinID && !k.any {
		return ix.all
	}
	return ix.opaque
}
