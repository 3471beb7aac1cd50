package pluginapi

import (
	"math"
	"strings"
	"sync"
	"testing"
)

func TestMetrics(t *testing.T) {
	c, g := NewCounter("orders"), NewGauge("queue_2")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				c.Inc()
				g.Add(1)
				g.Add(-1)
			}
		})
	}
	wg.Wait()
	c.Add(0.5)
	for _, n := range []float64{-1, math.NaN(), math.Inf(1), 0} {
		c.Add(n)
	}
	g.Set(7)
	s := newServer(Element{Name: "e", Metrics: []Metric{c, g}}, nil)
	got := s.Health(t.Context()).GetMetrics()
	if len(got) != 2 || got[0].GetName() != "orders" || got[0].GetValue() != 8000.5 || got[1].GetName() != "queue_2" || got[1].GetValue() != 7 {
		t.Errorf("%v", got)
	}
}

func TestMetricMistakes(t *testing.T) {
	for want, list := range map[string][]Metric{
		"":                {NewCounter("a"), NewGauge("b_1")},
		"is there twice":  {NewCounter("a"), NewGauge("a")},
		"is not named by": {NewCounter("A")},
		"lower-case":      {NewGauge("")},
		"at most 64":      {NewGauge(strings.Repeat("a", 65))},
		"Metrics[0]":      {nil},
		"is nil":          {(*Counter)(nil)},
		"more than 32":    make([]Metric, 33),
	} {
		err := Element{Name: "e", Metrics: list}.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
