package main

import (
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// gauges and counters are what the store says of itself on the host's /metrics, by name.
func gauges() map[string]func(*store.Stats) float64 {
	return map[string]func(*store.Stats) float64{
		"file_bytes":        func(s *store.Stats) float64 { return float64(s.FileBytes) },
		"file_max_bytes":    func(s *store.Stats) float64 { return float64(s.MaxBytes) },
		"used_bytes":        func(s *store.Stats) float64 { return float64(s.UsedBytes) },
		"free_bytes":        func(s *store.Stats) float64 { return float64(s.FreeBytes) },
		"pending_bytes":     func(s *store.Stats) float64 { return float64(s.PendingBytes) },
		"open_transactions": func(s *store.Stats) float64 { return float64(len(s.Transactions)) },
		"waiting":           func(s *store.Stats) float64 { return float64(s.Waiting) },
		"watches":           func(s *store.Stats) float64 { return float64(s.Watches) },
	}
}

func counters() map[string]func(*store.Stats) float64 {
	return map[string]func(*store.Stats) float64{
		"commits": func(s *store.Stats) float64 { return float64(s.Commits) },
		"batches": func(s *store.Stats) float64 { return float64(s.Batches) },
		"expired": func(s *store.Stats) float64 { return float64(s.Expired) },
		"refused": func(s *store.Stats) float64 { return float64(s.Refused) },
	}
}

// measured keeps the element's metrics as they were when it was last asked for its
// health, which is when they travel. It is for one goroutine at a time.
type measured struct {
	list []pluginapi.Metric
	sets []func(*store.Stats)
}

func newMeasured() *measured {
	m := &measured{}
	for name, of := range gauges() {
		g := pluginapi.NewGauge(name)
		m.list = append(m.list, g)
		m.sets = append(m.sets, func(s *store.Stats) { g.Set(of(s)) })
	}
	for name, of := range counters() {
		c, was := pluginapi.NewCounter(name), 0.0
		m.list = append(m.list, c)
		m.sets = append(m.sets, func(s *store.Stats) {
			now := of(s)
			c.Add(now - was)
			was = now
		})
	}
	return m
}

// look takes what the store says now.
func (m *measured) look(s store.Stats) {
	for _, set := range m.sets {
		set(&s)
	}
}
