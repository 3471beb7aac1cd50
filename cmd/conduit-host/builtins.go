package main

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/router"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// newBuiltins makes what the instance answers of itself.
func (i *instance) newBuiltins() (*builtin.Services, error) {
	return builtin.New(builtin.Options{
		Instance: i.id, Name: i.c.String("name"), Mode: i.c.String("mode"), Version: buildVersion(), Epoch: i.epoch, Started: i.begun,
		RemoteAdmin: i.c.Bool("host.remote_admin"),
		// Asked for the calls of elements alone; for others it is known by then.
		Authorize: func(peer link.Peer, in *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			p, err, known := i.access.decide(peer, in, i.access.cached)
			if !known { // an element has no session
				return "", 0, errInstanceSession()
			}
			return p.User, p.Level, err
		},
		// By way of the instance: the host starts after the services.
		Inventory: i, Lifecycle: i, Links: i, Capacity: i, Peers: i, Explainer: i, Logs: i, Operator: i,
	})
}

// Deployments implements builtin.Inventory.
func (i *instance) Deployments() []*conduitv1.DeploymentInfo { return i.host.Deployments() }

// Logs implements builtin.Logs.
func (i *instance) Logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error {
	return i.host.logs(ctx, in, send)
}

// Drain implements builtin.Lifecycle: serve, which waits for a signal, hears of it.
func (i *instance) Drain(user, reason string) {
	i.log.Info("asked to drain", "user", user, "reason", reason)
	select {
	case i.drainAsked <- struct{}{}:
	default: // somebody asked before
	}
}

// serveDoor opens the management socket to operators. It is the last that closes,
// so that they see how the instance ends.
func (i *instance) serveDoor() {
	log := slogTo(i.log.Named("management"))
	i.door.serve(transport.ServerOptions{
		Handler:    i.access.door(i.operators),
		SocketPeer: operator(i.c.String("name")),
		Link:       i.linkOptions("management"),
		Log:        log,
	}, func(err error) { i.fail("management socket", err) })
}

// operators answers what operators ask of the instance, and passes on what they
// call, to wherever it is.
func (i *instance) operators(c pending, inv *frame.Invoke, who host.Principal) {
	if !i.take(builtin.Management, c, inv, who.User, who.Level) {
		i.pass(host.Origin{Principal: who}, c)
	}
}

// served answers what others ask of the instance, and passes on what they call to
// its own elements.
func (i *instance) served(at builtin.Door) func(c pending, inv *frame.Invoke, who host.Principal) {
	return func(c pending, inv *frame.Invoke, who host.Principal) {
		if i.take(at, c, inv, who.User, who.Level) {
			return
		}
		from := host.Origin{Principal: who}
		if p := c.Peer(); p.System {
			from.Peer = p.Name
		}
		for _, element := range inv.Chain {
			from.Chain = append(from.Chain, string(element))
		}
		if err := i.host.take(from, c, inv); err != nil {
			i.access.audit.refusedCall(c.Peer(), inv, who.User, err)
			c.Refuse(err)
		}
	}
}

// fromPlugin passes on what elements call, to wherever it is.
func (i *instance) fromPlugin(from host.Origin, in *link.Incoming) { i.pass(from, in) }

// pass passes a call on by way of the locator.
func (i *instance) pass(from host.Origin, c pending) {
	peer := c.Peer()
	d := router.Door{
		Here: func(c router.Call, inv *frame.Invoke) *conduit.Error {
			if i.closing.Load() {
				return errDraining()
			}
			err := i.host.take(from, c, inv)
			if err != nil && from.Element == "" { // an element that asks too much is a fault in it
				i.access.audit.refusedCall(peer, inv, from.Principal.User, err)
			}
			return err
		},
		ToPeer: from.ToPeer,
		Passed: i.countPassed,
	}
	switch c := c.(type) {
	case *link.Incoming:
		i.fabric.router.Pass(c, d)
	case link.Parked:
		i.fabric.router.PassParked(c, d)
	}
}

// gate keeps calls from elements here that take no new ones, while what they came
// in by goes on.
func (i *instance) gate(next link.Handler) link.Handler {
	return handlerFunc(func(in *link.Incoming) {
		if i.closing.Load() {
			in.Refuse(errDraining())
			return
		}
		next.Handle(in)
	})
}

type handlerFunc func(in *link.Incoming)

// Handle implements link.Handler.
func (f handlerFunc) Handle(in *link.Incoming) { f(in) }
