package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/link"
)

// mode makes a binary of other bytes that does as it says: see fixtureMode.
func mode(what string) string { return "MODE=" + what + ";" + strings.Repeat(" ", 40) }

// touch makes a file in the working directory that a deployment's processes share.
func (r *rig) touch(deployment, name string) {
	r.t.Helper()
	mustDo(r.t, os.WriteFile(filepath.Join(r.private, "work", deployment, name), nil, 0o600))
}

// startingPid waits until a process in mode slow is starting, other than the one given.
func (r *rig) startingPid(deployment string, other int) int {
	r.t.Helper()
	for {
		b, _ := os.ReadFile(filepath.Join(r.private, "work", deployment, "starting"))
		if pid, err := strconv.Atoi(string(b)); err == nil && pid != other {
			return pid
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ctx.Done():
			r.t.Fatal("no process is starting")
		}
	}
}

// load calls an element from several links until stop is called, which returns how many
// calls were made, and those that failed by what they were told.
func (r *rig) load(addr string, callers int) (stop func() (calls int64, failed map[string]int)) {
	r.t.Helper()
	var wg sync.WaitGroup
	var calls atomic.Int64
	var mu sync.Mutex
	failed := map[string]int{}
	over := make(chan struct{})
	route := link.NewRoute(address.MustParse(addr))
	for range callers {
		c := r.dial("ada", conduit.User)
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				data := []byte(strconv.Itoa(n))
				m, err := c.Invoke(r.ctx, route, &conduit.Invocation{
					Method: "Echo", ContentType: conduit.ContentBytes, Request: data, HasRequest: true, Last: true,
				}).Recv(r.ctx)
				calls.Add(1)
				if err == nil && string(m.Data) == string(data) {
					continue
				}
				key := fmt.Sprintf("another answer: %q", m.Data)
				if e, ok := errors.AsType[*conduit.Error](err); ok {
					key = e.Reason + " " + e.Outcome.String()
					if e.RetryAfter > 0 {
						key += " retry_after"
					}
				} else if err != nil {
					key = err.Error()
				}
				mu.Lock()
				failed[key]++
				mu.Unlock()
			}
		})
	}
	return func() (int64, map[string]int) {
		close(over)
		wg.Wait()
		return calls.Load(), failed
	}
}

// TestSwapUnderLoad: no call fails while the binary changes several times, and a claim is
// held over all of them.
func TestSwapUnderLoad(t *testing.T) {
	b := budget.New(10)
	r := newRigWith(t, func(o *Options) { o.Budget = b }, "echo")
	r.ready()
	if _, err := r.call(echo, "ClaimUntil", "release"); err != nil {
		t.Fatal(err)
	}
	first := r.elements()["echo"].Pid
	stop := r.load(echo, 8)
	const swaps = 5
	for n := range uint64(swaps) {
		r.deploy("echo", fmt.Sprint("version ", n))
		r.until("the next generation", func(m map[string]ElementStatus) bool { return m["echo"].Generation == n+2 })
	}
	calls, failed := stop()
	if len(failed) > 0 || calls < 100 {
		t.Errorf("of %d calls failed: %v", calls, failed)
	}
	s := r.until("the old ones but the one with the claim", func(m map[string]ElementStatus) bool { return len(m["echo"].Old) == 1 })["echo"]
	if o := s.Old[0]; o.Pid != first || o.Claims != 1 || o.Generation != 1 || s.Claims != 1 || b.Snapshot().Claimed != 1 || s.State != Ready || len(s.Warnings) > 0 {
		t.Errorf("after %d swaps: %+v, %+v", swaps, s, b.Snapshot())
	}
	if n := len(r.h.Links()); n != 2 {
		t.Errorf("%d links to two processes", n)
	}
	r.touch("echo", "release")
	r.until("its end", func(m map[string]ElementStatus) bool { return len(m["echo"].Old) == 0 })
	if !idleBudget(b.Snapshot()) || syscall.Kill(first, 0) == nil {
		t.Errorf("the claim was given back: %+v", b.Snapshot())
	}
	// The copies of what nobody runs any more go, but for the one to roll back to.
	for {
		names, err := filepath.Glob(filepath.Join(r.private, "bin", "*"))
		if err != nil || len(names) == 2 {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-r.ctx.Done():
			t.Fatalf("copies are left: %v", names)
		}
	}
}

