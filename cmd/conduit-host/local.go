package main

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/locator"
)

// innerDepth is how many packets may wait between the two ends of an inner link.
const innerDepth = 16

// local is what this instance hosts, as its locator sees it. It implements
// locator.Local.
type local struct{ i *instance }

// At implements locator.Local.
func (l local) At(a address.Address) conduit.Invoker {
	return innerRoute{conn: l.i.inner.conn, route: link.NewRoute(a)}
}

// Look implements locator.Local.
func (l local) Look(a address.Address, method string, units uint32) locator.Standing {
	return l.i.host.look(a, method, units)
}

// Nodes implements locator.Local.
func (l local) Nodes(a address.Address) []string { return l.i.host.nodes(a) }

// FindService implements locator.Local.
func (l local) FindService(deployment string, service address.ServiceKey) (address.Address, bool) {
	return l.i.host.findService(deployment, service)
}

// inner is a link of this process to itself. What in it calls its own elements,
// such as the gateway, calls as any other caller does: with the same credit, the
// same cancel and the same checks.
type inner struct {
	conn, served *link.Conn
}

func (i *instance) openInner() {
	near, far := link.Pipe(innerDepth)
	o := i.linkOptions("inner")
	o.ProbeInterval = -1 // the other end is this process
	served := o
	serve := i.served(builtin.Cluster)
	served.Handler = i.gate(i.access.door(serve))
	served.Peer = link.Peer{Name: i.id.String(), System: true, Level: conduit.System}
	o.Dialer = true
	i.inner = &inner{served: link.New(far, served), conn: link.New(near, o)}
}

func (n *inner) close() {
	n.conn.Close(link.CloseDone, "")
	<-n.conn.Done()
	<-n.served.Done()
}

// innerRoute calls one address on an inner link.
type innerRoute struct {
	conn  *link.Conn
	route *link.Route
}

// Invoke implements conduit.Invoker.
func (r innerRoute) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return r.conn.Invoke(ctx, r.route, in)
}

// Address implements conduit.Target.
func (r innerRoute) Address() address.Address { return r.route.Address() }
