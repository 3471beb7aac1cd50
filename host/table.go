package host

import (
	"slices"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// table is who can be called: immutable, made anew at each change of state, read
// by every call without a lock.
type table struct {
	// byName has each deployment twice: by its name, and by its id as text.
	byName map[string]*deploymentRoute
	byID   map[address.DeploymentID]*deploymentRoute
	order  []*deploymentRoute // by id, for scans
}

type deploymentRoute struct {
	name     string
	id       address.DeploymentID
	elements []elementRoute
}

type elementRoute struct {
	el     *element
	name   string // empty until it has once described itself
	state  State
	reason string
	gen    *generation // nil unless the state serves
}

func newTable(elements []*element) *table {
	t := &table{byName: map[string]*deploymentRoute{}, byID: map[address.DeploymentID]*deploymentRoute{}}
	for _, e := range elements {
		d := t.byID[e.deploymentID]
		if d == nil {
			d = &deploymentRoute{name: e.deployment, id: e.deploymentID}
			t.byID[d.id], t.byName[d.name], t.byName[d.id.String()] = d, d, d
			t.order = append(t.order, d)
		}
		d.elements = append(d.elements, e.route())
	}
	slices.SortFunc(t.order, func(a, b *deploymentRoute) int { return a.id.Compare(b.id) })
	return t
}

// candidates are the deployments that an Invoke is for, in order.
func (t *table) candidates(inv *frame.Invoke, one *[1]*deploymentRoute) ([]*deploymentRoute, *conduit.Error) {
	if isAny(inv.Deployment) {
		return t.order, nil
	}
	d := t.byName[string(inv.Deployment)]
	if d == nil {
		// Another spelling of an id.
		if id, err := address.ParseDeploymentID(string(inv.Deployment)); err == nil {
			d = t.byID[id]
		}
	}
	if d == nil {
		return nil, notFound(inv, conduit.ReasonDeploymentNotFound, "no deployment %q is here; look what is with ls deployments", inv.Deployment)
	}
	one[0] = d
	return one[:], nil
}

// find returns the element that an Invoke is for: of those with its name the one
// at its ordinal, whatever the state, or without an ordinal the first that
// serves.
func (t *table) find(inv *frame.Invoke) (*elementRoute, *conduit.Error) {
	var one [1]*deploymentRoute
	deployments, err := t.candidates(inv, &one)
	if err != nil {
		return nil, err
	}
	var waiting *elementRoute // the first that would do and does not serve
	n := uint32(0)
	for _, d := range deployments {
		for i := range d.elements {
			e := &d.elements[i]
			if e.name != string(inv.Element) {
				if e.name == "" && e.state != Refused && waiting == nil && len(deployments) == 1 {
					waiting = e // it may turn out to have that name
				}
				continue
			}
			if inv.HasOrdinal {
				if n == inv.Ordinal {
					return e, e.refusal(inv)
				}
				n++
				continue
			}
			if e.gen != nil {
				return e, nil
			}
			if waiting == nil || waiting.name == "" {
				waiting = e
			}
		}
	}
	if waiting != nil {
		return waiting, waiting.refusal(inv)
	}
	if inv.HasOrdinal && n > 0 {
		return nil, notFound(inv, conduit.ReasonElementNotFound, "there are %d elements %q, none has ordinal %d; ordinals begin at 0", n, inv.Element, inv.Ordinal)
	}
	if len(deployments) == 1 && len(deployments[0].elements) == 1 && deployments[0].elements[0].state == Refused {
		return nil, deployments[0].elements[0].refusal(inv)
	}
	return nil, notFound(inv, conduit.ReasonElementNotFound, "no element %q is here; look what is with ls elements", inv.Element)
}

// refusal says why an element takes no call, or returns nil if it does.
func (e *elementRoute) refusal(inv *frame.Invoke) *conduit.Error {
	if e.gen != nil {
		return nil
	}
	reason, message := conduit.ReasonPluginStarting, "is "+string(e.state)
	if e.state == Draining || e.state == Stopped {
		reason = conduit.ReasonDraining
	}
	if e.reason != "" {
		message += ": " + e.reason
	}
	return refuse(inv, conduit.Unavailable, reason, true, "element %s of deployment %s %s", orUnknown(e.name), e.el.deployment, message)
}

func orUnknown(name string) string {
	if name == "" {
		return "(not yet known)"
	}
	return name
}

func isAny(part []byte) bool { return len(part) == 0 || len(part) == 1 && part[0] == '*' }
