package main

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// statusPause is the least time between two words to the links that something has
// changed: an instance whose units move with each call would speak of nothing else.
const statusPause = 20 * time.Millisecond

// standing is what an instance tells its callers beside its units. It is immutable.
type standing struct {
	version uint64
	state   conduitv1.InstanceState
	digest  []byte
}

// reporter tells one link of this instance's room. It implements link.Reporter, and
// host.Judge by its Ledger.
type reporter struct {
	*budget.Ledger
	i *instance
}

// reporter makes the Reporter of a new link.
func (i *instance) reporter(link.Peer) link.Reporter {
	return reporter{Ledger: i.budget.Ledger(), i: i}
}

// Version implements link.Reporter. Both addends only grow, so that the sum is
// another whenever one of them is.
func (r reporter) Version() uint64 { return r.i.budget.Version() + r.i.standing.Load().version }

// Status implements link.Reporter.
func (r reporter) Status() link.Status {
	s, units := r.i.standing.Load(), r.Ledger.Status()
	state := s.state
	if units.Cordoned && state == conduitv1.InstanceState_INSTANCE_STATE_ACTIVE {
		state = conduitv1.InstanceState_INSTANCE_STATE_CORDONED
	}
	return link.Status{
		Available: units.Available, Total: units.Total, Judged: units.Judged,
		InFlight: r.i.host.inFlight(), State: state, Digest: s.digest,
	}
}

// changed says that what the instance hosts, or its state, may be another. It does
// not wait.
func (i *instance) changed() {
	select {
	case i.restated <- struct{}{}:
	default: // somebody said so, and nobody has looked since
	}
}

// restate looks at what the instance hosts and at its state.
func (i *instance) restate() {
	old := i.standing.Load()
	i.standing.Store(&standing{version: old.version + 1, state: i.State(), digest: i.builtins.Digest()})
}

// tellPeers tells the links of what changes, until ctx ends.
func (i *instance) tellPeers(ctx context.Context) {
	units, stop := i.budget.Subscribe()
	defer stop()
	for {
		select {
		case <-units:
		case <-i.restated:
			i.restate()
		case <-ctx.Done():
			return
		}
		if i.cluster != nil {
			i.cluster.StatusChanged()
		}
		select {
		case <-time.After(statusPause):
		case <-ctx.Done():
			return
		}
	}
}

// State implements builtin.Lifecycle.
func (i *instance) State() conduitv1.InstanceState {
	switch {
	case i.draining.Load():
		return conduitv1.InstanceState_INSTANCE_STATE_DRAINING
	case i.budget.Snapshot().Cordoned:
		return conduitv1.InstanceState_INSTANCE_STATE_CORDONED
	default:
		return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
	}
}

// Units implements builtin.Capacity.
func (i *instance) Units() (available, total uint64) {
	s := i.budget.Snapshot()
	return unsigned(s.Available), unsigned(s.Total)
}

func unsigned(n int64) uint64 { return uint64(max(0, n)) }

func errDraining() *conduit.Error {
	e := conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "this instance is draining; call another")
	e.Retryable = true
	return e
}
