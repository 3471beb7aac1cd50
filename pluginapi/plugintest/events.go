package plugintest

import (
	"maps"
	"slices"
	"sync"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/pluginapi"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Tell has the host tell an event to the elements that subscribe, as if a deployment
// had come or gone: what it says holds from then on, and is part of the present state
// that later subscribers get. An event resync has all subscribers told the present
// state anew, as one that has missed changes is.
//
// Of the event Name, Deployment, Element, Version, Generation and State count; a
// Generation of 0 is the next one, an empty State clean or ready. The elements that
// Start runs are told of without it. It does not wait until anybody has heard.
func (c *Client) Tell(e pluginapi.Event) { c.h.events.tell(e) }

// Subscriptions returns how many subscriptions the elements of the test have.
func (c *Client) Subscriptions() int { return c.h.events.feed.Subscribers() }

// events are what the host of a test tells its elements.
type events struct {
	feed pluginlink.Feed

	mu      sync.Mutex
	present []*conduitv1.HostEvent
}

func (ev *events) tell(e pluginapi.Event) {
	if e.Name == pluginapi.EventResync {
		ev.feed.Resync()
		return
	}
	ev.mu.Lock()
	defer ev.mu.Unlock()
	told := &conduitv1.HostEvent{
		Name: e.Name, Deployment: e.Deployment, DeploymentId: address.UniqueDeploymentID(e.Deployment).String(),
		Element: e.Element, Version: e.Version, Generation: e.Generation, State: e.State,
	}
	same := func(other *conduitv1.HostEvent) bool {
		return other.GetDeployment() == e.Deployment && (e.Name == pluginapi.EventDeploymentUnloaded || other.GetName() == e.Name && other.GetElement() == e.Element)
	}
	state := "clean"
	if e.Name == pluginapi.EventElementLoaded {
		state = "ready"
	}
	if e.Name == pluginapi.EventDeploymentUnloaded {
		state = ""
	}
	if told.GetState() == "" {
		told.State = state
	}
	if told.GetGeneration() == 0 {
		told.Generation = 1
		if i := slices.IndexFunc(ev.present, same); i >= 0 {
			told.Generation = ev.present[i].GetGeneration() + 1
		}
	}
	ev.present = slices.DeleteFunc(slices.Clone(ev.present), same) // the feed has the old list
	if e.Name != pluginapi.EventDeploymentUnloaded {
		ev.present = append(ev.present, told)
	}
	ev.feed.Publish(ev.present, told)
}

// given returns the attributes that a test hands to the element, and which of them are
// sensitive.
func (s *settings) given() (values map[string]string, sensitive []string) {
	values = maps.Clone(s.sensitive)
	if values == nil {
		values = map[string]string{}
	}
	sensitive = slices.Collect(maps.Keys(s.sensitive))
	for name, value := range s.attributes {
		if _, ok := values[name]; !ok {
			values[name] = value
		}
	}
	return values, sensitive
}
