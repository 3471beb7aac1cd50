// Package authtest is what every store of users and sessions must do, as a test
// that each implementation runs, and a store in memory for tests of what uses one.
package authtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
)

// A Subject is an empty store under test.
type Subject struct {
	Store auth.Store
	// Again opens the same store once more, as another process would; nil = that
	// cannot be.
	Again func(t *testing.T) auth.Store
	// Gone makes the store fail as it does when what it stands on is lost, and
	// back as it was.
	Gone func(t *testing.T) (back func())
}

// Cheap is what hashing passwords costs in tests.
//
//nolint:gochecknoglobals // a constant, were there such structs
var Cheap = auth.PasswordCost{MemoryKiB: 64, Passes: 1, Threads: 1}

// patience ends a test that hangs.
const patience = time.Minute

// Run tests the store that open makes. What open starts ends with its t.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Log(c.why)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c.run(&test{T: t, Subject: open(t), ctx: ctx})
		})
	}
}

// test is one case with its store.
type test struct {
	*testing.T
	Subject

	ctx context.Context //nolint:containedctx // a test's
}

// start is the moment that tests make records at.
//
//nolint:gochecknoglobals // a constant, were there such times
var start = time.UnixMilli(1_790_000_000_123).UTC()

func (t *test) no(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails holds an error to its code and reason, and to what all have in common.
func (t *test) fails(err error, code conduit.Code, reason string) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != conduit.Refused || e.Message == "" {
		t.Errorf("error %v, want %s (%s) that refuses", err, code, reason)
	}
}

func (t *test) missingUser(err error) {
	t.Helper()
	t.fails(err, conduit.NotFound, conduit.ReasonUserNotFound)
}

func (t *test) missingSession(err error) {
	t.Helper()
	t.fails(err, conduit.NotFound, conduit.ReasonSessionNotFound)
}

func (t *test) generation() uint64 {
	t.Helper()
	g, err := t.Store.Generation(t.ctx)
	t.no(err)
	return g
}

// counts runs f and says whether the generation must move.
func (t *test) counts(what string, moves bool, f func()) {
	t.Helper()
	before := t.generation()
	f()
	if after := t.generation(); moves != (after > before) || after < before {
		t.Errorf("%s: the generation goes from %d to %d", what, before, after)
	}
}

func newUser(name string) auth.User {
	return auth.User{
		ID: auth.NewUserID(), Name: name, Level: conduit.User,
		Password: auth.Seal([]byte("$argon2id$hash of " + name)), Stamp: auth.Seal([]byte("stamp of " + name)), Created: start,
	}
}

func (t *test) add(name string) auth.User {
	t.Helper()
	u := newUser(name)
	t.no(t.Store.AddUser(t.ctx, u))
	return u
}

func newSession(u auth.User, life time.Duration) (auth.Session, auth.Secret) {
	secret := auth.NewSecret(u.ID)
	return auth.Session{
		ID: auth.SessionIDOf(u.Stamp.Reveal(), secret), User: u.ID, UserName: u.Name,
		Created: start, Seen: start, Expires: start.Add(life), Life: life,
	}, secret
}

func (t *test) mint(u auth.User, life time.Duration) (auth.Session, auth.Secret) {
	t.Helper()
	s, secret := newSession(u, life)
	t.no(t.Store.AddSession(t.ctx, s, u.Stamp))
	return s, secret
}

func sameUser(a, b auth.User) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Level == b.Level && a.Disabled == b.Disabled &&
		a.Password.Equal(b.Password) && a.Stamp.Equal(b.Stamp) && a.Created.Equal(b.Created)
}

// holds says whether a secret opens its session.
func (t *test) holds(u auth.User, s auth.Session, secret auth.Secret) {
	t.Helper()
	f, err := t.Store.Find(t.ctx, secret)
	if err != nil || f.Session != s || !sameUser(f.User, u) || f.Generation != t.generation() {
		t.Errorf("found %+v, %v; want %+v of %+v at generation %d", f, err, s, u, t.generation())
	}
}

func (t *test) ended(s auth.Session, secret auth.Secret) {
	t.Helper()
	_, err := t.Store.Find(t.ctx, secret)
	t.missingSession(err)
	found, _, err := t.Store.Recheck(t.ctx, []auth.SessionID{s.ID})
	if err != nil || len(found) != 1 || !found[0].Session.ID.IsZero() {
		t.Errorf("rechecked: %v, %v", found, err)
	}
	t.missingSession(t.Store.RemoveSession(t.ctx, s.ID))
}

