package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

const (
	counterFile = "../plugins/counter-python/counter.py"
	counterAddr = "*://counter/counter/example.Counter"
)

// needPython skips the test where the system's Python has no gRPC. The continuous
// integration installs it, and sets CONDUIT_TEST_ALL so that nothing is skipped there.
func needPython(t *testing.T) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import grpc").Run(); err != nil {
		if os.Getenv("CONDUIT_TEST_ALL") != "" {
			t.Fatalf("/usr/bin/python3 cannot import grpc: %v", err)
		}
		t.Skip("/usr/bin/python3 cannot import grpc: apt-get install python3-grpcio")
	}
}

// TestPythonConformance: the element in Python passes all checks of conformance, those
// that make calls included, for which it has the service by a name that asks for it.
func TestPythonConformance(t *testing.T) {
	needPython(t)
	t.Parallel()
	script, err := os.ReadFile(counterFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "counter-conformance")
	if err := os.WriteFile(path, script, 0o700); err != nil { //nolint:gosec // a plugin is executable
		t.Fatal(err)
	}
	plugintest.Conformance(t, path)
}

type counter struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

// The element that is written from docs/plugins-in-any-language.md does what any other
// does: one file with #! in its first line, and the simple profile.
func TestPluginInPython(t *testing.T) { //nolint:tparallel // each goes on from the one before
	needPython(t)
	t.Parallel()
	i := prepare(t, nil)
	i.drop(counterFile, "counter")
	i.launch()
	i.waitReady()
	c, ctx := i.dial()
	counters := c.At(counterAddr)
	get := func(name string) (counter, error) {
		return conduit.Call[counter](ctx, counters, "Get", counter{Name: name})
	}

	t.Run("by the command line", func(t *testing.T) {
		i.call(counterAddr, "Add", `{"name":"a","by":2}`).want(t, 0, "{\"name\": \"a\", \"value\": 2}\n")
		i.call(counterAddr, "Count", `{"n":3}`).want(t, 0, "{\"i\": 1}\n{\"i\": 2}\n{\"i\": 3}\n")
		i.call(counterAddr, "Get", `{"name":"b"}`).want(t, 1, "", "there is no counter 'b'", "reason=no_such_counter", "outcome=executed")
		i.call(counterAddr, "Get", `[]`).want(t, 1, "", "no JSON object", "reason=bad_content")
		i.call(counterAddr, "Nope", `{}`).want(t, 3, "", "reason=method_not_found", "outcome=refused")
	})
	t.Run("by the Go client", func(t *testing.T) {
		if v, err := get("a"); err != nil || v.Value != 2 {
			t.Errorf("%+v, %v", v, err)
		}
		_, err := get("none")
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.NotFound || e.Outcome != conduit.Executed || e.Details["name"] != "none" {
			t.Errorf("%v", err)
		}
		type item struct {
			Value int `json:"value"`
		}
		sum, err := conduit.Upload[map[string]int](ctx, counters, "Sum", slices.Values([]item{{1}, {2}, {39}}))
		if err != nil || sum["sum"] != 42 {
			t.Errorf("%v, %v", sum, err)
		}
		for _, size := range []int{0, 1, 40_000, 100_000, 1 << 20, 10 << 20} {
			want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			got, err := conduit.Call[[]byte](ctx, counters, "Echo", want)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("of %d bytes %d came back, %v", size, len(got), err)
			}
		}
		_, err = conduit.Call[[]byte](ctx, counters, "Echo", make([]byte, 10<<20+1))
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonPayloadTooLarge {
			t.Errorf("a message above the cap: %v", err)
		}
	})
	t.Run("a caller that leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for _, err := range conduit.Stream[map[string]int](ctx, counters, "Count", map[string]int{"n": 2, "interval_ms": 3_600_000}) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		i.waitLine("word that the handler has ended", func(s string) bool { return strings.Contains(s, "counting was given up at 2") })
	})
	t.Run("a crash", func(t *testing.T) {
		pid := i.onePlugin()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		i.until("another process to answer", func() bool {
			v, err := get("a")
			return err == nil && v.Value == 2 && i.onePlugin() != pid
		})
	})
	t.Run("a drain", func(t *testing.T) {
		pid, n := i.onePlugin(), 0
		for _, err := range conduit.Stream[map[string]int](ctx, counters, "Count", map[string]int{"n": 20, "interval_ms": 50}) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n != 20 {
			t.Errorf("%d numbers came", n)
		}
		i.until("another process to answer alone", func() bool {
			now := i.plugins()
			_, err := get("a")
			return err == nil && len(now) == 1 && now[0] != pid
		})
	})
	i.signal(syscall.SIGTERM)
	if code := i.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
}

