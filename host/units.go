package host

import (
	"maps"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Judge admits an Invoke by its units as one link accounts for them: budget.Ledger
// does. invoke is what stands in the Invoke, want what the call costs.
type Judge interface {
	Judge(invoke, want int64) (*budget.Reservation, *conduit.Error)
}

var _ Judge = (*budget.Ledger)(nil)

// judge reserves want units for a call, or says why not. A call that costs nothing
// takes no lock and leaves nothing to release.
func (h *Host) judge(c Pending, inv *frame.Invoke, want int64) (*budget.Reservation, *conduit.Error) {
	if want == 0 {
		return nil, nil
	}
	// On a link that reports of this instance's room the units of its Invokes are
	// judged by the reporter, so that what is told and what was judged agree.
	switch c := c.(type) {
	case *link.Incoming:
		if j, ok := c.Reporter().(Judge); ok {
			c.MarkJudged() // else the link counts the Invoke as refused
			return j.Judge(int64(inv.Units), want)
		}
	case link.Parked: // while its session was asked for, or its element was away
		if j, ok := c.Reporter().(Judge); ok {
			return j.Judge(c.MarkJudged(), want)
		}
	}
	return h.o.Budget.Reserve(want)
}

// named fills in what was called.
func named(err *conduit.Error, inv *frame.Invoke) *conduit.Error {
	e := *err
	e.Details = maps.Clone(err.Details)
	e.Address, e.Method = addressOf(inv), string(inv.Method)
	return &e
}

// Cordon says whether the host gives no new units: calls that cost some and claims
// beyond what their call has reserved are refused with cordoned. All else goes on.
func (h *Host) Cordon(on bool) { h.o.Budget.Cordon(on) }

// Cordoned reports whether the host gives no new units.
func (h *Host) Cordoned() bool { return h.o.Budget.Snapshot().Cordoned }

// ask answers what an element asks of its host.
func (c elementCalls) ask(in *link.Incoming) {
	// Found here, on the link's reader: its call cannot have ended yet.
	parent, inCall := c.parent(in)
	pluginlink.ServeHost(in, pluginlink.HostAnswers{
		Claim: func(n int64) (pluginlink.Grant, *conduit.Error) { return c.claim(n, parent, inCall) },
		Attributes: func() *conduitv1.AttributesResponse {
			return &conduitv1.AttributesResponse{Attributes: c.g.attributes.Values(), Sensitive: c.g.attributes.Sensitive()}
		},
		Events: &c.h.events.feed,
	})
}

// claim grants a claim that is made in a call, if it is in one.
func (c elementCalls) claim(n int64, parent caller, inCall bool) (pluginlink.Grant, *conduit.Error) {
	if !c.g.enterClaim(inCall) {
		return pluginlink.Grant{}, &conduit.Error{
			Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Outcome: conduit.Refused, Op: "host.claim",
			Message: "the element is being stopped; only its calls under way may claim",
		}
	}
	b := c.h.o.Budget
	claim := b.Claim
	if parent.units != nil {
		claim = parent.units.Claim
	}
	if c.g.el.cordoned.Load() {
		claim = c.g.el.claimReserved(parent.units)
	}
	held, err := claim(n)
	if err != nil {
		c.g.leaveClaim()
		return pluginlink.Grant{}, err
	}
	return pluginlink.Grant{
		Available: b.Snapshot().Available,
		Release: func() {
			held.Release()
			c.g.leaveClaim()
		},
	}, nil
}
