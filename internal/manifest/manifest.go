// Package manifest reads deployment.yaml, the file that says how the programs of a
// deployment's directory are run. It is strict: what it does not know is an error that
// names the line and, where there is one, the key that was meant.
//
// What the file may say is also told by docs/deployment.schema.json; a test holds the two
// to each other.
package manifest

import (
	"fmt"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
)

// Name is what the file is called.
const Name = "deployment.yaml"

// What a manifest may hold at most.
const (
	MaxFile       = 256 << 10 // bytes of deployment.yaml, and of its attributes_file
	MaxElements   = 64
	maxEntries    = 1024 // of a list or a mapping
	maxText       = 64 << 10
	maxPath       = 1024
	maxElement    = 128
	maxName       = 256 // bytes of the name of a variable
	maxStartTimes = 1 << 20
)

// Manifest is what a deployment.yaml says. The zero value of a field is that nothing was
// said of it, and the host's own setting holds.
type Manifest struct {
	// Elements are the programs to run, in the order in which ordinals count them. None =
	// every program in the directory.
	Elements []Element `yaml:"elements"`
	// Attributes reach every element of the deployment. They win over those in
	// AttributesFile.
	Attributes     map[string]string `yaml:"attributes"`
	AttributesFile string            `yaml:"attributes_file"`
	// Enabled false keeps the elements from running. nil = true.
	Enabled *bool `yaml:"enabled"`
	// RunAs is the level of calls that the elements make as themselves.
	RunAs RunAs `yaml:"run_as"`
	// Concurrency is how many calls may be under way in one element.
	Concurrency int      `yaml:"concurrency" min:"1" max:"1048576" eg:"1024"`
	Drain       Drain    `yaml:"drain"`
	Reload      Reload   `yaml:"reload"`
	Timeouts    Timeouts `yaml:"timeouts"`
	Limits      Limits   `yaml:"limits"`
	Sandbox     Sandbox  `yaml:"sandbox"`
	Backoff     Backoff  `yaml:"backoff"`

	path  string
	sum   string
	lines map[string]int // of each key, by its path such as "elements[0].path"
}

// Element is one program of a deployment.
type Element struct {
	// Name is what the element calls itself; empty = whatever that is. Several may share
	// one: then ordinals tell them apart.
	Name string `yaml:"name"`
	// Path is the program, relative to the directory and inside it.
	Path string `yaml:"path"`
	// Args follow the program's name.
	Args []string `yaml:"args"`
	// Env are variables for it, over those that every plugin gets.
	Env map[string]string `yaml:"env"`
	// SHA256 are the checksums that it must have, in hex, by system and machine, such as
	// linux-amd64. Empty = any.
	SHA256 map[string]string `yaml:"sha256"`
}

// Drain says how an element that was replaced, or is to go, ends.
type Drain struct {
	// Timeout is how long its calls may take to end; nil = the host's.
	Timeout *time.Duration `yaml:"timeout" min:"0s" eg:"30s"`
	Claims  Claims         `yaml:"claims"`
}

// Timeouts are those of the host, for this deployment.
type Timeouts struct {
	Start  time.Duration `yaml:"start" min:"10ms" eg:"10s"` // exec to handshake
	Ready  time.Duration `yaml:"ready" min:"10ms" eg:"60s"` // handshake to healthy
	Health time.Duration `yaml:"health" min:"10ms" eg:"2s"` // of one question how it is
	Stop   time.Duration `yaml:"stop" min:"10ms" eg:"5s"`   // the element's own Stop, beyond the drain
}

// Limits bound what one process may use.
type Limits struct {
	// CPUs is how many processors its runtime uses (GOMAXPROCS), rounded up.
	CPUs float64 `yaml:"cpus" max:"4096" eg:"2"`
	// MemorySoft is what its garbage collector aims to stay below, in bytes (GOMEMLIMIT).
	MemorySoft Size `yaml:"memory_soft" min:"4MiB" eg:"512MiB"`
	// Files is how many it may have open.
	Files int `yaml:"files" min:"16" max:"1048576" eg:"4096"`
	// Core is the size of a core dump in bytes; 0 = there is none.
	Core Size `yaml:"core" min:"4KiB" eg:"1GiB"`
}

