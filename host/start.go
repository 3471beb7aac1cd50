package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// start brings a process up: exec, describe, configure, healthy, link. On error
// nothing of it is left. beside says that a generation serves meanwhile, and the status
// is that one's.
func (e *element) start(ctx context.Context, b *binary, beside bool) (_ *generation, err error) {
	work := filepath.Join(e.base, "work", e.deployment, e.slot)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	p, box, err := e.launch(ctx, b, work, beside)
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
			box.remove()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, e.readyTimeout(b))
	defer cancel()
	d, err := p.Describe(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkSaid(d, b); err != nil {
		return nil, err
	}
	if !beside {
		e.describe(d)
	} else if d.GetExclusive() {
		return nil, errExclusive // nothing of the element's has been started yet
	}
	told, err := e.configure(ctx, p, d, b)
	if err != nil {
		return nil, told.scrub.err(err)
	}
	if err := e.awaitHealthy(ctx, p); err != nil {
		return nil, told.scrub.err(err)
	}
	for _, w := range told.warnings {
		e.tell(hclog.Warn, "the element warns", "warning", w, "pid", p.Pid())
	}
	g := newGeneration(e, d, e.h.o.Observer)
	told.warnings = slices.Concat(box.warnings(), told.warnings)
	g.process, g.over, g.box, g.binary, g.sum, g.told = p, p.Ended(), box, b, b.sum, told
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

// checkSaid looks at what the process of a binary says of itself.
func checkSaid(d *conduitv1.Description, b *binary) error {
	if err := checkDescription(d); err != nil {
		return err
	}
	if b.named != "" && b.named != d.GetElement() {
		return &cause{refusedNamed, fmt.Sprintf("it calls itself %q, and %s calls it %q: write `name: %s` there, or leave the name out (%s)", d.GetElement(), b.namedAt, b.named, d.GetElement(), b.source)}
	}
	return nil
}

// launch starts the process, a few at a time: many at once would only make each
// other late. The time counts from exec.
func (e *element) launch(ctx context.Context, b *binary, work string, beside bool) (*pluginlink.Process, *box, error) {
	if b.socket != "" {
		return e.attach(ctx, b, beside)
	}
	select {
	case e.h.starts <- struct{}{}:
		defer func() { <-e.h.starts }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if !beside {
		e.set(Starting, "", "")
	}
	f, err := e.openBinary(b)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	program := f
	if isScript(f) {
		// Its interpreter opens it by the name that it is given, and may do so again to
		// show a line of it: that must be a name of the copy for good, and no descriptor's.
		program = nil
	}
	e.mu.Lock()
	name, next := e.status.Name, e.status.Generation+1
	e.mu.Unlock()
	box, err := e.newBox(b, work, f)
	if err != nil {
		return nil, nil, err
	}
	config := pluginlink.LaunchConfig{
		Name: e.key(), Element: name, Path: b.exec, Args: b.args, File: program, Source: b.source, Dir: work,
		Env: slices.Concat(e.h.o.Env, b.env), Limits: b.limits,
		SocketDir: e.h.priv.sockets, Owner: e.h.owner, StartTimeout: e.o().StartTimeout, MaxMessage: e.h.o.MaxMessage,
		Spawner: e.h.spawner, Log: e.log.With("generation", next), Output: e.keep(next),
	}
	box.launch(&config)
	p, err := pluginlink.Launch(ctx, config)
	if err != nil {
		box.remove()
		return nil, nil, err
	}
	for _, what := range box.warnings() {
		e.log.Warn(what, "pid", p.Pid(), "sandbox", box.String())
	}
	if !beside {
		e.takeProcess(p)
	}
	return p, box, nil
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

// told is what a process was told as it started, and what it warned of.
type told struct {
	attributes Attributes
	scrub      *scrubber // takes the sensitive ones out of what it says
	warnings   []string
}

// configure tells an element what it is to know, which starts it. From then on it knows
// what is not to be shown.
func (e *element) configure(ctx context.Context, p *pluginlink.Process, d *conduitv1.Description, b *binary) (t told, err error) {
	own := e.slot // two of a directory may call themselves the same
	if own == "" {
		own = d.GetElement()
	}
	data := filepath.Join(e.base, "data", e.deployment, own)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return t, err
	}
	t.attributes, t.warnings = attributesFor(d, b.attributes)
	if t.scrub = t.attributes.scrubber(); t.scrub != nil {
		p.Redact(t.scrub.text)
	}
	resp, err := p.Configure(ctx, &conduitv1.ConfigureRequest{
		Deployment: e.deployment, Element: d.GetElement(), DataDir: data,
		Attributes: t.attributes.Values(), SensitiveAttributes: t.attributes.Sensitive(),
		MaxMessage: uint64(e.h.o.MaxMessage), Memory: uint64(max(e.h.o.MemoryTotal, 0)), LinkMemory: uint64(max(e.h.o.LinkMemory, 0)),
		MaxCalls: e.h.o.MaxCalls, Instance: e.h.instance,
	})
	if err != nil {
		return t, err
	}
	for _, w := range resp.GetWarnings() {
		t.warnings = append(t.warnings, t.scrub.text(w))
	}
	return t, nil
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
			return fmt.Errorf("the element was not healthy within %s (host.ready_timeout); it says: %s", e.o().ReadyTimeout, r.GetText())
		}
	}
}
