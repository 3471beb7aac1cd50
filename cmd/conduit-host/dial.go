package main

import (
	"context"

	"github.com/elemental-conduit/conduit/client"
)

// dialPeers connects to the peers, of which one has answered.
func dialPeers(ctx context.Context, peers []string, session string) (connection, error) {
	return client.Dial(ctx, client.Options{Peers: peers, Session: session})
}
