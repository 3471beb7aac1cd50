package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Defaults of a Server.
const (
	DefaultMaxLinks    = 4096
	DefaultMaxUpgrades = 256
	// anonymousShare of the links may be anonymous, so that nobody's links
	// cannot keep known callers out: one in so many.
	anonymousShare = 4
	// anonymousCalls is how many calls an anonymous link may have under way.
	anonymousCalls = 64
	// busyRetryAfter and drainRetryAfter are what a refused dialer is asked to
	// wait: limits clear by themselves, an instance that drains is replaced.
	busyRetryAfter  = 1 * time.Second
	drainRetryAfter = 5 * time.Second
	// cancelGrace is what calls that a drain cancels have to answer, so that
	// their callers hear "draining" rather than a lost link.
	cancelGrace = time.Second
	// upgradeTimeout bounds each step of an upgrade: reading the request,
	// authenticating, writing the answer.
	upgradeTimeout = 5 * time.Second
	maxHeaderBytes = 16 << 10
	// bodyPatience is how long the body of a request that is refused may take.
	bodyPatience = time.Second
)

// ServerOptions say how a Server behaves. The zero value of a number is its
// default.
type ServerOptions struct {
	// Handler decides each call that arrives on a link.
	Handler link.Handler
	// Authenticate says who asks for a link, before the upgrade; an error is a
	// 401 with the error's text, which must hold no secret. The request's
	// headers hold one. It runs on the request's goroutine and must observe
	// the request's context, which ends after five seconds: Close waits for it.
	// Nil refuses everybody.
	Authenticate func(*http.Request) (link.Peer, error)
	// Check may refuse a link over WebSocket by what its other end says of itself,
	// before it serves any call; peer is what Authenticate returned. The error's text
	// goes to the other end. It runs on the link's reader and must not block. It comes
	// before Link.Check; nil refuses nobody.
	Check func(peer link.Peer, theirs link.Hello) error
	// Opened is told of each link over WebSocket once it serves, and returns what is
	// to be called once it has ended; neither may block. nil = nobody is.
	Opened func(peer link.Peer, l *link.Conn) (ended func())
	// Origins lists the pages, as "https://example.com", that may open links
	// from a browser. Others' requests are refused if they have an Origin.
	Origins []string
	// MaxLinks bounds the links; a quarter of them may be anonymous.
	MaxLinks int
	// MaxUpgrades bounds the upgrades that are in progress.
	MaxUpgrades int
	// WriteTimeout bounds the write of one message.
	WriteTimeout time.Duration
	// UserTimeout is TCP_USER_TIMEOUT on Linux: how long a peer may acknowledge
	// nothing, or make no room, before the kernel gives it up. 0 = Link.DeadAfter, as
	// the link's own probes; negative leaves it unset.
	UserTimeout time.Duration
	// Reporter makes what a link tells its caller of this instance's room, and judges
	// the units of its calls by: one for each link, before its Hello is sent. It is
	// asked for links over WebSocket of level user and above only, and must not
	// block; nil, of it or from it, is none.
	Reporter func(link.Peer) link.Reporter
	// Ended is told of each link that OpenLinks has returned or would have, once, when
	// it has ended and OpenLinks returns it no more; its numbers are final. It is called
	// on a goroutine of the link, must be safe for concurrent calls and not block; Drain
	// and Close do not wait for it. Nil = nobody is told.
	Ended func(OpenLink)
	// SocketPeer is who is at the other end of the links of ServeSocket.
	SocketPeer link.Peer
	// SocketToken is what they must say in their Hello. It is a secret.
	SocketToken []byte
	// Link is the template of each link's options: its Dialer, Handler, Peer and
	// Reporter are set anew.
	Link link.Options
	// Log takes what there is to say; nil = nothing.
	Log *slog.Logger
}

// Server accepts links on /cluster/v1. It owns them: an http.Server forgets
// connections once they are upgraded, so its Shutdown neither ends them nor
// waits for them, and [Server.Drain] or [Server.Close] must be called as well.
//
// All methods may be called concurrently.
type Server struct {
	o        ServerOptions
	upgrader websocket.Upgrader
	log      *slog.Logger

	mu sync.Mutex
	// The state of all links. It is changed by admit, established and gone only,
	// so that a link that comes while a drain begins is either refused or
	// drained: there is no counter to add to after the wait.
	state     serverState
	upgrading int
	links     map[*link.Conn]opened
	anonymous int           // links and upgrades
	changed   chan struct{} // closed and made anew when a link or an upgrade ends

	toldRefused time.Time // when the log was last told of a refused link
	refused     uint64    // those since then
}

