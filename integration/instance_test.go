package integration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what should come soon. It is not a
// measure of speed: the machine may be busy.
const patience = 40 * time.Second

// instance is a conduit-host process that a test started.
type instance struct {
	t           *testing.T
	cmd         *exec.Cmd
	dir         string // holds data, deployments and the run directory
	deployments string
	name        string
	flags       []string // that it is started with once more
	// Where its network is another than the test's: what starts it there, and what asks it.
	inside func(func() error) error
	stdin  *os.File // the standard input of the host; nil = /dev/null
	web    *http.Client
	// Where it listens; empty where its mode does not.
	url, gateway, ops string

	once   sync.Once
	mu     sync.Mutex
	lines  []string
	wake   chan struct{} // closed and renewed at each line
	exited chan struct{}
	err    error
}

// start starts a worker with the named binaries in its deployments directory
// and waits until it is ready. Further flags may follow a nil-safe list.
func start(t *testing.T, binaries []string, flags ...string) *instance {
	t.Helper()
	i := prepare(t, binaries)
	i.launch(flags...)
	i.waitReady()
	return i
}

// prepare makes the directories of an instance.
func prepare(t *testing.T, binaries []string) *instance {
	t.Helper()
	// Short, for sockets live below it.
	dir, err := os.MkdirTemp("", "cdi-") //nolint:usetesting // its path would be too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	i := &instance{t: t, dir: dir, name: "w", deployments: filepath.Join(dir, "deployments")}
	if err := os.Mkdir(i.deployments, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, b := range binaries {
		i.drop(b, filepath.Base(b))
	}
	return i
}

// drop puts a binary into the deployments directory as a user does: a copy, not
// at once visible whole.
func (i *instance) drop(binary, name string) {
	i.t.Helper()
	data, err := os.ReadFile(binary)
	if err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(i.deployments, name), data, 0o700); err != nil { //nolint:gosec // a plugin is executable
		i.t.Fatal(err)
	}
}

// launch starts the process. It is stopped, and checked for leftovers, with the
// test.
func (i *instance) launch(flags ...string) {
	i.t.Helper()
	args := append([]string{
		"serve", "--mode", "worker", "--name", i.name, "--auth-mode", "disabled", "--log-format", "json",
		"--data-dir", filepath.Join(i.dir, "data"), "--run-dir", filepath.Join(i.dir, "run"),
		"--host-deployments", i.deployments, "--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
	}, flags...)
	i.cmd = exec.Command(built.host, args...) //nolint:gosec // the binary under test
	i.cmd.Dir = i.dir
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if i.stdin != nil {
		i.cmd.Stdin = i.stdin
	}
	out, err := i.cmd.StderrPipe()
	if err != nil {
		i.t.Fatal(err)
	}
	i.lines, i.wake, i.exited = nil, make(chan struct{}), make(chan struct{})
	begin := i.cmd.Start
	if i.inside != nil {
		begin = func() error { return i.inside(i.cmd.Start) }
	}
	if err := begin(); err != nil {
		i.t.Fatal(err)
	}
	go i.read(out)
	// Once, also if it is launched again: what a test registers in between comes first.
	i.once.Do(func() {
		i.t.Cleanup(func() {
			i.kill()
			i.noneLeft()
		})
	})
}

func (i *instance) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, 8<<20)
	for s.Scan() {
		i.mu.Lock()
		i.lines = append(i.lines, s.Text())
		close(i.wake)
		i.wake = make(chan struct{})
		i.mu.Unlock()
	}
	err := i.cmd.Wait()
	i.mu.Lock()
	i.err = err
	i.mu.Unlock()
	close(i.exited)
}

// waitLine waits for a line on stderr for which match is true, also among those
// that have come already, and returns it.
func (i *instance) waitLine(what string, match func(string) bool) string {
	i.t.Helper()
	deadline := time.After(patience)
	for next := 0; ; {
		i.mu.Lock()
		lines, wake := i.lines, i.wake
		i.mu.Unlock()
		for ; next < len(lines); next++ {
			if match(lines[next]) {
				return lines[next]
			}
		}
		select {
		case <-wake:
		case <-i.exited:
			i.t.Fatalf("the host ended (%v) while the test waited for %s:\n%s", i.err, what, i.output())
		case <-deadline:
			i.t.Fatalf("no %s:\n%s", what, i.output())
		}
	}
}

