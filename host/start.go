package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// start brings a process up: exec, describe, configure, healthy, link. On error
// nothing of it is left. beside says that a generation serves meanwhile, and the status
// is that one's.
func (e *element) start(ctx context.Context, b *binary, beside bool) (_ *generation, err error) {
	work := filepath.Join(e.base, "work", e.deployment)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	p, err := e.launch(ctx, b, work, beside)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if !beside {
				e.noteExit(p)
			}
			if left := p.Kill(e.h.o.KillGrace); left != nil {
				e.log.Error("a plugin that did not start left something behind", "error", left)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, e.h.o.ReadyTimeout)
	defer cancel()
	d, err := p.Describe(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkDescription(d); err != nil {
		return nil, err
	}
	if !beside {
		e.describe(d)
	} else if d.GetExclusive() {
		return nil, errExclusive // nothing of the element's has been started yet
	}
	warnings, err := e.configure(ctx, p, d)
	if err != nil {
		return nil, err
	}
	if err := e.awaitHealthy(ctx, p); err != nil {
		return nil, err
	}
	g := newGeneration(e, d, e.h.o.Observer)
	g.process, g.binary, g.sum, g.warnings = p, b, b.sum, warnings
	g.conn, err = p.OpenLink(ctx, link.Options{
		Handler: elementCalls{h: e.h, g: g},
		// Errors of this link are this instance's word; which element they are of says
		// the address.
		Peer: link.Peer{Name: e.h.instance, User: "element:" + e.deployment, Level: conduit.User},
		Hello: link.Hello{
			Instance: e.h.instance, MaxMessage: e.h.o.MaxMessage, MaxCalls: e.h.o.MaxCalls,
		},
		Memory: e.h.memory, LinkMemory: e.h.o.LinkMemory,
		DeadAfter:  10 * time.Second,
		Op:         "plugin",
		LostReason: conduit.ReasonPluginLost,
		OnGoAway:   func(string, time.Duration) { close(g.away) }, // once a link
	})
	if err != nil {
		return nil, err
	}
	g.served = time.Now()
	return g, nil
}

// launch starts the process, a few at a time: many at once would only make each
// other late. The time counts from exec.
func (e *element) launch(ctx context.Context, b *binary, work string, beside bool) (*pluginlink.Process, error) {
	select {
	case e.h.starts <- struct{}{}:
		defer func() { <-e.h.starts }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !beside {
		e.set(Starting, "", "")
	}
	f, err := e.openBinary(b)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	e.mu.Lock()
	name := e.status.Name
	e.mu.Unlock()
	p, err := pluginlink.Launch(ctx, pluginlink.LaunchConfig{
		Name: e.deployment, Element: name, Path: b.exec, File: f, Source: b.source, Dir: work, Env: e.h.o.Env,
		SocketDir: e.h.priv.sockets, Owner: e.h.owner, StartTimeout: e.h.o.StartTimeout, MaxMessage: e.h.o.MaxMessage,
		Spawner: e.h.spawner, Log: e.log,
	})
	if err != nil {
		return nil, err
	}
	if !beside {
		e.takeProcess(p)
	}
	return p, nil
}

// openBinary opens the copy that is going to run, with the bytes that were checked when
// it was made. One that was damaged since is made anew.
func (e *element) openBinary(b *binary) (*os.File, error) {
	if err := e.h.priv.trusted(); err != nil {
		return nil, err
	}
	f, err := e.h.store.open(b.sum)
	d, ok := errors.AsType[*damaged](err)
	if !ok {
		return f, err
	}
	e.log.Warn("the stored copy of a binary is not what it was; it is made anew", "copy", b.exec, "why", d.why)
	if err := e.h.store.restore(*b); err != nil {
		return nil, &cause{damagedCopy, fmt.Sprintf("%v; it could not be made anew from %s: %v", d, b.source, err)}
	}
	return e.h.store.open(b.sum)
}

func (e *element) configure(ctx context.Context, p *pluginlink.Process, d *conduitv1.Description) ([]string, error) {
	data := filepath.Join(e.base, "data", e.deployment, d.GetElement())
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	resp, err := p.Configure(ctx, &conduitv1.ConfigureRequest{
		Deployment: e.deployment, Element: d.GetElement(), DataDir: data,
		MaxMessage: uint64(e.h.o.MaxMessage), Memory: uint64(max(e.h.o.MemoryTotal, 0)), LinkMemory: uint64(max(e.h.o.LinkMemory, 0)),
		MaxCalls: e.h.o.MaxCalls, Instance: e.h.instance,
	})
	if err != nil {
		return nil, err
	}
	return resp.GetWarnings(), nil
}

// healthPause is between two looks at an element that is coming up.
const healthPause = 200 * time.Millisecond

// awaitHealthy waits until the element says that it is well: one that needs its
// time is starting, not ill.
func (e *element) awaitHealthy(ctx context.Context, p *pluginlink.Process) error {
	for {
		r, err := p.Health(ctx)
		if err != nil {
			return err
		}
		if r.GetState() != conduitv1.HealthResponse_STATE_UNHEALTHY {
			return nil
		}
		select {
		case <-time.After(healthPause):
		case <-p.Exited():
		case <-ctx.Done():
			return fmt.Errorf("the element was not healthy within %s (host.ready_timeout); it says: %s", e.h.o.ReadyTimeout, r.GetText())
		}
	}
}
