package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
	"github.com/elemental-conduit/conduit/auth/etcdstore"
	"github.com/elemental-conduit/conduit/internal/certs"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func accounts(s auth.Store) *auth.Accounts {
	return auth.NewAccounts(auth.AccountsOptions{Store: s, Hasher: auth.NewHasher(authtest.Cheap, 1)})
}

// mint makes a session of a user, who is added if there is none.
func mint(tb testing.TB, a *auth.Accounts, name string) auth.Minted {
	tb.Helper()
	_, _ = a.AddUser(tb.Context(), name, conduit.User, nil)
	m, err := a.Mint(tb.Context(), name, auth.MintOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func validates(tb testing.TB, s *auth.Sessions, m auth.Minted) (auth.Grant, *conduit.Error) {
	tb.Helper()
	return s.Validate(tb.Context(), []byte(m.Secret.Reveal()), "link")
}

func storeFault(err error, reason string, words ...string) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Reason != reason {
		return false
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			return false
		}
	}
	return true
}

// TestOpenTogether: of many hosts that start at once on an empty etcd, one makes the store
// and all get it; each gets a session of its own, those of one name too.
func TestOpenTogether(t *testing.T) {
	o := options(t)
	if _, err := etcdstore.Open(t.Context(), etcdstore.Options{Endpoints: o.Endpoints, Prefix: o.Prefix, MustExist: true}); !storeFault(err, conduit.ReasonBadStore, "there is no auth store", "user add") || !errors.Is(err, etcdstore.ErrNone) {
		t.Errorf("%v", err)
	}
	const hosts = 16
	ids := make([]auth.StoreID, hosts)
	var wg sync.WaitGroup
	for i := range hosts {
		wg.Go(func() {
			s, err := etcdstore.Open(t.Context(), o)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			ids[i] = s.ID()
			id := address.RandomInstanceID()
			m, err := accounts(s).MintInstance(t.Context(), fmt.Sprint("host-", i%3), id)
			if err != nil || m.Session.Instance != id {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
	wg.Wait()
	s := opened(t, o)
	for _, id := range ids {
		if id != s.ID() {
			t.Fatal("two stores")
		}
	}
	users, err := accounts(s).Users(t.Context())
	sessions, err2 := accounts(s).Sessions(t.Context(), "")
	if err := errors.Join(err, err2); err != nil || len(users) != 3 || len(sessions) != hosts {
		t.Errorf("%d users, %d sessions, %v", len(users), len(sessions), err)
	}
}

// raw is a client of etcd without a store.
func raw(t *testing.T, o etcdstore.Options) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + o.Endpoints[0]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestReplaced: a store that is removed, replaced, damaged, or another program's is named
// as such, and nothing is made in its place.
func TestReplaced(t *testing.T) {
	o := options(t)
	s := opened(t, o)
	m := mint(t, accounts(s), "ada")
	c := raw(t, o)
	root := "/" + o.Prefix + "/"
	put := func(key, value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), root+key, value); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := c.Get(t.Context(), root, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	want := func(what, reason string, words ...string) {
		t.Helper()
		_, err := s.Find(t.Context(), m.Secret)
		_, err2 := s.Generation(t.Context())
		if what == "a session" || what == "a user" { // which the generation is not about
			err2 = err
		}
		if !storeFault(err, reason, words...) || !storeFault(err2, reason, words...) {
			t.Errorf("%s: %v, %v", what, err, err2)
		}
	}
	for _, kv := range whole.Kvs {
		what, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), root), "/")
		switch what {
		case "users":
			put(strings.TrimPrefix(string(kv.Key), root), `{"name":"ada"}`)
			want("a user", conduit.ReasonBadStore, "damaged", "users/")
		case "sessions":
			put(strings.TrimPrefix(string(kv.Key), root), `x`)
			want("a session", conduit.ReasonBadStore, "damaged", "sessions/")
		}
		put(strings.TrimPrefix(string(kv.Key), root), string(kv.Value))
	}
	if _, err := s.Find(t.Context(), m.Secret); err != nil {
		t.Error(err)
	}
	if _, err := c.Delete(t.Context(), root, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	want("removed", conduit.ReasonStoreUnavailable, "not there any more")
	if err := s.AddUser(t.Context(), auth.User{Name: "new", ID: auth.NewUserID()}); !storeFault(err, conduit.ReasonStoreUnavailable) {
		t.Error(err)
	}
	if left, err := c.Get(t.Context(), root, clientv3.WithPrefix()); err != nil || len(left.Kvs) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if other := opened(t, o); other.ID() == s.ID() {
		t.Error("two stores have one id")
	}
	want("replaced", conduit.ReasonBadStore, "replaced")
	for value, words := range map[string]string{"": "another program's", "{}": "another program's", `{"is":"conduit-auth","format":2,"id":"x"}`: "format 2", `{"is":"conduit-auth","format":1,"id":"x"}`: "damaged"} {
		put("store", value)
		_, err := etcdstore.Open(t.Context(), o)
		if !storeFault(err, conduit.ReasonBadStore, words) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestLease: a session that nobody sweeps is forgotten by etcd once it has been over for
// long enough, and one whose expiry was moved is not.
func TestLease(t *testing.T) {
	o := options(t)
	o.Keep = time.Second
	s := opened(t, o)
	a := accounts(s)
	_, err := a.AddUser(t.Context(), "ada", conduit.User, nil)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := a.Mint(t.Context(), "ada", auth.MintOptions{Life: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := a.Mint(t.Context(), "ada", auth.MintOptions{Life: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	moved := auth.Touch{ID: kept.Session.ID, Seen: kept.Session.Seen, Expires: kept.Session.Expires.Add(time.Hour)}
	if err := s.Touch(t.Context(), kept.Session.Created, []auth.Touch{moved}); err != nil {
		t.Fatal(err)
	}
	c := raw(t, o)
	until(t, "the lease to end", func() bool {
		r, err := c.Get(t.Context(), "/"+o.Prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range r.Kvs {
			if strings.Contains(string(kv.Key), gone.Session.ID.String()) {
				return false
			}
		}
		return true
	})
	if f, err := s.Find(t.Context(), kept.Secret); err != nil || !f.Session.Expires.Equal(moved.Expires) {
		t.Errorf("%+v, %v", f.Session, err)
	}
	// A lease that somebody has revoked is made anew.
	leases, err := c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Leases {
		if _, err := c.Revoke(t.Context(), l.ID); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
	}
	if _, err := s.Find(t.Context(), kept.Secret); !storeFault(err, conduit.ReasonSessionNotFound) {
		t.Errorf("%v", err)
	}
	m := mint(t, a, "ada")
	if _, err := s.Find(t.Context(), m.Secret); err != nil {
		t.Error(err)
	}
}

// TestRevoked: what one host revokes, another one refuses, told by etcd rather than at its
// next question; and what it asks etcd for meanwhile is the generation alone.
func TestRevoked(t *testing.T) {
	o := options(t)
	counted := &counting{Store: opened(t, o)}
	there := auth.NewSessions(auth.SessionsOptions{Store: counted})
	defer there.Close()
	here := accounts(opened(t, o))
	for i := range 5 {
		m := mint(t, here, fmt.Sprint("u", i))
		g, bad := validates(t, there, m)
		if bad != nil {
			t.Fatal(bad)
		}
		ended := make(chan *conduit.Error, 1)
		stop := there.Watch(g, func(err *conduit.Error) { ended <- err })
		if err := here.Revoke(t.Context(), m.Session.ID); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err.Reason != conduit.ReasonSessionExpired {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Fatal("it is never noticed")
		}
		stop()
		if _, bad := validates(t, there, m); bad == nil {
			t.Error("it is still valid")
		}
	}
	// Nothing happens: nothing but the generation is asked for.
	for range 3 {
		if _, bad := validates(t, there, mint(t, here, "ada")); bad != nil {
			t.Fatal(bad)
		}
	}
	counted.reset()
	until(t, "some questions", func() bool { return counted.count("Generation") > 4 })
	if other := counted.others("Generation"); other != "" {
		t.Errorf("asked besides: %s", other)
	}
}

// TestGoneAndBack: while etcd is away, sessions that are known go on, others are refused as
// unavailable, and once it is back what was revoked meanwhile is refused.
func TestGoneAndBack(t *testing.T) {
	r := newRelay(t, end(shared))
	o := options(t)
	direct := accounts(opened(t, o))
	o.Endpoints = []string{r.addr}
	s := auth.NewSessions(auth.SessionsOptions{Store: opened(t, o)})
	defer s.Close()
	known, other, fresh := mint(t, direct, "ada"), mint(t, direct, "bob"), mint(t, direct, "eve")
	for _, m := range []auth.Minted{known, other} {
		if _, bad := validates(t, s, m); bad != nil {
			t.Fatal(bad)
		}
	}
	r.cut()
	until(t, "it to be noticed", func() bool { return s.Stats().Down })
	if _, bad := validates(t, s, known); bad != nil {
		t.Errorf("a session that is known: %v", bad)
	}
	if _, bad := validates(t, s, fresh); bad == nil || bad.Code != conduit.Unavailable || bad.Reason != conduit.ReasonStoreUnavailable {
		t.Errorf("a session that is not known: %v", bad)
	}
	if err := direct.Revoke(t.Context(), other.Session.ID); err != nil {
		t.Fatal(err)
	}
	r.mend()
	until(t, "the revocation to be known", func() bool {
		_, bad := validates(t, s, other)
		return bad != nil && bad.Code == conduit.Unauthenticated
	})
	for _, m := range []auth.Minted{known, fresh} {
		if _, bad := validates(t, s, m); bad != nil {
			t.Error(bad)
		}
	}
}

// TestTLSAndUser: etcd with certificates on both sides and a user with a password, whose
// role is for the prefix alone.
func TestTLSAndUser(t *testing.T) {
	dir := t.TempDir()
	if _, err := (certs.Dev{Dir: dir, Hosts: []string{"127.0.0.1"}, Life: time.Hour, Now: time.Now()}).Make(); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	c := embedded(t.TempDir(), "tls", "https")
	c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = at(certs.DevCert), at(certs.DevKey)
	c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = at(certs.DevCA), true
	e, err := start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	k, err := certs.Open(certs.Files{CA: at(certs.DevCA), Cert: at(certs.DevCert), Key: at(certs.DevKey)})
	if err != nil {
		t.Fatal(err)
	}
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + end(e)}, TLS: k.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	ctx := t.Context()
	_, e1 := root.UserAdd(ctx, "root", "r00t-CANARY")
	_, e2 := root.UserGrantRole(ctx, "root", "root")
	_, e3 := root.RoleAdd(ctx, "conduit")
	_, e4 := root.RoleGrantPermission(ctx, "conduit", "/ours/", clientv3.GetPrefixRangeEnd("/ours/"), clientv3.PermissionType(clientv3.PermReadWrite))
	_, e5 := root.UserAdd(ctx, "conduit", "s3cret-CANARY")
	_, e6 := root.UserGrantRole(ctx, "conduit", "conduit")
	_, e7 := root.AuthEnable(ctx)
	if err := errors.Join(e1, e2, e3, e4, e5, e6, e7); err != nil {
		t.Fatal(err)
	}

	good := etcdstore.Options{Endpoints: []string{end(e)}, Prefix: "ours", TLS: k.Client(), User: "conduit", Password: auth.Seal([]byte("s3cret-CANARY"))}
	s := opened(t, good)
	m := mint(t, accounts(s), "ada")
	if _, err := s.Find(ctx, m.Secret); err != nil {
		t.Error(err)
	}
	moved := make(chan struct{}, 1)
	telling := make(chan struct{})
	told, stop := context.WithCancel(ctx)
	go func() {
		defer close(telling)
		s.Tell(told, func() {
			select {
			case moved <- struct{}{}:
			default:
			}
		})
	}()
	until(t, "a move to be told", func() bool {
		n := mint(t, accounts(s), "ada") //nolint:contextcheck // the test's, as everywhere
		if err := s.RemoveSession(ctx, n.Session.ID); err != nil {
			t.Fatal(err)
		}
		select {
		case <-moved:
			return true
		default:
			return false
		}
	})
	stop()
	<-telling
	for what, change := range map[string]func(*etcdstore.Options){
		"auth.etcd.user and its password": func(o *etcdstore.Options) { o.Password = auth.Seal([]byte("wr0ng-CANARY")) },
		"give auth.etcd.user":             func(o *etcdstore.Options) { o.User, o.Password = "", auth.Sealed{} },
		"may not read and write":          func(o *etcdstore.Options) { o.Prefix = "theirs" },
		"certificate":                     func(o *etcdstore.Options) { o.TLS = &tls.Config{MinVersion: tls.VersionTLS12} },
		"cannot be asked":                 func(o *etcdstore.Options) { o.TLS = nil },
	} {
		o := good
		change(&o)
		o.Patience = 10 * time.Second
		_, err := etcdstore.Open(ctx, o)
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%v, want %q and no password", err, what)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", o, o, o, &o); strings.Contains(text, "CANARY") {
			t.Errorf("the options show a password: %s", text)
		}
	}
}
