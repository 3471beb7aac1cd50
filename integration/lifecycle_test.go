package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// dial connects a Go client to the instance.
func (i *instance) dial() (*client.Client, context.Context) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), patience)
	i.t.Cleanup(cancel)
	c, err := client.Dial(ctx, client.Options{Peers: []string{i.url}})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { c.Close() })
	return c, ctx
}

// slow starts a call that takes a while, and returns once its handler runs.
func slow(ctx context.Context, i *instance, c *client.Client, ms int) <-chan error {
	i.t.Helper()
	done, runs := make(chan error, 1), make(chan struct{})
	go func() {
		first := sync.OnceFunc(func() { close(runs) })
		var last error
		for _, err := range conduit.Stream[int](ctx, c.At(echoAddr), "CountSlow", map[string]int{"n": 2, "interval_ms": ms}) {
			first()
			last = err
		}
		done <- last
	}()
	<-runs
	return done
}

func TestTermLetsCallsFinish(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			i := start(t, []string{built.echo})
			c, ctx := i.dial()
			// The first item says that the stream runs.
			next := make(chan struct{})
			done := make(chan error, 1)
			go func() {
				var last error
				n := 0
				for _, err := range conduit.Stream[int](ctx, c.At(echoAddr), "CountSlow", map[string]int{"n": 12, "interval_ms": 100}) {
					if n++; n == 1 {
						close(next)
					}
					last = err
				}
				if last == nil && n != 12 {
					last = errors.New("the stream was cut")
				}
				done <- last
			}()
			<-next
			i.signal(sig)
			if err := <-done; err != nil {
				t.Errorf("the stream under way: %v", err)
			}
			if code := i.wait(); code != 0 {
				t.Errorf("exit %d:\n%s", code, i.output())
			}
			i.noneLeft()
		})
	}
}

func TestDrainTimeoutCancelsWhatIsLeft(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo}, "--drain-timeout", "1s")
	c, ctx := i.dial()
	done := slow(ctx, i, c, 600_000)
	began := time.Now()
	i.signal(syscall.SIGTERM)
	err := <-done
	var e *conduit.Error
	if !errors.As(err, &e) || e.Code != conduit.Unavailable || e.Outcome != conduit.OutcomeUnknown {
		t.Errorf("the call under way: %v", err)
	}
	if code := i.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
	// drain.timeout and five seconds: the design's bound, not a speed.
	if d := time.Since(began); d > 6*time.Second {
		t.Errorf("the drain took %v", d)
	}
	i.noneLeft()
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo}, "--drain-timeout", "10m")
	c, ctx := i.dial()
	done := slow(ctx, i, c, 600_000)
	i.signal(syscall.SIGTERM)
	i.waitLine("a word that it drains", func(s string) bool { return strings.Contains(s, "draining") })
	i.until("/readyz to say no", func() bool { return i.get("/readyz") == http.StatusServiceUnavailable })
	i.signal(syscall.SIGTERM)
	if err := <-done; err == nil {
		t.Error("the call ended well")
	}
	if code := i.wait(); code != 130 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
	i.noneLeft()
}

func TestKilledHostLeavesNoPlugin(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo, built.greeter})
	if n := len(i.plugins()); n != 2 {
		t.Fatalf("%d plugin processes, want 2", n)
	}
	i.kill()
	i.noneLeft()
	// The next start finds the leftovers of the dead one and goes on.
	i.launch()
	i.waitReady()
	i.call(echoAddr, "Upper", `"again"`).want(t, 0, `"AGAIN"`+"\n")
}

