package main

import (
	"maps"
	"slices"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/metrics"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

// newMetrics makes what /metrics shows. It is asked before everything that it asks
// for is there: until the instance has started it shows what is counted, and no
// more.
func (i *instance) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{
		Version:  buildVersion(),
		Links:    onceStarted(i, i.linkMetrics),
		Peers:    onceStarted(i, i.peerMetrics),
		Elements: onceStarted(i, i.elementMetrics),
		Measures: onceStarted(i, func() []metrics.Measure { return i.host.measures() }),
		Budget: func() metrics.Budget {
			s := i.budget.Snapshot()
			return metrics.Budget{Units: s.Total, Available: s.Available, Claims: s.Claims}
		},
		Auth: func() metrics.AuthChecks {
			if !i.started.Load() {
				return metrics.AuthChecks{}
			}
			return i.access.checks()
		},
		Log: slogTo(i.log.Named("metrics")),
	})
}

func onceStarted[T any](i *instance, ask func() []T) func() []T {
	return func() []T {
		if !i.started.Load() {
			return nil
		}
		return ask()
	}
}

func (i *instance) linkMetrics() []metrics.Link {
	var list []metrics.Link
	if i.cluster != nil {
		for _, l := range i.cluster.OpenLinks() {
			list = append(list, linkMetric(l.Conn, metrics.Clients))
		}
	}
	for conn, l := range i.linked.all() {
		list = append(list, linkMetric(conn, l.name))
	}
	return list
}

func linkMetric(conn *link.Conn, peer string) metrics.Link {
	s := conn.Stats()
	return metrics.Link{
		ID: conn, Peer: peer, RTT: s.RTT,
		BytesIn: s.BytesIn, BytesOut: s.BytesOut, PacketsIn: s.PacketsIn, PacketsOut: s.PacketsOut, Queued: s.Queued,
	}
}

// clientGone counts what a link to the cluster listener did to its end.
func (i *instance) clientGone(l transport.OpenLink) {
	i.metrics.LinkEnded(linkMetric(l.Conn, metrics.Clients))
}

// peerLinks are the links to peers, each under the name that its peer had when it
// became one. The registry does not tell of a link any more that it has released,
// on which calls are still under way: these are here until they end. Nor does it know
// of links that were dialled for one call.
type peerLinks struct {
	mu   sync.Mutex
	open map[*link.Conn]peerLink
}

// peerLink says where a link leads.
type peerLink struct {
	name string
	// Of a link for one call: who answered, at which URL.
	instance, url string
}

func (p *peerLinks) add(conn *link.Conn, l peerLink) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[*link.Conn]peerLink{}
	}
	p.open[conn] = l
}

func (p *peerLinks) remove(conn *link.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

func (p *peerLinks) all() map[*link.Conn]peerLink {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.open)
}

// follow counts the link to a new peer until it ends, whoever holds it.
func (i *instance) follow(e registry.Event) {
	if e.Peer.Name != "" && i.nameless.take(e.Peer.Instance.String()) {
		i.metrics.Dialled(e.Peer.Name, nil)
	}
	if e.Kind != registry.EventAdded || e.Peer.Link == nil {
		return
	}
	i.followLink(connOf(e.Peer.Link), peerLink{name: e.Peer.Name})
}

// followAlone counts a link that was dialled for one call. Where something on the way
// balances by connection, it may lead to an instance that is no peer, which has no name.
func (i *instance) followAlone(conn *link.Conn, url, instance string) {
	l := peerLink{instance: instance, url: url}
	for _, p := range i.fabric.registry.Peers() {
		if p.Instance.String() == instance {
			l.name = p.Name
		}
	}
	i.followLink(conn, l)
}

func (i *instance) followLink(conn *link.Conn, l peerLink) {
	i.linked.add(conn, l)
	i.running.Go(func() { // fabric.leave ends all links, before anything waits for this
		<-conn.Done()
		i.linked.remove(conn)
		i.metrics.LinkEnded(linkMetric(conn, l.name))
	})
}

