package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// full is all that this system can do. A test of what only a newer kernel keeps is not
// run on an older one; the rest of the test is.
func full() Kernel { return Available() }

// confined is a process that was started by a Shim.
type confined struct {
	cmd       *exec.Cmd
	stdin     io.Closer
	effective Effective
	said      map[string]string
}

// start starts this binary in a sandbox, has it do what ops says, and returns when it has
// done that. It lives until the test ends or its input is closed.
func start(t *testing.T, spec Spec, change func(*exec.Cmd), ops ...string) (*confined, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close() //nolint:errcheck // read only
	s, err := New(spec, binary)
	if err != nil {
		return nil, err
	}
	t.Cleanup(s.Close)
	cmd := &exec.Cmd{Path: self, Args: []string{"probe", "with", "arguments"}, Env: []string{probeVar + "=" + strings.Join(ops, "\n")}, Dir: "/"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if change != nil {
		change(cmd)
	}
	s.Apply(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c := &confined{cmd: cmd, stdin: stdin, said: map[string]string{}}
	if c.effective, err = s.Started(ctx, cmd.Process.Pid); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the confined process said nothing: %v; stderr: %s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(line, &c.said); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return c, nil
}

// place is what a host has: directories of an element's own, and secrets beside them.
type place struct{ dir, own, other, secret string }

func newPlace(t *testing.T) place {
	t.Helper()
	dir := t.TempDir()
	p := place{dir: dir, own: filepath.Join(dir, "own"), other: filepath.Join(dir, "other"), secret: filepath.Join(dir, "host.token")}
	for _, d := range []string{p.own, p.other, filepath.Join(p.own, "sub")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{p.secret, filepath.Join(p.other, "data"), filepath.Join(p.own, "data")} {
		if err := os.WriteFile(f, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(p.secret, filepath.Join(p.own, "way")); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p place) spec(mode Mode, k Kernel) Spec {
	return Spec{Mode: mode, Kernel: k, Write: []string{p.own}, Limits: Limits{Files: 512}}
}

var denied = regexp.MustCompile(`^error: (permission denied|operation not permitted|invalid cross-device link)$`)

// TestConfined: what the sandbox is to keep a process from, and what it is to leave to it.
func TestConfined(t *testing.T) {
	k := full()
	if k.Landlock < truncateLandlock {
		t.Skipf("this kernel keeps files from nobody: %+v", k)
	}
	t.Parallel()
	p := newPlace(t)
	sleeper := exec.Command("sleep", "600") // another plugin, say
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close() //nolint:errcheck // a test's
	abstract := fmt.Sprintf("@sandbox-test-%d", os.Getpid())
	unixL, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer unixL.Close() //nolint:errcheck // a test's

	own := func(name string) string { return filepath.Join(p.own, name) }
	isDenied := []string{
		"read " + p.secret, "read " + own("way"), "write " + p.secret, "truncate " + p.secret, "remove " + p.secret,
		"read " + filepath.Join(p.other, "data"), "list " + p.other, "list " + p.dir, "write " + filepath.Join(p.other, "new"),
		"rename " + own("data") + " " + filepath.Join(p.other, "moved"), "rename " + p.secret + " " + own("taken"),
		"link " + p.secret + " " + own("linked"), "mkdir " + filepath.Join(p.dir, "new"),
		"read /etc/shadow", "list /etc", "list /root", "list /tmp", "list /",
		"list /proc", fmt.Sprintf("read /proc/%d/cmdline", os.Getpid()), fmt.Sprintf("read /proc/%d/environ", os.Getpid()),
		fmt.Sprintf("read /proc/%d/root%s", os.Getpid(), p.secret), fmt.Sprintf("read /proc/%d/cmdline", sleeper.Process.Pid),
		"read /proc/kallsyms", "write /proc/self/oom_score_adj", "write /proc/sys/kernel/core_pattern",
		"exec /bin/sh", "exec /usr/bin/true", "exec " + own("program"), "device " + own("device"), "mount " + p.own, "chroot " + p.own,
		"again read " + p.secret, // by a child
	}
	if os.Geteuid() == 0 {
		isDenied = append(isDenied, "setuid")
	}
	if k.Landlock >= NeededLandlock {
		isDenied = append(isDenied, fmt.Sprintf("signal %d", os.Getpid()), fmt.Sprintf("signal %d", sleeper.Process.Pid), "dial unix "+abstract)
	}
	if err := copyFile("/bin/true", own("program")); err != nil {
		t.Fatal(err)
	}
	isDone := []string{
		"write " + own("new"), "truncate " + own("data"), "mkdir " + own("made"), "rename " + own("new") + " " + own("sub/new"),
		"link " + own("sub/new") + " " + own("made/linked"), "remove " + own("made/linked"), "socket " + own("s.sock"), "fifo " + own("fifo"),
		"dial tcp " + tcp.Addr().String(), "listen 127.0.0.1:0", "write /dev/null", "write /proc/self/comm",
	}
	isRead := []string{
		"read /proc/self/status", "list /proc/self/fd", "list /usr/lib", "read /proc/meminfo", "read /etc/passwd", "list " + p.own, "exe", "read /proc/self/limits",
	}
	c, err := start(t, p.spec(BestEffort, k), nil, append(append(append([]string{}, isDenied...), isDone...), isRead...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range isDenied {
		if got := c.said[op]; !denied.MatchString(got) && !strings.HasSuffix(got, ": permission denied") {
			t.Errorf("%s: %q", op, got)
		}
	}
	for _, op := range isDone {
		if got := c.said[op]; got != "done" {
			t.Errorf("%s: %q", op, got)
		}
	}
	for _, op := range isRead {
		if got := c.said[op]; got == "" || strings.HasPrefix(got, "error") {
			t.Errorf("%s: %q", op, got)
		}
	}
	if b, err := os.ReadFile(p.secret); err != nil || string(b) != "secret" {
		t.Errorf("the secret is %q now, %v", b, err)
	}
	status := c.said["read /proc/self/status"]
	if !strings.Contains(status, "NoNewPrivs:\t1\n") {
		t.Errorf("no_new_privs is not set: %s", status)
	}
	if m := regexp.MustCompile(`CapPrm:\t([0-9a-f]+)`).FindStringSubmatch(status); m == nil || strings.Trim(strings.Replace(m[1], "400", "", 1), "0") != "" {
		t.Errorf("it has the capabilities %v", m)
	}
	limits := c.said["read /proc/self/limits"]
	if !regexp.MustCompile(`Max open files +512 +512 `).MatchString(limits) || !regexp.MustCompile(`Max core file size +0 +0 `).MatchString(limits) {
		t.Errorf("its limits are\n%s", limits)
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// TestAsWithout: but for its confinement the process is what it would have been.
func TestAsWithout(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c, err := start(t, p.spec(BestEffort, full()), func(cmd *exec.Cmd) {
		cmd.Dir = p.own
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}, "parent", "group", "args", "dir", "fds", "read /proc/self/environ")
	if err != nil {
		t.Fatal(err)
	}
	for op, want := range map[string]string{
		"parent": strconv.Itoa(os.Getpid()), "group": "true", "args": `["probe" "with" "arguments"]`, "dir": p.own,
	} {
		if got := c.said[op]; got != want {
			t.Errorf("%s: %q, want %q", op, got, want)
		}
	}
	env := strings.Split(strings.TrimSuffix(c.said["read /proc/self/environ"], "\x00"), "\x00")
	if len(env) != 1 || !strings.HasPrefix(env[0], probeVar+"=") {
		t.Errorf("its environment is %q", env)
	}
	for line := range strings.SplitSeq(c.said["fds"], "\n") {
		fd, to, _ := strings.Cut(line, " ")
		if n, _ := strconv.Atoi(fd); n > 2 && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // the runtime's own, and the look itself
			t.Errorf("it has inherited %s", line)
		}
	}
}

// TestKernels: with what each kernel can do, a process is confined so far and says so, and
// what is required is all of it or nothing.
func TestKernels(t *testing.T) {
	t.Parallel()
	have := full().Landlock
	for v := range have + 1 {
		t.Run(strconv.Itoa(v), func(t *testing.T) {
			t.Parallel()
			k := Kernel{Landlock: v}
			if v == 0 {
				k.Why = "it is of last century"
			}
			p := newPlace(t)
			read, truncate := "read "+p.secret, "truncate "+p.secret
			c, err := start(t, p.spec(BestEffort, k), nil, "read /proc/self/status", "write "+filepath.Join(p.own, "new"), truncate, read)
			if err != nil {
				t.Fatal(err)
			}
			e := c.effective
			if e.Landlock != v || !e.NoNewPrivs || !e.Limits || !e.Capabilities {
				t.Errorf("in force is %s: %q", e, e.Problems)
			}
			if got := c.said[truncate] != "done"; got != (v >= truncateLandlock) {
				t.Errorf("truncate: %q", c.said[truncate])
			}
			if got := denied.MatchString(c.said[read]); got != (v > 0) {
				t.Errorf("read: %q", c.said[read])
			}
			if got := c.said["write "+filepath.Join(p.own, "new")]; got != "done" {
				t.Errorf("its own directory: %q", got)
			}
			if whole := len(e.Missing()) == 0; whole != (v >= NeededLandlock) || whole != (k.Whole() == nil) {
				t.Errorf("missing is %q", e.Missing())
			}
			if (v == 0) != (len(e.Problems) == 1) {
				t.Errorf("its problems are %q", e.Problems)
			}
			_, err = start(t, p.spec(Required, k), nil, "dir")
			se, _ := errors.AsType[*Error](err)
			if v >= NeededLandlock {
				if err != nil {
					t.Errorf("required: %v", err)
				}
			} else if se == nil || !se.Unavailable || !strings.Contains(se.Message, "Linux 6.12") || !strings.Contains(se.Message, k.Why) {
				t.Errorf("required: %v", err)
			}
		})
	}
}

// TestRequiredAfterAll: the process itself refuses what is required and not to be had,
// whatever the host has believed.
func TestRequiredAfterAll(t *testing.T) {
	t.Parallel()
	s := Spec{Mode: Required, Kernel: Kernel{Landlock: 2}}
	if e, f := s.judge(Effective{Landlock: 2, NoNewPrivs: true, Capabilities: true, Limits: true}); f == nil || !f.Unavailable || e.Landlock != 2 {
		t.Errorf("it goes on with %+v", e)
	}
	s.Mode = BestEffort
	if _, f := s.judge(Effective{}); f != nil {
		t.Errorf("it does not go on: %s", f.Message)
	}
}

// TestNoPlugin: what cannot be executed, and directories that are missing, are said as
// such, and no process is left.
func TestNoPlugin(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	text := filepath.Join(p.dir, "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(spec Spec, path string) (*exec.Cmd, error) {
		s, err := New(spec, nil)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		cmd := &exec.Cmd{Path: path, Args: []string{path}, Env: []string{}}
		s.Apply(cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		_, err = s.Started(ctx, cmd.Process.Pid)
		_ = cmd.Wait()
		return cmd, err
	}
	spec := p.spec(BestEffort, full())
	cmd, err := run(spec, text)
	if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(e.Exec, syscall.ENOEXEC) || cmd.ProcessState.ExitCode() != shimStatus {
		t.Errorf("a text: %v", err)
	}
	if full().Landlock == 0 {
		return
	}
	spec.Write = append(spec.Write, filepath.Join(p.dir, "nowhere"))
	_, err = run(spec, "/bin/true")
	if e, ok := errors.AsType[*Error](err); !ok || e.Exec != nil || e.Unavailable || !strings.Contains(e.Message, "nowhere") {
		t.Errorf("a missing directory: %v", err)
	}
}

// TestGivenUp: a wait that is given up ends, and so does one for a process that has died.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	s, err := New(Spec{Mode: BestEffort}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	keep, err := syscall.Dup(int(s.theirs.Fd())) // the other end, of a process that never says anything
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Started(ctx, os.Getpid()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("given up: %v", err)
	}
	_ = syscall.Close(keep)

	dead, err := New(Spec{Mode: BestEffort}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	if _, err := dead.Started(t.Context(), os.Getpid()); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a dead process: %v", err)
	}
}

// TestByHand: a shim that no host has started says what it is.
func TestByHand(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{shimName}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != shimStatus || !strings.Contains(string(out), "nothing to be run by hand") {
		t.Errorf("%v: %s", err, out)
	}
}

// closeOnExec keeps all descriptors but the standard ones from what this process starts.
func closeOnExec() error { return unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }
