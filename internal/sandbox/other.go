//go:build !linux

package sandbox

import (
	"context"
	"os"
	"os/exec"
	"runtime"
)

// Available returns what this system can do: nothing, without Landlock.
func Available() Kernel { return Kernel{Why: "a sandbox needs Linux, and this is " + runtime.GOOS} }

// Enter has nothing to do here.
func Enter() {}

// Prepared reports whether there is nothing left to prepare.
func Prepared() bool { return true }

// Shim stands for the process that becomes the plugin, unconfined.
type Shim struct{}

// New fails for what is required, with an error of type *[Error].
func New(spec Spec, _ *os.File) (*Shim, error) {
	if spec.Mode == Required {
		return nil, &Error{Unavailable: true, Message: "the sandbox that is required cannot be had: " + Available().Why + "; ask for best-effort"}
	}
	return &Shim{}, nil
}

// Apply leaves cmd as it is.
func (*Shim) Apply(*exec.Cmd) {}

// Started says that nothing is in force.
func (*Shim) Started(context.Context, int) (Effective, error) {
	return Effective{Problems: []string{Available().Why}}, nil
}

// Close has nothing to let go of.
func (*Shim) Close() {}
