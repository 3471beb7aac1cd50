package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// Conn is one link: many calls over one carrier. All methods may be called
// concurrently.
type Conn struct {
	carrier Carrier
	try     TryWriter // the carrier, if it is one; else nil
	ahead   Buffered  // likewise
	o       Options
	memory  *Memory
	log     *slog.Logger
	// simple: the link has the simple profile. It is set before the link is ready, and
	// read without the lock by who has a call there.
	simple bool
	room   chan struct{} // there may be room for what the reader waits with

	readyCh chan struct{} // closed when the other end's Hello was taken, or never will be
	done    chan struct{} // closed when all is over

	mu sync.Mutex // guards what follows, and the calls

	ready  bool
	theirs Hello
	err    error // why the link ended; nil while it lives

	calls         map[uint64]*call
	free          []*call
	nextID        uint64        // of the next Invoke of this end
	lastID        uint64        // highest id that the other end used
	out, inc      int           // calls of this end; calls of the other
	outBackground int           // of out
	incBackground int           // of inc
	outLeft       int           // of out, without outBackground: cancelled, and not answered yet
	incLeft       int           // of inc, in the same way
	windows       int64         // promised to calls of this link
	idleWake      chan struct{} // closed when no incoming call is left
	holds         int           // in use
	freeHolds     []*hold

	leaving   bool           // CloseWhenIdle was called
	refusing  bool           // this end said GoAway
	heldAway  []byte         // a GoAway that waits for this end's Hello
	goneAway  *conduit.Error // the other end said GoAway
	goneLast  uint64         // the last call that it serves
	turn      uint64         // of messages that came in pieces
	idleSince time.Time

	// Writing.
	writing    bool
	yielding   bool   // somebody lets others run before it writes
	wbuf       []byte // the next packet, as far as it is decided
	spare      []byte
	ctrl       []byte // control frames for the next packet
	small      callList
	bulk       callList
	smallRun   int           // bytes of small frames since the last bulk chunk
	owing      []ref         // calls that owe credit
	linkCredit int64         // what the other end lets this one send
	unreturned int64         // what it has not credited back yet
	linkOwed   int64         // what was read and not credited back yet
	blocked    bool          // no link credit for the frame that is next
	stalled    bool          // the reader waits for room; simple links only
	shut       bool          // the carrier is being closed: nothing is written any more
	idleWriter chan struct{} // closed when no write is under way
	scratch    frame.Invoke
	strings    []byte        // behind the scratch
	timers     []*time.Timer // lent to calls that wait

	effects, spareEffects []effect

	live   liveness
	grow   growth
	report reporting
	units  accounts
	stat   Stats
	// foreground is out without outBackground, and off is set once there is to be
	// no further call: both are asked at each pick among links, so without the lock.
	foreground atomic.Int64
	off        atomic.Bool

	// The reader's own.
	now     time.Time // of the packet in hand; written under mu
	greeted bool      // the other end's Hello was taken
	in      Incoming
	touched []*Conn

	crew    crew
	closing sync.Once
	readEnd chan struct{}
}

// Stats are counters of a link since its start.
type Stats struct {
	PacketsOut, PacketsIn, BytesOut, BytesIn uint64
	// Dropped counts frames for calls that had ended.
	Dropped uint64
	// Queued is what waits to be written now, in calls.
	Queued int
	// RTT is the last measured round trip; 0 = not measured yet.
	RTT time.Duration
	// Heard is when a packet came last; when the link began, if none has.
	Heard time.Time
}

// New starts a link over a carrier, which it owns from now on.
func New(carrier Carrier, o Options) *Conn {
	o = o.withDefaults()
	c := &Conn{
		carrier: carrier, o: o, memory: o.Memory, log: o.Log,
		readyCh: make(chan struct{}), done: make(chan struct{}), readEnd: make(chan struct{}),
		calls: make(map[uint64]*call), nextID: 2,
	}
	if o.Dialer {
		c.nextID = 1
	}
	c.try, _ = carrier.(TryWriter)
	c.ahead, _ = carrier.(Buffered)
	c.now = time.Now()
	c.idleSince = c.now
	c.in.conn = c
	if o.Simple || o.Hello.Simple {
		c.room = make(chan struct{}, 1)
	}
	if o.Hello.Simple {
		c.becomeSimple()
	}
	c.grow.limit, c.grow.began = int64(o.Hello.LinkCredit), c.now
	c.startReporting()
	c.mu.Lock()
	if !o.Dialer {
		c.sayHello()
	}
	c.startLiveness()
	c.unlock()
	go c.readLoop()
	if !o.Dialer {
		go c.flush() // not here: a carrier may wait for its reader
	}
	return c
}

