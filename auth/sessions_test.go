package auth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/authtest"
)

// world is a store, what works on it, and an instance in front of it. Its clock is
// the bubble's, and jumps by skew.
type world struct {
	t     *testing.T
	store *authtest.Memory
	a     *auth.Accounts
	s     *auth.Sessions
	skew  atomic.Int64
	log   bytes.Buffer // of the Sessions' goroutine; read after Close
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, o auth.SessionsOptions, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		defer w.s.Close()
		test(w)
	})
}

func newWorld(t *testing.T, o auth.SessionsOptions) *world {
	t.Helper()
	w := &world{t: t, store: authtest.NewMemory()}
	w.a = auth.NewAccounts(auth.AccountsOptions{Store: w.store, Hasher: auth.NewHasher(authtest.Cheap, 1), Now: w.now})
	o.Store, o.Now = w.store, w.now
	o.Log = slog.New(slog.NewTextHandler(&w.log, nil))
	w.s = auth.NewSessions(o)
	return w
}

func (w *world) mint(name string, o auth.MintOptions) auth.Minted {
	w.t.Helper()
	if _, err := w.store.User(w.t.Context(), name); err != nil {
		if _, err := w.a.AddUser(w.t.Context(), name, conduit.User, nil); err != nil {
			w.t.Fatal(err)
		}
	}
	m, err := w.a.Mint(w.t.Context(), name, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func secretOf(m auth.Minted) []byte { return []byte(m.Secret.Reveal()) }

func (w *world) valid(m auth.Minted) auth.Grant {
	w.t.Helper()
	g, err := w.s.Validate(w.t.Context(), secretOf(m), "link")
	if err != nil || g.User != m.User.Name || g.Session != m.Session.ID {
		w.t.Fatalf("%+v, %v; want %s", g, err, m.User.Name)
	}
	return g
}

func (w *world) refused(m auth.Minted, reason string) {
	w.t.Helper()
	g, err := w.s.Validate(w.t.Context(), secretOf(m), "link")
	isRefused(w.t, g, err, reason)
}

func isRefused(t *testing.T, g auth.Grant, err *conduit.Error, reason string) {
	t.Helper()
	if err == nil || err.Reason != reason || err.Outcome != conduit.Refused || g != (auth.Grant{}) {
		t.Errorf("%+v, %v; want it refused as %s", g, err, reason)
	}
}

func (w *world) no(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) lookups() int { return w.store.Counts()["Find"] }

func TestValidate(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{Life: time.Hour})
		if _, err, known := w.s.Cached(secretOf(m)); known || err != nil {
			t.Error("it is known before it was asked for")
		}
		g := w.valid(m)
		if g.Level != conduit.User || !g.Expires.Equal(m.Session.Expires) || !g.Instance.IsZero() {
			t.Errorf("%+v", g)
		}
		for range 100 {
			w.valid(m)
		}
		got, err, known := w.s.Cached(bytes.ToUpper(secretOf(m)))
		if !known || err != nil || got != g || w.lookups() != 1 {
			t.Errorf("%+v, %v, %v after %d lookups", got, err, known, w.lookups())
		}
		p, err := w.s.As(t.Context(), "link")(secretOf(m))
		if err != nil || p != (auth.Principal{User: "ada", Level: conduit.User}) {
			t.Errorf("%v, %v", p, err)
		}
		if st := w.s.Stats(); st.Cached != 1 || st.Lookups != 1 || st.Hits < 100 || st.Down {
			t.Errorf("%+v", st)
		}
		if st := w.s.Stats(); st.OK != st.Hits+1 || st.Denied != 0 || st.Failed != 0 {
			t.Errorf("%+v", st)
		}
		for _, bad := range [][]byte{[]byte("nonsense"), secretOf(w.mint("eve", auth.MintOptions{}))} {
			if len(bad) > 8 {
				bad[0] ^= 1 // its CRC is wrong
			}
			if _, err := w.s.Validate(t.Context(), bad, "link"); err == nil {
				t.Error("it is good")
			}
			_, _, _ = w.s.CachedAs(bad)
		}
		if st := w.s.Stats(); st.OK != st.Hits+1 || st.Denied != 4 || st.Failed != 0 {
			t.Errorf("%+v", st)
		}
		if w.s.StoreID() != w.store.ID() {
			t.Error("another store's id")
		}
	})
}

func TestMalformedSecrets(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{})
		good := secretOf(m)
		for _, secret := range [][]byte{nil, {}, good[1:], append(bytes.Clone(good), '0'), bytes.Repeat([]byte("0"), 64), bytes.Repeat([]byte{0xff}, 64), bytes.Repeat([]byte("x"), 1<<20), []byte("' OR 1=1 --")} {
			g, err := w.s.Validate(t.Context(), secret, "link")
			isRefused(t, g, err, conduit.ReasonUnauthenticated)
			g, err, known := w.s.Cached(secret)
			isRefused(t, g, err, conduit.ReasonUnauthenticated)
			if !known {
				t.Errorf("%.20q would cost a lookup", secret)
			}
		}
		if w.lookups() != 0 {
			t.Errorf("they cost %d lookups", w.lookups())
		}
	})
}

