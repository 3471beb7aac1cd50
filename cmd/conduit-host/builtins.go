package main

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// newBuiltins makes what the instance answers of itself.
func (i *instance) newBuiltins() (*builtin.Services, error) {
	rule := authorize(auth.Disabled{})
	return builtin.New(builtin.Options{
		Instance: i.id, Name: i.c.String("name"), Mode: i.c.String("mode"), Version: buildVersion(), Epoch: i.epoch, Started: i.begun,
		RemoteAdmin: i.c.Bool("host.remote_admin"),
		Authorize: func(peer link.Peer, in *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			p, err := rule(peer, in)
			return p.User, p.Level, err
		},
		// By way of the instance: the host starts after the services.
		Inventory: i, Lifecycle: i, Links: i,
	})
}

// Deployments implements builtin.Inventory.
func (i *instance) Deployments() []*conduitv1.DeploymentInfo { return i.host.Deployments() }

// State implements builtin.Lifecycle.
func (i *instance) State() conduitv1.InstanceState {
	if i.draining.Load() {
		return conduitv1.InstanceState_INSTANCE_STATE_DRAINING
	}
	return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
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
		Handler:    i.builtins.Door(builtin.Management, gate{i}),
		SocketPeer: operator(i.c.String("name")),
		Link:       i.linkOptions("management"),
		Log:        log,
	}, func(err error) { i.fail("management socket", err) })
}

// gate passes on what operators call of the elements, until those take no new
// calls: the socket itself goes on.
type gate struct{ i *instance }

// Handle implements link.Handler.
func (g gate) Handle(in *link.Incoming) {
	if g.i.closing.Load() {
		e := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "this instance is draining; call another")
		e.Retryable = true
		in.Refuse(e)
		return
	}
	g.i.host.Handle(in)
}
