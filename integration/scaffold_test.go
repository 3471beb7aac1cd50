package integration

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestScaffold does what an author does who begins: a new plugin that builds and whose
// tests pass, and the loop in which it is changed.
func TestScaffold(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "my-greeter")
	run := func(in, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	run(filepath.Dir(dir), built.host, "plugin", "new", "my-greeter", "--conduit", root)
	run(dir, "go", "mod", "tidy")
	run(dir, "go", "vet", "./...")
	run(dir, "make", "build")
	run(dir, "go", "test", "./...")
	run(dir, built.host, "plugin", "verify", "bin/my-greeter")
	if out, err := exec.CommandContext(ctx, "gofmt", "-l", dir).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("gofmt: %v, %s", err, out)
	}
	develop(ctx, t, dir)
	developTwice(ctx, t, dir)
}

// develop runs plugin dev over a plugin that is changed, broken and mended.
func develop(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, built.host, "plugin", "dev", dir, "--cluster-listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR=")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	lines := bufio.NewScanner(stderr)
	until := func(part string) string {
		t.Helper()
		for lines.Scan() {
			said = append(said, lines.Text())
			if strings.Contains(lines.Text(), part) {
				return lines.Text()
			}
		}
		t.Fatalf("it did not say %q, but:\n%s", part, strings.Join(said, "\n"))
		return ""
	}
	source := filepath.Join(dir, "main.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	// As editors save: another file takes the name.
	save := func(from, to string) {
		t.Helper()
		if err := os.WriteFile(source+"~", []byte(strings.ReplaceAll(string(text), from, to)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(source+"~", source); err != nil {
			t.Fatal(err)
		}
	}
	peer := ""
	greets := func(want string) {
		t.Helper()
		out, err := exec.CommandContext(ctx, built.host, "call", "*://my-greeter/my-greeter/example.MyGreeter", "Greet", `{"name":"Ada"}`, "--peer", peer).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != `{"text":"`+want+`"}` {
			t.Errorf("it greets %s, %v; want %s\nit said\n%s", out, err, want, strings.Join(said, "\n"))
		}
	}
	until("dev: serving my-greeter")
	says := until("dev: call it: conduit-host ")
	_, peer, _ = strings.Cut(says, "--peer ")
	_, call, _ := strings.Cut(says, "conduit-host ")
	if out, err := exec.CommandContext(ctx, "sh", "-c", built.host+" "+call).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != `{"text":"Hello, text!"}` {
		t.Errorf("the command that it shows answers %s, %v: %s", out, err, says)
	}
	greets("Hello, Ada!")
	save("Hello", "Good morning")
	until("dev: serving my-greeter")
	greets("Good morning, Ada!")
	save("func greet", "func greet greet")
	until("dev: go build failed")
	greets("Good morning, Ada!")
	save("Hello", "Good night")
	until("dev: serving my-greeter")
	greets("Good night, Ada!")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		said = append(said, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C it ends with %v and said\n%s", err, strings.Join(said, "\n"))
	}
}

// developTwice ends plugin dev by two signals at once: what it made for itself goes all the
// same.
func developTwice(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	scratch := t.TempDir()
	cmd := exec.CommandContext(ctx, built.host, "plugin", "dev", dir, "--cluster-listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR=", "TMPDIR="+scratch)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	signalled := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said = append(said, lines.Text())
		if signalled || !strings.Contains(lines.Text(), "dev: serving ") {
			continue
		}
		signalled = true
		for range 2 {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	err = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 0 && status != 130 || !signalled {
		t.Errorf("after two signals it ends with %v and said\n%s", err, strings.Join(said, "\n"))
	}
	if left, err := filepath.Glob(filepath.Join(scratch, "conduit-dev-*")); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}
