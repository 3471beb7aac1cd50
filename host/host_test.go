package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

const echo = "*://echo/echo/test.Fixture"

func TestServe(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	s := r.elements()["echo"]
	if s.State != Ready || s.Name != "echo" || s.Generation != 1 || s.Pid == 0 || len(s.Sum) != 64 || s.Description == nil {
		t.Errorf("the snapshot says %+v", s)
	}
	id := address.UniqueDeploymentID("echo").String()
	for _, addr := range []string{
		echo, "*://*/echo/test.Fixture", "*://*/echo[0]/test.Fixture", "*://" + id + "/echo/test.Fixture",
		testInstance.String() + "://echo/echo/test.Fixture",
	} {
		if got, err := r.call(addr, "Echo", "hello"); err != nil || got != "hello" {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
	if got, err := r.call(echo, "Who", ""); err != nil || got != "echo ada user via " {
		t.Errorf("the element sees %q, %v", got, err)
	}
	for _, c := range []struct {
		addr, method, reason string
		code                 conduit.Code
		retryable            bool
	}{
		{address.UniqueInstanceID("other").String() + "://echo/echo/test.Fixture", "Echo", conduit.ReasonInstanceNotFound, conduit.NotFound, true},
		{"*://none/echo/test.Fixture", "Echo", conduit.ReasonDeploymentNotFound, conduit.NotFound, true},
		{"*://conduit/echo/test.Fixture", "Echo", conduit.ReasonDeploymentNotFound, conduit.NotFound, true},
		{"*://echo/none/test.Fixture", "Echo", conduit.ReasonElementNotFound, conduit.NotFound, true},
		{"*://echo/echo[1]/test.Fixture", "Echo", conduit.ReasonElementNotFound, conduit.NotFound, true},
		{"*://*/none/test.Fixture", "Echo", conduit.ReasonElementNotFound, conduit.NotFound, true},
		{"*://echo/echo/test.None", "Echo", conduit.ReasonServiceNotFound, conduit.NotFound, true},
		{"*://echo/echo/test.Fixture#formal", "Echo", conduit.ReasonServiceNotFound, conduit.NotFound, true},
		{echo, "None", conduit.ReasonMethodNotFound, conduit.NotFound, false},
		{echo, "Hidden", conduit.ReasonNotRemote, conduit.PermissionDenied, false},
		{echo, "Own", conduit.ReasonLevelTooLow, conduit.PermissionDenied, false},
	} {
		_, err := r.call(c.addr, c.method, "")
		e := wantReason(t, err, c.reason, conduit.Refused)
		if e.Code != c.code || e.Retryable != c.retryable || e.Address == "" {
			t.Errorf("%s %s: %+v", c.addr, c.method, e)
		}
	}
	if n := r.elements()["echo"].Calls; n != 0 {
		t.Errorf("%d calls are still counted", n)
	}
}

// TestScanAndOrdinals: several elements of one name, in the order of their
// deployments' ids.
func TestScanAndOrdinals(t *testing.T) {
	r := newRig(t, "twin-a", "twin-b")
	r.ready()
	first, second := "twin-a", "twin-b"
	if address.UniqueDeploymentID(first).Compare(address.UniqueDeploymentID(second)) > 0 {
		first, second = second, first
	}
	for addr, want := range map[string]string{"*://*/twin/test.Fixture": first, "*://*/twin[0]/test.Fixture": first, "*://*/twin[1]/test.Fixture": second} {
		if got, err := r.call(addr, "Who", ""); err != nil || !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s: %q, %v", addr, got, err)
		}
	}
}

// TestCrash: calls in flight end once with plugin_lost, and the element is back.
func TestCrash(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	_, err := r.call(echo, "Exit", "")
	for range 2 { // the call that ended the process, and one beside it
		if e := wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown); !strings.Contains(e.Message, "the process exited with status 9") {
			t.Errorf("the caller is told: %s", e.Message)
		}
		_, err = x.Recv(r.ctx)
	}
	s := r.until("the second generation", func(m map[string]ElementStatus) bool {
		return m["echo"].State == Ready && m["echo"].Generation == 2
	})["echo"]
	if s.Restarts != 1 || s.LastExit.Code != 9 {
		t.Errorf("the snapshot says %+v", s)
	}
	if got, err := r.call(echo, "Echo", "again"); err != nil || got != "again" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestKilled(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	pid := r.elements()["echo"].Pid
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err := x.Recv(r.ctx)
	if e := wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown); !strings.Contains(e.Message, "the process was ended by signal: killed") || e.Peer != testInstance.String() {
		t.Errorf("the caller is told: %s", e.Message)
	}
	s := r.until("a new process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Pid != pid })["echo"]
	if s.LastExit.Signal != "killed" {
		t.Errorf("the last exit is %s", s.LastExit)
	}
}

// TestCrashLoop: a process that never lives is tried ever more seldom, and no
// other element suffers.
func TestCrashLoop(t *testing.T) {
	r := newRig(t, "dies", "echo")
	r.ready()
	s := r.untilState("dies", CrashLooping)
	if s.Kind != "exited" || s.LastExit.Code != 4 || !strings.Contains(s.Reason, "cannot live") || s.Restarts < 5 {
		t.Errorf("the snapshot says %+v", s)
	}
	_, err := r.call("*://dies/dies/test.Fixture", "Echo", "")
	e := wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
	if !e.Retryable || e.Code != conduit.Unavailable || !strings.Contains(e.Message, "crash_looping") || strings.Contains(e.Message, "cannot live") {
		t.Errorf("got %+v", e)
	}
	if _, err := r.call(echo, "Echo", ""); err != nil {
		t.Error(err)
	}
	r.until("more tries, at the longest interval", func(m map[string]ElementStatus) bool { return m["dies"].Restarts >= s.Restarts+3 })
}

// TestCrashLoopEnds: a process that comes up and dies is retried at the longest
// interval, and at once when its file changes; the new file begins with a clean sheet.
func TestCrashLoopEnds(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.RestartMax = time.Hour; o.CrashLoopAfter = 2 }, "echo")
	r.ready()
	kill := func() ElementStatus {
		t.Helper()
		was := r.untilState("echo", Ready)
		mustDo(t, syscall.Kill(was.Pid, syscall.SIGKILL))
		return r.until("the end of the process", func(m map[string]ElementStatus) bool { return m["echo"].Restarts > was.Restarts })["echo"]
	}
	kill()
	kill()
	was := r.untilState("echo", CrashLooping) // for an hour
	r.deploy("echo", "mended")
	s := r.untilState("echo", Ready)
	if s.Sum == was.Sum {
		t.Error("the old file was started")
	}
	kill() // once is no loop
	if s := r.untilState("echo", Ready); s.Generation != 4 {
		t.Errorf("the snapshot says %+v", s)
	}
}

