package integration

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

// buildScores builds the element of docs/persistence.md, as it stands there.
func buildScores(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/persistence.md")
	if err != nil {
		t.Fatal(err)
	}
	source := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(page)
	if source == nil {
		t.Fatal("docs/persistence.md shows no element")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, source[1], 0o600); err != nil {
		t.Fatal(err)
	}
	seen, err := filepath.Abs("testdata/scores/main.go") // the file is there for the go command only
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{seen: file}})
	if err != nil {
		t.Fatal(err)
	}
	overlay, out := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "scores")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if text, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", out, "./testdata/scores").CombinedOutput(); err != nil { //nolint:gosec // our own
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// The gate that the original set itself: a worker with a store, an external instance
// that knows it by SRV records alone, an element there that finds the store and calls
// it, and what was written is what is read, also by others and after the worker's
// restart under another address.
func TestStoreFoundByDNS(t *testing.T) {
	t.Parallel()
	store, err := buildTxpersist()
	if err != nil {
		t.Fatal(err)
	}
	w := prepare(t, []string{store})
	w.name = "store-1"
	w.launch()
	front := prepare(t, []string{buildScores(t)})
	front.name = "front"
	const name, target, scores = "_conduit._tcp.internal.", "store-1.internal.", "*://scores/scores/example.Scores"
	dns := discoverytest.NewDNS(t)
	list := func() {
		host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(w.url, "ws://"), "/cluster/v1"))
		if err != nil {
			t.Fatal(err)
		}
		dns.On(target, "A", discoverytest.Reply{Answer: []string{target + " 1 IN A " + host}})
		dns.On(name, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(name, 1, target+":"+port)})
	}
	front.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--cluster-insecure",
		"--discovery-srv-name", name, "--discovery-srv-servers", dns.Addr(), "--discovery-srv-interval", "50ms", "--discovery-hold-down", "50ms")
	w.waitReady()
	front.waitReady()

	// Without the records there is no store, and the element is told so.
	front.ask("call", scores, "Get", `"ada"`).want(t, 1, "", "reason=deployment_not_found")
	list()
	front.until("the store to be found", func() bool {
		return front.ask("call", scores, "Set", `{"player":"ada","points":42}`).code == 0
	})
	front.ask("call", scores, "Get", `"ada"`).want(t, 0, "{\"player\":\"ada\",\"points\":42}\n")
	r := front.ask("call", scores, "Get", `"bob"`)
	if r.code == 0 || !strings.Contains(r.err, "resource_not_found") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}

	// A program finds the same service without naming an element.
	c, ctx := w.dial()
	got, err := conduit.Call[struct{ Data []byte }](ctx, c.FindRemote("*", "conduit.persist.ResourceStore"), "Load", map[string]any{"path": "/scores/ada"})
	if err != nil || string(got.Data) != `{"player":"ada","points":42}` {
		t.Errorf("%q, %v", got.Data, err)
	}

	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, w.output())
	}
	w.launch() // at another port
	w.waitReady()
	list()
	front.until("the score to be found again", func() bool {
		r := front.ask("call", scores, "Get", `"ada"`)
		return r.code == 0 && r.out == "{\"player\":\"ada\",\"points\":42}\n"
	})
	front.signal(syscall.SIGTERM)
	if code := front.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, front.output())
	}
}
