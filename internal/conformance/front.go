package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const (
	pipeDepth  = 16 // messages
	deployment = "conformance"
	// callerName is who calls, with level user.
	callerName = "conformance"
)

// front is a host of one plugin and its one client: calls of the client are spliced
// onto the plugin's link, as a host does it.
type front struct {
	element   string
	plugin    *link.Conn
	near, far *link.Conn
}

// newFront opens the plugin's link.
func newFront(ctx context.Context, r *Running) (*front, error) {
	f := &front{element: r.Description.GetElement()}
	var err error
	f.plugin, err = r.OpenLink(ctx, link.Options{
		Handler: fromPlugin{r}, Peer: link.Peer{Name: "plugin"}, Op: "plugin", LostReason: conduit.ReasonPluginLost,
		DeadAfter: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	near, far := link.Pipe(pipeDepth)
	f.far = link.New(far, link.Options{Handler: f, Op: "conformance", Peer: link.Peer{Name: "client"}})
	f.near = link.New(near, link.Options{Dialer: true, Op: "conformance", Peer: link.Peer{Name: "host"}, CallTimeout: -1})
	return f, f.near.Ready(ctx)
}

// Handle implements link.Handler: calls of the client.
func (f *front) Handle(in *link.Incoming) {
	out := *in.Invoke
	out.Caller, out.HasCaller = frame.Caller{User: []byte(callerName), Level: uint8(conduit.User)}, true
	out.As, out.HasAs, out.Instance, out.Parent, out.Chain = frame.AsWhom{}, false, nil, 0, nil
	in.Splice(f.plugin, &out, f, 0)
}

// CallEnded implements link.Owner.
func (*front) CallEnded(uint64, conduit.Code, conduit.Outcome) {}

// fromPlugin answers what the element calls by itself: there are units for all, and no
// other elements.
type fromPlugin struct{ r *Running }

// Handle implements link.Handler.
func (p fromPlugin) Handle(in *link.Incoming) {
	if string(in.Invoke.Service) == pluginlink.HostService {
		pluginlink.ServeHost(in, pluginlink.HostAnswers{
			Claim: func(int64) (pluginlink.Grant, *conduit.Error) { return pluginlink.Grant{Release: func() {}}, nil },
			Attributes: func() *conduitv1.AttributesResponse {
				return &conduitv1.AttributesResponse{Attributes: p.r.Attributes, Sensitive: p.r.Sensitive}
			},
			Events: &p.r.events,
		})
		return
	}
	in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "no other element runs in a conformance check"))
}

// service gives an Invoker for a service of the element.
func (f *front) service(key string) conduit.Invoker {
	a, err := address.Parse("*://" + deployment + "/" + f.element + "/" + key)
	if err != nil {
		return target{err: conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)}
	}
	return target{f: f, route: link.NewRoute(a)}
}

func (f *front) close() {
	for _, c := range []*link.Conn{f.near, f.far} {
		if c != nil {
			c.Close(link.CloseDone, "the check is over")
			<-c.Done()
		}
	}
}

type target struct {
	f     *front
	route *link.Route
	err   *conduit.Error
}

// Invoke implements conduit.Invoker.
func (t target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	if t.err != nil {
		return conduit.FailedExchange(t.err)
	}
	return t.f.near.Invoke(ctx, t.route, in)
}

// failure gives the typed error of a call.
func failure(err error) (*conduit.Error, bool) { return errors.AsType[*conduit.Error](err) }
