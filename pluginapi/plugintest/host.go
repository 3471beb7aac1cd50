package plugintest

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/conformance"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/pluginapi"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const (
	pipeDepth = 16 // messages
	maxDepth  = 16 // elements in a chain of calls
)

// host dispatches calls to the elements of a test, as an instance's host does.
type host struct {
	instance address.InstanceID
	log      *slog.Logger
	front    *link.Conn
	budget   *budget.Budget
	events   events

	mu      sync.Mutex
	plugins []*plugin
	running map[uint64]*running // spliced calls that a plugin may still work on, by tag
	lastTag uint64
	idle    chan struct{} // closed when there are none; nil unless somebody waits
}

// running is a call that an element serves.
type running struct {
	caller frame.Caller
	units  *budget.Reservation // nil if it costs none
}

// plugin is an element that runs, and the host's end of the link to it.
type plugin struct {
	h          *host
	deployment string
	element    string
	serving    serving
	near       *link.Conn
	far        *link.Conn   // its own end of the link; nil if it has a process of its own
	end        func() error // ends its process, when its link is over; nil if it has none
	attributes *conduitv1.AttributesResponse
	units      map[string]uint32 // what a call costs, by service and method
}

// serving is what a host asks of an element beside its calls, wherever it runs.
type serving interface {
	Describe() *conduitv1.Description
	Health(ctx context.Context) *conduitv1.HealthResponse
	Stop(ctx context.Context) error
}

// costOf is the key of plugin.units.
func costOf(service, method string) string { return service + "/" + method }

// run starts an element; the test fails if it does not.
func (h *host) run(tb testing.TB, deployment string, e pluginapi.Element, given settings) {
	tb.Helper()
	serving, err := pluginapi.Serving(e, h.log.With(slog.String("element", e.Name)))
	if err != nil {
		tb.Fatalf("plugintest: the element has mistakes:\n%v", err)
	}
	if err := address.ValidDeploymentName(deployment); err != nil {
		tb.Fatalf("plugintest: %v; name the deployment with plugintest.Deployment", err)
	}
	p := newPlugin(h, deployment, serving)
	near, far := link.Pipe(pipeDepth)
	p.far = link.New(far, link.Options{Duplex: true, Handler: serving.Handler(), Op: "plugin", Peer: link.Peer{Name: "host", System: true}})
	p.near = link.New(near, link.Options{
		Dialer: true, Duplex: true, Handler: p, Op: "plugin", Peer: link.Peer{Name: e.Name}, LostReason: conduit.ReasonPluginLost,
	})
	h.add(p)
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := p.near.Ready(ctx); err != nil {
		tb.Fatalf("plugintest: the link to element %s: %v", e.Name, err)
	}
	serving.Linked(p.far)
	in := &conduitv1.ConfigureRequest{
		Deployment: deployment,
		Element:    e.Name,
		DataDir:    given.dataDir,
		MaxMessage: link.DefaultMaxMessage,
		Instance:   h.instance.String(),
	}
	values, sensitive := given.given()
	in.Attributes, in.SensitiveAttributes = conformance.Attributes(serving.Describe(), values, sensitive)
	p.attributes = &conduitv1.AttributesResponse{Attributes: maps.Clone(in.GetAttributes()), Sensitive: in.GetSensitiveAttributes()}
	answer, err := serving.Configure(ctx, in)
	if err != nil {
		tb.Fatalf("plugintest: element %s does not start: %v", e.Name, err)
	}
	for _, w := range answer.GetWarnings() {
		tb.Logf("plugintest: element %s warns: %s", e.Name, w)
	}
	h.loaded(deployment, serving.Describe())
}

// loaded tells of a deployment that runs.
func (h *host) loaded(deployment string, d *conduitv1.Description) {
	h.events.tell(pluginapi.Event{Name: pluginapi.EventElementLoaded, Deployment: deployment, Element: d.GetElement(), Version: d.GetVersion()})
	h.events.tell(pluginapi.Event{Name: pluginapi.EventDeploymentLoaded, Deployment: deployment})
}

func newPlugin(h *host, deployment string, s serving) *plugin {
	d := s.Describe()
	p := &plugin{h: h, deployment: deployment, element: d.GetElement(), serving: s, units: map[string]uint32{}}
	for _, s := range d.GetServices() {
		for _, m := range s.GetMethods() {
			p.units[costOf(s.GetName(), m.GetName())] = m.GetUnits()
		}
	}
	return p
}

func (h *host) add(p *plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plugins = append(h.plugins, p)
}

// all returns the elements, the one that the test is about last.
func (h *host) all() []*plugin {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.plugins)
}

// last returns the element that the test is about.
func (h *host) last() *plugin {
	all := h.all()
	return all[len(all)-1]
}

// stop stops the elements, after their calls have ended.
func (h *host) stop(tb testing.TB) {
	tb.Helper()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-h.whenIdle():
	case <-t.C:
		tb.Errorf("plugintest: handlers run on though their calls are over; they must watch their context. Goroutines:\n%s", stacks())
	}
	for _, p := range h.all() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		if err := p.serving.Stop(ctx); err != nil {
			tb.Errorf("plugintest: element %s does not stop: %v", p.element, err)
		}
		cancel()
	}
	if h.front != nil {
		h.front.Close(link.CloseDone, "the test is over")
		await(tb, h.front)
	}
	for _, p := range h.all() {
		p.near.Close(link.CloseDone, "the test is over")
		await(tb, p.near)
		if p.far != nil {
			await(tb, p.far)
		}
		if p.end != nil {
			if err := p.end(); err != nil {
				tb.Errorf("plugintest: element %s: %v", p.element, err)
			}
		}
	}
}

