package host

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// debugVar has the test binary serve the fixture of that name as `<binary> debug` does.
const debugVar = "HOST_FIXTURE_DEBUG"

func debugFixture(name string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := pluginlink.Debug(ctx, name, func() pluginlink.Plugin { return &fixture{name: name} }, func(socket string) {
		fmt.Println(socket)
	})
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// debugger is a debug process, and what it works in.
type debugger struct {
	t      *testing.T
	dir    string
	socket string
	cmd    *exec.Cmd
}

// startDebugger starts a debug process, and returns when it can be attached to.
func startDebugger(t *testing.T, name string) *debugger {
	t.Helper()
	dir, err := os.MkdirTemp("", "dbg") //nolint:usetesting // its path would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &debugger{t: t, dir: dir}
	d.start(name)
	t.Cleanup(func() {
		if d.cmd != nil {
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait()
		}
	})
	return d
}

func (d *debugger) command(name string) *exec.Cmd {
	d.t.Helper()
	self, err := pluginFile()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.CommandContext(d.t.Context(), self)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), debugVar+"="+name, "XDG_RUNTIME_DIR="+d.dir)
	return cmd
}

func (d *debugger) start(name string) {
	d.t.Helper()
	cmd := d.command(name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.cmd = cmd
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		d.t.Fatalf("the debug process said %q: %v", line, err)
	}
	d.socket = strings.TrimSpace(line)
}

func (d *debugger) pid() int { return d.cmd.Process.Pid }

// kill ends it as kill -9 does, or a debugger that is closed.
func (d *debugger) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	d.cmd = nil
}

// stopped says whether the element's Stop was called since the last question.
func (d *debugger) stopped() bool { return os.Remove(filepath.Join(d.dir, "stopped")) == nil }

// TestReattach: a debug process takes the place of what is deployed. It is never killed,
// may stand still longer than any process of the host's, is found again after it was
// started anew, and outlives the host, whose successor attaches to it.
func TestReattach(t *testing.T) {
	d := startDebugger(t, "echo")
	change := func(o *Options) {
		o.Reattach = map[string]string{"echo": d.socket}
		o.HealthTimeout, o.HealthInterval = 200*time.Millisecond, 50*time.Millisecond
		o.Sandbox = SandboxBestEffort
	}
	r := newRigWith(t, change, "echo", "other")
	r.ready()
	s := r.elements()["echo"]
	if s.State != Ready || s.Pid != d.pid() || s.Sandbox != "off" || s.Sum != "" || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "for development only") {
		t.Fatalf("it is not the debug process (%d): %+v", d.pid(), s)
	}
	if got, err := r.call(echo, "Echo", "hello"); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}

	// A breakpoint: as long as an element of the host's takes to be given up.
	stop(t, d.pid())
	x := invoke(r.ctx, r.client, echo, "Echo", "after the breakpoint")
	ordinary := r.elements()["other"]
	stop(t, ordinary.Pid)
	r.until("the ordinary element given up", func(m map[string]ElementStatus) bool { return m["other"].Generation > ordinary.Generation })
	if s := r.elements()["echo"]; s.State != Ready || s.Generation != 1 {
		t.Errorf("standing still, it is %+v", s)
	}
	if err := syscall.Kill(d.pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if m, err := x.Recv(r.ctx); err != nil || string(m.Data) != "after the breakpoint" {
		t.Errorf("the call that was under way: %q, %v", m.Data, err)
	}

	// Gone, and there again.
	d.kill()
	gone := r.until("the debugger gone", func(m map[string]ElementStatus) bool {
		return m["echo"].State == Backoff && m["echo"].Kind == "not_found"
	})["echo"]
	if !strings.Contains(gone.Reason, "start `<binary> debug`") || gone.Restarts != 0 || gone.Pid != 0 {
		t.Errorf("without it: %+v", gone)
	}
	_, err := r.call(echo, "Echo", "")
	if e := wantReason(t, err, conduit.ReasonPluginStarting, conduit.Refused); e.Code != conduit.Unavailable {
		t.Errorf("a call meanwhile: %v", e)
	}
	d.start("echo")
	r.until("attached again", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Pid == d.pid() })
	if got, err := r.call(echo, "Echo", "again"); err != nil || got != "again" {
		t.Errorf("%q, %v", got, err)
	}

	// The host's end is not its end.
	stopping, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.h.Stop(stopping); err != nil {
		t.Error(err)
	}
	if !d.stopped() {
		t.Error("its element was not stopped")
	}
	again := newRigWith(t, change, "echo", "other")
	again.untilState("echo", Ready)
	if s := again.elements()["echo"]; s.Pid != d.pid() {
		t.Errorf("the next host has %+v", s)
	}
	if got, err := again.call(echo, "Echo", "next host"); err != nil || got != "next host" {
		t.Errorf("%q, %v", got, err)
	}

	// In order: it takes no more calls, and leaves nothing but its lock.
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("at its end: %v", err)
	}
	d.cmd = nil
	if left, _ := filepath.Glob(filepath.Dir(d.socket) + "/*"); len(left) != 1 || !d.stopped() {
		t.Errorf("it has left %v", left)
	}
	again.untilState("echo", Backoff)
}

