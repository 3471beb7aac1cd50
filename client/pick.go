package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/transport"
)

// place is an address as the Client's peers can be called at it. It stands
// where the locator will: the locator knows from metadata what place has to try.
type place struct {
	c       *Client
	a       address.Address
	targets []conduit.Target // one for each peer, in their order
}

// Address implements conduit.Target.
func (p *place) Address() address.Address { return p.a }

// Invoke implements conduit.Invoker. It waits while a peer is dialled, and not
// otherwise.
func (p *place) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	order, err := p.order(ctx)
	if err != nil {
		e := *err
		e.Address, e.Method = p.a.String(), in.Method
		return conduit.FailedExchange(&e)
	}
	if !in.Last || in.Streaming || in.Background {
		// It cannot be sent again once something of it may have left. That a peer
		// cannot be reached is found out before anything has.
		return p.targets[p.reachable(ctx, order)].Invoke(ctx, in)
	}
	x := &exchange{p: p, ctx: ctx, in: *in, order: order}
	if _, ok := ctx.Deadline(); !ok && p.c.o.CallTimeout > 0 {
		x.until = time.Now().Add(p.c.o.CallTimeout)
	}
	x.current = p.targets[order[0]].Invoke(ctx, in)
	return x
}

// order returns the peers to try, as indices, the best first.
func (p *place) order(ctx context.Context) ([]int, *conduit.Error) {
	if id, anyInstance := p.a.Instance(); !anyInstance {
		return p.only(ctx, id.String())
	}
	order := make([]int, 0, len(p.targets))
	for i, peer := range p.c.peers {
		if peer.Connected() {
			order = append(order, i)
		}
	}
	for i := range p.c.peers {
		if !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	return order, nil
}

// reachable returns the first peer of an order that there is a link to, or can
// be made; the first one, if there is none, so that its error is seen.
func (p *place) reachable(ctx context.Context, order []int) int {
	for _, i := range order {
		if len(order) == 1 || p.c.peers[i].Connect(ctx) == nil {
			return i
		}
	}
	return order[0]
}

// only returns the peers that are an instance. One that has not been connected
// to is asked first: its Hello says which it is.
func (p *place) only(ctx context.Context, instance string) ([]int, *conduit.Error) {
	find := func() (order []int, unknown []*transport.Peer) {
		for i, peer := range p.c.peers {
			switch peer.Hello().Instance {
			case instance:
				order = append(order, i)
			case "":
				unknown = append(unknown, peer)
			}
		}
		return order, unknown
	}
	order, unknown := find()
	if len(order) > 0 {
		return order, nil
	}
	said := make(chan string, len(unknown))
	for _, peer := range unknown {
		go func() {
			why := ""
			if err := peer.Connect(ctx); err != nil {
				why = conduit.AsError(err, conduit.NotSent).Message
			}
			said <- why
		}()
	}
	var unheard []string
	for range unknown {
		if why := <-said; why != "" {
			unheard = append(unheard, why)
		}
	}
	if order, _ = find(); len(order) > 0 {
		return order, nil
	}
	if ctx.Err() != nil {
		return nil, conduit.FromContext(ctx, conduit.NotSent)
	}
	e := conduit.Errorf(conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.NotSent, "none of the %d peers is instance %s", len(p.c.peers), instance)
	e.Op = "client.pick"
	if len(unheard) > 0 {
		// It may be one of those that did not answer.
		e.Code, e.Retryable = conduit.Unavailable, true
		e.Message += fmt.Sprintf("; %d could not be asked: %s", len(unheard), strings.Join(unheard, "; "))
	}
	return nil, e
}
