// Package sandbox confines a process to what it was given, before it becomes a plugin.
//
// A process can only confine itself, and a plugin is not to be asked. So the host starts
// its own binary once more, which finds at its very start that it is a shim ([Enter]): it
// takes its [Spec] from an inherited socket, confines itself, says what is in force, and
// executes the plugin, in the same process. What it says is [Effective]; what this
// system can do is [Available].
package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Mode says how much is asked for. The names are those of the configuration.
type Mode string

// The modes, from the weakest to the strongest.
const (
	Off        Mode = "off"
	BestEffort Mode = "best-effort" // what this system can do; what is missing is said
	Required   Mode = "required"    // all of it, or the plugin does not start
)

var modes = []Mode{Off, BestEffort, Required} //nolint:gochecknoglobals // a table that nobody writes

// Valid reports whether m is one of the modes.
func (m Mode) Valid() bool { return slices.Contains(modes, m) }

// Below reports whether m asks for less than other.
func (m Mode) Below(other Mode) bool { return slices.Index(modes, m) < slices.Index(modes, other) }

// NeededLandlock is the version of Landlock (its ABI) that all of the sandbox needs: it
// is the first with which a process can signal no stranger. It came with Linux 6.12.
const NeededLandlock = 6

// truncateLandlock is the first version that keeps files from being cut to nothing.
const truncateLandlock = 3

// Kernel is what a system can do.
type Kernel struct {
	// Landlock is the version of its Landlock, 0 if it has none.
	Landlock int
	// Why says why there is none, or no more; for people.
	Why string
}

// Whole says why not all of the sandbox can be had, or returns nil.
func (k Kernel) Whole() error {
	if k.Landlock >= NeededLandlock {
		return nil
	}
	why := fmt.Sprintf("this kernel has version %d of Landlock", k.Landlock)
	switch {
	case k.Why != "":
		why = k.Why
	case k.Landlock == 0:
		why = "this kernel has no Landlock"
	}
	return fmt.Errorf("%s, and version %d is needed: use Linux 6.12 or newer with landlock in its list of security modules (lsm=)", why, NeededLandlock)
}

// Spec says what a process is confined to. A path that is a link stands for what it
// leads to at the start.
type Spec struct {
	Mode Mode
	// Kernel is what may be used of what the system can do, as a rule all that [Available]
	// says.
	Kernel Kernel
	// Write are directories whose files may be read, made, changed and removed, but not
	// executed. They must be there.
	Write []string
	// Read are files and directories that may be read, beside those of the system that
	// every program needs. One that is missing is passed over.
	Read []string
	// Execute are files that may be read and executed, beside the plugin: the interpreter of
	// a script. One that is missing is passed over.
	Execute []string
	// Limits are set before the plugin runs.
	Limits Limits
}

// Limits are bounds of a process, at most the host's own.
type Limits struct {
	Files uint64 // open at a time
	Core  uint64 // bytes of a core dump
}

// Effective is what is in force for a process. The zero value is nothing.
type Effective struct {
	Landlock     int      `json:"landlock"`           // the version in use, 0 = none
	NoNewPrivs   bool     `json:"no_new_privs"`       // no program that it executes gives it more rights
	Capabilities bool     `json:"capabilities"`       // it has given up those of root, but for low ports
	Limits       bool     `json:"limits"`             // the limits hold
	Problems     []string `json:"problems,omitempty"` // why something does not, for people
}

// String lists what is in force.
func (e Effective) String() string {
	var list []string
	if e.Landlock > 0 {
		list = append(list, fmt.Sprintf("landlock v%d", e.Landlock))
	}
	for _, x := range []struct {
		is   bool
		name string
	}{{e.NoNewPrivs, "no_new_privs"}, {e.Capabilities, "no capabilities"}, {e.Limits, "rlimits"}} {
		if x.is {
			list = append(list, x.name)
		}
	}
	if list == nil {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// Missing says what the process could do though the sandbox is to keep it from that, a
// sentence each; none if all is in force.
func (e Effective) Missing() []string {
	var list []string
	switch {
	case e.Landlock == 0:
		list = append(list, "it can read and write all files of its user's, and signal all processes of its user's")
	case e.Landlock < truncateLandlock:
		list = append(list, "it can cut files of its user's to nothing, and signal all processes of its user's")
	case e.Landlock < NeededLandlock:
		list = append(list, "it can signal all processes of its user's, and reach abstract sockets")
	}
	if !e.NoNewPrivs {
		list = append(list, "a set-user-id program gives it more rights")
	}
	if !e.Capabilities {
		list = append(list, "it keeps the capabilities of its user")
	}
	if !e.Limits {
		list = append(list, "its limits are not set")
	}
	return list
}

// Error says why a process was not confined, or did not become the plugin.
type Error struct {
	// Unavailable: this system cannot do what is required.
	Unavailable bool
	// Exec is why the plugin could not be executed, once it was confined; nil if that is
	// not it.
	Exec error
	// Message says what happened and what to do next.
	Message string
	Err     error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e.Exec != nil {
		return e.Exec
	}
	return e.Err
}