//nolint:gochecknoglobals // a table
var cases = []struct {
	name, why string
	run       func(t *test)
}{
	{"Empty", "a new store holds nobody, and has an id", testEmpty},
	{"Users", "what is added comes back as it was, whatever it is", testUsers},
	{"Duplicates", "a name and an id are given once", testDuplicates},
	{"Missing", "what is not there is named as such by every method", testMissing},
	{"Pages", "lists come whole and in order, however they are cut", testPages},
	{"Changes", "a change keeps what never changes, ends what it must, and counts only if it must", testChanges},
	{"Change fails", "a change that fails leaves everything as it was", testChangeFails},
	{"Sessions", "a secret opens its own session and no other", testSessions},
	{"Not this user", "nobody gets a session who is disabled, removed, or had another stamp", testNotThisUser},
	{"Ends", "what ends sessions ends all of that user's, no other, and counts", testEnds},
	{"Expiry", "an expiry is moved forwards, and only while the session lasts: at every edge", testExpiry},
	{"Sweep", "what was over long ago is forgotten, and nothing else", testSweep},
	{"Most sessions", "a user's sessions are bounded: those that expire first end", testMost},
	{"Recheck", "many are compared at once, each in its place", testRecheck},
	{"Again", "another handle sees the same, at once", testAgain},
	{"Moved", "who moves the generation is told", testMoved},
	{"ManyMoves", "of more moves than are told apart it may have been anybody", testManyMoves},
	{"Concurrent", "writers of all kinds at once leave one consistent store", testConcurrent},
	{"Same name", "of many who add one name at once, one succeeds", testSameName},
	{"Read, change, write", "changes at once lose none", testLostUpdates},
	{"Gone", "a store that is lost in the middle says so from every method, and is as it was once it is back", testGone},
	{"Context", "a context that has ended ends the operation before it begins", testContext},
	{"Closed", "a closed store does nothing more", testClosed},
	{"Names", "Accounts on it: good and bad names, levels and passwords", testNames},
	{"Logins", "Accounts on it: who may log in, and what ends", testLogins},
	{"Instances", "Accounts on it: many instances at once, of one name too", testInstances},
	{"Random", "hundreds of random histories give the same as a store in memory", testRandom},
}

func testEmpty(t *test) {
	if t.Store.ID() == (auth.StoreID{}) {
		t.Error("no id")
	}
	users, err := t.Store.Users(t.ctx, "", 0)
	sessions, err2 := t.Store.Sessions(t.ctx, auth.SessionsOf{})
	n, err3 := t.Store.Sweep(t.ctx, start.Add(1000*time.Hour))
	if err := errors.Join(err, err2, err3); err != nil || len(users)+len(sessions)+n != 0 {
		t.Errorf("%v, %v, %d, %v", users, sessions, n, err)
	}
	t.counts("nothing", false, func() {})
}

func testUsers(t *test) {
	var all []auth.User
	for i, name := range []string{"a", "z9", "a.b_c@d-e+f", strings.Repeat("n", 64), "instance:B.c-1", "0"} {
		u := newUser(name)
		u.Level = conduit.Level(1 + i%3)
		u.Disabled = i%2 == 1
		if i%3 == 0 {
			u.Password = auth.Sealed{}
		}
		if i == 4 {
			u.Stamp = auth.Seal([]byte{0, 0xff, '"', '\\', '\n', 0x80})
		}
		u.Created = start.Add(time.Duration(i) * time.Millisecond)
		t.counts("adding a user", false, func() { t.no(t.Store.AddUser(t.ctx, u)) })
		all = append(all, u)
	}
	for _, u := range all {
		if got, err := t.Store.User(t.ctx, u.Name); err != nil || !sameUser(got, u) {
			t.Errorf("%+v, %v; want %+v", got, err, u)
		}
		t.counts("removing a user", true, func() { t.no(t.Store.RemoveUser(t.ctx, u.Name)) })
		_, err := t.Store.User(t.ctx, u.Name)
		t.missingUser(err)
	}
}

func testDuplicates(t *test) {
	u := t.add("ada")
	taken := func(err error) { t.Helper(); t.fails(err, conduit.AlreadyExists, conduit.ReasonUserExists) }
	taken(t.Store.AddUser(t.ctx, u))
	taken(t.Store.AddUser(t.ctx, newUser("ada")))
	same := newUser("bob")
	same.ID = u.ID
	taken(t.Store.AddUser(t.ctx, same))
	_, err := t.Store.User(t.ctx, "bob")
	t.missingUser(err)
	if got, err := t.Store.User(t.ctx, "ada"); err != nil || !sameUser(got, u) {
		t.Errorf("%+v, %v", got, err)
	}
	t.no(t.Store.RemoveUser(t.ctx, "ada"))
	t.no(t.Store.AddUser(t.ctx, newUser("ada")))
	t.no(t.Store.AddUser(t.ctx, same)) // its id is free again
}

func testMissing(t *test) {
	for _, name := range []string{"", "nobody", "ad", "adaa", "ADA", strings.Repeat("x", 40_000), "a\x00", "\xff\xfe"} {
		t.add("ada")
		_, err := t.Store.User(t.ctx, name)
		t.missingUser(err)
		_, err = t.Store.ChangeUser(t.ctx, name, func(*auth.User) error { t.Error("called for nobody"); return nil })
		t.missingUser(err)
		t.counts("removing nobody", false, func() { t.missingUser(t.Store.RemoveUser(t.ctx, name)) })
		_, err = t.Store.RemoveSessions(t.ctx, name)
		t.missingUser(err)
		t.no(t.Store.RemoveUser(t.ctx, "ada"))
	}
	u := newUser("stranger")
	s, secret := newSession(u, time.Hour)
	t.counts("ending nothing", false, func() { t.ended(s, secret) })
	t.ended(auth.Session{}, auth.Secret{})
	t.no(t.Store.Touch(t.ctx, start, nil))
	t.no(t.Store.Touch(t.ctx, start, []auth.Touch{{ID: s.ID, Seen: start, Expires: start.Add(time.Hour)}}))
	t.ended(s, secret)
	found, _, err := t.Store.Recheck(t.ctx, nil)
	if err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
}

