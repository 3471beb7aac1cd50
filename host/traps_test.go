package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
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
	self, err := pluginFile()
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

// TestCallsOutliveSwaps: calls that are under way when their process is replaced, and its
// successor too, end as they would have: with the answer of the process that began them.
func TestCallsOutliveSwaps(t *testing.T) {
	t.Parallel()
	r := newRig(t, "echo")
	r.ready()
	first := r.elements()["echo"].Pid
	var calls []conduit.Exchange
	begin := func() {
		for range 4 {
			x := invoke(r.ctx, r.client, echo, "Finish", "finish")
			if m, err := x.Recv(r.ctx); err != nil || string(m.Data) != "began" {
				t.Fatalf("%q, %v", m.Data, err)
			}
			calls = append(calls, x)
		}
	}
	begin()
	for n := range 2 {
		r.deploy("echo", strconv.Itoa(n))
		r.until("the next generation", func(m map[string]ElementStatus) bool { return m["echo"].Generation == uint64(n)+2 })
		r.h.reroute()
		begin()
	}
	s := r.elements()["echo"]
	if s.Calls != 12 || len(s.Old) != 2 || s.Old[0].Pid != first || s.Old[0].Calls != 4 || s.Old[1].Calls != 4 {
		t.Errorf("before they may end: %+v", s)
	}
	r.touch("echo", "finish")
	for i, x := range calls {
		if m, err := x.Recv(r.ctx); err != nil || string(m.Data) != "done" {
			t.Errorf("call %d: %q, %v", i, m.Data, err)
		}
	}
	r.until("the old ones to go", func(m map[string]ElementStatus) bool { return len(m["echo"].Old) == 0 })
}

// TestStartsTakeTurns: of many that are to start at once a few do, and the others wait
// without that being held against them: a machine that starts all at once has each of them
// late.
func TestStartsTakeTurns(t *testing.T) {
	t.Parallel()
	const all, atOnce = 8, 2
	dir := t.TempDir()
	starts, goes := filepath.Join(dir, "starts"), filepath.Join(dir, "go")
	r := newRigWith(t, func(o *Options) {
		o.MaxStarts = atOnce
		// It is waiting for its turn that takes so long, and not the handshake.
		script := fmt.Sprintf("#!/bin/sh\necho + >> '%[1]s'\nuntil [ -e '%[2]s' ]; do sleep 0.01; done\necho - >> '%[1]s'\nexec '%[3]s'\n", starts, goes, mustPluginFile(t))
		past := time.Now().Add(-time.Minute)
		for i := range all {
			path := filepath.Join(o.Dir, fmt.Sprintf("echo-%d", i))
			mustDo(t, os.WriteFile(path, []byte(script), 0o700), os.Chtimes(path, past, past)) //nolint:gosec // a plugin is executable
		}
	})
	r.until("those that may start", func(m map[string]ElementStatus) bool {
		text, _ := os.ReadFile(starts)
		return len(m) == all && strings.Count(string(text), "+") >= atOnce
	})
	waiting := 0
	for _, s := range r.elements() {
		if s.Reason == "waiting for its turn" {
			waiting++
		}
	}
	if waiting != all-atOnce {
		t.Errorf("while %d start, %d of %d wait: %+v", atOnce, waiting, all, r.elements())
	}
	mustDo(t, os.WriteFile(goes, nil, 0o600))
	for name, s := range r.until("all to serve", func(m map[string]ElementStatus) bool {
		for _, s := range m {
			if !s.State.Serving() {
				return false
			}
		}
		return true
	}) {
		if s.Restarts != 0 || s.Generation != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	text, err := os.ReadFile(starts)
	mustDo(t, err)
	now, most := 0, 0
	for line := range strings.Lines(string(text)) {
		if now--; line == "+\n" {
			now += 2
		}
		most = max(most, now)
	}
	if most != atOnce || now != 0 {
		t.Errorf("%d were starting at once, of %q", most, text)
	}
}
