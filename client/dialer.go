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
		e := conduit.AsError(err, conduit.NotSent)
		d.failed[url] = e
		return nil, bare{e}
	}
	delete(d.failed, url)
	return l, nil
}

// bare is an error as one word of a longer message: its code and outcome are those of
// a dial, not of the call that the message is for.
type bare struct{ e *conduit.Error }

// Error returns the message.
func (b bare) Error() string { return b.e.Message }

// Unwrap returns the whole error.
func (b bare) Unwrap() error { return b.e }

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
