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

// BenchmarkSteady measures what 10,000 users at work cost the file.
func BenchmarkSteady(b *testing.B) {
	path := place(b)
	authtest.BenchSteady(b, func() auth.Store { return opened(b, path) }, nil)
}
