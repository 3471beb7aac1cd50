package pluginlink

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func begin(ctx context.Context, t *testing.T, name string) (*Process, *logged) {
	t.Helper()
	p, log, err := launch(ctx, t, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, log
}

func linked(ctx context.Context, t *testing.T, p *Process) *link.Conn {
	t.Helper()
	up(ctx, t, p)
	c, err := p.OpenLink(ctx, link.Options{Hello: link.Hello{Build: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var route = link.NewRoute(address.MustParse("*://fixture/fixture/conduit.example.Fixture"))

func call(ctx context.Context, c *link.Conn, method string, data []byte) ([]byte, error) {
	x := c.Invoke(ctx, route, &conduit.Invocation{
		Method: method, ContentType: conduit.ContentBytes, Request: data, HasRequest: true, Last: true,
	})
	m, err := x.Recv(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("after the answer: %w", err)
	}
	return m.Data, nil
}

func TestWholeLife(t *testing.T) { bothCarriers(t, testWholeLife) }

func testWholeLife(t *testing.T, start func() (*Process, *logged)) { //nolint:thelper // the whole test
	ctx := testContext(t)
	p, log := start()
	c := linked(ctx, t, p)
	for _, n := range []int{0, 1, 1000, 40 << 10, 300 << 10, 10 << 20} {
		want := bytes.Repeat([]byte{'a'}, n)
		got, err := call(ctx, c, "Echo", want)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d", n, len(got))
		}
	}
	if _, err := p.OpenLink(ctx, link.Options{}); err == nil {
		t.Error("a second link was opened")
	}
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
	log.await(ctx, t, "the element's last words", has("@message", "flushed"))
	if err := p.Kill(5 * time.Second); err != nil {
		t.Error(err)
	}
	if x := p.Exit(); x.Code != 0 || x.At.IsZero() {
		t.Errorf("it %s", x)
	}
	if n := log.count(func(r map[string]any) bool { return r["@level"] == "error" || r["@level"] == "warn" }); n != 0 {
		t.Errorf("a normal life logged %d warnings", n)
	}
}

// TestForeignLink: whoever lacks the token gets no link, and does not take the
// host's place.
func TestForeignLink(t *testing.T) { bothCarriers(t, testForeignLink) }

func testForeignLink(t *testing.T, start func() (*Process, *logged)) { //nolint:thelper // the whole test
	ctx := testContext(t)
	p, _ := start()
	up(ctx, t, p)
	right := p.token
	p.token = bytes.Repeat([]byte{1}, len(right))
	// A dialer is ready before it is judged; what counts is that no call runs.
	refused := func(what string) {
		t.Helper()
		c, err := p.OpenLink(ctx, link.Options{})
		if err != nil {
			return
		}
		_, err = call(ctx, c, "Echo", nil)
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Outcome == conduit.Executed {
			t.Fatalf("a call on %s ended with %v", what, err)
		}
	}
	refused("a link without the token")
	p.token = right
	p.linked.Store(false)
	c, err := p.OpenLink(ctx, link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(ctx, c, "Echo", nil); err != nil {
		t.Fatal(err)
	}
	p.linked.Store(false)
	refused("a second link")
	if _, err := call(ctx, c, "Echo", nil); err != nil {
		t.Errorf("the first link afterwards: %v", err)
	}
}

// TestEnvironment: nothing of the host's but the short list.
func TestEnvironment(t *testing.T) {
	t.Setenv("CONDUIT_SESSION_SECRET", "CANARY1")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "CANARY2")
	t.Setenv("TMPDIR", os.TempDir())
	ctx := testContext(t)
	p, _, err := launch(ctx, t, "serve", func(cfg *LaunchConfig) {
		cfg.Env = append(cfg.Env, "TMPDIR=/declared", "OWN=1")
		cfg.NoFile = 512
	})
	if err != nil {
		t.Fatal(err)
	}
	up(ctx, t, p)
	h, err := p.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := h.GetDetails()
	env := "\n" + d["env"] + "\n"
	if strings.Contains(env, "CANARY") || strings.Contains(env, envToken) {
		t.Errorf("a secret went to the plugin: %s", env)
	}
	if n := strings.Count(env, "\nTMPDIR="); n != 1 || !strings.Contains(env, "\nTMPDIR=/declared\n") || !strings.Contains(env, "\nOWN=1\n") {
		t.Errorf("what the deployment declares does not win: %s", env)
	}
	if d["stdin"] != "" || d["leads"] != "true" {
		t.Errorf("stdin %q, leads its group %s", d["stdin"], d["leads"])
	}
	if d["dir"] != p.cfg.Dir {
		t.Errorf("working directory %s", d["dir"])
	}
	if runtime.GOOS == "linux" {
		if d["core"] != "0" || d["files"] != "512" {
			t.Errorf("core %s, files %s", d["core"], d["files"])
		}
		for fd := range strings.Lines(d["fds"]) {
			if fd = strings.TrimSpace(fd); strings.HasPrefix(fd, "/") && fd != "/dev/null" && !strings.HasPrefix(fd, "/proc/") && !strings.HasPrefix(fd, "/sys/fs/cgroup/") { // the runtime's own
				t.Errorf("an open file was inherited: %s", fd)
			}
		}
	}
}

// TestInheritedDescriptors: what the host was started with is none of a plugin's, in
// both ways of seeing to that.
func TestInheritedDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the fixture finds its descriptors in /proc")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	f, err := os.Create(secret) //nolint:gosec // the test's own
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // empty
	for _, c := range []struct {
		what string
		keep func() // after the Spawner of the launch was made
		has  bool
	}{
		{"close_range, as a Spawner is made", nil, false},
		{"the list of descriptors", keepListed, false},
		{"nothing", func() {}, true}, // so that the other two say something
	} {
		t.Run(c.what, func(t *testing.T) {
			ctx := testContext(t)
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, 200) // left open for exec, as a shell does
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd) //nolint:errcheck // a copy
			p, _, err := launch(ctx, t, "serve", func(*LaunchConfig) {
				if c.keep == nil {
					return
				}
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
					t.Fatal(err)
				}
				c.keep()
			})
			if err != nil {
				t.Fatal(err)
			}
			up(ctx, t, p)
			h, err := p.Health(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(h.GetDetails()["fds"], secret); has != c.has {
				t.Errorf("the plugin has it: %v, want %v:\n%s", has, c.has, h.GetDetails()["fds"])
			}
		})
	}
}

// TestFlood: a line of 5 MB and 10,000 more during a call.
func TestFlood(t *testing.T) {
	ctx := testContext(t)
	p, log := begin(ctx, t, "serve")
	c := linked(ctx, t, p)
	if _, err := call(ctx, c, "Flood", nil); err != nil {
		t.Fatal(err)
	}
	r := log.await(ctx, t, "the cut line", func(r map[string]any) bool { return r["truncated"] == true })
	if m := r["@message"].(string); len(m) != maxLine {
		t.Errorf("the cut line has %d bytes", len(m))
	}
	if n := r["lost_bytes"]; n != float64(5<<20-maxLine) {
		t.Errorf("lost_bytes is %v", n)
	}
	if _, err := call(ctx, c, "Log", []byte("the last line\n")); err != nil {
		t.Fatal(err)
	}
	log.await(ctx, t, "the last line", has("@message", "the last line"))
	if n := log.count(has("@message", "yyyy")); n != 10000 {
		t.Errorf("%d of 10000 lines arrived", n)
	}
}

// TestOddLogs: no output can harm the host or forge its log.
func TestOddLogs(t *testing.T) {
	ctx := testContext(t)
	p, log := begin(ctx, t, "serve")
	c := linked(ctx, t, p)
	say := func(s string) {
		t.Helper()
		if _, err := call(ctx, c, "Log", []byte(s+"\n")); err != nil {
			t.Fatal(err)
		}
	}
	say(`{"@message":5}`)
	say(`{"@message":"m1","@level":7,"@timestamp":[]}`)
	say(`{"@message":"m2","@level":"warn","@timestamp":"x","pid":1,"n":{"a":[1]}}`)
	say(`{"@message":"m3\nforged","@level":"error","k":"\u001b[2J"}`)
	say(`{"broken`)
	say(`[WARN] careful`)
	say("panic: oh no\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:1")
	say(`{"@message":"after","@level":"info"}`)
	say("plain again")
	log.await(ctx, t, "5", func(r map[string]any) bool { return r["@message"] == "5" && r["@level"] == "info" })
	log.await(ctx, t, "m1", func(r map[string]any) bool { return r["@message"] == "m1" && r["@level"] == "info" })
	log.await(ctx, t, "m2", func(r map[string]any) bool {
		return r["@message"] == "m2" && r["@level"] == "warn" && r["plugin.pid"] == "1" && r["n"] == `{"a":[1]}`
	})
	log.await(ctx, t, "m3", func(r map[string]any) bool { return r["@message"] == `m3\nforged` && r["k"] == `\x1b[2J` })
	log.await(ctx, t, "broken", has("@message", `{"broken`))
	log.await(ctx, t, "careful", func(r map[string]any) bool { return r["@message"] == "careful" && r["@level"] == "warn" })
	log.await(ctx, t, "the panic as one record", func(r map[string]any) bool {
		s, _ := r["stack"].(string)
		return r["@message"] == "panic: oh no" && r["@level"] == "error" && strings.Contains(s, "/x.go:1")
	})
	log.await(ctx, t, "plain again", func(r map[string]any) bool { return r["@message"] == "plain again" && r["@level"] == "info" })
	if _, err := call(ctx, c, "Print", nil); err != nil {
		t.Fatal(err)
	}
	log.await(ctx, t, "stdout", func(r map[string]any) bool { return r["@message"] == "printed to stdout" && r["source"] == "stdout" })
	log.await(ctx, t, "stderr", func(r map[string]any) bool { return r["@message"] == "printed to stderr" && r["source"] == "stderr" })
	log.await(ctx, t, "descriptor 1", has("@message", "written to descriptor 1"))
}

// awaitStop waits until a signal has stopped every thread of a process: each stops by
// itself, and one that has not yet may still answer.
func awaitStop(ctx context.Context, t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d: %v", pid, err)
		}
		stopped := 0
		for _, file := range threads {
			stat, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended: the next look does without
			}
			// pid (name) state: the name may hold anything, the last parenthesis ends it.
			if i := bytes.LastIndexByte(stat, ')'); i >= 0 && bytes.HasPrefix(stat[i+1:], []byte(" T")) {
				stopped++
			}
		}
		if stopped == len(threads) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d of %d threads stop", stopped, len(threads))
		}
	}
}

