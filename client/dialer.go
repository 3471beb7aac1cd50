package client

import (
	"context"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/peerlink"
	"github.com/elemental-conduit/conduit/registry"
)

// dialer is a registry.Dialer that remembers why a URL could not be dialled: the
// registry keeps the text, and Dial's caller wants the code.
type dialer struct {
	*peerlink.Dialer

	mu     sync.Mutex
	failed map[string]*conduit.Error
}

// Connect implements registry.Dialer.
func (d *dialer) Connect(ctx context.Context, url string, h registry.Hooks) (registry.Link, error) {
	l, err := d.Dialer.Connect(ctx, url, h)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed[url] = conduit.AsError(err, conduit.NotSent)
	} else {
		delete(d.failed, url)
	}
	return l, err
}

// why returns the error of a URL that there is no peer at, nil if it was not tried
// yet. reason is the registry's word on one that could be dialled and was no peer.
func (d *dialer) why(url, reason string) *conduit.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch e := d.failed[url]; {
	case e != nil:
		return e
	case reason == "":
		return nil
	}
	return &conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonPeerUnreachable, Outcome: conduit.NotSent, Retryable: true,
		Message: url + ": " + reason, Op: "client.dial", Peer: url,
	}
}
