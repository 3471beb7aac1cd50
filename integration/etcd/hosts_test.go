//go:build full

package etcd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/auth/etcdstore"
)

const whoAmI = "*://echo/echo/conduit.example.Echo"

// hosts are real instances that share a store in etcd, and the commands beside them.
type hosts struct {
	t              *testing.T
	dir, bin, echo string
	store          string
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	// Short, for sockets live below it.
	dir, err := os.MkdirTemp("", "cde-") //nolint:usetesting // its path would be too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	h := &hosts{t: t, dir: dir, bin: filepath.Join(dir, "conduit-host"), echo: filepath.Join(dir, "d", "echo")}
	for out, pkg := range map[string]string{h.bin: "./cmd/conduit-host", h.echo: "./plugins/echo"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, pkg)
		cmd.Dir = "../.."
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", pkg, err, text)
		}
	}
	h.store = etcdstore.Options{Endpoints: []string{end(shared)}, Prefix: "hosts"}.String()
	return h
}

// run runs a command and returns what it writes, and whether it ended well.
func (h *hosts) run(args ...string) (out string, ok bool) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.bin, append(args, "--data-dir", filepath.Join(h.dir, "operator"))...) //nolint:gosec // the binary under test
	cmd.WaitDelay = patience
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	return both.String(), err == nil
}

// must is run for what must end well.
func (h *hosts) must(args ...string) string {
	h.t.Helper()
	out, ok := h.run(args...)
	if !ok {
		h.t.Fatalf("%v: %s", args, out)
	}
	return out
}

// start starts a worker and returns where it serves, once it does.
func (h *hosts) start(name string) (url string, log func() string) {
	h.t.Helper()
	at := func(what string) string { return filepath.Join(h.dir, name, what) }
	cmd := exec.Command(h.bin, "serve", "--mode", "worker", "--name", name, "--log-format", "json", "--log-level", "debug", "--data-dir", at("data"), "--run-dir", at("run"), //nolint:gosec // the binary under test, which the cleanup ends
		"--host-deployments", filepath.Dir(h.echo), "--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--auth-store", h.store)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 8<<20)
		for s.Scan() {
			mu.Lock()
			lines = append(lines, s.Text())
			mu.Unlock()
		}
	}()
	h.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		<-read
		_ = cmd.Wait()
		stop.Stop()
	})
	log = func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(lines, "\n")
	}
	until(h.t, name+" to serve", func() bool {
		select {
		case <-read:
			h.t.Fatalf("%s has ended:\n%s", name, log())
		default:
		}
		for line := range strings.SplitSeq(log(), "\n") {
			if to, ok := strings.CutPrefix(line, "cluster: "); ok {
				url = to
				return true
			}
		}
		return false
	})
	return url, log
}

// TestFullHosts: the commands work on a store in etcd without an instance; three instances
// that start at once share it, know a session that was minted elsewhere, and refuse it
// once it was revoked elsewhere. No log holds a secret.
func TestFullHosts(t *testing.T) {
	h := newHosts(t)
	store := []string{"--auth-store", h.store}
	if out, ok := h.run(append(store, "user", "ls")...); ok || !strings.Contains(out, "there is no auth store "+h.store) {
		t.Errorf("a store that is not there: %s", out)
	}
	h.must(append(store, "user", "add", "ada", "--level", "user")...)
	var m struct{ Secret, ID string }
	if err := json.Unmarshal([]byte(h.must(append(store, "session", "mint", "--user", "ada", "-o", "json")...)), &m); err != nil || m.Secret == "" {
		t.Fatal(m, err)
	}
	file := filepath.Join(h.dir, "session")
	if err := os.WriteFile(file, []byte(m.Secret), 0o600); err != nil {
		t.Fatal(err)
	}

	urls, logs := make([]string, 3), make([]func() string, 3)
	for i := range urls {
		urls[i], logs[i] = h.start(fmt.Sprint("w", i))
	}
	call := func(url string) (string, bool) {
		return h.run("call", whoAmI, "WhoAmI", "null", "--peer", url, "--session", "@"+file)
	}
	for i, url := range urls {
		var out string
		until(t, fmt.Sprint("echo to answer at w", i), func() (ok bool) { out, ok = call(url); return ok })
		if !strings.Contains(out, `"ada"`) {
			t.Errorf("w%d: %s", i, out)
		}
	}
	if out := h.must(append(store, "user", "ls")...); strings.Count(out, "instance:w") != 3 {
		t.Errorf("each instance has a user: %s", out)
	}
	h.must(append(store, "session", "revoke", m.ID)...)
	for i, url := range urls {
		until(t, "the revocation to hold", func() bool { _, ok := call(url); return !ok })
		if out, _ := call(url); !strings.Contains(out, "unauthenticated") {
			t.Errorf("w%d: %s", i, out)
		}
		if log := logs[i](); strings.Contains(log, m.Secret) || !strings.Contains(log, `"@level":"debug"`) {
			t.Errorf("the log of w%d holds the secret, or is none", i)
		}
	}
	if text, err := os.ReadFile(filepath.Join(h.dir, "operator", "auth-etcd.audit")); err != nil || !strings.Contains(string(text), `"what":"session revoke"`) || strings.Contains(string(text), m.Secret) {
		t.Errorf("the audit: %s, %v", text, err)
	}
}