type serverState uint8

const (
	serving serverState = iota
	draining
	closed
)

// NewServer returns a Server that serves until Drain or Close.
func NewServer(o ServerOptions) *Server {
	if o.MaxLinks <= 0 {
		o.MaxLinks = DefaultMaxLinks
	}
	if o.MaxUpgrades <= 0 {
		o.MaxUpgrades = DefaultMaxUpgrades
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.UserTimeout = userTimeoutOf(o.UserTimeout, o.Link.DeadAfter)
	if o.Authenticate == nil {
		o.Authenticate = func(*http.Request) (link.Peer, error) {
			return link.Peer{}, errors.New("this instance authenticates nobody")
		}
	}
	s := &Server{
		o: o, log: o.Log,
		links:   make(map[*link.Conn]opened),
		changed: make(chan struct{}),
	}
	s.upgrader = websocket.Upgrader{
		HandshakeTimeout: upgradeTimeout,
		ReadBufferSize:   readBuffer,
		WriteBufferSize:  serverWriteBuffer,
		Subprotocols:     []string{SubProtocol},
		CheckOrigin:      func(*http.Request) bool { return true }, // checkUpgrade has
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			refuse(status, nil, "%v", reason).write(w)
		},
	}
	return s
}

// HTTPServer returns an http.Server for the Server's listener: HTTP/1.1 only,
// since HTTP/2 cannot carry the upgrade, and with limits on what a stranger may
// hold. h is the Server, or what routes to it.
func (s *Server) HTTPServer(h http.Handler) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		Protocols:         p,
		ReadHeaderTimeout: upgradeTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// ServeHTTP opens a link, or says why not, in this order: is it a proper
// upgrade at all (400, 403, 404, 405, 426), is there room (503), who asks (401).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := s.open(w, r); f != nil {
		if r.ContentLength != 0 {
			// net/http waits for a body before it writes the answer, and nobody wants it.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience))
		}
		f.write(w)
		s.tellRefused(r, f)
	}
}

// refusedEvery is how often the log is told of refused links at level warn: the first says
// what a proxy on the way, or a peer, does wrong, and strangers must not fill the log.
const refusedEvery = 10 * time.Second

// tellRefused logs a refused link; bad sessions are for the audit.
func (s *Server) tellRefused(r *http.Request, f *refusal) {
	level, more := slog.LevelDebug, uint64(0)
	if f.status != http.StatusUnauthorized {
		s.mu.Lock()
		if now := time.Now(); now.Sub(s.toldRefused) >= refusedEvery {
			level, more = slog.LevelWarn, s.refused
			s.toldRefused, s.refused = now, 0
		} else {
			s.refused++
		}
		s.mu.Unlock()
	}
	s.log.Log(r.Context(), level, "link refused", "remote", r.RemoteAddr, "status", f.status, "why", f.text, "more_since_the_last", more)
}

// open makes the request a link, or returns why it is none. When the upgrade
// itself fails, it has been answered.
func (s *Server) open(w http.ResponseWriter, r *http.Request) *refusal {
	if f := checkUpgrade(r, s.o.Origins); f != nil {
		return f
	}
	if f := s.admit(); f != nil {
		return f
	}
	established := false
	anonymous := false
	defer func() {
		if !established {
			s.abandoned(anonymous)
		}
	}()

	ctx, cancel := context.WithTimeout(r.Context(), upgradeTimeout)
	defer cancel()
	peer, err := s.o.Authenticate(r.WithContext(ctx))
	if err != nil {
		return s.unauthenticated(err)
	}
	if peer.Name == "" {
		peer.Name = "client"
	}
	if peer.Level == conduit.Anonymous && !peer.System {
		if f := s.admitAnonymous(); f != nil {
			return f
		}
		anonymous = true
	}

	ws, err := s.upgrader.Upgrade(w, r, nil)
	if err != nil {
		s.log.DebugContext(r.Context(), "upgrade failed", "remote", r.RemoteAddr, "error", err)
		return nil
	}
	userTimeout, err := tune(ws.NetConn(), s.o.UserTimeout)
	if err != nil {
		s.log.DebugContext(r.Context(), "TCP options not set", "remote", r.RemoteAddr, "error", err)
	}
	established = true
	c := newCarrier(ws, s.o.Link.Hello.MaxPacket, s.o.WriteTimeout)
	c.userTimeout = userTimeout
	who := opened{peer: peer, remote: r.RemoteAddr, anonymous: anonymous}
	if s.o.Check != nil {
		who.check = s.checkPeer(peer)
	}
	s.establish(c, who, "")
	return nil
}