func testPages(t *test) {
	var names []string
	var ids []auth.SessionID
	of := map[string]int{}
	for i := range 25 {
		u := t.add(fmt.Sprintf("user%02d", i*7%25))
		names = append(names, u.Name)
		for range i % 4 {
			s, _ := t.mint(u, time.Hour)
			ids = append(ids, s.ID)
			of[u.Name]++
		}
	}
	slices.Sort(names)
	slices.SortFunc(ids, func(a, b auth.SessionID) int { return strings.Compare(a.String(), b.String()) })
	for _, limit := range []int{-1, 0, 1, 2, 7, 24, 25, 26, 1 << 30} {
		var got []string
		for after := ""; ; {
			page, err := t.Store.Users(t.ctx, after, limit)
			t.no(err)
			if len(page) == 0 {
				break
			}
			if limit > 0 && len(page) > limit {
				t.Fatalf("a page of %d, asked for %d", len(page), limit)
			}
			for _, u := range page {
				got = append(got, u.Name)
			}
			after = got[len(got)-1]
		}
		if !slices.Equal(got, names) {
			t.Errorf("pages of %d: %v", limit, got)
		}
		var gotIDs []auth.SessionID
		for {
			o := auth.SessionsOf{Limit: limit}
			if len(gotIDs) > 0 {
				o.After = gotIDs[len(gotIDs)-1]
			}
			page, err := t.Store.Sessions(t.ctx, o)
			t.no(err)
			if len(page) == 0 {
				break
			}
			for _, s := range page {
				gotIDs = append(gotIDs, s.ID)
			}
		}
		if !slices.Equal(gotIDs, ids) {
			t.Errorf("pages of %d: %d sessions, want %d", limit, len(gotIDs), len(ids))
		}
	}
	for _, name := range names {
		u, err := t.Store.User(t.ctx, name)
		t.no(err)
		var got []auth.Session
		for {
			o := auth.SessionsOf{User: u.ID, Limit: 1}
			if len(got) > 0 {
				o.After = got[len(got)-1].ID
			}
			page, err := t.Store.Sessions(t.ctx, o)
			t.no(err)
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
		}
		if len(got) != of[name] || slices.ContainsFunc(got, func(s auth.Session) bool { return s.User != u.ID || s.UserName != name }) {
			t.Errorf("%s: %d sessions, want %d", name, len(got), of[name])
		}
	}
}

func testChanges(t *test) {
	for _, c := range []struct {
		name   string
		change func(*auth.User)
		effect auth.Effect
	}{
		{"nothing", func(*auth.User) {}, auth.Effect{}},
		{"hash", func(u *auth.User) { u.Password = auth.Seal([]byte("better")) }, auth.Effect{}},
		{"no hash", func(u *auth.User) { u.Password = auth.Sealed{} }, auth.Effect{}},
		{"level", func(u *auth.User) { u.Level = conduit.Superuser }, auth.Effect{Counts: true}},
		{"stamp", func(u *auth.User) { u.Stamp = auth.Seal([]byte("another")) }, auth.Effect{Counts: true, Ends: true}},
		{"disabled", func(u *auth.User) { u.Disabled = true }, auth.Effect{Counts: true, Ends: true}},
		{"fixed", func(u *auth.User) {
			u.ID, u.Name, u.Created = auth.NewUserID(), "other", start.Add(time.Hour)
		}, auth.Effect{}},
	} {
		u := t.add("ada")
		s, secret := t.mint(u, time.Hour)
		want := u
		c.change(&want)
		want.ID, want.Name, want.Created = u.ID, u.Name, u.Created
		t.counts(c.name, c.effect.Counts, func() {
			got, err := t.Store.ChangeUser(t.ctx, "ada", func(u *auth.User) error { c.change(u); return nil })
			if err != nil || !sameUser(got, want) {
				t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, want)
			}
		})
		if c.effect.Ends {
			t.ended(s, secret)
		} else {
			t.holds(want, s, secret)
		}
		if got, err := t.Store.User(t.ctx, "ada"); err != nil || !sameUser(got, want) {
			t.Errorf("%s: afterwards %+v, %v", c.name, got, err)
		}
		t.counts(c.name+", back", want.Disabled, func() {
			if _, err := t.Store.ChangeUser(t.ctx, "ada", func(u *auth.User) error { u.Disabled = false; return nil }); err != nil {
				t.Error(err)
			}
		})
		if c.effect.Ends {
			t.ended(s, secret) // it does not come back
		}
		t.no(t.Store.RemoveUser(t.ctx, "ada"))
	}
}

