package pluginapi

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// maxMessage is the size of the largest message that an element takes unless its
// host says otherwise.
const maxMessage = link.DefaultMaxMessage

// server is an element as its host sees it. All methods may be called
// concurrently.
type server struct {
	element Element
	host    *host
	mux     *mux

	// mu orders Configure and Stop, of which each does its work once.
	mu      sync.Mutex
	begun   bool
	started bool
}

var _ pluginlink.Plugin = (*server)(nil)

// Serving returns e as a host sees it: what [Main] serves and package plugintest
// runs in process. Authors have no need of it.
func Serving(e Element, log *slog.Logger) (pluginlink.Plugin, error) {
	if err := e.Check(); err != nil {
		return nil, err
	}
	return newServer(e, log), nil
}

// Describe says what the element offers.
func (s *server) Describe() *conduitv1.Description { return s.element.describe() }

// Handler answers the host's calls.
func (s *server) Handler() link.Handler { return s.mux }

// Linked takes the link over which the element calls.
func (s *server) Linked(c *link.Conn) {
	s.host.conn.Store(c)
	s.host.subscriptions.linked(c)
}

// Configure hands the deployment's configuration to the element and starts it.
func (s *server) Configure(ctx context.Context, in *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return nil, Errorf(FailedPrecondition, "the element is configured already; start another process for another configuration")
	}
	s.begun = true
	conf := Configuration{
		Deployment: in.GetDeployment(),
		Element:    in.GetElement(),
		Instance:   in.GetInstance(),
		Attributes: in.GetAttributes(),
		DataDir:    in.GetDataDir(),
		MaxMessage: int64(min(in.GetMaxMessage(), 1<<62)), //nolint:gosec // cut to size
		sensitive:  map[string]bool{},
	}
	for _, name := range in.GetSensitiveAttributes() {
		conf.sensitive[name] = true
	}
	s.host.conf.Store(&conf)

	out := &conduitv1.ConfigureResponse{}
	if fn := s.element.Configure; fn != nil {
		err := s.guard(ctx, "Configure", func() (err error) {
			given := conf
			given.Attributes = Host{s.host}.Attributes() // the element may change its own
			out.Warnings, err = fn(ctx, given)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if fn := s.element.Start; fn != nil {
		if err := s.guard(ctx, "Start", func() error { return fn(ctx, Host{s.host}) }); err != nil {
			return nil, err
		}
	}
	s.started = true
	return out, nil
}

// Health asks the element how it is.
func (s *server) Health(ctx context.Context) *conduitv1.HealthResponse {
	var h Health
	if fn := s.element.Health; fn != nil {
		err := s.guard(ctx, "Health", func() error { h = fn(ctx); return nil })
		if err != nil {
			h = Unhealthy("%v", err)
		}
	}
	state := conduitv1.HealthResponse_STATE_HEALTHY
	switch h.State {
	case StateHealthy:
	case StateDegraded:
		state = conduitv1.HealthResponse_STATE_DEGRADED
	default:
		state = conduitv1.HealthResponse_STATE_UNHEALTHY
	}
	r := &conduitv1.HealthResponse{State: state, Text: h.Text, Details: h.Details}
	for _, m := range s.element.Metrics {
		r.Metrics = append(r.Metrics, m.metric())
	}
	return r
}

// Stop lets the element flush, once.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	started := s.started
	s.started = false
	if fn := s.element.Stop; fn != nil && started {
		return s.guard(ctx, "Stop", func() error { return fn(ctx) })
	}
	return nil
}

// guard runs one of the element's funcs and makes an error of a panic.
func (s *server) guard(ctx context.Context, name string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.host.log.ErrorContext(ctx, "the element panicked",
				slog.String("func", name), slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
			err = conduit.Errorf(Internal, conduit.ReasonPanic, conduit.Executed, "the element's %s panicked: %v", name, p)
		}
	}()
	if err := fn(); err != nil {
		return fmt.Errorf("the element's %s: %w", name, err)
	}
	return nil
}