// By hand it explains itself, with Python alone.
func TestPluginInPythonByHand(t *testing.T) {
	needPython(t)
	t.Parallel()
	run := func(args ...string) (stdout, stderr string, code int) {
		cmd := exec.CommandContext(t.Context(), counterFile, args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	if out, errs, code := run(); code != 64 || out != "" || !strings.Contains(errs, "runs inside of conduit-host") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	if out, _, code := run("--help"); code != 0 || !strings.Contains(out, "runs inside of conduit-host") {
		t.Errorf("--help: exit %d, %q", code, out)
	}
	var d struct {
		Element  string
		Services []struct {
			Name    string
			Methods []struct{ Name, Shape string }
		}
	}
	out, _, code := run("describe")
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || d.Element != "counter" || len(d.Services) != 1 || len(d.Services[0].Methods) != 5 {
		t.Errorf("describe: exit %d, %+v, %v", code, d, err)
	}
}

// onePlugin is the pid of the instance's one plugin.
func (i *instance) onePlugin() (pid int) {
	i.t.Helper()
	i.until("one plugin", func() bool {
		pids := i.plugins()
		if len(pids) == 1 {
			pid = pids[0]
		}
		return len(pids) == 1
	})
	return pid
}

// prober goes into the counter, ahead of all else that it does inside of a host: it tries
// what a sandbox does not let it do, and says on stderr what it could.
const prober = `
def probe(what, try_it):
    try:
        try_it()
        print("PROBE could", what, file=sys.stderr, flush=True)
    except OSError as e:
        print("PROBE", e.strerror, what, file=sys.stderr, flush=True)


if COOKIE[0] in os.environ:
    import subprocess

    for path in %s:
        probe("read " + path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
        probe("write " + path, lambda: open(path + "/new" if os.path.isdir(path) else path, "ab").close())
    probe("run sh", lambda: subprocess.run(["/bin/sh", "-c", ":"], check=True))
    probe("run itself", lambda: subprocess.run([sys.executable, "-c", ""], check=True))
    probe("signal", lambda: os.kill(os.getppid(), signal.SIGURG))
    print("PROBE done", file=sys.stderr, flush=True)
`

// TestPluginInPythonSandboxed: with host.sandbox required a script's interpreter, and what
// that needs, is let into its sandbox, and nothing else is: it serves, keeps what it counts
// over a crash, and is confined as any other, as describe says. So it is as a file, and in a
// directory, with the interpreter that env finds.
func TestPluginInPythonSandboxed(t *testing.T) {
	needPython(t)
	t.Parallel()
	i := prepare(t, nil)
	if r := conduitHost(t, "doctor", "--data-dir", filepath.Join(i.dir, "data"), "--run-dir", filepath.Join(i.dir, "run"), "--host-sandbox=required"); !regexp.MustCompile(`(?m)^ok +sandbox `).MatchString(r.out) {
		if os.Getenv("CONDUIT_TEST_ALL") != "" {
			t.Fatalf("this kernel cannot confine plugins: %s%s", r.out, r.err)
		}
		t.Skip("this kernel cannot confine plugins; Linux 6.12 with Landlock can")
	}
	secret, outside := filepath.Join(i.dir, "secret"), filepath.Join(i.dir, "outside")
	putFile(t, secret, "secret", 0o600)
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	closed := []string{secret, outside, i.deployments, filepath.Join(i.dir, "data"), "/etc/shadow", "/etc/ssh", "/proc/1/environ", "/bin", "/usr/bin"}
	list, err := json.Marshal(closed)
	if err != nil {
		t.Fatal(err)
	}
	source := string(readFile(t, counterFile))
	head, tail, ok := strings.Cut(source, "\n# -- protobuf")
	if !ok {
		t.Fatal("the counter has no place for the prober")
	}
	source = head + fmt.Sprintf(prober, list) + "\n# -- protobuf" + tail
	putFile(t, filepath.Join(i.deployments, "counter"), source, 0o755)
	_, body, _ := strings.Cut(source, "\n")
	putFile(t, filepath.Join(i.deployments, "boxed", "counter.py"), "#!/usr/bin/env python3\n"+body, 0o755)
	putFile(t, filepath.Join(i.deployments, "boxed", "deployment.yaml"), "elements:\n- {name: counter, path: counter.py, env: {PATH: /usr/bin}}\n", 0o644)
	i.launch("--host-sandbox=required")
	i.waitReady()

	for _, row := range i.rows("ls", "elements") {
		if in, _ := row["sandbox"].(string); !strings.HasPrefix(in, "landlock v") || !strings.HasSuffix(in, ", no_new_privs, no capabilities, rlimits") || row["state"] != "ready" {
			t.Errorf("%v", row)
		}
	}
	for _, deployment := range []string{"counter", "boxed"} {
		addr := strings.Replace(counterAddr, "://counter/", "://"+deployment+"/", 1)
		i.ask("describe", addr).want(t, 0, "")
		if r := i.ask("describe", addr); !strings.Contains(r.out, "no_new_privs, no capabilities, rlimits") {
			t.Errorf("%s: describe does not say how it is confined: %s", deployment, r.out)
		}
		i.call(addr, "Add", `{"name":"a","by":2}`).want(t, 0, "{\"name\": \"a\", \"value\": 2}\n")
		i.call(addr, "Count", `{"n":3}`).want(t, 0, "{\"i\": 1}\n{\"i\": 2}\n{\"i\": 3}\n")
		i.call(addr, "Get", `{"name":"b"}`).want(t, 1, "", "there is no counter 'b'")

		said := map[string]bool{}
		for line := range strings.SplitSeq(i.ask("logs", deployment).out, "\n") {
			if _, what, ok := strings.Cut(line, "PROBE "); ok {
				said[what] = true
			}
		}
		if !said["done"] {
			t.Errorf("%s tried %v", deployment, said)
		}
		for what := range said {
			if strings.HasPrefix(what, "could ") && what != "could run itself" {
				t.Errorf("%s %s", deployment, what)
			}
		}
	}
	if b := readFile(t, secret); string(b) != "secret" {
		t.Errorf("the secret is %q", b)
	}

	for _, pid := range i.plugins() {
		status := string(readFile(t, fmt.Sprintf("/proc/%d/status", pid)))
		for _, want := range []string{`NoNewPrivs:\t1`, `CapEff:\t0000000000000[04]00`} { // root keeps the right to low ports
			if !regexp.MustCompile(want).MatchString(status) {
				t.Errorf("%d: it lacks %s:\n%s", pid, want, status)
			}
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	i.until("both again", func() bool {
		n := 0
		for _, deployment := range []string{"counter", "boxed"} {
			if i.call(strings.Replace(counterAddr, "://counter/", "://"+deployment+"/", 1), "Get", `{"name":"a"}`).out == "{\"name\": \"a\", \"value\": 2}\n" {
				n++
			}
		}
		return n == 2
	})
}
