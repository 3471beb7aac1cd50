package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/safepath"
	"github.com/elemental-conduit/conduit/internal/sandbox"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

const (
	// lookupTime is how long doctor waits for DNS.
	lookupTime = 15 * time.Second
	// sparePlaces are the open files that an instance needs beside its links.
	sparePlaces = 512
)

// How a finding is.
const (
	findingOK      = "ok"
	findingWarning = "warning"
	findingProblem = "problem"
	findingSkipped = "skipped"
)

// finding is what doctor says of one thing. Text says what is, and of what is not as
// it should be also what to do.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Text   string `json:"text"`
}

// findings are what doctor has found so far, in the order of the checks.
type findings []finding

func (f *findings) add(check, status, format string, args ...any) {
	*f = append(*f, finding{check, status, fmt.Sprintf(format, args...)})
}

// judge adds a problem if there is an error, else that it is well.
func (f *findings) judge(check string, err error, format string, args ...any) {
	if err != nil {
		f.add(check, findingProblem, "%s", conduit.AsError(err, conduit.NotSent).Message)
		return
	}
	f.add(check, findingOK, format, args...)
}

func (a *app) doctorCommand() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Finds what is wrong with this machine, the configuration and the cluster",
		Long: `Finds what is wrong with this machine, the configuration and the cluster. It takes what
serve takes, changes nothing, and looks at:

  config       what config check says
  directories  whether this user can have them to itself
  ports        whether they are free
  files        how many may be open at once
  sandbox      whether this kernel can confine plugins as host.sandbox says
  discovery    what DNS says of discovery.srv.name
  links        whether each peer that discovery names can be reached, and leads to one instance,
               to this one, or to one that another leads to as well; it makes some links,
               without a session
  clock        whether the clocks of these peers are this machine's
  idle         with --idle, whether something on the way to them cuts silent links
  instance     whether the instance of this configuration runs and answers
  peers        what that instance finds wrong with others: two with one id, unreachable ones

The exit status is 1 if there is a problem. A warning is none.`,
		Example: "  conduit-host doctor --config conduit.yaml\n  conduit-host doctor --mode worker --name worker-1 -o json\n  conduit-host doctor --config conduit.yaml --idle 30s",
		Args:    takes(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), idle) },
	}
	cmd.Flags().DurationVar(&idle, "idle", 0, "say nothing on a link to each peer for so long, or until it is cut or the peer says something; 0 = do not")
	a.addKeyFlags(cmd, everyKey)
	return cmd
}

