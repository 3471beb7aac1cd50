package pluginlink

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// StartKind names why a plugin did not start. The names are stable: status
// shows them.
type StartKind string

// The kinds of failed starts. Those for which [StartError.Final] holds cannot
// get better by trying again with the same file.
const (
	KindNotFound      StartKind = "not_found"      // no such file, or its interpreter is missing
	KindNotExecutable StartKind = "not_executable" // permission denied
	KindWrongArch     StartKind = "wrong_arch"     // built for another machine
	KindNotPlugin     StartKind = "not_a_plugin"   // nothing that the system can run, or no handshake in its output
	KindExited        StartKind = "exited"         // it ended before the handshake
	KindSignalled     StartKind = "signalled"      // a signal ended it before the handshake
	KindTimeout       StartKind = "timeout"        // no handshake in time
	KindCanceled      StartKind = "canceled"       // the host gave up waiting
	KindVersion       StartKind = "version"        // it speaks no version that the host speaks
	KindCookie        StartKind = "cookie"         // a plugin of another program
	KindAddress       StartKind = "address"        // it announced an address that no plugin may have
	KindUnreachable   StartKind = "unreachable"    // nothing answers at the address that it announced
	KindConfig        StartKind = "config"         // the launch itself is misconfigured
	KindSystem        StartKind = "system"         // the system refused to start a process: no fault of the plugin's
)

// KindSandbox: the system cannot confine the process as is required, which is no fault of
// the plugin's.
const KindSandbox StartKind = "sandbox_unavailable"

// StartError says why a plugin did not start and what to do about it. It is
// immutable.
type StartError struct {
	Kind StartKind
	// Path is the binary, as people know it.
	Path string
	// Message says what happened and what to do next.
	Message string
	// Exit is how the process ended, if it ran and ended by itself.
	Exit ExitStatus
	// Stderr are its last lines on stderr.
	Stderr []string
	// Ended is what of them says most of why it ended: the first line of a panic's text,
	// or else the last three; "" = these are to be taken from Stderr.
	Ended string
	Err   error
}

// Error returns one line: what happened first, since a table may have room for no more.
func (e *StartError) Error() string {
	s := e.Message
	if n := len(e.Stderr); e.Ended != "" {
		s += "; stderr ended with: " + e.Ended
	} else if n > 0 {
		s += "; stderr ended with: " + strings.Join(e.Stderr[max(0, n-3):], " / ")
	}
	return fmt.Sprintf("%s (%s: %s)", s, e.Kind, e.Path)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Final reports whether another try with the same file must fail as well.
func (e *StartError) Final() bool {
	switch e.Kind {
	case KindNotExecutable, KindWrongArch, KindNotPlugin, KindVersion, KindCookie, KindAddress, KindConfig, KindSandbox:
		return true
	default:
		return false
	}
}

// execError makes a StartError of what fork or exec said.
func execError(path string, err error) *StartError {
	e := &StartError{Path: path, Err: err}
	switch {
	case errors.Is(err, syscall.ENOEXEC), errors.Is(err, errBadArch):
		e.Kind, e.Message = KindNotPlugin, "the system cannot run this file: it is no program, or one for another machine; build it for this one (GOOS, GOARCH)"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		e.Kind, e.Message = KindNotExecutable, "permission denied; give it, or the interpreter that a script names in its first line, the execute bit (chmod +x), and look whether the file system is mounted noexec"
	case errors.Is(err, syscall.ENOENT):
		e.Kind, e.Message = KindNotFound, "the file, or the interpreter or dynamic loader that it names, does not exist; put it there, or build the plugin with CGO_ENABLED=0"
	case errors.Is(err, syscall.ETXTBSY):
		e.Kind, e.Message = KindSystem, "the file is still open for writing somewhere; it is tried again"
	case noDescriptor(err):
		e.Kind, e.Message = KindSystem, noDescriptors
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		e.Kind, e.Message = KindSystem, "the system has no process or memory left: "+err.Error()+"; raise the limits (ulimit -u, pids.max)"
	default:
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err // its path need not be the one that people know
		}
		e.Kind, e.Message = KindSystem, "the system started no process: "+err.Error()
	}
	return e
}

// noDescriptors says what is to be done when this process has opened all that it may.
const noDescriptors = "this host has no file descriptor left for it; raise the host's limit (ulimit -n, LimitNOFILE=), or look what holds them open"

// noDescriptor reports whether err is for want of a descriptor in this process. gRPC
// keeps no more of an error than its text.
func noDescriptor(err error) bool {
	if err == nil {
		return false
	}
	for _, no := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, no) || strings.Contains(err.Error(), no.Error()) {
			return true
		}
	}
	return false
}
