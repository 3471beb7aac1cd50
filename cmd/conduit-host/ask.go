package main

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// askTimeout bounds a question to an instance about itself.
const askTimeout = 10 * time.Second

// The built-in services.
const (
	instanceService = "conduit.v1.Instance"
	adminService    = "conduit.v1.Admin"
)

// ask calls a method of a built-in service at an instance; "*" is the one that is
// connected to.
func ask[Res proto.Message](ctx context.Context, c connection, instance, service, method string, in proto.Message) (Res, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conduit.Call[Res](ctx, c.At(instance+"://conduit/conduit/"+service), method, in)
}

// whoAreYou asks an instance who it is and what it hosts.
func whoAreYou(ctx context.Context, c connection, instance string) (*conduitv1.InstanceInfo, error) {
	return ask[*conduitv1.InstanceInfo](ctx, c, instance, instanceService, "WhoAreYou", &conduitv1.WhoAreYouRequest{})
}

// hosted asks an instance what it hosts, and fails where it does not tell.
func hosted(ctx context.Context, c connection, instance string) (*conduitv1.InstanceInfo, error) {
	info, err := whoAreYou(ctx, c, instance)
	if err == nil && len(info.GetDigest()) == 0 { // what anonymous callers are told
		err = conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused,
			"the instance %s tells anonymous callers no more than its name; give --session", info.GetName())
	}
	return info, err
}

// instances asks an instance for all that it knows: itself and, where it has a
// registry and the asker may see it, its peers.
func instances(ctx context.Context, c connection) ([]*conduitv1.PeerInfo, error) {
	all, _, err := instancesAndProblems(ctx, c)
	return all, err
}

// instancesAndProblems asks also for what the discovery of that instance could make no
// use of.
func instancesAndProblems(ctx context.Context, c connection) (all []*conduitv1.PeerInfo, problems []string, err error) {
	r, err := ask[*conduitv1.PeersResponse](ctx, c, "*", adminService, "Peers", &conduitv1.PeersRequest{})
	if err == nil {
		return append([]*conduitv1.PeerInfo{{Info: r.GetSelf()}}, r.GetPeers()...), r.GetDiscoveryProblems(), nil
	}
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unimplemented && e.Code != conduit.PermissionDenied && e.Code != conduit.NotFound {
		return nil, nil, err
	}
	info, err := whoAreYou(ctx, c, "*")
	if err != nil {
		return nil, nil, err
	}
	return []*conduitv1.PeerInfo{{Info: info}}, nil, nil
}
