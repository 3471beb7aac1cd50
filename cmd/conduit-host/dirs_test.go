package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServeUnsafeDirectories: an instance does not start where others choose what it
// finds in its data or run directory; host.allow_unsafe takes it.
func TestServeUnsafeDirectories(t *testing.T) {
	another := 65534
	if os.Geteuid() == another {
		another--
	}
	for _, c := range []struct {
		what, key string
		open      func(dir string) error
		says      string
	}{
		{"anyone may write above the data", "data_dir", func(d string) error { return os.Chmod(d, 0o777) }, "anyone can write it"},                //nolint:gosec // the case
		{"anyone may write above the sockets", "run_dir", func(d string) error { return os.Chmod(d, 0o777) }, "anyone can write it"},              //nolint:gosec // the case
		{"the data directory is another's", "data_dir", func(d string) error { return os.Chown(d, another, another) }, "belongs to another user"}, // root only
		{"it is sticky, and another's", "data_dir", func(d string) error {
			return errors.Join(os.Chown(d, another, another), os.Chmod(d, 0o755|os.ModeSticky))
		}, "belongs to another user"}, //nolint:gosec // the case; root only
	} {
		t.Run(c.what, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			if err := os.Mkdir(above, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.open(above); errors.Is(err, syscall.EPERM) && os.Geteuid() != 0 {
				t.Skip("only root can give a directory away; safepath's own tests say the rest")
			} else if err != nil {
				t.Fatal(err)
			}
			dir := above // data_dir itself: the instance's own is below
			if c.key == "run_dir" {
				dir = filepath.Join(above, "run")
			}
			args := []string{
				"serve", "--mode", "worker", "--auth-mode", "disabled", "--name", "w",
				"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--" + strings.ReplaceAll(c.key, "_", "-"), dir,
			}
			cmd := program(t, args...)
			out, _ := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != exitUsage || !strings.Contains(string(out), c.key+": ") || !strings.Contains(string(out), c.says) || !strings.Contains(string(out), "mode or owner of "+above+",") {
				t.Errorf("exit %d: %s", status, out)
			}
			if left, _ := os.ReadDir(above); len(left) > 0 {
				t.Errorf("though refused, there is %v", left)
			}
			s := serve(t, "--"+strings.ReplaceAll(c.key, "_", "-"), dir, "--host-allow-unsafe")
			wait(t, s.ready, "ready, as it is allowed")
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if status, log := s.end(t); status != exitDone {
				t.Errorf("exit %d:\n%s", status, log)
			}
		})
	}
}