// TestRevocation: whatever ends a session ends it here within a second, and every
// other session goes on without a lookup of its own.
func TestRevocation(t *testing.T) {
	ends := map[string]func(w *world, m auth.Minted) error{
		"revoke":      func(w *world, m auth.Minted) error { return w.a.Revoke(w.t.Context(), m.Session.ID) },
		"revoke user": func(w *world, _ auth.Minted) error { _, err := w.a.RevokeUser(w.t.Context(), "ada"); return err },
		"disable":     func(w *world, _ auth.Minted) error { return w.a.SetDisabled(w.t.Context(), "ada", true) },
		"remove":      func(w *world, _ auth.Minted) error { return w.a.RemoveUser(w.t.Context(), "ada") },
		"password": func(w *world, _ auth.Minted) error {
			return w.a.SetPassword(w.t.Context(), "ada", []byte("a new password"))
		},
		"another": func(w *world, _ auth.Minted) error { // one that expires first, for want of room
			for range auth.MaxSessions {
				w.mint("ada", auth.MintOptions{Life: 3 * time.Hour})
			}
			return nil
		},
	}
	for name, end := range ends {
		for _, watched := range []bool{false, true} {
			inWorld(t, auth.SessionsOptions{}, func(w *world) {
				t := w.t
				m, other := w.mint("ada", auth.MintOptions{Life: time.Hour}), w.mint("bob", auth.MintOptions{Life: time.Hour})
				g := w.valid(m)
				w.valid(other)
				var ended atomic.Pointer[conduit.Error]
				if watched {
					stop := w.s.Watch(g, func(err *conduit.Error) { ended.Store(err) })
					defer stop()
				}
				time.Sleep(10*time.Second + 100*time.Millisecond)
				lookups := w.lookups()
				w.no(end(w, m))
				time.Sleep(300 * time.Millisecond)
				if _, _, known := w.s.Cached(secretOf(m)); known {
					t.Errorf("%s: it is still valid", name)
				}
				w.refused(m, conduit.ReasonUnauthenticated)
				w.valid(other)
				if w.lookups() != lookups+1 {
					t.Errorf("%s: %d lookups", name, w.lookups()-lookups)
				}
				if err := ended.Load(); watched && (err == nil || err.Reason != conduit.ReasonSessionExpired) {
					t.Errorf("%s: whoever watches hears %v", name, err)
				}
			})
		}
	}
}

// TestEnded: who revokes a session and says so sees it end at once, and not at the
// next poll; a lookup that is under way makes it valid no more.
func TestEnded(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m, other := w.mint("ada", auth.MintOptions{}), w.mint("bob", auth.MintOptions{})
		g := w.valid(m)
		w.valid(other)
		var ended atomic.Pointer[conduit.Error]
		defer w.s.Watch(g, func(err *conduit.Error) { ended.Store(err) })()
		w.no(w.a.Revoke(t.Context(), m.Session.ID))
		w.s.Ended(auth.Grant{}) // anonymous
		w.s.Ended(g)
		if _, err, known := w.s.Cached(secretOf(m)); !known || err == nil || err.Reason != conduit.ReasonUnauthenticated {
			t.Errorf("it is %v, known %v", err, known)
		}
		if err := ended.Load(); err == nil || err.Reason != conduit.ReasonSessionExpired {
			t.Errorf("whoever watches hears %v", err)
		}
		w.valid(other)
		time.Sleep(3 * time.Second) // no bad secret is remembered any more
		w.refused(m, conduit.ReasonUnauthenticated)
	})
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{})
		g := w.valid(m)
		slow := &slowStore{Memory: w.store, found: make(chan struct{}), goOn: make(chan struct{})}
		s := auth.NewSessions(auth.SessionsOptions{Store: slow})
		defer s.Close()
		result := make(chan *conduit.Error, 1)
		go func() {
			_, err := s.Validate(t.Context(), secretOf(m), "link")
			result <- err
		}()
		<-slow.found
		w.no(w.a.Revoke(t.Context(), m.Session.ID))
		s.Ended(g)
		close(slow.goOn) // before the next poll: time stands still
		if err := <-result; err == nil || err.Reason != conduit.ReasonUnauthenticated {
			t.Errorf("%v", err)
		}
		if _, err, known := s.Cached(secretOf(m)); known && err == nil {
			t.Error("it is remembered as valid")
		}
	})
}

func TestLevelChanges(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{})
		g := w.valid(m)
		stop := w.s.Watch(g, func(*conduit.Error) { t.Error("it ended") })
		defer stop()
		for _, level := range []conduit.Level{conduit.Superuser, conduit.User} {
			w.no(w.a.SetLevel(t.Context(), "ada", level))
			time.Sleep(300 * time.Millisecond)
			if g, err, known := w.s.Cached(secretOf(m)); !known || err != nil || g.Level != level {
				t.Errorf("%v, %v, %v; want %s", g, err, known, level)
			}
		}
	})
}

// TestRevokedInFlight: a lookup that has read a session before its revocation, and
// ends after it, makes nothing valid.
func TestRevokedInFlight(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{})
		slow := &slowStore{Memory: w.store, found: make(chan struct{}), goOn: make(chan struct{})}
		s := auth.NewSessions(auth.SessionsOptions{Store: slow})
		defer s.Close()
		result := make(chan *conduit.Error, 1)
		go func() {
			_, err := s.Validate(t.Context(), secretOf(m), "link")
			result <- err
		}()
		<-slow.found
		w.no(w.a.Revoke(t.Context(), m.Session.ID))
		time.Sleep(time.Second) // the revocation is known
		close(slow.goOn)
		if err := <-result; err == nil || err.Reason != conduit.ReasonUnauthenticated {
			t.Errorf("%v", err)
		}
		if _, err, known := s.Cached(secretOf(m)); known && err == nil {
			t.Error("it is remembered as valid")
		}
	})
}

// slowStore waits between finding a session and saying so.
type slowStore struct {
	*authtest.Memory
	once        sync.Once
	found, goOn chan struct{}
}

func (s *slowStore) Find(ctx context.Context, secret auth.Secret) (auth.Found, error) {
	f, err := s.Memory.Find(ctx, secret)
	s.once.Do(func() {
		close(s.found)
		<-s.goOn
	})
	return f, err
}

