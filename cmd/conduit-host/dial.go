package main

import (
	"context"

	"github.com/elemental-conduit/conduit/client"
)

// dialPeers connects to the first of the peers that answers.
func dialPeers(ctx context.Context, peers []string, session string) (connection, error) {
	return client.Dial(ctx, client.Options{Peers: peers, Session: session})
}