// Backoff says when a process that failed is started again.
type Backoff struct {
	Min time.Duration `yaml:"min" min:"10ms" eg:"500ms"` // the first pause after the immediate restart
	Max time.Duration `yaml:"max" min:"10ms" eg:"60s"`   // the longest
	// CrashLoopAfter is how many quick failures in a row make it crash_looping.
	CrashLoopAfter int `yaml:"crash_loop_after" min:"1" max:"1000" eg:"5"`
	// StableAfter is how long a process lives that did not fail quickly.
	StableAfter time.Duration `yaml:"stable_after" min:"10ms" eg:"30s"`
}

// Size is a number of bytes, written as KiB, MiB or GiB.
type Size int64

// The words that some keys take.
type (
	// Claims says whether a process that was replaced is waited for as long as it holds
	// claims.
	Claims string
	// Reload says what comes first: the new process, or the end of the old one.
	Reload string
	// Sandbox says whether the process is fenced in.
	Sandbox string
	// RunAs is the level of calls that an element makes as itself.
	RunAs string
)

// What they may be.
const (
	ClaimsWait    Claims = "wait"
	ClaimsRelease Claims = "release"

	StartFirst Reload = "start-first"
	StopFirst  Reload = "stop-first"

	SandboxOff        Sandbox = "off"
	SandboxBestEffort Sandbox = "best-effort"
	SandboxRequired   Sandbox = "required"

	RunAsAnonymous RunAs = "anonymous"
	RunAsUser      RunAs = "user"
	RunAsSuperuser RunAs = "superuser"
)

func (Claims) words() []string { return []string{string(ClaimsWait), string(ClaimsRelease)} }
func (Reload) words() []string { return []string{string(StartFirst), string(StopFirst)} }
func (Sandbox) words() []string {
	return []string{string(SandboxOff), string(SandboxBestEffort), string(SandboxRequired)}
}

func (RunAs) words() []string {
	return []string{string(RunAsAnonymous), string(RunAsUser), string(RunAsSuperuser)}
}

// Level returns the level that calls as oneself have: user, where nothing was said.
func (r RunAs) Level() conduit.Level {
	switch r {
	case RunAsAnonymous:
		return conduit.Anonymous
	case RunAsSuperuser:
		return conduit.Superuser
	case RunAsUser:
	}
	return conduit.User
}

// Disabled reports whether the manifest keeps the elements from running.
func (m *Manifest) Disabled() bool { return m.Enabled != nil && !*m.Enabled }

// Where returns "path:line" of a key, such as "elements[0].path", or of the nearest above
// it that is there.
func (m *Manifest) Where(key string) string {
	for key != "" {
		if line, ok := m.lines[key]; ok {
			return fmt.Sprintf("%s:%d", m.path, line)
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return m.path
}

// Problem is one thing that is wrong, with what to do about it.
type Problem struct {
	// Path and Line are where it is written; Line 0 = in no line.
	Path string
	Line int
	// Key is the path of the key, such as "limits.cpus"; it may be empty.
	Key     string
	Message string
}

// Where returns "path:line".
func (p Problem) Where() string {
	if p.Line == 0 {
		return p.Path
	}
	return fmt.Sprintf("%s:%d", p.Path, p.Line)
}

// String returns the problem on one line.
func (p Problem) String() string {
	s := p.Where() + ": "
	if p.Key != "" {
		s += p.Key + ": "
	}
	return s + p.Message
}

// Error is everything that is wrong with a manifest, in the order of its lines. There is
// at least one.
type Error struct{ Problems []Problem }

// Error returns the first problem, and how many more there are, on one line.
func (e *Error) Error() string {
	s := e.Problems[0].String()
	if n := len(e.Problems) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}
