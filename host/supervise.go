package host

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// run owns the element until it is removed or ctx ends. Whatever hangs in here
// hangs for this element alone.
func (e *element) run(ctx context.Context) {
	r := e.newRestarts()
	for {
		f, gone := e.wanted()
		switch {
		case gone || ctx.Err() != nil:
			e.set(Stopped, "", "")
			e.settle()
			return
		case f.refused != nil:
			e.set(Refused, f.refused.kind, f.refused.reason)
			e.settle()
			e.pause(ctx, -1)
			continue
		}
		g, err := e.tryStart(ctx, f.binary)
		if err != nil {
			if e.overtaken(ctx, f) {
				r.reset()
				continue
			}
			wait := e.failed(err, r, 0)
			e.settle()
			e.again(ctx, f, r, wait)
			continue
		}
		began := time.Now()
		e.log.Info("element ready", "element", g.desc.GetElement(), "version", g.desc.GetVersion(), "pid", g.process.Pid(), "generation", g.number, "sha256", f.binary.sum)
		e.settle()
		if err := e.watch(ctx, g); err != nil {
			e.lost(g, err)
			e.again(ctx, f, r, e.failed(err, r, time.Since(began)))
			continue
		}
		r.reset()
		e.stop(g)
	}
}

// tryStart starts, in a context that update and remove can end.
func (e *element) tryStart(ctx context.Context, b *binary) (*generation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.mu.Lock()
	e.interrupt = cancel
	if e.gone || e.want.binary != b {
		cancel()
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.interrupt = nil
		e.mu.Unlock()
	}()
	e.set(Starting, "", "waiting for its turn")
	return e.start(ctx, b)
}

// overtaken reports whether something else is wanted by now.
func (e *element) overtaken(ctx context.Context, f finding) bool {
	now, gone := e.wanted()
	return gone || ctx.Err() != nil || !sameFinding(now, f)
}

// pause waits for d, for a change of what is wanted, or for ctx; d < 0 has no
// end.
func (e *element) pause(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
	case <-e.changed:
	case <-ctx.Done():
	}
}

// settleLooks is how often a file that still changes is looked at before a process
// that failed is started again from what was there before.
const settleLooks = 3

// again waits before the next start. What another file did is not held against the one
// that is wanted then.
func (e *element) again(ctx context.Context, failed finding, r *restarts, wait time.Duration) {
	e.pause(ctx, wait)
	e.refresh(ctx)
	if e.overtaken(ctx, failed) {
		r.reset()
	}
}

// refresh looks at the file before another start: what has been replaced since the last
// scan must not come back, and a new file that is not whole yet is given some time.
func (e *element) refresh(ctx context.Context) {
	for n := 1; e.h.look(ctx, e.deployment) && n < settleLooks; n++ {
		e.pause(ctx, restOf(&e.h.o))
	}
}

// restarts decides when a process that failed is started again: at once, then
// with growing pauses.
type restarts struct {
	backoff *backoff.ExponentialBackOff
	quick   int // failures in a row
}

func (e *element) newRestarts() *restarts {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = e.h.o.RestartMin, e.h.o.RestartMax
	b.Multiplier, b.RandomizationFactor = 2, 0.3
	b.Reset()
	return &restarts{backoff: b}
}

func (r *restarts) reset() {
	r.quick = 0
	r.backoff.Reset()
}

