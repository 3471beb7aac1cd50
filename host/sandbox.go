package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/sandbox"
)

// Sandbox says how far plugins are confined: to their own directories, the libraries of
// the system and the network, without a way to the processes and files of others.
type Sandbox = sandbox.Mode

// The modes of a sandbox, from the weakest to the strongest. They are named as in the
// configuration.
const (
	SandboxOff        = sandbox.Off
	SandboxBestEffort = sandbox.BestEffort // what the kernel can do; what is missing is said
	SandboxRequired   = sandbox.Required   // all of it, or the plugin does not start
)

// SandboxEntry has to be the first statement of main in a program that sets
// [Options.Sandbox] or runs deployments that ask for one: to confine a plugin, the host
// starts this program once more, and there SandboxEntry does not return. Without it a host
// is not made.
func SandboxEntry() { sandbox.Enter() }

// sandboxFor decides how the processes of an element are confined, of what the host is
// set to and what the element's deployment asks for, if anything. What is required of all
// holds for all; otherwise a deployment may ask for more, and for less. A note says that
// it gets something else than it asks for, or less than the others.
func sandboxFor(host, deployment Sandbox) (mode Sandbox, note string) {
	switch {
	case deployment == "" || deployment == host:
		return host, ""
	case !deployment.Below(host):
		return deployment, ""
	case host == SandboxRequired:
		return host, fmt.Sprintf("its deployment asks for the sandbox %q, and gets %q, which host.sandbox demands of all", deployment, host)
	default:
		return deployment, fmt.Sprintf("its deployment has set the sandbox to %q, though host.sandbox is %q", deployment, host)
	}
}

// box is the sandbox of one process, or says that it has none. It is of the goroutine
// that starts the process, until that has started.
type box struct {
	note      string
	script    string // the interpreter that the first line of a script names
	spec      sandbox.Spec
	temp      string            // for the process's temporary files; removed with the process
	effective sandbox.Effective // set once the process has started
}

// tempPrefix begins the names of directories for temporary files in working directories.
const tempPrefix = ".tmp-"

// newBox prepares the sandbox of a process of a binary, whose working directory is work;
// program has its bytes.
func (e *element) newBox(of *binary, work string, program io.ReaderAt) (*box, error) {
	b := &box{}
	b.spec.Mode, b.note = sandboxFor(e.h.o.Sandbox, of.sandbox)
	if b.spec.Mode == SandboxOff {
		return b, nil
	}
	// What the element is called, and so which directory below this one it is going to
	// get, only the running process says.
	data := filepath.Join(e.base, "data", e.deployment)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp(work, tempPrefix)
	if err != nil {
		return nil, err
	}
	b.temp = temp
	b.spec.Kernel = e.h.o.kernel()
	b.spec.Write = []string{data, work}
	env := slices.Concat(e.h.o.Env, of.env)
	b.spec.Read = certificates(env)
	if isScript(program) {
		b.spec.Execute = interpreters(program, declaredValue(env, "PATH"))
		b.spec.Read = append(b.spec.Read, besideInterpreters(b.spec.Execute)...)
		b.script = interpreterOf(program)
	}
	if e.slot != "" { // what its deployment has beside the programs is for them
		b.spec.Read = append(b.spec.Read, e.home())
	}
	b.spec.Limits = sandbox.Limits{Files: cmp.Or(of.limits.Files, pluginlink.DefaultNoFile), Core: uint64(max(0, of.limits.Core))}
	return b, nil
}

// certificates are the files and directories that the environment of a plugin names as
// those of whom to trust.
func certificates(declared []string) (paths []string) {
	for _, path := range append(filepath.SplitList(declaredValue(declared, "SSL_CERT_DIR")), declaredValue(declared, "SSL_CERT_FILE")) {
		if filepath.IsAbs(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// declaredValue is that of a variable in the environment of a plugin.
func declaredValue(declared []string, name string) string {
	for _, kv := range slices.Backward(declared) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return os.Getenv(name)
}

// on reports whether there is a sandbox.
func (b *box) on() bool { return b.spec.Mode != SandboxOff }

// launch has c start its process in the sandbox.
func (b *box) launch(c *pluginlink.LaunchConfig) {
	if !b.on() {
		return
	}
	c.Env = append([]string{"TMPDIR=" + b.temp}, c.Env...) // what is declared wins
	c.Confine = func(file *os.File, socketDir string) (pluginlink.Confinement, error) {
		spec := b.spec
		spec.Write = append(slices.Clone(spec.Write), socketDir)
		s, err := sandbox.New(spec, file)
		if err != nil {
			return nil, b.startError(c.Source, err)
		}
		return &confinement{s, b, c.Source}, nil
	}
}

// remove removes what was made for a process that has ended, or was not started.
func (b *box) remove() {
	if b.temp != "" {
		_ = os.RemoveAll(b.temp) // what it has made irremovable the next start of the host tries again
	}
}

// String says what is in force, for people.
func (b *box) String() string {
	if !b.on() {
		return string(SandboxOff)
	}
	return b.effective.String()
}

// warnings say in what the sandbox is less than was asked for.
func (b *box) warnings() (list []string) {
	if b.note != "" {
		list = append(list, b.note)
	}
	if !b.on() {
		return list
	}
	if missing := b.effective.Missing(); len(missing) > 0 {
		why := strings.Join(append(missing, b.effective.Problems...), "; ")
		list = append(list, fmt.Sprintf("its sandbox is not whole, as %s allows: %s", b.spec.Mode, why))
	}
	return list
}

// startError makes what a sandbox says fit for a start.
func (b *box) startError(source string, err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case !ok:
		return err
	case errors.Is(e.Exec, syscall.EACCES) && b.script != "":
		return &pluginlink.StartError{
			Kind: pluginlink.KindNotExecutable, Path: source, Err: err,
			Message: fmt.Sprintf("permission denied in its sandbox: its interpreter %s, which its first line names, may not be executed by the host's user, or its file system is mounted noexec", b.script),
		}
	case errors.Is(e.Exec, syscall.EACCES):
		// Its own bits were looked at before; what it needs besides is a loader.
		return &pluginlink.StartError{
			Kind: pluginlink.KindNotExecutable, Path: source, Err: err,
			Message: "permission denied in its sandbox: the dynamic loader that it names is in none of the system's directories of libraries, or the file system is mounted noexec; build the plugin with CGO_ENABLED=0",
		}
	case e.Exec != nil:
		return e.Exec
	case e.Unavailable:
		return &pluginlink.StartError{Kind: pluginlink.KindSandbox, Path: source, Message: e.Message + " (host.sandbox, or sandbox in its deployment.yaml)", Err: err}
	default:
		return &pluginlink.StartError{Kind: pluginlink.KindSystem, Path: source, Message: e.Message, Err: err}
	}
}

// confinement is that of one process.
type confinement struct {
	*sandbox.Shim
	b      *box
	source string
}

// Started implements pluginlink.Confinement.
func (c *confinement) Started(ctx context.Context, pid int) error {
	e, err := c.Shim.Started(ctx, pid)
	if err != nil {
		return c.b.startError(c.source, err)
	}
	c.b.effective = e
	return nil
}

// sweepTemp removes what processes of a host that was killed have left.
func (p *private) sweepTemp() {
	one, _ := filepath.Glob(filepath.Join(p.dir, "work", "*", tempPrefix+"*"))
	several, _ := filepath.Glob(filepath.Join(p.dir, "work", "*", "*", tempPrefix+"*"))
	for _, dir := range slices.Concat(one, several) {
		_ = os.RemoveAll(dir)
	}
}