// TestReloadFails: a new binary that does not come up leaves the old one serving and says
// why; it is tried again, and the warning goes with it.
func TestReloadFails(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	was := r.elements()["echo"]
	stop := r.load(echo, 2)
	for what, reason := range map[string]string{"fails": "the new key is missing", "dies": "exited with status 4"} {
		r.deploy("echo", mode(what))
		s := r.until("the warning", func(m map[string]ElementStatus) bool {
			return len(m["echo"].Warnings) == 1 && strings.Contains(m["echo"].Warnings[0], reason)
		})["echo"]
		if s.State != Ready || s.Pid != was.Pid || s.Generation != 1 || s.Restarts != 0 || !strings.Contains(s.LastError, reason) || s.Sum != was.Sum {
			t.Errorf("%s: %+v", what, s)
		}
	}
	if got, err := r.call(echo, "Echo", "still"); err != nil || got != "still" {
		t.Errorf("%q, %v", got, err)
	}
	if calls, failed := stop(); len(failed) > 0 {
		t.Errorf("of %d calls failed: %v", calls, failed)
	}
	// The process that serves dies: what is known not to come up is no successor.
	mustDo(t, syscall.Kill(was.Pid, syscall.SIGKILL))
	s := r.until("another process", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 && m["echo"].State == Ready })["echo"]
	if s.Sum != was.Sum || s.Restarts != 1 {
		t.Errorf("%+v", s)
	}
	r.deploy("echo", "mended")
	s = r.until("the mended one", func(m map[string]ElementStatus) bool {
		return m["echo"].Generation == 3 && len(m["echo"].Warnings) == 0
	})["echo"]
	if s.Sum == was.Sum || s.State != Ready {
		t.Errorf("%+v", s)
	}
}

// TestReloadKilled: a new process that is killed while it starts is started again, and
// nothing is seen of it; the old one's death in that time costs no more than it must.
func TestReloadKilled(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	was := r.elements()["echo"]
	stop := r.load(echo, 2)
	r.deploy("echo", mode("slow"))
	pid := r.startingPid("echo", 0)
	if s := r.elements()["echo"]; s.State != Ready || s.Pid != was.Pid {
		t.Errorf("while the new one starts: %+v", s)
	}
	mustDo(t, syscall.Kill(pid, syscall.SIGKILL))
	r.until("the warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) == 1 })
	pid = r.startingPid("echo", pid)
	if calls, failed := stop(); len(failed) > 0 {
		t.Errorf("of %d calls failed: %v", calls, failed)
	}
	mustDo(t, syscall.Kill(was.Pid, syscall.SIGKILL))
	r.untilState("echo", Backoff)
	_, err := r.call(echo, "Echo", "")
	wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused)
	r.touch("echo", "go")
	s := r.until("the new one", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 })["echo"]
	r.until("the count", func(m map[string]ElementStatus) bool { return m["echo"].Restarts == 1 })
	if s.Pid != pid || s.State != Ready {
		t.Errorf("%+v, want pid %d", s, pid)
	}
}

