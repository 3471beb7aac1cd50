package boltstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// place returns where a test's store is to be.
func place(tb testing.TB) string { tb.Helper(); return filepath.Join(tb.TempDir(), "auth.db") }

func opened(tb testing.TB, path string) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), path, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	authtest.Run(t, func(t *testing.T) authtest.Subject {
		t.Helper()
		path := place(t)
		return authtest.Subject{
			Store: opened(t, path),
			Again: func(t *testing.T) auth.Store { t.Helper(); return opened(t, path) },
			Gone: func(t *testing.T) func() {
				t.Helper()
				if err := os.Rename(path, path+".away"); err != nil {
					t.Fatal(err)
				}
				return func() {
					if err := os.Rename(path+".away", path); err != nil {
						t.Fatal(err)
					}
				}
			},
		}
	})
}
