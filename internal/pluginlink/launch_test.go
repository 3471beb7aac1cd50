package pluginlink

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
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
			_, _, err := launch(testContext(t), t, "exit0", func(cfg *LaunchConfig) { cfg.Path, cfg.Source = c.path, "/deployed/file" })
			e, ok := errors.AsType[*StartError](err)
			if !ok || e.Kind != c.kind {
				t.Fatalf("got %v, want kind %s", err, c.kind)
			}
			if s := e.Error(); !strings.HasPrefix(s, e.Message) || !strings.HasSuffix(s, "("+string(c.kind)+": /deployed/file)") || strings.Contains(s, dir) {
				t.Errorf("what happened is to come first, and the file as people know it last: %s", s)
			}
			if c.name == "false" && (!strings.HasPrefix(e.Message, "it exited with status 1 before the handshake, and wrote nothing to stderr")) {
				t.Errorf("got %s", e.Message)
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

// TestStartGivenUpAtAnyMoment: however far a start has come when it is given up, its
// process is ended at once. A start that had just succeeded was waited for until it
// was to end by itself.
func TestStartGivenUpAtAnyMoment(t *testing.T) {
	for i := range 30 {
		ctx, cancel := context.WithCancel(testContext(t))
		// i = 0 is over before it begins; the others are spread over what a start takes.
		timer := time.AfterFunc(time.Duration(i)*4*time.Millisecond, cancel)
		if i == 0 {
			cancel()
		}
		began := time.Now()
		p, _, err := launch(ctx, t, "serve", nil)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("given up after %d ms, it took %s", i*4, took)
		}
		if err == nil {
			if err := p.Kill(0); err != nil {
				t.Error(err)
			}
		} else if e, ok := errors.AsType[*StartError](err); !ok || e.Kind != KindCanceled {
			t.Errorf("given up after %d ms: %v", i*4, err)
		}
		timer.Stop()
		cancel()
	}
}

// TestOpenedFileRuns: what was opened runs, though its path names something else by now.
func TestOpenedFileRuns(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux runs an opened file")
	}
	ctx := testContext(t)
	path := filepath.Join(t.TempDir(), "plugin")
	var f *os.File
	p, _, err := launch(ctx, t, "serve", func(cfg *LaunchConfig) {
		b, err := os.ReadFile(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		if f, err = os.Open(path); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(path), os.Symlink("/bin/false", path)); err != nil {
			t.Fatal(err)
		}
		cfg.Path, cfg.File = path, f
	})
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := p.Describe(ctx); err != nil || d.GetElement() != "fixture" {
		t.Errorf("%v, %v", d, err)
	}
	if name, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid()) + "/comm"); err != nil || string(name) != "fixture\n" {
		t.Errorf("tools call it %q, %v", name, err)
	}
	up(ctx, t, p)
	h, err := p.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if fds := h.GetDetails()["fds"]; strings.Contains(fds, path) {
		t.Errorf("the plugin has its binary open: %s", fds)
	}
}

// TestNoise: what a plugin prints before the handshake is skipped, and quoted in the
// log, whatever it is.
func TestNoise(t *testing.T) {
	for _, c := range []struct {
		fixture string
		lines   []string // of the log, in order
	}{
		{"serve", nil},
		{"noisy", []string{`"\xef\xbb\xbf"`, `""`, `"\x0d"`, `"loading cfg...\x0d"`, `"progress |=====>   |  50 % | eta 3 s"`, `"\x1b[31mred\x1b[0m"`}},
		{"crlf", []string{`"\xef\xbb\xbf1|1|unix|DIR`}},
		{"glued", []string{`"loading 1"`}},
		{"glued-blank", []string{`""`, `" ` + "\t" + `1|1|unix|DIR`}},
	} {
		t.Run(c.fixture, func(t *testing.T) {
			ctx := testContext(t)
			var sockets string
			p, log, err := launch(ctx, t, c.fixture, func(cfg *LaunchConfig) { sockets = cfg.SocketDir })
			if err != nil {
				t.Fatal(err)
			}
			if d, err := p.Describe(ctx); err != nil || d.GetElement() != "fixture" {
				t.Fatalf("%v, %v", d, err)
			}
			if err := p.Kill(0); err != nil { // then all is logged
				t.Fatal(err)
			}
			var got []string
			log.count(func(r map[string]any) bool {
				line, ok := r["line"].(string)
				if ok {
					got = append(got, line)
				}
				return ok
			})
			if len(got) != len(c.lines) {
				t.Fatalf("the log quotes %q, want %q", got, c.lines)
			}
			for i, want := range c.lines {
				if want = strings.ReplaceAll(want, "DIR", sockets); !strings.HasPrefix(got[i], want) || strings.HasSuffix(c.lines[i], `"`) && got[i] != want {
					t.Errorf("line %d is %q, want %q", i, got[i], want)
				}
			}
		})
	}
}

// TestSplitAnnouncement: digits before a glued handshake are not its version, and bars
// alone are no handshake.
func TestSplitAnnouncement(t *testing.T) {
	for _, c := range []struct{ line, noise, handshake string }{
		{"1|1|unix|/s/p|grpc", "", "1|1|unix|/s/p|grpc"},
		{"\xef\xbb\xbf1|1|unix|/s/p|grpc|\r", "", "1|1|unix|/s/p|grpc|"},
		{"no newline 1|1|unix|/s/p|grpc", "no newline ", "1|1|unix|/s/p|grpc"},
		{"50 % of 101|1|unix|/s/p|grpc", "50 % of 10", "1|1|unix|/s/p|grpc"},
		{"a|b|1|12|tcp|127.0.0.1:1|grpc", "a|b|", "1|12|tcp|127.0.0.1:1|grpc"},
		{"progress |=====>   |  50 % | eta", "progress |=====>   |  50 % | eta", ""},
		{"1|1|udp|x|grpc", "1|1|udp|x|grpc", ""},
		{"", "", ""},
	} {
		noise, handshake, _, ok := splitAnnouncement([]byte(c.line))
		if string(noise) != c.noise || string(handshake) != c.handshake || ok != (c.handshake != "") {
			t.Errorf("%q: %q, %q, %v", c.line, noise, handshake, ok)
		}
	}
}

// TestNotLaunched: run by hand, a plugin says what it is.
func TestNotLaunched(t *testing.T) {
	if err := Serve(&element{}); !errors.Is(err, ErrNotLaunched) {
		t.Fatal(err)
	}
}
