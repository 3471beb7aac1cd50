package pluginapi

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Host is what an element can ask of the instance that runs it. It is a small
// value, safe for concurrent use, and good for as long as the process lives. Of
// the zero Host every call fails.
type Host struct{ h *host }

// host is the one state behind all Hosts of an element.
type host struct {
	log  *slog.Logger
	conn atomic.Pointer[link.Conn]
	conf atomic.Pointer[Configuration]

	subscriptions subscriptions
}

// HostFrom returns the host of the element whose handler has ctx; the zero Host
// outside of a call.
func HostFrom(ctx context.Context) Host {
	if c := callFrom(ctx); c != nil {
		return Host{c.host}
	}
	return Host{}
}

// At gives an Invoker for an address, such as "*://greeter/greeter/example.Greeter".
// A bad address surfaces at the call.
//
// Calls with a handler's context are made in that handler's call: they run as its
// caller (or, with [AsSelf], as the element), inside its deadline, and end with
// it. Any other context has no caller, nor has one that outlived its call by
// context.WithoutCancel: then they run as anonymous, or as the element with
// [AsSelf]. The host takes calls once Start has returned.
func (h Host) At(addr string) conduit.Invoker {
	a, err := address.Parse(addr)
	if err != nil {
		return broken{conduit.Errorf(InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)}
	}
	if h.h == nil {
		return broken{noHost()}
	}
	return &target{host: h.h, addr: a, route: link.NewRoute(a)}
}

// DataDir returns a directory of the element's own that is kept over restarts.
func (h Host) DataDir() string {
	if c := h.configuration(); c != nil {
		return c.DataDir
	}
	return ""
}

// Logger returns the element's logger; what it takes appears in the host's log.
func (h Host) Logger() *slog.Logger {
	if h.h == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.h.log
}

func (h Host) configuration() *Configuration {
	if h.h == nil {
		return nil
	}
	return h.h.conf.Load()
}

// link returns the link to the host, for a call that is made in c, if it is not nil.
func (h *host) link(c *call) (*link.Conn, *Error) {
	if conn := h.conn.Load(); conn != nil {
		return conn, nil
	}
	if c != nil {
		return c.s.Conn(), nil // the first call may come before we are told of the link
	}
	return nil, conduit.Errorf(Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent,
		"the host takes no calls yet; make them after Start has returned")
}

// target is an Invoker over the link to the host.
type target struct {
	host  *host
	addr  address.Address
	route *link.Route
}

// Address implements conduit.Target.
func (t *target) Address() address.Address { return t.addr }

// Invoke implements conduit.Invoker.
func (t *target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	c := callFrom(ctx)
	conn, err := t.host.link(c)
	if err != nil {
		return conduit.FailedExchange(err)
	}
	out := *in
	if c != nil {
		out.Parent = c.s.ID()
		if out.TraceParent == "" {
			inv := c.s.Invoke()
			out.TraceParent, out.TraceState = string(inv.TraceParent), string(inv.TraceState)
		}
	}
	if out.As.Kind == conduit.AsUnset && isSelf(ctx) {
		out.As.Kind = conduit.AsSelf
	}
	return conn.Invoke(ctx, t.route, &out)
}

// broken is an Invoker that cannot call.
type broken struct{ err *Error }

// Invoke implements conduit.Invoker.
func (b broken) Invoke(context.Context, *conduit.Invocation) conduit.Exchange {
	return conduit.FailedExchange(b.err)
}
