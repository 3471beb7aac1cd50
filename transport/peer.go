package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

const (
	// The pauses between dials to a peer that cannot be reached. They are short:
	// a peer that is back should be called again within about a second, and the
	// pauses need only keep a stream of calls from becoming a stream of dials.
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
	// forgive is the time without a failure after which one counts as the first.
	forgive = 5 * time.Second
	// shortLife is the life of a link that counts as a failed dial: something
	// accepts links and drops them.
	shortLife = time.Second
	// retiredPoll is how often a link that takes no more calls is looked at, to
	// close it when the last one has ended.
	retiredPoll = 100 * time.Millisecond
)

// Peer is an instance as a Client reaches it: a URL, a session, and the link to
// it, if there is one.
//
// The first call dials; calls that come meanwhile wait for that dial, and none
// of them ends it by being cancelled. When a dial fails, all that wait for it
// get its error. The next call dials at once after a first failure; after more
// in a row there are pauses of up to a second, in which calls fail at once with
// the last error and RetryAfter says how much of the pause is left.
//
// All methods may be called concurrently.
type Peer struct {
	c   *Client
	k   key
	bad *conduit.Error // the URL or session: nothing else is set then

	// current is the link that new calls go on. It is changed under mu, and read
	// without it on the way of every call.
	current atomic.Pointer[pooled]

	mu       sync.Mutex
	dialing  *dialing
	failures int // dials in a row that failed, or gave a link that did not last
	last     *conduit.Error
	failed   time.Time // when the last failed
	until    time.Time // no dial before
	pause    backoff.ExponentialBackOff
	hello    link.Hello // of the latest link
}

// dialing is a dial that callers wait for.
type dialing struct {
	done    chan struct{}
	waiters int64          // guarded by Peer.mu until done; then each is counted in pl.using
	pl      *pooled        // when done
	err     *conduit.Error // when done, if pl is nil
}

// pooled is a link of a Peer's.
type pooled struct {
	conn   *link.Conn
	opened time.Time
	timer  *time.Timer   // runs reap
	gone   chan struct{} // closed when the link has ended

	// A call adds itself to using and then looks at closing; reap sets closing
	// and then looks at using. So either the call sees that the link closes, or
	// reap that it is used: no call is lost to the idle timeout.
	using   atomic.Int64
	closing atomic.Bool
}

func newPeer(c *Client, k key) *Peer {
	return &Peer{c: c, k: k, pause: backoff.ExponentialBackOff{
		InitialInterval: firstPause, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: mostPause,
	}}
}

// URL returns the peer's URL in its normal form; empty when it was bad.
func (p *Peer) URL() string { return p.k.url }

// Hello returns what the peer said of itself when it was last connected to.
func (p *Peer) Hello() link.Hello {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hello
}

// Connected reports whether there is a link that new calls can go on at once.
func (p *Peer) Connected() bool {
	pl := p.current.Load()
	return pl != nil && pl.conn.Usable()
}

// Connect makes sure that there is a link. The error is an *conduit.Error.
func (p *Peer) Connect(ctx context.Context) error {
	pl, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	pl.using.Add(-1)
	return nil
}

// At returns what calls an address at this peer.
func (p *Peer) At(a address.Address) conduit.Target {
	return &target{p: p, a: a, route: link.NewRoute(a)}
}

// target calls one address at one peer.
type target struct {
	p     *Peer
	a     address.Address
	route *link.Route
}

// Address implements conduit.Target.
func (t *target) Address() address.Address { return t.a }

// Invoke implements conduit.Invoker. It waits while the peer is dialled, within
// ctx and the dial timeout, and not otherwise.
func (t *target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	if t.p.c.o.PerCall {
		return t.invokeAlone(ctx, in)
	}
	pl, err := t.p.acquire(ctx)
	if err != nil {
		return t.failed(err, in)
	}
	defer pl.using.Add(-1) // the link counts the call from here on
	return pl.conn.Invoke(ctx, t.route, in)
}

func (t *target) failed(err *conduit.Error, in *conduit.Invocation) conduit.Exchange {
	e := *err
	e.Address, e.Method = t.a.String(), in.Method
	return conduit.FailedExchange(&e)
}

// acquire returns a link, counted as used, and dials if need be.
func (p *Peer) acquire(ctx context.Context) (*pooled, *conduit.Error) {
	if p.bad != nil {
		return nil, p.bad
	}
	if pl := p.current.Load(); pl != nil {
		pl.using.Add(1)
		if !pl.closing.Load() && pl.conn.Usable() {
			return pl, nil
		}
		pl.using.Add(-1)
	}
	d, pl, err := p.join()
	if pl != nil || err != nil {
		return pl, err
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		p.leave(d)
		return nil, conduit.FromContext(ctx, conduit.NotSent)
	}
	if d.err != nil {
		return nil, d.err
	}
	if !d.pl.conn.Usable() { // it is not idle: this caller is counted since the dial
		d.pl.using.Add(-1)
		return nil, p.droppedAtOnce(d.pl.conn.Err())
	}
	return d.pl, nil
}

// leave ends the waiting of a caller for a dial.
func (p *Peer) leave(d *dialing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-d.done:
		if d.pl != nil {
			d.pl.using.Add(-1)
		}
	default:
		d.waiters--
	}
}