// whenIdle returns a channel that is closed once no plugin works on a call.
func (h *host) whenIdle() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.running) == 0 {
		now := make(chan struct{})
		close(now)
		return now
	}
	if h.idle == nil {
		h.idle = make(chan struct{})
	}
	return h.idle
}

// CallEnded implements link.Owner.
func (h *host) CallEnded(tag uint64, _ conduit.Code, _ conduit.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.running[tag]; r != nil {
		delete(h.running, tag)
		r.units.Release()
	}
	if len(h.running) == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// frontDoor answers the test's client.
type frontDoor struct{ h *host }

// Handle implements link.Handler.
func (f frontDoor) Handle(in *link.Incoming) {
	caller := frame.Caller{User: []byte("test"), Level: uint8(conduit.User)}
	if in.Invoke.HasAs {
		switch in.Invoke.As.Kind {
		case frame.AsVouched:
			caller.User, caller.Level = in.Invoke.As.Name, in.Invoke.As.Level
		case frame.AsAnonymous:
			caller = frame.Caller{}
		default:
		}
	}
	f.h.dispatch(in, caller)
}

// Handle implements link.Handler: it answers calls that the element makes.
func (p *plugin) Handle(in *link.Incoming) {
	var caller frame.Caller
	var units *budget.Reservation
	if tag, ok := in.Conn().Spliced(in.Invoke.Parent); ok {
		p.h.mu.Lock()
		if r := p.h.running[tag]; r != nil {
			caller, units = r.caller, r.units
		}
		p.h.mu.Unlock()
	}
	if string(in.Invoke.Deployment) == address.BuiltinDeployment {
		p.ask(in, units)
		return
	}
	if in.Invoke.HasAs && in.Invoke.As.Kind == frame.AsSelf {
		caller.User, caller.Level = []byte("element:"+p.deployment), uint8(conduit.User)
	}
	caller.Chain = append(slices.Clip(caller.Chain), []byte(p.deployment+"/"+p.element))
	p.h.dispatch(in, caller)
}

// ask answers what an element asks of its host, in the call that has reserved units.
func (p *plugin) ask(in *link.Incoming, units *budget.Reservation) {
	pluginlink.ServeHost(in, pluginlink.HostAnswers{
		Claim: func(n int64) (pluginlink.Grant, *conduit.Error) {
			claim := p.h.budget.Claim
			if units != nil {
				claim = units.Claim
			}
			held, err := claim(n)
			if err != nil {
				return pluginlink.Grant{}, err
			}
			return pluginlink.Grant{Available: p.h.budget.Snapshot().Available, Release: held.Release}, nil
		},
		Attributes: func() *conduitv1.AttributesResponse { return p.attributes },
		Events:     &p.h.events.feed,
	})
}

// dispatch finds the element that a call is for and passes it on.
func (h *host) dispatch(in *link.Incoming, caller frame.Caller) {
	p, err := h.find(in.Invoke)
	if err != nil {
		in.Refuse(err)
		return
	}
	if len(caller.Chain) > maxDepth {
		in.Refuse(conduit.Errorf(conduit.FailedPrecondition, conduit.ReasonCallLoop, conduit.Refused,
			"the call came through more than %d elements", maxDepth))
		return
	}
	var units *budget.Reservation
	if cost := max(in.Invoke.Units, p.units[costOf(string(in.Invoke.Service), string(in.Invoke.Method))]); cost > 0 {
		if units, err = h.budget.Reserve(int64(cost)); err != nil {
			in.Refuse(err)
			return
		}
	}
	caller.User, caller.Attempt = bytes.Clone(caller.User), in.Invoke.Attempt
	h.mu.Lock()
	h.lastTag++
	tag := h.lastTag
	h.running[tag] = &running{caller: caller, units: units}
	h.mu.Unlock()

	out := *in.Invoke
	out.Caller, out.HasCaller = caller, true
	out.As, out.HasAs, out.Instance, out.Parent, out.Chain = frame.AsWhom{}, false, nil, 0, nil
	in.Splice(p.near, &out, h, tag)
}

// find returns the element that a call is for.
func (h *host) find(in *frame.Invoke) (*plugin, *conduit.Error) {
	a, err := address.FromParts(string(in.Instance), string(in.Deployment), string(in.Element), int(in.Ordinal), in.HasOrdinal, string(in.Service))
	if err != nil {
		return nil, conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.Refused, "%v", err)
	}
	if id, anyInstance := a.Instance(); !anyInstance && id != h.instance {
		return nil, conduit.Errorf(conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.Refused, "this is not instance %s", id)
	}
	id, anyDeployment := a.Deployment()
	ordinal, _ := a.Ordinal()
	found := anyDeployment
	for _, p := range h.all() {
		if !anyDeployment && id != address.UniqueDeploymentID(p.deployment) {
			continue
		}
		found = true
		if a.Element() != p.element {
			continue
		}
		if ordinal == 0 {
			return p, nil
		}
		ordinal--
	}
	if !found {
		return nil, conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "there is no deployment %s", a.DeploymentText())
	}
	return nil, conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.Refused, "there is no element %s", in.Element)
}
