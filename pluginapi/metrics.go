package pluginapi

import (
	"fmt"
	"math"
	"sync/atomic"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// maxMetrics bounds an element's metrics, and maxMetricName a name, in bytes.
const (
	maxMetrics    = 32
	maxMetricName = 64
)

// Metric is a *Counter or a *Gauge. Those of [Element.Metrics] are on /metrics of the
// host, as of the last look at the element's health, which is every few seconds.
type Metric interface {
	metric() *conduitv1.Metric
}

// Counter counts what only grows, such as orders. It may be used concurrently. The zero
// Counter has no name; make one with [NewCounter].
type Counter struct {
	name  string
	value cell
}

// NewCounter makes a counter that stands at zero. Its name is of lower-case letters,
// digits and "_", at most 64 bytes, and begins with a letter; a mistake is reported by Main.
func NewCounter(name string) *Counter { return &Counter{name: name} }

// Inc adds one.
func (c *Counter) Inc() { c.value.add(1) }

// Add adds n. What is below zero, infinite or no number is left out: a counter never falls.
func (c *Counter) Add(n float64) {
	if n > 0 && !math.IsInf(n, 0) {
		c.value.add(n)
	}
}

func (c *Counter) metric() *conduitv1.Metric {
	return &conduitv1.Metric{Name: c.name, Kind: conduitv1.Metric_KIND_COUNTER, Value: c.value.load()}
}

// Gauge measures what rises and falls, such as the length of a queue. It may be used
// concurrently. The zero Gauge has no name; make one with [NewGauge].
type Gauge struct {
	name  string
	value cell
}

// NewGauge makes a gauge that stands at zero. For its name see [NewCounter].
func NewGauge(name string) *Gauge { return &Gauge{name: name} }

// Set sets the gauge.
func (g *Gauge) Set(v float64) { g.value.bits.Store(math.Float64bits(v)) }

// Add adds n, which may be below zero.
func (g *Gauge) Add(n float64) { g.value.add(n) }

func (g *Gauge) metric() *conduitv1.Metric {
	return &conduitv1.Metric{Name: g.name, Kind: conduitv1.Metric_KIND_GAUGE, Value: g.value.load()}
}

// cell is a number that many may change.
type cell struct{ bits atomic.Uint64 }

func (c *cell) load() float64 { return math.Float64frombits(c.bits.Load()) }

func (c *cell) add(n float64) {
	for {
		old := c.bits.Load()
		if c.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+n)) {
			return
		}
	}
}

// checkMetrics returns the mistakes in an element's metrics.
func checkMetrics(list []Metric) (mistakes []string) {
	if len(list) > maxMetrics {
		mistakes = append(mistakes, fmt.Sprintf("the element has %d metrics, more than %d", len(list), maxMetrics))
	}
	seen := map[string]bool{}
	for k, m := range list {
		switch m := m.(type) {
		case *Counter:
			if m == nil {
				mistakes = append(mistakes, fmt.Sprintf("Metrics[%d] is nil", k))
				continue
			}
		case *Gauge:
			if m == nil {
				mistakes = append(mistakes, fmt.Sprintf("Metrics[%d] is nil", k))
				continue
			}
		default:
			mistakes = append(mistakes, fmt.Sprintf("Metrics[%d] is neither a *Counter nor a *Gauge", k))
			continue
		}
		name := m.metric().GetName()
		if !metricName(name) {
			mistakes = append(mistakes, fmt.Sprintf("the metric %q is not named by lower-case letters, digits and '_', with a letter first and at most %d bytes", name, maxMetricName))
		}
		if seen[name] {
			mistakes = append(mistakes, fmt.Sprintf("the metric %q is there twice", name))
		}
		seen[name] = true
	}
	return mistakes
}

func metricName(s string) bool {
	if s == "" || len(s) > maxMetricName || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return true
}
