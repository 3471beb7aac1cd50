package metrics

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// page is what a scrape has shown: values by name and labels, such as
// "conduit_link_open{peer=client}". A histogram is shown as its _count and _sum.
type page map[string]float64

func scrape(t *testing.T, m *Metrics) page {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p := page{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "conduit_") {
			continue
		}
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			at := ""
			if len(labels) > 0 {
				at = "{" + strings.Join(labels, ",") + "}"
			}
			if h := s.GetHistogram(); h != nil {
				p[f.GetName()+"_count"+at] = float64(h.GetSampleCount())
				p[f.GetName()+"_sum"+at] = h.GetSampleSum()
				continue
			}
			p[f.GetName()+at] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
		}
	}
	return p
}

// of returns the lines whose names begin with a prefix, in order.
func (p page) of(prefix string) []string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(p)) {
		if strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	return names
}

// want compares all values whose names begin with a prefix.
func (p page) want(t *testing.T, prefix string, want page) {
	t.Helper()
	got := page{}
	for _, n := range p.of(prefix) {
		got[n] = p[n]
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", prefix, got, want)
	}
}
