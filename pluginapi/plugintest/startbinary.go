package plugintest

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/conformance"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// binaryPatience is how long a process may take to start and be healthy, as a host's
// own patience is.
const binaryPatience = time.Minute

// killGrace is how long it has to leave by itself at the end.
const killGrace = 5 * time.Second

// Build builds the Go program in dir, a directory or a package's path as `go build`
// takes it, and returns the path of its binary, which goes with the test.
func Build(tb testing.TB, dir string) string {
	tb.Helper()
	name := "plugin"
	if abs, err := filepath.Abs(dir); err == nil {
		name = filepath.Base(abs)
	}
	path := filepath.Join(tb.TempDir(), name)
	if out, err := exec.CommandContext(tb.Context(), "go", "build", "-o", path, dir).CombinedOutput(); err != nil {
		tb.Fatalf("plugintest: go build %s: %v\n%s", dir, err, out)
	}
	return path
}

// StartBinary runs a plugin's binary until the test ends, and gives a client of it as
// [Start] does of an element: a process of its own, started as a host starts it, whose
// output is in the test's log. All options work that Start has. It fails the test when
// the binary does not start or is not healthy within a minute.
//
// When the test ends, the element is stopped and the process ended. What fails the test
// then with Start does so here; so does a process that has ended before.
//
// A process knows nothing of a testing/synctest bubble: use it outside of one.
func StartBinary(tb testing.TB, path string, opts ...Option) *Client {
	tb.Helper()
	c, log := newClient(tb, opts)
	s := c.settings
	abs, err := filepath.Abs(path)
	if err != nil {
		tb.Fatalf("plugintest: %s: %v", path, err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), binaryPatience)
	defer cancel()
	values, sensitive := s.given()
	r, err := conformance.Launch(ctx, conformance.LaunchOptions{
		Path: abs, Deployment: s.deployment, Attributes: values, Sensitive: sensitive, DataDir: s.dataDir, Instance: c.h.instance,
		Log: hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: log, DisableTime: true}),
	})
	if err != nil {
		tb.Fatalf("plugintest: %s: %v", path, err)
	}
	for _, w := range r.Warnings {
		tb.Logf("plugintest: element %s warns: %s", r.Description.GetElement(), w)
	}
	c.element = r.Description.GetElement()
	if c.deployment == "" {
		c.deployment = c.element
	}
	p := newPlugin(c.h, c.deployment, process{r})
	p.end = func() error { return r.Close(killGrace) }
	p.near, err = r.OpenLink(ctx, link.Options{
		Handler: p, Op: "plugin", Peer: link.Peer{Name: c.element}, LostReason: conduit.ReasonPluginLost,
	})
	if err != nil {
		tb.Errorf("plugintest: %s: %v", path, err)
		if err := r.Close(0); err != nil {
			tb.Errorf("plugintest: %s: %v", path, err)
		}
		tb.FailNow()
	}
	p.attributes = &conduitv1.AttributesResponse{Attributes: r.Attributes, Sensitive: r.Sensitive}
	c.h.add(p)
	c.h.loaded(c.deployment, r.Description)
	c.open(tb)
	return c
}

// process is an element in a process of its own.
type process struct{ r *conformance.Running }

// Describe implements serving.
func (p process) Describe() *conduitv1.Description { return p.r.Description }

// Health implements serving: a process that does not answer is not healthy.
func (p process) Health(ctx context.Context) *conduitv1.HealthResponse {
	h, err := p.r.Health(ctx)
	if err != nil {
		return &conduitv1.HealthResponse{State: conduitv1.HealthResponse_STATE_UNHEALTHY, Text: err.Error()}
	}
	return h
}

// Stop implements serving.
func (p process) Stop(ctx context.Context) error { return p.r.Stop(ctx) }
