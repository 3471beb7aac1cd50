package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/metrics"
	"github.com/elemental-conduit/conduit/internal/router"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// hosting is what an instance needs of what runs its plugins.
type hosting interface {
	builtin.Inventory
	// take passes a call on to an element here, or leaves it as it was.
	take(from host.Origin, c router.Call, inv *frame.Invoke) *conduit.Error
	// look, nodes and findService are what locator.Local asks.
	look(a address.Address, method string, units uint32) locator.Standing
	nodes(a address.Address) []string
	findService(deployment string, service address.ServiceKey) (address.Address, bool)
	// inFlight returns how many calls are under way on elements here.
	inFlight() int64
	// links returns the links to the plugins.
	links() []host.PluginLink
	// logs gives the log of a deployment, as builtin.Logs does.
	logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error
	// events tells what is loaded and what changes of it, as host.Host.Events does.
	events(ctx context.Context, send func(*conduitv1.HostEvent) error) error
	// measures are what elements count and measure by themselves.
	measures() []metrics.Measure
	// ready is closed once everything that is deployed runs or has failed once.
	ready() <-chan struct{}
	// unready says why not everything that is deployed can be called yet.
	unready() []string
	// notes says which elements were given up.
	notes() []string
	// setAttributes gives other attributes to everything that is deployed.
	setAttributes(a host.Attributes) error
	// drainTimeout is how long what is deployed asks a drain to take; 0 = it does not.
	drainTimeout() time.Duration
	// operate does what operators ask of deployments.
	operating
	// stop ends calls by the end of ctx, and then every plugin.
	stop(ctx context.Context)
}

// startHost starts the plugins of a directory; it does not wait for them.
func (i *instance) startHost(ctx context.Context, dir string) error {
	if dir == "" {
		i.host = nothing{}
		return nil
	}
	o := hostOptions(i.c)
	attributes, err := instanceAttributes(i.c)
	if err != nil {
		return err
	}
	o.Attributes = attributes
	o.Dir, o.Instance, o.Log, o.Memory = dir, i.id, i.log, i.memory
	o.Builtin = i.builtins.Door(builtin.Plugin, nil)
	o.FromPlugin = i.fromPlugin
	o.Budget = i.budget
	o.OnChange = i.changed
	o.Observer = i.metrics.Calls().Observer(metrics.Server)
	o.Calls = i.callLog()
	h, err := host.New(o)
	if err != nil {
		return configf("%v", err)
	}
	i.host = plugins{h}
	// The context of the start ends with it; what ends the host is stop, which
	// first lets calls finish.
	ctx = context.WithoutCancel(ctx)
	i.run("host", func() error {
		if err := h.Run(ctx); err != nil {
			// It fails at its start only, over directories and debug processes that it was given.
			return configf("%v", err)
		}
		return nil
	})
	return nil
}

// hostOptions reads from the configuration what concerns the host alone.
func hostOptions(c *config.Config) host.Options {
	return host.Options{
		Private:      filepath.Join(c.PrivateDir(), "host"),
		AllowUnsafe:  c.Bool("host.allow_unsafe"),
		Verify:       host.Verify(c.String("host.verify")),
		Reattach:     c.Map("host.reattach"),
		Sandbox:      host.Sandbox(c.String("host.sandbox")),
		StartTimeout: c.Duration("host.start_timeout"),
		ReadyTimeout: c.Duration("host.ready_timeout"),
		DrainTimeout: max(c.Duration("drain.timeout"), time.Nanosecond), // 0 would be the host's own default
		Concurrency:  c.Int("host.concurrency"),

		ReleaseClaims: c.String("drain.claims") == "release",

		MaxMessage:   c.Size("cluster.max_payload"),
		LinkMemory:   c.Size("cluster.link_memory"),
		ScanInterval: c.Duration("host.rescan"),
		LogSize:      c.Size("host.log_size"),
		LogFiles:     c.Int("host.log_files"),
	}
}