func (o Options) withDefaults() Options {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.PingInterval, DefaultPingInterval)
	def(&o.ProbeInterval, DefaultProbeInterval)
	def(&o.DeadAfter, DefaultDeadAfter)
	def(&o.HelloTimeout, DefaultHelloTimeout)
	def(&o.CallTimeout, conduit.DefaultCallTimeout)
	if o.Memory == nil { // nobody shares it
		o.Memory = NewMemory(0)
	}
	if o.LinkMemory == 0 {
		o.LinkMemory = DefaultLinkMemory
	}
	if o.LostReason == "" {
		o.LostReason = conduit.ReasonPeerLost
	}
	if o.Op == "" {
		o.Op = "link"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Hello = o.Hello.ours()
	return o
}

// Ready waits for the other end's Hello. The error says that no call can be
// sent, and why.
func (c *Conn) Ready(ctx context.Context) error {
	select {
	case <-c.readyCh:
	case <-ctx.Done():
		return conduit.FromContext(ctx, conduit.NotSent)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready || c.err != nil {
		return c.lost(conduit.NotSent)
	}
	return nil
}

// Theirs returns the other end's Hello; it is zero before Ready.
func (c *Conn) Theirs() Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.theirs
}

// Done is closed when the link is over: nothing of it runs any more but
// handlers that ignore their context.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the link ended, or nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Usable reports whether new calls may be sent: the link lives and the other
// end is not going away.
func (c *Conn) Usable() bool { return !c.off.Load() }

// Outstanding returns the calls of this end that are under way, without those in
// the background.
func (c *Conn) Outstanding() int { return int(c.foreground.Load()) }

// Unsent returns the units of all calls that this end handed to the link, by Invoke
// or Splice, and that the other end will never judge: those that ended before their
// Invoke was written, and those above the last call of its GoAway, also if this end
// had given them up by then. It never falls, and counts each call once. Calls that
// were written when the link was lost are not in it.
func (c *Conn) Unsent() uint64 { return c.units.unsent.Load() }

// Within returns ctx for a call that begins now and whose link is yet to be made, by a
// Conn with these options: what the link would give a unary call without a deadline, it
// has from now on. free is to be called when the call has been made: the link keeps the
// instant alone.
func (o Options) Within(ctx context.Context, in *conduit.Invocation) (_ context.Context, free context.CancelFunc) {
	limit := o.CallTimeout
	if limit == 0 {
		limit = conduit.DefaultCallTimeout
	}
	if _, ok := ctx.Deadline(); ok || in.Streaming || in.Background || limit < 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// Calls returns the calls under way: made by this end, and served for the other.
func (c *Conn) Calls() (out, in int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out, c.inc
}

// Overdue returns the calls under way, either way, that were cancelled or whose
// deadline has passed, and whose handler goes on: there is no answer yet.
func (c *Conn) Overdue() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, now := 0, time.Now()
	for _, k := range c.calls {
		if (k.ours || !k.sendEnded) && (k.cancelled || !k.deadline.IsZero() && now.After(k.deadline)) {
			n++
		}
	}
	return n
}

// under is how many calls count for max_calls: not those in the background, and of
// those that were cancelled, and whose handlers go on, only what is above as many
// again. So handlers that ignore their context do not take the link from the calls
// of others, and a peer still has a bound for what it may leave behind.
func under(calls, background, left, most int) int {
	return calls - background - min(left, most)
}

// IdleSince returns since when no call is under way but those in the
// background; ok is false while one is.
func (c *Conn) IdleSince() (since time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idleSince, c.idle()
}

// Stats returns the link's counters.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stat
	s.Heard = c.live.lastIn
	for _, l := range []*callList{&c.small, &c.bulk} {
		for k := l.head; k != nil; k = k.next {
			s.Queued++
		}
	}
	return s
}

// GoAway tells the other end that calls it starts from now on are not served;
// those under way go on. It may be called again to no effect.
func (c *Conn) GoAway(reason string, retryAfter time.Duration) {
	c.mu.Lock()
	if c.err == nil && !c.refusing {
		c.refusing = true
		body := encodeGoAway(c.lastID, reason, "", retryAfter)
		if c.o.Dialer && !c.ready {
			c.heldAway = body // this end's Hello goes first, and comes later
		} else {
			c.ctrl = frame.AppendBody(c.ctrl, 0, frame.KindGoAway, body)
		}
	}
	c.unlock()
	c.kick()
}

