package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// listenersOf returns what a process listens on: "tcp" or the path of a socket.
func listenersOf(t *testing.T, pid int) []string {
	t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6", "unix"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			switch {
			case table == "unix" && len(f) == 8 && f[3] == "00010000" && inodes[f[6]]:
				found = append(found, f[7])
			case table != "unix" && len(f) > 9 && f[3] == "0A" && inodes[f[9]]:
				found = append(found, "tcp")
			}
		}
	}
	slices.Sort(found)
	return found
}

// hello sends bytes to a listener and returns what comes back until it hangs up
// or says an HTTP answer.
func hello(t *testing.T, network, addr, text string) string {
	t.Helper()
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	b, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s did not hang up on %.20q: %v", addr, text, err)
	}
	return string(b)
}

// deployEcho puts a copy of echo into a deployments directory.
func deployEcho(t *testing.T, dir string) {
	t.Helper()
	binary, err := os.ReadFile(echoBinary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/echo", binary, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// Every listener of an instance: that there are no others, who may reach it, and
// what it says to the right caller, a wrong one, and to noise.
func TestListeners(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/deployments", 0o755); err != nil {
		t.Fatal(err)
	}
	deployEcho(t, dir+"/deployments")
	runDir := dir + "/run"
	s := serve(t, "--host-deployments", dir+"/deployments", "--run-dir", runDir, "--log-level", "trace")
	wait(t, s.ready, "ready")
	socket := runDir + "/w.sock"
	if got := listenersOf(t, s.cmd.Process.Pid); !slices.Equal(got, []string{socket, "tcp", "tcp"}) {
		t.Errorf("it listens on %q", got)
	}

	// Nobody else of this machine.
	for path, mode := range map[string]os.FileMode{runDir: 0o700 | os.ModeDir, socket: 0o600 | os.ModeSocket, runDir + "/w.token": 0o600} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("%s: %v, want %v", path, info.Mode(), mode)
		}
	}
	token, err := readToken(socket)
	if err != nil || len(token) != 2*tokenBytes {
		t.Fatalf("%d bytes of token, %v", len(token), err)
	}

	cluster := strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws://"), "/cluster/v1")
	opsAddr := strings.TrimPrefix(s.ops, "http://")
	const canary = "NOISE-CANARY"
	noise := map[string]string{"text": "GET /" + canary + " HTTP/1.0\r\n\r\n", "bytes": "\x00\x00\x00\x04\xff\xff\xff\xff" + canary, "nothing": ""}
	for name, text := range noise {
		for _, addr := range []string{cluster, opsAddr} {
			if got := hello(t, "tcp", addr, text); got != "" && !strings.HasPrefix(got, "HTTP/1.") || strings.Contains(got, " 200 ") {
				t.Errorf("%s to %s: %q", name, addr, got)
			}
		}
		// The acceptor says its Hello to whoever connects; it holds no secret.
		if got := hello(t, "unix", socket, text); strings.Contains(got, string(token)) {
			t.Errorf("%s to the socket: %q", name, got)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for what, wrong := range map[string]string{"wrong": strings.Repeat("0", 2*tokenBytes), "part": string(token[:8]), "none": ""} {
		_, err := transport.DialSocket(ctx, socket, []byte(wrong), link.Options{})
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unauthenticated || strings.Contains(err.Error(), string(token)) {
			t.Errorf("%s token: %v", what, err)
		}
	}

	// Who is right.
	door, err := dialDoor(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	remote, err := client.Dial(ctx, client.Options{Peers: []string{s.cluster}})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	for name, c := range map[string]connection{"socket": door, "cluster": remote} {
		if got, err := conduit.Call[string](ctx, c.At(echoAddress), "Upper", "x"); err != nil || got != "X" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		info, err := whoAreYou(ctx, c, "*")
		if err != nil {
			t.Fatal(err)
		}
		if e := info.GetDeployments()[0].GetElements()[0]; (e.GetPid() != 0) != (name == "socket") || (e.GetFile() != "") != (name == "socket") {
			t.Errorf("%s: %v", name, e)
		}
		_, err = ask[*conduitv1.LinksResponse](ctx, c, "*", adminService, "Links", &conduitv1.LinksRequest{})
		if (err == nil) != (name == "socket") {
			t.Errorf("%s: Links: %v", name, err)
		}
	}
	// Elements ask who is there, and no more.
	for method, want := range map[string]string{"WhoAreYou": "", "Links": conduit.ReasonNotRemote, "Drain": conduit.ReasonNotRemote} {
		service := adminService
		if want == "" {
			service = instanceService
		}
		_, err := conduit.Call[any](ctx, door.At(echoAddress), "Chain", map[string]string{"address": "*://conduit/conduit/" + service, "method": method})
		if e, _ := errors.AsType[*conduit.Error](err); want == "" && err != nil || want != "" && (e == nil || e.Reason != want) {
			t.Errorf("an element asks %s: %v", method, err)
		}
	}

	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, log := s.end(t)
	if status != exitDone {
		t.Errorf("exit %d", status)
	}
	if strings.Contains(log, string(token)) || strings.Contains(log, canary) {
		t.Errorf("the log holds a secret or noise:\n%s", log)
	}
	for _, path := range []string{socket, runDir + "/w.token"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// Each mode listens where it should and nowhere else, and each listener answers
// what is its own and nothing of another's.
func TestListenersOfModes(t *testing.T) {
	for mode, want := range map[string]struct{ cluster, gateway bool }{
		"worker": {cluster: true}, "external": {gateway: true}, "both": {cluster: true, gateway: true},
	} {
		t.Run(mode, func(t *testing.T) {
			runDir := t.TempDir() + "/run"
			s := serve(t, "--mode", mode, "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--run-dir", runDir)
			wait(t, s.ready, "ready")
			doors := map[string]string{"ops": s.ops}
			expected := []string{runDir + "/w.sock", "tcp"}
			if want.cluster {
				doors["cluster"] = "http" + strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws"), transport.Path)
				expected = append(expected, "tcp")
			}
			if want.gateway {
				doors["gateway"] = s.gateway
				expected = append(expected, "tcp")
			}
			if got := listenersOf(t, s.cmd.Process.Pid); !slices.Equal(got, expected) {
				t.Errorf("it listens on %q, want %q", got, expected)
			}
			if (s.cluster != "") != want.cluster || (s.gateway != "") != want.gateway {
				t.Errorf("it says that it has cluster %q and gateway %q", s.cluster, s.gateway)
			}
			for name, url := range doors {
				for path, owner := range map[string]string{"/livez": "ops", "/readyz": "ops", "/metrics": "ops", "/debug/pprof/": "ops", transport.Path: "cluster", "/v1/call/a/b/c.D/E": "gateway"} {
					status, body := get(t, url+path)
					if mine := owner == name; mine == (status == 404) {
						t.Errorf("%s on %s: %d %s", path, name, status, body)
					}
				}
			}
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if status, log := s.end(t); status != exitDone {
				t.Errorf("exit %d\n%s", status, log)
			}
		})
	}
}

// A call by the socket that is under way when the instance drains is finished.
func TestDrainFinishesOperatorsCalls(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/deployments", 0o755); err != nil {
		t.Fatal(err)
	}
	deployEcho(t, dir+"/deployments")
	s := serve(t, "--host-deployments", dir+"/deployments", "--run-dir", dir+"/run")
	wait(t, s.ready, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	door, err := dialDoor(ctx, dir+"/run/w.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	x := door.At(echoAddress).Invoke(ctx, &conduit.Invocation{
		Method: "CountSlow", ContentType: conduit.ContentJSON, Request: []byte(`{"n":5,"interval_ms":100}`), HasRequest: true, Last: true, Streaming: true,
	})
	if _, err := x.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := ask[*conduitv1.DrainResponse](ctx, door, "*", adminService, "Drain", &conduitv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	items := 1
	for ; ; items++ {
		if _, err = x.Recv(ctx); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) || items != 5 {
		t.Errorf("%d items, then %v", items, err)
	}
	if err := door.(waiting).wait(ctx); err != nil {
		t.Error(err)
	}
	if status, log := s.end(t); status != exitDone {
		t.Errorf("exit %d\n%s", status, log)
	}
}

// drain --wait tells a drain from a crash.
func TestDrainWaitCrash(t *testing.T) {
	s := serve(t, "--drain-delay", "1h")
	wait(t, s.ready, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	door, err := dialDoor(ctx, s.cmd.Dir+"/data/run/w.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	if _, err := ask[*conduitv1.DrainResponse](ctx, door, "*", adminService, "Drain", &conduitv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	for { // until it is under way; the context ends it
		info, err := whoAreYou(ctx, door, "*")
		if err != nil {
			t.Fatal(err)
		}
		if info.GetState() == conduitv1.InstanceState_INSTANCE_STATE_DRAINING {
			break
		}
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	err = door.(waiting).wait(ctx)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonPeerLost || !strings.Contains(e.Message, "ended before it had drained") {
		t.Errorf("%v", err)
	}
	s.end(t)
}

// A run directory in which no socket fits is refused with what to do.
func TestSocketPathTooLong(t *testing.T) {
	long := t.TempDir() + "/" + strings.Repeat("d", 100)
	status, _, stderr := inProcess(t, nil, "", "serve", "--mode", "worker", "--auth-mode", "disabled", "--name", "w", "--run-dir", long)
	if status != exitUsage || !strings.Contains(stderr, "makes the path of a socket too long") || !strings.Contains(stderr, "--run-dir") {
		t.Errorf("exit %d: %s", status, stderr)
	}
}
