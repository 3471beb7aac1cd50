package boltstore

import (
	"testing"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// BenchmarkRevoked measures how long after a command's revocation an instance refuses.
func BenchmarkRevoked(b *testing.B) {
	path := place(b)
	authtest.BenchRevoked(b, func() auth.Store { return opened(b, path) })
}
