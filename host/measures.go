package host

import (
	"math"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What an element may count and measure. What is more, or named otherwise, is left out:
// whoever writes an element may not grow what a scrape returns without end.
const (
	maxMeasures    = 32
	maxMeasureName = 64 // bytes
)

// measuresOf takes over what a process tells, each name once.
func measuresOf(list []*conduitv1.Metric, pid int) (all []Measure) {
	seen := map[string]bool{}
	for _, m := range list {
		name, counter := m.GetName(), m.GetKind() == conduitv1.Metric_KIND_COUNTER
		switch {
		case len(all) == maxMeasures:
			return all
		case seen[name] || !isMeasureName(name):
		case !counter && m.GetKind() != conduitv1.Metric_KIND_GAUGE:
		case counter && (!(m.GetValue() >= 0) || math.IsInf(m.GetValue(), 0)):
		default:
			seen[name] = true
			all = append(all, Measure{Name: name, Counter: counter, Value: m.GetValue(), Pid: pid})
		}
	}
	return all
}

func isMeasureName(s string) bool {
	if s == "" || len(s) > maxMeasureName || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return true
}
