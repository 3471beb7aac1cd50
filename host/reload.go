package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// maxOld is how many generations of one element may still be finishing: a further
// reload waits.
const maxOld = 4

// errExclusive says that a binary turned out to be one that must not run beside another
// generation of its element.
var errExclusive = errors.New("the new binary cannot run beside the old one")

// coming is the start of a generation beside the one that serves.
type coming struct {
	want finding
	done chan struct{} // closed when g or err is set
	g    *generation
	err  error
}

// replacing is what is known of a binary that is wanted and does not serve. It belongs
// to the element's goroutine.
type replacing struct {
	id        string
	round     uint64
	stopFirst bool      // it is exclusive
	since     time.Time // it is wanted
	failed    bool      // at least once
	never     bool      // it is not tried again until the file changes
	after     time.Time // when it may be tried again
	tries     *restarts
}

// replace returns what is known of a wanted binary; of another, nothing is.
func (e *element) replace(f finding) *replacing {
	if id := f.binary.id(); e.repl == nil || e.repl.id != id || e.repl.round != f.round {
		e.repl = &replacing{id: id, round: f.round, since: time.Now(), tries: e.newRestarts()}
	}
	return e.repl
}

// The verdicts of consider.
type verdict int

const (
	goOn      verdict = iota
	leave             // the element is to go
	stopFirst         // it was drained of new calls, which are held: stop it, start the new one
)

// consider compares what serves with what is wanted, and begins what is to be done about
// it. again is how long from now it is to be asked once more; 0 = not by itself.
func (e *element) consider(ctx context.Context, g *generation) (v verdict, again time.Duration) {
	f, gone := e.wanted()
	switch {
	case gone || ctx.Err() != nil || f.disabled || e.isOff():
		return leave, 0
	case e.next != nil:
		return goOn, 0 // what has changed has interrupted it; its end comes back here
	case f.refused != nil:
		// What runs is better than nothing; its copy is not the file.
		e.note(noteFile, "the new file is refused, the old binary goes on: "+f.refused.reason)
		e.note(noteWaits, "")
		return goOn, 0
	case f.binary == nil:
		return goOn, 0 // its file is not whole yet
	}
	e.note(noteFile, f.stale)
	if f.binary.id() == g.binary.id() && f.round == g.round {
		e.repl = nil
		e.note(noteReload, "")
		e.note(noteWaits, "")
		return goOn, 0
	}
	r := e.replace(f)
	if !r.failed {
		e.note(noteReload, "")
	}
	if r.never {
		e.note(noteWaits, "")
		return goOn, 0
	}
	if d := time.Until(r.after); r.failed && d > 0 {
		return goOn, d
	}
	if r.stopFirst || e.stopsFirst(g) {
		return e.considerStop(g, r)
	}
	if calls, claims, n := e.finishing(); n >= maxOld {
		e.note(noteWaits, fmt.Sprintf("the new file waits: %d old generations are still finishing, with %d calls and %d claims", n, calls, claims))
		return goOn, time.Second // the numbers change
	}
	e.note(noteWaits, "")
	what := "the binary has changed"
	switch {
	case f.binary.id() == g.binary.id():
		what = "an operator asked for a fresh start"
	case f.binary.sum == g.sum:
		what = "what its process is given has changed"
	}
	e.tell(hclog.Info, what+": a new process is started beside the old one", "sha256", f.binary.sum, "was", g.sum)
	e.begin(ctx, f)
	return goOn, 0
}

// considerStop begins to replace an element that has to stop first: as soon as it holds
// no claim, new calls are held.
func (e *element) considerStop(g *generation, r *replacing) (verdict, time.Duration) {
	switch n := g.claims(); {
	case n == 0:
		e.beginHold() // before anybody finds the generation draining
		if g.drainUnclaimed() {
			e.note(noteWaits, "")
			return stopFirst, 0
		}
		e.endHold()
	case e.o().ReleaseClaims && time.Since(r.since) >= e.o().DrainTimeout:
		e.beginHold()
		g.refuses.Store(true)
		g.drain()
		e.note(noteWaits, "")
		return stopFirst, 0
	}
	e.note(noteWaits, fmt.Sprintf("the new file waits until the element holds no claim: it cannot run beside its successor, and holds %d", g.claims()))
	return goOn, time.Second
}

// stopsFirst reports whether a generation must have gone before its successor is there:
// its author says so, or its deployment.
func (e *element) stopsFirst(g *generation) bool {
	return g.desc.GetExclusive() || e.o().stopFirst || g.binary.socket != "" // a debug process serves one
}

