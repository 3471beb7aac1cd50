//go:build !race

// The race detector makes of three seconds many, and finds here what it finds in other tests.

package boltstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// TestSteadyState: 10,000 users at work, of whom now and then one logs out, cost the file next
// to nothing: at most 20 operations in any second, over more than a life of all sessions.
func TestSteadyState(t *testing.T) {
	const users, life = 10_000, 3 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		path := place(t)
		command := opened(t, path)
		secrets, ids := fillAtOnce(t, command, users, life)
		counted := &authtest.Counted{Store: opened(t, path)}
		instance := auth.NewSessions(auth.SessionsOptions{Store: counted})
		defer instance.Close()
		use := func(secrets [][]byte) {
			for _, secret := range secrets {
				if _, bad := instance.Validate(t.Context(), secret, "one link"); bad != nil {
					t.Fatal(bad)
				}
			}
		}
		use(secrets)
		time.Sleep(time.Second)
		most, start := 0, counted.Compared()
		gone := 0
		for second := range 200 {
			before := counted.Operations()
			if second%60 == 0 {
				use(secrets[gone:])
			}
			if second%10 == 0 {
				if err := command.RemoveSession(t.Context(), ids[gone]); err != nil {
					t.Fatal(err)
				}
				gone++
			}
			time.Sleep(time.Second)
			most = max(most, counted.Operations()-before)
		}
		use(secrets[gone:])
		if most > 20 {
			t.Errorf("%d operations in a second", most)
		}
		if n := counted.Compared() - start; n > gone {
			t.Errorf("%d logouts had %d sessions compared", gone, n)
		}
		if _, bad := instance.Validate(t.Context(), secrets[0], "one link"); bad == nil {
			t.Error("who logged out is let in")
		}
		t.Logf("at most %d operations in a second, %d in all", most, counted.Operations())
	})
}

// fillAtOnce is authtest.Fill in one write: each of 20,000 would be synced.
func fillAtOnce(t *testing.T, s *Store, n int, life time.Duration) (secrets [][]byte, ids []auth.SessionID) {
	t.Helper()
	m := authtest.NewMemory()
	secrets, ids = authtest.Fill(t, m, n, life)
	err := s.do(t.Context(), true, func(r *records) error {
		for _, text := range secrets {
			secret, err := auth.ParseSecret(text)
			if err != nil {
				return err
			}
			f, err := m.Find(t.Context(), secret)
			if err != nil {
				return err
			}
			if err := errors.Join(r.putUser(f.User), r.userIDs.Put(f.User.ID[:], []byte(f.User.Name)), r.putSession(f.Session)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return secrets, ids
}
