package pluginlink

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit/internal/sandbox"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The test binary is the plugin: started with this variable it becomes one of
// the fixtures.
const fixtureVar = "FIXTURE"

func TestMain(m *testing.M) {
	sandbox.Enter()
	if name := os.Getenv(fixtureVar); name != "" {
		fixture(name)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testContext bounds a test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// logged is a log that tests look into.
type logged struct {
	mu      sync.Mutex
	records []map[string]any
	part    []byte
	wake    chan struct{}
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			break
		}
		var r map[string]any
		if json.Unmarshal(line, &r) == nil {
			l.records = append(l.records, r)
		}
		l.part = rest
	}
	close(l.wake)
	l.wake = make(chan struct{})
	return len(p), nil
}

// await returns the first record that ok takes.
func (l *logged) await(ctx context.Context, t *testing.T, what string, ok func(r map[string]any) bool) map[string]any {
	t.Helper()
	for from := 0; ; {
		l.mu.Lock()
		for ; from < len(l.records); from++ {
			if r := l.records[from]; ok(r) {
				l.mu.Unlock()
				return r
			}
		}
		wake := l.wake
		l.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			t.Fatalf("the log never had %s", what)
		}
	}
}

func has(key, part string) func(map[string]any) bool {
	return func(r map[string]any) bool {
		s, ok := r[key].(string)
		return ok && strings.Contains(s, part)
	}
}

func (l *logged) count(ok func(map[string]any) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.records {
		if ok(r) {
			n++
		}
	}
	return n
}

// inSandbox confines what a test launches; nil = nothing is confined.
var inSandbox func(*LaunchConfig)

// launch starts a fixture.
func launch(ctx context.Context, t *testing.T, name string, change func(*LaunchConfig)) (*Process, *logged, error) {
	t.Helper()
	log := &logged{wake: make(chan struct{})}
	cfg := fixtureConfig(t, name)
	cfg.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: log, JSONFormat: true})
	if change != nil {
		change(&cfg)
	}
	if inSandbox != nil {
		inSandbox(&cfg)
	}
	p, err := Launch(ctx, cfg)
	if err == nil {
		t.Cleanup(func() {
			if err := p.Kill(0); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(cfg.SocketDir, "*")); len(left) > 0 && t.Context().Err() == nil {
			t.Logf("still there before the end: %v", left)
		}
	})
	return p, log, err
}

func fixtureConfig(t *testing.T, name string) LaunchConfig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpawner()
	t.Cleanup(s.Close)
	return LaunchConfig{
		Name: name, Path: self, Dir: t.TempDir(), Env: []string{fixtureVar + "=" + name}, SocketDir: socketBase(t), Spawner: s,
	}
}

// socketBase is a short directory, which t.TempDir is not for long test names.
// It must be empty again at the end.
func socketBase(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl") //nolint:usetesting // its path would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := os.ReadDir(dir)
		for _, e := range left {
			t.Errorf("left in the socket directory: %s", e.Name())
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// up brings a fixture as far as its link needs.
func up(ctx context.Context, t *testing.T, p *Process) {
	t.Helper()
	if _, err := p.Describe(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Configure(ctx, &conduitv1.ConfigureRequest{Deployment: "fixture", Element: "fixture"}); err != nil {
		t.Fatal(err)
	}
}
