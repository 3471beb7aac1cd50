package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/peerlink"
	"github.com/elemental-conduit/conduit/locator"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

// DefaultAttempts is how often a call is tried, at most.
const DefaultAttempts = locator.DefaultAttempts

// Options say whom to call, and how. The zero value of a number is its default.
type Options struct {
	// Peers are the cluster endpoints to call, at least one: host:port,
	// ws://host:port, or wss://host:port. Without a scheme, loopback is dialled
	// with ws:// and everything else with wss://.
	Peers []string
	// Session is the secret of the caller's session; empty = anonymous.
	Session string
	// Insecure allows ws:// to hosts other than this one: session and calls are
	// readable on the way.
	Insecure bool
	// TLS is used for wss://; nil = the system's authorities.
	TLS *tls.Config
	// DialTimeout bounds the dialling of one peer: 5 s.
	DialTimeout time.Duration
	// CallTimeout bounds a unary call whose context has no deadline, all its
	// attempts together: 30 s; negative = none.
	CallTimeout time.Duration
	// MaxPayload is the largest message taken, in bytes: 10 MiB. What may be
	// sent is the peer's to say.
	MaxPayload int64
	// Attempts is how often a call is tried, at most: 3.
	Attempts int
	// Policy says which of the peers that can take a call is picked: P2C.
	Policy registry.Policy
	// Refresh is the time between two questions to a peer for what it hosts, if it
	// says nothing of a change by itself: 30 s. RefreshTimeout bounds the wait for
	// an answer: 1 s.
	Refresh, RefreshTimeout time.Duration
	// PerCall dials anew for each call, for middle boxes that balance by
	// connection; it is slow. Nothing is known of the peers then: see the package.
	PerCall bool
	// Log takes what there is to say of peers and links; nil = nothing.
	Log *slog.Logger
}

// Client calls elements at the peers that it was given. It must be closed.
//
// All methods may be called concurrently.
type Client struct {
	transport *transport.Client
	perCall   *perCall // nil unless Options.PerCall; then there is nothing below

	registry *registry.Registry
	locator  *locator.Locator
	stop     context.CancelFunc
	over     chan struct{} // closed when the registry has ended
}

// Dial returns a Client once one of the peers has said who it is; the others
// follow when they can be reached. When each of them has failed to once, the error
// is an *conduit.Error that names each peer and says why. ctx bounds the dialling
// only.
func Dial(ctx context.Context, o Options) (*Client, error) {
	urls, err := discovery.ParseStatic(o.Peers, o.Insecure)
	if err != nil {
		return nil, badOptions(err.Error(), err)
	}
	if len(urls) == 0 {
		return nil, badOptions("no peers are given: name at least one, such as ws://127.0.0.1:7400", nil)
	}
	if o.Attempts <= 0 {
		o.Attempts = DefaultAttempts
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = conduit.DefaultCallTimeout
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = transport.DefaultDialTimeout
	}
	t := transport.ClientOptions{
		Session: o.Session, DialTimeout: o.DialTimeout, TLS: o.TLS, Insecure: o.Insecure, PerCall: o.PerCall, Log: o.Log,
	}
	t.Link.CallTimeout = o.CallTimeout
	t.Link.Hello.MaxMessage = o.MaxPayload
	if o.PerCall {
		t.IdleTimeout = time.Second // of the link that shows that a peer is there
	}
	c := &Client{transport: transport.NewClient(t)}
	if o.PerCall {
		c.perCall = newPerCall(c.transport, urls, &o)
		err = c.perCall.connect(ctx)
	} else {
		err = c.begin(ctx, urls, &o)
	}
	if err != nil {
		_ = c.Close() // it never fails
		return nil, err
	}
	return c, nil
}

// begin starts the registry, and waits for the first peer.
func (c *Client) begin(ctx context.Context, urls []string, o *Options) error {
	source, err := discovery.NewStatic(urls, o.Insecure)
	if err != nil {
		return badOptions(err.Error(), err)
	}
	d := &dialer{Dialer: peerlink.New(c.transport, peerlink.Options{Log: o.Log}), failed: map[string]*conduit.Error{}}
	c.registry = registry.New(registry.Options{
		Source: source, Dialer: d, Policy: o.Policy, Refresh: o.Refresh, RefreshTimeout: o.RefreshTimeout,
		// transport's limit comes first: it says at what the time was lost.
		DialTimeout: o.DialTimeout + time.Second,
		Log:         o.Log,
	})
	c.locator = locator.New(locator.Options{Registry: c.registry, Attempts: o.Attempts, CallTimeout: o.CallTimeout})
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop, c.over = stop, make(chan struct{})
	go func() {
		defer close(c.over)
		_ = c.registry.Run(life) // a static source does not fail
	}()
	return c.first(ctx, urls, d)
}

