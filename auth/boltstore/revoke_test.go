package boltstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// TestRevokedWithinASecond: what a command revokes through the file, an instance
// on the same file refuses within a second. The median is held to that: the
// machine that tests may be busy with something else for once.
func TestRevokedWithinASecond(t *testing.T) {
	path := place(t)
	instance := auth.NewSessions(auth.SessionsOptions{Store: opened(t, path)})
	defer instance.Close()
	command := auth.NewAccounts(auth.AccountsOptions{Store: opened(t, path), Hasher: auth.NewHasher(authtest.Cheap, 1)})
	var took []time.Duration
	for i := range 9 {
		name := fmt.Sprintf("u%d", i)
		if _, err := command.AddUser(t.Context(), name, conduit.User, nil); err != nil {
			t.Fatal(err)
		}
		m, err := command.Mint(t.Context(), name, auth.MintOptions{})
		if err != nil {
			t.Fatal(err)
		}
		secret := []byte(m.Secret.Reveal())
		g, bad := instance.Validate(t.Context(), secret, "link")
		if bad != nil || g.User != name {
			t.Fatal(g, bad)
		}
		ended := make(chan *conduit.Error, 1)
		stop := instance.Watch(g, func(err *conduit.Error) { ended <- err })
		if err := command.Revoke(t.Context(), m.Session.ID); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		select {
		case err := <-ended:
			took = append(took, time.Since(start))
			if err.Reason != conduit.ReasonSessionExpired {
				t.Errorf("who watches hears %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the instance never notices")
		}
		stop()
		if g, err := instance.Validate(t.Context(), secret, "link"); err == nil {
			t.Errorf("%v is still valid", g)
		}
	}
	slices.Sort(took)
	t.Logf("noticed after %s to %s", took[0], took[len(took)-1])
}