// unauthenticated is the refusal of a caller who is not let in. Where nobody could tell
// whether it may be, or it comes too often, it may come again: a 401 would have it throw a
// good session away.
func (s *Server) unauthenticated(err error) *refusal {
	e, ok := errors.AsType[*conduit.Error](err)
	if ok && e.Code == conduit.ResourceExhausted {
		f := unavailable(e.Reason, e.RetryAfter, "not authenticated: %s", authText(err))
		if e.Reason == conduit.ReasonTooManyAttempts {
			f.status = http.StatusTooManyRequests
		}
		return f
	}
	if ok && (e.Code == conduit.Unavailable || e.Code == conduit.DeadlineExceeded || e.Code == conduit.Canceled) {
		return unavailable(e.Reason, max(e.RetryAfter, busyRetryAfter), "not authenticated: %s", authText(err))
	}
	h := map[string]string{"WWW-Authenticate": `Bearer realm="conduit"`}
	if id := s.o.Link.Hello.AuthStore; id != "" {
		h[HeaderAuthStore] = id
	}
	if ok && e.Reason != "" {
		h[HeaderReason] = e.Reason
	}
	return refuse(http.StatusUnauthorized, h, "not authenticated: %s", authText(err))
}

// authText is what a 401 says: the message of a typed error, which is for
// people, without codes that mean nothing outside a call.
func authText(err error) string {
	if e, ok := errors.AsType[*conduit.Error](err); ok && e.Message != "" {
		return e.Message
	}
	return err.Error()
}

// admit counts an upgrade in, or says why it must wait.
func (s *Server) admit() *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state != serving:
		return unavailable(conduit.ReasonDraining, drainRetryAfter, "this instance is draining: use another one")
	case s.upgrading >= s.o.MaxUpgrades:
		return unavailable(conduit.ReasonOverloaded, busyRetryAfter, "%d upgrades are in progress, the most there may be", s.upgrading)
	case len(s.links)+s.upgrading >= s.o.MaxLinks:
		return unavailable(conduit.ReasonOverloaded, busyRetryAfter, "%d links are open, the most that cluster.max_links allows", s.o.MaxLinks)
	}
	s.upgrading++
	return nil
}

// admitAnonymous counts an admitted upgrade as anonymous, or says why not.
func (s *Server) admitAnonymous() *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := max(1, s.o.MaxLinks/anonymousShare); s.anonymous >= most {
		return unavailable(conduit.ReasonOverloaded, busyRetryAfter, "%d anonymous links are open, the most there may be: authenticate", most)
	}
	s.anonymous++
	return nil
}

func unavailable(reason string, after time.Duration, format string, args ...any) *refusal {
	return refuse(http.StatusServiceUnavailable, map[string]string{"Retry-After": retryAfter(after), HeaderReason: reason}, format, args...)
}

// abandoned counts an upgrade out that became no link.
func (s *Server) abandoned(anonymous bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upgrading--
	if anonymous {
		s.anonymous--
	}
	s.notify()
}

// establish makes a link over the carrier, in place of the upgrade. With a
// reason to refuse, the link is told that and ends.
func (s *Server) establish(c link.Carrier, who opened, refusal string) {
	o := s.o.Link
	o.Dialer, o.Duplex = false, false
	o.Handler, o.Peer, o.Reporter = s.o.Handler, who.peer, nil
	// Not on a socket: who connects has not shown the token by the first Status.
	if s.o.Reporter != nil && who.peer.Level >= conduit.User && !who.socket {
		o.Reporter = s.o.Reporter(who.peer)
	}
	if who.check != nil {
		o.Check = who.check
	}
	if o.Log == nil {
		o.Log = s.log
	}
	if who.anonymous && (o.Hello.MaxCalls == 0 || o.Hello.MaxCalls > anonymousCalls) {
		o.Hello.MaxCalls = anonymousCalls
	}
	template := o.OnClose
	var l *link.Conn
	o.OnClose = func(err error) {
		s.gone(&l, err)
		if template != nil {
			template(err)
		}
	}
	s.mu.Lock()
	// Made under the lock, so that a link that serves is one that is known.
	// OnClose, on another goroutine, waits for it.
	l = link.New(c, o)
	s.upgrading--
	s.links[l] = who
	if refusal == "" && s.state != serving {
		refusal = conduit.ReasonDraining // Drain and Close took the links that there were: this one came too late
	}
	s.mu.Unlock()

	if refusal != "" {
		l.GoAway(refusal, drainRetryAfter)
		l.Close(link.CloseGoingAway, refusal)
	}
	s.log.Debug("link opened", "peer", who.peer.Name, "user", who.peer.User, "level", who.peer.Level.String())
	if s.o.Opened != nil && !who.socket {
		s.watched(l, s.o.Opened(who.peer, l))
	}
}

