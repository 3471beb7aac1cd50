package pluginapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// serving makes a server whose log goes to the buffer.
func serving(e Element) (*server, *bytes.Buffer) {
	var log bytes.Buffer
	return newServer(e, slog.New(newLogHandler(&log, slog.LevelDebug, e.Name))), &log
}

func TestLifeOfAnElement(t *testing.T) {
	ctx := t.Context()
	var order []string
	s, _ := serving(Element{
		Name: "e",
		Configure: func(_ context.Context, c Configuration) ([]string, error) {
			order = append(order, "configure "+c.Deployment+" "+c.Attributes["k"])
			c.Attributes["k"] = "changed" // its own copy
			return []string{"careful"}, nil
		},
		Start: func(_ context.Context, h Host) error {
			order = append(order, "start "+h.Attribute("k")+" "+h.DataDir())
			return nil
		},
		Health: func(context.Context) Health { return Degraded("at %d", 1) },
		Stop:   func(context.Context) error { order = append(order, "stop"); return nil },
	})
	if err := s.Stop(ctx); err != nil {
		t.Errorf("Stop before Start: %v", err)
	}
	in := &conduitv1.ConfigureRequest{Deployment: "d", Attributes: map[string]string{"k": "v"}, DataDir: "/data"}
	out, err := s.Configure(ctx, in)
	if err != nil || !slices.Equal(out.GetWarnings(), []string{"careful"}) {
		t.Fatal(out, err)
	}
	if _, err := s.Configure(ctx, in); err == nil {
		t.Error("a second Configure is taken")
	}
	if h := s.Health(ctx); h.GetState() != conduitv1.HealthResponse_STATE_DEGRADED || h.GetText() != "at 1" {
		t.Errorf("health is %v", h)
	}
	for range 2 {
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"configure d v", "start v /data", "stop"}; !slices.Equal(order, want) {
		t.Errorf("it went %q, want %q", order, want)
	}
}

func TestElementWithoutFuncs(t *testing.T) {
	s, _ := serving(Element{Name: "e"})
	if _, err := s.Configure(t.Context(), &conduitv1.ConfigureRequest{}); err != nil {
		t.Error(err)
	}
	if h := s.Health(t.Context()); h.GetState() != conduitv1.HealthResponse_STATE_HEALTHY {
		t.Errorf("health is %v", h)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFailingFuncs(t *testing.T) {
	ctx := t.Context()
	cause := errors.New("the port is taken")
	s, _ := serving(Element{
		Name:  "e",
		Start: func(context.Context, Host) error { return cause },
		Stop:  func(context.Context) error { t.Error("stopped, though never started"); return nil },
	})
	if _, err := s.Configure(ctx, &conduitv1.ConfigureRequest{}); !errors.Is(err, cause) || !strings.Contains(err.Error(), "Start") {
		t.Errorf("Start fails with %v", err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}

	s, log := serving(Element{
		Name:      "e",
		Configure: func(context.Context, Configuration) ([]string, error) { panic("one") },
		Health:    func(context.Context) Health { panic("two") },
	})
	if _, err := s.Configure(ctx, &conduitv1.ConfigureRequest{}); err == nil || !strings.Contains(err.Error(), "one") {
		t.Errorf("Configure that panics: %v", err)
	}
	if h := s.Health(ctx); h.GetState() != conduitv1.HealthResponse_STATE_UNHEALTHY {
		t.Errorf("Health that panics: %v", h)
	}
	if !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("no stack on the log:\n%s", log)
	}
}

func TestZeroHost(t *testing.T) {
	h := HostFrom(t.Context())
	if h.Attributes() != nil || h.Attribute("k") != "" || h.DataDir() != "" {
		t.Error("the zero Host knows something")
	}
	h.Logger().Info("goes nowhere")
	if _, err := h.Claim(t.Context(), 1); !errors.Is(err, &Error{Code: FailedPrecondition}) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := h.Subscribe(EventElementLoaded, func(Event) {}); !errors.Is(err, &Error{Code: FailedPrecondition}) {
		t.Errorf("Subscribe: %v", err)
	}
}