// TestReattachSkipsChecks: a deployment that would be refused runs from a debug process.
func TestReattachSkipsChecks(t *testing.T) {
	d := startDebugger(t, "echo")
	r := newRigWith(t, func(o *Options) {
		o.Reattach = map[string]string{"echo": d.socket}
		o.Verify = VerifyRequired
	}, "echo", "other")
	r.ready()
	if m := r.elements(); m["echo"].State != Ready || m["other"].State != Refused {
		t.Errorf("they are %+v", m)
	}
}

// TestReattachOneAtATime: a debug process has one host, and one of a name there is.
func TestReattachOneAtATime(t *testing.T) {
	d := startDebugger(t, "echo")
	change := func(o *Options) { o.Reattach = map[string]string{"echo": d.socket} }
	first := newRigWith(t, change, "echo")
	first.ready()
	second := newRigWith(t, change, "echo")
	s := second.untilState("echo", Backoff)
	if !strings.Contains(s.Reason, "another host is attached") {
		t.Errorf("the second host says %q", s.Reason)
	}
	out, err := d.command("echo").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another process serves echo for debugging already") {
		t.Errorf("a second process of that name: %v, %s", err, out)
	}
	if got, err := first.call(echo, "Echo", "mine"); err != nil || got != "mine" {
		t.Errorf("the first: %q, %v", got, err)
	}
}

// TestReattachMistakes: each is said, with what to do.
func TestReattachMistakes(t *testing.T) {
	for _, tt := range []struct {
		entries map[string]string
		want    string
	}{
		{map[string]string{"echo": "echo.sock"}, "no absolute path"},
		{map[string]string{"echo": "/a/b.sock", "other": "/a/b.sock"}, "echo and other are both to be served at /a/b.sock"},
	} {
		if _, err := New(Options{Dir: t.TempDir(), Private: t.TempDir(), Reattach: tt.entries}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %s", tt.entries, err, tt.want)
		}
	}
	script := []byte("#!/bin/sh\nexit 1\n")
	for name, tt := range map[string]struct {
		deployed []string
		want     string
	}{
		"ecoh":  {[]string{"echo", "dirty"}, `"ecoh", which is not deployed in DIR; there is: dirty/a, dirty/b, echo`},
		"dirty": {[]string{"dirty"}, `"dirty", which has several elements; name one: dirty/a, dirty/b`},
		"none":  {nil, `"none", and nothing is deployed in DIR`},
	} {
		r := &rig{t: t, dir: t.TempDir()}
		for _, d := range tt.deployed {
			if d != "dirty" {
				r.write(d, script, 0o755)
				continue
			}
			if err := os.Mkdir(filepath.Join(r.dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
			r.deploy("dirty/a", "")
			r.deploy("dirty/b", "")
		}
		h, err := New(Options{
			Dir: r.dir, Private: t.TempDir(), Instance: testInstance, Env: []string{fixtureVar + "=1"},
			ScanInterval: 50 * time.Millisecond, Reattach: map[string]string{name: "/nowhere/x.sock"},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err = h.Run(ctx)
		cancel()
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), r.dir, "DIR"), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
