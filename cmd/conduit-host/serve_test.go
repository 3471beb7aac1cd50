package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served is a running `serve` process.
type served struct {
	cmd                   *exec.Cmd
	cluster, gateway, ops string
	// ready is closed when the log says so; log is whole once the process ended.
	ready chan struct{}
	log   chan []string
}

func serve(t *testing.T, args ...string) *served {
	t.Helper()
	s := &served{ready: make(chan struct{}), log: make(chan []string, 1)}
	s.cmd = program(t, append([]string{
		"serve", "--mode", "worker", "--auth-mode", "disabled", "--name", "w",
		"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
	}, args...)...)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	go func() {
		var lines []string
		for in := bufio.NewScanner(stderr); in.Scan(); {
			line := in.Text()
			lines = append(lines, line)
			if url, ok := strings.CutPrefix(line, "cluster: "); ok {
				s.cluster = url
			}
			if url, ok := strings.CutPrefix(line, "gateway: "); ok {
				s.gateway = url
			}
			if url, ok := strings.CutPrefix(line, "ops: "); ok {
				s.ops = url
			}
			var entry map[string]any
			if json.Unmarshal([]byte(line), &entry) == nil && entry["@message"] == "ready" {
				close(s.ready)
			}
		}
		s.log <- lines
	}()
	return s
}

