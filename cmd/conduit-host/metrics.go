package main

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/metrics"
	"github.com/elemental-conduit/conduit/registry"
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
		Budget: func() metrics.Budget {
			s := i.budget.Snapshot()
			return metrics.Budget{Units: s.Total, Available: s.Available, Claims: s.Claims}
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
			s := l.Conn.Stats()
			list = append(list, metrics.Link{
				ID: l.Conn, Peer: "client", RTT: s.RTT,
				BytesIn: s.BytesIn, BytesOut: s.BytesOut, PacketsIn: s.PacketsIn, PacketsOut: s.PacketsOut, Queued: s.Queued,
			})
		}
	}
	for _, p := range i.fabric.registry.Peers() {
		if p.Link == nil || p.Name == "" {
			continue // its name is not known yet
		}
		conn := connOf(p.Link)
		s := conn.Stats()
		list = append(list, metrics.Link{
			ID: conn, Peer: p.Name, RTT: s.RTT,
			BytesIn: s.BytesIn, BytesOut: s.BytesOut, PacketsIn: s.PacketsIn, PacketsOut: s.PacketsOut, Queued: s.Queued,
		})
	}
	return list
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

// declare lets calls to what a peer hosts be counted by their names.
func (i *instance) declare(e registry.Event) {
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