// TestStopDuringReload: a host that stops while a new process starts leaves nothing.
func TestStopDuringReload(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	old := r.elements()["echo"].Pid
	r.deploy("echo", mode("slow"))
	pid := r.startingPid("echo", 0)
	began := time.Now()
	mustDo(t, r.h.Stop(r.ctx))
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	for _, pid := range []int{old, pid} {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

// TestReloadWaits: with four generations that finish, a fifth reload waits, and says so.
func TestReloadWaits(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	for n := range uint64(maxOld + 1) {
		if _, err := r.call(echo, "ClaimUntil", "never"); err != nil {
			t.Fatal(err)
		}
		r.deploy("echo", fmt.Sprint("version ", n))
		if n < maxOld {
			r.until("the next generation", func(m map[string]ElementStatus) bool { return m["echo"].Generation == n+2 })
		}
	}
	s := r.until("the warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) == 1 })["echo"]
	if !strings.Contains(s.Warnings[0], "4 old generations are still finishing, with 0 calls and 4 claims") || s.State != Ready || s.Claims != maxOld+1 || len(s.Old) != maxOld {
		t.Errorf("%+v", s)
	}
	mustDo(t, syscall.Kill(s.Old[1].Pid, syscall.SIGKILL))
	s = r.until("the fifth", func(m map[string]ElementStatus) bool {
		return m["echo"].Generation == maxOld+2 && len(m["echo"].Warnings) == 0
	})["echo"]
	if s.Claims != maxOld || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	mustDo(t, os.Remove(filepath.Join(r.dir, "echo")))
	stop, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond) // the claims of all generations are ended
	defer cancel()
	mustDo(t, r.h.Stop(stop))
}

// TestReloadEndsCalls: what is still under way on an old generation when the drain's time
// is over ends with reloaded; its claims stay.
func TestReloadEndsCalls(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.DrainTimeout = 300 * time.Millisecond }, "echo")
	r.ready()
	if _, err := r.call(echo, "ClaimUntil", "release"); err != nil {
		t.Fatal(err)
	}
	x := r.began("Wait", "")
	r.deploy("echo", "new")
	_, err := x.Recv(r.ctx)
	e := wantReason(t, err, conduit.ReasonReloaded, conduit.OutcomeUnknown)
	if e.Code != conduit.Unavailable || !e.Retryable {
		t.Errorf("%+v", e)
	}
	s := r.until("the end of the call", func(m map[string]ElementStatus) bool { return m["echo"].Calls == 0 })["echo"]
	if len(s.Old) != 1 || s.Old[0].Claims != 1 || s.Generation != 2 {
		t.Errorf("%+v", s)
	}
	r.touch("echo", "release")
	r.until("the end of the claim", func(m map[string]ElementStatus) bool { return len(m["echo"].Old) == 0 && m["echo"].Claims == 0 })
}

// TestReloadReleasesClaims: if it is told to, a reload takes claims as it takes calls.
func TestReloadReleasesClaims(t *testing.T) {
	b := budget.New(10)
	r := newRigWith(t, func(o *Options) {
		o.Budget, o.DrainTimeout, o.ReleaseClaims = b, 200*time.Millisecond, true
	}, "echo")
	r.ready()
	if _, err := r.call(echo, "ClaimUntil", "never"); err != nil {
		t.Fatal(err)
	}
	r.deploy("echo", "new")
	r.until("the end of the old one", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 && len(m["echo"].Old) == 0 })
	untilBudget(t, b, "what its claim gives back", idleBudget)
}

// TestReloadEndsStuckCalls: a handler that takes no notice of its end holds up nothing.
func TestReloadEndsStuckCalls(t *testing.T) {
	r := newRigWith(t, func(o *Options) {
		o.DrainTimeout = 200 * time.Millisecond
		o.StopTimeout = 200 * time.Millisecond
		o.KillGrace = 200 * time.Millisecond
	}, "echo")
	r.ready()
	x := invoke(r.ctx, r.client, echo, "Stuck", "")
	r.until("the call", func(m map[string]ElementStatus) bool { return m["echo"].Calls == 1 })
	r.deploy("echo", "new")
	_, err := x.Recv(r.ctx)
	wantReason(t, err, conduit.ReasonReloaded, conduit.OutcomeUnknown)
	r.until("the end of the old process", func(m map[string]ElementStatus) bool {
		return m["echo"].Generation == 2 && len(m["echo"].Old) == 0 && m["echo"].Calls == 0
	})
}