func TestExpiry(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     auth.MintOptions
		after time.Duration
		valid bool
	}{
		{"before", auth.MintOptions{Life: 5 * time.Minute}, 5*time.Minute - time.Millisecond, true},
		{"at", auth.MintOptions{Life: 5 * time.Minute}, 5 * time.Minute, false},
		{"after", auth.MintOptions{Life: 5 * time.Minute}, 5*time.Minute + time.Millisecond, false},
		{"long after", auth.MintOptions{Life: 5 * time.Minute}, 2 * time.Hour, false},
		{"a millisecond", auth.MintOptions{Life: time.Millisecond}, time.Millisecond, false},
		{"fixed, before", auth.MintOptions{Life: 5 * time.Minute, Fixed: true}, 5*time.Minute - time.Millisecond, true},
		{"fixed, at", auth.MintOptions{Life: 5 * time.Minute, Fixed: true}, 5 * time.Minute, false},
	} {
		for _, cached := range []bool{true, false} {
			inWorld(t, auth.SessionsOptions{}, func(w *world) {
				t := w.t
				m := w.mint("ada", c.o)
				if cached {
					w.valid(m)
				}
				time.Sleep(c.after)
				t.Log(c.name, cached)
				if c.valid {
					w.valid(m)
				} else {
					w.refused(m, conduit.ReasonSessionExpired)
					w.refused(m, conduit.ReasonSessionExpired)
				}
			})
		}
	}
}

// TestUseMovesTheExpiry: a session in use lasts, at a write in half a life; one
// that is not, or is fixed, ends.
func TestUseMovesTheExpiry(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		const life = 20 * time.Minute
		used, idle, fixed := w.mint("ada", auth.MintOptions{Life: life}), w.mint("bob", auth.MintOptions{Life: life}), w.mint("eve", auth.MintOptions{Life: life, Fixed: true})
		w.valid(idle)
		start := time.Now()
		for time.Since(start) < 6*life {
			w.valid(used)
			if time.Since(start) < life {
				w.valid(fixed)
			}
			if n := w.store.Counts()["Touch"]; time.Since(start) < life/2 && n != 0 {
				t.Fatalf("moved %d times with more than half of it left", n)
			}
			time.Sleep(30 * time.Second)
		}
		w.refused(idle, conduit.ReasonSessionExpired)
		w.refused(fixed, conduit.ReasonSessionExpired)
		if n := w.store.Counts()["Touch"]; n < 6 || n > 13 {
			t.Errorf("moved %d times in six lives", n)
		}
		all, err := w.store.Sessions(t.Context(), auth.SessionsOf{User: used.User.ID})
		if err != nil || len(all) != 1 || time.Since(all[0].Seen) > life/2+time.Minute+time.Second || all[0].Expires.Sub(all[0].Seen) != life {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// TestAnotherInstanceMovesTheExpiry: one instance knows the old expiry, and asks
// before it refuses; who watches a session there is not told that it ended.
func TestAnotherInstanceMovesTheExpiry(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		const life = 20 * time.Minute
		m := w.mint("ada", auth.MintOptions{Life: life})
		g := w.valid(m)
		var ended atomic.Pointer[conduit.Error]
		stop := w.s.Watch(g, func(err *conduit.Error) { ended.Store(err) })
		defer stop()
		elsewhere := auth.NewSessions(auth.SessionsOptions{Store: w.store})
		start := time.Now()
		for time.Since(start) < 3*life {
			if _, err := elsewhere.Validate(t.Context(), secretOf(m), "x"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		elsewhere.Close()
		if err := ended.Load(); err != nil {
			t.Errorf("who watches was told %v", err)
		}
		w.valid(m)
		time.Sleep(life + 2*time.Second)
		if err := ended.Load(); err == nil || err.Reason != conduit.ReasonSessionExpired {
			t.Errorf("at its end who watches hears %v", err)
		}
		w.refused(m, conduit.ReasonSessionExpired)
	})
}

// TestClockJumps: a jump of the wall clock ends what it must and never gives more
// than a life.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Millisecond, time.Minute, 59 * time.Minute, time.Hour, 48 * time.Hour, 100 * 365 * 24 * time.Hour} {
		inWorld(t, auth.SessionsOptions{}, func(w *world) {
			t := w.t
			const life = time.Hour
			m := w.mint("ada", auth.MintOptions{Life: life})
			w.valid(m)

			w.skew.Store(int64(jump)) // forwards
			time.Sleep(2 * time.Second)
			over := jump+2*time.Second >= life
			// It may be over for so long that an instance whose hour it is has it
			// forgotten; then it stays so.
			forgotten := func() bool {
				if jump <= life+24*time.Hour {
					return false
				}
				_, err := w.s.Validate(t.Context(), []byte(m.Secret.Reveal()), "link")
				return err != nil && err.Reason == conduit.ReasonUnauthenticated
			}
			if forgotten() {
				return
			}
			if over {
				w.refused(m, conduit.ReasonSessionExpired)
			} else {
				w.valid(m)
			}
			time.Sleep(2 * time.Minute)
			w.skew.Store(0) // and back: what was refused on the way is not refused for good
			time.Sleep(3 * time.Second)
			if forgotten() {
				return
			}
			g := w.valid(m)
			if g.Expires.After(m.Session.Expires.Add(life)) {
				t.Errorf("%s: it lasts until %s, and was made to last until %s", jump, g.Expires, m.Session.Expires)
			}

			w.skew.Store(int64(-jump)) // backwards
			time.Sleep(2 * time.Second)
			w.valid(m)
			again := w.mint("bob", auth.MintOptions{Life: life})
			w.valid(again)
			w.no(w.a.Revoke(t.Context(), m.Session.ID))
			time.Sleep(time.Second)
			w.refused(m, conduit.ReasonUnauthenticated)
		})
	}
}

