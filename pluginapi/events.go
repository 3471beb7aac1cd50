package pluginapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The events that an element can subscribe to.
const (
	// EventDeploymentLoaded: all elements of a deployment have come up, or failed;
	// State says which. Sent again with each further generation of one of them.
	EventDeploymentLoaded = pluginlink.DeploymentLoaded
	// EventDeploymentUnloaded: a deployment takes no calls any more, for it was removed
	// or disabled.
	EventDeploymentUnloaded = pluginlink.DeploymentUnloaded
	// EventElementLoaded: a process of an element has become ready, the first one or
	// one that replaces another; it may be the subscriber's own.
	EventElementLoaded = pluginlink.ElementLoaded

	// EventResync comes to every subscriber that has missed changes, and cannot be
	// subscribed to: forget what was told, the present state follows.
	EventResync = pluginlink.Resync

	// AllEvents subscribes to all of them, in the order in which they happened.
	AllEvents = "*"
)

// Event says what is loaded on the element's instance. It has names and ids, never a
// path or what a process has printed.
type Event struct {
	// Name is deployment_loaded, deployment_unloaded, element_loaded, or resync.
	Name string
	// Sequence numbers the changes of the host from 1, each once; events of one kind
	// have gaps, those of [AllEvents] have none but after a resync. An event of the
	// present state has the number of the last change that is in it.
	Sequence uint64
	// Present says that it tells the present state, and is no change.
	Present bool
	// Deployment is the name, as on disk; DeploymentID the id, as in addresses.
	Deployment, DeploymentID string
	// Element and Version are of element_loaded.
	Element, Version string
	// Generation counts the element's processes that became ready; of a deployment,
	// how often it was loaded since it was deployed.
	Generation uint64
	// State is the deployment's status (clean, warnings, unstable or failed), or the
	// element's state, as of ready.
	State string
}

// Subscribe has fn called for each event of a name, or of all with [AllEvents]: first
// for the present state, then for each change in order. It does not wait. Called in
// Start, it takes effect when Start has returned.
//
// fn runs on one goroutine of the subscription. What it takes its time for, waits;
// when more than 256 changes do, they are dropped, and fn gets one event resync and
// the present state again instead, which fit together: nothing that has changed since
// is missing. Whoever subscribed to deployment_unloaded alone is not told what went in
// between, since the present state has no such events: subscribe to AllEvents. An fn
// that panics has its panic logged, and gets the next event.
//
// The subscription ends with unsubscribe, which may be called again, with the
// process, and when the instance drains. It is no call to the element: neither a drain
// nor a reload waits for it. After unsubscribe has returned fn is not called any more,
// but a call under way goes on.
//
// The error says that there is no such event, or no host.
func (h Host) Subscribe(event string, fn func(Event)) (unsubscribe func(), err error) {
	names := pluginlink.EventNames()
	switch {
	case h.h == nil:
		return nil, noHost()
	case fn == nil:
		return nil, Errorf(InvalidArgument, "Subscribe needs a func to call")
	case event == AllEvents:
	case slices.Contains(names, event):
		names = []string{event}
	default:
		return nil, Errorf(InvalidArgument, "there is no event %q to subscribe to; there are %s, and %q for all", event, strings.Join(names, ", "), AllEvents)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscription{host: h.h, names: names, fn: fn, ctx: ctx, cancel: cancel}
	h.h.subscriptions.begin(s)
	return cancel, nil
}

// subscriptions are those that wait for the link to the host.
type subscriptions struct {
	mu    sync.Mutex
	conn  *link.Conn
	early []*subscription
}

// begin starts a subscription as soon as there is a link.
func (l *subscriptions) begin(s *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		l.early = append(l.early, s)
		return
	}
	go s.run(l.conn)
}

// linked starts those that have waited.
func (l *subscriptions) linked(conn *link.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	for _, s := range l.early {
		go s.run(conn)
	}
	l.early = nil
}

// subscription is one call of Subscribe.
type subscription struct {
	host   *host
	names  []string
	fn     func(Event)
	ctx    context.Context //nolint:containedctx // ends with the subscription
	cancel context.CancelFunc
}

// run takes what the host tells until either has enough.
//
//nolint:contextcheck,nolintlint // it outlives whatever subscribed; contextcheck reads this here, and nolintlint does not know
func (s *subscription) run(conn *link.Conn) {
	defer s.cancel()
	if s.ctx.Err() != nil {
		return
	}
	ct, request, err := conduit.Encode(&conduitv1.HostEventsRequest{Names: s.names})
	if err != nil {
		s.ended(err)
		return
	}
	x := conn.Invoke(context.WithoutCancel(s.ctx), claimRoute, &conduit.Invocation{
		Method: pluginlink.EventsMethod, ContentType: ct, Accept: ct, Request: request, HasRequest: true, Last: true,
		Streaming: true, Background: true,
	})
	defer x.Cancel(context.Canceled)
	defer context.AfterFunc(s.ctx, func() { x.Cancel(context.Canceled) })() // also while fn runs
	for {
		m, err := x.Recv(s.ctx)
		if err == nil {
			var e *conduitv1.HostEvent
			if e, err = conduit.Decode[*conduitv1.HostEvent](m); err == nil {
				s.tell(e)
				continue
			}
		}
		s.ended(err)
		return
	}
}

// ended tells the author why no more events come, where that is no matter of course.
func (s *subscription) ended(err error) {
	level := slog.LevelWarn
	e, ok := errors.AsType[*Error](err)
	if s.ctx.Err() != nil || s.lost() || ok && e.Reason == conduit.ReasonDraining {
		level = slog.LevelDebug
	}
	s.host.log.Log(s.ctx, level, "a subscription has ended: no more events come",
		slog.String("events", strings.Join(s.names, ",")), slog.Any("why", err))
}

// lost reports whether the link to the host is over, as at the end of the process.
func (s *subscription) lost() bool {
	conn := s.host.conn.Load()
	return conn != nil && conn.Err() != nil
}

// tell calls the element's func.
func (s *subscription) tell(e *conduitv1.HostEvent) {
	if s.ctx.Err() != nil {
		return // what had come already
	}
	defer func() {
		if p := recover(); p != nil {
			s.host.log.Error("a func that was subscribed to events panicked", slog.String("event", e.GetName()),
				slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
		}
	}()
	s.fn(Event{
		Name: e.GetName(), Sequence: e.GetSequence(), Present: e.GetPresent(), Deployment: e.GetDeployment(), DeploymentID: e.GetDeploymentId(),
		Element: e.GetElement(), Version: e.GetVersion(), Generation: e.GetGeneration(), State: e.GetState(),
	})
}