func (a *app) doctor(ctx context.Context, idle time.Duration) error {
	if idle < 0 {
		return usagef("--idle %v is less than nothing", idle)
	}
	if len(a.peers) > 0 || a.session != "" {
		return usagef("doctor is for this machine: leave --peer and --session out; `conduit-host ls instances --peer URL` says what another one finds")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	f := findings{}
	c := a.examineConfig(&f)
	running := isRunning(ctx, c)
	examineDirectories(&f, c)
	examinePorts(ctx, &f, c, running)
	examineFiles(&f, c)
	examineSandbox(&f, c)
	listed, srv := examineDNS(ctx, &f, c)
	here := examinePeers(ctx, &f, c, running)
	examineLinks(ctx, &f, c, listed, dialOf(srv), here, idle)
	if err := ctx.Err(); err != nil {
		return blame(ctx, err)
	}
	err := a.print([]finding(f), func(w io.Writer) {
		for _, one := range f {
			fmt.Fprintf(w, "%s\t%s\t%s\n", one.Status, one.Check, printable(one.Text))
		}
	})
	n := len(slices.DeleteFunc(slices.Clone(f), func(one finding) bool { return one.Status != findingProblem }))
	if err == nil && n > 0 {
		return &quietError{conduit.Errorf(conduit.FailedPrecondition, reasonUnwell, conduit.NotSent, "%d problems were found", n)}
	}
	return err
}

// examineConfig says what config check does. What is wrong has its default in what is
// returned.
func (a *app) examineConfig(f *findings) *config.Config {
	c, err := a.loadConfig()
	err = withAttributes(c, withDeployments(c, err))
	problems, ok := errors.AsType[*config.Error](err)
	switch {
	case ok:
		for _, p := range problems.Problems {
			f.add("config", findingProblem, "%s", p.String())
		}
	default:
		f.judge("config", err, "it is as serve wants it")
	}
	for _, text := range c.Warnings {
		f.add("config", findingWarning, "%s", text)
	}
	return c
}

// isRunning reports whether an instance of the configuration's name runs here.
func isRunning(ctx context.Context, c *config.Config) bool {
	_, err := os.Stat(c.Socket())
	return err == nil && !isDead(ctx, c.Socket())
}

func examineDirectories(f *findings, c *config.Config) {
	for _, d := range []struct{ key, path string }{{"data_dir", c.PrivateDir()}, {"run_dir", c.String("run_dir")}} {
		f.judge("directories", haveDirectory(d.key, d.path, c.Bool("host.allow_unsafe")), "%s: %s is, or can be made, this user's alone", d.key, d.path)
	}
}

// haveDirectory says why serve could not have a directory. Unlike ownDir it makes none.
func haveDirectory(key, path string, unsafe bool) error {
	at := path
	for {
		info, err := os.Stat(at)
		if err == nil && info.IsDir() {
			break
		}
		if err == nil {
			return configf("%s: %s is a file; give another directory", key, at)
		}
		up := filepath.Dir(at)
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) || up == at {
			return configf("%s: %s cannot be read: %v; give another directory, or this user the right", key, at, err)
		}
		at = up
	}
	if at == path {
		return ownDir(key, path, unsafe) // it is there, so that nothing is made
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return configf("%s: %s cannot be made: this user may not write to %s; give it the right, or another directory", key, path, at)
	}
	if err := safepath.Check(at); err != nil && !unsafe {
		return configf("%s: %s is refused: %v", key, path, err)
	}
	return nil
}

func examinePorts(ctx context.Context, f *findings, c *config.Config, running bool) {
	const check = "ports"
	if running {
		f.add(check, findingSkipped, "the instance %s runs, and has them", c.String("name"))
		return
	}
	var keys []string
	if c.ServesCluster() {
		keys = append(keys, "cluster.listen")
	}
	if c.ServesGateway() {
		keys = append(keys, "gateway.listen")
	}
	for _, key := range append(keys, "ops.listen") {
		if c.String(key) == "" { // switched off
			continue
		}
		l, err := listen(ctx, c, key)
		if err != nil {
			f.judge(check, err, "")
			continue
		}
		_, port, _ := net.SplitHostPort(c.String(key)) // it was listened on
		if got := l.Addr().String(); port != "0" && !strings.HasSuffix(got, ":"+port) {
			f.add(check, findingWarning, "%s: %s is taken, and serve would have %s; name the one that others know with --%s", key, c.String(key), got, c.Value(key).Key.Flag())
		} else {
			f.add(check, findingOK, "%s: %s is free", key, c.String(key))
		}
		_ = l.Close() // nobody has connected
	}
}

func examineFiles(f *findings, c *config.Config) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		f.add("files", findingWarning, "how many files may be open cannot be read: %v", err)
		return
	}
	judgeFiles(f, limit.Cur, c.Int("cluster.max_links"))
}

func judgeFiles(f *findings, limit uint64, links int) {
	if need := uint64(max(links, 0)) + sparePlaces; limit < need {
		f.add("files", findingWarning, "%d files may be open at once, and %d links need %d; raise the limit (ulimit -n, LimitNOFILE= in a unit of systemd), or lower cluster.max_links", limit, links, need)
		return
	}
	f.add("files", findingOK, "%d may be open at once", limit)
}