func (i *instance) output() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return strings.Join(i.lines, "\n")
}

// waitReady waits for the listeners and for /readyz.
func (i *instance) waitReady() {
	i.t.Helper()
	after := func(prefix string) string {
		line := i.waitLine("line "+prefix, func(s string) bool { return strings.HasPrefix(s, prefix) })
		return strings.TrimPrefix(line, prefix)
	}
	i.ops = after("ops: ") // the last of the three
	for line := range strings.SplitSeq(i.output(), "\n") {
		if url, ok := strings.CutPrefix(line, "cluster: "); ok {
			i.url = url
		}
		if url, ok := strings.CutPrefix(line, "gateway: "); ok {
			i.gateway = url
		}
	}
	i.until("/readyz to say yes", func() bool { return i.get("/readyz") == http.StatusOK })
}

// get returns the status of a path on the ops listener, 0 if there is none.
func (i *instance) get(path string) int {
	web := http.DefaultClient
	if i.web != nil {
		web = i.web
	}
	resp, err := web.Get(i.ops + path)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// until asks again and again whether something from outside holds. There is no
// event to wait on in another process.
func (i *instance) until(what string, holds func() bool) {
	i.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			i.t.Fatalf("waited for %s in vain:\n%s", what, i.output())
		}
	}
}

// signal sends the host a signal.
func (i *instance) signal(s syscall.Signal) {
	i.t.Helper()
	if err := i.cmd.Process.Signal(s); err != nil {
		i.t.Fatal(err)
	}
}

// wait waits for the host's end and returns its exit status; -1 = by a signal.
func (i *instance) wait() int {
	i.t.Helper()
	select {
	case <-i.exited:
		return i.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		i.t.Fatalf("the host does not end:\n%s", i.output())
		return -1
	}
}

// kill ends the host the hard way if it still runs.
func (i *instance) kill() {
	select {
	case <-i.exited:
		return
	default:
	}
	if err := i.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		i.t.Error(err)
	}
	<-i.exited
}

// plugins returns the pids of processes whose program, or script, lies below the
// instance's directory.
func (i *instance) plugins() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		i.t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink("/proc/" + e.Name() + "/exe")
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline") // of an interpreter: itself, the script
		args := strings.Split(string(line), "\x00")
		if err == nil && (strings.HasPrefix(exe, i.dir+"/") || len(args) > 1 && strings.HasPrefix(args[1], i.dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// noneLeft checks that no process of the instance is left.
func (i *instance) noneLeft() {
	i.t.Helper()
	i.until("its plugins to end", func() bool { return len(i.plugins()) == 0 })
}

// result is what a command printed and how it ended.
type result struct {
	out, err string
	code     int
}

// conduitHost runs a command of conduit-host.
func conduitHost(t *testing.T, args ...string) result {
	t.Helper()
	return conduitHostWith(t, "", args...)
}

// conduitHostWith is conduitHost with something on standard input.
func conduitHostWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	// Commands are run by cleanups, too, when the test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.host, args...) //nolint:gosec // the binary under test
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("conduit-host %s does not end:\n%s%s", strings.Join(args, " "), out.String(), errs.String())
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// call runs `conduit-host call` against the instance.
func (i *instance) call(address, method string, more ...string) result {
	i.t.Helper()
	return conduitHost(i.t, append([]string{"call", address, method, "--peer", i.url}, more...)...)
}

// want checks a command's outcome; an empty stdout or stderr means any.
func (r result) want(t *testing.T, code int, stdout string, stderr ...string) {
	t.Helper()
	bad := r.code != code || stdout != "" && r.out != stdout
	for _, s := range stderr {
		bad = bad || !strings.Contains(r.err, s)
	}
	if bad {
		t.Errorf("exit %d, stdout %q, stderr %q; want exit %d, stdout %q, stderr with %q", r.code, r.out, r.err, code, stdout, stderr)
	}
}

const (
	echoAddr    = "*://echo/echo/conduit.example.Echo"
	greeterAddr = "*://greeter/greeter/example.Greeter"
)
