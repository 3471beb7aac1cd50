package authtest_test

import (
	"testing"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

func TestMemory(t *testing.T) {
	authtest.Run(t, func(*testing.T) authtest.Subject {
		m := authtest.NewMemory()
		return authtest.Subject{
			Store: m,
			Again: func(*testing.T) auth.Store { return m },
			Gone: func(*testing.T) func() {
				m.Gone(true)
				return func() { m.Gone(false) }
			},
		}
	})
}