// failed notes a failure after the process has served for lived, and says how
// long to wait; negative = until the file changes.
func (e *element) failed(err error, r *restarts, lived time.Duration) time.Duration {
	kind, reason := "failed", err.Error()
	final, ours := false, shortage(err)
	if c, ok := errors.AsType[*cause](err); ok {
		kind, reason = c.kind, c.reason
		final = kind == refusedDescription
	}
	if se, ok := errors.AsType[*pluginlink.StartError](err); ok {
		kind = string(se.Kind)
		e.mu.Lock()
		if !se.Exit.At.IsZero() {
			e.status.LastExit = se.Exit
		}
		e.status.Stderr = se.Stderr
		e.proc = nil
		e.mu.Unlock()
		final, ours = se.Final(), ours || se.Kind == pluginlink.KindSystem
	}
	reason = pluginlink.Text(reason, maxReason)
	e.mu.Lock()
	e.status.LastError = reason
	e.mu.Unlock()
	switch {
	case final:
		e.log.Error("element refused; it is tried again when its file changes", "kind", kind, "reason", reason)
		e.set(Refused, kind, reason)
		return -1
	case ours:
		// No failure of the element's: it must not be given up for what this host lacks.
		wait := r.backoff.NextBackOff()
		kind = string(pluginlink.KindSystem)
		e.log.Error("element not started, for want of something of this host's", "reason", reason, "again_in", wait.Round(time.Millisecond).String())
		e.set(Backoff, kind, reason)
		return wait
	}
	if lived >= e.h.o.StableAfter {
		r.reset()
	}
	r.quick++
	wait, state := time.Duration(0), Backoff
	if r.quick > 1 {
		wait = r.backoff.NextBackOff()
	}
	if r.quick >= e.h.o.CrashLoopAfter {
		wait, state = e.h.o.RestartMax, CrashLooping
	}
	e.mu.Lock()
	e.status.Restarts++
	e.mu.Unlock()
	e.log.Error("element failed", "kind", kind, "reason", reason, "state", string(state), "failures", r.quick, "again_in", wait.Round(time.Millisecond).String())
	e.set(state, kind, reason)
	return wait
}

// shortage reports whether err is for want of something that this host has to have, such
// as descriptors or room on its disk.
func shortage(err error) bool {
	for _, no := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// unresponsiveAfter is how many health checks in a row a process may leave
// unanswered before it is ended and started anew.
const unresponsiveAfter = 6

// watch follows a process that serves. It returns nil when the process is to be
// stopped, an error when it is lost or must be ended.
func (e *element) watch(ctx context.Context, g *generation) error {
	ticker := time.NewTicker(e.h.o.HealthInterval)
	defer ticker.Stop()
	checkCtx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan health, 1)
	checking, silent := false, 0
	for {
		select {
		case <-g.process.Exited():
			return &cause{lostExited, "the plugin " + describeEnd(g.process)}
		case <-g.conn.Done():
			return e.linkLost(g)
		case <-ctx.Done():
			return nil
		case <-e.changed:
			f, gone := e.wanted()
			switch {
			case gone:
				return nil
			case f.refused != nil:
				// What runs is better than nothing; its copy is not the file.
				e.note(noteFile, "the new file is refused, the old binary goes on: "+f.refused.reason)
			case f.binary.sum != g.sum:
				e.log.Info("the binary has changed: the element is restarted", "sha256", f.binary.sum, "was", g.sum)
				return nil
			default:
				e.note(noteFile, "")
			}
		case <-ticker.C:
			if !checking {
				checking = true
				go func() { answers <- e.check(checkCtx, g.process) }()
			}
		case a := <-answers:
			checking = false
			if a.err == nil {
				silent = 0
			} else if silent++; silent >= unresponsiveAfter {
				return &cause{lostSilent, fmt.Sprintf("the plugin did not answer %d health checks in a row: %v", silent, a.err)}
			}
			e.healthy(g.process, a)
		}
	}
}

// The kinds of the loss of a process.
const (
	lostExited = "exited"
	lostLink   = "link_lost"
	lostSilent = "unresponsive"
)

type health struct {
	r   *conduitv1.HealthResponse
	err error
}

func (e *element) check(ctx context.Context, p *pluginlink.Process) health {
	ctx, cancel := context.WithTimeout(ctx, e.h.o.HealthTimeout)
	defer cancel()
	r, err := p.Health(ctx)
	return health{r, err}
}