// instanceAttributes reads what all elements are told. The error names the key, and no
// value.
func instanceAttributes(c *config.Config) (host.Attributes, error) {
	all := host.NewAttributes(host.FromInstance, false, c.Map("host.attributes"))
	if path := c.String("host.attributes_file"); path != "" {
		secrets, err := host.ReadAttributes(path)
		if err != nil {
			return nil, configf("host.attributes_file: %v", err)
		}
		all = host.MergeAttributes(host.NewAttributes(host.FromInstance, true, secrets), all)
	}
	if err := all.Check(); err != nil {
		return nil, configf("host.attributes: %v", err)
	}
	return all, nil
}

// plugins is a host of plugins.
type plugins struct{ *host.Host }

func (p plugins) ready() <-chan struct{} { return p.Ready() }

func (p plugins) unready() []string {
	select {
	case <-p.Ready():
		return nil // once, and then for good: one element that crashes takes no other out of service
	default:
	}
	reasons := []string{"not every element has started yet"}
	for _, d := range p.Snapshot() {
		for _, e := range d.Elements {
			if e.State == host.Discovered || e.State == host.Starting {
				reasons = append(reasons, fmt.Sprintf("deployment %s: element %s is %s", d.Name, e.Name, e.State))
			}
		}
	}
	return reasons
}

func (p plugins) take(from host.Origin, c router.Call, inv *frame.Invoke) *conduit.Error {
	return p.Take(from, c, inv)
}

func (p plugins) look(a address.Address, method string, units uint32) locator.Standing {
	return locator.Standing(p.Look(a, method, units))
}

func (p plugins) nodes(a address.Address) []string { return p.Nodes(a) }

func (p plugins) findService(deployment string, service address.ServiceKey) (address.Address, bool) {
	return p.FindService(deployment, service)
}

func (p plugins) inFlight() int64 { return p.InFlight() }

func (p plugins) logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error {
	return p.Logs(ctx, in, send)
}

func (p plugins) events(ctx context.Context, send func(*conduitv1.HostEvent) error) error {
	return p.Events(ctx, send)
}

func (p plugins) measures() (list []metrics.Measure) {
	for _, d := range p.Snapshot() {
		for _, e := range d.Elements {
			for _, m := range e.Measures {
				if m.Counter || m.Pid == e.Pid { // what a process measured goes with it
					list = append(list, metrics.Measure{Deployment: d.Name, Element: e.Name, Name: m.Name, Counter: m.Counter, Value: m.Value, Pid: m.Pid})
				}
			}
		}
	}
	return list
}

// notes says no more than names and kinds: whoever reaches the ops listener reads it.
func (p plugins) notes() (notes []string) {
	for _, d := range p.Snapshot() {
		for _, e := range d.Elements {
			if e.State == host.Refused || e.State == host.CrashLooping {
				notes = append(notes, fmt.Sprintf("given up: deployment %s: element %s is %s (%s); why: conduit-host ls elements -o json", d.Name, cmp.Or(e.Name, "(not yet known)"), e.State, cmp.Or(e.Kind, "failed")))
			}
		}
	}
	return notes
}

func (p plugins) setAttributes(a host.Attributes) error { return p.SetAttributes(a) }
func (p plugins) drainTimeout() time.Duration           { return p.DrainTimeout() }

func (p plugins) stop(ctx context.Context) { _ = p.Stop(ctx) }

// nothing hosts no deployments.
type nothing struct{}

func (nothing) take(host.Origin, router.Call, *frame.Invoke) *conduit.Error { return notHosted() }

func (nothing) look(address.Address, string, uint32) locator.Standing { return locator.Standing{} }

func (nothing) nodes(address.Address) []string { return nil }

func (nothing) findService(string, address.ServiceKey) (address.Address, bool) {
	return address.Address{}, false
}

func (nothing) inFlight() int64 { return 0 }

func notHosted() *conduit.Error {
	return conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "this instance hosts no deployments")
}

func (nothing) ready() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (nothing) logs(context.Context, *conduitv1.LogsRequest, func(*conduitv1.LogRecord) error) error {
	return notHosted()
}

func (nothing) events(ctx context.Context, _ func(*conduitv1.HostEvent) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (nothing) measures() []metrics.Measure { return nil }

func (nothing) unready() []string { return nil }

func (nothing) notes() []string { return nil }

func (nothing) setAttributes(host.Attributes) error { return nil }
func (nothing) drainTimeout() time.Duration         { return 0 }

func (nothing) stop(context.Context) {}
