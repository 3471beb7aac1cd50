package pluginlink

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Spawner starts processes from one thread that lives as long as it does. The
// kernel sends a child its parent-death signal when the *thread* that forked it
// ends, not the process; started from any goroutine, plugins would die at
// random. So all plugins of a host start through one Spawner, and none outlives
// it. All methods may be called concurrently.
type Spawner struct {
	starts chan start
	quit   chan struct{}
	once   sync.Once
	done   chan struct{}
}

type start struct {
	cmd *exec.Cmd
	err chan error
}

var errSpawnerClosed = errors.New("the host has stopped: it starts no more plugins")

// NewSpawner starts a Spawner. It must be closed.
//
// From here on no process that this one starts inherits a descriptor that this one
// was itself started with, but for its standard ones: Go opens everything so that it
// is closed by exec, a shell or a supervisor that started the host does not.
func NewSpawner() *Spawner {
	keepDescriptors()
	s := &Spawner{starts: make(chan start), quit: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

// keepListed is keepDescriptors where the system has a list of them.
func keepListed() {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		d, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(-1)
		_ = d.Close()
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
				syscall.CloseOnExec(fd)
			}
		}
		return
	}
}

// Close ends the spawner's thread, and with it, on Linux, every process that it
// started and that still runs. It is idempotent and waits for the thread's
// goroutine.
func (s *Spawner) Close() {
	s.once.Do(func() { close(s.quit) })
	<-s.done
}

// run holds its thread for good: a goroutine that ends while locked takes the
// thread with it.
func (s *Spawner) run() {
	runtime.LockOSThread()
	defer close(s.done)
	for {
		select {
		case st := <-s.starts:
			st.err <- st.cmd.Start()
		case <-s.quit:
			return
		}
	}
}

// busyTries bounds the tries while a file is open for writing: a sibling that
// was forked in the moment of the copy holds it until its own exec.
const busyTries = 8

// start starts cmd. It tries again for a moment while the file is busy.
func (s *Spawner) start(cmd func() *exec.Cmd) (*exec.Cmd, error) {
	wait := 2 * time.Millisecond
	for try := 1; ; try++ {
		st := start{cmd: cmd(), err: make(chan error, 1)}
		select {
		case s.starts <- st:
		case <-s.quit:
			return nil, errSpawnerClosed
		}
		err := <-st.err
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return st.cmd, err
		}
		select {
		case <-time.After(wait):
		case <-s.quit:
			return nil, errSpawnerClosed
		}
		wait *= 2
	}
}
