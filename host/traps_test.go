package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestOneOfTwoRemoved: two deployments of one binary share nothing that the removal of one
// would take from the other.
func TestOneOfTwoRemoved(t *testing.T) {
	r := newRig(t, "echo", "echo-2")
	r.ready()
	other := r.elements()["echo-2"]
	if err := os.Remove(filepath.Join(r.dir, "echo")); err != nil {
		t.Fatal(err)
	}
	r.until("one alone", func(m map[string]ElementStatus) bool { _, there := m["echo"]; return !there && len(m) == 1 })
	if got, err := r.call("*://echo-2/echo/test.Fixture", "Echo", "still"); err != nil || got != "still" {
		t.Errorf("%q, %v", got, err)
	}
	if s := r.elements()["echo-2"]; s.Pid != other.Pid || s.Generation != 1 {
		t.Errorf("it is %+v", s)
	}
}

// TestSlowStart: an element that needs its time is starting, and nothing is held against
// it, however often its health could have been asked meanwhile.
func TestSlowStart(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.HealthInterval, o.HealthTimeout = time.Millisecond, time.Millisecond })
	r.deploy("echo", "MODE=slow;")
	work := filepath.Join(r.private, "work", "echo")
	if err := awaitFile(r.ctx, filepath.Join(work, "starting")); err != nil {
		t.Fatal(err)
	}
	if s := r.elements()["echo"]; s.State != Starting || s.Restarts != 0 {
		t.Errorf("while it starts: %+v", s)
	}
	if err := os.WriteFile(filepath.Join(work, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := r.until("serving", func(m map[string]ElementStatus) bool { return m["echo"].State.Serving() })["echo"]; s.Restarts != 0 || s.Generation != 1 {
		t.Errorf("it is %+v", s)
	}
}

// TestOneStartAtBoot: a plugin is run once for it to serve: nothing else is asked of it by
// a run of its own. And nothing is written where it was deployed, which may be read-only.
func TestOneStartAtBoot(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starts := filepath.Join(t.TempDir(), "starts")
	r := newRigWith(t, func(o *Options) {
		script := fmt.Sprintf("#!/bin/sh\necho started >> '%s'\nexec '%s'\n", starts, self)
		path := filepath.Join(o.Dir, "echo")
		past := time.Now().Add(-time.Minute)
		for _, err := range []error{
			os.WriteFile(path, []byte(script), 0o700), //nolint:gosec // a plugin is executable
			os.Chtimes(path, past, past),
			os.Chmod(o.Dir, 0o500), //nolint:gosec // a directory
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { _ = os.Chmod(r.dir, 0o700) }) //nolint:gosec // to be removed
	r.ready()
	if got, err := r.call(echo, "Echo", "once"); err != nil || got != "once" {
		t.Fatalf("%q, %v", got, err)
	}
	if text, err := os.ReadFile(starts); err != nil || string(text) != "started\n" {
		t.Errorf("it was started: %q, %v", text, err)
	}
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

// TestQuietStop: an orderly life is told at info and below.
func TestQuietStop(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	r := newRigWith(t, func(o *Options) {
		o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: &log, Mutex: &mu})
	}, "echo")
	r.ready()
	if _, err := r.call(echo, "Echo", ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := r.h.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "element stopped") }) {
		t.Errorf("the log has no stop:\n%s", &log)
	}
	for _, line := range lines {
		if strings.Contains(line, "[WARN]") || strings.Contains(line, "[ERROR]") {
			t.Errorf("logged: %s", line)
		}
	}
}