// end waits for the process and returns its status and what it said.
func (s *served) end(t *testing.T) (status int, log string) {
	t.Helper()
	lines := wait(t, s.log, "the end of the log")
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode(), strings.Join(lines, "\n")
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: deadline}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestServe(t *testing.T) {
	s := serve(t)
	wait(t, s.ready, "ready")
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/debug/pprof/": 200, "/metrics": 200, "/cluster/v1": 404} {
		if got, body := get(t, s.ops+path); got != want {
			t.Errorf("%s: %d %s", path, got, body)
		}
	}
	// WEB-03: nothing of the operators' on the port for all.
	for _, path := range []string{"/livez", "/debug/pprof/", "/"} {
		if got, _ := get(t, "http"+strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws"), "/cluster/v1")+path); got != 404 {
			t.Errorf("%s on the cluster endpoint: %d", path, got)
		}
	}
	status, stdout, stderr := inProcess(t, nil, "", "call", echoAddress, "Upper", `"x"`, "--peer", s.cluster)
	if status != exitUnavailable || stdout != "" || !strings.Contains(stderr, "reason=deployment_not_found outcome=not_sent") {
		t.Errorf("call: exit %d, %s%s", status, stdout, stderr)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, log := s.end(t)
	if status != exitDone || !strings.Contains(log, `"@message":"stopped"`) {
		t.Errorf("exit %d:\n%s", status, log)
	}
	for _, want := range []string{"auth.mode is disabled", "no deployments directory", `"url":"` + s.cluster + `"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
}

// An element that was given up keeps no instance from being ready, and /readyz names it.
func TestServeReadyWithElementGivenUp(t *testing.T) {
	dir := t.TempDir()
	past := time.Now().Add(-time.Minute)
	file := filepath.Join(dir, "page")
	if err := errors.Join(os.WriteFile(file, []byte("<html>404</html>"), 0o755), os.Chtimes(file, past, past)); err != nil { //nolint:gosec // deployed as a program
		t.Fatal(err)
	}
	// A plugin that is one, and that nobody vouches for.
	echo, err := os.ReadFile(echoBinary)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "echo")
	if err := errors.Join(os.WriteFile(file, echo, 0o755), os.Chtimes(file, past, past), os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(strings.Repeat("0", 64)+"  page\n"), 0o600)); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := serve(t, "--host-deployments", dir, "--host-verify", "required")
	wait(t, s.ready, "ready")
	status, body := get(t, s.ops+"/readyz")
	line := func(deployment, kind string) string {
		return "given up: deployment " + deployment + ": element (not yet known) is refused (" + kind + "); why: conduit-host ls elements -o json\n"
	}
	if want := "ok\n" + line("echo", "no_checksum") + line("page", "checksum_mismatch"); status != 200 || body != want {
		t.Errorf("/readyz: %d %q, want %q", status, body, want)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, log := s.end(t); status != exitDone {
		t.Errorf("exit %d:\n%s", status, log)
	}
}

// Readiness goes before anything else does, and stays away for the delay.
func TestServeDrainDelayAndSecondSignal(t *testing.T) {
	s := serve(t, "--drain-delay", "1h")
	wait(t, s.ready, "ready")
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for { // until the signal has got there; the deadline of the process ends it
		if status, body := get(t, s.ops+"/readyz"); status == 503 {
			if body != "draining\n" {
				t.Errorf("/readyz says %q", body)
			}
			break
		}
	}
	if status, _ := get(t, s.ops+"/livez"); status != 200 {
		t.Errorf("/livez while draining: %d", status)
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	status, log := s.end(t)
	if status != exitInterrupted || !strings.Contains(log, "second signal: stopping at once") {
		t.Errorf("exit %d:\n%s", status, log)
	}
}

// A second instance of the name is told to take another; one of another name gets
// the next free port, unless it asked for one.
func TestServeTwo(t *testing.T) {
	s := serve(t)
	wait(t, s.ready, "ready")
	again := func(args ...string) (int, string) {
		cmd := program(t, append([]string{"serve", "--mode", "worker", "--auth-mode", "disabled", "--ops-listen", "127.0.0.1:0"}, args...)...)
		cmd.Dir = s.cmd.Dir
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if status, out := again("--name", "w"); status != exitUsage || !strings.Contains(out, "an instance named w is running already (process ") || !strings.Contains(out, "--name") {
		t.Errorf("the same name: exit %d, %s", status, out)
	}
	if status, out := again("--name", "w", "--run-dir", t.TempDir()+"/run"); status != exitUsage || !strings.Contains(out, "an instance named w is running already") {
		t.Errorf("the same name in another run directory: exit %d, %s", status, out)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws://"), "/cluster/v1")
	if status, out := again("--name", "v", "--cluster-listen", address); status != exitUsage ||
		!strings.Contains(out, "cluster.listen: "+address+" is in use by another process; stop that, or name another port with --cluster-listen") {
		t.Errorf("the same port: exit %d, %s", status, out)
	}
	if status, out := again("--name", "v", "--cluster-listen", address, "--auth-mode", "required"); status != exitUsage || !strings.Contains(out, "is in use by another process") {
		t.Errorf("the same port, with a store: exit %d, %s", status, out)
	}
	for _, left := range []string{"data/instances/v", "data/run/v.lock", "data/auth.db"} {
		if _, err := os.Lstat(filepath.Join(s.cmd.Dir, left)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a start that failed for its port has left %s: %v", left, err)
		}
	}
	if status, out := again("--name", "w", "--cluster-listen", address); status != exitUsage || !strings.Contains(out, "an instance named w is running already (process ") {
		t.Errorf("the same name and port: exit %d, %s", status, out)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, log := s.end(t); status != exitDone {
		t.Errorf("exit %d:\n%s", status, log)
	}
}

// Ended hard, an instance starts again: nothing that it left is in the way.
func TestServeAfterKill(t *testing.T) {
	s := serve(t)
	wait(t, s.ready, "ready")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	id, err := os.ReadFile(s.cmd.Dir + "/data/instances/w/instance-id.txt")
	if err != nil {
		t.Fatal(err)
	}
	again := serve(t, "--data-dir", s.cmd.Dir+"/data")
	wait(t, again.ready, "ready")
	if err := again.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, log := again.end(t)
	if status != exitDone || !strings.Contains(log, strings.TrimSpace(string(id))) {
		t.Errorf("exit %d, and not the id %s:\n%s", status, id, log)
	}
}
