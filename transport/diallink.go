package transport

import (
	"context"
	"errors"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// LinkHooks are told what a link hears beside answers. They are called on its
// reader, one at a time, perhaps before DialLink has returned and also if it fails,
// and must not block. Nil ones are not called.
type LinkHooks struct {
	// Status is called with each Status of the peer, encoded; it is valid until
	// Status returns.
	Status func(body []byte)
	// GoAway is called once, when the peer takes no new calls on the link: its Usable
	// says false by then. retryAfter is 0 if the peer did not say.
	GoAway func(reason string, retryAfter time.Duration)
}

// DialLink makes one new link to a URL, with the Client's session, and returns it
// once the peer's Hello has come. It keeps no link for later and makes no pauses
// between attempts: whoever calls it does. The error is that of [Peer.Connect], but for
// one thing: a deadline of ctx is the limit of this one dial, so when it has passed the
// error says what the peer did not do until then.
//
// The caller owns the link and closes it: it is not closed for idleness. Close of
// the Client ends it as well.
func (c *Client) DialLink(ctx context.Context, url string, hooks LinkHooks) (*link.Conn, error) {
	clean, bad := checkURL(url, c.o.Insecure)
	session := c.session()
	if bad == nil {
		bad = checkSession(session)
	}
	if bad != nil {
		return nil, bad
	}
	within := c.o.DialTimeout
	if at, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(at).Round(10*time.Millisecond))
	}
	cancelable, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dialCtx, free := context.WithTimeout(cancelable, c.o.DialTimeout)
	defer free()
	defer context.AfterFunc(c.life, func() { cancel(errClientClosed()) })()
	var conn *link.Conn
	var err *conduit.Error
	done := make(chan struct{})
	if !c.spawn(func() { // so that Close waits for it
		defer close(done)
		conn, err = c.dialOwned(dialCtx, key{clean, session}, within, hooks)
	}) {
		return nil, errClientClosed()
	}
	<-done
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(ctx.Err(), context.Canceled): // the caller's doing, not the peer's
		return nil, conduit.FromContext(ctx, conduit.NotSent)
	}
	return nil, err
}

// ended is called when a link has ended that its caller had to close.
func (c *Client) ended(own *pooled) {
	close(own.gone)
	c.forget(own)
}

// dialOwned makes a link that its caller closes.
func (c *Client) dialOwned(ctx context.Context, k key, within time.Duration, hooks LinkHooks) (*link.Conn, *conduit.Error) {
	own := &pooled{opened: time.Now(), gone: make(chan struct{})}
	conn, err := c.dial(ctx, k, within, func(o *link.Options) {
		template := o.OnClose
		o.OnClose = func(err error) {
			c.ended(own)
			if template != nil {
				template(err)
			}
		}
		o.OnStatus, o.OnGoAway = hooks.Status, hooks.GoAway
	})
	if err != nil {
		c.log.DebugContext(ctx, "no link", "peer", k.url, "error", err)
		return nil, err
	}
	own.conn = conn
	if !c.keep(own) {
		return nil, errClientClosed()
	}
	if !conn.Usable() {
		why := conn.Err() // nil while the peer goes away in order
		conn.Close(link.CloseDone, "of no use")
		return nil, droppedAtOnce(k.url, why)
	}
	c.log.DebugContext(ctx, "link opened", "peer", k.url, "instance", conn.Theirs().Instance)
	return conn, nil
}
