package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Defaults of a gateway.
const (
	DefaultMaxBody     = 10 << 20
	DefaultTimeout     = conduit.DefaultCallTimeout
	DefaultConcurrency = 1024
	DefaultMemory      = 256 << 20
	DefaultStall       = 30 * time.Second
	DefaultKeepAlive   = 15 * time.Second
	DefaultWatchers    = 256
)

// Options say how a gateway works. Zero numbers are the defaults. The funcs are
// called from many goroutines at once.
type Options struct {
	// Locate returns who calls the methods at an address, which is valid and in
	// the form of address.Address.String. It must not wait, and never returns nil:
	// what is wrong surfaces at the call.
	Locate func(addr string) conduit.Invoker
	// Authenticate says on whose behalf the request calls. Its error should be a
	// *conduit.Error, whose message the client gets to see; any other is answered
	// with an internal error without its text. nil = unset: what that means the
	// other end decides.
	Authenticate func(*http.Request) (conduit.AsWhom, error)
	// Watch has ended called at most once when whoever calls may call no more, such as
	// when the session has ended; stop ends the watching. A stream is cancelled with
	// that error, a call for one result finishes. ended does not block, and may be
	// called before Watch returns. nil = nobody is watched.
	Watch func(as conduit.AsWhom, ended func(*conduit.Error)) (stop func())
	// Sessions logs clients in and out; nil = the gateway does not.
	Sessions Sessions
	// AuthStore is the id of the store that knows the sessions, for the header
	// Conduit-Auth-Store of each 401; empty = none.
	AuthStore string

	// Directory says what there is, at /v1/instances and its like; nil = there are no such
	// paths.
	Directory Directory

	// MaxBody bounds a request's body, in bytes.
	MaxBody int64
	// Timeout bounds a call whose client asked for one result and gave no
	// deadline of its own; negative = none. A call that was asked for as a stream
	// has none.
	Timeout time.Duration
	// Concurrency bounds the calls under way; further ones are refused. A request
	// whose body is still coming is none yet.
	Concurrency int
	// Watchers bounds the clients that are told of events at /v1/events. They are no
	// calls, and take no place of one.
	Watchers int
	// Memory bounds what the bodies of all calls under way hold, in bytes. Results
	// count as well while they are written, though they are never refused. Half of it is
	// for callers with a session: the bodies of others ([conduit.AsAnonymous]) hold at
	// most the other half. While more than half is held, a body must come at 64 KiB a
	// second on the whole, once it has had the time of Stall.
	Memory int64
	// Stall is how long 64 KiB of a body or of an answer may take.
	Stall time.Duration
	// KeepAlive is how long a stream of events may be silent before a comment is
	// sent; negative = for ever.
	KeepAlive time.Duration

	// Origins lists the origins of web pages that may call, such as
	// "https://app.example.com", or "*" for all. A request with an Origin that is
	// not listed is refused; none is unless it is.
	Origins []string
	// Hosts lists the names that the gateway goes by, each with a port or for all
	// ports; a request with another Host is refused. Empty = on a loopback
	// listener "localhost" and loopback addresses, on others everything.
	Hosts []string

	// Observe hears of each request once it was answered; nil = nobody does. It
	// must not wait.
	Observe func(Observation)
	// Log takes a line at debug level for each request, and the faults of what the
	// gateway was given; nil = nothing. No credential and no payload is logged.
	Log *slog.Logger
}

// Observation is what became of one request.
type Observation struct {
	// Deployment, Service and Method are what the client wrote, in the grammar of
	// addresses and methods; empty if the request named none. Whoever makes labels
	// of them must bound them: a client can think up as many as it likes.
	Deployment, Service, Method string
	// Path is that of the request, as it came, if there is something at it; else empty.
	Path string
	// Err is how the call ended; nil = well.
	Err *conduit.Error
	// Status is that of the answer; with a stream it may be 200 and Err set.
	Status int
	// Duration is from the request's header to the end of the answer.
	Duration time.Duration
	// Results counts the messages that were written, Sent their bytes as written.
	Results int
	Sent    int64
	// Received is the size of the request's body.
	Received int64
	// TraceID is that of the trace that the request is part of.
	TraceID string
}

