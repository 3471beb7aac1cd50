package pluginlink

import (
	"slices"
	"testing"
)

// TestLimits: what a Go runtime can be told reaches its environment.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		l    Limits
		want []string
	}{
		{Limits{}, nil},
		{Limits{CPUs: 0.5}, []string{"GOMAXPROCS=1"}},
		{Limits{CPUs: 2, MemorySoft: 1 << 20}, []string{"GOMAXPROCS=2", "GOMEMLIMIT=1048576"}},
		{Limits{CPUs: 2.01}, []string{"GOMAXPROCS=3"}},
	} {
		if got := c.l.env(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.l, got, c.want)
		}
	}
	cfg := LaunchConfig{Limits: Limits{Files: 100}}
	if setDefaults(&cfg); cfg.NoFile != 100 {
		t.Errorf("%d files", cfg.NoFile)
	}
}