// TestStoreDown: as the design says.
func TestStoreDown(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m, unknown, short := w.mint("ada", auth.MintOptions{Life: 100 * time.Minute}), w.mint("bob", auth.MintOptions{Life: 100 * time.Minute}), w.mint("eve", auth.MintOptions{Life: 10 * time.Minute})
		g := w.valid(m)
		w.valid(short)
		var ended atomic.Pointer[conduit.Error]
		stop := w.s.Watch(g, func(err *conduit.Error) { ended.Store(err) })
		defer stop()
		for range 3 {
			w.store.Gone(true)
			w.refused(unknown, conduit.ReasonStoreUnavailable)
			time.Sleep(300 * time.Millisecond)
			w.refused(unknown, conduit.ReasonStoreUnavailable)
			w.valid(m)
			before := w.lookups()
			w.refused(unknown, conduit.ReasonStoreUnavailable)
			if w.lookups() != before || !w.s.Stats().Down {
				t.Error("a store that is known to be down is asked again by every caller")
			}
			w.store.Gone(false)
			time.Sleep(300 * time.Millisecond)
			w.valid(unknown)
			w.no(w.a.Revoke(t.Context(), unknown.Session.ID)) // so that it is unknown again
			unknown = w.mint("bob", auth.MintOptions{Life: 100 * time.Minute})
			time.Sleep(300 * time.Millisecond)
		}
		w.store.Gone(true)
		time.Sleep(20 * time.Minute)
		w.valid(m)
		w.refused(short, conduit.ReasonStoreUnavailable) // its age is over, and nobody can say more
		time.Sleep(80 * time.Minute)
		w.refused(m, conduit.ReasonStoreUnavailable)
		if err := ended.Load(); err == nil || err.Reason != conduit.ReasonSessionExpired {
			t.Errorf("who watches hears %v", err)
		}
		w.store.Gone(false)
		time.Sleep(time.Second)
		w.refused(m, conduit.ReasonSessionExpired)
		w.s.Close()
		if n := strings.Count(w.log.String(), "cannot be asked"); n != 4 || strings.Count(w.log.String(), "is back") != 4 {
			t.Errorf("the log says it %d times:\n%s", n, w.log.String())
		}
	})
}

// TestKnownToBeStale: a revocation of which is known, and not which, ends all in
// about a second.
func TestKnownToBeStale(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m, other := w.mint("ada", auth.MintOptions{}), w.mint("bob", auth.MintOptions{})
		w.valid(m)
		g := w.valid(other)
		var ended atomic.Pointer[conduit.Error]
		stop := w.s.Watch(g, func(err *conduit.Error) { ended.Store(err) })
		defer stop()
		w.no(w.a.Revoke(t.Context(), m.Session.ID))
		w.store.Fail(func(op string) error {
			if op == "Generation" {
				return nil
			}
			return auth.ErrStoreUnavailable(nil, "half of it is gone")
		})
		time.Sleep(1100 * time.Millisecond)
		w.refused(m, conduit.ReasonStoreUnavailable)
		w.refused(other, conduit.ReasonStoreUnavailable)
		if ended.Load() == nil {
			t.Error("who watches hears nothing")
		}
		w.store.Gone(false)
		w.valid(other)
		w.refused(m, conduit.ReasonUnauthenticated)
	})
}

// TestStoreReplaced: nothing that is remembered of one store holds in another.
func TestStoreReplaced(t *testing.T) {
	for name, replace := range map[string]func(w *world){
		"an older copy": func(w *world) { w.store.SetGeneration(1) },
		"another": func(w *world) {
			w.store.Fail(func(string) error { return auth.ErrStoreReplaced("it was replaced") })
		},
	} {
		inWorld(t, auth.SessionsOptions{}, func(w *world) {
			t := w.t
			w.store.SetGeneration(9)
			time.Sleep(time.Second)
			m := w.mint("ada", auth.MintOptions{})
			w.valid(m)
			replace(w)
			time.Sleep(300 * time.Millisecond)
			if _, _, known := w.s.Cached(secretOf(m)); known {
				t.Errorf("%s: it is still remembered", name)
			}
			w.store.Gone(false)
			time.Sleep(300 * time.Millisecond)
			w.valid(m)
			w.no(w.a.Revoke(t.Context(), m.Session.ID))
			time.Sleep(300 * time.Millisecond)
			w.refused(m, conduit.ReasonUnauthenticated)
		})
	}
}

// TestLookupsAreBounded: one for many who ask the same, eight of a link, 64 in all.
func TestLookupsAreBounded(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		var minted []auth.Minted
		for i := range 80 {
			minted = append(minted, w.mint(fmt.Sprintf("u%d", i), auth.MintOptions{}))
		}
		goOn := make(chan struct{})
		w.store.Fail(func(op string) error {
			if op == "Find" {
				<-goOn
			}
			return nil
		})
		var wg sync.WaitGroup
		var ok atomic.Int64
		ask := func(m auth.Minted, link string) {
			wg.Go(func() {
				if _, err := w.s.Validate(t.Context(), secretOf(m), link); err != nil {
					t.Error(err)
					return
				}
				ok.Add(1)
			})
			synctest.Wait()
		}
		overloaded := func(m auth.Minted, link string) {
			t.Helper()
			g, err := w.s.Validate(t.Context(), secretOf(m), link)
			isRefused(t, g, err, conduit.ReasonOverloaded)
		}
		for i := range 8 {
			ask(minted[i], "a")
		}
		overloaded(minted[8], "a")
		for range 20 { // the same again is no lookup
			ask(minted[3], "a")
			ask(minted[3], "z")
		}
		for i := 8; i < 64; i++ {
			ask(minted[i], fmt.Sprintf("link%d", i/8))
		}
		overloaded(minted[64], "new")
		if n := w.lookups(); n != 64 {
			t.Errorf("%d lookups are under way", n)
		}
		// Who gives up takes nothing from the others.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.s.Validate(ctx, secretOf(minted[5]), "a"); err == nil || err.Code != conduit.Canceled || err.Outcome != conduit.Refused {
			t.Errorf("%v", err)
		}
		close(goOn)
		wg.Wait()
		if n := ok.Load(); n != 64+40 {
			t.Errorf("%d were answered", n)
		}
		for _, m := range minted {
			w.valid(m)
		}
		if st := w.s.Stats(); st.Overloaded != 2 || st.Lookups != 80 {
			t.Errorf("%+v", st)
		}
	})
}

