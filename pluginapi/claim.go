package pluginapi

import (
	"context"
	"io"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Claim holds units of the instance's capacity for work that outlives a call, until
// Release, the end of the process, or the end of its host. All methods may be called
// concurrently.
type Claim struct {
	units uint32
	x     conduit.Exchange
	done  chan struct{}
}

// Units returns how many units the claim was granted; it never changes.
func (c *Claim) Units() uint32 { return c.units }

// Release gives the units back. It does not wait, and only the first call does
// something.
func (c *Claim) Release() { c.x.Cancel(context.Canceled) }

// Done is closed when the claim holds nothing any more: soon after Release, or when
// the host has taken it away, as at the end of a drain. Work that goes on then runs
// on units that are somebody else's.
func (c *Claim) Done() <-chan struct{} { return c.done }

// Claim claims units of the instance, at least one, all or none. With a handler's
// context it first takes over what that call has reserved by the method's [Units] or
// its caller, also on a cordoned instance; only the rest must be available. The claim
// has left the call then: it outlives the handler, and is in nobody's limit of calls.
//
// ctx bounds the wait for the grant and nothing else. The error is an [*Error]:
// resource_exhausted with reason no_capacity and Details "available" and "total",
// unavailable with reason cordoned or draining, or why the host could not be asked.
func (h Host) Claim(ctx context.Context, units uint32) (*Claim, error) {
	if h.h == nil {
		return nil, noHost()
	}
	if ctx.Err() != nil {
		return nil, conduit.FromContext(ctx, conduit.NotSent)
	}
	c := callFrom(ctx)
	conn, refusal := h.h.link(c)
	if refusal != nil {
		return nil, refusal
	}
	ct, request, err := conduit.Encode(&conduitv1.ClaimRequest{Units: uint64(units)})
	if err != nil {
		return nil, err
	}
	in := &conduit.Invocation{
		Method: pluginlink.ClaimMethod, ContentType: ct, Accept: ct, Request: request, HasRequest: true, Last: true, Background: true,
	}
	if c != nil {
		in.Parent = c.s.ID()
	}
	// Neither the deadline nor the end of the handler is the claim's.
	x := conn.Invoke(context.WithoutCancel(ctx), claimRoute, in)
	m, err := x.Recv(ctx)
	if err == io.EOF {
		err = conduit.Errorf(Internal, conduit.ReasonProtocol, conduit.Executed, "the host ended the claim without an answer")
	}
	var granted *conduitv1.ClaimGranted
	if err == nil {
		granted, err = conduit.Decode[*conduitv1.ClaimGranted](m)
	}
	if err != nil {
		x.Cancel(err)
		return nil, err
	}
	claim := &Claim{
		units: uint32(min(granted.GetUnits(), uint64(units))), //nolint:gosec // no more than asked for
		x:     x, done: make(chan struct{}),
	}
	go claim.watch() //nolint:contextcheck,gosec // it has left ctx
	return claim, nil
}

// watch waits for the end of the claim, which nothing but it comes before.
func (c *Claim) watch() {
	defer close(c.done)
	for {
		if _, err := c.x.Recv(context.Background()); err != nil {
			return
		}
	}
}

var claimRoute = link.NewRoute(address.MustParse(pluginlink.HostAddress)) //nolint:gochecknoglobals // a constant

// noHost is what the zero Host answers.
func noHost() *Error {
	return conduit.Errorf(FailedPrecondition, conduit.ReasonPeerUnreachable, conduit.NotSent,
		"there is no host; take it from Start, or by HostFrom with a handler's context")
}
