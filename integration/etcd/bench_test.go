package etcd

import (
	"testing"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
	"github.com/prometheus/client_golang/prometheus"
)

// BenchmarkRevoked measures how long after a revocation elsewhere an instance refuses.
func BenchmarkRevoked(b *testing.B) {
	authtest.BenchRevoked(b, func() auth.Store { return opened(b, options(b)) })
}

// BenchmarkSteady measures what 10,000 users at work cost etcd. The requests are all that its
// one server was asked to read or write, the logouts' own among them.
func BenchmarkSteady(b *testing.B) {
	o := options(b)
	authtest.BenchSteady(b, func() auth.Store { return opened(b, o) }, func() int { return served(b) })
}

// served is how many requests to read or write the servers of this process have been sent.
func served(tb testing.TB) (n int) {
	tb.Helper()
	all, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() != "grpc_server_started_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "grpc_service" && label.GetValue() == "etcdserverpb.KV" {
					n += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return n
}