// TestStoreHangs: a store that never answers keeps nobody for longer than two
// seconds.
func TestStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := authtest.NewMemory()
		s := auth.NewSessions(auth.SessionsOptions{Store: hangingStore{m}})
		defer s.Close()
		start := time.Now()
		secret := auth.NewSecret(auth.NewUserID())
		_, err := s.Validate(t.Context(), []byte(secret.Reveal()), "link")
		if err == nil || err.Code != conduit.Unavailable || err.Reason != conduit.ReasonStoreUnavailable || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

type hangingStore struct{ *authtest.Memory }

func (hangingStore) Find(ctx context.Context, _ auth.Secret) (auth.Found, error) {
	<-ctx.Done()
	return auth.Found{}, ctx.Err()
}

// TestBadSecretsAreRemembered: for two seconds, and not too many of them.
func TestBadSecretsAreRemembered(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		bad := auth.NewSecret(auth.NewUserID())
		ask := func() {
			g, err := w.s.Validate(t.Context(), []byte(bad.Reveal()), "link")
			isRefused(t, g, err, conduit.ReasonUnauthenticated)
		}
		for range 50 {
			ask()
		}
		if w.lookups() != 1 {
			t.Errorf("%d lookups", w.lookups())
		}
		if _, err, known := w.s.Cached([]byte(bad.Reveal())); !known || err == nil {
			t.Error("a reader would park for it")
		}
		time.Sleep(2100 * time.Millisecond)
		ask()
		if w.lookups() != 2 {
			t.Errorf("%d lookups", w.lookups())
		}
		for range 20_000 {
			s := auth.NewSecret(auth.NewUserID())
			g, err := w.s.Validate(t.Context(), []byte(s.Reveal()), "link")
			isRefused(t, g, err, conduit.ReasonUnauthenticated)
		}
		if n := w.s.Stats().Refused; n > 4096 {
			t.Errorf("%d are remembered", n)
		}
		time.Sleep(4 * time.Second)
		if n := w.s.Stats().Refused; n != 0 {
			t.Errorf("%d are remembered for ever", n)
		}
	})
}

// TestMemoryIsBounded: more sessions than are remembered are all valid.
func TestMemoryIsBounded(t *testing.T) {
	inWorld(t, auth.SessionsOptions{MaxCached: 128}, func(w *world) {
		t := w.t
		var minted []auth.Minted
		var grants []auth.Grant
		var ended atomic.Int64
		for i := range 1000 {
			m := w.mint(fmt.Sprintf("u%d", i), auth.MintOptions{Life: 10 * time.Minute})
			g := w.valid(m)
			if i < 100 { // these are not to be forgotten
				defer w.s.Watch(g, func(*conduit.Error) { ended.Add(1) })()
			}
			minted, grants = append(minted, m), append(grants, g)
		}
		if n := w.s.Stats().Cached; n > 128+100 {
			t.Errorf("%d are remembered", n)
		}
		for _, m := range minted {
			w.valid(m)
		}
		// One that was forgotten can be watched as well.
		for i := 100; i < 1000; i++ {
			defer w.s.Watch(grants[i], func(*conduit.Error) { ended.Add(1) })()
		}
		time.Sleep(3 * time.Second)
		if n := ended.Load(); n != 0 {
			t.Errorf("%d ended that are valid", n)
		}
		w.no(w.a.Revoke(t.Context(), minted[500].Session.ID))
		w.no(w.a.Revoke(t.Context(), minted[5].Session.ID))
		time.Sleep(1100 * time.Millisecond)
		if n := ended.Load(); n != 2 {
			t.Errorf("%d ended, want 2", n)
		}
		time.Sleep(10 * time.Minute)
		if n := ended.Load(); n != 1000 {
			t.Errorf("%d ended by their time, want all", n)
		}
	})
}

func TestWatch(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{Life: time.Hour})
		g := w.valid(m)
		var a, b, c atomic.Int64
		stopA := w.s.Watch(g, func(*conduit.Error) { a.Add(1) })
		defer w.s.Watch(g, func(*conduit.Error) { b.Add(1) })()
		w.s.Watch(auth.Grant{}, func(*conduit.Error) { c.Add(1) })() // anonymous
		stopA()
		stopA()
		w.no(w.a.Revoke(t.Context(), m.Session.ID))
		time.Sleep(time.Second)
		if a.Load() != 0 || b.Load() != 1 || c.Load() != 0 {
			t.Errorf("called %d, %d, %d times", a.Load(), b.Load(), c.Load())
		}
		// One that has ended already.
		defer w.s.Watch(g, func(err *conduit.Error) {
			if err.Reason == conduit.ReasonSessionExpired {
				c.Add(1)
			}
		})()
		w.refused(m, conduit.ReasonUnauthenticated)
		time.Sleep(1100 * time.Millisecond)
		if c.Load() != 1 {
			t.Errorf("called %d times", c.Load())
		}
	})
}

// TestSteadyState: 10,000 users at work cost the store next to nothing.
func TestSteadyState(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		const users = 10_000
		secrets := make([][]byte, users)
		for i := range secrets {
			secrets[i] = secretOf(w.mint(fmt.Sprintf("u%d", i), auth.MintOptions{Life: 3 * time.Minute}))
		}
		use := func() {
			for _, secret := range secrets {
				if _, err := w.s.Validate(t.Context(), secret, "one link"); err != nil {
					t.Fatal(err)
				}
			}
		}
		use()
		total := func() (n int) {
			for _, c := range w.store.Counts() {
				n += c
			}
			return n
		}
		worst := 0
		for range 5 { // a life and more, so that all are moved
			use()
			for range 60 {
				before := total()
				time.Sleep(time.Second)
				worst = max(worst, total()-before)
			}
		}
		if worst > 20 {
			t.Errorf("%d operations in a second", worst)
		}
		before := total()
		w.no(w.a.Revoke(t.Context(), auth.SessionIDOf(mustUser(t, w, "u7").Stamp.Reveal(), mustParse(t, secrets[7]))))
		time.Sleep(time.Second)
		if n := total() - before; n > 20 {
			t.Errorf("a revocation costs %d operations", n)
		}
		t.Logf("at most %d operations in a second: %v in all", worst, w.store.Counts())
	})
}

