package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/transport"
)

// DefaultAttempts is how many peers a call is tried at.
const DefaultAttempts = 3

// Options say whom to call, and how. The zero value of a number is its default.
type Options struct {
	// Peers are the cluster endpoints to call through, at least one: host:port,
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
	// IdleTimeout is how long a link without calls is kept: 5 min.
	IdleTimeout time.Duration
	// CallTimeout bounds a unary call whose context has no deadline, all its
	// attempts together: 30 s; negative = none.
	CallTimeout time.Duration
	// MaxPayload is the largest message taken, in bytes: 10 MiB. What may be
	// sent is the peer's to say.
	MaxPayload int64
	// Attempts is how many peers a call is tried at, at most: 3.
	Attempts int
	// PerCall dials anew for each call, for middle boxes that balance by
	// connection; it is slow.
	PerCall bool
	// Log takes what there is to say, at debug level; nil = nothing.
	Log *slog.Logger
}

// Client calls elements through the peers that it was given. It must be closed.
//
// All methods may be called concurrently.
type Client struct {
	o         Options
	transport *transport.Client
	peers     []*transport.Peer
}

// Dial returns a Client once one of the peers has answered; the others are
// dialled when they are needed. When none does, the error is an *conduit.Error
// that names each peer and says why. ctx bounds the dialling only.
func Dial(ctx context.Context, o Options) (*Client, error) {
	urls, err := discovery.ParseStatic(o.Peers, o.Insecure)
	if err != nil {
		return nil, &conduit.Error{
			Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent,
			Message: err.Error(), Op: "client.dial", Err: err,
		}
	}
	if len(urls) == 0 {
		return nil, &conduit.Error{
			Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent,
			Message: "no peers are given: name at least one, such as ws://127.0.0.1:7400", Op: "client.dial",
		}
	}
	if o.Attempts <= 0 {
		o.Attempts = DefaultAttempts
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = conduit.DefaultCallTimeout
	}
	t := transport.ClientOptions{
		Session: o.Session, DialTimeout: o.DialTimeout, IdleTimeout: o.IdleTimeout,
		TLS: o.TLS, Insecure: o.Insecure, PerCall: o.PerCall, Log: o.Log,
	}
	t.Link.CallTimeout = o.CallTimeout
	t.Link.Hello.MaxMessage = o.MaxPayload
	c := &Client{o: o, transport: transport.NewClient(t)}
	for _, url := range urls {
		c.peers = append(c.peers, c.transport.Peer(url))
	}
	if err := c.connect(ctx, c.peers); err != nil {
		_ = c.Close() // nothing is open that could fail to close
		return nil, err
	}
	return c, nil
}

// connect dials peers side by side until one answers.
func (c *Client) connect(ctx context.Context, peers []*transport.Peer) *conduit.Error {
	errs := make([]*conduit.Error, len(peers))
	type result struct {
		i   int
		err error
	}
	results := make(chan result, len(peers))
	ctx, cancel := context.WithCancel(ctx) // ends the waiting for the others, not their dials
	defer cancel()
	for i, p := range peers {
		go func() { results <- result{i, p.Connect(ctx)} }()
	}
	for range peers {
		r := <-results
		if r.err == nil {
			return nil
		}
		errs[r.i] = conduit.AsError(r.err, conduit.NotSent)
	}
	return unreached(errs)
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

// Close ends all calls and links.
func (c *Client) Close() error { return c.transport.Close() }

// At returns what calls the service at an address, such as
// "*://greeter/greeter/example.Greeter". Whatever is wrong with the address
// surfaces at the call.
func (c *Client) At(addr string) conduit.Invoker {
	a, err := address.Parse(addr)
	if err != nil {
		return failing{&conduit.Error{
			Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent,
			Message: err.Error(), Op: "client.at", Err: err,
		}}
	}
	targets := make([]conduit.Target, len(c.peers))
	for i, p := range c.peers {
		targets[i] = p.At(a)
	}
	return &place{c: c, a: a, targets: targets}
}

// failing is an Invoker whose every call fails.
type failing struct{ err *conduit.Error }

func (f failing) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	e := *f.err
	e.Method = in.Method
	return conduit.FailedExchange(&e)
}
