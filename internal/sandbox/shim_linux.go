package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// shimName is how a process knows that it is a shim: what it is called by whoever starts
// it. Not by its environment, which the plugin inherits, nor by a flag, which a program's
// own could be.
const shimName = "conduit-sandbox (confines itself and becomes a plugin)"

// What a shim inherits, beside the standard descriptors.
const (
	shimSocket = 3 // takes the order, gives reports; ends when the plugin is executed
	shimBinary = 4 // the opened plugin, if the order says so
)

// shimStatus is a shim's exit status when there is no plugin to become.
const shimStatus = 70

// order is what a shim is told.
type order struct {
	Spec   Spec
	Path   string // of the plugin
	Opened bool   // it is shimBinary, whatever the path names
	Args   []string
	Parent int // the host's process id
}

// report is what a shim says: first what is in force, then, if it comes to that, why it
// did not become the plugin.
type report struct {
	Effective *Effective
	Fault     *fault
}

type fault struct {
	Unavailable bool
	Errno       syscall.Errno // of the plugin's execution; 0 = it did not come to that
	Message     string
}

var prepared atomic.Bool //nolint:gochecknoglobals // whether main has called Enter is a fact of the process

// Enter is to be the first statement of main in a program that starts confined plugins.
// In a process that [Shim] has started it does not return.
func Enter() {
	if len(os.Args) == 1 && os.Args[0] == shimName {
		enterShim()
	}
	prepared.Store(true)
}

// Prepared reports whether Enter was called. Without it this program, started again,
// would be itself once more, and not a shim.
func Prepared() bool { return prepared.Load() }

// Shim is one process on its way to becoming a confined plugin. Its methods may be called
// concurrently.
type Shim struct {
	order  order
	binary *os.File // not its own

	ours *os.File // ends of the socket

	mu     sync.Mutex // held by Started: what the shim says last must be read before ours is closed
	theirs *os.File
	proc   *os.File // see Started
}

// New prepares a process that confines itself to spec. binary, if not nil, is the opened
// plugin, which runs whatever its path names by then; it must stay open until Started has
// returned. The error is of type *[Error] if this system cannot do what is required.
// A Shim must be closed.
func New(spec Spec, binary *os.File) (*Shim, error) {
	if spec.Mode == Required {
		if err := spec.Kernel.Whole(); err != nil {
			return nil, &Error{Unavailable: true, Message: "the sandbox that is required cannot be had: " + err.Error() + ", or ask for best-effort"}
		}
	}
	if !Prepared() {
		return nil, &Error{Unavailable: true, Message: "there is no sandbox to be had: the main of this program does not begin with host.SandboxEntry, by which it could confine what it starts"}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	s := &Shim{
		order:  order{Spec: spec, Opened: binary != nil, Parent: os.Getpid()},
		binary: binary,
		ours:   os.NewFile(uintptr(fds[0]), "sandbox"),
		theirs: os.NewFile(uintptr(fds[1]), "sandbox"),
	}
	return s, nil
}

// Apply makes cmd, which would run the plugin, run the shim that becomes the plugin. Its
// directory, environment, standard descriptors and attributes stay as they are, extra
// files it must not have.
func (s *Shim) Apply(cmd *exec.Cmd) {
	s.order.Path, s.order.Args = cmd.Path, cmd.Args
	cmd.Path = "/proc/self/exe" // what runs now, also when its file was replaced
	cmd.Args = []string{shimName}
	cmd.ExtraFiles = []*os.File{s.theirs}
	if s.binary != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.binary)
	}
}

// Started is to be called once when the shim has been started as process pid. It returns
// when that process executes the plugin, with what is in force, or with why it does not:
// of type *[Error] if the process said so. The end of ctx ends the wait.
func (s *Shim) Started(ctx context.Context, pid int) (Effective, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.theirs.Close() // or the end of the shim's would not be seen
	stop := context.AfterFunc(ctx, func() { _ = s.ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// The plugin may read what /proc says of itself: a rule for that directory, which the
	// kernel knows by the directory's inode. It makes a new one, of which the rule does
	// not speak, when the old one was dropped for want of memory; not while it is open.
	if proc, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		s.proc = proc
	}
	if err := json.NewEncoder(s.ours).Encode(&s.order); err != nil {
		return Effective{}, fmt.Errorf("the process that was to confine itself was not told how: %w", err)
	}
	var e *Effective
	said := json.NewDecoder(s.ours)
	for {
		var r report
		switch err := said.Decode(&r); {
		case errors.Is(err, io.EOF) && e != nil:
			return *e, nil
		case err != nil:
			return Effective{}, fmt.Errorf("the process that was to confine itself did not say that it has: %w", err)
		case r.Fault != nil && r.Fault.Errno != 0:
			return Effective{}, &Error{Exec: r.Fault.Errno, Message: r.Fault.Message}
		case r.Fault != nil:
			return Effective{}, &Error{Unavailable: r.Fault.Unavailable, Message: r.Fault.Message}
		case r.Effective != nil:
			e = r.Effective
		}
	}
}

// Close lets go of what is held for the process. It is to be called when that has ended,
// or was not started.
func (s *Shim) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.ours.Close()
	_ = s.theirs.Close()
	if s.proc != nil {
		_ = s.proc.Close()
	}
}

// enterShim is the life of a shim. All of what follows is of one thread, which is the one
// that executes: the kernel lets go of the others then, with whatever rights they had.
func enterShim() {
	runtime.LockOSThread()
	syscall.CloseOnExec(shimSocket)
	socket := os.NewFile(shimSocket, "sandbox")
	var o order
	if err := json.NewDecoder(socket).Decode(&o); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "this is how conduit-host starts plugins in a sandbox; it is nothing to be run by hand")
		os.Exit(shimStatus)
	}
	if o.Opened {
		syscall.CloseOnExec(shimBinary)
		o.Path = fmt.Sprintf("/proc/self/fd/%d", shimBinary)
	}
	say := json.NewEncoder(socket)
	e, f := o.Spec.confine(o.Path)
	if f == nil {
		if f = dieWith(o.Parent); f == nil {
			_ = say.Encode(report{Effective: &e}) // if nobody listens, the host is gone, and this process with it
			f = execute(&o)
		}
	}
	_ = say.Encode(report{Fault: f})
	os.Exit(shimStatus)
}

// dieWith has the kernel kill this process with the host, as it was asked to when the
// process was started: but that was its first thread, and need not be this one.
func dieWith(parent int) *fault {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return &fault{Message: "the process could not be tied to its host: " + err.Error()}
	}
	if os.Getppid() != parent {
		os.Exit(shimStatus) // it has gone meanwhile
	}
	return nil
}

func notExecuted(err error) *fault {
	f := &fault{Errno: syscall.EINVAL, Message: "the plugin could not be executed: " + err.Error()}
	errors.As(err, &f.Errno)
	return f
}

// busyTries bounds the tries while the plugin's file is open for writing: a process that
// was forked in the moment of the copy holds it until its own exec.
const busyTries = 8

// execute becomes the plugin; it returns why not.
func execute(o *order) *fault {
	wait := 2 * time.Millisecond
	for try := 1; ; try++ {
		err := syscall.Exec(o.Path, o.Args, os.Environ())
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return notExecuted(err)
		}
		<-time.After(wait) // of the end of that exec there is no event
		wait *= 2
	}
}
