package pluginlink

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStartFailures: each way not to start has a reason of its own, and leaves
// nothing behind.
func TestStartFailures(t *testing.T) {
	for _, c := range []struct {
		fixture string
		kind    StartKind
		says    []string
		final   bool
	}{
		{"exit0", KindExited, []string{"status 0 before the handshake", "pluginapi.Main"}, false},
		{"exit1", KindExited, []string{"status 1 before the handshake", "no licence found"}, false},
		{"panic", KindExited, []string{"status 2", "panic: the moon is full"}, false},
		{"version99", KindVersion, []string{"protocol version 99", "1 to 1"}, true},
		{"cookie", KindCookie, []string{"another program"}, true},
		{"tcp", KindAddress, []string{"tcp 127.0.0.1:1", "PLUGIN_UNIX_SOCKET_DIR"}, true},
		{"elsewhere", KindAddress, []string{"/tmp/elsewhere.sock"}, true},
		{"hang", KindTimeout, []string{"no handshake within 500ms", "host.start_timeout"}, false},
		{"babble", KindNotPlugin, []string{"more than 1000 lines"}, true},
	} {
		t.Run(c.fixture, func(t *testing.T) {
			_, _, err := launch(testContext(t), t, c.fixture, func(cfg *LaunchConfig) {
				if c.fixture == "hang" {
					cfg.StartTimeout = 500 * time.Millisecond
				}
			})
			e, ok := errors.AsType[*StartError](err)
			if !ok {
				t.Fatalf("got %v, want a *StartError", err)
			}
			if e.Kind != c.kind || e.Final() != c.final {
				t.Errorf("got %s, final %v; want %s, %v: %v", e.Kind, e.Final(), c.kind, c.final, e)
			}
			for _, s := range c.says {
				if !strings.Contains(e.Error(), s) {
					t.Errorf("the error does not say %q: %v", s, e)
				}
			}
		})
	}
}

// TestNobodyAnswers: the handshake is right, its address is not served.
func TestNobodyAnswers(t *testing.T) {
	ctx := testContext(t)
	p, _, err := launch(ctx, t, "refusing", nil)
	if err != nil {
		if e, ok := errors.AsType[*StartError](err); !ok || e.Kind != KindUnreachable {
			t.Fatal(err)
		}
		return
	}
	if _, err := p.Describe(ctx); err == nil {
		t.Fatal("Describe succeeded")
	}
}

// TestStartFiles: what is not a program of this machine.
func TestStartFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, path string
		kind       StartKind
	}{
		{"text file", write("text", "<html>404</html>", 0o755), KindNotPlugin},
		{"no execute bit", write("mode", "\x7fELF", 0o644), KindNotExecutable},
		{"other machine", write("arch", "\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 9)+"\x02\x00\xf3\x00"+strings.Repeat("\x00", 100), 0o755), KindNotPlugin},
		{"missing", filepath.Join(dir, "none"), KindNotFound},
		{"a directory", dir, KindNotExecutable},
		{"true", "/bin/true", KindExited},
		{"false", "/bin/false", KindExited},
		{"cat", "/bin/cat", KindExited},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := launch(testContext(t), t, "exit0", func(cfg *LaunchConfig) { cfg.Path = c.path })
			e, ok := errors.AsType[*StartError](err)
			if !ok || e.Kind != c.kind {
				t.Fatalf("got %v, want kind %s", err, c.kind)
			}
		})
	}
}

func TestSocketPathTooLong(t *testing.T) {
	_, _, err := launch(testContext(t), t, "serve", func(cfg *LaunchConfig) { cfg.SocketDir = "/" + strings.Repeat("a", 70) })
	if err == nil || !strings.Contains(err.Error(), "71 bytes") || !strings.Contains(err.Error(), "109") || !strings.Contains(err.Error(), "104") {
		t.Fatalf("the error lacks the numbers: %v", err)
	}
}

func TestForbiddenEnvironment(t *testing.T) {
	for _, kv := range []string{"PLUGIN_MIN_PORT=1", "CONDUIT_PLUGIN_TOKEN=aa", "LD_PRELOAD=/x.so", "novalue", "=x"} {
		_, _, err := launch(testContext(t), t, "serve", func(cfg *LaunchConfig) { cfg.Env = append(cfg.Env, kv) })
		if e, ok := errors.AsType[*StartError](err); !ok || e.Kind != KindConfig {
			t.Errorf("%s: got %v", kv, err)
		}
	}
}

func TestStartGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	time.AfterFunc(100*time.Millisecond, cancel)
	_, _, err := launch(ctx, t, "hang", nil)
	if e, ok := errors.AsType[*StartError](err); !ok || e.Kind != KindCanceled {
		t.Fatalf("got %v", err)
	}
}

// TestNoise: what a plugin prints before the handshake is skipped and logged.
func TestNoise(t *testing.T) {
	ctx := testContext(t)
	p, log, err := launch(ctx, t, "noisy", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Describe(ctx); err != nil {
		t.Fatal(err)
	}
	log.await(ctx, t, "the quoted line", has("line", "loading cfg..."))
	log.await(ctx, t, "the escaped line", has("line", `\x1b[31mred\x1b[0m`))
	log.await(ctx, t, "the line with bars", has("line", "eta 3 s"))
}

func TestHandshakeWithMarkAndReturn(t *testing.T) {
	ctx := testContext(t)
	p, _, err := launch(ctx, t, "crlf", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Describe(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestNotLaunched: run by hand, a plugin says what it is.
func TestNotLaunched(t *testing.T) {
	if err := Serve(&element{}); !errors.Is(err, ErrNotLaunched) {
		t.Fatal(err)
	}
}
