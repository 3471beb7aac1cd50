package pluginlink

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// errBadArch is what only some systems say of a program for another machine.
var errBadArch = errors.New("bad CPU type")

// execPath names what is run: the opened file itself, whatever its path has come to
// name. Of the host's own descriptor, since the child's is closed by exec.
func execPath(cfg *LaunchConfig) string {
	if cfg.File == nil {
		return cfg.Path
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), cfg.File.Fd())
	opened, err1 := cfg.File.Stat()
	named, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(opened, named) {
		return cfg.Path // no /proc, or not this process's
	}
	return path
}

// keepDescriptors keeps all descriptors but the standard ones from the processes that
// this one starts.
func keepDescriptors() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) != nil { // before Linux 5.11
		keepListed()
	}
}

// processAttr puts the plugin into a process group of its own, so that it gets
// no Ctrl-C of the terminal's and can be killed with its children, and has the
// kernel kill it when the Spawner's thread ends. os.Process holds a pidfd, so
// that no signal to the leader can meet a stranger.
func processAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the end of cmd's process, calls last, then reaps it. While last
// runs, neither the pid nor the group can belong to another.
func reap(cmd *exec.Cmd, last func()) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	last()
	_ = cmd.Wait() // its ProcessState says all
}

// limitProcess bounds a process's open files and its core dumps, in bytes: dumps hold
// callers' data, so none is the rule. Both are at most this process's own.
func limitProcess(pid int, noFile, core uint64) error {
	var errs []error
	for _, l := range []struct {
		resource int
		most     uint64
	}{{unix.RLIMIT_NOFILE, noFile}, {unix.RLIMIT_CORE, core}} {
		var hard unix.Rlimit
		err := unix.Getrlimit(l.resource, &hard)
		if err == nil {
			n := min(l.most, hard.Max)
			err = unix.Prlimit(pid, l.resource, &unix.Rlimit{Cur: n, Max: n}, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// nameProcess says what tools such as top call this process. Without it that is the
// last part of the path which was executed, a number.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// redirect makes fd to another name of fd from.
func redirect(from, to int) error { return unix.Dup3(from, to, 0) }