// join returns the dial to wait for, or a link if there is one by now, or why
// there is to be no dial.
func (p *Peer) join() (*dialing, *pooled, *conduit.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.current.Load(); pl != nil {
		if pl.conn.Usable() { // closing is false: reap sets it under mu only, and then takes the link out
			pl.using.Add(1)
			return nil, pl, nil
		}
		p.retire(pl)
	}
	if p.dialing != nil {
		p.dialing.waiters++
		return p.dialing, nil, nil
	}
	if err := p.held(); err != nil {
		return nil, nil, err
	}
	d := &dialing{done: make(chan struct{}), waiters: 1}
	if !p.c.spawn(func() { p.dial(d) }) {
		return nil, nil, errClientClosed()
	}
	p.dialing = d
	return d, nil, nil
}

// held returns the last error while there is a pause. p.mu is held.
func (p *Peer) held() *conduit.Error {
	left := time.Until(p.until)
	if left <= 0 || p.last == nil {
		return nil
	}
	e := *p.last
	e.RetryAfter = max(e.RetryAfter, left)
	return &e
}

// dial dials for all who wait for d.
func (p *Peer) dial(d *dialing) {
	ctx, cancel := context.WithTimeout(p.c.life, p.c.o.DialTimeout)
	defer cancel()
	d.pl, d.err = p.connect(ctx)

	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(d.done)
	p.dialing = nil
	if d.pl != nil {
		p.hello = d.pl.conn.Theirs()
		d.pl.using.Add(d.waiters)
		if err := d.pl.conn.Err(); err != nil { // so ended has run, or finds another link current
			d.pl, d.err = nil, p.droppedAtOnce(err)
		}
	}
	if d.err != nil {
		p.fail(d.err)
		return
	}
	p.current.Store(d.pl)
	if idle := p.c.o.IdleTimeout; idle > 0 {
		d.pl.timer.Reset(idle)
	}
}

// connect makes a link that the Client knows of.
func (p *Peer) connect(ctx context.Context) (*pooled, *conduit.Error) {
	pl := &pooled{opened: time.Now(), gone: make(chan struct{})}
	pl.timer = time.AfterFunc(time.Hour, func() { p.reap(pl) })
	pl.timer.Stop()
	conn, err := p.c.dial(ctx, p.k, p.c.o.DialTimeout, func(o *link.Options) {
		template := o.OnClose
		o.OnClose = func(err error) {
			p.ended(pl, err)
			if template != nil {
				template(err)
			}
		}
	})
	if err != nil {
		p.c.log.DebugContext(ctx, "no link", "peer", p.k.url, "error", err)
		return nil, err
	}
	pl.conn = conn
	if !p.c.keep(pl) {
		return nil, errClientClosed()
	}
	p.c.log.DebugContext(ctx, "link opened", "peer", p.k.url, "instance", conn.Theirs().Instance)
	return pl, nil
}

// droppedAtOnce is the error of a link that was of no use.
func (p *Peer) droppedAtOnce(cause error) *conduit.Error { return droppedAtOnce(p.k.url, cause) }

func droppedAtOnce(url string, cause error) *conduit.Error {
	why := "the peer is going away"
	if cause != nil {
		why = cause.Error()
	}
	return unreachable(url, "the link closed as soon as it was open: "+why, cause)
}

// fail notes a failed dial. p.mu is held.
func (p *Peer) fail(err *conduit.Error) {
	now := time.Now()
	if now.Sub(p.failed) > forgive {
		p.failures = 0
	}
	p.failures++
	p.last, p.failed = err, now
	if p.failures == 1 {
		p.pause.Reset()
		return
	}
	p.until = now.Add(p.pause.NextBackOff())
}

// ended is called when a link has ended and all its calls with it.
func (p *Peer) ended(pl *pooled, err error) {
	p.mu.Lock()
	pl.timer.Stop()
	if p.current.CompareAndSwap(pl, nil) {
		// In use to the end: not idle, and not told to go away.
		if time.Since(pl.opened) < shortLife {
			p.fail(p.droppedAtOnce(err))
		}
	}
	p.mu.Unlock()
	close(pl.gone)
	p.c.forget(pl)
}

// retire takes a link that is dead or going away out of use; reap closes it when
// its calls have ended. p.mu is held.
func (p *Peer) retire(pl *pooled) {
	p.current.CompareAndSwap(pl, nil)
	pl.timer.Reset(0)
}

// reap closes a link that is idle for long enough, or that is retired and idle,
// and else comes again.
func (p *Peer) reap(pl *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-pl.gone:
		return
	default:
	}
	retired := !pl.conn.Usable()
	next := p.c.o.IdleTimeout
	if retired {
		next = retiredPoll
	}
	pl.closing.Store(true)
	if pl.using.Load() == 0 { // in this order: a call leaves using after the link counts it
		if since, idle := pl.conn.IdleSince(); idle {
			if !retired {
				next = time.Until(since.Add(p.c.o.IdleTimeout))
			}
			if retired || next <= 0 {
				p.current.CompareAndSwap(pl, nil)
				pl.conn.Close(link.CloseDone, "idle")
				return
			}
		}
	}
	pl.closing.Store(false)
	if next > 0 {
		pl.timer.Reset(next)
	}
}
