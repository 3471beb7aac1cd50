package builtin

import (
	"context"
	"maps"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// maxReason is how much of a drain's reason is kept, in bytes: it goes to the log.
const maxReason = 200

func adminMethods() map[string]method {
	methods := map[string]method{
		"Links":   unary(func() *conduitv1.LinksRequest { return &conduitv1.LinksRequest{} }, links),
		"Peers":   unary(func() *conduitv1.PeersRequest { return &conduitv1.PeersRequest{} }, peers),
		"Explain": unary(func() *conduitv1.ExplainRequest { return &conduitv1.ExplainRequest{} }, explain),
		"Drain":   unary(func() *conduitv1.DrainRequest { return &conduitv1.DrainRequest{} }, drain),
		"Logs":    stream(func() *conduitv1.LogsRequest { return &conduitv1.LogsRequest{} }, logs),
	}
	maps.Copy(methods, operatorMethods())
	for name, m := range methods {
		m.admin = true
		methods[name] = m
	}
	return methods
}

func links(_ context.Context, s *Services, _ asker, _ *conduitv1.LinksRequest) (*conduitv1.LinksResponse, error) {
	if s.o.Links == nil {
		return nil, lacking("list of its links")
	}
	return &conduitv1.LinksResponse{Links: s.o.Links.Links()}, nil
}

func peers(ctx context.Context, s *Services, who asker, _ *conduitv1.PeersRequest) (*conduitv1.PeersResponse, error) {
	if s.o.Peers == nil {
		return nil, lacking("registry of peers")
	}
	list, err := s.o.Peers.Peers(ctx)
	if err != nil {
		return nil, err
	}
	return &conduitv1.PeersResponse{Self: s.whoAmI(who, nil, false), Peers: list, DiscoveryProblems: s.o.Peers.DiscoveryProblems()}, nil
}

func explain(ctx context.Context, s *Services, _ asker, in *conduitv1.ExplainRequest) (*conduitv1.ExplainResponse, error) {
	if s.o.Explainer == nil {
		return nil, lacking("registry of peers, so it picks none")
	}
	if _, err := address.Parse(in.GetAddress()); err != nil {
		return nil, conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.Refused, "%v", err)
	}
	return s.o.Explainer.Explain(ctx, in)
}

func drain(_ context.Context, s *Services, who asker, in *conduitv1.DrainRequest) (*conduitv1.DrainResponse, error) {
	reason := in.GetReason()
	if len(reason) > maxReason {
		n := maxReason
		for n > 0 && !utf8.RuneStart(reason[n]) {
			n--
		}
		reason = reason[:n]
	}
	s.o.Lifecycle.Drain(who.user, reason)
	return &conduitv1.DrainResponse{}, nil
}

func logs(ctx context.Context, s *Services, background bool, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error {
	switch {
	case s.o.Logs == nil:
		return lacking("logs of deployments")
	case in.GetFollow() && !background:
		// It would keep a drain waiting for as long as that may last.
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonWrongShape, conduit.Refused,
			"to follow a log is a watch: make it a background call (conduit.AsBackground), as the command logs -f does, or ask without follow")
	}
	return s.o.Logs.Logs(ctx, in, send)
}
