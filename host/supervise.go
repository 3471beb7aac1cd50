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
			e.leave()
			e.retiring.Wait()
			e.set(Stopped, "", "")
			e.settle()
			return
		case e.isOff():
			e.rest(ctx, "an operator has turned it off")
			r.reset()
			continue
		case f.disabled:
			e.rest(ctx, "its deployment is disabled: "+f.path)
			r.reset()
			continue
		case f.waits():
			e.endHold()
			e.set(Discovered, "", "its file is still being written: "+f.path)
			e.settle()
			e.pause(ctx, -1)
			continue
		case f.refused != nil:
			e.endHold()
			e.servesNothing()
			e.set(Refused, f.refused.kind, f.refused.reason)
			e.settle()
			e.pause(ctx, -1)
			continue
		}
		e.stay()
		g, err := e.bring(ctx, f)
		if err != nil {
			if e.overtaken(ctx, f) {
				r.reset()
				continue
			}
			wait := e.failed(err, r, 0)
			e.attempted(f, err)
			e.settle()
			e.again(ctx, f, r, wait)
			continue
		}
		e.serve(g)
		e.settle()
		id := g.binary.id()
		g, err = e.watch(ctx, g)
		if g == nil || g.binary.id() != id {
			r.reset() // what another file did is not held against this one
		}
		switch {
		case err == nil:
			r.reset()
			e.stop(ctx, g)
		case g == nil: // it has been lost, and its successor did not come up
			f, _ := e.wanted()
			e.again(ctx, f, r, e.failed(err, r, 0))
		default:
			e.lose(g, err)
			f, _ := e.wanted()
			e.again(ctx, f, r, e.failed(err, r, time.Since(g.served)))
		}
	}
}

// leave has old generations finish in the drain's time, and lets go of calls that wait.
func (e *element) leave() {
	if !e.left {
		e.left = true
		close(e.leaving)
	}
	e.endHold()
}

// bring starts what is wanted where nothing serves. If that fails and another binary has
// served before, that one is started once more.
func (e *element) bring(ctx context.Context, f finding) (*generation, error) {
	good := e.good
	if good == nil || good.id() == f.binary.id() || f.binary.socket != "" {
		return e.tryStart(ctx, f, f.binary, false)
	}
	why := error(nil)
	if r := e.replace(f); !r.failed {
		g, err := e.tryStart(ctx, f, f.binary, false)
		if err == nil || e.overtaken(ctx, f) {
			return g, err
		}
		if _, _, _, ours := explain(err); ours {
			return nil, err // the one before would fail as well
		}
		r.stopFirst = r.stopFirst || e.exclusive() || e.o().stopFirst
		e.notReplaced(f, err)
		why = err
	}
	g, err := e.tryStart(ctx, f, good, false)
	if err != nil {
		e.repl = nil // one is as bad as the other: the wanted one comes first again
		if why != nil {
			err = why
		}
	}
	return g, err
}

// exclusive reports whether the generation that described itself last is.
func (e *element) exclusive() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status.Description.GetExclusive()
}

// tryStart starts a binary, in a context that update and remove can end. beside says that
// a generation serves meanwhile, and the status is that one's.
func (e *element) tryStart(ctx context.Context, f finding, b *binary, beside bool) (*generation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.mu.Lock()
	e.interrupt = cancel
	if e.gone || e.off || !sameFinding(e.want, f) {
		cancel()
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.interrupt = nil
		e.mu.Unlock()
	}()
	if !beside {
		e.set(Starting, "", "waiting for its turn")
	}
	g, err := e.start(ctx, b, beside)
	if g != nil {
		g.round = f.round
	}
	return g, err
}

