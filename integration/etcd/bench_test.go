package etcd

import (
	"testing"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// BenchmarkRevoked measures how long after a revocation elsewhere an instance refuses.
func BenchmarkRevoked(b *testing.B) {
	authtest.BenchRevoked(b, func() auth.Store { return opened(b, options(b)) })
}
