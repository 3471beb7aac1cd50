package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func (a *app) pluginDev() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "dev DIR",
		Short: "Builds and serves a plugin, again at each save",
		Long: `Builds the Go program in DIR with go build, and serves it as a plugin in an instance of
its own: mode both, with auth.mode disabled, on loopback, with a data directory that goes
when it ends. Whenever a source file is saved that the program is built of, in DIR or in
another directory on this machine, it is built again, and the new process takes over
from the old one without losing a call. What the compiler says is shown, and the old
process goes on serving; so does it when the new one does not start.

What the plugin logs is shown. Ctrl-C ends all.`,
		Example: "  conduit-host plugin dev .\n  conduit-host plugin dev ./cmd/greeter --name greeter --cluster-listen 127.0.0.1:7500",
		Args:    takes(1, 1, "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			err := a.dev(ctx, args[0], name)
			if err == nil || errors.Is(err, context.Canceled) {
				return nil // it goes on until it is interrupted
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the name of the deployment (default that of DIR)")
	a.addKeyFlags(cmd, func(k *config.Key) bool {
		switch k.Name {
		case "cluster.listen", "gateway.listen", "ops.listen", "data_dir", "log.format":
			return true
		}
		return false
	})
	// Not as for serve: what is tried out leaves nothing behind unless it is told to.
	dataDir := cmd.Flags().Lookup("data-dir")
	dataDir.Usage, dataDir.DefValue = "where the instance keeps its data beyond its end (default a directory that goes when it ends)", ""
	return cmd
}

const (
	// devRescan is how often the development instance reads its directory, and so how
	// long the new binary lies there at most before it is taken.
	devRescan = 40 * time.Millisecond
	// devLook is between two looks at whether the new process serves.
	devLook = 10 * time.Millisecond
)

// developer is one run of plugin dev.
type developer struct {
	a    *app
	dir  string // absolute
	name string
	// deployments has the one binary; built gets what go build makes, on the same file
	// system.
	deployments, built string
	served             string // SHA-256 of what was put there last; empty if nothing was
	host               *host.Host
	peer               string // how a client reaches the instance
	told               bool   // how to call
}

func (a *app) dev(ctx context.Context, dir, name string) error {
	d, err := a.newDeveloper(dir, name)
	if err != nil {
		return err
	}
	// A second signal is heard as well, and ends it at once: it would else end the process,
	// with the directory left behind.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	scratch, err := os.MkdirTemp("", "conduit-dev-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary one; what is left there harms nobody
	d.deployments, d.built = filepath.Join(scratch, "deployments"), filepath.Join(scratch, "built")
	if err := os.Mkdir(d.deployments, 0o700); err != nil {
		return err
	}
	sources, err := watchSources(ctx, d.dir, withoutConduit(a.environ))
	if err != nil {
		return err
	}
	defer sources.close()

	c, err := a.devConfig(scratch, d.deployments)
	if err != nil {
		return err
	}
	a.warn("everyone on this machine may call what is served here, as superuser: it is for development only")
	i := newInstance(c, newLogger(c, a.stderr, a.coloured(a.stderr)), a.stderr)
	defer i.close(context.WithoutCancel(ctx))
	if err := i.start(ctx); err != nil {
		i.stopNow(ctx)
		return err
	}
	d.host = i.host.(plugins).Host //nolint:forcetypeassert,errcheck // it has a deployments directory
	d.peer = "ws://" + i.http.Addr
	err = d.loop(ctx, sources, i.failed)
	if errors.Is(context.Cause(ctx), errInterrupted) {
		<-signals // that one
	}
	return errors.Join(err, i.drainUntil(context.WithoutCancel(ctx), signals))
}

func (a *app) newDeveloper(dir, name string) (*developer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return nil, usagef("%s is no directory; name that of the plugin's func main", dir)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return nil, usagef("there is no go command in PATH, which builds the plugin: install Go (https://go.dev/dl)")
	}
	if name == "" {
		name = filepath.Base(abs)
	}
	if err := address.ValidDeploymentName(name); err != nil || !host.Considers(name) {
		return nil, usagef("%q cannot be the name of a deployment; give it another with --name", name)
	}
	return &developer{a: a, dir: abs, name: name}, nil
}

