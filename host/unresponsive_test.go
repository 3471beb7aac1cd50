package host

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// TestUnresponsive: a process that is alive and does not answer costs its own
// calls their deadline, is shown, and serves again when it goes on.
func TestUnresponsive(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.HealthTimeout = 200 * time.Millisecond; o.HealthInterval = 300 * time.Millisecond }, "echo", "other")
	r.ready()
	pid := r.elements()["echo"].Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
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
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s := r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })["echo"]
	if s.Pid == pid || s.LastExit.Signal != "killed" || s.Restarts != 1 {
		t.Errorf("the snapshot says %+v", s)
	}
}