// TestMovedForWhom: a move has those compared whom it was about, and everyone where the
// store cannot tell, also if a question fails between.
func TestMovedForWhom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := authtest.NewMemory()
		a := auth.NewAccounts(auth.AccountsOptions{Store: memory, Hasher: auth.NewHasher(authtest.Cheap, 1)})
		const users = 500
		secrets, ids := authtest.Fill(t, memory, users, time.Hour)
		store := &authtest.Counted{Store: memory}
		s := auth.NewSessions(auth.SessionsOptions{Store: store})
		defer s.Close()
		valid := func(i int) bool {
			_, bad := s.Validate(t.Context(), secrets[i], "link")
			return bad == nil
		}
		for i := range secrets {
			if !valid(i) {
				t.Fatal(i)
			}
		}
		var ended [users]bool
		for i := range 8 {
			g, _, _ := s.Cached(secrets[i])
			defer s.Watch(g, func(*conduit.Error) { ended[i] = true })()
		}
		revoke := func(i int) {
			t.Helper()
			if err := a.Revoke(t.Context(), ids[i]); err != nil {
				t.Fatal(err)
			}
		}
		// hold waits for what a move leads to, and counts who is compared for it.
		hold := func(what string, want int, gone ...int) {
			t.Helper()
			before := store.Compared()
			time.Sleep(time.Second)
			synctest.Wait()
			if n := store.Compared() - before; n != want {
				t.Errorf("%s: %d are compared, want %d", what, n, want)
			}
			for _, i := range gone {
				if valid(i) || i < 8 && !ended[i] {
					t.Errorf("%s: u%d is valid still: %t, %t", what, i, valid(i), ended[i])
				}
			}
		}
		hold("nothing", 0)
		revoke(1)
		hold("one", 1, 1)
		revoke(2)
		revoke(3)
		if _, err := memory.ChangeUser(t.Context(), "u9", func(u *auth.User) error { u.Level = conduit.Superuser; return nil }); err != nil {
			t.Fatal(err)
		}
		hold("three", 3, 2, 3)
		if g, _, _ := s.Cached(secrets[9]); g.Level != conduit.Superuser {
			t.Errorf("a level that was changed is %s still", g.Level)
		}
		// While the store does not say whom, nothing is compared; then all that came between is.
		revoke(4)
		memory.Fail(func(op string) error {
			if op == "Moved" {
				return auth.ErrStoreUnavailable(nil, "not this")
			}
			return nil
		})
		time.Sleep(400 * time.Millisecond)
		memory.Fail(nil)
		revoke(5)
		hold("two, the first of them late", 2, 4, 5)
		// A store that does not know has all compared: an older version counts so.
		g, err := memory.Generation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		memory.SetGeneration(g + 1)
		hold("somebody", users-5)
		for i := range auth.MaxMoves + 1 {
			revoke(100 + i)
		}
		hold("too many", users-5, 100, 100+auth.MaxMoves)
		revoke(6)
		hold("one again", 1, 6)
		// What is back after it was lost may be a copy of before, with other moves.
		memory.Gone(true)
		time.Sleep(time.Second)
		memory.Gone(false)
		if err := a.Revoke(t.Context(), ids[7]); err != nil {
			t.Fatal(err)
		}
		hold("one that comes with a store that was lost", users-6-auth.MaxMoves-1, 7)
		if n := s.Stats().Cached; n != users-7-auth.MaxMoves-1 {
			t.Errorf("%d are remembered", n)
		}
	})
}

