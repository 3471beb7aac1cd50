package pluginlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"
)

// drainGrace is how long a descendant that still holds stdout or stderr may keep
// them after the process has been reaped.
const drainGrace = 200 * time.Millisecond

// child implements runner.Runner, the part of go-plugin that starts and kills.
// It differs from go-plugin's own in what its users have suffered from: it reads
// the plugin's output itself and for ever, gives go-plugin nothing but a checked
// handshake line and an empty stderr, kills the whole group before the leader is
// reaped, and never waits for a descendant that holds a pipe.
//
// All methods may be called concurrently; Start once.
type child struct {
	starting  context.Context //nolint:containedctx // go-plugin's own has another end; this one's kills the child, as long as it starts
	stopWatch func() bool     // lets it outlive starting; set by Start
	cfg       *LaunchConfig
	env       []string
	socketDir string
	out       *output

	// What go-plugin reads.
	stdoutR, stderrR *io.PipeReader
	stdoutW, stderrW *io.PipeWriter

	ended  chan struct{} // closed once reaped
	exited chan struct{} // closed once reaped and drained
	exit   ExitStatus    // valid once ended is closed

	mu     sync.Mutex
	cmd    *exec.Cmd
	reaped bool
	killed bool        // a signal of ours was sent
	fault  *StartError // why the handshake was refused
	socket string      // the path that it announced and that was checked
}

var _ runner.Runner = (*child)(nil)

func newChild(starting context.Context, cfg *LaunchConfig, env []string, socketDir string, out *output) *child {
	p := &child{starting: starting, cfg: cfg, env: env, socketDir: socketDir, out: out, ended: make(chan struct{}), exited: make(chan struct{})}
	p.stdoutR, p.stdoutW = io.Pipe()
	p.stderrR, p.stderrW = io.Pipe()
	return p
}

// Start implements runner.Runner.
func (p *child) Start(context.Context) error {
	outR, outW, err := os.Pipe()
	if err != nil {
		return p.refuse(execError(p.cfg.Source, err))
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		_ = outR.Close()
		_ = outW.Close()
		return p.refuse(execError(p.cfg.Source, err))
	}
	path := execPath(p.cfg)
	confined, err := p.confine(path)
	var cmd *exec.Cmd
	if err == nil {
		cmd, err = p.cfg.Spawner.start(func() *exec.Cmd {
			cmd := &exec.Cmd{
				Path: path, Args: append([]string{p.cfg.Path}, p.cfg.Args...), Env: p.env, Dir: p.cfg.Dir,
				Stdout: outW, Stderr: errW, // and stdin from /dev/null
				SysProcAttr: processAttr(),
			}
			if confined != nil {
				confined.Apply(cmd)
			}
			return cmd
		})
	}
	_ = outW.Close()
	_ = errW.Close()
	if err != nil {
		_ = outR.Close()
		_ = errR.Close()
		if confined != nil {
			confined.Close()
		}
		return p.refuse(p.notStarted(err))
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	p.out.pid.Store(int64(cmd.Process.Pid))
	p.stopWatch = context.AfterFunc(p.starting, func() { p.signal(unix.SIGKILL) })
	if confined == nil {
		if err := limitProcess(cmd.Process.Pid, p.cfg.NoFile, uint64(max(0, p.cfg.Limits.Core))); err != nil {
			p.cfg.Log.Debug("a limit of the plugin's process could not be set", "pid", cmd.Process.Pid, "error", err)
		}
	}
	var drains sync.WaitGroup
	drains.Go(func() { p.drainStdout(outR) })
	drains.Go(func() { p.out.drainStderr(errR, errR.SetReadDeadline) })
	go p.wait(cmd, &drains, outR, errR, confined)
	if confined == nil {
		return nil
	}
	err = confined.Started(p.starting, cmd.Process.Pid)
	switch {
	case err == nil:
		return nil
	case p.starting.Err() != nil: // that is why, and nothing that it said
		p.signal(unix.SIGKILL)
		return p.starting.Err()
	default:
		return p.refuse(p.notStarted(err))
	}
}

// confine prepares the process's confinement, nil for none.
func (p *child) confine(path string) (Confinement, error) {
	if p.cfg.Confine == nil {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	file := p.cfg.File
	if path == p.cfg.Path {
		file = nil
	}
	return p.cfg.Confine(file, p.socketDir)
}

// notStarted says why there is no plugin: in the words of its confinement, or by what fork
// or exec said.
func (p *child) notStarted(err error) *StartError {
	if e, ok := errors.AsType[*StartError](err); ok {
		return e
	}
	return execError(p.cfg.Source, err)
}

// outlives says that the start is over, and reports whether it was in time: if not, the
// process is being killed. It is for whoever has called Start.
func (p *child) outlives() bool { return p.stopWatch == nil || p.stopWatch() }

// wait owns the end of the process.
func (p *child) wait(cmd *exec.Cmd, drains *sync.WaitGroup, outR, errR *os.File, confined Confinement) {
	reap(cmd, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		// Children of the plugin go with it, however it ended.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		p.reaped = true
	})
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		p.exit = exitStatus(w)
	} else {
		p.exit = ExitStatus{Code: cmd.ProcessState.ExitCode(), At: time.Now()}
	}
	close(p.ended)
	drained := make(chan struct{})
	go func() {
		drains.Wait()
		close(drained)
	}()
	timer := time.NewTimer(drainGrace)
	select {
	case <-drained:
	case <-timer.C:
	}
	timer.Stop()
	_ = outR.Close()
	_ = errR.Close()
	_ = p.stdoutW.Close() // in case that nobody reads the handshake any more
	_ = p.stderrW.Close()
	<-drained
	if confined != nil {
		confined.Close()
	}
	close(p.exited)
}

