package locator

import (
	"cmp"
	"context"
	"slices"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// All returns all nodes that declare the element of an address, for
// [conduit.Gather]: whatever their state, full and draining ones too, this instance
// included. A wildcard for the deployment makes a node of each deployment that has
// the element. What is wrong with the address surfaces when it is called.
func (l *Locator) All(addr string) conduit.Group {
	a, err := address.Parse(addr)
	return &group{l: l, a: a, err: err}
}

// group is the nodes of an address.
type group struct {
	l   *Locator
	a   address.Address
	err error
}

// Members implements conduit.Group.
func (g *group) Members(ctx context.Context) ([]conduit.Member, error) {
	if g.err != nil {
		return nil, badAddress(g.err)
	}
	o := &g.l.o
	var all []conduit.Member
	only, anyInstance := g.a.Instance()
	if o.Local != nil && (anyInstance || only == o.Self) {
		for _, d := range o.Local.Nodes(g.a) {
			all = append(all, g.here(d))
		}
	}
	if o.Registry != nil {
		o.Registry.WaitSettled(ctx)
		for _, n := range o.Registry.Nodes(g.a) {
			all = append(all, conduit.Member{
				Node:    conduit.Node{Instance: n.Instance.String(), Deployment: n.Deployment},
				Invoker: direct{o.Registry, n.Place},
			})
		}
	}
	if len(all) == 0 {
		return nil, g.nobody()
	}
	slices.SortStableFunc(all, func(a, b conduit.Member) int {
		return cmp.Or(cmp.Compare(a.Node.Instance, b.Node.Instance), cmp.Compare(a.Node.Deployment, b.Node.Deployment))
	})
	return all, nil
}

// here is a node of this instance.
func (g *group) here(deployment string) conduit.Member {
	a := g.a
	if !g.l.o.Self.IsZero() {
		a = a.WithInstance(g.l.o.Self)
	}
	_, hasOrdinal := a.Ordinal()
	if _, anyDeployment := a.Deployment(); anyDeployment && !hasOrdinal {
		if one, err := address.FromParts(a.InstanceText(), deployment, a.Element(), 0, false, a.Service().String()); err == nil {
			a = one
		}
	}
	return conduit.Member{
		Node:    conduit.Node{Instance: g.l.o.Self.String(), Deployment: deployment},
		Invoker: g.l.o.Local.At(a),
	}
}

// nobody says why a group is empty.
func (g *group) nobody() *conduit.Error {
	t := g.l.Target(g.a)
	if t.place == nil {
		return t.nowhere()
	}
	c, err := g.l.o.Registry.TryPick(t.place, registry.Query{})
	if err == nil { // in this very moment it came
		c.Abandon()
		return t.nowhere()
	}
	return err
}

// direct calls one node, room or not.
type direct struct {
	r     *registry.Registry
	place *registry.Place
}

// Address implements conduit.Target.
func (d direct) Address() address.Address { return d.place.Address() }

// Invoke implements conduit.Invoker.
func (d direct) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	c, err := d.r.Direct(d.place, registry.Query{Method: in.Method, Units: in.Units})
	if err != nil {
		return conduit.FailedExchange(err)
	}
	return c.Invoke(ctx, in)
}