func mustUser(t *testing.T, w *world, name string) auth.User {
	t.Helper()
	u, err := w.store.User(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func mustParse(t *testing.T, text []byte) auth.Secret {
	t.Helper()
	s, err := auth.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestForgedRecords: whoever writes into the store gets no rights that nobody has.
func TestForgedRecords(t *testing.T) {
	id := address.RandomInstanceID()
	for name, forge := range map[string]func(*auth.User, *auth.Session){
		"a user of level system":             func(u *auth.User, s *auth.Session) { u.Level, s.Instance = conduit.System, id },
		"a user of level system, unbound":    func(u *auth.User, _ *auth.Session) { u.Level = conduit.System },
		"a level that there is not":          func(u *auth.User, _ *auth.Session) { u.Level = 9 },
		"an instance without a binding":      func(u *auth.User, _ *auth.Session) { u.Name, u.Level = "instance:a", conduit.System },
		"an instance of another level":       func(u *auth.User, s *auth.Session) { u.Name, s.Instance = "instance:a", id },
		"a user's session, bound":            func(_ *auth.User, s *auth.Session) { s.Instance = id },
		"anonymous":                          func(u *auth.User, _ *auth.Session) { u.Level = conduit.Anonymous },
		"a session of an id that is none of": func(_ *auth.User, s *auth.Session) { s.ID[0] ^= 1 },
	} {
		inWorld(t, auth.SessionsOptions{}, func(w *world) {
			t := w.t
			u := auth.User{ID: auth.NewUserID(), Name: "mallory", Level: conduit.User, Stamp: auth.Seal([]byte("stamp"))}
			secret := auth.NewSecret(u.ID)
			s := auth.Session{ID: auth.SessionIDOf(u.Stamp.Reveal(), secret), User: u.ID, UserName: u.Name, Expires: time.Now().Add(time.Hour)}
			forge(&u, &s)
			s.UserName = u.Name
			w.no(w.store.AddUser(t.Context(), u))
			w.no(w.store.AddSession(t.Context(), s, u.Stamp))
			t.Log(name)
			w.refused(auth.Minted{Secret: secret}, conduit.ReasonUnauthenticated)
		})
	}
}

func TestInstanceSessions(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		id := address.RandomInstanceID()
		m, err := w.a.MintInstance(t.Context(), "host-1", id)
		w.no(err)
		if _, err := w.s.As(t.Context(), "link")(secretOf(m)); err == nil || err.Reason != conduit.ReasonUnauthenticated {
			t.Errorf("a call runs as an instance: %v", err)
		}
		g := w.valid(m)
		if g.Level != conduit.System || g.Instance != id || g.User != "instance:host-1" {
			t.Errorf("%+v", g)
		}
		if p, err, known := w.s.CachedAs(secretOf(m)); !known || err == nil || p != (auth.Principal{}) {
			t.Errorf("a call runs as an instance: %v, %v, %v", p, err, known)
		}
		if err := g.ForInstance(id); err != nil {
			t.Error(err)
		}
		for _, other := range []address.InstanceID{{}, address.RandomInstanceID()} {
			if err := g.ForInstance(other); err == nil || err.Reason != conduit.ReasonUnauthenticated {
				t.Errorf("it opens the link of %s: %v", other, err)
			}
		}
		if err := (auth.Grant{}).ForInstance(id); err != nil {
			t.Error(err)
		}
	})
}

func TestAuthenticate(t *testing.T) {
	inWorld(t, auth.SessionsOptions{Anonymous: true, Attempts: auth.NewAttempts(auth.AttemptsOptions{AddressBurst: 5})}, func(w *world) {
		t := w.t
		m := w.mint("ada", auth.MintOptions{Life: time.Hour})
		expired := w.mint("eve", auth.MintOptions{Life: time.Millisecond})
		time.Sleep(time.Second)
		unknown := auth.NewSecret(auth.NewUserID())
		from := 0
		ask := func(header, value string) (auth.Grant, error) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/cluster/v1", nil)
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1234", from)
			if header != "" {
				r.Header.Set(header, value)
			}
			return w.s.Authenticate(r)
		}
		for _, h := range []string{auth.HeaderAuthorization, auth.HeaderSession, auth.HeaderSessionOld} {
			from++
			prefix := ""
			if h == auth.HeaderAuthorization {
				prefix = "Bearer "
			}
			for range 20 {
				if g, err := ask(h, prefix+m.Secret.Reveal()); err != nil || g.User != "ada" {
					t.Errorf("%s: %v, %v", h, g, err)
				}
				if _, err := ask(h, prefix+expired.Secret.Reveal()); !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated, Reason: conduit.ReasonSessionExpired}) {
					t.Errorf("%s: %v", h, err)
				}
			}
			for i, bad := range []string{"", "x y", "short", unknown.Reveal(), strings.Repeat("0", 64)} {
				g, err := ask(h, prefix+bad)
				if !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated, Reason: conduit.ReasonUnauthenticated}) || g != (auth.Grant{}) {
					t.Errorf("%s, %d: %v, %v", h, i, g, err)
				}
				if err != nil && strings.Contains(err.Error(), unknown.Reveal()) {
					t.Error("the error holds the secret")
				}
			}
			if _, err := ask(h, prefix+auth.NewSecret(auth.NewUserID()).Reveal()); !errors.Is(err, &conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonTooManyAttempts}) {
				t.Errorf("the sixth bad one: %v", err)
			}
			if g, err := ask(h, prefix+m.Secret.Reveal()); err != nil || g.User != "ada" { // who is known is let in all the same
				t.Errorf("%s: %v, %v", h, g, err)
			}
		}
		if g, err := ask("", ""); err != nil || g != (auth.Grant{}) {
			t.Errorf("anonymous: %v, %v", g, err)
		}
		strict := auth.NewSessions(auth.SessionsOptions{Store: w.store, From: func(*http.Request) netip.Addr { return netip.Addr{} }})
		defer strict.Close()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/cluster/v1", nil)
		if g, err := strict.Authenticate(r); !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated}) || g != (auth.Grant{}) {
			t.Errorf("without a credential: %v, %v", g, err)
		}
		r.Header.Set(auth.HeaderSession, m.Secret.Reveal())
		if g, err := strict.Authenticate(r); err != nil || g.User != "ada" {
			t.Errorf("%v, %v", g, err)
		}
	})
}

func TestLoginAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := authtest.NewMemory()
		a := auth.NewAccounts(auth.AccountsOptions{Store: m, Hasher: auth.NewHasher(authtest.Cheap, 1), Attempts: auth.NewAttempts(auth.AttemptsOptions{UserBurst: 3, UserEvery: time.Minute})})
		if _, err := a.AddUser(t.Context(), "ada", conduit.User, []byte("correct horse")); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := a.Login(t.Context(), netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)), "ADA", []byte("wrong horse")); !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated}) {
				t.Error(err)
			}
		}
		_, err := a.Login(t.Context(), netip.MustParseAddr("192.0.2.9"), "ada", []byte("correct horse"))
		if !errors.Is(err, &conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonTooManyAttempts}) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute + time.Second)
		if _, err := a.Login(t.Context(), netip.MustParseAddr("192.0.2.9"), "ada", []byte("correct horse")); err != nil {
			t.Error(err)
		}
		m.Gone(true)
		time.Sleep(time.Hour)
		if _, err := a.Login(t.Context(), netip.Addr{}, "ada", []byte("correct horse")); !errors.Is(err, &conduit.Error{Code: conduit.Unavailable}) {
			t.Error(err)
		}
	})
}