// TestRefusedFile: who calls an element whose file is refused hears that it will not
// come up, and nothing of this machine's files.
func TestRefusedFile(t *testing.T) {
	r := newRig(t)
	r.write("bad", []byte("<html>"), 0o755)
	r.ready()
	if s := r.untilState("bad", Refused); !strings.Contains(s.Reason, filepath.Join(r.dir, "bad")) {
		t.Errorf("the operator is told: %s", s.Reason)
	}
	_, err := r.call("*://bad/bad/test.Fixture", "Echo", "")
	e := wantReason(t, err, conduit.ReasonPluginFailed, conduit.Refused)
	if e.Code != conduit.Unavailable || !e.Retryable || strings.Contains(e.Message, r.dir) || strings.Contains(e.Message, "html") {
		t.Errorf("got %+v", e)
	}
}

// TestOutputNamesItsElement: each record of a process's output says whose it is.
func TestOutputNamesItsElement(t *testing.T) {
	lines := make(chan string, 1000)
	r := newRigWith(t, func(o *Options) {
		o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, JSONFormat: true, Output: writerFunc(func(p []byte) { lines <- string(p) })})
	}, "echo-one")
	r.ready()
	if _, err := r.call("*://echo-one/echo/test.Fixture", "Print", "who says this"); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case line := <-lines:
			var record map[string]any
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				t.Fatal(err)
			}
			if record["@message"] != "who says this" {
				continue
			}
			if record["deployment"] != "echo-one" || record["element"] != "echo" || record["source"] != "stderr" {
				t.Errorf("the record is %s", line)
			}
			return
		case <-r.ctx.Done():
			t.Fatal("the line never came to the log")
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestHang: a process that hangs at its start holds up only itself.
func TestHang(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.StartTimeout = 2 * time.Second; o.MaxStarts = 2 }, "hangs", "echo")
	r.untilState("echo", Ready)
	if s := r.elements()["hangs"].State; s != Starting {
		t.Errorf("it is %s", s)
	}
	s := r.until("the failure", func(m map[string]ElementStatus) bool { return m["hangs"].Kind == "timeout" })["hangs"]
	if !strings.Contains(s.Reason, "no handshake within 2s") {
		t.Errorf("reason: %s", s.Reason)
	}
}