// first waits until a peer is alive, or none can be.
func (c *Client) first(ctx context.Context, urls []string, d *dialer) error {
	alive := make(chan struct{}, 1)
	unsubscribe := c.registry.Subscribe(func(e registry.Event) {
		if isThere(&e.Peer) {
			select {
			case alive <- struct{}{}:
			default:
			}
		}
	})
	defer unsubscribe()
	select {
	case <-alive:
		return nil
	case <-c.registry.Settled():
	case <-ctx.Done():
	}
	said := map[string]*conduit.Error{}
	for _, p := range c.registry.Peers() {
		if isThere(&p) {
			return nil
		}
		said[p.URLs[0]] = d.why(p.URLs[0], p.Reason)
	}
	errs := make([]*conduit.Error, 0, len(urls))
	for _, url := range urls {
		e := said[url]
		if e == nil {
			e = conduit.FromContext(ctx, conduit.NotSent)
			e.Op, e.Peer, e.Message = "client.dial", url, url+": it has not answered yet: "+e.Message
		}
		errs = append(errs, e)
	}
	return unreached(errs)
}

// isThere reports whether a peer has said who it is.
func isThere(p *registry.PeerStatus) bool {
	return p.State == registry.StateAlive || p.State == registry.StateDraining && p.Info != nil
}

func badOptions(message string, err error) *conduit.Error {
	return &conduit.Error{
		Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent,
		Message: message, Op: "client.dial", Err: err,
	}
}

// unreached is the error of several peers of which none could be used: the
// first's, and what each said.
func unreached(errs []*conduit.Error) *conduit.Error {
	e := *errs[0]
	if len(errs) == 1 {
		return &e
	}
	texts := make([]string, len(errs))
	for i, one := range errs {
		texts[i] = one.Message
		if one.Code == conduit.Unauthenticated || one.Code == conduit.PermissionDenied {
			// Who may not in is told so, and not that nobody was there.
			e.Code, e.Reason, e.Retryable = one.Code, one.Reason, one.Retryable
		}
	}
	e.Op, e.Peer = "client.dial", ""
	e.Message = fmt.Sprintf("none of %d peers can be used: %s", len(errs), strings.Join(texts, "; "))
	return &e
}

// Close ends all calls and links, and returns when all is over. Calls that come
// later fail. It may be called more than once; the error is always nil.
func (c *Client) Close() error {
	if c.stop != nil {
		c.stop()
		<-c.over
	}
	return c.transport.Close()
}

// At returns what calls the service at an address, such as
// "*://greeter/greeter/example.Greeter". Whatever is wrong with the address
// surfaces at the call. It is worth keeping: a second At looks everything up anew.
func (c *Client) At(addr string) conduit.Invoker {
	if c.perCall != nil {
		return c.perCall.at(addr)
	}
	return c.locator.At(addr)
}

// All returns every node that declares the element of an address, for
// [conduit.Gather]: whatever its state, full and draining ones too. What is wrong
// with the address surfaces at the call. With Options.PerCall it is unimplemented.
func (c *Client) All(addr string) conduit.Group {
	if c.perCall != nil {
		return unknown{"All"}
	}
	return c.locator.All(addr)
}

// FindRemote returns what calls a service wherever it is found in a deployment (an
// id, a name, or "*"), without naming the element that exports it. It is found anew
// at each call; that it is not there surfaces at the call, as service_not_found.
// Who is anonymous is not told what peers export, so nothing is found for him. With
// Options.PerCall it is unimplemented.
func (c *Client) FindRemote(deployment, serviceKey string) conduit.Invoker {
	if c.perCall != nil {
		return unknown{"FindRemote"}
	}
	return c.locator.FindRemote(deployment, serviceKey)
}

// Peers returns what is known of each peer at this moment, by its URL: also of
// those that cannot be reached, and why. With Options.PerCall it is nil.
func (c *Client) Peers() []registry.PeerStatus {
	if c.perCall != nil {
		return nil
	}
	return c.registry.Peers()
}

// WaitPeers waits until each peer has said who it is, or failed to once, for no
// longer than a dial and a question may take, and within ctx.
func (c *Client) WaitPeers(ctx context.Context) {
	if c.perCall == nil {
		c.registry.WaitSettled(ctx)
	}
}

// Explain says where a call would go at this moment, and why; it changes nothing.
// The error is an address that does not parse, or Options.PerCall.
func (c *Client) Explain(addr, method string, units uint32) (registry.Explanation, error) {
	if c.perCall != nil {
		return registry.Explanation{}, unknown{"Explain"}.err("")
	}
	e, err := c.locator.Explain(addr, method, units)
	if err != nil {
		return registry.Explanation{}, err
	}
	return e.Explanation, nil
}
