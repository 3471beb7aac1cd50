package pluginlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What a host serves to its own elements: services.proto has the messages.
const (
	HostAddress      = "*://conduit/conduit/conduit.Host"
	HostService      = "conduit.Host"
	ClaimMethod      = "Claim"
	AttributesMethod = "Attributes"
	EventsMethod     = "Events"
)

// HostAnswers is what a host answers one of its elements with. The funcs are called
// on goroutines of their own.
type HostAnswers struct {
	// Claim is called with at least one unit, and returns a grant or a refusal; the
	// grant is released when the element's call ends, whichever end or fault ends it.
	Claim func(units int64) (Grant, *conduit.Error)
	// Attributes returns those that the element was configured with.
	Attributes func() *conduitv1.AttributesResponse
	// Events tells what the element subscribes to.
	Events *Feed
}

// Grant is a claim that was granted.
type Grant struct {
	// Available is what nobody holds, in units.
	Available int64
	// Release gives the units back. It is called once.
	Release func()
}

// ServeHost answers what an element asks of its host's own service. It does not
// block.
func ServeHost(in *link.Incoming, a HostAnswers) {
	if err := checkHostCall(in.Invoke); err != nil {
		in.Refuse(err)
		return
	}
	switch string(in.Invoke.Method) {
	case ClaimMethod:
		serveClaim(in, a.Claim)
	case AttributesMethod:
		in.Serve(func(_ context.Context, s *link.ServerCall) error {
			m, err := hostMessage(s, a.Attributes())
			if err == nil {
				s.Return(m)
			}
			return err
		})
	default:
		in.Serve(func(ctx context.Context, s *link.ServerCall) error { return serveEvents(ctx, s, a.Events) })
	}
}

func serveClaim(in *link.Incoming, claim func(units int64) (Grant, *conduit.Error)) {
	// An element that leaves its request open may end the claim by closing it.
	closes := !in.Invoke.HasData || !in.Invoke.Data.Last
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		units, err := requested(ctx, s)
		if err != nil {
			return err
		}
		grant, refusal := claim(units)
		if refusal != nil {
			return refusal
		}
		defer grant.Release()
		m, err := hostMessage(s, &conduitv1.ClaimGranted{Units: uint64(units), Available: uint64(max(0, grant.Available))})
		if err != nil {
			return err
		}
		if err := s.Send(ctx, m); err != nil {
			return err
		}
		for closes {
			if _, err := s.Recv(ctx); err != nil {
				break
			}
		}
		if !closes {
			<-ctx.Done()
		}
		return ctx.Err() // nil if it was closed
	})
}

// serveEvents tells an element of what it names until either end has enough.
func serveEvents(ctx context.Context, s *link.ServerCall, feed *Feed) error {
	in := &conduitv1.HostEventsRequest{}
	switch m, err := s.Recv(ctx); {
	case errors.Is(err, io.EOF): // nothing is named
	case err != nil:
		return err
	default:
		if in, err = conduit.Decode[*conduitv1.HostEventsRequest](m); err != nil {
			return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused, "the HostEventsRequest does not decode: %v", err)
		}
	}
	return feed.Serve(ctx, in.GetNames(), func(e *conduitv1.HostEvent) error {
		m, err := hostMessage(s, e)
		if err != nil {
			return err
		}
		return s.Send(ctx, m)
	})
}

// hostMessage makes a message of an answer, in the form that the element accepts.
func hostMessage(s *link.ServerCall, answer proto.Message) (conduit.Message, error) {
	ct, data, err := conduit.EncodeFor(string(s.Invoke().Accept), answer)
	return conduit.Message{ContentType: ct, Data: data}, err
}

func checkHostCall(inv *frame.Invoke) *conduit.Error {
	var reason, message string
	switch {
	case string(inv.Element) != "conduit" || inv.HasOrdinal && inv.Ordinal != 0:
		reason, message = conduit.ReasonElementNotFound, "the deployment conduit has one element, conduit"
	case string(inv.Service) != HostService:
		reason, message = conduit.ReasonServiceNotFound, fmt.Sprintf("a host serves %s to its elements, not %q", HostService, inv.Service)
	case !slices.Contains([]string{ClaimMethod, AttributesMethod, EventsMethod}, string(inv.Method)):
		reason, message = conduit.ReasonMethodNotFound, fmt.Sprintf("the service %s has the methods %s, %s and %s, not %q", HostService, ClaimMethod, AttributesMethod, EventsMethod, inv.Method)
	default:
		return nil
	}
	return &conduit.Error{Code: conduit.NotFound, Reason: reason, Outcome: conduit.Refused, Op: "host", Message: message, Method: string(inv.Method)}
}

// requested receives how many units are asked for.
func requested(ctx context.Context, s *link.ServerCall) (int64, error) {
	refuse := func(format string, args ...any) error {
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused, format, args...)
	}
	m, err := s.Recv(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, refuse("a claim needs a ClaimRequest: %v", err)
	}
	r, err := conduit.Decode[*conduitv1.ClaimRequest](m)
	if err != nil {
		return 0, refuse("the ClaimRequest does not decode: %v", err)
	}
	units := r.GetUnits()
	if units == 0 || units > math.MaxInt64 {
		return 0, refuse("%d units cannot be claimed; a claim holds at least 1", units)
	}
	return int64(units), nil
}
