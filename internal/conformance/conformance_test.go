package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/conformance"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/pluginapi"
	service "github.com/elemental-conduit/conduit/pluginapi/conformance"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The test binary is the plugin, when it is run by a name that begins so; what follows
// is its fault.
const fixturePrefix = "plugin-"

func TestMain(m *testing.M) {
	if fault, ok := strings.CutPrefix(filepath.Base(os.Args[0]), fixturePrefix); ok {
		// Under the race detector each exit takes a second unless this says otherwise.
		if self, err := os.Executable(); err == nil && os.Getenv("GORACE") == "" {
			_ = syscall.Exec(self, os.Args, append(os.Environ(), "GORACE=atexit_sleep_ms=0")) //nolint:gosec // itself
		}
		fixture(fault)
	}
	goleak.VerifyTestMain(m)
}

// plugin gives the path of a plugin that has a fault, or none.
func plugin(t *testing.T, fault string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), fixturePrefix+fault)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSoundPluginPasses(t *testing.T) {
	t.Parallel()
	path := plugin(t, "sound")
	for _, c := range conformance.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := c.Run(t.Context(), conformance.Options{Path: path, Log: func(line string) { t.Log(line) }}); err != nil {
				t.Errorf("%s: %v", c.Says, err)
			}
		})
	}
}

// TestFaultsAreFound: each check fails on a plugin that has the fault of its name.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range conformance.Checks() {
		switch c.Name {
		case "noise", "token", "garbage", "future", "crowd":
			continue // it takes another SDK to get these wrong
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			// How long a fault is waited for that shows only by nothing happening.
			patience := conformance.Patience
			switch c.Name {
			case "health", "leave", "cancel", "deadline", "parallel", "large":
				patience = 3 * time.Second
			}
			err := c.Run(t.Context(), conformance.Options{Path: plugin(t, c.Name), Patience: patience})
			if err == nil {
				t.Errorf("a plugin that does not hold %q passes", c.Says)
			}
			t.Log(err)
		})
	}
}

func TestMissingService(t *testing.T) {
	t.Parallel()
	path := plugin(t, "bare")
	for _, c := range conformance.Checks() {
		if !c.Service && c.Name != "unknown" {
			continue // the others ask for no service, either
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			err := c.Run(t.Context(), conformance.Options{Path: path})
			if c.Service != errors.Is(err, conformance.ErrNoService) || !c.Service && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNoProgram(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "note")
	if err := os.WriteFile(note, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, note, filepath.Join(dir, "nothing")} {
		if err := conformance.Checks()[0].Run(t.Context(), conformance.Options{Path: path}); err == nil {
			t.Errorf("%s passes", path)
		}
	}
}

// fixture is a plugin with a fault.
func fixture(fault string) {
	e := pluginapi.Element{Name: "fixture", Version: "1", Services: []*pluginapi.Service{faulty(fault)}}
	switch fault {
	case "sound":
		e.Services = []*pluginapi.Service{service.Service()}
	case "bare":
		e.Services = nil
	case "describe":
		if !pluginlink.Launched() {
			fmt.Println("I am a plugin")
			os.Exit(0)
		}
	case "by-hand":
		if !pluginlink.Launched() && len(os.Args) == 1 {
			fmt.Println("I am a plugin")
			os.Exit(0)
		}
	case "handshake":
		e.Version = strconv.FormatBool(pluginlink.Launched())
	case "health":
		e.Health = func(context.Context) pluginapi.Health { return pluginapi.Unhealthy("always") }
	case "stop":
		e.Stop = func(context.Context) error { return errors.New("not now") }
	case "sigterm":
		e.Stop = func(context.Context) error { os.Exit(3); return nil }
	case "drain":
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		go func() { <-term; syscall.Exit(0) }() // os.Exit takes a second under the race detector
	case "stop-busy":
		e.Stop = func(context.Context) error { return errors.New("calls are under way") }
	case "unknown":
		p, err := pluginapi.Serving(e, slog.Default())
		if err == nil && pluginlink.Launched() {
			err = pluginlink.Serve(wrongRefusals{p})
		}
		if err != nil {
			panic(err)
		}
	}
	pluginapi.Main(e)
}

// wrongRefusals refuses all calls, and as nobody should.
type wrongRefusals struct{ pluginlink.Plugin }

func (wrongRefusals) Handler() link.Handler { return wrongRefusals{} }

func (wrongRefusals) Handle(in *link.Incoming) {
	in.Refuse(conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "KeyError"))
}

func (w wrongRefusals) Describe() *conduitv1.Description { return w.Plugin.Describe() }

type none = struct{}

// faulty is the service, with every method wrong whose check is of the fault's name.
func faulty(fault string) *pluginapi.Service {
	s := pluginapi.NewService(conformance.ServiceName)
	remote := pluginapi.Remote()
	var mu sync.Mutex
	running := 0
	change := func(n int) {
		mu.Lock()
		running += n
		mu.Unlock()
	}
	var one sync.Mutex
	pluginapi.Handle(s, "Running", func(context.Context, none) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return running, nil
	}, remote)
	pluginapi.Handle(s, "Echo", func(_ context.Context, in []byte) ([]byte, error) {
		switch {
		case fault == "echo" && len(in) == 0:
			return []byte("empty"), nil
		case fault == "large":
			return in[:len(in)/2], nil
		}
		return in, nil
	}, remote)
	pluginapi.Handle(s, "Big", func(_ context.Context, n int) ([]byte, error) { return make([]byte, n/2), nil }, remote)
	pluginapi.Handle(s, "Hidden", func(context.Context, none) (none, error) { return none{}, nil }, remote)
	pluginapi.Handle(s, "Fail", func(context.Context, any) (none, error) { return none{}, errors.New("the shop is closed") }, remote)
	pluginapi.Handle(s, "Crash", func(context.Context, none) (none, error) { os.Exit(2); return none{}, nil }, remote)
	pluginapi.HandleStream(s, "Count", func(ctx context.Context, n int, send pluginapi.Sender[int]) error {
		change(1)
		for i := range n {
			if err := send(i - i%2); err != nil {
				break
			}
		}
		if fault != "leave" {
			change(-1)
		}
		return ctx.Err()
	}, remote)
	pluginapi.HandleUpload(s, "Upload", func(context.Context, pluginapi.Receiver[[]byte]) (map[string]int, error) {
		return map[string]int{"items": 1}, nil
	}, remote)
	pluginapi.Handle(s, "Sleep", func(ctx context.Context, in struct{ MS int64 }) (none, error) {
		if fault == "parallel" {
			one.Lock()
			defer one.Unlock()
		}
		change(1)
		defer change(-1)
		if fault == "cancel" || fault == "deadline" {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(in.MS) * time.Millisecond):
		}
		return none{}, ctx.Err()
	}, remote)
	pluginapi.Handle(s, "Log", func(_ context.Context, in struct{ Message string }) (none, error) {
		_, err := fmt.Fprintln(os.Stderr, "level=warn msg="+in.Message)
		return none{}, err
	}, remote)
	return s
}