// finishing says what old generations still have to do.
func (e *element) finishing() (calls, claims int64, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.old {
		calls += g.calls()
		claims += g.claims()
	}
	return calls, claims, len(e.old)
}

// begin starts the wanted binary beside what serves.
func (e *element) begin(ctx context.Context, f finding) {
	n := &coming{want: f, done: make(chan struct{})}
	e.next = n
	go func() {
		defer close(n.done)
		n.g, n.err = e.tryStart(ctx, f, f.binary, true)
	}()
}

// came takes the end of a start beside what serves: it returns the generation that
// serves from now on, nil for the same.
func (e *element) came(ctx context.Context) (*generation, error) {
	n := e.next
	e.next = nil
	defer e.settle()
	switch {
	case n.err == nil:
		e.serve(n.g)
		return n.g, nil
	case e.overtaken(ctx, n.want):
		return nil, n.err
	case errors.Is(n.err, errExclusive):
		e.replace(n.want).stopFirst = true
	default:
		e.notReplaced(n.want, n.err)
		e.settleAttempt()
	}
	return nil, n.err
}

// notReplaced notes why a wanted binary does not serve, while another does or is going
// to.
func (e *element) notReplaced(f finding, err error) {
	sum := f.binary.sum
	fresh := f.binary.id() == e.servedID()
	r := e.replace(f)
	r.failed = true
	kind, reason, final, ours := explain(err)
	wait := time.Duration(0)
	switch {
	case ours:
		wait = r.tries.backoff.NextBackOff()
	case final || r.stopFirst || fresh: // each try of one that stops the other first is a gap; of what serves none is needed
		r.never = true
	default:
		if wait = r.tries.backoff.NextBackOff(); r.tries.quick >= e.o().CrashLoopAfter {
			wait = e.o().RestartMax
		}
		r.tries.quick++
	}
	r.after = time.Now().Add(wait)
	again := "it is tried again"
	if r.never {
		again = "it is tried again when it changes"
	}
	e.mu.Lock()
	e.status.LastError = reason
	e.tried = attempt{sum: sum, id: f.binary.id(), round: f.round, kind: kind, reason: reason}
	e.mu.Unlock()
	if fresh {
		e.log.Error("the new process did not come up; the old one goes on", "kind", kind, "reason", reason, "sha256", sum)
		e.note(noteReload, "a fresh start failed and the old process goes on: "+reason)
		return
	}
	e.log.Error("the new binary did not come up; the old one goes on", "kind", kind, "reason", reason, "sha256", sum, "again", again, "again_in", wait.Round(time.Millisecond).String())
	e.note(noteReload, fmt.Sprintf("the new file failed and the old binary goes on; %s: %s", again, reason))
}

// dropNext waits for the end of a start beside what serves and undoes it. Who calls it
// has had it interrupted.
func (e *element) dropNext() {
	n := e.next
	if n == nil {
		return
	}
	e.next = nil
	<-n.done
	if n.g != nil {
		n.g.drain()
		e.end(n.g, conduit.ReasonDraining, e.o().StopTimeout)
	}
}

// serve makes g the generation that calls go to. The one before it finishes what it has
// begun, and is stopped then.
func (e *element) serve(g *generation) {
	e.mu.Lock()
	old := e.gen
	s := &e.status
	s.Generation++
	g.number = s.Generation
	e.tried.settled = true
	e.gen, e.proc = g, g.process
	s.Name, s.Description, s.Pid = g.desc.GetElement(), g.desc, g.process.Pid()
	s.Sum, s.Path, s.Warnings, s.Attributes = g.sum, g.binary.source, g.warnings, g.attributes.status()
	s.Sandbox = g.box.String()
	s.Stderr = nil
	e.setLocked(Ready, "", "")
	w := e.hold
	e.hold = nil
	if old != nil {
		e.old = append(e.old, old)
	}
	e.good = g.binary
	e.mu.Unlock()
	e.h.nowServes(e, g.binary)
	e.h.rebuild()
	e.tell(hclog.Info, "element ready", "element", g.desc.GetElement(), "version", g.desc.GetVersion(), "pid", g.process.Pid(), "generation", g.number, "sha256", g.sum)
	if old != nil {
		e.retire(old)
	}
	if w != nil {
		w.release()
	}
}

