package host

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
)

// What is turned off has no process and refuses calls, over a change of its file and the
// end of the host, until it is turned on.
func TestDisabled(t *testing.T) {
	t.Parallel()
	r := newRig(t, "echo", "other")
	r.ready()
	pid := r.elements()["echo"].Pid
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	type result struct {
		c   Change
		err error
	}
	off := make(chan result, 1)
	go func() {
		c, err := r.h.SetEnabled(r.ctx, "echo", false)
		off <- result{c, err}
	}()
	r.until("that it drains", func(m map[string]ElementStatus) bool { return m["echo"].State == Draining })
	select {
	case o := <-off:
		t.Fatalf("disabled while a call is under way: %+v", o)
	default:
	}
	x.Cancel(context.Canceled)
	if o := <-off; o.err != nil || o.c.Result != ResultDisabled {
		t.Fatalf("%+v", o)
	}
	gone(t, r, pid)
	refused := func(r *rig) {
		t.Helper()
		_, err := r.call("*://echo/echo/test.Fixture", "Echo", "")
		if e := wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused); !strings.Contains(e.Message, "is disabled") || !e.Retryable {
			t.Error(e)
		}
	}
	refused(r)
	if c, err := r.h.SetEnabled(r.ctx, "echo", false); err != nil || c.Result != ResultUnchanged {
		t.Errorf("%+v, %v", c, err)
	}
	wantReason(t, second(r.h.Restart(r.ctx, "echo")), conduit.ReasonDisabled, conduit.Refused)
	c := r.mustSend("echo", "two", ResultDisabled)
	r.fileIs("echo", "two")
	for _, d := range r.h.Snapshot() {
		if d.Disabled != (d.Name == "echo") {
			t.Errorf("%+v", d)
		}
	}

	// The next host of the directories.
	if err := r.h.Stop(r.ctx); err != nil {
		t.Fatal(err)
	}
	next := &rig{t: t, ctx: r.ctx, dir: r.dir, private: r.private, wake: make(chan struct{}), done: make(chan error, 1)}
	next.run(t, nil)
	next.ready()
	s := next.elements()
	if s["echo"].State != Disabled || s["echo"].Pid != 0 || s["other"].State != Ready {
		t.Fatalf("after a restart: %+v", s)
	}
	refused(next)
	c2, err := next.h.SetEnabled(r.ctx, "echo", true)
	if err != nil || c2.Result != ResultReady || c2.Sum != c.Sum {
		t.Fatalf("%+v, %v", c2, err)
	}
	if got, err := next.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// On, it may be turned off and on as often as one likes, and old generations have
	// their time again.
	for range 2 {
		if c, err := next.h.SetEnabled(r.ctx, "echo", false); err != nil || c.Result != ResultDisabled {
			t.Fatalf("%+v, %v", c, err)
		}
		if c, err := next.h.SetEnabled(r.ctx, "echo", true); err != nil || c.Result != ResultReady {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	x = invoke(r.ctx, next.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := next.h.Restart(r.ctx, "echo"); err != nil {
		t.Fatal(err)
	}
	if s := next.elements()["echo"]; len(s.Old) != 1 || s.Old[0].Calls != 1 {
		t.Errorf("%+v", s)
	}
	x.Cancel(context.Canceled)
}

func gone(t *testing.T, r *rig, pid int) {
	t.Helper()
	for {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); err != nil {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.ctx.Done():
			t.Fatalf("process %d lives", pid)
		}
	}
}

// A record that cannot be read stops the host, since what is off would run.
func TestRecordDamaged(t *testing.T) {
	t.Parallel()
	dir, private := t.TempDir(), t.TempDir()
	for content, want := range map[string]string{
		"{":                         "unexpected end",
		`{"format":7}`:              "its format is 7",
		`{"format":1,"deployments"`: "unexpected end",
	} {
		if err := os.WriteFile(filepath.Join(private, recordName), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := New(Options{Dir: dir, Private: private})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// A restart gets an element out of its crash loop at once, and leaves no trace of one that
// works.
func TestRestartOfCrashLoop(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.CrashLoopAfter, o.RestartMax = 2, time.Hour }, "echo")
	r.ready()
	for {
		_, _ = r.call(echo, "Exit", "")
		if r.elements()["echo"].State == CrashLooping {
			break
		}
		if r.ctx.Err() != nil {
			t.Fatalf("never crash looping: %+v", r.elements())
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ctx.Done():
		}
	}
	c, err := r.h.Restart(r.ctx, "echo")
	if err != nil || c.Result != ResultReady {
		t.Fatalf("%+v, %v", c, err)
	}
	if got, err := r.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// A stop of the waiting does not stop the restart.
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	_, err = r.h.Restart(ctx, "echo")
	if e := wantReason(t, err, conduit.ReasonCanceled, conduit.OutcomeUnknown); !strings.Contains(e.Message, "the change goes on") {
		t.Error(e)
	}
	r.until("the next generation", func(m map[string]ElementStatus) bool { return m["echo"].Generation > c.Generation })
}

// A cordoned deployment takes no new units: calls that cost none and claims of what is
// reserved go on, and other deployments are not concerned.
func TestCordonDeployment(t *testing.T) {
	t.Parallel()
	b := budget.New(100)
	r := newRigWith(t, func(o *Options) { o.Budget = b }, "echo", "other")
	r.ready()
	if unchanged, err := r.h.CordonDeployment("echo", true); unchanged || err != nil {
		t.Fatal(unchanged, err)
	}
	if unchanged, err := r.h.CordonDeployment("echo", true); !unchanged || err != nil {
		t.Fatal(unchanged, err)
	}
	_, err := r.call(echo, "Heavy", "")
	if e := wantReason(t, err, conduit.ReasonCordoned, conduit.Refused); !e.Retryable || e.Code != conduit.Unavailable || !strings.Contains(e.Message, "deployment echo") {
		t.Error(e)
	}
	if got, err := r.call(echo, "Echo", "hi"); got != "hi" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if s := r.h.Look(address.MustParse(echo), "Heavy", 0); !s.Ready || s.Room || !s.Cordoned {
		t.Errorf("%+v", s)
	}
	if s := r.h.Look(address.MustParse(echo), "Echo", 0); !s.Room || s.Cordoned {
		t.Errorf("%+v", s)
	}
	x := invoke(r.ctx, r.client, "*://other/other/test.Fixture", "Heavy", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Errorf("another deployment: %v", err)
	}
	x.Cancel(context.Canceled)
	if !r.cordoned("echo") || r.cordoned("other") || r.h.Cordoned() {
		t.Error("it does not show")
	}
	// It stays over a swap.
	r.mustSend("echo", "two", ResultReady)
	_, err = r.call(echo, "Heavy", "")
	wantReason(t, err, conduit.ReasonCordoned, conduit.Refused)
	_, err = r.call(echo, "Claim", "1 orphan")
	wantReason(t, err, conduit.ReasonCordoned, conduit.Refused)
	if unchanged, err := r.h.CordonDeployment("echo", false); unchanged || err != nil {
		t.Fatal(unchanged, err)
	}
	x = invoke(r.ctx, r.client, echo, "Heavy", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Error(err)
	}
	x.Cancel(context.Canceled)
}

func (r *rig) cordoned(name string) bool {
	for _, d := range r.h.Snapshot() {
		if d.Name == name {
			return d.Cordoned
		}
	}
	return false
}

// Who waits for a swap that waits itself hears for what, before their time is over; the
// swap goes on.
func TestAwaitSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t, "single")
	r.ready()
	addr := "*://single/single/test.Fixture"
	if _, err := r.call(addr, "Claim", "1 parent"); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(r.ctx)
	cancel()
	wantReason(t, second(r.h.Restart(canceled, "single")), conduit.ReasonCanceled, conduit.OutcomeUnknown)
	r.until("that it waits", func(m map[string]ElementStatus) bool { return len(m["single"].Warnings) > 0 })
	el := r.h.sole("single")
	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	_, err := r.h.await(ctx, begun{e: el, sum: el.wantedSum(), round: el.round()})
	e := wantReason(t, err, conduit.ReasonDeadline, conduit.OutcomeUnknown)
	if !strings.Contains(e.Message, "the change goes on, and the new file waits until the element holds no claim") {
		t.Error(e)
	}
	if _, err := r.call(addr, "Release", "cancel"); err != nil {
		t.Fatal(err)
	}
	r.until("the next generation", func(m map[string]ElementStatus) bool {
		return m["single"].Generation == 2 && m["single"].State == Ready
	})
}
