package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// stop stops a process and returns when the last of its threads stands still:
// the signal alone may leave one time to answer a call.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		moving := false
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(stats) == 0 {
			t.Fatalf("no threads of %d: %v", pid, err)
		}
		for _, name := range stats {
			stat, err := os.ReadFile(name)
			_, state, ok := strings.Cut(string(stat), ") ")
			moving = moving || err != nil || !ok || state[0] != 'T'
		}
		if !moving {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

// TestUnresponsive: a process that is alive and does not answer costs its own
// calls their deadline, is shown, and serves again when it goes on.
func TestUnresponsive(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.HealthTimeout = 200 * time.Millisecond; o.HealthInterval = 300 * time.Millisecond }, "echo", "other")
	r.ready()
	pid := r.elements()["echo"].Pid
	stop(t, pid)
	short, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	_, err := invoke(short, r.client, echo, "Echo", "late").Recv(short)
	wantReason(t, err, conduit.ReasonDeadline, conduit.OutcomeUnknown)
	if s := r.untilState("echo", Degraded); s.Kind != lostSilent || s.Pid != pid {
		t.Errorf("the snapshot says %+v", s)
	}
	if _, err := r.call("*://other/other/test.Fixture", "Echo", ""); err != nil {
		t.Errorf("another element: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.untilState("echo", Ready)
	if got, err := r.call(echo, "Echo", "back"); err != nil || got != "back" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestUnresponsiveEnded: one that stays silent is ended and started anew.
func TestUnresponsiveEnded(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.HealthTimeout = 100 * time.Millisecond }, "echo")
	r.ready()
	pid := r.elements()["echo"].Pid
	x := r.began("Wait", "")
	stop(t, pid)
	_, err := x.Recv(r.ctx)
	if e := wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown); !strings.Contains(e.Message, "did not answer its health checks") {
		t.Errorf("the caller is told: %s", e.Message)
	}
	s := r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })["echo"]
	if s.Pid == pid || s.LastExit.Signal != "killed" || s.Restarts != 1 {
		t.Errorf("the snapshot says %+v", s)
	}
}
