package pluginlink

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit/internal/sandbox"
)

// shim is a host's Confinement.
type shim struct{ *sandbox.Shim }

func (s shim) Started(ctx context.Context, pid int) error {
	_, err := s.Shim.Started(ctx, pid)
	return err
}

// confineAsFarAsPossible puts what is launched into a sandbox, as a host does.
func confineAsFarAsPossible(cfg *LaunchConfig) {
	setDefaults(cfg)
	cfg.Confine = func(file *os.File, socketDir string) (Confinement, error) {
		s, err := sandbox.New(sandbox.Spec{
			Mode: sandbox.BestEffort, Kernel: sandbox.Available(), Write: []string{socketDir, cfg.Dir}, Limits: sandbox.Limits{Files: cfg.NoFile},
		}, file)
		return shim{s}, err
	}
}

// TestSandboxed: a sandbox changes nothing of how a plugin lives, fails and ends. A host
// that is killed takes it along though it has become the plugin only after it was started.
func TestSandboxed(t *testing.T) {
	inSandbox = confineAsFarAsPossible
	defer func() { inSandbox = nil }()
	for name, test := range map[string]func(*testing.T){
		"WholeLife": TestWholeLife, "Environment": TestEnvironment, "InheritedDescriptors": TestInheritedDescriptors, "OpenedFileRuns": TestOpenedFileRuns,
		"StartFailures": TestStartFailures, "StartFiles": TestStartFiles, "StartGivenUp": TestStartGivenUp, "StartGivenUpAtAnyMoment": TestStartGivenUpAtAnyMoment,
		"Crash": TestCrash, "HostDies": TestHostDies,
	} {
		t.Run(name, test)
	}
}

// failing is a Confinement that fails at one of its steps.
type failing struct {
	apply  func(*exec.Cmd)
	start  error
	closed int
}

func (f *failing) Apply(cmd *exec.Cmd) {
	if f.apply != nil {
		f.apply(cmd)
	}
}

func (f *failing) Started(context.Context, int) error { return f.start }

func (f *failing) Close() { f.closed++ }

// TestConfinementFails: at whichever step, the error is the launch's, and what was held is
// let go of once.
func TestConfinementFails(t *testing.T) {
	refused := &StartError{Kind: KindSandbox, Message: "this kernel is too old"}
	for _, c := range []struct {
		what    string
		f       failing
		prepare error
		kind    StartKind
		closed  int
	}{
		{"it cannot be prepared", failing{}, refused, KindSandbox, 0},
		{"the process does not start", failing{apply: func(cmd *exec.Cmd) { cmd.Path = "/nowhere" }}, nil, KindNotFound, 1},
		{"the process says so", failing{start: refused}, nil, KindSandbox, 1},
		{"exec says so", failing{start: syscall.EACCES}, nil, KindNotExecutable, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, _, err := launch(testContext(t), t, "hang", func(cfg *LaunchConfig) {
				cfg.Confine = func(*os.File, string) (Confinement, error) {
					if c.prepare != nil {
						return nil, c.prepare
					}
					return &c.f, nil
				}
			})
			e, ok := errors.AsType[*StartError](err)
			if !ok || e.Kind != c.kind || c.f.closed != c.closed {
				t.Errorf("%v; it was closed %d times", err, c.f.closed)
			}
		})
	}
}
