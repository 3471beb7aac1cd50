package integration

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestReattach: the line that `<binary> debug` prints has a host take its process for the
// deployment, and both ends leave the other as it is.
func TestReattach(t *testing.T) {
	t.Parallel()
	i := prepare(t, []string{built.echo})
	debug := exec.Command(built.echo, "debug") //nolint:gosec // the binary under test
	debug.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+i.dir)
	out, err := debug.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := debug.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = debug.Process.Kill()
		_ = debug.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	flag := regexp.MustCompile(`^conduit-host serve .* (--host-reattach) '(echo=/[^']*)'\n$`).FindStringSubmatch(line)
	if err != nil || flag == nil {
		t.Fatalf("it printed %q: %v", line, err)
	}
	i.launch(flag[1], flag[2])
	i.waitReady()
	i.call(echoAddr, "Upper", `"debugged"`).want(t, 0, `"DEBUGGED"`+"\n")
	if n := len(i.plugins()); n != 0 {
		t.Errorf("the host has started %d plugins beside it", n)
	}
	if r := i.ask("ls", "elements", "-o", "json"); !strings.Contains(r.out, "for development only") {
		t.Errorf("no warning in: %s%s", r.out, r.err)
	}
	i.signal(syscall.SIGTERM)
	if code := i.wait(); code != 0 {
		t.Errorf("the host ended with %d", code)
	}
	if err := debug.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the debug process has not outlived the host: %v", err)
	}
	if err := debug.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := debug.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