const single = "*://single/single/test.Fixture"

// TestExclusive: one that cannot run beside its successor stops first, and calls wait.
func TestExclusive(t *testing.T) {
	r := newRig(t, "single")
	r.ready()
	was := r.elements()["single"]
	if _, err := r.call(single, "ClaimUntil", "release"); err != nil {
		t.Fatal(err)
	}
	r.deploy("single", "new")
	s := r.until("the warning", func(m map[string]ElementStatus) bool { return len(m["single"].Warnings) == 1 })["single"]
	if s.State != Ready || s.Pid != was.Pid || !strings.Contains(s.Warnings[0], "until the element holds no claim") {
		t.Errorf("%+v", s)
	}
	if got, err := r.call(single, "Echo", "still"); err != nil || got != "still" {
		t.Errorf("%q, %v", got, err)
	}
	stop := r.load(single, 4)
	r.touch("single", "release")
	s = r.until("the new one", func(m map[string]ElementStatus) bool { return m["single"].Generation == 2 })["single"]
	if len(s.Warnings) > 0 || s.Sum == was.Sum || s.State != Ready {
		t.Errorf("%+v", s)
	}
	// One that does not come up: the one before is started once more.
	r.deploy("single", mode("fails"))
	s = r.until("the one before", func(m map[string]ElementStatus) bool { return m["single"].Generation == 3 })["single"]
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "the new key is missing") || s.State != Ready {
		t.Errorf("%+v", s)
	}
	calls, failed := stop()
	for why := range failed { // it may take longer than they are held for, on a machine that has much to do
		if why != "plugin_starting refused retry_after" {
			t.Errorf("of %d calls failed: %v", calls, failed)
		}
	}
	// It is not tried once more: each try would be a gap.
	r.deploy("other", "")
	r.untilState("other", Ready)
	if again := r.elements()["single"]; again.Generation != 3 || again.Pid != s.Pid {
		t.Errorf("%+v", again)
	}
}

// TestBecomesExclusive: that it cannot run beside another is seen before it is configured.
func TestBecomesExclusive(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	r.deploy("echo", mode("exclusive"))
	s := r.until("the new one", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 })["echo"]
	if !s.Description.GetExclusive() || len(s.Old) > 0 || len(s.Warnings) > 0 || s.Restarts > 0 || s.LastError != "" {
		t.Errorf("%+v", s)
	}
}

// TestHold: calls that find an element between two generations wait, so many and so long.
func TestHold(t *testing.T) {
	// Let go at once, as many as may be held are not to meet the bounds of the element, too.
	r := newRigWith(t, func(o *Options) { o.Concurrency = 8 * maxHeld }, "echo", "other")
	r.ready()
	r.h.mu.Lock()
	e := r.h.elements["echo"]
	r.h.mu.Unlock()
	e.mu.Lock()
	g := e.gen
	e.mu.Unlock()
	held := func(n int) {
		t.Helper()
		for {
			e.mu.Lock()
			w := e.hold
			e.mu.Unlock()
			w.mu.Lock()
			have := w.n
			w.mu.Unlock()
			if have == n {
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-r.ctx.Done():
				t.Fatalf("%d calls are held, want %d", have, n)
			}
		}
	}
	e.beginHold()
	e.swap(nil, Draining)
	var calls []conduit.Exchange
	for n := range maxHeld {
		calls = append(calls, invoke(r.ctx, r.dialEvery(n), echo, "Echo", strconv.Itoa(n)))
	}
	held(maxHeld)
	began := time.Now()
	_, err := r.call(echo, "Echo", "one too many")
	if e := wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused); e.RetryAfter == 0 || !e.Retryable || e.Code != conduit.Unavailable || time.Since(began) > maxHold {
		t.Errorf("%+v", e)
	}
	e.swap(g, Ready)
	e.endHold()
	for n, x := range calls {
		m, err := x.Recv(r.ctx)
		if err != nil { // on a slow machine some were held too long
			wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused)
		} else if string(m.Data) != strconv.Itoa(n) {
			t.Errorf("call %d has the answer %q", n, m.Data)
		}
	}

	e.beginHold()
	e.swap(nil, Draining)
	began = time.Now()
	x := invoke(r.ctx, r.client, echo, "Echo", "")
	held(1)
	_, err = r.call("*://other/other/test.Fixture", "Call", "self "+echo+" Echo") // and one of a plugin
	if e := wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused); e.RetryAfter == 0 {
		t.Errorf("%+v", e)
	}
	_, err = x.Recv(r.ctx)
	if e := wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused); e.RetryAfter == 0 || time.Since(began) < maxHold*9/10 {
		t.Errorf("after %s: %+v", time.Since(began), e)
	}
	e.swap(g, Ready)
	e.endHold()
	if n := r.elements()["echo"].Calls; n != 0 {
		t.Errorf("%d calls are still counted", n)
	}
}

