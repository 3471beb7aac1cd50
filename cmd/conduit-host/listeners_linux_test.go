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
	"sync"
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

// What is wrong with a request is answered alike, whichever listener gets it, by an answer
// that ends the matter: nobody is kept waiting by who sends slowly, and nobody's large
// request is kept.
func TestListenersOfBadRequests(t *testing.T) {
	runDir := t.TempDir() + "/run"
	s := serve(t, "--mode", "both", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--run-dir", runDir)
	wait(t, s.ready, "ready")
	large := strings.Repeat("x", 1<<20)
	type answers struct{ cluster, gateway, ops int } // 0 = it hangs up without one
	both := func(n int) answers { return answers{n, n, n} }
	upgrade := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: conduit.v1\r\n"
	// PATH stands for a path that is the listener's own, ADDR for where it listens.
	cases := map[string]struct {
		text string
		want answers
	}{
		"its own":                    {"GET PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", answers{426, 200, 200}},
		"a large header":             {"GET PATH HTTP/1.1\r\nHost: ADDR\r\nX: " + large + "\r\n\r\n", both(431)},
		"many headers":               {"GET PATH HTTP/1.1\r\nHost: ADDR\r\n" + strings.Repeat("X: x\r\n", 100_000) + "\r\n", both(431)},
		"a long path":                {"GET /" + large + " HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(431)},
		"a large body":               {"POST PATH HTTP/1.1\r\nHost: ADDR\r\nContent-Length: 1048576\r\n\r\n" + large, answers{405, 405, 400}},
		"a body that does not come":  {"GET PATH HTTP/1.1\r\nHost: ADDR\r\nContent-Length: 1000\r\n\r\nx", answers{426, 408, 400}},
		"a chunk that does not":      {"GET PATH HTTP/1.1\r\nHost: ADDR\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx", answers{426, 408, 400}},
		"a POST that does not":       {"POST /nothing HTTP/1.1\r\nHost: ADDR\r\nContent-Length: 1000\r\n\r\nx", answers{404, 404, 400}},
		"a chunk of impossible size": {"POST PATH HTTP/1.1\r\nHost: ADDR\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx", answers{405, 405, 400}},
		"two lengths":                {"POST PATH HTTP/1.1\r\nHost: ADDR\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n012345", both(400)},
		"a wrong method":             {"DELETE PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(405)},
		"an unknown method":          {"BREW PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(405)},
		"TRACE":                      {"TRACE PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(405)},
		"a tunnel":                   {"CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n", answers{404, 421, 404}},
		"dots":                       {"GET /x/..PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(404)},
		"encoded dots":               {"GET /%2e%2ePATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(404)},
		"two slashes":                {"GET /PATH HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(404)},
		"a slash behind":             {"GET PATH/ HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(404)},
		"a zero byte":                {"GET PATH%00 HTTP/1.1\r\nHost: ADDR\r\n\r\n", both(404)},
		"no host":                    {"GET PATH HTTP/1.1\r\n\r\n", both(400)},
		"two hosts":                  {"GET PATH HTTP/1.1\r\nHost: ADDR\r\nHost: other.example\r\n\r\n", both(400)},
		// Pages of another origin: links are refused to them, and so is the gateway. Whoever
		// reaches the ops listener may look whether the instance lives.
		"a foreign host":         {"GET PATH HTTP/1.1\r\nHost: other.example\r\n\r\n", answers{426, 421, 200}},
		"a link for a page":      {"GET PATH HTTP/1.1\r\nHost: ADDR\r\nOrigin: http://ADDR\r\n" + upgrade + "\r\n", answers{403, 403, 200}},
		"profiles of a page":     {"GET /debug/pprof/ HTTP/1.1\r\nHost: other.example\r\n\r\n", answers{404, 421, 404}},
		"profiles by a path":     {"GET PATH/../debug/pprof/ HTTP/1.1\r\nHost: other.example\r\n\r\n", answers{404, 421, 404}},
		"bytes that are no HTTP": {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", both(400)},
	}
	t.Run("requests", func(t *testing.T) { // which ends with the last of them
		for name, tt := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, door := range []struct {
					url, path string
					want      int
				}{
					{"http" + strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws"), transport.Path), transport.Path, tt.want.cluster},
					{s.gateway, "/v1/instances", tt.want.gateway},
					{s.ops, "/livez", tt.want.ops},
				} {
					addr := strings.TrimPrefix(door.url, "http://")
					if got := statusOf(t, addr, strings.NewReplacer("PATH", door.path, "ADDR", addr).Replace(tt.text)); got != door.want {
						t.Errorf("%s: %d, want %d", door.path, got, door.want)
					}
				}
			})
		}
	})
	t.Run("memory", func(t *testing.T) {
		for _, door := range []struct{ network, addr, text string }{
			{"tcp", strings.TrimPrefix(s.ops, "http://"), "GET /livez HTTP/1.1\r\nX: "},
			{"tcp", strings.TrimPrefix(s.gateway, "http://"), "GET /v1/instances HTTP/1.1\r\nX: "},
			{"tcp", strings.TrimSuffix(strings.TrimPrefix(s.cluster, "ws://"), transport.Path), "GET " + transport.Path + " HTTP/1.1\r\nX: "},
			// As large as a length can say that a message is.
			{"unix", runDir + "/w.sock", "\x7f\xff\xff\xff"},
		} {
			for range 40 {
				conn, err := net.Dial(door.network, door.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				_ = conn.SetDeadline(time.Now().Add(deadline))
				_, _ = io.WriteString(conn, door.text+large) // it hangs up within, most often
			}
		}
		// 160 MB were offered.
		_, page := get(t, s.ops+"/metrics")
		var resident float64
		for line := range strings.Lines(page) {
			if _, err := fmt.Sscanf(line, "process_resident_memory_bytes %g", &resident); err == nil {
				break
			}
		}
		if resident == 0 || resident > 150<<20 {
			t.Errorf("the process holds %.0f bytes", resident)
		}
		// And who is right is let in meanwhile.
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		door, err := dialDoor(ctx, runDir+"/w.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer door.Close()
		if _, err := whoAreYou(ctx, door, "*"); err != nil {
			t.Error(err)
		}
	})
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, log := s.end(t); status != exitDone {
		t.Errorf("exit %d\n%s", status, log)
	}
}

// statusOf sends text and returns the status of what is answered. It does not hang up
// before it has that. Who is sent more than he reads closes with a reset half a second after
// his answer, which takes that away from a test that was not given the time to read it: it
// asks again.
func statusOf(t *testing.T, addr, text string) int {
	t.Helper()
	for end := time.Now().Add(deadline); ; {
		status, err := tryStatus(addr, text)
		if err == nil {
			return status
		}
		if !errors.Is(err, syscall.ECONNRESET) || time.Now().After(end) {
			t.Errorf("no answer: %v", err)
			return 0
		}
	}
}

func tryStatus(addr, text string) (status int, _ error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	writing.Go(func() { _, _ = io.WriteString(conn, text) }) // it may be more than anybody reads
	line := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, line); err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(line), "HTTP/1.1 %d", &status)
	return status, err
}
