package pluginapi

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// Caller is what an element knows of who calls it; it holds no secret.
type Caller = conduit.Caller

// CallerFrom returns who made the call whose handler has ctx. Outside of a call it
// is the zero Caller: anonymous.
func CallerFrom(ctx context.Context) Caller {
	if c := callFrom(ctx); c != nil {
		return callerOf(c.s.Invoke())
	}
	return Caller{}
}

// TraceFrom returns the W3C trace context of the call whose handler has ctx, as the
// headers traceparent and tracestate have it; both are empty where the call has none.
// Calls by [Host.At] carry it on by themselves, and lines that are logged with ctx have its
// id as trace_id: it is for what a handler asks of others, such as a server of HTTP.
func TraceFrom(ctx context.Context) (parent, state string) {
	c := callFrom(ctx)
	if c == nil || tracecontext.ID(c.s.Invoke().TraceParent) == "" {
		return "", ""
	}
	return string(c.s.Invoke().TraceParent), string(c.s.Invoke().TraceState)
}

type selfKey struct{}

// AsSelf makes calls with the returned context run as the element itself, with
// the rights that its deployment has, instead of as the caller of the call they
// are made in.
func AsSelf(ctx context.Context) context.Context {
	return context.WithValue(ctx, selfKey{}, true)
}

func isSelf(ctx context.Context) bool {
	self, _ := ctx.Value(selfKey{}).(bool)
	return self
}

// callerOf reads the caller that the host wrote into an Invoke. A host always
// writes one; without it the caller is anonymous.
func callerOf(in *frame.Invoke) Caller {
	if !in.HasCaller {
		return Caller{}
	}
	c := Caller{
		User:    string(in.Caller.User),
		Level:   conduit.Level(in.Caller.Level),
		Peer:    string(in.Caller.Peer),
		Attempt: in.Caller.Attempt,
	}
	for _, name := range in.Caller.Chain {
		c.Chain = append(c.Chain, string(name))
	}
	return c
}