func examineSandbox(f *findings, c *config.Config) {
	const check = "sandbox"
	can, mode := sandbox.Available(), c.String("host.sandbox")
	lacks := fmt.Sprintf("this kernel has version %d of Landlock, and all of the sandbox needs %d", can.Landlock, sandbox.NeededLandlock)
	if can.Why != "" {
		lacks = can.Why
	}
	switch {
	case mode == "off":
		f.add(check, findingOK, "host.sandbox is off")
	case can.Landlock >= sandbox.NeededLandlock:
		f.add(check, findingOK, "this kernel has version %d of Landlock", can.Landlock)
	case mode == "required":
		f.add(check, findingProblem, "host.sandbox is required, so no plugin would be started: %s; use a newer kernel, or best-effort", lacks)
	default:
		f.add(check, findingWarning, "plugins are confined in part: %s; use a newer kernel (Linux 6.12)", lacks)
	}
}

// examineDNS returns the peers that DNS names, and what knows their addresses.
func examineDNS(ctx context.Context, f *findings, c *config.Config) ([]string, *discovery.SRV) {
	const check = "discovery"
	name := c.String("discovery.srv.name")
	if name == "" {
		f.add(check, findingOK, "no discovery.srv.name; the list of discovery.static has %d entries", len(c.List("discovery.static")))
		return nil, nil
	}
	srv, err := discovery.NewSRV(discovery.SRVOptions{
		Name: name, Servers: c.List("discovery.srv.servers"), Interval: time.Second, Insecure: c.Bool("cluster.insecure"),
	})
	if err != nil {
		f.add(check, findingProblem, "discovery.srv: %v", err)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	var got *discovery.Snapshot
	err = srv.Run(ctx, func(s discovery.Snapshot) {
		if got == nil {
			got = &s
			cancel()
		}
	})
	switch {
	case err != nil:
		f.add(check, findingProblem, "discovery.srv: %v", err)
		return nil, nil
	case got == nil:
		f.add(check, findingProblem, "no DNS server has answered for %s in %v; check discovery.srv.servers, or /etc/resolv.conf, and the way there", name, lookupTime)
		return nil, nil
	}
	for _, p := range got.Problems {
		f.add(check, findingProblem, "%s: %v; mend the record, or discovery.srv.servers", p.Entry, p.Err)
	}
	switch {
	case len(got.Peers) > 0:
		f.add(check, findingOK, "%s lists %s", name, strings.Join(got.Peers, ", "))
	case len(got.Problems) == 0:
		f.add(check, findingWarning, "%s lists no host; add SRV records, or correct discovery.srv.name", name)
	}
	return got.Peers, srv
}

// examinePeers asks the instance that runs for what it finds wrong with its peers.
func examinePeers(ctx context.Context, f *findings, c *config.Config, running bool) (here runner) {
	name := c.String("name")
	if !running {
		f.add("instance", findingSkipped, "no instance %s runs here; what it finds wrong with its peers is shown while it does", name)
		return here
	}
	conn, err := dialDoor(ctx, c.Socket())
	if err != nil {
		f.judge("instance", err, "")
		return here
	}
	defer func() { _ = conn.Close() }() // the questions are answered
	all, err := instances(ctx, conn)
	f.judge("instance", err, "%s runs and answers", name)
	if err != nil {
		return here
	}
	for _, p := range all[1:] {
		examinePeer(f, p)
		if p.GetState() == registry.StateUnreachable.String() {
			here.lost = append(here.lost, p.GetUrls()...)
		}
	}
	here.self = all[0].GetInfo().GetInstance()
	return here
}

func examinePeer(f *findings, p *conduitv1.PeerInfo) {
	const check = "peers"
	who := strings.Join(p.GetUrls(), ", ")
	if n := p.GetInfo().GetName(); n != "" {
		who = n + " (" + who + ")"
	}
	switch p.GetState() {
	case "conflict": // its reason says what to do
		f.add(check, findingProblem, "%s: %s", who, p.GetReason())
	case registry.StateUnreachable.String():
		f.add(check, findingProblem, "%s cannot be reached: %s; see whether it runs, and whether its address and the way there are right, or take it off the list", who, p.GetReason())
	case "self":
		f.add(check, findingOK, "%s is this instance itself, which does no harm", who)
	default:
		f.add(check, findingOK, "%s is %s", who, p.GetState())
	}
}