// devConfig is the configuration of the instance: what the flags say, over what it must
// be.
func (a *app) devConfig(scratch, deployments string) (*config.Config, error) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.keys.AddFlags(all, everyKey) // the values of the command's own flags are the same
	given, _ := config.Load(config.Sources{Flags: &a.keys, Machine: config.ThisMachine(false)})
	set := map[string]string{
		"mode": "both", "name": "dev", "auth.mode": "disabled", "host.deployments": deployments, "host.rescan": devRescan.String(),
		"drain.timeout": "2s", "drain.delay": "0s", "discovery.static": "", "discovery.srv.name": "",
	}
	for key, value := range map[string]string{"data_dir": filepath.Join(scratch, "data"), "log.format": "text"} {
		if !given.IsSet(key) {
			set[key] = value
		}
	}
	for _, key := range config.Keys() {
		if value, ok := set[key.Name]; ok {
			if err := all.Set(key.Flag(), value); err != nil {
				return nil, err
			}
		}
	}
	return a.loadConfig()
}

// loop builds and deploys, until ctx ends or the instance fails.
func (d *developer) loop(ctx context.Context, sources *sources, failed <-chan error) error {
	for {
		begun := time.Now()
		if d.build(ctx) {
			took := time.Since(begun)
			if err := d.deploy(ctx, sources, begun, took); err != nil {
				return err
			}
		}
		sources.refresh(ctx, begun)
		select {
		case <-sources.changed:
			d.say("changed: building")
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *developer) say(format string, args ...any) {
	fmt.Fprintf(d.a.stderr, "dev: "+format+"\n", args...)
}

// build runs go build, and reports whether it made a program.
func (d *developer) build(ctx context.Context) bool {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", d.built, ".")
	cmd.Dir, cmd.Env = d.dir, withoutConduit(d.a.environ)
	// The Ctrl-C of a terminal is for this process, which then ends that one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		for line := range strings.Lines(string(out)) {
			fmt.Fprintln(d.a.stderr, printable(strings.TrimRight(line, "\n")))
		}
		d.say("go build failed (%v)%s", err, d.goesOn())
		return false
	}
	if info, err := os.Stat(d.built); err != nil || info.Mode().Perm()&0o111 == 0 {
		d.say("go build made no program: %s has no func main%s", d.dir, d.goesOn())
		return false
	}
	return true
}

func (d *developer) goesOn() string {
	if d.served == "" {
		return "; waiting for a change"
	}
	return "; what was built before goes on serving"
}

// withoutConduit is an environment without this program's own variables, one of which
// may hold a secret.
func withoutConduit(environ []string) []string {
	var env []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "CONDUIT_") {
			env = append(env, kv)
		}
	}
	return env
}

// deploy puts what was built where the host finds it, and waits until it serves, or
// there is something else to build. The build began at begun and took built.
func (d *developer) deploy(ctx context.Context, sources *sources, begun time.Time, built time.Duration) error {
	sum, err := sumOf(d.built)
	if err != nil {
		return err
	}
	if sum == d.served {
		d.say("the program is the same")
		return os.Remove(d.built)
	}
	if err := os.Rename(d.built, filepath.Join(d.deployments, d.name)); err != nil {
		return err
	}
	d.served = sum
	t := time.NewTicker(devLook)
	defer t.Stop()
	for {
		if e, ok := d.status(); ok && e.State.Serving() && e.Sum == sum {
			rest := time.Since(begun) - built
			d.say("serving %s; go build took %v, all else %v", d.name, built.Round(time.Millisecond), (sources.settled() + rest).Round(time.Millisecond))
			d.explain(e)
			return nil
		}
		select {
		case <-t.C:
		case <-sources.changed:
			sources.again()
			return nil // what does not start the host has logged, and why
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *developer) status() (host.ElementStatus, bool) {
	for _, s := range d.host.Snapshot() {
		if s.Name == d.name && len(s.Elements) == 1 {
			return s.Elements[0], true
		}
	}
	return host.ElementStatus{}, false
}

// explain says, once, how what is served is called.
func (d *developer) explain(e host.ElementStatus) {
	if d.told {
		return
	}
	for _, s := range e.Description.GetServices() {
		if m := firstRemote(s); m != "" {
			d.told = true
			request := sampleRequest(e.Description, s.GetName(), m)
			if request != "" {
				request = "'" + request + "' "
			}
			d.say("call it: conduit-host call '*://%s/%s/%s' %s %s--peer %s", d.name, e.Name, s.GetName(), m, request, d.peer)
			d.say("see it:  conduit-host describe '*://%s/%s/%s' --peer %s", d.name, e.Name, s.GetName(), d.peer)
			return
		}
	}
}

func firstRemote(s *conduitv1.ServiceDescription) string {
	for _, m := range s.GetMethods() {
		if m.GetRemote() {
			return m.GetName()
		}
	}
	return ""
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
