package integration

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// TestCopiedDataDirectory is REG-07: who copies a data directory has two instances of
// one id. A third keeps to one of them and says how to end it; each of the two says so
// of the other.
func TestCopiedDataDirectory(t *testing.T) {
	t.Parallel()
	a := start(t, []string{built.echo})
	b := prepare(t, []string{built.echo})
	data := filepath.Join("data", "instances", a.name)
	if err := os.MkdirAll(filepath.Join(b.dir, data), 0o700); err != nil {
		t.Fatal(err)
	}
	id, err := os.ReadFile(filepath.Join(a.dir, data, "instance-id.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, data, "instance-id.txt"), id, 0o600); err != nil {
		t.Fatal(err)
	}
	b.launch("--discovery-static", a.url)
	b.waitReady()
	b.waitLine("a word of the copy", func(s string) bool {
		return strings.Contains(s, `"conflict"`) && strings.Contains(s, "conduit-host id reset") && strings.Contains(s, a.url)
	})

	c := prepare(t, nil)
	c.name = "front"
	c.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--discovery-static", a.url+","+b.url, "--registry-refresh", "2s")
	c.waitReady()
	var winner string
	c.until("a conflict", func() bool {
		winner = ""
		conflict := false
		for _, row := range c.rows("ls", "instances") {
			urls := fmt.Sprint(row["urls"])
			switch reason := fmt.Sprint(row["reason"]); row["state"] {
			case "alive":
				winner = urls
			case "conflict":
				conflict = strings.Contains(reason, a.url) && strings.Contains(reason, b.url) && strings.Contains(reason, "conduit-host id reset")
			}
		}
		return conflict && winner != ""
	})
	chosen := a
	if strings.Contains(winner, b.url) {
		chosen = b
	}
	want := strconv.Itoa(chosen.plugins()[0])
	for range 10 { // it stays with that one
		r := c.ask("call", echoAddr, "Where", `{"ms":0}`)
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Fatalf("exit %d: %s%s; want process %s", r.code, r.out, r.err, want)
		}
	}
	// As they are told: the copy gets an id of its own, and all is well.
	b.signal(syscall.SIGTERM)
	if code := b.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	conduitHost(t, "id", "reset", "--name", b.name, "--data-dir", filepath.Join(b.dir, "data")).want(t, 0, "")
	b.launch("--cluster-listen", strings.TrimSuffix(strings.TrimPrefix(b.url, "ws://"), "/cluster/v1"))
	b.waitReady()
	c.until("both to be used", func() bool {
		alive := 0
		for _, row := range c.rows("ls", "instances") {
			if row["state"] == "alive" {
				alive++
			}
		}
		return alive == 2
	})
}

// TestSignalDuringStart is DRN-05: whenever the signal comes, no plugin is left, and the
// exit status tells a start that was cut short from an instance that had served.
func TestSignalDuringStart(t *testing.T) {
	t.Parallel()
	for what, moment := range map[string]func(i *instance){
		"at once":           func(*instance) {},
		"at the first line": func(i *instance) { i.waitLine("first line", func(string) bool { return true }) },
		"as it listens": func(i *instance) {
			i.waitLine("word of listening", func(s string) bool { return strings.HasPrefix(s, "ops: ") })
		},
		"as its plugins start":   func(i *instance) { i.until("a plugin to start", func() bool { return len(i.plugins()) > 0 }) },
		"as one of them is slow": func(i *instance) { i.until("both to start", func() bool { return len(i.plugins()) > 1 }) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			i := prepare(t, []string{built.echo})
			slow := filepath.Join(i.deployments, "slow")
			if err := os.WriteFile(slow, []byte("#!/bin/sh\nwhile :; do sleep 1; done\n"), 0o700); err != nil { //nolint:gosec // a plugin is executable
				t.Fatal(err)
			}
			i.launch("--drain-timeout", "5s", "--host-start-timeout", "60s")
			moment(i)
			i.signal(syscall.SIGTERM)
			code := i.wait()
			// At once, it may be before the program has any say.
			if state, ok := i.cmd.ProcessState.Sys().(syscall.WaitStatus); code != 130 && (what != "at once" || !ok || state.Signal() != syscall.SIGTERM) {
				t.Errorf("exit %d:\n%s", code, i.output())
			}
			i.noneLeft()
		})
	}
}

// buildTxpersist builds the store's element, for those that need it.
var buildTxpersist = sync.OnceValues(func() (string, error) {
	out := filepath.Join(built.dir, "txpersist")
	return out, goBuild("..", out, "./plugins/txpersist")
})

