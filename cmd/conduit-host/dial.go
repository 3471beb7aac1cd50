package main

import (
	"context"

	"github.com/elemental-conduit/conduit/client"
)

// dialPeers connects to the peers, of which one has answered.
func dialPeers(ctx context.Context, o client.Options) (connection, error) { return client.Dial(ctx, o) }
