package registry

import (
	"fmt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// Node is one deployment on one instance that declares an element.
type Node struct {
	Instance   address.InstanceID
	Deployment string // id as text; empty if the instance does not say what it hosts
	// Place is the node's alone.
	Place *Place
}

// Nodes returns the nodes that declare the element of an address, in the order of
// their ids: whatever their state, full, draining and cordoned ones too, and those
// that were heard before and cannot be reached now. With an ordinal it is at most
// one of each instance.
func (r *Registry) Nodes(a address.Address) []Node {
	ix := r.index.Load()
	k := keyOf(a)
	only, anyInstance := a.Instance()
	var nodes []Node
	add := func(id address.InstanceID, c *catalog) {
		if !anyInstance && id != only || c == nil || id == r.o.Self && !id.IsZero() {
			return
		}
		for _, d := range c.declares(k) {
			at := a.WithInstance(id)
			if d != "" && k.any && k.ordinal < 0 {
				if one, err := address.FromParts(id.String(), d, a.Element(), 0, false, a.Service().String()); err == nil {
					at = one
				}
			}
			nodes = append(nodes, Node{Instance: id, Deployment: d, Place: r.Place(at)})
		}
	}
	for _, p := range ix.peers {
		add(p.id, p.meta.Load())
	}
	for i := range ix.others {
		if o := &ix.others[i]; ix.byID[o.id] == nil && o.state != StateConflict && o.state != StateSelf {
			add(o.id, o.last)
		}
	}
	return nodes
}

// declares returns the deployments that have a key's element.
func (c *catalog) declares(k key) []string {
	k.service = address.ServiceKey{}
	if !k.any || k.ordinal >= 0 {
		o := c.at(k)
		if o == nil {
			return nil
		}
		return []string{o.deployment}
	}
	if c.opaque {
		return []string{""}
	}
	var all []string
	transient := false
	for _, d := range inOrder(c.info.GetDeployments()) {
		for _, e := range d.elements {
			if e.GetName() != k.element || e.GetState() == "disabled" {
				continue
			}
			if d.id.IsZero() {
				transient = true
			} else {
				all = append(all, d.text)
			}
			break
		}
	}
	if transient && len(all) == 0 {
		// It cannot be named; a scan of the instance finds it.
		all = append(all, "")
	}
	return all
}

// Direct returns the choice of the one instance that a place names, room or not: for
// a broadcast, which is to hear from everyone, and leaves the judging to them.
func (r *Registry) Direct(pl *Place, q Query) (Choice, *conduit.Error) {
	ix := r.index.Load()
	p := ix.byID[pl.instance]
	if !pl.pinned || p == nil || p.off.Load() || !p.link.Usable() {
		return Choice{}, r.why(ix, pl, &q)
	}
	c := Choice{Peer: p, Units: q.Units, place: pl}
	if o := p.meta.Load().at(pl.key); o != nil {
		c.Method = o.methods[q.Method].value()
		c.Units = max(c.Units, c.Method.Units)
	}
	p.picked.Add(uint64(c.Units))
	return c, nil
}

// FindService returns the address, for any instance, of an element that exports a
// service: one that is ready on some peer, if there is such a one. deployment is an
// id, a name or "*". The error is invalid_argument, or service_not_found.
func (r *Registry) FindService(deployment string, service address.ServiceKey) (address.Address, *conduit.Error) {
	probe, err := address.FromParts(address.Wildcard, deployment, "-", 0, false, service.String())
	if err != nil {
		return address.Address{}, &conduit.Error{
			Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent, Op: "registry.find", Message: err.Error(), Err: err,
		}
	}
	k := keyOf(probe)
	k.element = ""
	var found *offer
	for _, m := range r.index.Load().groups[k] {
		if m.o.open {
			continue // it says nothing of elements
		}
		if found == nil || m.o.ready && !m.p.off.Load() {
			found = m.o
		}
		if found.ready {
			break
		}
	}
	if found == nil {
		return address.Address{}, &conduit.Error{
			Code: conduit.NotFound, Reason: conduit.ReasonServiceNotFound, Outcome: conduit.NotSent, Retryable: true, Op: "registry.find",
			Message: fmt.Sprintf("no instance exports service %s in deployment %s", service, deployment),
		}
	}
	a, err := address.FromParts(address.Wildcard, deployment, found.element, int(max(found.ordinal, 0)), found.ordinal >= 0, service.String())
	if err != nil {
		return address.Address{}, conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.NotSent, "element %q has no address: %v", found.element, err)
	}
	return a, nil
}