// TestUnwell: what an element says of itself is shown.
func TestUnwell(t *testing.T) {
	r := newRig(t, "ill", "warns", "badconfig", "misnamed")
	r.ready()
	if s := r.untilState("ill", Degraded); s.Reason != "half of it is gone" {
		t.Errorf("reason: %s", s.Reason)
	}
	if _, err := r.call("*://ill/ill/test.Fixture", "Echo", ""); err != nil {
		t.Errorf("a degraded element must serve: %v", err)
	}
	status := map[string]string{}
	for _, d := range r.h.Snapshot() {
		status[d.Name] = d.Status
	}
	if status["warns"] != "warnings" || status["ill"] != "warnings" || status["badconfig"] != "failed" {
		t.Errorf("deployments are %v", status)
	}
	m := r.elements()
	if s := m["badconfig"]; !strings.Contains(s.LastError, "the key is missing") {
		t.Errorf("reason: %s", s.Reason)
	}
	if s := m["misnamed"]; s.State != Refused || s.Kind != refusedDescription || !strings.Contains(s.LastError, "../../etc") {
		t.Errorf("a name that leaves its directory: %+v", s)
	}
}

// TestChangeAndRemove: another file is another process; touching changes nothing.
func TestChangeAndRemove(t *testing.T) {
	r := newRig(t, "echo")
	r.ready()
	before := r.elements()["echo"]
	now := time.Now().Add(-30 * time.Second)
	if err := os.Chtimes(filepath.Join(r.dir, "echo"), now, now); err != nil {
		t.Fatal(err)
	}
	r.deploy("other", "") // seen in a later scan than the touch
	r.untilState("other", Ready)
	if s := r.elements()["echo"]; s.Pid != before.Pid || s.Generation != 1 {
		t.Errorf("a touched file was loaded again: %+v", s)
	}

	r.deploy("echo", "new bytes")
	s := r.until("the new binary", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Sum != before.Sum })["echo"]
	if s.Generation != 2 || s.LastExit.Code != 0 {
		t.Errorf("the snapshot says %+v", s)
	}
	r.until("the end of the old process", func(m map[string]ElementStatus) bool { return len(m["echo"].Old) == 0 })
	if _, err := os.Stat(filepath.Join(r.private, "work", "echo", "stopped")); err != nil {
		t.Errorf("the old process did not stop in order: %v", err)
	}

	r.write("echo", []byte("#!/bin/sh\n"), 0o755)
	s = r.until("the warning", func(m map[string]ElementStatus) bool { return len(m["echo"].Warnings) > 0 })["echo"]
	if s.State != Ready || s.Generation != 2 {
		t.Errorf("a bad file took the element down: %+v", s)
	}

	x := invoke(r.ctx, r.client, "*://other/other/test.Fixture", "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.dir, "other")); err != nil {
		t.Fatal(err)
	}
	r.untilState("other", Draining)
	_, err := r.call("*://other/other/test.Fixture", "Echo", "")
	wantReason(t, err, conduit.ReasonDraining, conduit.Refused)
	x.Cancel(context.Canceled)
	r.until("its end", func(m map[string]ElementStatus) bool { _, ok := m["other"]; return !ok })
	_, err = r.call("*://other/other/test.Fixture", "Echo", "")
	wantReason(t, err, conduit.ReasonDeploymentNotFound, conduit.Refused)
}

// TestStop: calls under way finish within the drain, are ended after it.
func TestStop(t *testing.T) {
	r := newRig(t, "echo", "stopless")
	r.ready()
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	if err := r.h.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain with a call under way: %v", err)
	}
	_, err := r.call(echo, "Echo", "")
	wantReason(t, err, conduit.ReasonDraining, conduit.Refused)
	stop, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := r.h.Stop(stop); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("Stop took %s", d)
	}
	if _, err := x.Recv(r.ctx); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the call under way ended with %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.private, "work", "echo", "stopped")); err != nil {
		t.Errorf("the element did not stop in order: %v", err)
	}
}

