//go:build !linux

package pluginlink

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// errBadArch is what only some systems say of a program for another machine.
var errBadArch error = syscall.Errno(86) // EBADARCH of macOS

// execPath names what is run. An opened file cannot be run here.
func execPath(cfg *LaunchConfig) string { return cfg.Path }

// keepDescriptors keeps all descriptors but the standard ones from the processes that
// this one starts.
func keepDescriptors() { keepListed() }

// processAttr puts the plugin into a process group of its own. There is no
// parent-death signal here: the plugin watches its parent itself.
func processAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reap waits for the end of cmd's process and reaps it, then calls last. There
// is no waiting without reaping here, so last must be quick.
func reap(cmd *exec.Cmd, last func()) {
	_ = cmd.Wait() // its ProcessState says all
	last()
}

// limitProcess cannot limit another process here.
func limitProcess(int, uint64, uint64) error { return nil }

// nameProcess has nothing to do here: the system takes the name of the file.
func nameProcess(string) {}

// redirect makes fd to another name of fd from.
func redirect(from, to int) error { return unix.Dup2(from, to) }