// drainStdout looks for the handshake, hands it to go-plugin, and logs all
// else, until the end.
func (p *child) drainStdout(r io.Reader) {
	lines := newLineReader(r)
	lines.raw = true // what is around the handshake is to be seen in the log
	noise := 0
	for announced := false; ; {
		line, cut, err := lines.next()
		if err != nil {
			return
		}
		if announced {
			p.out.line(sourceStdout, line, cut)
			continue
		}
		skipped, handshake, a, ok := splitAnnouncement(line)
		if ok && cut == 0 {
			announced, lines.raw = true, false
			switch {
			case len(skipped) > 0:
				p.skipped("the plugin printed text before its handshake and did not end the line; it was skipped, stdout must carry the handshake only", skipped)
			case len(handshake) < len(line):
				p.skipped("the plugin's handshake has more around it than the end of its line, which was ignored; stdout must carry the handshake only", line)
			}
			if fault := a.check(p.cfg.Source, p.socketDir); fault != nil {
				_ = p.refuse(fault)
				continue
			}
			p.mu.Lock()
			p.socket = a.addr
			p.mu.Unlock()
			// go-plugin's scanner takes it at once; at the latest the exit ends the wait.
			_, _ = p.stdoutW.Write(append(handshake, '\n'))
			continue
		}
		if noise++; noise <= maxNoiseShown {
			p.skipped("the plugin printed to stdout before its handshake; the line was skipped, stdout must carry the handshake only", line)
		}
		if noise > maxNoise {
			_ = p.refuse(&StartError{Kind: KindNotPlugin, Path: p.cfg.Source, Message: fmt.Sprintf("it printed more than %d lines on stdout and no handshake; call pluginapi.Main first in main", maxNoise)})
			announced = true
		}
	}
}

// skipped logs what a plugin printed before its handshake, in quotes, since it may be
// nothing but space.
func (p *child) skipped(what string, text []byte) {
	p.out.emit(sourceHost, record{hclog.Warn, what, []any{"line", `"` + shorten(clean(string(text[:min(len(text), 4*noiseShown)])), noiseShown) + `"`}})
}

// refuse keeps why the start failed and ends the process.
func (p *child) refuse(why *StartError) error {
	p.mu.Lock()
	if p.fault == nil {
		p.fault = why
	}
	p.mu.Unlock()
	p.signal(unix.SIGKILL)
	return why
}

// signal sends sig to the group, unless the process was reaped already.
func (p *child) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.reaped {
		return
	}
	p.killed = true
	_ = unix.Kill(-p.cmd.Process.Pid, sig)
}

// started reports whether there ever was a process.
func (p *child) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil
}

// socketPath returns the path of the socket that the process has announced, if it has.
func (p *child) socketPath() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.socket
}

// Pid returns the process id, 0 before the start.
func (p *child) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// verdict says what is known of a failed start.
func (p *child) verdict() (fault *StartError, killed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.killed
}

// Wait implements runner.Runner.
func (p *child) Wait(ctx context.Context) error {
	select {
	case <-p.exited:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.exit.Code != 0 {
		return errors.New(p.exit.String())
	}
	return nil
}

// killWait bounds the wait for the end of a killed process. Only one that is
// stuck in the kernel outlasts it.
const killWait = 5 * time.Second

// Kill implements runner.Runner: at once, with all children.
func (p *child) Kill(ctx context.Context) error {
	if !p.started() {
		return nil
	}
	p.signal(unix.SIGKILL)
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end though it was killed: it is stuck in the kernel", p.Pid())
	}
}

// Diagnose implements runner.Runner.
func (p *child) Diagnose(context.Context) string {
	select {
	case <-p.exited:
		return "the plugin " + p.exit.String() + "\n" + strings.Join(p.out.Tail(), "\n")
	default:
		return strings.Join(p.out.Tail(), "\n")
	}
}

// Stdout implements runner.Runner.
func (p *child) Stdout() io.ReadCloser { return p.stdoutR }

// Stderr implements runner.Runner: go-plugin reads nothing there, and sees the
// end when the process has ended.
func (p *child) Stderr() io.ReadCloser { return p.stderrR }

// Name implements runner.Runner.
func (p *child) Name() string { return p.cfg.Name }

// ID implements runner.Runner. It must not be empty, or go-plugin's Kill would
// leave its socket directory behind.
func (p *child) ID() string { return strconv.Itoa(p.Pid()) }

// PluginToHost implements runner.Runner.
func (p *child) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

// HostToPlugin implements runner.Runner.
func (p *child) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