// retire lets a generation that is on the list of old ones finish, and then stops it.
func (e *element) retire(g *generation) {
	g.drain() // the table has its successor, or says that calls are held
	leaving := e.leaving
	e.retiring.Go(func() {
		by := time.Now().Add(e.o().DrainTimeout)
		if why := e.outlast(g, leaving); why != nil {
			level := hclog.Error
			if x := g.process.Exit(); !x.At.IsZero() && x.Code == 0 && x.Signal == "" {
				level = hclog.Info // it has left by itself, and in order
			}
			e.log.Log(level, "an old generation has gone", "generation", g.number, "reason", why.Error())
			e.part(g, why)
		} else {
			e.end(g, conduit.ReasonReloaded, max(time.Until(by), e.o().StopTimeout))
		}
		e.mu.Lock()
		e.old = slices.DeleteFunc(e.old, func(o *generation) bool { return o == g })
		e.mu.Unlock()
		e.h.unused.Store(true)
		e.h.rebuild()
		select {
		case e.freed <- struct{}{}:
		default:
		}
		// It is told beside the one that serves by now, so which was it stands in the text, too.
		e.tell(hclog.Info, fmt.Sprintf("old generation %d stopped", g.number), "element", g.desc.GetElement(), "generation", g.number)
	})
}

// outlast waits until an old generation has neither a call nor a claim. Its calls are
// ended when the drain's time is over, its claims only when the element is to go or
// Options.ReleaseClaims says so. The
// error says that the process is lost, or has to be ended.
func (e *element) outlast(g *generation, leaving <-chan struct{}) error {
	limit := time.NewTimer(e.o().DrainTimeout)
	defer limit.Stop()
	p := e.newPulse(g)
	defer p.stop()
	late := false
	for !late || g.claims() > 0 && !e.o().ReleaseClaims {
		select {
		case <-g.idle:
			return nil
		case <-limit.C:
			late = true
			e.endCalls(g, conduit.ReasonReloaded)
		case <-g.unclaimed:
		case <-g.process.Exited():
			return &cause{lostExited, "the plugin " + describeEnd(g.process)}
		case <-g.conn.Done():
			return e.linkLost(g)
		case <-p.ticker.C:
			p.ask()
		case a := <-p.answers:
			if why := p.take(a); why != nil {
				return why
			}
		case <-leaving:
			ctx, cancel := e.stopContext()
			defer cancel()
			e.drained(ctx, g)
			return nil
		}
	}
	return nil
}

// drained waits until a generation is idle, for as long as ctx allows.
func (e *element) drained(ctx context.Context, g *generation) {
	select {
	case <-g.idle:
	case <-ctx.Done():
		e.log.Warn("the drain's time is over: calls under way and claims are ended", "generation", g.number, "calls", g.calls(), "claims", g.claims())
	case <-g.process.Exited():
	}
}

// endCalls ends the calls that are under way on a generation; what they were doing, none
// of their callers knows.
func (e *element) endCalls(g *generation, reason string) {
	n := g.calls()
	if n == 0 {
		return
	}
	e.log.Warn("the drain's time is over: calls under way are ended", "generation", g.number, "calls", n)
	what := "the element is being stopped"
	if reason == conduit.ReasonReloaded {
		what = "the element was replaced by a newer process"
	}
	g.conn.EndPassedOn(&conduit.Error{
		Code: conduit.Unavailable, Reason: reason, Outcome: conduit.OutcomeUnknown, Retryable: true, Op: "host.reload",
		Message: what + ", and the call was still under way when drain.timeout was over; call again, and the new process answers",
	})
}

// end stops the process of a generation that takes no calls any more, in good order, and
// frees what it held. Its own Stop may take as long as budget says.
func (e *element) end(g *generation, reason string, budget time.Duration) {
	e.endCalls(g, reason)
	// Ends what is left, and lets the plugin's handlers see it before their element is
	// stopped.
	g.conn.Close(link.CloseGoingAway, conduit.ReasonDraining)
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	if err := g.process.Stop(ctx); err != nil {
		e.log.Warn("the element did not stop in good order", "generation", g.number, "error", g.scrub.err(err))
	}
	e.release(g, e.h.o.KillGrace)
}

// part takes leave of a process that has ended, or must end. Its link ends its calls, once
// each, and says why to their callers: of the process's last words only the operator
// hears.
func (e *element) part(g *generation, why error) {
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

// explain says of a failed start what an operator is to see, whether another process of
// the same file must fail as well, and whether the cause is this host's.
func explain(err error) (kind, reason string, final, ours bool) {
	kind, reason, ours = "failed", err.Error(), shortage(err)
	if c, ok := errors.AsType[*cause](err); ok {
		kind, reason = c.kind, c.reason
		final = kind == refusedDescription || kind == refusedNamed
	}
	if se, ok := errors.AsType[*pluginlink.StartError](err); ok {
		kind, final = string(se.Kind), se.Final()
		ours = ours || se.Kind == pluginlink.KindSystem
	}
	return kind, pluginlink.Text(reason, maxReason), final, ours
}