// TestStoppedProcess: one that answers nothing is ended all the same.
func TestStoppedProcess(t *testing.T) {
	ctx := testContext(t)
	p, _ := begin(ctx, t, "serve")
	linked(ctx, t, p)
	if err := unix.Kill(p.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStop(ctx, t, p.Pid())
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := p.Health(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Health of a stopped process: %v", err)
	}
	began := time.Now()
	if err := p.Kill(200 * time.Millisecond); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("Kill took %s", d)
	}
	if x := p.Exit(); x.Signal != "killed" {
		t.Errorf("it %s", x)
	}
}

// TestGrandchildren: those in the group go with the plugin, one that left it
// holds up nothing.
func TestGrandchildren(t *testing.T) {
	for _, name := range []string{"fork", "fork-setsid"} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			p, _ := begin(ctx, t, name)
			up(ctx, t, p)
			h, err := p.Health(ctx)
			if err != nil {
				t.Fatal(err)
			}
			child, _ := strconv.Atoi(h.GetDetails()["child"])
			ended := processEnd(t, child)
			if name == "fork-setsid" {
				t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
			}
			began := time.Now()
			if err := p.Kill(5 * time.Second); err != nil {
				t.Error(err)
			}
			if d := time.Since(began); d > 4*time.Second {
				t.Errorf("Kill took %s", d)
			}
			if name == "fork" {
				ended(ctx)
			}
		})
	}
}