// overtaken reports whether something else is wanted by now.
func (e *element) overtaken(ctx context.Context, f finding) bool {
	now, gone := e.wanted()
	return gone || ctx.Err() != nil || e.isOff() || !sameFinding(now, f)
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

// again waits before the next start. Calls are held for no more than the moment that a
// start takes. What another file did is not held against the one
// that is wanted then.
func (e *element) again(ctx context.Context, failed finding, r *restarts, wait time.Duration) {
	if wait != 0 {
		e.endHold()
	}
	e.pause(ctx, wait)
	e.refresh(ctx)
	if e.overtaken(ctx, failed) {
		r.reset()
	}
}

// refresh looks at the file before another start: what has been replaced since the last
// scan must not come back, and a new file that is not whole yet is given some time.
func (e *element) refresh(ctx context.Context) {
	if e.transient != "" {
		return // its file is nobody's to replace
	}
	for n := 1; e.h.look(ctx, e.deployment) && n < settleLooks; n++ {
		e.pause(ctx, restOf(&e.h.o))
	}
}

// restarts decides when a process that failed is started again: at once, then
// with growing pauses.
type restarts struct {
	backoff *backoff.ExponentialBackOff
	o       func() *settings
	quick   int // failures in a row
}

func (e *element) newRestarts() *restarts {
	b := backoff.NewExponentialBackOff()
	b.Multiplier, b.RandomizationFactor = 2, 0.3
	r := &restarts{backoff: b, o: e.o}
	r.reset()
	return r
}

func (r *restarts) reset() {
	r.quick = 0
	r.backoff.InitialInterval, r.backoff.MaxInterval = r.o().RestartMin, r.o().RestartMax
	r.backoff.Reset()
}

// failed notes a failure after the process has served for lived, and says how
// long to wait; negative = until the file changes.
func (e *element) failed(err error, r *restarts, lived time.Duration) time.Duration {
	if wait, debugged := e.debuggerGone(err); debugged {
		return wait
	}
	kind, reason, final, ours := explain(err)
	e.mu.Lock()
	if se, ok := errors.AsType[*pluginlink.StartError](err); ok {
		if !se.Exit.At.IsZero() {
			e.status.LastExit = se.Exit
		}
		e.status.Stderr = se.Stderr
		e.proc = nil
	}
	e.status.LastError = reason
	e.mu.Unlock()
	switch {
	case final:
		e.tell(hclog.Error, "element refused; it is tried again when its file changes", "kind", kind, "reason", reason)
		e.set(Refused, kind, reason)
		return -1
	case ours:
		// No failure of the element's: it must not be given up for what this host lacks.
		wait := r.backoff.NextBackOff()
		kind = string(pluginlink.KindSystem)
		e.tell(hclog.Error, "element not started, for want of something of this host's", "reason", reason, "again_in", wait.Round(time.Millisecond).String())
		e.set(Backoff, kind, reason)
		return wait
	}
	if lived >= e.o().StableAfter {
		r.reset()
	}
	r.quick++
	wait, state := time.Duration(0), Backoff
	if r.quick > 1 {
		wait = r.backoff.NextBackOff()
	}
	if r.quick >= e.o().CrashLoopAfter {
		wait, state = e.o().RestartMax, CrashLooping
	}
	e.mu.Lock()
	e.status.Restarts++
	e.mu.Unlock()
	e.tell(hclog.Error, "element failed", "kind", kind, "reason", reason, "state", string(state), "failures", r.quick, "again_in", wait.Round(time.Millisecond).String())
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

// watch follows the process that serves, and replaces it by another when its file has
// changed. It returns the generation that served last: without an error it is to be
// stopped, with one it is lost or must be ended. It returns none if that is done already.
func (e *element) watch(ctx context.Context, g *generation) (*generation, error) {
	p := e.newPulse(g)
	defer func() { p.stop() }()
	again := time.NewTimer(0) // look at once: what is wanted may not be what runs
	defer again.Stop()
	for {
		look := false
		var next <-chan struct{}
		if e.next != nil {
			next = e.next.done
		}
		var why error
		select {
		case <-g.process.Exited():
			why = &cause{lostExited, "the plugin " + describeEnd(g.process)}
		case <-g.conn.Done():
			why = e.linkLost(g)
		case <-g.away:
			why = &cause{lostAway, "the plugin said that it takes no more calls, as one does that was sent SIGTERM"}
		case <-p.ticker.C:
			p.ask()
		case a := <-p.answers:
			if why = p.take(a); why == nil {
				e.healthy(g.process, g.scrub.health(a))
			}
		case <-next:
			n, _ := e.came(ctx)
			if n != nil {
				p.stop()
				g, p = n, e.newPulse(n)
			}
			look = true
		case <-ctx.Done():
			look = true
		case <-e.changed:
			look = true
		case <-e.freed:
			look = true
		case <-g.unclaimed:
			look = true
		case <-again.C:
			look = true
		}
		switch {
		case why != nil && e.next == nil:
			return g, why
		case why != nil:
			// Its successor is on its way, and sooner there than any other process.
			e.log.Error("element failed while its successor starts", "reason", why.Error())
			e.lose(g, why)
			<-e.next.done
			n, _ := e.came(ctx)
			if n == nil {
				return nil, why // of the successor a note tells
			}
			e.mu.Lock()
			e.status.Restarts++
			_, e.status.LastError, _, _ = explain(why)
			e.mu.Unlock()
			e.h.rebuild()
			p.stop()
			g, p = n, e.newPulse(n)
			look = true
		}
		if !look {
			continue
		}
		v, d := e.consider(ctx, g)
		if v != goOn {
			return g, nil
		}
		if again.Stop(); d > 0 {
			again.Reset(d)
		}
	}
}

// pulse asks a process how it is, one question at a time, so that one that hangs delays
// nothing.
type pulse struct {
	e        *element
	g        *generation
	ctx      context.Context //nolint:containedctx // ends the question under way
	cancel   context.CancelFunc
	ticker   *time.Ticker
	answers  chan health
	checking bool
	silent   int // questions in a row without an answer
}

func (e *element) newPulse(g *generation) *pulse {
	p := &pulse{e: e, g: g, ticker: time.NewTicker(e.o().HealthInterval), answers: make(chan health, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if g.binary.socket != "" {
		p.ticker.Stop() // it may stand still in a debugger
	}
	return p
}

func (p *pulse) stop() {
	p.ticker.Stop()
	p.cancel()
}

// ask asks, unless a question is under way.
func (p *pulse) ask() {
	if !p.checking {
		p.checking = true
		go func() { p.answers <- p.e.check(p.ctx, p.g.process) }()
	}
}

// take takes an answer. The error says that there were none for too long.
func (p *pulse) take(a health) error {
	p.checking = false
	if a.err == nil {
		p.silent = 0
	} else if p.silent++; p.silent >= unresponsiveAfter {
		return &cause{lostSilent, fmt.Sprintf("the plugin did not answer %d health checks in a row: %v", p.silent, a.err)}
	}
	return nil
}

// The kinds of the loss of a process.
const (
	lostExited = "exited"
	lostLink   = "link_lost"
	lostSilent = "unresponsive"
	lostAway   = "going_away"
)

type health struct {
	r   *conduitv1.HealthResponse
	err error
}

func (e *element) check(ctx context.Context, p *pluginlink.Process) health {
	ctx, cancel := context.WithTimeout(ctx, e.o().HealthTimeout)
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
	if a.err == nil {
		e.status.Measures = measuresOf(a.r.GetMetrics(), p.Pid())
	}
	same := e.status.State == state && e.status.Reason == reason
	e.mu.Unlock()
	if !same {
		p.Log(hclog.Info, "element health changed", "state", string(state), "kind", kind, "reason", reason)
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
	if last := p.LastWords(); last != "" {
		s += "; stderr ended with: " + last
	}
	return s
}

// lose takes a process that is lost, or must be ended, out of service. One that only
// takes no more calls finishes those that it has: it is an old generation from now on.
func (e *element) lose(g *generation, why error) {
	c, ok := errors.AsType[*cause](why)
	if !ok || c.kind != lostAway {
		e.swap(nil, Backoff)
		g.drain()
		e.part(g, why)
		return
	}
	e.beginHold() // until its successor is there
	if e.stopsFirst(g) {
		e.finish(g)
		return
	}
	e.mu.Lock()
	e.old = append(e.old, g)
	e.mu.Unlock()
	e.swap(nil, Draining)
	e.retire(g)
}

// stop takes a generation out of service in good order: no new calls, those
// under way finish within the drain's time, the element flushes, the process
// leaves.
func (e *element) stop(ctx context.Context, g *generation) {
	if f, gone := e.wanted(); gone || ctx.Err() != nil || f.disabled || e.isOff() {
		e.leave()
	}
	e.finish(g)
	e.dropNext()
	e.tell(hclog.Info, "element stopped", "element", g.desc.GetElement(), "generation", g.number)
}

// finish lets what is under way on a generation end, and stops it.
func (e *element) finish(g *generation) {
	ctx, cancel := e.stopContext()
	defer cancel()
	e.swap(nil, Draining)
	g.drain()
	e.drained(ctx, g)
	reason := conduit.ReasonDraining
	if e.held() {
		reason = conduit.ReasonReloaded
	}
	e.end(g, reason, e.stopBudget(ctx))
}

// release ends the process and frees what it held.
func (e *element) release(g *generation, grace time.Duration) {
	if err := g.process.Kill(grace); err != nil {
		e.log.Error("a plugin left something behind", "error", err)
	}
	g.box.remove()
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
	if e.proc == p {
		e.status.Pid = 0
	}
}
