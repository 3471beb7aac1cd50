package pluginlink

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSweep: what a plugin has started outlives a host that is killed, in the plugin's
// group or not. A sweep for its owner ends it, and nothing else.
func TestSweep(t *testing.T) {
	for _, plugin := range []string{"fork", "fork-setsid"} {
		t.Run(plugin, func(t *testing.T) {
			ctx := testContext(t)
			dir := t.TempDir()
			const owner, another = "0123456789abcdef", "0123456789abcdef0"
			short, err := os.MkdirTemp("", "pl") //nolint:usetesting // its path would be too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(short) })
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			host := exec.CommandContext(ctx, self)
			host.Dir = dir
			host.Env = append(os.Environ(), fixtureVar+"=host-forks", "HOST_PLUGIN="+plugin, "HOST_DIR="+short, "HOST_OWNER="+owner)
			out, err := host.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := host.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var pid, child int
			if _, err := fmt.Sscan(line, &pid, &child); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			pluginEnded, childEnded := processEnd(t, pid), processEnd(t, child)
			t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })

			// Strangers: another owner's, whose name begins alike, and one that only
			// speaks of this owner.
			var strangers []*exec.Cmd
			for _, env := range []string{envOwner + "=" + another, "OTHER=" + envOwner + "=" + owner} {
				s := exec.CommandContext(ctx, "sleep", "600")
				s.Env = []string{env}
				if err := s.Start(); err != nil {
					t.Fatal(err)
				}
				strangers = append(strangers, s)
				t.Cleanup(func() { _ = s.Process.Kill(); _ = s.Wait() })
			}

			if err := host.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = host.Wait()
			pluginEnded(ctx)
			if err := unix.Kill(child, 0); err != nil {
				t.Fatalf("the process that the plugin has started is gone already: %v", err)
			}
			ended, err := Sweep(owner)
			if err != nil || !slices.Equal(ended, []int{child}) {
				t.Fatalf("ended %v, %v; want %d", ended, err, child)
			}
			childEnded(ctx)
			for _, s := range strangers {
				if state := processState(t, s.Process.Pid); state == 'Z' || state == 'X' {
					t.Errorf("a stranger was ended: %v", s.Env)
				}
			}
			if ended, err := Sweep(owner); err != nil || len(ended) != 0 {
				t.Errorf("again: %v, %v", ended, err)
			}
		})
	}
}

func processState(t *testing.T, pid int) byte {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[0]
}

// TestSweepSparesItself: a host that a plugin of the one before has started carries the
// mark, and so may what started it.
func TestSweepSparesItself(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const owner = "fedcba9876543210"
	parent := exec.CommandContext(testContext(t), "/bin/sh", "-c", self+"; echo shell lives")
	parent.Env = []string{fixtureVar + "=sweeper", envOwner + "=" + owner}
	out, err := parent.CombinedOutput()
	if err != nil || string(out) != "ended [] error <nil>\nshell lives\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSweepOfAnotherUser: root ends no process of another user's, whatever mark it has.
func TestSweepOfAnotherUser(t *testing.T) {
	if _, err := Sweep(""); err == nil {
		t.Error("a sweep without an owner would meet all that have an empty one")
	}
	const owner = "00112233445566778899"
	s := exec.CommandContext(testContext(t), "sleep", "600")
	s.Env = []string{envOwner + "=" + owner}
	want := true // a process of this user's is found
	if os.Geteuid() == 0 {
		s.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		want = false
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Process.Kill(); _ = s.Wait() })
	ended, err := Sweep(owner)
	if err != nil || (len(ended) == 1) != want {
		t.Errorf("ended %v, %v", ended, err)
	}
}
