package plugintest

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/pluginapi"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// patience is how long Start and the end of the test wait for an element.
const patience = 10 * time.Second

// Option changes what [Start], [StartBinary] and [Conformance] run.
type Option func(*settings)

type settings struct {
	deployment string
	attributes map[string]string
	sensitive  map[string]string
	dataDir    string
	units      int64
	beside     []besides
	generic    bool
}

type besides struct {
	deployment string
	element    pluginapi.Element
}

// Deployment names the deployment that the element is in; without it, it is the
// element's own name.
func Deployment(name string) Option { return func(s *settings) { s.deployment = name } }

// Attributes are the deployment's attributes. The defaults that the element declares
// hold below them.
func Attributes(attributes map[string]string) Option {
	return func(s *settings) { s.attributes = maps.Clone(attributes) }
}

// SensitiveAttributes are further ones, from a file that only the operator reads: their
// values must not be shown ([pluginapi.Host.IsSensitive]).
func SensitiveAttributes(attributes map[string]string) Option {
	return func(s *settings) { s.sensitive = maps.Clone(attributes) }
}

// DataDir is the element's data directory; without it, it is an empty one that
// goes with the test.
func DataDir(dir string) Option { return func(s *settings) { s.dataDir = dir } }

// Budget is the instance's total in units, for calls that cost some and for claims;
// without it, it is [budget.DefaultTotal].
func Budget(total int64) Option { return func(s *settings) { s.units = total } }

// Beside runs a further element, in a deployment of its own, for the first one to
// call.
func Beside(deployment string, e pluginapi.Element) Option {
	return func(s *settings) { s.beside = append(s.beside, besides{deployment, e}) }
}

// Start runs an element until the test ends, and gives a client of it that calls
// as user "test" of level [pluginapi.User]. It fails the test when the element
// has mistakes or does not start.
//
// When the test ends, after its own cleanups, the element is stopped. Calls that
// the test left under way, and handlers that run on though their call is over,
// fail the test.
func Start(tb testing.TB, e pluginapi.Element, opts ...Option) *Client {
	tb.Helper()
	c, _ := newClient(tb, opts)
	c.element = e.Name
	if c.deployment == "" {
		c.deployment = e.Name
	}
	s := c.settings
	if s.dataDir == "" {
		s.dataDir = tb.TempDir()
	}
	c.h.run(tb, c.deployment, e, s)
	c.open(tb)
	return c
}

// newClient makes the host of a test, with all that runs beside what it is about, and
// has it stopped at the end.
func newClient(tb testing.TB, opts []Option) (*Client, *testLog) {
	tb.Helper()
	s := settings{units: budget.DefaultTotal}
	for _, o := range opts {
		o(&s)
	}
	log := &testLog{tb: tb}
	h := &host{
		instance: address.RandomInstanceID(),
		budget:   budget.New(s.units),
		running:  map[uint64]*running{},
		log:      slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	c := &Client{h: h, settings: s, deployment: s.deployment}
	tb.Cleanup(func() {
		c.stop(tb)
		log.close()
	})
	// Others first, so that the element may find them when it starts.
	for _, b := range s.beside {
		h.run(tb, b.deployment, b.element, settings{dataDir: tb.TempDir()})
	}
	return c, log
}

// open opens the client's link.
func (c *Client) open(tb testing.TB) {
	tb.Helper()
	near, far := link.Pipe(pipeDepth)
	c.h.front = link.New(far, link.Options{Handler: frontDoor{c.h}, Op: "plugintest", Peer: link.Peer{Name: "client"}})
	c.link = link.New(near, link.Options{Dialer: true, Op: "plugintest", Peer: link.Peer{Name: c.h.instance.String()}})
	if err := c.link.Ready(tb.Context()); err != nil {
		tb.Fatalf("plugintest: the link to the host: %v", err)
	}
}

// Client calls the element that [Start] or [StartBinary] runs. All methods may be called
// concurrently.
type Client struct {
	h          *host
	settings   settings
	link       *link.Conn
	deployment string
	element    string
	as         conduit.AsWhom
}

// Service gives an Invoker for a service of the element: "Type" or "Type#name".
func (c *Client) Service(service string) conduit.Invoker {
	return c.At("*://" + c.deployment + "/" + c.element + "/" + service)
}

// At gives an Invoker for any address. A bad one surfaces at the call.
func (c *Client) At(addr string) conduit.Invoker {
	a, err := address.Parse(addr)
	if err != nil {
		return target{err: conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)}
	}
	return target{c: c, addr: a, route: link.NewRoute(a)}
}

// As gives a client that calls as another user.
func (c *Client) As(user string, level pluginapi.Level) *Client {
	other := *c
	other.as = conduit.AsWhom{Kind: conduit.AsVouched, Name: user, Level: level}
	return &other
}

// Budget returns what the instance's units are held by at this moment.
func (c *Client) Budget() budget.Snapshot { return c.h.budget.Snapshot() }

// Cordon says whether the instance gives no new units.
func (c *Client) Cordon(on bool) { c.h.budget.Cordon(on) }

// Description returns what the element says of itself.
func (c *Client) Description() *conduitv1.Description { return c.h.last().serving.Describe() }

// Health asks the element how it is.
func (c *Client) Health(ctx context.Context) *conduitv1.HealthResponse {
	return c.h.last().serving.Health(ctx)
}

// target is an Invoker for one address.
type target struct {
	c     *Client
	addr  address.Address
	route *link.Route
	err   *conduit.Error
}

// Address implements conduit.Target.
func (t target) Address() address.Address { return t.addr }

// Invoke implements conduit.Invoker.
func (t target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	if t.err != nil {
		return conduit.FailedExchange(t.err)
	}
	out := *in
	if out.As.Kind == conduit.AsUnset {
		out.As = t.c.as
	}
	return t.c.link.Invoke(ctx, t.route, &out)
}

// stop ends everything that Start began, and tells what was left.
func (c *Client) stop(tb testing.TB) {
	tb.Helper()
	if c.link != nil {
		if out, _ := c.link.Calls(); out > 0 {
			tb.Errorf("plugintest: %d calls are left: receive each to its end, leave its loop, or cancel it", out)
		}
		c.link.Close(link.CloseDone, "the test is over")
		await(tb, c.link)
	}
	c.h.stop(tb)
}

// await waits for the end of a link.
func await(tb testing.TB, conn *link.Conn) {
	tb.Helper()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-conn.Done():
	case <-t.C:
		tb.Errorf("plugintest: a link does not end; goroutines:\n%s", stacks())
	}
}

// stacks shows all goroutines.
func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}

// testLog writes into the test's log as long as there is one: a handler that does
// not end must not take the whole test binary down.
type testLog struct {
	mu   sync.Mutex
	tb   testing.TB
	over bool
}

// Write implements io.Writer; p is one record.
func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.tb.Logf("element: %s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

func (l *testLog) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
}
