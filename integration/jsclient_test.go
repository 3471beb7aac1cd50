package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const jsClient = "../clients/js"

// nodeCommand runs a script of the client's with Node.js, and is nil where there is none
// that can: Debian's before 22 needs ws for a WebSocket, which a browser has. The
// continuous integration installs both, and sets CONDUIT_TEST_ALL so that nothing is
// skipped there.
func nodeCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "node", args...) //nolint:gosec // the script under test
		cmd.Env = append(os.Environ(), "NODE_PATH=/usr/share/nodejs")
		return cmd
	}
	if text, err := command("-e", `globalThis.WebSocket || require("ws")`).CombinedOutput(); err != nil {
		if os.Getenv("CONDUIT_TEST_ALL") != "" {
			t.Fatalf("node has no WebSocket: %v\n%s", err, text)
		}
		t.Skip("there is no Node.js with a WebSocket: apt-get install nodejs node-ws")
	}
	return command(args...)
}

// The client that was written from docs/protocol.md alone reads and writes the golden
// vectors as our own does.
func TestJSVectors(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	text, err := nodeCommand(ctx, t, filepath.Join(jsClient, "test", "vectors.mjs"), "../proto/testdata/frames.jsonl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var got struct{ Taken, Refused, Same int }
	if err := json.Unmarshal(text, &got); err != nil || got.Taken < 30 || got.Refused < 20 || got.Same < 10 {
		t.Errorf("%s, %v", text, err)
	}
}

// TestJSClient runs it through all that it can, over the sub-protocol in which a browser
// sends its session, to the end of the instance.
func TestJSClient(t *testing.T) {
	t.Parallel()
	const origin = "https://page.example"
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	_ = nodeCommand(ctx, t) // before anything is started for nothing
	i := prepare(t, []string{built.echo})
	r := &realm{t: t, worker: i, store: "bolt:" + filepath.Join(i.dir, "users.db")}
	i.launch("--auth-mode", "required", "--auth-store", r.store, "--cluster-origins", origin, "--drain-delay", "0s", "--log-level", "trace")
	i.waitReady()
	session := r.user("ada", "user")

	cmd := nodeCommand(ctx, t, filepath.Join(jsClient, "test", "echo.mjs"), i.url, session, origin)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for s := bufio.NewScanner(out); s.Scan(); {
		said = append(said, s.Text())
		if s.Text() == "calling" {
			i.signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); err != nil || strings.Join(said, " ") != "ready calling drained" {
		t.Fatalf("%v, after %q\n%s", err, said, errs.String())
	}
	if code := i.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
	if strings.Contains(i.output(), session) {
		t.Error("the log holds the session")
	}
}