// TestKilledHostLeavesNothingThatStarts: a plugin that has not come to its handshake has
// no link yet by whose end it would know of its host's.
func TestKilledHostLeavesNothingThatStarts(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	fifo := filepath.Join(i.dir, "never")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nread line <'" + fifo + "'\n"
	if err := os.WriteFile(filepath.Join(i.deployments, "slow"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	i.until("the second plugin to start", func() bool { return len(i.plugins()) == 2 })
	i.kill()
	i.noneLeft()
}

// TestCrashEndsCallsOnce kills the plugin while many calls are under way: each
// gets exactly one error that says what is known, and the element comes back.
func TestCrashEndsCallsOnce(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	c, ctx := i.dial()
	const calls = 200
	var wg, begun sync.WaitGroup
	errs := make([]error, calls)
	begun.Add(calls)
	for n := range calls {
		wg.Go(func() {
			first := sync.OnceFunc(begun.Done)
			for _, err := range conduit.Stream[int](ctx, c.At(echoAddr), "CountSlow", map[string]int{"n": 2, "interval_ms": 600_000}) {
				first()
				errs[n] = err
			}
		})
	}
	begun.Wait()
	pids := i.plugins()
	if len(pids) != 1 {
		t.Fatalf("%d plugin processes", len(pids))
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for n, err := range errs {
		var e *conduit.Error
		if !errors.As(err, &e) || e.Reason != conduit.ReasonPluginLost || e.Outcome != conduit.OutcomeUnknown {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	i.until("the element to serve again", func() bool {
		got, err := conduit.Call[string](ctx, c.At(echoAddr), "Upper", "back")
		return err == nil && got == "BACK"
	})
	if pids := i.plugins(); len(pids) != 1 {
		t.Errorf("%d plugin processes after the crash", len(pids))
	}
}

// TestStoppedPluginCostsOnlyItsOwnCalls stops one plugin with SIGSTOP: calls to
// it end at their deadlines, and calls to another on the same link are not held
// up by a full socket behind it.
func TestStoppedPluginCostsOnlyItsOwnCalls(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo, built.greeter})
	c, ctx := i.dial()
	env, err := conduit.Call[map[string]any](ctx, c.At(echoAddr), "Env", nil)
	if err != nil {
		t.Fatal(err)
	}
	pid, ok := env["pid"].(float64)
	if !ok {
		t.Fatalf("Env: %v", env)
	}
	if err := syscall.Kill(int(pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	i.until("all threads of the plugin to stop", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", int(pid)))
		for _, name := range stats {
			stat, err := os.ReadFile(name)
			if _, state, ok := strings.Cut(string(stat), ") "); err != nil || !ok || state[0] != 'T' {
				return false
			}
		}
		return err == nil && len(stats) > 0
	})
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			// 8 MiB in all: far more than the socket and the credit take.
			_, err := conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", make([]byte, 200<<10), conduit.WithTimeout(2*time.Second))
			if err == nil {
				t.Error("a stopped plugin answered")
			}
		})
	}
	type reply struct {
		Text string `json:"text"`
	}
	for range 50 {
		if got, err := conduit.Call[reply](ctx, c.At(greeterAddr), "Greet", map[string]string{"name": "Ada"}); err != nil || got.Text != "Hello, Ada!" {
			t.Fatalf("the other element: %+v, %v", got, err)
		}
	}
	wg.Wait()
	if err := syscall.Kill(int(pid), syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	i.until("the element to serve again", func() bool {
		got, err := conduit.Call[string](ctx, c.At(echoAddr), "Upper", "back")
		return err == nil && got == "BACK"
	})
}

func TestDroppedWhileRunning(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	i.call(greeterAddr, "Greet", `{"name":"Ada"}`).want(t, 3, "", "reason=deployment_not_found")
	i.drop(built.greeter, "greeter")
	i.until("the new deployment to serve", func() bool { return i.call(greeterAddr, "Greet", `{"name":"Ada"}`).code == 0 })
	if err := os.Remove(filepath.Join(i.deployments, "greeter")); err != nil {
		t.Fatal(err)
	}
	i.until("the removed deployment to go", func() bool {
		return strings.Contains(i.call(greeterAddr, "Greet", `{"name":"Ada"}`).err, "reason=deployment_not_found")
	})
	i.call(echoAddr, "Upper", `"still"`).want(t, 0, `"STILL"`+"\n")
}

// TestPluginSeesNoSecrets checks the plugin's environment, descriptors and
// standard input.
func TestPluginSeesNoSecrets(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "CANARY-1")
	t.Setenv("CONDUIT_CFG_SESSION", "CANARY-2")
	i := start(t, []string{built.echo})
	// What launched it may have a terminal or a pipe for it, and files open.
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()   //nolint:errcheck // a pipe
	defer feed.Close() //nolint:errcheck // a pipe
	i.kill()
	i.stdin = in
	i.launch()
	i.waitReady()
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", i.cmd.Process.Pid))
	if err != nil || !strings.HasPrefix(ours, "pipe:") {
		t.Fatalf("the host's own standard input is %s, %v", ours, err)
	}
	for _, pid := range i.plugins() {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(fds) < 3 {
			t.Fatal(fds, err)
		}
		for _, fd := range fds {
			switch to, err := os.Readlink(fd); {
			case err == nil && to == ours:
				t.Errorf("%s is the host's standard input", fd)
			case filepath.Base(fd) == "0" && to != os.DevNull:
				t.Errorf("the plugin's standard input is %s, %v", to, err)
			}
		}
	}
	r := i.call(echoAddr, "Env")
	if r.code != 0 || !json.Valid([]byte(r.out)) {
		t.Fatalf("%+v", r)
	}
	if strings.Contains(r.out, "CANARY") {
		t.Errorf("a secret reached the plugin: %s", r.out)
	}
	if strings.Contains(i.output(), "CANARY") {
		t.Error("a secret reached the log")
	}
}

func TestServeRefusals(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	taken := strings.TrimSuffix(strings.TrimPrefix(i.url, "ws://"), "/cluster/v1")
	base := func(t *testing.T, more ...string) result {
		t.Helper()
		dir := t.TempDir()
		return conduitHost(t, append([]string{
			"serve", "--name", "x", "--data-dir", filepath.Join(dir, "data"), "--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		}, more...)...)
	}
	for name, c := range map[string]struct {
		flags []string
		says  []string
	}{
		"port in use":           {[]string{"--mode", "worker", "--auth-mode", "disabled", "--cluster-listen", taken}, []string{taken, "--cluster-listen"}},
		"a password in a URL":   {[]string{"--mode", "worker", "--auth-store", "etcd://root:hunter2@h1/prefix"}, []string{"auth.store", "...@h1", "auth.etcd.password_file"}},
		"plain off loopback":    {[]string{"--mode", "worker", "--cluster-listen", "0.0.0.0:0"}, []string{"loopback", "--cluster-insecure"}},
		"a store that is none":  {[]string{"--mode", "worker", "--auth-store", "bolt:" + built.greeter}, []string{"auth.store"}},
		"no auth off loopback":  {[]string{"--mode", "worker", "--auth-mode", "disabled", "--cluster-listen", "0.0.0.0:0"}, []string{"loopback"}},
		"missing deployments":   {[]string{"--mode", "worker", "--auth-mode", "disabled", "--host-deployments", "/nowhere/at/all"}, []string{"/nowhere/at/all"}},
		"unknown flag":          {[]string{"--mode", "worker", "--drian-timeout", "5s"}, []string{"drian-timeout"}},
		"duration without unit": {[]string{"--mode", "worker", "--auth-mode", "disabled", "--drain-timeout", "30"}, []string{"drain.timeout", "30s"}},
		"same name, same data":  {[]string{"--mode", "worker", "--auth-mode", "disabled", "--name", "w", "--data-dir", filepath.Join(i.dir, "data"), "--run-dir", filepath.Join(i.dir, "run")}, []string{"--name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base(t, c.flags...).want(t, 2, "", append(c.says, "error: ")...)
		})
	}
}

func TestOps(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/": 404, "/cluster/v1": 404, "/debug/pprof/": 200} {
		if got := i.get(path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
}