// healthy takes the answer to a health check. An element that is not well still
// gets calls: it answers them, or says why not.
func (e *element) healthy(p *pluginlink.Process, a health) {
	state, kind, reason := Ready, "", ""
	switch {
	case a.err != nil:
		state, kind, reason = Degraded, lostSilent, pluginlink.Text(a.err.Error(), maxReason)
	case a.r.GetState() == conduitv1.HealthResponse_STATE_DEGRADED:
		state, kind, reason = Degraded, "degraded", a.r.GetText()
	case a.r.GetState() == conduitv1.HealthResponse_STATE_UNHEALTHY:
		state, kind, reason = Degraded, "unhealthy", a.r.GetText()
	}
	e.mu.Lock()
	same := e.status.State == state && e.status.Reason == reason
	e.mu.Unlock()
	if !same {
		p.Log(hclog.Info, "element health changed", "deployment", e.deployment, "state", string(state), "kind", kind, "reason", reason)
		e.set(state, kind, reason)
	}
}

// linkLost says why the link ended: mostly since the process has, which is seen
// a moment later.
func (e *element) linkLost(g *generation) error {
	select {
	case <-g.process.Exited():
		return &cause{lostExited, "the plugin " + describeEnd(g.process)}
	case <-time.After(time.Second):
		return &cause{lostLink, fmt.Sprintf("the plugin's link was lost: %v", g.conn.Err())}
	}
}

func describeEnd(p *pluginlink.Process) string {
	s := p.Exit().String()
	if tail := p.Stderr(); len(tail) > 0 {
		s += "; stderr ended with: " + tail[len(tail)-1]
	}
	return s
}

// lost takes a process that has ended, or must end, out of service. Its link
// ends its calls, once each, and says why to their callers: of the process's last
// words only the operator hears.
func (e *element) lost(g *generation, why error) {
	e.swap(nil, Backoff, nil)
	g.drain()
	told := "the plugin's link was lost"
	if c, ok := errors.AsType[*cause](why); ok && c.kind == lostSilent {
		told = "the plugin did not answer its health checks"
	}
	if x := g.process.Exit(); !x.At.IsZero() {
		told = "the process " + x.String()
	}
	g.conn.Close(link.CloseGoingAway, told)
	e.release(g, 0)
}

// stop takes a generation out of service in good order: no new calls, those
// under way finish within the drain's time, the element flushes, the process
// leaves.
func (e *element) stop(g *generation) {
	ctx, cancel := e.h.stopContext()
	defer cancel()
	e.swap(nil, Draining, nil)
	g.drain()
	select {
	case <-g.idle:
	case <-ctx.Done():
		e.log.Warn("the drain's time is over: calls under way and claims are ended", "calls", g.calls(), "claims", g.claims())
	case <-g.process.Exited():
	}
	// Ends the calls that are left, and lets the plugin's handlers see it before
	// their element is stopped.
	g.conn.Close(link.CloseGoingAway, conduit.ReasonDraining)
	stopCtx, done := context.WithTimeout(context.WithoutCancel(ctx), e.h.stopBudget(ctx))
	defer done()
	if err := g.process.Stop(stopCtx); err != nil {
		e.log.Warn("the element did not stop in good order", "error", err)
	}
	e.release(g, e.h.o.KillGrace)
	e.log.Info("element stopped", "element", g.desc.GetElement(), "generation", g.number)
}

// release ends the process and frees what it held.
func (e *element) release(g *generation, grace time.Duration) {
	if err := g.process.Kill(grace); err != nil {
		e.log.Error("a plugin left something behind", "error", err)
	}
	g.ended()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, over := range []<-chan struct{}{g.conn.Done(), g.idle} { // claims end on goroutines of their own
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	e.noteExit(g.process)
}

func (e *element) noteExit(p *pluginlink.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := p.Exit(); !x.At.IsZero() {
		e.status.LastExit = x
	}
	e.status.Pid = 0
}