// dialEvery returns a link for the n-th of many calls: one takes no more than some hundreds.
func (r *rig) dialEvery(n int) *link.Conn {
	r.t.Helper()
	if n%200 == 0 {
		r.client = r.dial("ada", conduit.User)
	}
	return r.client
}

// TestGoesAway: a process that takes no more calls finishes those that it has, and has a
// successor at once.
func TestGoesAway(t *testing.T) {
	for _, name := range []string{"echo", "single"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, name)
			r.ready()
			addr := "*://" + name + "/" + name + "/test.Fixture"
			x := invoke(r.ctx, r.client, addr, "Wait", "")
			if m, err := x.Recv(r.ctx); err != nil || string(m.Data) != "began" {
				t.Fatalf("%q, %v", m.Data, err)
			}
			was := r.elements()[name]
			mustDo(t, syscall.Kill(was.Pid, syscall.SIGTERM))
			if name == "single" { // it has to end before another can start
				r.untilState(name, Draining)
				x.Cancel(context.Canceled)
			}
			s := r.until("its successor", func(m map[string]ElementStatus) bool { return m[name].Generation == 2 && m[name].State == Ready })[name]
			if s.Restarts != 1 || s.Pid == was.Pid || !strings.Contains(s.LastError, "takes no more calls") {
				t.Errorf("%+v", s)
			}
			if got, err := r.call(addr, "Echo", "new"); err != nil || got != "new" {
				t.Errorf("%q, %v", got, err)
			}
			if name == "single" {
				return
			}
			if len(s.Old) != 1 || s.Old[0].Pid != was.Pid || s.Old[0].Calls != 1 {
				t.Errorf("the old process: %+v", s)
			}
			x.Cancel(context.Canceled)
			r.until("the end of the old one", func(m map[string]ElementStatus) bool { return len(m[name].Old) == 0 })
		})
	}
}

// TestOverwrittenInPlace: a file that is written over while it runs disturbs nothing, and
// the same bytes again reload nothing.
func TestOverwrittenInPlace(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	was := r.elements()["echo"]
	stop := r.load(echo, 2)
	path := filepath.Join(r.dir, "echo")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, os.WriteFile(path, b, 0o755)) //nolint:gosec // a program
	r.deploy("other", "")                   // seen in a later scan
	r.untilState("other", Ready)
	if s := r.elements()["echo"]; s.Generation != 1 || s.Pid != was.Pid {
		t.Errorf("the same bytes: %+v", s)
	}
	mustDo(t, os.WriteFile(path, append(b, "other bytes"...), 0o755)) //nolint:gosec // a program
	r.until("the new one", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 && m["echo"].State == Ready })
	if calls, failed := stop(); len(failed) > 0 {
		t.Errorf("of %d calls failed: %v", calls, failed)
	}
}
