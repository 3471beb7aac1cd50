package metrics

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/elemental-conduit/conduit"
)

// everything returns metrics that have something to show under every name.
func everything() *Metrics {
	m := New(Options{
		Auth:     func() AuthChecks { return AuthChecks{} },
		Version:  "v1.2.3",
		Links:    func() []Link { return []Link{{ID: 1, Peer: "worker-1", RTT: time.Millisecond}} },
		Peers:    func() []Peer { return []Peer{{Name: "worker-1", Alive: true, Units: 1}} },
		Budget:   func() Budget { return Budget{Units: 1} },
		Elements: func() []Element { return []Element{{Deployment: "d", Name: "e", State: "ready", Pid: 1}} },
		Measures: func() []Measure {
			return []Measure{{Deployment: "d", Element: "e", Name: "orders", Counter: true}, {Deployment: "d", Element: "e", Name: "queue"}}
		},
		usage: func(int) (usage, bool) { return usage{started: 1, cpu: 1}, true },
	})
	m.LookedUp("dns", nil)
	m.Dialled("worker-1", errors.New("refused"))
	c := m.Calls().Method(Server, "d", "s", "m")
	c.End(c.Begin(), 0, conduit.Executed)
	return m
}

// TestDocumentation holds docs/metrics.md to what is shown: every name, its type
// and its labels, and no others.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		kind   string
		labels []string
	}
	documented := map[string]row{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(conduit_\\w+)` \\| (\\w+) \\| ([^|]*) \\| [^|]+ \\|$").FindAllSubmatch(text, -1) {
		r := row{kind: string(m[2])}
		for _, l := range regexp.MustCompile("`(\\w+)`").FindAllSubmatch(m[3], -1) {
			r.labels = append(r.labels, string(l[1]))
		}
		slices.Sort(r.labels)
		if _, twice := documented[string(m[1])]; twice {
			t.Errorf("docs/metrics.md lists %s twice", m[1])
		}
		documented[string(m[1])] = r
	}

	families, err := everything().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name := f.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue // the page names them as a whole
		}
		r, ok := documented[name]
		delete(documented, name)
		if !ok {
			t.Errorf("docs/metrics.md does not list %s", name)
			continue
		}
		if kind := strings.ToLower(f.GetType().String()); kind != r.kind {
			t.Errorf("%s is a %s, and a %s in docs/metrics.md", name, kind, r.kind)
		}
		if len(f.GetHelp()) < 10 || !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("%s is not explained: %q", name, f.GetHelp())
		}
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			if !slices.Equal(labels, r.labels) {
				t.Errorf("%s has the labels %v, and %v in docs/metrics.md", name, labels, r.labels)
			}
		}
	}
	for name := range documented {
		t.Errorf("docs/metrics.md lists %s, which nothing shows", name)
	}
	for _, others := range []string{"`go_*`", "`process_*`"} {
		if !strings.Contains(string(text), others) {
			t.Errorf("docs/metrics.md does not mention %s", others)
		}
	}

	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "conduit_") {
			t.Errorf("promlint: %s: %s", p.Metric, p.Text)
		}
	}
}