// TestSweep: what was over for a day is forgotten, by somebody, within an hour or
// two.
func TestSweep(t *testing.T) {
	inWorld(t, auth.SessionsOptions{}, func(w *world) {
		t := w.t
		w.skew.Store(int64(-24 * time.Hour))
		w.mint("ada", auth.MintOptions{Life: time.Hour})
		w.skew.Store(0) // it has been over for 23 hours
		time.Sleep(59 * time.Minute)
		if all, err := w.a.Sessions(t.Context(), ""); err != nil || len(all) != 1 {
			t.Errorf("after a day: %v, %v", all, err)
		}
		time.Sleep(time.Hour + 2*time.Minute)
		if all, err := w.a.Sessions(t.Context(), ""); err != nil || len(all) != 0 {
			t.Errorf("after a day and more: %v, %v", all, err)
		}
	})
}

func TestClose(t *testing.T) {
	w := newWorld(t, auth.SessionsOptions{})
	m := w.mint("ada", auth.MintOptions{})
	w.valid(m)
	other := w.mint("bob", auth.MintOptions{})
	w.s.Close()
	w.s.Close()
	w.refused(other, conduit.ReasonStoreUnavailable)
}

// TestTogether has everything happen at once, for the race detector: nobody is ever
// somebody else, and what was revoked stays so.
func TestTogether(t *testing.T) {
	w := newWorld(t, auth.SessionsOptions{MaxCached: 64})
	defer w.s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var minted []auth.Minted
	for i := range 40 {
		minted = append(minted, w.mint(fmt.Sprintf("u%d", i), auth.MintOptions{}))
	}
	for worker := range 6 {
		wg.Go(func() {
			for i := range 2000 {
				m := minted[(i*7+worker)%len(minted)]
				g, err := w.s.Validate(ctx, secretOf(m), strconv.Itoa(worker))
				if err == nil && (g.User != m.User.Name || g.Session != m.Session.ID) {
					t.Errorf("%s is %s", m.User.Name, g.User)
				}
				if err == nil && i%50 == 0 {
					defer w.s.Watch(g, func(*conduit.Error) {})()
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 20 {
			if err := w.a.Revoke(ctx, minted[i].Session.ID); err != nil {
				t.Error(err)
			}
			w.s.Stats()
		}
	})
	wg.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; {
		left := 0
		for i, m := range minted {
			_, err := w.s.Validate(ctx, secretOf(m), "end")
			if (err == nil) != (i >= 20) {
				left++
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are what they should not be", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestCachedAllocatesNothing: a reader may call it.
func TestCachedAllocatesNothing(t *testing.T) {
	w := newWorld(t, auth.SessionsOptions{})
	defer w.s.Close()
	m := w.mint("ada", auth.MintOptions{})
	w.valid(m)
	good, bad := secretOf(m), []byte(strings.Repeat("0", auth.SecretLen))
	unknown := []byte(auth.NewSecret(auth.NewUserID()).Reveal())
	for name, secret := range map[string][]byte{"valid": good, "malformed": bad, "unknown": unknown} {
		n := testing.AllocsPerRun(1000, func() {
			_, _, _ = w.s.Cached(secret)
			_, _, _ = w.s.CachedAs(secret)
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// teller is a store that tells of moves when a test says so.
type teller struct {
	*authtest.Memory

	moved chan struct{}
	ended chan struct{} // closed when Tell has returned
}

// Tell implements auth.Teller.
func (t *teller) Tell(ctx context.Context, moved func()) {
	defer close(t.ended)
	for {
		select {
		case <-t.moved:
			moved()
		case <-ctx.Done():
			return
		}
	}
}

// TestTeller: a store that tells of a move is asked at once, once for many of them, and
// one that tells of nothing is asked as often as any.
func TestTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &teller{authtest.NewMemory(), make(chan struct{}), make(chan struct{})}
		a := auth.NewAccounts(auth.AccountsOptions{Store: store, Hasher: auth.NewHasher(authtest.Cheap, 1)})
		s := auth.NewSessions(auth.SessionsOptions{Store: store})
		if _, err := a.AddUser(t.Context(), "ada", conduit.User, nil); err != nil {
			t.Fatal(err)
		}
		m, err := a.Mint(t.Context(), "ada", auth.MintOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, bad := s.Validate(t.Context(), secretOf(m), "link"); bad != nil {
			t.Fatal(bad)
		}
		time.Sleep(10 * time.Millisecond) // of the bubble: far from the next question
		if err := a.Revoke(t.Context(), m.Session.ID); err != nil {
			t.Fatal(err)
		}
		before := store.Counts()["Generation"]
		for range 50 {
			store.moved <- struct{}{}
		}
		time.Sleep(50 * time.Millisecond)
		if _, bad := s.Validate(t.Context(), secretOf(m), "link"); bad == nil {
			t.Error("it was told, and the session is valid still")
		}
		if n := store.Counts()["Generation"] - before; n < 1 || n > 2 {
			t.Errorf("it was asked %d times", n)
		}
		// A word that is false changes nothing.
		store.moved <- struct{}{}
		time.Sleep(time.Second)
		if n := store.Counts()["Recheck"]; n != 1 {
			t.Errorf("sessions were compared %d times", n)
		}
		s.Close()
		<-store.ended
	})
}

func BenchmarkCached(b *testing.B) {
	store := authtest.NewMemory()
	a := auth.NewAccounts(auth.AccountsOptions{Store: store, Hasher: auth.NewHasher(authtest.Cheap, 1)})
	s := auth.NewSessions(auth.SessionsOptions{Store: store})
	defer s.Close()
	secrets := make([][]byte, 10_000)
	for i := range secrets {
		name := fmt.Sprintf("u%d", i)
		if _, err := a.AddUser(b.Context(), name, conduit.User, nil); err != nil {
			b.Fatal(err)
		}
		m, err := a.Mint(b.Context(), name, auth.MintOptions{})
		if err != nil {
			b.Fatal(err)
		}
		secrets[i] = secretOf(m)
		if _, err := s.Validate(b.Context(), secrets[i], "link"); err != nil {
			b.Fatal(err)
		}
	}
	for name, n := range map[string]int{"one": 1, "10000": len(secrets)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err, known := s.CachedAs(secrets[i]); err != nil || !known {
					b.Fatal(err)
				}
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}
