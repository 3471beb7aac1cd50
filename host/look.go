package host

import "github.com/elemental-conduit/conduit/address"

// Standing is how this host stands to a call at one moment.
type Standing struct {
	// Hosted: a deployment that the address names declares its element, whatever the
	// state; or may, since it has not yet said what its element is called.
	Hosted bool
	// Deployed: the deployment that the address names, and not as "*", is here, whether
	// or not it has the element.
	Deployed bool
	// Ready: the element takes calls.
	Ready bool
	// Room: the call's units, the larger of those asked and the method's, are
	// available, and the element serves fewer calls than it may.
	Room bool
	// Cordoned: a cordon is why there is no room.
	Cordoned bool
	// Idempotent: the method's author declared it so.
	Idempotent bool
}

// Look says how this host stands to a call of a method at an address with so many
// units. It reserves nothing: a call that is made afterwards may be refused. It
// allocates nothing, and takes a lock, the budget's, only for a call with units.
func (h *Host) Look(a address.Address, method string, units uint32) Standing {
	if !h.isFor(a) {
		return Standing{}
	}
	t := h.table.Load()
	e, hosted := t.look(a)
	_, scan := a.Deployment()
	s := Standing{Hosted: hosted, Deployed: !scan && len(t.deployments(a)) > 0}
	if e == nil || e.gen == nil || h.draining.Load() {
		return s
	}
	s.Ready = e.gen.state.Load()&drainingBit == 0
	if m := e.gen.byKey[a.Service()][method]; m != nil {
		s.Idempotent = m.idempotent
		units = max(units, m.units)
	}
	s.Room = e.el.inflight.Load() < int64(e.el.o().Concurrency)
	if units > 0 && s.Room {
		b := h.o.Budget.Snapshot()
		s.Cordoned = b.Cordoned || e.el.cordoned.Load()
		s.Room = !s.Cordoned && b.Available >= int64(units)
	}
	return s
}

// Nodes returns the deployments that declare the element of an address, whatever its
// state, by their ids as text and in the order of a scan. An address with an ordinal
// has at most one. A transient one cannot be named, and is none of them.
func (h *Host) Nodes(a address.Address) []string {
	if !h.isFor(a) {
		return nil
	}
	var ids []string
	t := h.table.Load()
	_, scan := a.Deployment()
	ordinal, hasOrdinal := a.Ordinal()
	n := 0
	for _, d := range t.deployments(a) {
		declared := 0
		for i := range d.elements {
			if e := &d.elements[i]; e.name == a.Element() && e.counts(scan) {
				declared++
			}
		}
		n += declared
		if declared > 0 && !d.id.IsZero() && (!hasOrdinal || n-declared <= ordinal && ordinal < n) {
			ids = append(ids, d.id.String())
		}
	}
	return ids
}

// FindService returns the address, for any instance, of an element that exports a
// service in a deployment (an id, a name, or "*"): one that takes calls, if there is
// such a one.
func (h *Host) FindService(deployment string, service address.ServiceKey) (a address.Address, ok bool) {
	probe, err := address.FromParts(address.Wildcard, deployment, "-", 0, false, service.String())
	if err != nil {
		return address.Address{}, false
	}
	_, scan := probe.Deployment()
	var found *elementRoute
	for _, d := range h.table.Load().deployments(probe) {
		for i := range d.elements {
			e := &d.elements[i]
			if e.counts(scan) && e.exports(service) && (found == nil || found.gen == nil && e.gen != nil) {
				found = e
			}
		}
	}
	if found == nil {
		return address.Address{}, false
	}
	a, err = address.FromParts(address.Wildcard, deployment, found.name, 0, false, service.String())
	return a, err == nil
}

// exports reports whether an element has said that it exports a service.
func (e *elementRoute) exports(service address.ServiceKey) bool {
	if e.gen != nil {
		_, ok := e.gen.byKey[service]
		return ok
	}
	for _, s := range e.desc.GetServices() {
		if key, err := address.ParseServiceKey(s.GetName()); err == nil && key == service {
			return true
		}
	}
	return false
}

// isFor reports whether an address names this instance, or any.
func (h *Host) isFor(a address.Address) bool {
	id, anyInstance := a.Instance()
	return anyInstance || id == h.o.Instance
}

// deployments are those that an address is for, in order.
func (t *table) deployments(a address.Address) []*deploymentRoute {
	id, anyDeployment := a.Deployment()
	if anyDeployment {
		return t.order
	}
	if d := t.byID[id]; d != nil {
		return d.alone[:]
	}
	return nil
}

// look finds the element of an address by the rules of find. hosted says that it is
// declared, or that the one deployment of the address has yet to say what its element
// is called: then whoever calls it here hears why it does not serve.
func (t *table) look(a address.Address) (found *elementRoute, hosted bool) {
	deployments := t.deployments(a)
	_, scan := a.Deployment()
	ordinal, hasOrdinal := a.Ordinal()
	n, nameless := 0, false
	for _, d := range deployments {
		var unknown *elementRoute
		for i := range d.elements {
			e := &d.elements[i]
			switch {
			case e.name == "":
				nameless = true
				if unknown == nil && e.counts(scan) {
					unknown = e
				}
			case e.name != a.Element() || !e.counts(scan):
			case hasOrdinal:
				if unknown != nil {
					return unknown, true
				}
				if n == ordinal {
					return e, true
				}
				n++
			case e.gen != nil:
				return e, true
			case found == nil:
				found = e
			}
		}
	}
	return found, found != nil || nameless && !scan
}
