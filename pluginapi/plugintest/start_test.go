package plugintest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

func TestMain(m *testing.M) {
	if kind, ok := strings.CutPrefix(filepath.Base(os.Args[0]), fixturePrefix); ok {
		// Under the race detector each exit takes a second unless this says otherwise.
		if self, err := os.Executable(); err == nil && os.Getenv("GORACE") == "" {
			_ = syscall.Exec(self, os.Args, append(os.Environ(), "GORACE=atexit_sleep_ms=0")) //nolint:gosec // itself
		}
		fixture(kind)
	}
	goleak.VerifyTestMain(m)
}

// probe is a test that is watched: what fails it is kept.
type probe struct {
	testing.TB

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// watch runs a test and returns what failed it.
func watch(t *testing.T, test func(tb testing.TB)) []string {
	t.Helper()
	p := &probe{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf ends its goroutine
		defer close(done)
		defer func() {
			for len(p.cleanups) > 0 {
				last := p.cleanups[len(p.cleanups)-1]
				p.cleanups = p.cleanups[:len(p.cleanups)-1]
				last()
			}
		}()
		test(p)
	}()
	<-done
	return p.failures
}

func (p *probe) Cleanup(fn func()) { p.cleanups = append(p.cleanups, fn) }

func (p *probe) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

func (p *probe) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

type none = struct{}

// waiter has a method that waits for its caller to leave, and one that does not
// care.
func waiter(release <-chan struct{}) pluginapi.Element {
	s := pluginapi.NewService("test.Waiter")
	pluginapi.Handle(s, "Wait", func(ctx context.Context, _ none) (none, error) {
		<-ctx.Done()
		return none{}, ctx.Err()
	}, pluginapi.Remote())
	pluginapi.Handle(s, "Stubborn", func(context.Context, none) (none, error) { <-release; return none{}, nil }, pluginapi.Remote())
	return pluginapi.Element{Name: "waiter", Services: []*pluginapi.Service{s}}
}

func wantFailure(t *testing.T, failures []string, part string) {
	t.Helper()
	if len(failures) != 1 || !strings.Contains(failures[0], part) {
		t.Errorf("the test failed with %q, want one failure with %q in it", failures, part)
	}
}

func TestCleanTestPasses(t *testing.T) {
	if failures := watch(t, func(tb testing.TB) {
		tb.Helper()
		c := plugintest.Start(tb, waiter(nil))
		ctx, cancel := context.WithCancel(tb.Context())
		x := c.Service("test.Waiter").Invoke(ctx, &conduit.Invocation{Method: "Wait", Last: true})
		cancel()
		if _, err := x.Recv(ctx); !errors.Is(err, context.Canceled) {
			tb.Errorf("the call ends with %v", err)
		}
	}); failures != nil {
		t.Errorf("it failed with %q", failures)
	}
}

func TestCallsLeftFailTheTest(t *testing.T) {
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		c := plugintest.Start(tb, waiter(nil))
		c.Service("test.Waiter").Invoke(tb.Context(), &conduit.Invocation{Method: "Wait", Last: true})
	}), "1 calls are left")
}

func TestStubbornHandlersFailTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		wantFailure(t, watch(t, func(tb testing.TB) {
			tb.Helper()
			c := plugintest.Start(tb, waiter(release))
			x := c.Service("test.Waiter").Invoke(tb.Context(), &conduit.Invocation{Method: "Stubborn", Last: true})
			synctest.Wait()
			x.Cancel(nil)
		}), "handlers run on")
		close(release)
	})
}

func TestElementsThatCannotStartFailTheTest(t *testing.T) {
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.Start(tb, pluginapi.Element{})
	}), "no name")
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.Start(tb, pluginapi.Element{
			Name:  "e",
			Start: func(context.Context, pluginapi.Host) error { return errors.New("the port is taken") },
		})
	}), "the port is taken")
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.Start(tb, pluginapi.Element{Name: "e"}, plugintest.Deployment("no/name"))
	}), "plugintest.Deployment")
	wantFailure(t, watch(t, func(tb testing.TB) {
		tb.Helper()
		plugintest.Start(tb, pluginapi.Element{Name: "e", Stop: func(context.Context) error { return errors.New("stuck") }})
	}), "stuck")
}

func TestAddresses(t *testing.T) {
	c := plugintest.Start(t, waiter(nil), plugintest.Deployment("here"), plugintest.Beside("there", waiter(nil)))
	for addr, reason := range map[string]string{
		"*://here/waiter/test.Waiter":                                    conduit.ReasonMethodNotFound,
		"*://there/waiter/test.Waiter":                                   conduit.ReasonMethodNotFound,
		"*://*/waiter[1]/test.Waiter":                                    conduit.ReasonMethodNotFound,
		"*://*/waiter[2]/test.Waiter":                                    conduit.ReasonElementNotFound,
		"*://here/waiter/test.Other":                                     conduit.ReasonServiceNotFound,
		"*://here/other/test.Waiter":                                     conduit.ReasonElementNotFound,
		"*://nowhere/waiter/test.Waiter":                                 conduit.ReasonDeploymentNotFound,
		"010000000000004000800000000000000000://here/waiter/test.Waiter": conduit.ReasonInstanceNotFound,
		"here/waiter/test.Waiter":                                        conduit.ReasonBadAddress,
	} {
		_, err := conduit.Call[none](t.Context(), c.At(addr), "Missing", nil)
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != reason {
			t.Errorf("%s: %v, want %s", addr, err, reason)
		}
	}
}
