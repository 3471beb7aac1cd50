package etcd

import (
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
	"github.com/elemental-conduit/conduit/auth/etcdstore"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// client is etcd without a store.
func client(tb testing.TB, o etcdstore.Options) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: o.Endpoints, DialTimeout: patience})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// TestMovedIsNotKnown: where a version that counts without saying whom for has been at work,
// or etcd has forgotten what was, everyone is looked at; what comes then is told again.
func TestMovedIsNotKnown(t *testing.T) {
	o := options(t)
	s, raw := opened(t, o), client(t, o)
	_, ids := authtest.Fill(t, s, 5, time.Hour)
	end := func(i int) {
		t.Helper()
		if err := s.RemoveSession(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	hold := func(what string, since uint64, everyone bool, users int) {
		t.Helper()
		m, err := s.Moved(t.Context(), since)
		if err != nil || m.Everyone != everyone || len(m.Users) != users {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
	end(0)
	end(1)
	hold("two", 0, false, 2)
	key := "/" + o.Prefix + "/generation"
	if _, err := raw.Put(t.Context(), key, ""); err != nil {
		t.Fatal(err)
	}
	hold("one that nobody has noted", 2, true, 0)
	end(2)
	end(3)
	hold("with such a one among them", 0, true, 0)
	hold("behind it", 3, false, 2)
	now, err := raw.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Compact(t.Context(), now.Header.Revision); err != nil {
		t.Fatal(err)
	}
	hold("what etcd has forgotten", 3, true, 0)
	hold("the last, which it has not", 4, false, 1)
	end(4)
	hold("what came then", 5, false, 1)
}

// TestRevocationLooksAtOne: a logout has an instance that remembers many sessions compare
// those of the one who logged out.
func TestRevocationLooksAtOne(t *testing.T) {
	o := options(t)
	here := opened(t, o)
	secrets, ids := authtest.Fill(t, here, 300, time.Hour)
	counted := &authtest.Counted{Store: opened(t, o)}
	there := auth.NewSessions(auth.SessionsOptions{Store: counted})
	defer there.Close()
	for _, secret := range secrets {
		if _, bad := there.Validate(t.Context(), secret, "link"); bad != nil {
			t.Fatal(bad)
		}
	}
	const logouts = 5
	for i := range logouts {
		if err := here.RemoveSession(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
		until(t, "it to be noticed", func() bool {
			_, bad := there.Validate(t.Context(), secrets[i], "link")
			return bad != nil
		})
	}
	if n := counted.Compared(); n > logouts {
		t.Errorf("%d logouts had %d sessions compared", logouts, n)
	}
}
