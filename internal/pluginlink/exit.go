package pluginlink

import (
	"fmt"
	"syscall"
	"time"
)

// ExitStatus says how a process ended.
type ExitStatus struct {
	// Code is the exit code; -1 when a signal ended it.
	Code int
	// Signal names the signal that ended it, such as "killed"; else empty.
	Signal string
	// Core says that the kernel wrote a core dump.
	Core bool
	// At is when the end was seen.
	At time.Time
}

// String returns a phrase such as "exited with status 2".
func (s ExitStatus) String() string {
	switch {
	case s.At.IsZero():
		return "has not ended"
	case s.Signal != "":
		return "was ended by signal: " + s.Signal
	default:
		return fmt.Sprintf("exited with status %d", s.Code)
	}
}

func exitStatus(w syscall.WaitStatus) ExitStatus {
	s := ExitStatus{Code: w.ExitStatus(), At: time.Now()}
	if w.Signaled() {
		s.Code, s.Signal, s.Core = -1, w.Signal().String(), w.CoreDump()
	}
	return s
}
