package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// healthPause is between two looks at an element that is coming up.
const healthPause = 20 * time.Millisecond

// LaunchOptions say how to start a plugin for a test. Only Path must be set.
type LaunchOptions struct {
	// Path is the binary, absolute.
	Path string
	// Deployment is its deployment's name; empty = what its element calls itself.
	Deployment string
	// Attributes are handed to the element, over its defaults. Those named in Sensitive it
	// is told not to show, beside those that it declares so itself.
	Attributes map[string]string
	Sensitive  []string
	// DataDir is the element's data directory; empty = one that goes with the process.
	DataDir string
	// Instance is the host's InstanceID; zero = a random one.
	Instance address.InstanceID
	// Log takes the process's output; nil = nothing does.
	Log hclog.Logger
	// Carrier is pluginlink.LaunchConfig's.
	Carrier func(link.Carrier) link.Carrier
}

// Running is a plugin's process that has started and is healthy. It must be closed.
type Running struct {
	*pluginlink.Process

	// Description is what it said of itself.
	Description *conduitv1.Description
	// Warnings are what Configure warned of.
	Warnings []string
	// Attributes are what it was handed, its defaults included, and Sensitive those not to
	// be shown.
	Attributes map[string]string
	Sensitive  []string

	events  pluginlink.Feed // that nothing ever happens
	spawner *pluginlink.Spawner
	dir     string
}

// Launch brings a plugin up as a host does: exec, handshake, Describe, Configure,
// healthy. The link is left to the caller. ctx bounds all of it; on error nothing is
// left.
func Launch(ctx context.Context, o LaunchOptions) (_ *Running, err error) {
	// A directory with a short path, since sockets lie in it; testing's are too long.
	dir, err := os.MkdirTemp("", "cdt-")
	if err != nil {
		return nil, err
	}
	r := &Running{dir: dir, spawner: pluginlink.NewSpawner()}
	defer func() { //nolint:contextcheck // what was started is ended also when ctx is over
		if err != nil {
			err = errors.Join(err, r.Close(0))
		}
	}()
	for _, sub := range []string{"s", "work", "data"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	r.Process, err = pluginlink.Launch(ctx, pluginlink.LaunchConfig{
		Name: filepath.Base(o.Path), Path: o.Path, Dir: filepath.Join(dir, "work"), SocketDir: filepath.Join(dir, "s"),
		Spawner: r.spawner, Log: o.Log, Carrier: o.Carrier,
	})
	if err != nil {
		return nil, fmt.Errorf("it does not start: %w", err)
	}
	if r.Description, err = r.Describe(ctx); err != nil {
		return nil, err
	}
	if o.Deployment == "" {
		o.Deployment = r.Description.GetElement()
	}
	if o.DataDir == "" {
		o.DataDir = filepath.Join(dir, "data")
	}
	if o.Instance == (address.InstanceID{}) {
		o.Instance = address.RandomInstanceID()
	}
	r.Attributes, r.Sensitive = Attributes(r.Description, o.Attributes, o.Sensitive)
	answer, err := r.Configure(ctx, &conduitv1.ConfigureRequest{
		Deployment: o.Deployment, Element: r.Description.GetElement(), Attributes: r.Attributes, SensitiveAttributes: r.Sensitive,
		DataDir: o.DataDir, MaxMessage: link.DefaultMaxMessage, Instance: o.Instance.String(),
	})
	if err != nil {
		return nil, err
	}
	r.Warnings = answer.GetWarnings()
	return r, r.awaitHealthy(ctx)
}

// Attributes returns what an element is handed: its own defaults, and over them what is
// given; and the names of those that are not to be shown, in order.
func Attributes(d *conduitv1.Description, given map[string]string, secret []string) (values map[string]string, sensitive []string) {
	values = map[string]string{}
	for _, a := range d.GetAttributes() {
		if a.Default != nil {
			values[a.GetName()] = a.GetDefault()
		}
	}
	maps.Copy(values, given)
	for name := range values {
		declared := slices.ContainsFunc(d.GetAttributes(), func(a *conduitv1.AttributeDescription) bool { return a.GetName() == name && a.GetSensitive() })
		if declared || slices.Contains(secret, name) {
			sensitive = append(sensitive, name)
		}
	}
	slices.Sort(sensitive)
	return values, sensitive
}

// awaitHealthy waits for an element that needs its time: it is starting, not ill.
func (r *Running) awaitHealthy(ctx context.Context) error {
	for {
		h, err := r.Health(ctx)
		if err != nil {
			return err
		}
		if h.GetState() != conduitv1.HealthResponse_STATE_UNHEALTHY {
			return nil
		}
		select {
		case <-time.After(healthPause):
		case <-r.Exited():
			return fmt.Errorf("it %s while it was coming up", r.Exit())
		case <-ctx.Done():
			return fmt.Errorf("it is not healthy; it says: %s", h.GetText())
		}
	}
}

// Close ends the process, after grace by force, and removes what was made for it. The
// error says what was left. It is idempotent.
func (r *Running) Close(grace time.Duration) error {
	var err error
	if r.Process != nil {
		err = r.Kill(grace)
	}
	r.spawner.Close()
	return errors.Join(err, os.RemoveAll(r.dir))
}