// WaitServed waits until no call of the other end is under way and the last
// answers are written, or ctx ends, or the link does.
func (c *Conn) WaitServed(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.err != nil || c.inc == 0 && !c.writing && len(c.wbuf) == 0 {
			c.mu.Unlock()
			return nil //nolint:nilerr // nothing more will be served on a link that is over
		}
		var wait chan struct{}
		if c.inc > 0 {
			if c.idleWake == nil {
				c.idleWake = make(chan struct{})
			}
			wait = c.idleWake
		} else {
			// Also when nobody writes yet: the last answer may be in the packet, and
			// whoever put it there not have come as far as to write it.
			if c.idleWriter == nil {
				c.idleWriter = make(chan struct{})
			}
			wait = c.idleWriter
		}
		c.mu.Unlock()
		c.kick()
		select {
		case <-wait:
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CancelIncoming cancels every call that this end serves, with a cause that
// its handlers see.
func (c *Conn) CancelIncoming(cause *conduit.Error) {
	c.cancelIncoming(cause, func(*call) bool { return true })
}

// CancelIncomingOf cancels the calls of a guest that this end serves, as
// CancelIncoming does; those that come with the guest later are not cancelled.
func (c *Conn) CancelIncomingOf(g Guest, cause *conduit.Error) {
	c.cancelIncoming(cause, func(k *call) bool { return k.guest == g })
}

// host notes whose guest a call is; k is nil for one that is over. c.mu is held.
func (c *Conn) host(k *call, g Guest) {
	if k == nil {
		c.later(effect{kind: effectLeft, guest: g})
		return
	}
	if k.guest != nil {
		c.later(effect{kind: effectLeft, guest: k.guest})
	}
	k.guest = g
}

// CancelBackground cancels the background calls that this end serves, as
// CancelIncoming does, but for those that [Incoming.KeepInDrain] was called for:
// what a drain does at once.
func (c *Conn) CancelBackground(cause *conduit.Error) {
	c.cancelIncoming(cause, func(k *call) bool { return k.background && !k.kept })
}

func (c *Conn) cancelIncoming(cause *conduit.Error, which func(*call) bool) {
	c.mu.Lock()
	var list []ref
	for _, k := range c.calls {
		if !k.ours && which(k) {
			list = append(list, k.ref())
		}
	}
	c.unlock()
	for _, r := range list {
		c.cancelServed(r, cause)
	}
	c.kick()
}

// all returns the link's calls, those that wait for their first packet included. It is
// a list of its own, for who ends them. c.mu is held.
func (c *Conn) all() (list []*call) {
	for _, k := range c.calls {
		list = append(list, k)
	}
	for _, l := range []*callList{&c.small, &c.bulk} {
		for k := l.head; k != nil; k = k.next {
			if k.id == 0 {
				list = append(list, k)
			}
		}
	}
	return list
}

// EndPassedOn ends the calls that were spliced onto this link with an error, whose outcome
// becomes not_sent for those that never left: their callers hear of it at once. The other
// end is told to cancel them, and an owner hears of the end when that end is done with
// its call. All other calls go on.
func (c *Conn) EndPassedOn(err *conduit.Error) {
	c.mu.Lock()
	for _, k := range c.all() {
		if k.live && k.ours && k.owner != nil {
			c.orphan(k, err)
		}
	}
	c.unlock()
	c.kick()
}

// Close ends every call and closes the carrier, after what is already decided
// has been written. It is idempotent and does not wait; Done tells.
func (c *Conn) Close(code CloseCode, reason string) {
	c.fail(&CloseError{Code: code, Reason: reason})
}

// CloseWhenIdle takes no new calls of this end (they end NotSent) and closes the
// link as soon as none is under way, either way; those in the background do not
// count, and end with the link. No call can be lost to it: one that was taken
// before is waited for. It does not wait itself; Done tells.
func (c *Conn) CloseWhenIdle() {
	c.mu.Lock()
	c.leaving = true
	c.off.Store(true)
	if c.idle() {
		c.later(effect{kind: effectClose})
	}
	c.unlock()
}

// idle reports whether no call is under way but this end's in the background.
// c.mu is held.
func (c *Conn) idle() bool { return c.out == c.outBackground && c.inc == 0 }

// fail ends the link. The first reason counts.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	c.failLocked(err)
	c.unlock()
}

func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.wake()
	c.off.Store(true)
	c.stopLiveness()
	c.stopReporting()
	c.shrink()
	c.log.Debug("link over", "cause", err.Error())
	for _, k := range c.all() {
		switch {
		case !k.live:
		case k.ours && k.id == 0:
			c.ended(k, c.lost(conduit.NotSent), nil)
		case k.ours:
			c.ended(k, c.lost(conduit.OutcomeUnknown), nil)
		default:
			c.abandon(k, c.lost(conduit.OutcomeUnknown))
		}
	}
	if !c.ready {
		c.closeReady()
	}
	code, reason := CloseAbnormal, ""
	var ce *CloseError
	if errors.As(err, &ce) && !ce.Remote {
		code, reason = ce.Code, ce.Reason
	}
	c.closing.Do(func() { go c.shutdown(code, reason) })
}

