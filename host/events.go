package host

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// events tells elements what is loaded, as far as they subscribe. What it knows is
// compared with the elements at each change of one. All but the feed belongs to
// Host.mu.
type events struct {
	feed  pluginlink.Feed
	known map[string]*loading // by deployment, a transient one by its id
}

// loading is a deployment as it was last told of.
type loading struct {
	name, id string
	elements map[*element]loadedElement
	times    uint64 // that it was loaded; 0 = not yet
	status   string
	news     bool // something was loaded or has gone since it was last told of
}

// loadedElement is the generation of an element that was told of last.
type loadedElement struct {
	name, version, state string
	generation           uint64
}

// glance is what an event may say of an element.
type glance struct {
	loadedElement
	status  ElementStatus // no more than deploymentStatus looks at
	settled bool
	leaves  bool // it takes no calls any more, for good or until an operator says otherwise
}

func (e *element) glance() glance {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.status
	g := glance{
		loadedElement: loadedElement{s.Name, s.Description.GetVersion(), string(s.State), s.Generation},
		status:        ElementStatus{State: s.State, Warnings: s.Warnings},
		settled:       e.settled,
		leaves:        e.gone && !s.State.Serving() || s.State == Disabled,
	}
	for _, what := range e.notes {
		if what != "" {
			g.status.Warnings = []string{what}
		}
	}
	return g
}

// see looks at the elements that there are, in the order of their deployments' names,
// and tells what has changed. Host.mu is held, so that one change comes after the
// other.
func (ev *events) see(list []*element) {
	changes := ev.compare(list)
	ev.feed.Publish(ev.state(), changes...)
}

// compare takes over what holds now, and returns what has changed.
func (ev *events) compare(list []*element) (changes []*conduitv1.HostEvent) {
	present := map[string]bool{}
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].deployment == list[0].deployment && list[n].transient == list[0].transient {
			n++
		}
		if ev.seeDeployment(list[:n], &changes) {
			present[list[0].deploymentKey()] = true
		}
		list = list[n:]
	}
	for _, key := range slices.Sorted(maps.Keys(ev.known)) {
		if present[key] {
			continue
		}
		if d := ev.known[key]; d.times > 0 {
			changes = append(changes, &conduitv1.HostEvent{
				Name: pluginlink.DeploymentUnloaded, Deployment: d.name, DeploymentId: d.id, Generation: d.times,
			})
		}
		delete(ev.known, key)
	}
	return changes
}

// seeDeployment looks at the elements of one deployment. It reports whether the
// deployment is there: one whose elements all leave is not.
func (ev *events) seeDeployment(list []*element, changes *[]*conduitv1.HostEvent) bool {
	key := list[0].deploymentKey()
	d := ev.known[key]
	if d == nil {
		d = &loading{name: list[0].deployment, id: list[0].deploymentText(), elements: map[*element]loadedElement{}}
	}
	there, settled := map[*element]bool{}, true
	var statuses []ElementStatus
	for _, e := range list {
		g := e.glance()
		if g.leaves {
			continue
		}
		there[e] = true
		settled = settled && g.settled
		statuses = append(statuses, g.status)
		if g.generation == 0 {
			continue
		}
		if d.elements[e].generation != g.generation {
			d.news = true
			*changes = append(*changes, elementEvent(d, g.loadedElement))
		}
		d.elements[e] = g.loadedElement
	}
	if len(there) == 0 {
		return false
	}
	for e := range d.elements {
		if !there[e] {
			delete(d.elements, e)
			d.news = true
		}
	}
	if ev.known == nil {
		ev.known = map[string]*loading{}
	}
	ev.known[key] = d
	d.status = deploymentStatus(statuses)
	if settled && (d.news || d.times == 0) {
		d.news = false
		d.times++
		*changes = append(*changes, deploymentEvent(d))
	}
	return true
}

// state returns the events that tell what is loaded now.
func (ev *events) state() (list []*conduitv1.HostEvent) {
	for _, key := range slices.Sorted(maps.Keys(ev.known)) {
		d := ev.known[key]
		first := len(list)
		for _, e := range d.elements {
			list = append(list, elementEvent(d, e))
		}
		slices.SortFunc(list[first:], func(a, b *conduitv1.HostEvent) int { return strings.Compare(a.GetElement(), b.GetElement()) })
		if d.times > 0 {
			list = append(list, deploymentEvent(d))
		}
	}
	return list
}

func elementEvent(d *loading, e loadedElement) *conduitv1.HostEvent {
	return &conduitv1.HostEvent{
		Name: pluginlink.ElementLoaded, Deployment: d.name, DeploymentId: d.id,
		Element: e.name, Version: e.version, Generation: e.generation, State: e.state,
	}
}

func deploymentEvent(d *loading) *conduitv1.HostEvent {
	return &conduitv1.HostEvent{Name: pluginlink.DeploymentLoaded, Deployment: d.name, DeploymentId: d.id, Generation: d.times, State: d.status}
}

// Events calls send with what is loaded now, and then with each change, until ctx ends
// or send fails, whose error it returns, or until the host stops. While send waits, a
// bounded number of changes is kept; then the present state is told anew, after an event
// resync. The events are shared: they are not to be changed.
func (h *Host) Events(ctx context.Context, send func(*conduitv1.HostEvent) error) error {
	return h.events.feed.Serve(ctx, nil, send)
}

// endEvents ends the subscriptions of elements, as a drain does at once.
func (h *Host) endEvents() {
	h.events.feed.End(&conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Outcome: conduit.Refused, Op: "host.events",
		Message: "the instance is going away: it tells of no more changes",
	})
}
