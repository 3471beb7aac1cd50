package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 5 * time.Second
)

// lab is where the children of one run live: a directory that goes when the run
// does, and the processes.
type lab struct {
	dir      string
	self     string // this program
	procs    int
	children []*child
	// With echo set, the host runs this binary instead of plugins/echo.
	echo string
	base string // a checkout of another revision, for the system conduit-base
	bins string // the binaries that it built
	// built are the binaries of packages, by what they were made of.
	built map[made]string
}

// made is what a binary was made of.
type made struct{ module, pkg string }

func newLab(procs int) (*lab, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conduit-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, self: self, procs: procs, bins: filepath.Join(dir, "bin"), built: map[made]string{}}
	if err := os.Mkdir(l.bins, 0o700); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close stops every child, the newest first, and removes the directory.
func (l *lab) close() {
	for _, c := range slices.Backward(l.children) {
		c.stop()
	}
	_ = os.RemoveAll(l.dir) // it is in the system's temporary directory, which is cleaned anyhow
}

// build builds a command of a module, once.
func (l *lab) build(ctx context.Context, module, pkg string) (binary string, err error) {
	from := made{module, pkg}
	if binary, ok := l.built[from]; ok {
		return binary, nil
	}
	binary = filepath.Join(l.bins, filepath.Base(filepath.Join(module, pkg)))
	if l.base != "" && strings.HasPrefix(module, l.base) {
		binary += "-base"
	}
	args := []string{"build", "-o", binary, pkg}
	if pkg != "." { // this program is built as `go run` builds it, whose peers are compiled by now
		args = slices.Insert(args, 1, "-trimpath")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	l.built[from] = binary
	return binary, nil
}

// child is a process of a run.
type child struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  string // the file of its standard error
	// gone is closed when the process has ended; err is its end, then.
	gone chan struct{}
	err  error
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// role starts this program in a role and returns when it is ready, with the
// address that it says it is ready at.
func (l *lab) role(ctx context.Context, name, role string, args ...string) (*child, string, error) {
	return l.roleOf(ctx, l.self, name, role, args...)
}

// roleOf is role of this program as another revision has it.
func (l *lab) roleOf(ctx context.Context, program, name, role string, args ...string) (*child, string, error) {
	c, err := l.start(name, program, append([]string{"-role", role}, args...)...)
	if err != nil {
		return nil, "", err
	}
	line, err := c.line(ctx, startTimeout)
	if err != nil {
		return nil, "", err
	}
	where, ok := strings.CutPrefix(line, "ready ")
	if !ok {
		return nil, "", fmt.Errorf("%s: it says %q instead of being ready", name, line)
	}
	return c, where, nil
}

// start starts a program. It must be called on the main goroutine (see main).
func (l *lab) start(name, program string, args ...string) (*child, error) {
	return l.startAs(nil, l.dir, name, program, args...)
}

// startAs is start as another user, if one is given, in a folder that this one may enter.
func (l *lab) startAs(as *syscall.Credential, dir, name, program string, args ...string) (*child, error) {
	log, err := os.Create(filepath.Join(l.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	// Not with a context: a child is told to stop, and given time for it, by stop.
	cmd := exec.Command(program, args...) //nolint:noctx // see above
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", l.procs))
	cmd.Stderr = log
	cmd.SysProcAttr = endWithParent()
	cmd.SysProcAttr.Credential = as
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it under a reader.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	err = cmd.Start()
	_ = w.Close() // the child has its own descriptor
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := &child{name: name, cmd: cmd, in: in, out: bufio.NewReader(r), log: log.Name(), gone: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.gone)
	}()
	l.children = append(l.children, c)
	return c, nil
}

// stop ends the process: its standard input ends and it gets SIGTERM, and after a
// while SIGKILL.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails if it is gone, which is what is wanted
	select {
	case <-c.gone:
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill()
		<-c.gone
	}
}

// line reads one line of the child's standard output.
func (c *child) line(ctx context.Context, limit time.Duration) (string, error) {
	type result struct {
		text string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text, err := c.out.ReadString('\n')
		read <- result{strings.TrimSuffix(text, "\n"), err}
	}()
	select {
	case r := <-read:
		if r.err == nil {
			return r.text, nil
		}
		return "", c.failure(r.err)
	case <-time.After(limit):
		return "", c.failure(fmt.Errorf("it has said nothing for %v", limit))
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// failure is err with what the child wrote about it.
func (c *child) failure(err error) error {
	select {
	case <-c.gone:
		err = errors.Join(err, c.err)
	default:
	}
	text, readErr := os.ReadFile(c.log)
	if readErr != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	const tail = 2000
	if len(text) > tail {
		text = text[len(text)-tail:]
	}
	return fmt.Errorf("%s: %w\n%s", c.name, err, text)
}

// untilEOF waits for the parent to end.
func untilEOF(stdin io.Reader) error {
	_, err := io.Copy(io.Discard, stdin)
	return err
}