// Gateway answers requests. All methods may be called concurrently.
type Gateway struct {
	o       Options
	origins origins
	hosts   hosts
	calls   atomic.Int64
	memory  atomic.Int64
	// strangers is what of memory the bodies of callers without a session hold.
	strangers atomic.Int64

	watchers atomic.Int64
	makers   chan struct{} // has one in it for each who makes a list
	zips     chan struct{} // has one in it for each who compresses
}

// New returns a gateway. The error says which option cannot be: Locate is missing,
// or an origin or host is not written as one.
func New(o Options) (*Gateway, error) {
	if o.Locate == nil {
		return nil, errors.New("gateway: Options.Locate is missing")
	}
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Watchers <= 0 {
		o.Watchers = DefaultWatchers
	}
	if o.Memory <= 0 {
		o.Memory = DefaultMemory
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStall
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{o: o, makers: make(chan struct{}, makers), zips: make(chan struct{}, runtime.GOMAXPROCS(0))}
	var err error
	if g.origins, err = parseOrigins(o.Origins); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if g.hosts, err = parseHosts(o.Hosts); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// InFlight is the number of calls under way. Requests whose body is still coming are
// not among them.
func (g *Gateway) InFlight() int { return int(g.calls.Load()) }

// ServeHTTP implements http.Handler. It returns when the call has ended, of which
// it leaves nothing behind.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{
		g: g, r: r, began: time.Now(),
		reply: newReply(w, g.o.Stall, g.o.AuthStore),
		trace: parseTrace(r.Header),
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(headerTraceID, q.trace.id())

	f := q.serve(r.Context())
	if f != nil && !q.reply.started() {
		q.discard(f)
		q.reply.problem(f)
	}
	q.observe(r.Context(), f)
}

// request is one request on its way through the gateway.
type request struct {
	g     *Gateway
	r     *http.Request
	reply *reply
	began time.Time
	trace trace
	route route

	received int64 // bytes of the body
	read     bool  // to its end
	lines    bool  // it is sent line by line
	held     int64 // bytes counted in Gateway.memory
	stranger bool  // without a session, where others have one: counted in Gateway.strangers, too
}

// serve answers the request unless it returns a fault. If the answer has begun,
// the fault has been told already, and is returned for the record alone.
func (q *request) serve(ctx context.Context) *fault {
	if done, f := q.door(); done || f != nil {
		return f
	}
	if q.r.Method != http.MethodPost {
		if f := q.noBody(); f != nil {
			return f
		}
	}
	switch path := q.r.URL.EscapedPath(); {
	case path == sessionsPath:
		return q.login(ctx)
	case path == currentPath:
		return q.logout(ctx)
	case isDirectory(path):
		return q.directory(ctx, path)
	}
	accept, f := negotiate(q.r.Header.Values("Accept"))
	if f != nil {
		return f
	}
	if f := q.route.readQuery(q.r.URL.RawQuery); f != nil {
		return f
	}
	if q.route.parts && !accept.streams() {
		accept = formLines // which have a place to say the part
	}
	limit, f := timeoutOf(q.r.Header)
	if f != nil {
		return f
	}
	as, f := q.whom(ctx)
	if f != nil {
		return f
	}

	q.stranger = as.Kind == conduit.AsAnonymous
	defer q.release()
	if q.g.calls.Load() >= int64(q.g.o.Concurrency) {
		return q.g.full() // before the body is read, which would be for nothing
	}
	in := &conduit.Invocation{
		Method: q.route.method, Accept: accept.content(), Last: true, Streaming: accept.streams(),
		As: as, TraceParent: q.trace.parent, TraceState: q.trace.state,
	}
	if f := q.readRequest(in); f != nil {
		return f
	}
	// It is a call from here on: who sends a body slowly takes nobody's place.
	if q.g.calls.Add(1) > int64(q.g.o.Concurrency) {
		q.g.calls.Add(-1)
		return q.g.full()
	}
	defer q.g.calls.Add(-1)
	ctx, cancel := q.bound(ctx, limit, in.Streaming)
	defer cancel()
	if in.Streaming && q.g.o.Watch != nil {
		watched, expel := context.WithCancelCause(ctx)
		defer expel(nil)
		defer q.g.o.Watch(as, func(why *conduit.Error) { expel(why) })()
		ctx = watched
	}
	if q.lines {
		return q.callLines(ctx, in, accept)
	}
	return q.call(ctx, q.invoke(ctx, in), nil, accept)
}

// whom says on whose behalf the request is made.
func (q *request) whom(ctx context.Context) (as conduit.AsWhom, _ *fault) {
	if q.g.o.Authenticate == nil {
		return as, nil
	}
	as, err := q.g.o.Authenticate(q.r)
	if err != nil {
		return as, q.foreign(ctx, "who calls could not be checked", err, conduit.NotSent)
	}
	return as, nil
}

// full refuses a call for which there is no place.
func (g *Gateway) full() *fault {
	return overloaded("%d calls are under way, the gateway's limit", g.o.Concurrency)
}

// bound gives the call its deadline: the client's, counted from the request's
// header, or the gateway's for one that wants one result.
func (q *request) bound(ctx context.Context, limit time.Duration, streaming bool) (context.Context, context.CancelFunc) {
	switch {
	case limit > 0:
		return context.WithDeadline(ctx, q.began.Add(limit))
	case q.g.o.Timeout > 0 && !streaming:
		return context.WithTimeout(ctx, q.g.o.Timeout)
	}
	return context.WithCancel(ctx)
}

// hold counts n more bytes as held until the request is over. It reports whether
// the gateway has room for them; they count either way.
func (q *request) hold(n int64) bool {
	q.held += n
	room := q.g.memory.Add(n) <= q.g.o.Memory
	if q.stranger {
		room = q.g.strangers.Add(n) <= q.g.o.Memory/2 && room
	}
	return room
}

// unhold gives n bytes back before that.
func (q *request) unhold(n int64) {
	q.held -= n
	q.g.memory.Add(-n)
	if q.stranger {
		q.g.strangers.Add(-n)
	}
}

// release gives back what the request holds.
func (q *request) release() {
	q.unhold(q.held)
}

// crowded says that others may soon want the memory that the request holds.
func (q *request) crowded() bool {
	most := q.g.o.Memory
	return q.g.memory.Load() > most/2 || q.stranger && q.g.strangers.Load() > most/4
}

// foreign makes a fault of an error that came from what the gateway was given. One
// that is not a *conduit.Error was not written for a client to read.
func (q *request) foreign(ctx context.Context, what string, err error, outcome conduit.Outcome) *fault {
	if e, ok := errors.AsType[*conduit.Error](err); ok {
		return &fault{err: e}
	}
	q.g.o.Log.WarnContext(ctx, "gateway: an error that is no *conduit.Error", "what", what, "error", err)
	e := conduit.Errorf(conduit.Internal, conduit.ReasonInternal, outcome, "%s", what)
	e.Err = err
	return &fault{err: e}
}

// maxPath is the longest path that is observed, in bytes.
const maxPath = 1 << 10

// observe tells the hook and the log.
func (q *request) observe(ctx context.Context, f *fault) {
	path := q.r.URL.EscapedPath()
	if q.g.methodOf(path) == "" || len(path) > maxPath {
		path = ""
	}
	o := Observation{
		Path: path, Deployment: q.route.addr.DeploymentText(), Service: q.route.addr.Service().String(), Method: q.route.method,
		Status: q.reply.status, Duration: time.Since(q.began),
		Results: q.reply.results, Sent: q.reply.sent, Received: q.received, TraceID: q.trace.id(),
	}
	if f != nil {
		o.Err = f.err
	}
	if q.g.o.Observe != nil {
		q.g.o.Observe(o)
	}
	if !q.g.o.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("address", q.route.addr.String()), slog.String("method", q.route.method),
		slog.Int("status", o.Status), slog.Int("results", o.Results), slog.Duration("took", o.Duration),
		slog.String("trace_id", o.TraceID),
	}
	if o.Err != nil {
		attrs = append(attrs, slog.String("code", o.Err.Code.String()), slog.String("reason", o.Err.Reason),
			slog.String("outcome", o.Err.Outcome.String()), slog.String("peer", o.Err.Peer))
	}
	q.g.o.Log.LogAttrs(ctx, slog.LevelDebug, "gateway: request", attrs...)
}
