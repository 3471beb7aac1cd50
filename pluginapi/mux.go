package pluginapi

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// mux finds the method of each call from the host, and runs it. The host has
// checked rights before; the mux does not lean on that.
type mux struct {
	services map[string]map[string]*method
	host     *host
	log      *slog.Logger
}

// Handle implements link.Handler: it decides on the reader and never blocks.
func (x *mux) Handle(in *link.Incoming) {
	service, ok := x.services[string(in.Invoke.Service)]
	if !ok {
		in.Refuse(conduit.Errorf(NotFound, conduit.ReasonServiceNotFound, conduit.Refused,
			"the element exports no service %q; its binary's describe lists what it has", in.Invoke.Service))
		return
	}
	m, ok := service[string(in.Invoke.Method)]
	if !ok {
		in.Refuse(conduit.Errorf(NotFound, conduit.ReasonMethodNotFound, conduit.Refused,
			"service %s has no method %q; its binary's describe lists them", in.Invoke.Service, in.Invoke.Method))
		return
	}
	if !m.remote {
		in.Refuse(conduit.Errorf(PermissionDenied, conduit.ReasonNotRemote, conduit.Refused,
			"method %s is not callable from other processes; its author has to mark it Remote", m.name))
		return
	}
	level := Anonymous
	if in.Invoke.HasCaller {
		level = conduit.Level(in.Invoke.Caller.Level)
	}
	if level < m.level {
		in.Refuse(conduit.Errorf(PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused,
			"method %s needs level %s, the caller has %s", m.name, m.level, level))
		return
	}
	in.Serve(func(ctx context.Context, s *link.ServerCall) error { return x.serve(ctx, s, m) })
}

// serve runs one call on its own goroutine.
func (x *mux) serve(ctx context.Context, s *link.ServerCall, m *method) (err error) {
	c := &call{
		s:      s,
		host:   x.host,
		method: m,
		accept: string(s.Invoke().Accept),
	}
	if m.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.timeout)
		defer cancel()
	}
	ctx = context.WithValue(ctx, callKey{}, c)
	c.ctx, c.turn.L = ctx, &c.mu

	returned := false
	defer func() {
		c.end()
		if returned {
			return
		}
		// The text of the panic stays here: it may hold what the caller must not see.
		p := recover()
		what := "panicked"
		if p == nil {
			what = "ended its goroutine (runtime.Goexit)"
		}
		x.log.ErrorContext(ctx, "a handler did not return",
			slog.String("what", what),
			slog.String("method", m.name), slog.Uint64("call", s.ID()),
			slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
		err = conduit.Errorf(Internal, conduit.ReasonPanic, conduit.Executed,
			"the handler of %s %s; the element's log has the stack", m.name, what)
	}()
	err = m.run(ctx, c)
	returned = true
	return err
}