// TestCrash: a process that ends is noticed at once, and its calls end once.
func TestCrash(t *testing.T) { bothCarriers(t, testCrash) }

func testCrash(t *testing.T, start func() (*Process, *logged)) { //nolint:thelper // the whole test
	ctx := testContext(t)
	p, log := start()
	c := linked(ctx, t, p)
	waiting := make(chan error, 1)
	go func() {
		_, err := call(ctx, c, "Wait", nil)
		waiting <- err
	}()
	log.await(ctx, t, "the call's begin", has("@message", "waiting"))
	_, err := call(ctx, c, "Exit", nil)
	for _, err := range []error{err, <-waiting} {
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || e.Reason != conduit.ReasonPluginLost || e.Outcome != conduit.OutcomeUnknown || e.Code != conduit.Unavailable {
			t.Errorf("got %v", err)
		}
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		t.Fatal("the end was not noticed")
	}
	if x := p.Exit(); x.Code != 3 {
		t.Errorf("it %s", x)
	}
	if _, err := p.Health(ctx); err == nil || !strings.Contains(err.Error(), "exited with status 3") {
		t.Errorf("Health of a dead process: %v", err)
	}
}

// TestControlErrors: what an element answers, and what it does instead.
func TestControlErrors(t *testing.T) {
	ctx := testContext(t)
	configure := func(p *Process) error {
		_, err := p.Configure(ctx, &conduitv1.ConfigureRequest{})
		return err
	}
	p, _ := begin(ctx, t, "config-error")
	if e, ok := errors.AsType[*ElementError](configure(p)); !ok || e.Message != "the key is missing" {
		t.Errorf("got %v", e)
	}
	p, _ = begin(ctx, t, "config-exit")
	if err := configure(p); err == nil || !strings.Contains(err.Error(), "exited with status 7 during Configure") || !strings.Contains(err.Error(), "cannot go on") {
		t.Errorf("got %v", err)
	}
	p, _ = begin(ctx, t, "panic-describe")
	if _, err := p.Describe(ctx); err == nil || !strings.Contains(err.Error(), "panic: no description") {
		t.Errorf("got %v", err)
	}
	if err := configure(p); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

// TestTerminate: SIGTERM lets calls finish, then the process exits 0.
func TestTerminate(t *testing.T) { bothCarriers(t, testTerminate) }

func testTerminate(t *testing.T, start func() (*Process, *logged)) { //nolint:thelper // the whole test
	ctx := testContext(t)
	p, log := start()
	c := linked(ctx, t, p)
	done := make(chan error, 1)
	go func() {
		_, err := call(ctx, c, "Finish", nil)
		done <- err
	}()
	log.await(ctx, t, "the call's begin", has("@message", "working"))
	_ = unix.Kill(-p.Pid(), unix.SIGINT) // ignored
	p.Terminate()
	if err := <-done; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		t.Fatal("it did not exit")
	}
	if x := p.Exit(); x.Code != 0 {
		t.Errorf("it %s", x)
	}
	log.await(ctx, t, "the element's last words", has("@message", "flushed"))
}

