package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// deployChunk is how many bytes of a file go in one message.
const deployChunk = 256 << 10

// changeTimeout is how long a command waits for what it has asked for, unless it is told
// another time.
const changeTimeout = "5m"

// changeFlags are the flags of the commands that change a deployment.
type changeFlags struct {
	timeout string
}

// addChangeFlags gives a command what those have in common that change a deployment and
// wait for it.
func (a *app) addChangeFlags(cmd *cobra.Command, f *changeFlags) {
	cmd.Flags().StringVar(&f.timeout, "timeout", changeTimeout, "how long to wait; its end ends the wait, and not the change")
	a.addTargetFlags(cmd)
}

// change runs a command that changes the one instance that is meant.
func (a *app) change(ctx context.Context, f *changeFlags, do func(ctx context.Context, t target, c connection) error) error {
	timeout, why := config.ParseDuration(f.timeout)
	switch {
	case why != "":
		return usagef("--timeout: %q %s", f.timeout, why)
	case timeout <= 0:
		return usagef("--timeout: %q is no time to wait", f.timeout)
	case len(a.peers) > 1:
		return usagef("this changes one instance; give one --peer")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := a.changeAt(limited, do)
	e, ok := errors.AsType[*conduit.Error](err)
	switch {
	case err == nil || ctx.Err() != nil:
	case ok && e.Code == conduit.DeadlineExceeded && e.Outcome == conduit.Executed: // the instance's word, and for what it waits
		return &deadlineError{err}
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		late := *conduit.AsError(err, conduit.OutcomeUnknown)
		late.Message = errorMessage(&late) + "; what was asked for may go on: see conduit-host ls elements"
		return &deadlineError{&late}
	}
	return blame(ctx, err)
}

func (a *app) changeAt(ctx context.Context, do func(ctx context.Context, t target, c connection) error) error {
	t, err := a.target(ctx)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // what was asked for is done, or its error is known
	return do(ctx, t, c)
}

// admin is the invoker of the instance's Admin service.
func admin(c connection) conduit.Invoker { return c.At("*://conduit/conduit/" + adminService) }

// changed is what became of a deployment.
type changed struct {
	Instance   string `json:"instance"`
	Deployment string `json:"deployment"`
	ID         string `json:"id"`
	Result     string `json:"result"`
	SHA256     string `json:"sha256,omitempty"`
	Was        string `json:"was,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Pid        int64  `json:"pid,omitempty"`
	Note       string `json:"note,omitempty"`
}

// printChange prints what became of a deployment.
func (a *app) printChange(t target, r *conduitv1.DeploymentResult) error {
	v := changed{
		Instance: t.name, Deployment: r.GetName(), ID: r.GetId(), Result: r.GetResult(), SHA256: r.GetSha256(), Was: r.GetWas(),
		Generation: r.GetGeneration(), Pid: r.GetPid(), Note: r.GetNote(),
	}
	return a.print(v, func(w io.Writer) {
		line := v.Deployment + ": " + v.Result
		if v.Result == "ready" && v.Pid != 0 { // else it has several processes
			line += fmt.Sprintf(", generation %d, pid %d", v.Generation, v.Pid)
		}
		if v.Note != "" {
			line += " (" + v.Note + ")"
		}
		fmt.Fprintln(w, printable(line))
	})
}

// changeCommand makes a command that changes the deployment that its argument names.
func (a *app) changeCommand(cmd *cobra.Command, do func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error)) *cobra.Command {
	f := &changeFlags{}
	cmd.Use += " DEPLOYMENT"
	cmd.Args = takes(1, 1, "DEPLOYMENT")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.change(cmd.Context(), f, func(ctx context.Context, t target, c connection) error {
			a.waits(cmd.Name() + " " + args[0])
			defer a.waitsNoMore()
			r, err := do(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.printChange(t, r)
		})
	}
	a.addChangeFlags(cmd, f)
	return cmd
}

// result is an answer that says what became of a deployment.
type result interface {
	proto.Message
	GetDeployment() *conduitv1.DeploymentResult
}

// ordered calls a method of Admin and returns what became of the deployment.
func ordered[Res result](ctx context.Context, c connection, method string, in proto.Message) (*conduitv1.DeploymentResult, error) {
	r, err := conduit.Call[Res](ctx, admin(c), method, in)
	if err != nil {
		return nil, err
	}
	return r.GetDeployment(), nil
}

func (a *app) undeployCommand() *cobra.Command {
	purge := false
	cmd := a.changeCommand(&cobra.Command{
		Use:   "undeploy",
		Short: "Removes a deployment",
		Long: `Removes a deployment: its file, or directory with all that is in it, goes from the
deployments directory, calls under way
and claims have drain.timeout to end, then its processes stop. Its data stays, unless
--purge says otherwise. A transient deployment may also be named by its id.`,
		Example: "  conduit-host undeploy greeter\n" +
			"  conduit-host undeploy greeter --purge --timeout 1m",
	}, func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error) {
		return ordered[*conduitv1.UndeployResponse](ctx, c, "Undeploy", &conduitv1.UndeployRequest{Name: utf8Text(name), Purge: purge})
	})
	cmd.Flags().BoolVar(&purge, "purge", false, "remove its data, too")
	return cmd
}

func (a *app) enableCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:     "enable",
		Short:   "Turns a deployment on again",
		Long:    "Turns a deployment on again that was disabled, and returns when it is ready.",
		Example: "  conduit-host enable greeter",
	}, func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error) {
		return ordered[*conduitv1.SetEnabledResponse](ctx, c, "SetEnabled", &conduitv1.SetEnabledRequest{Name: utf8Text(name), Enabled: true})
	})
}

func (a *app) disableCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:   "disable",
		Short: "Turns a deployment off",
		Long: `Turns a deployment off: calls under way and claims have drain.timeout to end, then
its processes stop, and calls are refused (plugin_failed). It stays off, whatever
becomes of its file and over restarts of the instance, until it is enabled.`,
		Example: "  conduit-host disable greeter",
	}, func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error) {
		return ordered[*conduitv1.SetEnabledResponse](ctx, c, "SetEnabled", &conduitv1.SetEnabledRequest{Name: utf8Text(name)})
	})
}

func (a *app) restartCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:   "restart",
		Short: "Starts a deployment anew",
		Long: `Starts a deployment anew from the bytes that it has, as a hot swap: no call fails.
One that is crash_looping, or was refused for what it said of itself, is tried again
at once. It returns when the new process is ready; if that fails (deploy_failed, exit
status 1) the one before goes on.`,
		Example: "  conduit-host restart greeter",
	}, func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error) {
		return ordered[*conduitv1.RestartResponse](ctx, c, "Restart", &conduitv1.RestartRequest{Name: utf8Text(name)})
	})
}

func (a *app) rollbackCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:   "rollback",
		Short: "Puts back what served before",
		Long: `Puts back the binary that served before the present one, as a hot swap, and writes
it into the deployments directory. After a deploy that did not come up it puts back
what serves. A second rollback undoes the first. One binary is kept of each
deployment; that there is none is no_previous (exit status 1).`,
		Example: "  conduit-host rollback greeter",
	}, func(ctx context.Context, c connection, name string) (*conduitv1.DeploymentResult, error) {
		return ordered[*conduitv1.RollbackResponse](ctx, c, "Rollback", &conduitv1.RollbackRequest{Name: utf8Text(name)})
	})
}

// deployFlags are the flags of deploy.
type deployFlags struct {
	changeFlags

	name      string
	transient bool
	fresh     bool
}

func (a *app) deployCommand() *cobra.Command {
	f := &deployFlags{}
	cmd := &cobra.Command{
		Use:   "deploy PATH",
		Short: "Deploys a plugin binary, or a directory of them",
		Long: `Sends a plugin binary to the instance of this machine, or a peer with
host.remote_admin, which examines it, asks it what it is, and puts it into its
deployments directory, under the name of PATH or --name. Where there is a deployment
of that name it takes its place by a hot swap: no call fails.

PATH may be a directory: with a deployment.yaml, or programs alone. All files in it are
sent, hidden ones too, up to 4,096 of 1 GiB together, and take the place of what was
there as a whole, at one stroke; of what is as it was nothing is started anew. Links are
refused, and directories without a file left out.

It returns when the new process is ready. If it does not come up (deploy_failed, exit
status 1) the one before goes on; conduit-host rollback then puts its file back. The
same bytes once more change nothing.

With --transient it is kept in the instance's own directory and is gone when the
instance ends; addresses with * for the deployment find it, behind all others, and
none can name it.`,
		Example: "  conduit-host deploy ./greeter\n" +
			"  conduit-host deploy ./directory-with-deployment.yaml --name greeter\n" +
			"  conduit-host deploy ./build/greeter-1.2 --name greeter --timeout 1m\n" +
			"  conduit-host deploy ./greeter --transient -o json",
		Args: takes(1, 1, "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.change(cmd.Context(), &f.changeFlags, func(ctx context.Context, t target, c connection) error {
				return a.deploy(ctx, t, c, args[0], f)
			})
		},
	}
	cmd.Flags().StringVar(&f.name, "name", "", "what the deployment is called, if not as PATH")
	cmd.Flags().BoolVar(&f.transient, "transient", false, "keep it until the instance ends")
	cmd.Flags().BoolVar(&f.fresh, "new", false, "fail if there is a deployment of that name")
	a.addChangeFlags(cmd, &f.changeFlags)
	return cmd
}

// deploymentName returns what a deployment of a path is called.
func (f *deployFlags) deploymentName(path string) (string, error) {
	name := f.name
	if name == "" {
		if whole, err := filepath.Abs(path); err == nil { // of "." it is a name, too
			path = whole
		}
		name = filepath.Base(path)
	}
	if err := address.ValidDeploymentName(name); err != nil {
		return "", usagef("no deployment can be called %q: %v; give another name with --name", name, err)
	}
	return name, nil
}

func (a *app) deploy(ctx context.Context, t target, c connection, path string, f *deployFlags) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return a.deployDirectory(ctx, t, c, path, f)
	}
	file, err := openUpload(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	name, err := f.deploymentName(path)
	if err != nil {
		return err
	}
	size, sum, err := digestOf(file)
	if err != nil {
		return usagef("%s cannot be read: %v", path, err)
	}
	start := &conduitv1.DeployStart{Name: name, Transient: f.transient, Replace: !f.fresh, Size: uint64(size), Files: 1}
	return a.upload(ctx, t, c, start, func(sent func(int), failed func(error)) iter.Seq[*conduitv1.DeployRequest] {
		return deployItems(start, &conduitv1.DeployFile{Mode: 0o755, Size: uint64(size), Sha256: sum}, file, sent, func(err error) {
			failed(usagef("%s cannot be read: %v", path, err))
		})
	})
}

// upload sends the messages of a deploy, and prints what has become of it. They are told
// whom to tell what they have read, and why they cannot go on.
func (a *app) upload(ctx context.Context, t target, c connection, start *conduitv1.DeployStart, messages func(sent func(int), failed func(error)) iter.Seq[*conduitv1.DeployRequest]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var readErr error
	progress := a.newProgress(start.GetName(), int64(start.GetSize()))
	items := messages(progress.sent, func(err error) {
		readErr = err
		cancel(err)
	})
	r, err := conduit.Upload[*conduitv1.DeployResponse](ctx, admin(c), "Deploy", items)
	progress.done()
	switch {
	case readErr != nil:
		return readErr
	case err != nil:
		return err
	}
	return a.printChange(t, r.GetDeployment())
}

// openUpload opens what is to be deployed, and says what it is not.
func openUpload(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return nil, usagef("%s: %v", path, err)
	case !info.Mode().IsRegular():
		return nil, usagef("%s is neither a regular file nor a directory", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, usagef("%s cannot be opened: %v", path, err)
	}
	return file, nil
}

// digestOf returns the size and the SHA-256 of a file, and goes back to its beginning.
func digestOf(f *os.File) (size int64, sum []byte, err error) {
	h := sha256.New()
	if size, err = io.Copy(h, f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return size, h.Sum(nil), err
}

// deployItems are the messages of a deploy of one file. failed is told when the file
// cannot be read; sent, how many bytes have been read.
func deployItems(start *conduitv1.DeployStart, file *conduitv1.DeployFile, from io.Reader, sent func(int), failed func(error)) iter.Seq[*conduitv1.DeployRequest] {
	return func(yield func(*conduitv1.DeployRequest) bool) {
		if yield(&conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_Start{Start: start}}) {
			fileItems(yield, file, from, sent, failed)
		}
	}
}

// fileItems yields the messages of one file, and reports whether there may be more.
func fileItems(yield func(*conduitv1.DeployRequest) bool, file *conduitv1.DeployFile, from io.Reader, sent func(int), failed func(error)) bool {
	if !yield(&conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_File{File: file}}) {
		return false
	}
	b := make([]byte, deployChunk)
	for {
		n, err := io.ReadFull(from, b)
		if n > 0 {
			sent(n)
			if !yield(&conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_Chunk{Chunk: b[:n]}}) {
				return false
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return true
		case err != nil:
			failed(err)
			return false
		}
	}
}

// progress shows a person how far an upload is.
type progress struct {
	line      statusLine
	name      string
	size, now int64
	last      time.Time
}

// progressPause is between two lines of progress.
const progressPause = 100 * time.Millisecond

func (a *app) newProgress(name string, size int64) *progress {
	return &progress{line: a.newStatusLine(), name: name, size: size}
}

func (p *progress) sent(n int) {
	p.now += int64(n)
	const mib = 1 << 20
	switch now := time.Now(); {
	case p.now >= p.size:
		p.line.show("%s: sent %.1f MiB, waiting until it is ready", p.name, float64(p.size)/mib)
	case now.Sub(p.last) >= progressPause:
		p.last = now
		p.line.show("%s: %.1f of %.1f MiB", p.name, float64(p.now)/mib, float64(p.size)/mib)
	}
}

// done takes the line away.
func (p *progress) done() { p.line.clear() }
