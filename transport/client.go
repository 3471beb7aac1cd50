package transport

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Defaults of a Client.
const (
	DefaultDialTimeout = 5 * time.Second
	DefaultIdleTimeout = 5 * time.Minute
)

// ClientOptions say how a Client dials. The zero value of a number is its
// default.
type ClientOptions struct {
	// Session is the secret that links are opened with; empty = anonymous.
	Session string
	// SessionOf, if it is set, is asked for the secret in place of Session each time
	// that a link is to be made with the Client's own session, so that the secret can
	// be replaced while links that an earlier one opened go on. It must not block.
	SessionOf func() string
	// DialTimeout bounds everything until a link can be used: TCP, TLS, the
	// upgrade and the peer's Hello.
	DialTimeout time.Duration
	// IdleTimeout is how long a link without calls is kept; negative = for ever.
	IdleTimeout time.Duration
	// WriteTimeout bounds the write of one message.
	WriteTimeout time.Duration
	// UserTimeout is TCP_USER_TIMEOUT on Linux: how long a peer may acknowledge
	// nothing, or make no room, before the kernel gives it up. 0 = Link.DeadAfter, as
	// the link's own probes; negative leaves it unset.
	UserTimeout time.Duration
	// TLS is used for wss://; nil = the system's authorities. Its NextProtos are
	// ignored: links are HTTP/1.1.
	TLS *tls.Config
	// DialContext opens the TCP connections, as net.Dialer's does, so that hosts can
	// be found otherwise than by the system's resolver; nil = a net.Dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLSOf is asked for it at each dial, instead: certificates may change. It is called
	// concurrently, and what it returns is not changed. nil = TLS is used.
	TLSOf func() *tls.Config
	// Insecure allows ws:// to hosts other than this one.
	Insecure bool
	// PerCall dials anew for each call, for middle boxes that balance by
	// connection. It costs 20 to 40 times as much.
	PerCall bool
	// Link is the template of each link's options: its Dialer, Handler and Peer
	// are set anew.
	Link link.Options
	// Log takes what there is to say; nil = nothing.
	Log *slog.Logger
}

// Client makes calls over links that it dials when they are needed and keeps
// while they are used: one for each peer and session. It dials directly, never
// through the proxy of HTTP_PROXY: peers are neighbours, and a proxy would see
// their sessions.
//
// All methods may be called concurrently.
type Client struct {
	o      ClientOptions
	dialer *websocket.Dialer
	log    *slog.Logger
	// life ends with the Client: dials are many callers' and so no caller's.
	life context.Context //nolint:containedctx // it is the Client's own life, not a call's
	end  context.CancelCauseFunc

	mu     sync.Mutex
	peers  map[key]*Peer
	open   map[*pooled]struct{}
	closed bool
	dials  sync.WaitGroup // added to under mu while not closed
}

// key is what links are shared by. It holds a secret, and so hides itself.
type key struct{ url, session string }

func (k key) String() string   { return k.url }
func (k key) GoString() string { return k.url }

// NewClient returns a Client; it must be closed.
func NewClient(o ClientOptions) *Client {
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = DefaultIdleTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.UserTimeout = userTimeoutOf(o.UserTimeout, o.Link.DeadAfter)
	c := &Client{o: o, log: o.Log, peers: make(map[key]*Peer), open: make(map[*pooled]struct{})}
	c.life, c.end = context.WithCancelCause(context.Background())
	if o.DialContext == nil {
		o.DialContext = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	c.dialer = &websocket.Dialer{
		NetDialContext:  o.DialContext,
		TLSClientConfig: overHTTP1(o.TLS),
		ReadBufferSize:  readBuffer,
		WriteBufferSize: clientWriteBuffer,
		WriteBufferPool: &writeBuffers,
		Subprotocols:    []string{SubProtocol},
	}
	return c
}

// overHTTP1 is a configuration for links, which HTTP/2 cannot carry.
func overHTTP1(o *tls.Config) *tls.Config {
	config := o.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.NextProtos = []string{"http/1.1"}
	return config
}

// Peer returns the peer at a URL, with the Client's session. It does not dial;
// whatever is wrong with the URL surfaces at calls.
func (c *Client) Peer(url string) *Peer { return c.PeerAs(url, c.session()) }

// Within returns ctx for a call whose link is yet to be dialled by [Client.DialLink]: what
// its link would give a unary call without a deadline begins now. free is to be called once
// the call has been made.
func (c *Client) Within(ctx context.Context, in *conduit.Invocation) (_ context.Context, free context.CancelFunc) {
	return c.o.Link.Within(ctx, in)
}

// session is the Client's own, as it is now.
func (c *Client) session() string {
	if c.o.SessionOf != nil {
		return c.o.SessionOf()
	}
	return c.o.Session
}

// PeerAs returns the peer at a URL with a session of its own: links are never
// shared between sessions. A Client remembers each pair that it was asked for.
func (c *Client) PeerAs(url, session string) *Peer {
	clean, bad := checkURL(url, c.o.Insecure)
	if bad == nil {
		bad = checkSession(session)
	}
	if bad != nil {
		return &Peer{c: c, bad: bad}
	}
	k := key{clean, session}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[k]
	if p == nil {
		p = newPeer(c, k)
		c.peers[k] = p
	}
	return p
}

// Close ends all links, and the calls on them, and returns when all is over.
// Calls that come later fail.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	open := make([]*pooled, 0, len(c.open))
	for pl := range c.open {
		open = append(open, pl)
	}
	c.mu.Unlock()

	c.end(errClientClosed())
	for _, pl := range open {
		pl.conn.Close(link.CloseDone, "the client is closed; make another one to call again")
	}
	c.dials.Wait()
	for _, pl := range open {
		<-pl.gone
	}
	return nil
}

func errClientClosed() *conduit.Error {
	e := conduit.Errorf(conduit.Canceled, conduit.ReasonAborted, conduit.NotSent, "the client is closed; make another one to call again")
	e.Op = "transport.dial"
	return e
}

// spawn runs a dial that Close waits for, unless the Client is closed.
func (c *Client) spawn(dial func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.dials.Go(dial)
	return true
}

// keep makes Close know of a link, as long as the link lives. It reports false
// when Close has begun; then the link is over when it returns.
func (c *Client) keep(pl *pooled) bool {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.open[pl] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		pl.conn.Close(link.CloseDone, "the client is closed; make another one to call again")
		<-pl.gone
		return false
	}
	select {
	case <-pl.gone: // before Close knew of it
		c.forget(pl)
	default:
	}
	return true
}

func (c *Client) forget(pl *pooled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, pl)
}