// TestHostDies: kill -9 of the host leaves no plugin.
func TestHostDies(t *testing.T) {
	ctx := testContext(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), fixtureVar+"=host", "HOST_DIR="+dir)
	if inSandbox != nil {
		cmd.Env = append(cmd.Env, "HOST_SANDBOX=1")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	ended := processEnd(t, pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended(ctx)
}

// fixtureHost is a host that is going to be killed: it starts a plugin and
// prints its pid.
func fixtureHost() {
	self, _ := os.Executable()
	cfg := LaunchConfig{
		Path: self, Dir: "/", Env: []string{fixtureVar + "=serve"}, SocketDir: os.Getenv("HOST_DIR"), Spawner: NewSpawner(),
	}
	if os.Getenv("HOST_SANDBOX") != "" {
		confineAsFarAsPossible(&cfg)
	}
	p, err := Launch(context.Background(), cfg)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.Pid())
	runtime.GC()
	select {}
}

// TestManyLives: a hundred starts and ends leave nothing (goleak looks at the
// goroutines, the socket directory must be empty).
func TestManyLives(t *testing.T) {
	ctx := testContext(t)
	cfg := fixtureConfig(t, "serve")
	before := openFiles(t)
	for i := range 20 {
		p, err := Launch(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_ = unix.Kill(p.Pid(), unix.SIGKILL)
		}
		if err := p.Kill(2 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before+3 {
		t.Errorf("open files went from %d to %d", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err) // the host is for Linux
	}
	return len(entries)
}
