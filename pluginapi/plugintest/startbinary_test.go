package plugintest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// The test binary is the plugin, when it is run by a name that begins so.
const fixturePrefix = "plugin-"

// fixture is what the test binary does as a plugin.
func fixture(kind string) {
	s := pluginapi.NewService("test.Fixture")
	pluginapi.Handle(s, "Where", func(ctx context.Context, _ none) (map[string]string, error) {
		h, c := pluginapi.HostFrom(ctx), pluginapi.CallerFrom(ctx)
		h.Logger().WarnContext(ctx, "asked where")
		return map[string]string{
			"pid": strconv.Itoa(os.Getpid()), "who": h.Attributes()["who"], "user": c.User, "level": c.Level.String(), "chain": strings.Join(c.Chain, " "), "data": h.DataDir(),
		}, nil
	}, pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous))
	pluginapi.Handle(s, "Claim", func(ctx context.Context, n uint32) (none, error) {
		_, err := pluginapi.HostFrom(ctx).Claim(ctx, n)
		return none{}, err
	}, pluginapi.Remote(), pluginapi.Units(3))
	pluginapi.Handle(s, "Ask", func(ctx context.Context, _ none) (string, error) {
		return conduit.Call[string](ctx, pluginapi.HostFrom(ctx).At("*://beside/beside/test.Beside"), "Chain", nil)
	}, pluginapi.Remote())
	pluginapi.Handle(s, "Exit", func(context.Context, none) (none, error) { os.Exit(3); return none{}, nil }, pluginapi.Remote())
	e := pluginapi.Element{Name: "fixture", Version: "1.2.3", Services: []*pluginapi.Service{s}}
	if kind == "dies" {
		_, _ = fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(1)
	}
	pluginapi.Main(e)
}

func binary(tb testing.TB, kind string) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), fixturePrefix+kind)
	if err := os.Symlink(self, path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// beside is an element that tells the chain of its caller.
func beside() pluginapi.Element {
	s := pluginapi.NewService("test.Beside")
	pluginapi.Handle(s, "Chain", func(ctx context.Context, _ none) (string, error) {
		c := pluginapi.CallerFrom(ctx)
		return c.User + " " + strings.Join(c.Chain, " "), nil
	}, pluginapi.Remote())
	return pluginapi.Element{Name: "beside", Services: []*pluginapi.Service{s}}
}

func TestStartBinary(t *testing.T) {
	data := t.TempDir()
	c := plugintest.StartBinary(t, binary(t, "plain"), plugintest.Deployment("here"), plugintest.Attributes(map[string]string{"who": "me"}),
		plugintest.DataDir(data), plugintest.Budget(10), plugintest.Beside("beside", beside()))
	got, err := conduit.Call[map[string]string](t.Context(), c.As("ada", pluginapi.Superuser).Service("test.Fixture"), "Where", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got["pid"] == strconv.Itoa(os.Getpid()) || got["who"] != "me" || got["user"] != "ada" || got["level"] != "superuser" || got["chain"] != "" || got["data"] != data {
		t.Errorf("it says %v", got)
	}
	if d := c.Description(); d.GetElement() != "fixture" || d.GetVersion() != "1.2.3" {
		t.Errorf("it describes itself as %v", d)
	}
	if h := c.Health(t.Context()); h.GetState().String() != "STATE_HEALTHY" {
		t.Errorf("it is %v", h)
	}
	// What it calls, in a call, is part of that call.
	if got, err := conduit.Call[string](t.Context(), c.Service("test.Fixture"), "Ask", nil); err != nil || got != "test here/fixture" {
		t.Errorf("the element beside it sees %q, %v", got, err)
	}
	if _, err := conduit.Call[none](t.Context(), c.Service("test.Fixture"), "Claim", 4); err != nil {
		t.Error(err)
	}
	if b := c.Budget(); b.Available != 6 {
		t.Errorf("with a claim of 4 of 10 units %d are available", b.Available)
	}
	if _, err := conduit.Call[none](t.Context(), c.Service("test.Fixture"), "Claim", 7); conduit.AsError(err, conduit.OutcomeUnknown).Reason != conduit.ReasonNoCapacity {
		t.Errorf("a claim of 7 beside one of 4 of 10 ends with %v", err)
	}
}

func TestBinariesThatFailFailTheTest(t *testing.T) {
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.StartBinary(tb, binary(t, "dies"))
	}), "no licence found")
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.StartBinary(tb, "/nothing/here")
	}), "does not exist")
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		c := plugintest.StartBinary(tb, binary(t, "plain"))
		_, _ = conduit.Call[none](tb.Context(), c.Service("test.Fixture"), "Exit", nil)
	}), "exited with status 3")
}

// TestGenericConformance: of a plugin that does not export the service of the checks.
func TestGenericConformance(t *testing.T) {
	plugintest.Conformance(t, binary(t, "plain"), plugintest.Generic())
}

// TestBuildAndConform does with plugins/echo, which exports the service, what an author's
// test does.
func TestBuildAndConform(t *testing.T) {
	path := plugintest.Build(t, "../../plugins/echo")
	if filepath.Base(path) != "echo" {
		t.Errorf("it is at %s", path)
	}
	plugintest.Conformance(t, path)
	c := plugintest.StartBinary(t, path)
	if got, err := conduit.Call[string](t.Context(), c.Service("conduit.example.Echo"), "Upper", "hi"); err != nil || got != "HI" {
		t.Errorf("%q, %v", got, err)
	}
	wantFailure(t, watch(t, func(tb testing.TB) { tb.Helper(); plugintest.Build(tb, t.TempDir()) }), "go build")
}