// closeReady lets go of who waits for the Hello.
func (c *Conn) closeReady() {
	select {
	case <-c.readyCh:
	default:
		close(c.readyCh)
	}
}

// abandon ends a call of the other end without an answer, since none can be
// sent: its handler is cancelled, or the call it is spliced to.
func (c *Conn) abandon(k *call, cause *conduit.Error) {
	if k.parked() {
		c.unpark(k, early(cause, k.doubt, c.o.Op))
	}
	if k.server != nil {
		k.server.ctx.end(cause)
	}
	if k.peer.k != nil {
		c.later(effect{kind: effectCancel, to: k.peer, reason: cause.Reason})
	}
	if k.in != nil {
		k.in.end(cause)
	}
	c.retire(k)
}

// lost is the error of a call that dies with the link, or cannot be sent on it.
func (c *Conn) lost(outcome conduit.Outcome) *conduit.Error {
	if g := c.goneAway; g != nil && c.err == nil {
		e := *g
		e.Outcome = outcome
		return &e
	}
	e := &conduit.Error{
		Code: conduit.Unavailable, Reason: c.o.LostReason, Outcome: outcome, Retryable: true,
		Op: c.o.Op, Peer: c.o.Peer.Name, Err: c.err,
	}
	what := "the link to the peer"
	if c.o.LostReason == conduit.ReasonPluginLost {
		what = "the plugin's process or its link"
	}
	switch {
	case c.err == nil:
		e.Message = what + " takes no calls"
	case !c.ready:
		e.Message = fmt.Sprintf("%s was never ready: %v", what, c.err)
		if g := c.goneAway; g != nil {
			e.Code, e.Reason, e.Retryable, e.Message = g.Code, g.Reason, g.Retryable, g.Message
		}
	default:
		e.Message = fmt.Sprintf("%s was lost: %v", what, c.err)
		switch {
		case outcome != conduit.OutcomeUnknown:
		case c.o.LostReason == conduit.ReasonPluginLost:
			e.Message += "; the host's log says how it ended"
		default:
			e.Message += "; see whether the work was done before calling again"
		}
	}
	return e
}

// shutdown closes the carrier once what is decided has been written, and then
// the link is over.
func (c *Conn) shutdown(code CloseCode, reason string) {
	c.kick() // not flush: a write that is stuck must not keep the carrier open
	c.mu.Lock()
	wait := c.writerIdle()
	c.mu.Unlock()
	if wait != nil {
		t := time.NewTimer(closeWait)
		select {
		case <-wait:
		case <-t.C:
		}
		t.Stop()
	}
	c.mu.Lock()
	c.shut = true
	wait = c.writerIdle()
	err := c.err
	c.mu.Unlock()
	if err := c.carrier.Close(code, reason); err != nil {
		c.log.Debug("carrier close", "error", err.Error())
	}
	<-c.readEnd
	if wait != nil {
		<-wait
	}
	if c.o.OnClose != nil {
		c.o.OnClose(err)
	}
	close(c.done)
}

// closeWait is how long what is decided may take to be written at the end.
const closeWait = time.Second

// writerIdle returns what is closed when the write under way is over, or nil
// when there is none. c.mu is held.
func (c *Conn) writerIdle() chan struct{} {
	if c.writing && c.idleWriter == nil {
		c.idleWriter = make(chan struct{})
	}
	return c.idleWriter
}
