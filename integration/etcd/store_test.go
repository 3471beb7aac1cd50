package etcd

import (
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// TestStore is what every store must do.
func TestStore(t *testing.T) {
	authtest.Run(t, func(t *testing.T) authtest.Subject {
		t.Helper()
		r := newRelay(t, end(shared))
		o := options(t)
		o.Endpoints = []string{r.addr}
		s := opened(t, o)
		return authtest.Subject{
			Store: s,
			Again: func(t *testing.T) auth.Store { t.Helper(); return opened(t, options(t)) },
			Gone: func(t *testing.T) func() {
				t.Helper()
				r.cut()
				return func() {
					r.mend()
					until(t, "the store to be back", func() bool {
						_, err := s.Generation(t.Context())
						return err == nil
					})
				}
			},
		}
	})
}

// until polls for a condition.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %s for %s", patience, what)
		}
	}
}