// TestConcurrency: beyond the limit calls are refused, and the count comes back.
func TestConcurrency(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.Concurrency = 1 }, "echo")
	r.ready()
	x := invoke(r.ctx, r.client, echo, "Wait", "")
	if _, err := x.Recv(r.ctx); err != nil {
		t.Fatal(err)
	}
	_, err := r.call(echo, "Echo", "")
	if e := wantReason(t, err, conduit.ReasonOverloaded, conduit.Refused); !e.Retryable || e.Code != conduit.ResourceExhausted {
		t.Errorf("got %+v", e)
	}
	x.Cancel(context.Canceled)
	if err := r.h.Drain(r.ctx); err != nil {
		t.Error(err)
	}
}

// TestFromPlugin: an element calls another, and has only the rights it is given.
func TestFromPlugin(t *testing.T) {
	r := newRig(t, "echo", "other")
	r.ready()
	to := "*://other/other/test.Fixture"
	for _, c := range []struct{ as, want string }{
		{"self", "other element:echo user via echo/echo"},
		{"orphan", "other  anonymous via echo/echo"},
	} {
		got, err := r.call(echo, "Call", c.as+" "+to+" Who")
		if err != nil || got != c.want {
			t.Errorf("as %s: %q, %v; want %q", c.as, got, err, c.want)
		}
	}
	if _, ok := any(r.client).(splices); ok {
		got, err := r.call(echo, "Call", "caller "+to+" Who")
		if want := "other ada user via echo/echo"; err != nil || got != want {
			t.Errorf("as caller: %q, %v; want %q", got, err, want)
		}
	}
	_, err := r.call(echo, "Call", "forged "+to+" Who")
	wantReason(t, err, conduit.ReasonUnauthenticated, conduit.Refused)
}

func TestBuiltinAndFromPluginSeams(t *testing.T) {
	origins := make(chan Origin, 1)
	r := newRigWith(t, func(o *Options) {
		o.Builtin = handlerFunc(func(in *link.Incoming) {
			in.Refuse(&conduit.Error{Code: conduit.Unimplemented, Reason: "builtin"})
		})
		o.FromPlugin = func(from Origin, in *link.Incoming) {
			origins <- from
			in.Refuse(&conduit.Error{Code: conduit.Unimplemented, Reason: "from_plugin"})
		}
	}, "echo")
	r.ready()
	_, err := r.call(echo, "Call", "self *://conduit/conduit/conduit.v1.Instance WhoAreYou")
	wantReason(t, err, "builtin", conduit.Refused)
	// Another instance's is for who knows of others.
	_, err = r.call(echo, "Call", "self "+address.RandomInstanceID().String()+"://conduit/conduit/conduit.v1.Instance WhoAreYou")
	wantReason(t, err, "from_plugin", conduit.Refused)
	<-origins
	_, err = r.call(echo, "Call", "self *://far/far/test.Fixture Echo")
	wantReason(t, err, "from_plugin", conduit.Refused)
	if o := <-origins; o.Deployment != "echo" || o.Element != "echo" || o.Principal.User != "element:echo" {
		t.Errorf("the origin is %+v", o)
	}
}

type handlerFunc func(*link.Incoming)

func (f handlerFunc) Handle(in *link.Incoming) { f(in) }

func TestNoDirectory(t *testing.T) {
	h, err := New(Options{Dir: filepath.Join(t.TempDir(), "none", "here"), Private: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	err = h.Run(t.Context())
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "none/here") || !strings.Contains(err.Error(), "mkdir") {
		t.Fatalf("got %v", err)
	}
}

// TestLock: a second host refuses the private directory of a first.
func TestLock(t *testing.T) {
	r := newRig(t)
	r.ready()
	h, err := New(Options{Dir: r.dir, Private: r.private})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use by another conduit-host") {
		t.Fatalf("got %v", err)
	}
}

// TestSweep: what a host that died hard has left goes, what is not its own stays.
func TestSweep(t *testing.T) {
	// Not t.TempDir, whose path may be too long for sockets below it.
	private, err := os.MkdirTemp("", "cdh") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(private) })
	for _, d := range []string{"s/plugin-dir1", "s/own", "bin"} {
		if err := os.MkdirAll(filepath.Join(private, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sockets := filepath.Join(private, "s")
	for _, f := range []string{"s/plugin-dir1/plugin1", "bin/.copy-x", "bin/old"} {
		if err := os.WriteFile(filepath.Join(private, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := openPrivate(private, sockets, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for f, want := range map[string]bool{"s/plugin-dir1": false, "s/own": true, "bin/.copy-x": false, "bin/old": true} {
		if _, err := os.Stat(filepath.Join(private, f)); (err == nil) != want {
			t.Errorf("%s: %v", f, err)
		}
	}
}