// dialled counts an attempt to link to an instance, by the name that it is known
// by: of who answered, or of who was at the URL last. Who answers for the first time
// says its name only on the link, and is counted then. Itself it does not count under its
// name, as it is no peer of its own.
func (i *instance) dialled(url, instance string, err error) {
	self := false
	for _, p := range i.fabric.registry.Peers() {
		if p.State == registry.StateSelf {
			self = self || p.Instance.String() == instance
			continue
		}
		if err == nil && p.Instance.String() == instance || err != nil && slices.Contains(p.URLs, url) {
			i.metrics.Dialled(p.Name, err)
			return
		}
	}
	if err != nil || self || instance == i.id.String() || !i.nameless.keep(instance) {
		i.metrics.Dialled("", err)
	}
}

// nameless are the instances that a dial has reached and of which no name is known yet. Its
// methods may be called concurrently.
type nameless struct {
	mu  sync.Mutex
	ids map[string]bool
}

// maxNameless bounds those that never say their names.
const maxNameless = 256

// keep notes one; ok is false if it is there already, or too many are.
func (n *nameless) keep(instance string) (ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ids[instance] || len(n.ids) == maxNameless {
		return false
	}
	if n.ids == nil {
		n.ids = map[string]bool{}
	}
	n.ids[instance] = true
	return true
}

// take reports whether it is one, and notes that it is no more.
func (n *nameless) take(instance string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.ids[instance]
	delete(n.ids, instance)
	return was
}

func (i *instance) peerMetrics() []metrics.Peer {
	var list []metrics.Peer
	for _, p := range i.fabric.registry.Peers() {
		if p.Name == "" || p.State == registry.StateSelf {
			continue
		}
		list = append(list, metrics.Peer{
			Name: p.Name, Alive: p.State == registry.StateAlive, Units: p.Total, Available: p.Available, Debit: p.Available - p.Effective,
		})
	}
	return list
}

func (i *instance) elementMetrics() []metrics.Element {
	var list []metrics.Element
	for _, d := range i.host.Deployments() {
		for _, e := range d.GetElements() {
			list = append(list, metrics.Element{
				Deployment: d.GetName(), Name: e.GetName(), State: e.GetState(), Pid: int(e.GetPid()), Restarts: e.GetRestarts(),
			})
		}
	}
	return list
}

// declare lets calls to what a peer hosts be counted by their names, and its link
// be counted.
func (i *instance) declare(e registry.Event) {
	i.follow(e)
	if e.Kind == registry.EventRemoved || e.Peer.Info == nil {
		return
	}
	for _, d := range e.Peer.Info.GetDeployments() {
		services := map[string][]string{}
		for _, el := range d.GetElements() {
			for _, s := range el.GetServices() {
				for _, m := range s.GetMethods() {
					services[s.GetName()] = append(services[s.GetName()], m.GetName())
				}
			}
		}
		i.metrics.Calls().Declare(d.GetName(), services)
	}
}

// counted counts the calls that are made through an Invoker of the locator.
func (i *instance) counted(inv conduit.Invoker) conduit.Invoker {
	t, ok := inv.(conduit.Target)
	if !ok {
		return inv // the address is none: no call leaves
	}
	a := t.Address()
	return i.metrics.Calls().Invoker(inv, a.DeploymentText(), a.Service().String())
}

// countPassed counts a call of an operator or an element that goes to a peer. What
// stays here is counted where it is served.
func (i *instance) countPassed(in *frame.Invoke) (ended func(code conduit.Code, outcome conduit.Outcome)) {
	m := i.metrics.Calls().Find(metrics.Client, string(in.Deployment), string(in.Service), string(in.Method))
	begun := m.Begin()
	return func(code conduit.Code, outcome conduit.Outcome) { m.End(begun, code, outcome) }
}