// TestTransactionsOutliveStops is DRN-07 and PLG-01: what the store has acknowledged is
// there after its host has drained under load, and after it was killed; the next start
// finds the store's file free.
func TestTransactionsOutliveStops(t *testing.T) {
	t.Parallel()
	binary, err := buildTxpersist()
	if err != nil {
		t.Fatal(err)
	}
	const addr = "*://txpersist/txpersist/conduit.persist.ResourceStore"
	i := start(t, []string{binary})
	acknowledged := map[string]bool{}
	for round, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		c, ctx := i.dial()
		var mu sync.Mutex
		enough := make(chan struct{})
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for n := 0; ; n++ {
					path := fmt.Sprintf("/k/%d-%d-%d", round, w, n)
					_, err := conduit.Call[map[string]any](ctx, c.At(addr), "Save", map[string]any{"path": path, "data": []byte(path)})
					if err != nil {
						if sig == syscall.SIGTERM && reasonOf(err) == conduit.ReasonPluginLost {
							t.Errorf("the store was gone before its last call: %v", err)
						}
						return
					}
					mu.Lock()
					if acknowledged[path] = true; len(acknowledged) == 30*(round+1) {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		select {
		case <-enough:
		case <-ctx.Done():
			t.Fatalf("%d writes are acknowledged", len(acknowledged))
		}
		i.signal(sig)
		writers.Wait()
		if code := i.wait(); sig == syscall.SIGTERM && code != 0 {
			t.Errorf("exit %d:\n%s", code, i.output())
		}
		i.noneLeft()
		i.launch()
		i.waitReady()
		if pids := i.plugins(); len(pids) != 1 {
			t.Errorf("%d processes of the store after %v", len(pids), sig)
		}
		c, ctx = i.dial()
		missing := maps.Clone(acknowledged)
		for item, err := range conduit.Stream[struct{ Path string }](ctx, c.At(addr), "List", map[string]any{"path": "/k/*"}) {
			if err != nil {
				t.Fatalf("after %v: %v", sig, err)
			}
			_, path, _ := strings.Cut(item.Path, ":/") // behind the node
			delete(missing, path)
		}
		if len(missing) > 0 {
			t.Errorf("%d of %d acknowledged writes are lost by %v, such as %v", len(missing), len(acknowledged), sig, slices.Sorted(maps.Keys(missing))[0])
		}
	}
	c, ctx := i.dial()
	if _, err := conduit.Call[map[string]any](ctx, c.At(addr), "Save", map[string]any{"path": "/last", "data": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	i.until("the store's figures on /metrics", func() bool {
		commits, _ := i.scrape("conduit_element_counted_total", `deployment="txpersist"`, `element="txpersist"`, `name="commits"`)
		size, _ := i.scrape("conduit_element_measured", `deployment="txpersist"`, `name="file_bytes"`)
		return commits == 1 && size > 0
	})
}

// TestLongTemporaryDirectory is FIL-13: a TMPDIR in which no socket would fit hinders
// nothing, for the host has a place of its own for those.
func TestLongTemporaryDirectory(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("a", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	i := prepare(t, []string{built.echo})
	t.Setenv("TMPDIR", long)
	i.launch()
	i.waitReady()
	i.call(echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")
	if left, err := os.ReadDir(long); err != nil || len(left) > 0 {
		t.Errorf("in the directory are %v, %v", left, err)
	}
}

// TestStopMayTakeLong is PLG-05: an element that needs longer to stop than go-plugin's
// own two seconds has that time, within the drain's.
func TestStopMayTakeLong(t *testing.T) {
	t.Parallel()
	const needs = 2500 * time.Millisecond
	i := start(t, []string{built.echo}, "--host-attributes", fmt.Sprintf("stop_ms=%d", needs.Milliseconds()), "--drain-timeout", "30s")
	began := time.Now()
	i.signal(syscall.SIGTERM)
	if code := i.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
	if took := time.Since(began); took < needs {
		t.Errorf("it was ended after %v, in the middle of its stop:\n%s", took, i.output())
	}
	i.noneLeft()
}

// TestNoDialsWhileItDrains is DRN-09: an instance that goes away looks for nobody.
func TestNoDialsWhileItDrains(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dials := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				close(dials)
				return
			}
			dials <- conn
		}
	}()
	i := start(t, []string{built.echo}, "--discovery-static", l.Addr().String(), "--cluster-dial-timeout", "60s")
	var first net.Conn
	select {
	case first = <-dials:
	case <-time.After(patience):
		t.Fatal("nobody was dialled")
	}
	c, ctx := i.dial()
	done := slow(ctx, i, c, 3000)
	i.signal(syscall.SIGTERM)
	i.until("new calls to be refused", func() bool { return strings.Contains(i.call(echoAddr, "Upper", `"x"`).err, "draining") })
	// The dial that it waits for fails only now; the next would come in a tenth of a second.
	_ = first.Close()
	if err := <-done; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if code := i.wait(); code != 0 {
		t.Errorf("exit %d:\n%s", code, i.output())
	}
	_ = l.Close()
	n := 0
	for conn := range dials {
		_ = conn.Close()
		n++
	}
	if n > 0 {
		t.Errorf("%d dials since the drain began:\n%s", n, i.output())
	}
}