// watched keeps what is to be called at the end of a link, which may be over.
func (s *Server) watched(l *link.Conn, ended func()) {
	s.mu.Lock()
	who, open := s.links[l]
	if open {
		who.ended = ended
		s.links[l] = who
	}
	s.mu.Unlock()
	if !open {
		ended()
	}
}

// checkPeer is the link.Options.Check of a link over WebSocket.
func (s *Server) checkPeer(peer link.Peer) func(link.Hello) error {
	return func(theirs link.Hello) error {
		if err := s.o.Check(peer, theirs); err != nil || s.o.Link.Check == nil {
			return err
		}
		return s.o.Link.Check(theirs)
	}
}

// gone counts a link out that has ended; it reads which under the lock.
func (s *Server) gone(l **link.Conn, err error) {
	s.mu.Lock()
	who := s.links[*l]
	if who.anonymous {
		s.anonymous--
	}
	delete(s.links, *l)
	s.notify()
	s.mu.Unlock()
	if who.ended != nil {
		who.ended()
	}
	if s.o.Ended != nil {
		s.o.Ended(OpenLink{Conn: *l, Peer: who.peer, Remote: who.remote})
	}
	logClosed(s.log, *l, err, "peer", who.peer.Name, "remote", who.remote)
}

// notify wakes those who wait for the links to end. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// StatusChanged says that what the links' Reporters say may have changed, so that
// it is sent where it is worth a packet: see [link.Conn.StatusChanged]. It takes
// the Server's lock and does not wait.
func (s *Server) StatusChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		l.StatusChanged()
	}
}

// Links returns how many links are open.
func (s *Server) Links() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.links)
}

// Drain ends the Server in order. From its start new links are refused (503)
// and new calls on links are refused (GoAway), and calls in the background but for
// claims are cancelled with the cause "draining". A link is closed (1001) as soon
// as the calls that it serves have ended and their answers are written. When ctx
// is done, calls still under way are cancelled with the cause "draining", and
// their links closed.
//
// It returns when every link is gone, which is a few seconds after ctx is done
// at the latest; the error says how many calls had to be cancelled.
func (s *Server) Drain(ctx context.Context) error {
	var links sync.WaitGroup
	var cut atomic.Int64
	for _, l := range s.begin(draining) {
		links.Go(func() { cut.Add(int64(drainLink(ctx, l))) })
	}
	links.Wait()
	s.wait()
	if n := cut.Load(); n > 0 {
		why := "the drain was cut short"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why = "the drain timeout passed"
		}
		return fmt.Errorf("%s: %d calls were cancelled", why, n)
	}
	return nil
}

// drainLink drains one link, and returns how many calls it had to cancel.
func drainLink(ctx context.Context, l *link.Conn) (cut int) {
	l.GoAway(conduit.ReasonDraining, drainRetryAfter)
	l.CancelBackground(&conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Retryable: true, Op: "transport.drain",
		Message: "the instance is going away: calls in the background end at once",
	})
	if l.WaitServed(ctx) != nil {
		_, cut = l.Calls()
		l.CancelIncoming(&conduit.Error{
			Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Retryable: true, Op: "transport.drain",
			Message: "the instance is going away, and the call did not end within the drain timeout",
		})
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		_ = l.WaitServed(grace) // those that do not answer lose their link
	}
	l.Close(link.CloseGoingAway, conduit.ReasonDraining)
	return cut
}

// Close ends all links at once (1001) and their calls with them, refuses new
// ones, and returns when they are gone.
func (s *Server) Close() error {
	for _, l := range s.begin(closed) {
		l.Close(link.CloseGoingAway, conduit.ReasonDraining)
	}
	s.wait()
	return nil
}

// wait returns when the Server has no link and no upgrade is in progress.
func (s *Server) wait() {
	for {
		s.mu.Lock()
		over, changed := len(s.links) == 0 && s.upgrading == 0, s.changed
		s.mu.Unlock()
		if over {
			return
		}
		<-changed
	}
}

// begin enters a state, never an earlier one, and returns the links there are.
// Those that are upgrading learn of the state in establish.
func (s *Server) begin(state serverState) []*link.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = max(s.state, state)
	return slices.Collect(maps.Keys(s.links))
}
