package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/manifest"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// settings are what the host does with an element: its options, but for what the
// deployment's manifest says otherwise. They take effect without another process, and never
// change once made.
type settings struct {
	Options
	stopFirst bool          // the old process goes before the new one comes
	level     conduit.Level // of the calls that the element makes as itself
}

// settingsOf lays what a manifest says over a host's options.
func settingsOf(o *Options, m *manifest.Manifest) *settings {
	s := &settings{Options: *o, stopFirst: m.Reload == manifest.StopFirst, level: m.RunAs.Level()}
	for _, d := range []struct {
		to  *time.Duration
		say time.Duration
	}{
		{&s.StartTimeout, m.Timeouts.Start},
		{&s.ReadyTimeout, m.Timeouts.Ready},
		{&s.HealthTimeout, m.Timeouts.Health},
		{&s.StopTimeout, m.Timeouts.Stop},
		{&s.RestartMin, m.Backoff.Min},
		{&s.RestartMax, m.Backoff.Max},
		{&s.StableAfter, m.Backoff.StableAfter},
	} {
		if d.say != 0 {
			*d.to = d.say
		}
	}
	if m.Drain.Timeout != nil {
		s.DrainTimeout = max(*m.Drain.Timeout, time.Nanosecond) // 0 would be a default elsewhere
	}
	if m.Drain.Claims != "" {
		s.ReleaseClaims = m.Drain.Claims == manifest.ClaimsRelease
	}
	if m.Backoff.CrashLoopAfter != 0 {
		s.CrashLoopAfter = m.Backoff.CrashLoopAfter
	}
	if m.Concurrency != 0 {
		s.Concurrency = m.Concurrency
	}
	// Where only one end is given, the other gives way.
	if m.Backoff.Max == 0 {
		s.RestartMax = max(s.RestartMax, s.RestartMin)
	} else {
		s.RestartMin = min(s.RestartMin, s.RestartMax)
	}
	return s
}

// given is what a process gets beside its binary. To change it takes another process.
type given struct {
	args    []string
	env     []string // NAME=value, sorted
	limits  pluginlink.Limits
	sandbox Sandbox // what the manifest asks for; empty = nothing
	named   string  // what the manifest calls the element; empty = nothing
	namedAt string  // where
}

// with returns a binary whose process is given g.
func (b *binary) with(g given) *binary {
	c := *b
	c.given = g
	if len(g.args) == 0 && len(g.env) == 0 && g.limits == (pluginlink.Limits{}) && g.sandbox == "" {
		return &c
	}
	// Of strings and numbers alone, so it cannot fail; maps are written in order. What the
	// manifest calls the element, and where, changes no process.
	text, _ := json.Marshal([]any{b.sum, g.args, g.env, g.limits, g.sandbox})
	sum := sha256.Sum256(text)
	c.key = hex.EncodeToString(sum[:])
	return &c
}

// givenBy returns what a manifest gives its elements; what is one element's own, ownOf adds.
func givenBy(m *manifest.Manifest) given {
	return given{sandbox: Sandbox(m.Sandbox), limits: pluginlink.Limits{
		CPUs: m.Limits.CPUs, MemorySoft: int64(m.Limits.MemorySoft), Files: uint64(m.Limits.Files), Core: int64(m.Limits.Core),
	}}
}

func (g given) ownOf(e *manifest.Element, at string) given {
	g.args, g.named, g.namedAt = e.Args, e.Name, at
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		g.env = append(g.env, name+"="+e.Env[name])
	}
	return g
}