func testChangeFails(t *test) {
	u := t.add("ada")
	s, secret := t.mint(u, time.Hour)
	want := conduit.Errorf(conduit.Aborted, "mine", conduit.Refused, "no")
	t.counts("a change that fails", false, func() {
		_, err := t.Store.ChangeUser(t.ctx, "ada", func(u *auth.User) error {
			u.Level, u.Disabled, u.Stamp = conduit.Superuser, true, auth.Seal([]byte("x"))
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want its own error", err)
		}
	})
	t.holds(u, s, secret)
}

func testSessions(t *test) {
	ada, bob := t.add("ada"), t.add("bob")
	type minted struct {
		u      auth.User
		s      auth.Session
		secret auth.Secret
	}
	var all []minted
	for i, life := range []time.Duration{0, time.Millisecond, time.Hour, 48 * time.Hour, auth.MaxLife, -time.Hour} {
		u := []auth.User{ada, bob}[i%2]
		s, secret := newSession(u, life)
		if i%3 == 0 {
			s.Life = 0
		}
		if i%3 == 1 {
			s.Instance = address.RandomInstanceID()
		}
		s.Life = max(s.Life, 0)
		t.counts("a new session", false, func() { t.no(t.Store.AddSession(t.ctx, s, u.Stamp)) })
		all = append(all, minted{u, s, secret})
	}
	for _, m := range all {
		t.holds(m.u, m.s, m.secret)
		// The same random bytes in another user's name are another secret.
		other := []byte(m.secret.Reveal())
		copy(other[40:], []byte(ada.ID.String()))
		if _, err := auth.ParseSecret(other); err == nil && m.u.ID != ada.ID {
			t.Error("a secret changes hands")
		}
	}
	for i, m := range all {
		t.counts("ending a session", true, func() { t.no(t.Store.RemoveSession(t.ctx, m.s.ID)) })
		t.ended(m.s, m.secret)
		for _, m := range all[i+1:] {
			t.holds(m.u, m.s, m.secret)
		}
	}
}

func testNotThisUser(t *test) {
	denied := func(u auth.User, stamp auth.Sealed) {
		t.Helper()
		s, secret := newSession(u, time.Hour)
		t.counts("no session", false, func() {
			t.fails(t.Store.AddSession(t.ctx, s, stamp), conduit.Unauthenticated, conduit.ReasonUnauthenticated)
		})
		t.ended(s, secret)
	}
	denied(newUser("nobody"), auth.Seal([]byte("stamp of nobody")))
	u := t.add("ada")
	for _, stamp := range []string{"", "x", "stamp of ad", "stamp of adaa", "Stamp of ada"} {
		denied(u, auth.Seal([]byte(stamp)))
	}
	_, err := t.Store.ChangeUser(t.ctx, "ada", func(u *auth.User) error { u.Disabled = true; return nil })
	t.no(err)
	denied(u, u.Stamp)
	t.no(t.Store.RemoveUser(t.ctx, "ada"))
	denied(u, u.Stamp)
	again := t.add("ada") // has the same stamp here, and another id
	denied(u, u.Stamp)
	s, secret := t.mint(again, time.Hour)
	t.holds(again, s, secret)
}

func testEnds(t *test) {
	for name, end := range map[string]func(name string) error{
		"remove": func(name string) error { return t.Store.RemoveUser(t.ctx, name) },
		"revoke": func(name string) error {
			n, err := t.Store.RemoveSessions(t.ctx, name)
			if n != 10 {
				t.Errorf("%d sessions ended", n)
			}
			return err
		},
		"disable": func(name string) error {
			_, err := t.Store.ChangeUser(t.ctx, name, func(u *auth.User) error { u.Disabled = true; return nil })
			return err
		},
		"password": func(name string) error {
			_, err := t.Store.ChangeUser(t.ctx, name, func(u *auth.User) error { u.Stamp = auth.Seal([]byte("new")); return nil })
			return err
		},
	} {
		victim, other := t.add("victim-"+name), t.add("other-"+name)
		// Neighbours in every order of ids and names.
		var lost, kept []auth.Secret
		var lostS, keptS []auth.Session
		for range 10 {
			s, secret := t.mint(victim, time.Hour)
			lost, lostS = append(lost, secret), append(lostS, s)
			s, secret = t.mint(other, time.Hour)
			kept, keptS = append(kept, secret), append(keptS, s)
		}
		t.counts(name, true, func() { t.no(end(victim.Name)) })
		for i := range lost {
			t.ended(lostS[i], lost[i])
			t.holds(other, keptS[i], kept[i])
		}
		left, err := t.Store.Sessions(t.ctx, auth.SessionsOf{User: victim.ID})
		if err != nil || len(left) != 0 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
	}
	u := t.add("none")
	t.counts("revoking none", false, func() {
		if n, err := t.Store.RemoveSessions(t.ctx, u.Name); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
}

func testExpiry(t *test) {
	u := t.add("ada")
	const life = time.Hour
	end := start.Add(life)
	ms := time.Millisecond
	for _, now := range []time.Time{start.Add(-24 * time.Hour), start, end.Add(-ms), end, end.Add(ms), end.Add(24 * time.Hour)} {
		for _, to := range []time.Time{start.Add(-life), start, end.Add(-ms), end, end.Add(ms), end.Add(life), now.Add(life)} {
			s, secret := t.mint(u, life)
			seen := to.Add(-life)
			t.counts("moving an expiry", false, func() {
				t.no(t.Store.Touch(t.ctx, now, []auth.Touch{{ID: s.ID, Seen: seen, Expires: to}}))
			})
			if now.Before(end) && to.After(end) {
				s.Seen, s.Expires = seen, to
			}
			t.holds(u, s, secret)
			t.no(t.Store.RemoveSession(t.ctx, s.ID))
		}
	}
	// In a batch each is for itself.
	var batch []auth.Touch
	var all []auth.Session
	var secrets []auth.Secret
	for i := range 100 {
		s, secret := t.mint(u, time.Duration(i)*time.Minute)
		batch = append(batch, auth.Touch{ID: s.ID, Seen: start.Add(time.Second), Expires: start.Add(100 * time.Minute)})
		all, secrets = append(all, s), append(secrets, secret)
	}
	t.no(t.Store.RemoveSession(t.ctx, all[70].ID))
	t.no(t.Store.Touch(t.ctx, start.Add(50*time.Minute), batch))
	for i, s := range all {
		switch {
		case i == 70:
			t.ended(s, secrets[i])
			continue
		case i > 50:
			s.Seen, s.Expires = batch[i].Seen, batch[i].Expires
		}
		t.holds(u, s, secrets[i])
	}
}

func testSweep(t *test) {
	u := t.add("ada")
	at := start.Add(time.Hour)
	ms := time.Millisecond
	old, oldSecret := t.mint(u, time.Hour-ms)
	edge, edgeSecret := t.mint(u, time.Hour)
	young, youngSecret := t.mint(u, time.Hour+ms)
	t.counts("sweeping", false, func() {
		if n, err := t.Store.Sweep(t.ctx, at); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
	t.ended(old, oldSecret)
	t.holds(u, edge, edgeSecret)
	t.holds(u, young, youngSecret)
	for _, want := range []int{2, 0} {
		if n, err := t.Store.Sweep(t.ctx, at.Add(time.Hour)); n != want || err != nil {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
	}
	left, err := t.Store.Sessions(t.ctx, auth.SessionsOf{User: u.ID})
	if err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func testMost(t *test) {
	u, other := t.add("ada"), t.add("bob")
	kept, keptSecret := t.mint(other, time.Millisecond)
	first, firstSecret := t.mint(u, time.Hour)
	short, shortSecret := t.mint(u, time.Minute)
	for range auth.MaxSessions - 2 {
		t.counts("room", false, func() { t.mint(u, 2*time.Hour) })
	}
	t.holds(u, short, shortSecret)
	t.counts("no room", true, func() { t.mint(u, 2*time.Hour) })
	t.ended(short, shortSecret)
	t.holds(u, first, firstSecret)
	before := t.generation()
	t.counts("no room", true, func() { t.mint(u, 2*time.Hour) })
	if m := t.moved(t.Store, before); m.Everyone || !slices.Equal(m.Users, []auth.UserID{u.ID}) {
		t.Errorf("no room: it moved for %+v", m)
	}
	t.ended(first, firstSecret)
	t.holds(other, kept, keptSecret)
	all, err := t.Store.Sessions(t.ctx, auth.SessionsOf{User: u.ID})
	if err != nil || len(all) != auth.MaxSessions {
		t.Errorf("%d sessions, %v", len(all), err)
	}
}

func testRecheck(t *test) {
	var ids []auth.SessionID
	var want []auth.Session
	for i := range 60 {
		u := t.add(fmt.Sprintf("u%d", i))
		s, _ := t.mint(u, time.Duration(i)*time.Hour)
		switch i % 3 {
		case 1:
			t.no(t.Store.RemoveSession(t.ctx, s.ID))
			want = append(want, auth.Session{})
		case 2:
			t.no(t.Store.RemoveUser(t.ctx, u.Name))
			want = append(want, auth.Session{})
		default:
			want = append(want, s)
		}
		ids = append(ids, s.ID)
	}
	ids, want = append(ids, ids[0], auth.SessionID{}), append(want, want[0], auth.Session{})
	found, g, err := t.Store.Recheck(t.ctx, ids)
	if err != nil || g != t.generation() || len(found) != len(ids) {
		t.Fatalf("%d, %d, %v", len(found), g, err)
	}
	for i := range want {
		if found[i].Session != want[i] || (want[i].ID.IsZero() != found[i].User.ID.IsZero()) {
			t.Errorf("%d: %+v, want %+v", i, found[i], want[i])
		}
	}
}

func testAgain(t *test) {
	if t.Again == nil {
		t.Skip("there is one handle only")
	}
	b := t.Again(t.T)
	if b.ID() != t.Store.ID() {
		t.Fatal("two ids")
	}
	u := t.add("ada")
	for i := range 20 {
		s, secret := t.mint(u, time.Hour)
		if f, err := b.Find(t.ctx, secret); err != nil || f.Session != s {
			t.Fatalf("%d: %+v, %v", i, f, err)
		}
		before, err := b.Generation(t.ctx)
		t.no(err)
		t.no(t.Store.RemoveSession(t.ctx, s.ID))
		after, err := b.Generation(t.ctx)
		if err != nil || after != before+1 || after != t.generation() {
			t.Fatalf("%d: the generation goes from %d to %d, %v", i, before, after, err)
		}
	}
	t.no(b.RemoveUser(t.ctx, "ada"))
	_, err := t.Store.User(t.ctx, "ada")
	t.missingUser(err)
}

// moved returns whom the moves since a generation were about, in the order of their ids.
func (t *test) moved(s auth.Store, since uint64) auth.Moves {
	t.Helper()
	m, err := s.Moved(t.ctx, since)
	t.no(err)
	slices.SortFunc(m.Users, func(a, b auth.UserID) int { return bytes.Compare(a[:], b[:]) })
	return m
}

func testMoved(t *test) {
	ada, bob, eve := t.add("ada"), t.add("bob"), t.add("eve")
	base := t.generation()
	var whom []auth.UserID
	hold := func(what string, more ...auth.UserID) {
		t.Helper()
		whom = append(whom, more...)
		want := slices.SortedFunc(slices.Values(whom), func(a, b auth.UserID) int { return bytes.Compare(a[:], b[:]) })
		if m := t.moved(t.Store, base); m.Everyone || m.Generation != base+uint64(len(want)) || m.Generation != t.generation() || !slices.Equal(m.Users, want) {
			t.Errorf("%s: %+v, want %v at %d", what, m, want, base+uint64(len(want)))
		}
	}
	hold("nothing")
	s, _ := t.mint(ada, time.Hour)
	hold("a session")
	t.no(t.Store.RemoveSession(t.ctx, s.ID))
	hold("a session that is ended", ada.ID)
	t.mint(bob, time.Hour)
	t.mint(bob, time.Hour)
	if _, err := t.Store.RemoveSessions(t.ctx, "bob"); err != nil {
		t.Error(err)
	}
	hold("two that are ended at once", bob.ID)
	change := func(name string, f func(*auth.User)) {
		t.Helper()
		_, err := t.Store.ChangeUser(t.ctx, name, func(u *auth.User) error { f(u); return nil })
		t.no(err)
	}
	change("ada", func(u *auth.User) { u.Password = auth.Seal([]byte("a better hash")) })
	hold("a change that does not count")
	change("ada", func(u *auth.User) { u.Level = conduit.Superuser })
	hold("a level", ada.ID)
	change("eve", func(u *auth.User) { u.Disabled = true })
	hold("disabled", eve.ID)
	t.no(t.Store.RemoveUser(t.ctx, "bob"))
	hold("removed", bob.ID)
	// Only what came since.
	if m := t.moved(t.Store, t.generation()-2); m.Everyone || len(m.Users) != 2 || !slices.Contains(m.Users, eve.ID) || !slices.Contains(m.Users, bob.ID) {
		t.Errorf("the last two: %+v", m)
	}
	if m := t.moved(t.Store, t.generation()); m.Everyone || len(m.Users) != 0 {
		t.Errorf("none: %+v", m)
	}
	if m := t.moved(t.Store, t.generation()+1); !m.Everyone || m.Generation != t.generation() || m.Users != nil {
		t.Errorf("of a generation to come: %+v", m)
	}
	if t.Again != nil {
		if m := t.moved(t.Again(t.T), base); m.Everyone || len(m.Users) != len(whom) {
			t.Errorf("another handle: %+v", m)
		}
	}
}

func testManyMoves(t *test) {
	ada := t.add("ada")
	base := t.generation()
	for i := range auth.MaxMoves + 1 {
		s, _ := t.mint(ada, time.Hour)
		t.no(t.Store.RemoveSession(t.ctx, s.ID))
		m := t.moved(t.Store, base)
		if i < auth.MaxMoves && (m.Everyone || len(m.Users) != i+1) {
			t.Fatalf("%d moves: %+v", i+1, m)
		}
		if i == auth.MaxMoves && (!m.Everyone || m.Users != nil || m.Generation != t.generation()) {
			t.Errorf("%d moves: %+v", i+1, m)
		}
	}
	if m := t.moved(t.Store, base+1); m.Everyone || len(m.Users) != auth.MaxMoves {
		t.Errorf("the last %d: %+v", auth.MaxMoves, m)
	}
}

func testConcurrent(t *test) {
	stores := []auth.Store{t.Store}
	if t.Again != nil {
		stores = append(stores, t.Again(t.T))
	}
	const workers, rounds = 6, 6
	var wg sync.WaitGroup
	kept := make([][]auth.Secret, workers)
	for w := range workers {
		s := stores[w%len(stores)]
		wg.Go(func() {
			u := newUser(fmt.Sprintf("w%d", w))
			if err := s.AddUser(t.ctx, u); err != nil {
				t.Error(err)
				return
			}
			for range rounds {
				a, aSecret := newSession(u, time.Hour)
				b, _ := newSession(u, time.Hour)
				_, g1 := s.Generation(t.ctx)
				err := errors.Join(
					g1, s.AddSession(t.ctx, a, u.Stamp), s.AddSession(t.ctx, b, u.Stamp), s.RemoveSession(t.ctx, b.ID),
					s.Touch(t.ctx, start, []auth.Touch{{ID: a.ID, Seen: start, Expires: start.Add(2 * time.Hour)}}))
				f, err2 := s.Find(t.ctx, aSecret)
				if err := errors.Join(err, err2); err != nil || !f.Session.Expires.Equal(start.Add(2*time.Hour)) {
					t.Errorf("%v, %v", f.Session, err)
				}
				kept[w] = append(kept[w], aSecret)
			}
		})
	}
	wg.Wait()
	all, err := t.Store.Sessions(t.ctx, auth.SessionsOf{})
	if err != nil || len(all) != workers*rounds || t.generation() != workers*rounds {
		t.Errorf("%d sessions, generation %d, %v", len(all), t.generation(), err)
	}
	for _, secrets := range kept {
		for _, secret := range secrets {
			if _, err := t.Store.Find(t.ctx, secret); err != nil {
				t.Error(err)
			}
		}
	}
}

func testSameName(t *test) {
	stores := []auth.Store{t.Store}
	if t.Again != nil {
		stores = append(stores, t.Again(t.T))
	}
	var wg sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		wg.Go(func() { errs[i] = stores[i%len(stores)].AddUser(t.ctx, newUser("ada")) })
	}
	wg.Wait()
	added := 0
	for _, err := range errs {
		if err == nil {
			added++
			continue
		}
		t.fails(err, conduit.AlreadyExists, conduit.ReasonUserExists)
	}
	if added != 1 {
		t.Errorf("%d of them were added", added)
	}
}

func testLostUpdates(t *test) {
	stores := []auth.Store{t.Store}
	if t.Again != nil {
		stores = append(stores, t.Again(t.T))
	}
	t.add("ada")
	_, err := t.Store.ChangeUser(t.ctx, "ada", func(u *auth.User) error { u.Password = auth.Seal([]byte{1}); return nil })
	t.no(err)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := stores[i%len(stores)].ChangeUser(t.ctx, "ada", func(u *auth.User) error {
				u.Password = auth.Seal([]byte{u.Password.Reveal()[0] + 1})
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if u, err := t.Store.User(t.ctx, "ada"); err != nil || u.Password.Reveal()[0] != n+1 {
		t.Errorf("%v, %v", u.Password.Reveal(), err)
	}
}

// methods calls each method that can fail.
func (t *test) methods(ctx context.Context, s auth.Store, u auth.User, session auth.Session, secret auth.Secret) map[string]error {
	other, _ := newSession(u, time.Hour)
	errs := map[string]error{
		"AddUser":       s.AddUser(ctx, newUser("new")),
		"RemoveUser":    s.RemoveUser(ctx, u.Name),
		"AddSession":    s.AddSession(ctx, other, u.Stamp),
		"RemoveSession": s.RemoveSession(ctx, session.ID),
		"Touch":         s.Touch(ctx, start, []auth.Touch{{ID: session.ID, Seen: start, Expires: start.Add(9 * time.Hour)}}),
	}
	_, errs["Generation"] = s.Generation(ctx)
	_, errs["Moved"] = s.Moved(ctx, 0)
	_, errs["User"] = s.User(ctx, u.Name)
	_, errs["Users"] = s.Users(ctx, "", 0)
	_, errs["ChangeUser"] = s.ChangeUser(ctx, u.Name, func(u *auth.User) error { u.Disabled = true; return nil })
	_, errs["Find"] = s.Find(ctx, secret)
	_, _, errs["Recheck"] = s.Recheck(ctx, []auth.SessionID{session.ID})
	_, errs["Sessions"] = s.Sessions(ctx, auth.SessionsOf{})
	_, errs["RemoveSessions"] = s.RemoveSessions(ctx, u.Name)
	_, errs["Sweep"] = s.Sweep(ctx, start.Add(9*time.Hour))
	return errs
}

func testGone(t *test) {
	u := t.add("ada")
	s, secret := t.mint(u, time.Hour)
	before := t.generation()
	for range 3 {
		back := t.Gone(t.T)
		for name, err := range t.methods(t.ctx, t.Store, u, s, secret) {
			e, ok := errors.AsType[*conduit.Error](err)
			if !ok || e.Code != conduit.Unavailable || e.Reason != conduit.ReasonStoreUnavailable || !e.Retryable {
				t.Errorf("%s: %v, want unavailable (store_unavailable), retryable", name, err)
			}
		}
		back()
		t.holds(u, s, secret)
		if t.generation() != before {
			t.Error("the generation moved")
		}
	}
}

func testContext(t *test) {
	u := t.add("ada")
	s, secret := t.mint(u, time.Hour)
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	for name, err := range t.methods(ctx, t.Store, u, s, secret) {
		if name == "Generation" && err == nil {
			continue // it may well be known
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.holds(u, s, secret)
}

func testClosed(t *test) {
	u := t.add("ada")
	s, secret := t.mint(u, time.Hour)
	t.no(t.Store.Close())
	t.no(t.Store.Close())
	for name, err := range t.methods(t.ctx, t.Store, u, s, secret) {
		if name == "Generation" && err == nil {
			continue
		}
		t.fails(err, conduit.Unavailable, conduit.ReasonStoreUnavailable)
	}
}

// testRandom compares the store with one in memory over random histories.
func testRandom(t *test) {
	const histories, steps = 12, 40
	for seed := range uint64(histories) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a history that can be repeated
		m := NewMemory()
		m.generation = t.generation()
		names := []string{fmt.Sprintf("a%d", seed), fmt.Sprintf("b%d", seed), fmt.Sprintf("c%d", seed)}
		type minted struct {
			s      auth.Session
			secret auth.Secret
		}
		var all []minted
		base := t.generation()
		for step := range steps {
			name := names[r.IntN(len(names))]
			now := start.Add(time.Duration(r.IntN(200)-50) * time.Minute)
			var what string
			both := func(f func(auth.Store) (any, error)) {
				t.Helper()
				a, errA := f(t.Store)
				b, errB := f(m)
				if fmt.Sprint(a) != fmt.Sprint(b) || !sameError(errA, errB) {
					t.Fatalf("history %d, step %d, %s: %v, %v; want %v, %v", seed, step, what, a, errA, b, errB)
				}
			}
			switch r.IntN(10) {
			case 0, 1:
				what = "add"
				u := newUser(name)
				both(func(s auth.Store) (any, error) { return nil, s.AddUser(t.ctx, u) })
			case 2:
				what = "remove"
				if r.IntN(3) == 0 {
					both(func(s auth.Store) (any, error) { return nil, s.RemoveUser(t.ctx, name) })
				}
			case 3:
				what = "change"
				kind, stamp := r.IntN(4), strconv.Itoa(step)
				both(func(s auth.Store) (any, error) {
					u, err := s.ChangeUser(t.ctx, name, func(u *auth.User) error {
						switch kind {
						case 0:
							u.Disabled = !u.Disabled
						case 1:
							u.Stamp = auth.Seal([]byte(stamp))
						case 2:
							u.Level = 3 - u.Level
						}
						return nil
					})
					return u.ID.String() + u.Level.String() + strconv.FormatBool(u.Disabled), err
				})
			case 4, 5, 6:
				what = "mint"
				u, err := m.User(t.ctx, name)
				if err != nil {
					continue
				}
				s, secret := newSession(u, time.Duration(r.IntN(120))*time.Minute)
				both(func(st auth.Store) (any, error) { return nil, st.AddSession(t.ctx, s, u.Stamp) })
				all = append(all, minted{s, secret})
			case 7:
				what = "revoke"
				if len(all) > 0 {
					id := all[r.IntN(len(all))].s.ID
					both(func(s auth.Store) (any, error) { return nil, s.RemoveSession(t.ctx, id) })
				}
			case 8:
				what = "touch"
				var batch []auth.Touch
				for _, m := range all {
					batch = append(batch, auth.Touch{ID: m.s.ID, Seen: now, Expires: now.Add(time.Hour)})
				}
				both(func(s auth.Store) (any, error) { return nil, s.Touch(t.ctx, now, batch) })
			case 9:
				what = "sweep"
				both(func(s auth.Store) (any, error) { return s.RemoveSessions(t.ctx, name) })
			}
			what = "afterwards"
			both(func(s auth.Store) (any, error) { return s.Generation(t.ctx) })
			what = "whom it moved for"
			since := max(base, m.generation-min(m.generation, uint64(r.IntN(8))))
			both(func(s auth.Store) (any, error) {
				moved, err := s.Moved(t.ctx, since)
				slices.SortFunc(moved.Users, func(a, b auth.UserID) int { return bytes.Compare(a[:], b[:]) })
				return moved, err
			})
		}
		for _, mint := range all {
			f, errA := t.Store.Find(t.ctx, mint.secret)
			g, errB := m.Find(t.ctx, mint.secret)
			if f.Session != g.Session || !sameUser(f.User, g.User) || !sameError(errA, errB) {
				t.Fatalf("history %d: %+v, %v; want %+v, %v", seed, f, errA, g, errB)
			}
		}
		if t.generation() < base {
			t.Error("the generation goes back")
		}
		for _, name := range names {
			_ = t.Store.RemoveUser(t.ctx, name)
		}
	}
}

func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	x, ok := errors.AsType[*conduit.Error](a)
	y, ok2 := errors.AsType[*conduit.Error](b)
	return ok && ok2 && x.Code == y.Code && x.Reason == y.Reason
}
