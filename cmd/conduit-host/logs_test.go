package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// followLogs runs logs -f, and gives its lines.
func followLogs(t *testing.T, dir string, args ...string) (lines <-chan string, signal func(os.Signal), end func() (status int, stderr string)) {
	t.Helper()
	cmd := program(t, append([]string{"logs", "echo", "-f"}, args...)...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	c, read := make(chan string), make(chan struct{})
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		defer close(read)
		defer close(c)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			select {
			case c <- in.Text():
			case <-stop:
				return
			}
		}
	}()
	return c, func(s os.Signal) { _ = cmd.Process.Signal(s) }, func() (int, string) {
		for range c { // what it still had to say
		}
		wait(t, read, "the end of logs -f")
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), stderr.String()
	}
}

func untilLine(t *testing.T, lines <-chan string, part string) {
	t.Helper()
	for end := time.After(deadline); ; {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("it ended without %q", part)
			}
			if strings.Contains(line, part) {
				return
			}
		case <-end:
			t.Fatalf("there never was %q", part)
		}
	}
}

// A log that is followed ends with Ctrl-C, quietly, and with the instance, of whose end it
// shows everything and says so; one that waits for it keeps no instance from ending.
func TestLogsFollow(t *testing.T) {
	dir := t.TempDir()
	past := time.Now().Add(-time.Minute)
	echo, err := os.ReadFile(echoBinary)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "echo")
	if err := errors.Join(os.WriteFile(file, echo, 0o755), os.Chtimes(file, past, past)); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := serve(t, "--host-deployments", dir)
	wait(t, s.ready, "ready")
	first, interrupt, firstEnd := followLogs(t, s.cmd.Dir)
	second, _, secondEnd := followLogs(t, s.cmd.Dir, "-o", "json", "--tail", "0")
	untilLine(t, first, "element ready")
	say := program(t, "call", echoAddress, "Print", `{"stderr":"heard"}`)
	say.Dir = s.cmd.Dir
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		untilLine(t, first, "heard")
	}()
	for told := false; !told; { // until the second one, which shows nothing before, is there
		again := *say
		again.Process, again.ProcessState = nil, nil
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		select {
		case line := <-second:
			told = strings.Contains(line, `"message":"heard"`)
		case <-time.After(200 * time.Millisecond):
		}
	}
	wait(t, heard, "what was printed")
	interrupt(os.Interrupt)
	if status, stderr := firstEnd(); status != exitInterrupted || stderr != "" {
		t.Errorf("after Ctrl-C: exit %d, %q", status, stderr)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	untilLine(t, second, `"message":"element stopped"`)
	if status, stderr := secondEnd(); status != exitUnavailable || !strings.Contains(stderr, `the log ends here: the instance w has drained`) || !strings.Contains(stderr, `"reason":"draining"`) {
		t.Errorf("after the drain: exit %d, %q", status, stderr)
	}
	if status, log := s.end(t); status != exitDone {
		t.Errorf("exit %d:\n%s", status, log)
	}
}

// A record for people is harmless, whatever is in it, and a stack has its lines.
func TestRecordText(t *testing.T) {
	var b strings.Builder
	recordText(&b, time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC), &logRow{
		Level: "error", Element: "e\x1b[2J", Source: "stderr", Message: "a\nb\u202e", Dropped: 7,
		Fields: map[string]string{"stack": "one\n\ttwo\x1b[1m\n", "k": "v w", "empty": "", "esc\x1b": "\x07", "module": "e\x1b[2J"},
	})
	want := "2026-01-02 03:04:05.006 ERROR e\\x1b[2J: a\\nb\\x202e (7) empty=\"\" esc\\x1b=\\x07 k=\"v w\"\n    one\n     two\\x1b[1m\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
