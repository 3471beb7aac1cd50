package host

import (
	"slices"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
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
	text     string              // the id as text, of a transient one too
	alone    [1]*deploymentRoute // itself, as what an address is for that names it
}

type elementRoute struct {
	el    *element
	name  string // empty until it has once described itself
	state State
	desc  *conduitv1.Description // nil until then
	gen   *generation            // nil unless the state serves
	hold  *holding               // takes the calls that find no generation; nil if there is none
}

func newTable(elements []*element) *table {
	t := &table{byName: map[string]*deploymentRoute{}, byID: map[address.DeploymentID]*deploymentRoute{}}
	var last []*deploymentRoute // the transient ones: scans alone find them
	for _, e := range elements {
		if e.transient != "" {
			if n := len(last); n == 0 || last[n-1].text != e.transient {
				last = append(last, &deploymentRoute{name: e.deployment, text: e.transient})
			}
			d := last[len(last)-1]
			d.elements = append(d.elements, e.route())
			continue
		}
		d := t.byID[e.deploymentID]
		if d == nil {
			d = &deploymentRoute{name: e.deployment, id: e.deploymentID, text: e.deploymentID.String()}
			d.alone[0] = d
			t.byID[d.id], t.byName[d.name], t.byName[d.id.String()] = d, d, d
			t.order = append(t.order, d)
		}
		d.elements = append(d.elements, e.route())
	}
	slices.SortFunc(t.order, func(a, b *deploymentRoute) int { return a.id.Compare(b.id) })
	t.order = append(t.order, last...)
	return t
}

// candidates are the deployments that an Invoke is for, in order.
func (t *table) candidates(inv *frame.Invoke) ([]*deploymentRoute, *conduit.Error) {
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
		return nil, notFound(inv, conduit.ReasonDeploymentNotFound, "no deployment %q is here; conduit-host ls deployments lists all", inv.Deployment)
	}
	return d.alone[:], nil
}

// counts reports whether an element has a place among those that ordinals tell
// apart: whatever its state, unless an operator has turned it off and the search is a
// scan of all deployments.
func (e *elementRoute) counts(scan bool) bool { return !scan || e.state != Disabled }

// find returns the element that an Invoke is for: of those with its name the one
// at its ordinal, whatever the state, or without an ordinal the first that
// serves.
func (t *table) find(inv *frame.Invoke) (*elementRoute, *conduit.Error) {
	deployments, err := t.candidates(inv)
	if err != nil {
		return nil, err
	}
	var waiting *elementRoute // the first that would do and does not serve
	n, scan := uint32(0), isAny(inv.Deployment)
	for _, d := range deployments {
		var nameless *elementRoute // the first of the deployment that has yet to tell its name
		for i := range d.elements {
			e := &d.elements[i]
			if e.name != string(inv.Element) {
				if e.name == "" && e.state != Refused && waiting == nil && len(deployments) == 1 {
					waiting = e // it may turn out to have that name
				}
				if e.name == "" && nameless == nil && e.counts(scan) {
					nameless = e
				}
				continue
			}
			if !e.counts(scan) {
				continue
			}
			if inv.HasOrdinal {
				if nameless != nil { // if it has this name, it comes before: the ordinal would slide
					return nameless, nameless.refusal(inv)
				}
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
	if len(deployments) == 1 {
		for i := range deployments[0].elements {
			if e := &deployments[0].elements[i]; e.state == Refused && (e.name == "" || len(deployments[0].elements) == 1) {
				return nil, e.refusal(inv) // of one that was refused, nobody knows what it is called
			}
		}
	}
	return nil, notFound(inv, conduit.ReasonElementNotFound, "no element %q is here; look what is with ls elements", inv.Element)
}

// refusal says why an element takes no call, or returns nil if it does, or holds it.
func (e *elementRoute) refusal(inv *frame.Invoke) *conduit.Error {
	if e.gen != nil || e.hold != nil {
		return nil
	}
	// Why it is in that state names files of this machine, and is for operators.
	reason, more := conduit.ReasonPluginStarting, ""
	switch e.state {
	case Discovered, Starting, Backoff, Ready, Degraded: // of the last two, a generation that has just gone
	case Draining, Stopped:
		reason = conduit.ReasonDraining
	case Disabled:
		reason, more = conduit.ReasonPluginFailed, ": an operator, or its deployment.yaml, has turned it off"
	case Refused, CrashLooping:
		reason, more = conduit.ReasonPluginFailed, " and will not be ready by itself; its operator sees why with: conduit-host ls elements -o json"
	}
	return refuse(inv, conduit.Unavailable, reason, true, "element %s of deployment %s is %s%s", orUnknown(e.name), e.el.deployment, e.state, more)
}

func orUnknown(name string) string {
	if name == "" {
		return "(not yet known)"
	}
	return name
}

func isAny(part []byte) bool { return len(part) == 0 || len(part) == 1 && part[0] == '*' }
