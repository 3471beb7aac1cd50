package pluginlink

import (
	"errors"
	"slices"
	"testing"
)

// TestConfine: what a Go runtime can be told reaches its environment, and a fence that is
// required and not there keeps the process from starting.
func TestConfine(t *testing.T) {
	for _, c := range []struct {
		c    Confine
		want []string
	}{
		{Confine{}, nil},
		{Confine{CPUs: 0.5}, []string{"GOMAXPROCS=1"}},
		{Confine{CPUs: 2, MemorySoft: 1 << 20}, []string{"GOMAXPROCS=2", "GOMEMLIMIT=1048576"}},
		{Confine{CPUs: 2.01}, []string{"GOMAXPROCS=3"}},
	} {
		if got := c.c.env(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.c, got, c.want)
		}
	}
	_, err := Launch(t.Context(), LaunchConfig{Path: "/none", Spawner: new(Spawner), SocketDir: "/tmp", Confine: Confine{Sandbox: "required"}})
	if e, ok := errors.AsType[*StartError](err); !ok || e.Kind != KindConfig {
		t.Errorf("got %v", err)
	}
	if list := (&Confine{Sandbox: "best-effort", Core: 1}).Unapplied(); len(list) != 2 {
		t.Errorf("got %q", list)
	}
	if list := (&Confine{Sandbox: "off", Files: 100}).Unapplied(); len(list) != 0 {
		t.Errorf("got %q", list)
	}
	cfg := LaunchConfig{Confine: Confine{Files: 100}}
	if setDefaults(&cfg); cfg.NoFile != 100 {
		t.Errorf("%d files", cfg.NoFile)
	}
}
