package host

import (
	"time"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// State is where an element stands. The names are stable: status shows them.
type State string

// The states of an element.
const (
	Discovered   State = "discovered"    // seen, waiting for its turn
	Refused      State = "refused"       // its file cannot or may not run; Reason says why
	Starting     State = "starting"      // its process is coming up
	Ready        State = "ready"         // it takes calls
	Degraded     State = "degraded"      // it takes calls, and is not well
	Draining     State = "draining"      // it takes no more calls, those under way finish
	Stopped      State = "stopped"       // it was stopped on purpose
	Backoff      State = "backoff"       // it failed and waits for its next start
	CrashLooping State = "crash_looping" // it failed quickly too often; it is started again at the longest interval
	Disabled     State = "disabled"      // an operator, or its manifest, turned it off
)

// Serving reports whether an element in this state takes calls.
func (s State) Serving() bool { return s == Ready || s == Degraded }

// ElementStatus is an element at one moment.
type ElementStatus struct {
	// Name is the element's own; empty until it has once described itself.
	Name  string
	State State
	Since time.Time
	// Reason says why it is in this state, for people.
	Reason string
	// Kind names the cause of a failure or refusal, such as "wrong_arch".
	Kind string
	// Generation counts its processes that became ready.
	Generation uint64
	Pid        int
	// Restarts counts the processes that ended without being asked to.
	Restarts uint64
	// Calls are under way; Claims are held, by count. Both are of all generations.
	Calls, Claims int64
	// Old are the generations that were replaced and still finish, oldest first.
	Old []OldGeneration
	// Sandbox lists what confines the process that serves; "off" if nothing does, empty
	// until one has served.
	Sandbox string
	// LastError is why it last failed; it stays while it starts again.
	LastError string
	// LastExit is how its last process ended; its At is zero if none did.
	LastExit pluginlink.ExitStatus
	// Stderr are the last lines of its present or last process.
	Stderr   []string
	Warnings []string
	// Path is the binary as deployed; Sum is the SHA-256 of what runs.
	Path, Sum string
	// Attributes are those that the process that serves was given.
	Attributes []AttributeStatus
	// Description is what it offers; nil until it has described itself. Shared:
	// it must not be changed.
	Description *conduitv1.Description
	// Measures are what its process counted and measured, as of the last look at its
	// health; of one that has ended, what it told last, until another tells. Shared: they
	// must not be changed.
	Measures []Measure
}

// Measure is a number that an element counts or measures.
type Measure struct {
	Name    string
	Counter bool
	Value   float64
	Pid     int // of the process that told it
}

// OldGeneration is a process that was replaced: it takes no new calls, and ends when it
// has no call and no claim.
type OldGeneration struct {
	Generation    uint64
	Pid           int
	Calls, Claims int64
	Sum           string
}

// DeploymentStatus is a deployment at one moment. Status is "clean" when all
// elements are ready, "warnings" when they are and something is to be said,
// "unstable" when some are not, "failed" when none is.
type DeploymentStatus struct {
	ID       address.DeploymentID
	Name     string
	Path     string
	Status   string
	Elements []ElementStatus
	// Transient is its id if it goes with the process; then ID is zero.
	Transient string
	// Disabled: an operator, or its manifest, has turned it off. Cordoned: it takes no new units.
	Disabled, Cordoned bool
	// Previous is the SHA-256 of what a rollback leads to; empty = there is nothing.
	Previous string
}

func deploymentStatus(elements []ElementStatus) string {
	ready, warnings := 0, 0
	for _, e := range elements {
		if e.State.Serving() {
			ready++
		}
		if e.State == Degraded || len(e.Warnings) > 0 {
			warnings++
		}
	}
	switch {
	case ready == 0:
		return "failed"
	case ready < len(elements):
		return "unstable"
	case warnings > 0:
		return "warnings"
	}
	return "clean"
}
