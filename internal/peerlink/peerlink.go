// Package peerlink makes the links that a registry holds to its peers, over a
// transport.Client: it alone knows both, and neither knows the other.
//
// A link of it is the registry's own. It is not the one that the Client keeps for
// calls to the same URL, and it is not closed for idleness: how a peer is, and what
// room it has, is heard on it all the time. It ends when it is lost, when the
// peer is done with draining, when the Client is closed, or some time after Release.
//
// Calls go on that link, or, with Options.PerCall, on one of their own each, which
// [Link.Alone] dials; the registry's then carries its own questions and no more.
package peerlink

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

// instanceService is where an instance says who it is, behind "<instance>://".
const instanceService = "conduit/conduit/conduit.v1.Instance"

// Options say how a Dialer behaves.
type Options struct {
	// Log takes what there is to say; nil = nothing.
	Log *slog.Logger
	// Dialled is told of each attempt of Connect as it ends, on Connect's goroutine:
	// the id that the other end said in its Hello, or why there is no link and no id.
	// Attempts that their caller has cancelled are left out: they say nothing of who
	// was dialled. It must be safe for concurrent calls; nil = nobody is told.
	Dialled func(url, instance string, err error)
	// PerCall gives each call a link of its own. Whoever passes calls on below
	// [Link.Invoke] has to ask for it, by [Link.Alone].
	PerCall bool
	// Alone is told of each link that was dialled for one call, before the call is on
	// it: who answered, at which URL. It must be safe for concurrent calls and not
	// block; nil = nobody is told.
	Alone func(conn *link.Conn, url, instance string)
}

// Dialer is a registry.Dialer. All methods may be called concurrently.
type Dialer struct {
	client *transport.Client
	o      Options
	log    *slog.Logger
}

// New returns a Dialer over a Client, which stays its caller's: once it is closed,
// all links of the Dialer have ended.
func New(client *transport.Client, o Options) *Dialer {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dialled == nil {
		o.Dialled = func(string, string, error) {}
	}
	if o.Alone == nil {
		o.Alone = func(*link.Conn, string, string) {}
	}
	return &Dialer{client: client, o: o, log: o.Log}
}

// Route implements registry.Dialer. The route is a *link.Route.
func (d *Dialer) Route(a address.Address) registry.Route { return link.NewRoute(a) }

// Connect implements registry.Dialer. The link is a *Link; the error, an
// *conduit.Error, is that of transport's Peer.Connect.
func (d *Dialer) Connect(ctx context.Context, url string, h registry.Hooks) (registry.Link, error) {
	conn, err := d.dial(ctx, url, h)
	if err != nil {
		return nil, err
	}
	theirs := conn.Theirs()
	l := &Link{d: d, url: url, conn: conn, instance: theirs.Instance, epoch: theirs.Epoch}
	a, err := address.Parse(theirs.Instance + "://" + instanceService)
	if err != nil { // the registry says what is wrong with such an id
		a = address.MustParse("*://" + instanceService)
	}
	l.self = link.NewRoute(a)
	return l, nil
}

// dial makes a link, and tells of the attempt.
func (d *Dialer) dial(ctx context.Context, url string, h registry.Hooks) (*link.Conn, error) {
	conn, err := d.client.DialLink(ctx, url, d.hooks(url, h))
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			d.o.Dialled(url, "", err)
		}
		return nil, err
	}
	d.o.Dialled(url, conn.Theirs().Instance, nil)
	return conn, nil
}

// hooks decode what the link hears.
func (d *Dialer) hooks(url string, h registry.Hooks) transport.LinkHooks {
	var on transport.LinkHooks
	if h.Status != nil {
		on.Status = func(body []byte) {
			s := &conduitv1.Status{}
			if err := proto.Unmarshal(body, s); err != nil {
				d.log.Warn("a peer's Status does not decode, and is not used", "url", url, "error", err)
				return
			}
			h.Status(s)
		}
	}
	if h.GoAway != nil {
		on.GoAway = func(reason string, _ time.Duration) { h.GoAway(reason) }
	}
	return on
}

// Link is a registry.Link. All methods may be called concurrently.
type Link struct {
	d        *Dialer
	url      string
	conn     *link.Conn
	instance string
	epoch    uint64
	self     *link.Route // to the peer's own service

	// Of calls with links of their own: how many there are, watches excepted, and the
	// units that the registry's link will never hear judged.
	alone   atomic.Int64
	settled atomic.Uint64
}

// Conn returns the link itself, for those who pass calls on to it. Its owner is the
// registry, which alone ends it.
func (l *Link) Conn() *link.Conn { return l.conn }

// Instance implements registry.Link.
func (l *Link) Instance() string { return l.instance }

// Epoch implements registry.Link.
func (l *Link) Epoch() uint64 { return l.epoch }

// WhoAreYou implements registry.Link. It asks as the link's own principal.
func (l *Link) WhoAreYou(ctx context.Context, digest []byte) (*conduitv1.InstanceInfo, error) {
	// Said, since unset is anonymous on the link of an instance, and anonymous
	// callers are told the name and no more.
	as := conduit.WithAs(conduit.AsWhom{Kind: conduit.AsLink})
	return conduit.Call[*conduitv1.InstanceInfo](ctx, onLink{l}, "WhoAreYou", &conduitv1.WhoAreYouRequest{Digest: digest}, as)
}

// onLink calls the peer's own service.
type onLink struct{ l *Link }

func (o onLink) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return o.l.conn.Invoke(ctx, o.l.self, in)
}

// Invoke implements registry.Link. With Options.PerCall it waits while the call's own
// link is dialled, within ctx and the Client's DialTimeout.
func (l *Link) Invoke(ctx context.Context, r registry.Route, in *conduit.Invocation) conduit.Exchange {
	route, ok := r.(*link.Route)
	if !ok { // of another Dialer
		route = link.NewRoute(r.Address())
	}
	if !l.d.o.PerCall {
		return l.conn.Invoke(ctx, route, in)
	}
	ctx, free := l.d.client.Within(ctx, in)
	defer free()
	conn, err := l.Alone(ctx, in.Units, in.Background)
	if err != nil {
		e := *err
		e.Address, e.Method = route.Address().String(), in.Method
		return conduit.FailedExchange(&e)
	}
	x := conn.Invoke(ctx, route, in)
	if in.Background { // it does not keep a link from being idle
		return &lone{Exchange: x, conn: conn}
	}
	conn.CloseWhenIdle()
	return x
}

// Usable implements registry.Link.
func (l *Link) Usable() bool { return l.conn.Usable() }

// Unsent implements registry.Link.
func (l *Link) Unsent() uint64 { return l.conn.Unsent() + l.settled.Load() }

// Outstanding implements registry.Link.
func (l *Link) Outstanding() int { return l.conn.Outstanding() + int(l.alone.Load()) }

// Heard returns when a packet of the peer came last, whatever was in it.
func (l *Link) Heard() time.Time { return l.conn.Stats().Heard }

// Done implements registry.Link.
func (l *Link) Done() <-chan struct{} { return l.conn.Done() }

// Release implements registry.Link. The link closes when the last call on it has
// ended; watches do not keep it, and end with it, unavailable: whoever watches
// begins anew elsewhere. A call that comes later, picked just before, is not sent.
func (l *Link) Release() { l.conn.CloseWhenIdle() }

var (
	_ registry.Dialer = (*Dialer)(nil)
	_ registry.Link   = (*Link)(nil)
)
