package builtin

import (
	"context"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Authorize says as whom a call runs that came on a link with the given peer, or
// why it may not. It runs on the link's reader and must not block or keep in.
type Authorize func(peer link.Peer, in *frame.Invoke) (user string, level conduit.Level, err *conduit.Error)

// Inventory is what an instance hosts. Its methods are called concurrently and
// must not block for long.
type Inventory interface {
	// Deployments returns everything that is known of the deployments, in the
	// order of their ids. The messages are the caller's, but for the
	// descriptions of services and the schemas, which are shared.
	Deployments() []*conduitv1.DeploymentInfo
}

// Lifecycle is an instance's coming and going. Its methods are called
// concurrently and must not block.
type Lifecycle interface {
	State() conduitv1.InstanceState
	// Drain begins the end of the instance, as SIGTERM does. Again it does nothing.
	Drain(user, reason string)
}

// Links are an instance's links of all kinds. It is called concurrently.
type Links interface {
	Links() []*conduitv1.LinkInfo
}

// Capacity is an instance's units. It is called concurrently.
type Capacity interface {
	Units() (available, total uint64)
}

// Peers is what an instance knows of others. It is called concurrently; ctx ends
// with the call.
type Peers interface {
	Peers(ctx context.Context) ([]*conduitv1.PeerInfo, error)
	// DiscoveryProblems says what discovery could make no use of, one thing each.
	DiscoveryProblems() []string
}

// Explainer says where a call would go. It is called concurrently; ctx ends with
// the call.
type Explainer interface {
	Explain(ctx context.Context, in *conduitv1.ExplainRequest) (*conduitv1.ExplainResponse, error)
}

// Logs are the logs of an instance's deployments. It is called concurrently.
type Logs interface {
	// Logs gives the records that in asks for to send, in order, on its own goroutine; with
	// follow until ctx ends, of which it returns the cause.
	Logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error
}

// Options say for which instance the services speak. Instance, Authorize,
// Inventory and Lifecycle must be set.
type Options struct {
	Instance address.InstanceID
	Name     string
	Mode     string
	Version  string
	// Epoch is that of the instance's Hello.
	Epoch   uint64
	Started time.Time
	// RemoteAdmin opens Admin to superusers at the cluster endpoint.
	RemoteAdmin bool

	Authorize Authorize
	Inventory Inventory
	Lifecycle Lifecycle

	// The parts that an instance may lack.
	Links     Links
	Capacity  Capacity
	Peers     Peers
	Explainer Explainer
	Logs      Logs
	Operator  Operator
}
