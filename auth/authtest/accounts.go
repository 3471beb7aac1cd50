package authtest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
)

// clock is one that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (t *test) accounts(c *clock) *auth.Accounts {
	return auth.NewAccounts(auth.AccountsOptions{Store: t.Store, Hasher: auth.NewHasher(Cheap, 2), Now: c.Now})
}

func testNames(t *test) {
	a := t.accounts(&clock{now: start})
	good := []byte("correct horse battery")
	for _, n := range []struct{ name, clean string }{
		{"ada", "ada"}, {"Ada", ""}, {"ADA.L@Example.COM", "ada.l@example.com"}, {"x", "x"}, {"0-9_+", "0-9_+"}, {strings.Repeat("m", 64), strings.Repeat("m", 64)},
	} {
		u, err := a.AddUser(t.ctx, n.name, conduit.User, good)
		if n.clean == "" {
			t.fails(err, conduit.AlreadyExists, conduit.ReasonUserExists)
			continue
		}
		if err != nil || u.Name != n.clean {
			t.Errorf("%q: %q, %v", n.name, u.Name, err)
		}
	}
	bad := func(what string, err error) {
		t.Helper()
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || e.Code != conduit.InvalidArgument || e.Reason != conduit.ReasonBadUser || len(e.Message) > 1000 {
			t.Errorf("%s: %v, want bad_user", what, err)
		}
	}
	for _, name := range []string{
		"", " ", "a b", " ada", "ada ", "-a", ".a", "_a", "@a", "a:b", "element:greeter", "operator:x", "a/b", "a\\b", "a\x00b", "a\nb", "a\tb", "ä", "аda" /* Cyrillic */, "\u212a", "a\u200b",
		"\xff", strings.Repeat("n", 65), strings.Repeat("n", 1<<20), "a'b", "a\"b", "a;b", "$a", "*", "a*", "a,b", "a=b", "a#b", "a%00", "ａ",
		"instance:", "instance:-x", "instance:a:b", "instance:" + strings.Repeat("n", 65), "instance:\u212a", "Instance:a", "instance:a b",
	} {
		_, err := a.AddUser(t.ctx, name, conduit.User, good)
		bad(fmt.Sprintf("add %.40q", name), err)
		bad("password", a.SetPassword(t.ctx, name, good))
		bad("level", a.SetLevel(t.ctx, name, conduit.User))
		bad("disable", a.SetDisabled(t.ctx, name, true))
		bad("remove", a.RemoveUser(t.ctx, name))
		_, err = a.Mint(t.ctx, name, auth.MintOptions{})
		bad("mint", err)
		_, err = a.RevokeUser(t.ctx, name)
		bad("revoke", err)
		if name != "" { // which lists all
			_, err = a.Sessions(t.ctx, name)
			bad("list", err)
		}
		_, err = a.Login(t.ctx, netip.Addr{}, name, good)
		t.fails(err, conduit.Unauthenticated, conduit.ReasonUnauthenticated)
	}
	for _, password := range []string{
		"", "1", "seven77", strings.Repeat("p", 1025), strings.Repeat("p", 10<<20), "with\nnewline", "nul\x00nul nul", "tab\ttabtab", "\xff\xff\xff\xff\xff\xff\xff\xff", "ééééééé", "delete\x7fdelete",
	} {
		_, err := a.AddUser(t.ctx, "new", conduit.User, []byte(password))
		bad(fmt.Sprintf("password %.20q", password), err)
		bad("password", a.SetPassword(t.ctx, "ada", []byte(password)))
		_, err = a.Login(t.ctx, netip.Addr{}, "ada", []byte(password))
		t.fails(err, conduit.Unauthenticated, conduit.ReasonUnauthenticated)
	}
	for _, level := range []conduit.Level{conduit.Anonymous, conduit.System, 4, 255} {
		_, err := a.AddUser(t.ctx, "new", level, good)
		bad(level.String(), err)
		bad(level.String(), a.SetLevel(t.ctx, "ada", level))
		_, err = a.AddUser(t.ctx, "instance:a", level, good)
		bad(level.String(), err)
	}
	_, err := a.AddUser(t.ctx, "instance:a", conduit.User, good)
	bad("an instance's user", err)
	for _, life := range []time.Duration{-1, -time.Hour, time.Nanosecond, auth.MaxLife + 1, 1<<63 - 1, -1 << 63} {
		_, err := a.Mint(t.ctx, "ada", auth.MintOptions{Life: life})
		if life == auth.MaxLife+1 { // cut to the millisecond
			t.no(err)
			continue
		}
		bad(life.String(), err)
	}
	_, err = a.AddUser(t.ctx, "new", conduit.User, nil)
	t.no(err) // everything above left it unmade
}

func testLogins(t *test) {
	c := &clock{now: start}
	a := t.accounts(c)
	from := netip.MustParseAddr("192.0.2.1")
	denied := func(name, password string) {
		t.Helper()
		m, err := a.Login(t.ctx, from, name, []byte(password))
		t.fails(err, conduit.Unauthenticated, conduit.ReasonUnauthenticated)
		if !m.Secret.IsZero() || err != nil && !strings.Contains(err.Error(), "the name or the password is wrong") {
			t.Errorf("%v, %v", m, err)
		}
	}
	login := func(name, password string) auth.Minted {
		t.Helper()
		m, err := a.Login(t.ctx, from, name, []byte(password))
		t.no(err)
		if f, err := t.Store.Find(t.ctx, m.Secret); err != nil || f.Session != m.Session || f.User.Name != "ada" || !m.Session.Expires.Equal(start.Add(auth.DefaultLife)) {
			t.Fatalf("%+v, %v", f, err)
		}
		return m
	}
	const old, fresh = "an old password", "a new Password\u00e9"
	_, err := a.AddUser(t.ctx, "ada", conduit.Superuser, []byte(old))
	t.no(err)
	_, err = a.AddUser(t.ctx, "minted-only", conduit.User, nil)
	t.no(err)

	m := login("ADA", old)
	for _, wrong := range []string{"", "an old passwor", "an old password ", "An old password", "bn old password", "an old passwore", old + old} {
		denied("ada", wrong)
	}
	for _, name := range []string{"nobody", "minted-only", "", "instance:a", "ada "} {
		denied(name, old)
	}

	t.no(a.SetPassword(t.ctx, "ada", []byte(fresh)))
	t.ended(m.Session, m.Secret)
	denied("ada", old)
	m = login("ada", fresh)
	login("ada", "a new Passworde\u0301") // the same, as a Mac types it

	t.no(a.SetDisabled(t.ctx, "ada", true))
	t.ended(m.Session, m.Secret)
	denied("ada", fresh)
	denied("ada", old)
	_, err = a.Mint(t.ctx, "ada", auth.MintOptions{})
	t.fails(err, conduit.FailedPrecondition, conduit.ReasonBadUser)
	t.no(a.SetDisabled(t.ctx, "ada", false))
	t.ended(m.Session, m.Secret)
	m = login("ada", fresh)

	t.no(a.SetPassword(t.ctx, "ada", nil))
	t.ended(m.Session, m.Secret)
	denied("ada", fresh)
	t.no(a.SetPassword(t.ctx, "ada", []byte(fresh)))
	m = login("ada", fresh)

	t.no(a.SetLevel(t.ctx, "ada", conduit.User))
	if f, err := t.Store.Find(t.ctx, m.Secret); err != nil || f.User.Level != conduit.User {
		t.Errorf("%+v, %v", f.User, err)
	}
	t.no(a.Revoke(t.ctx, m.Session.ID))
	t.ended(m.Session, m.Secret)
	login("ada", fresh)
	if n, err := a.RevokeUser(t.ctx, "Ada"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	m = login("ada", fresh)
	if all, err := a.Sessions(t.ctx, "ada"); err != nil || len(all) != 1 || all[0] != m.Session {
		t.Errorf("%v, %v", all, err)
	}
	t.no(a.RemoveUser(t.ctx, "ada"))
	t.ended(m.Session, m.Secret)
	denied("ada", fresh)
	_, err = a.Sessions(t.ctx, "ada")
	t.missingUser(err)
	if all, err := a.Users(t.ctx); err != nil || len(all) != 1 || all[0].Name != "minted-only" {
		t.Errorf("%v, %v", all, err)
	}

	// A hash by other parameters is made anew at the login, and nothing ends.
	u, err := a.AddUser(t.ctx, "eve", conduit.User, []byte(old))
	t.no(err)
	m, err = a.Mint(t.ctx, "eve", auth.MintOptions{Life: time.Minute, Fixed: true})
	t.no(err)
	if m.Session.Life != 0 || !m.Session.Expires.Equal(start.Add(time.Minute)) {
		t.Errorf("%+v", m.Session)
	}
	dearer := Cheap
	dearer.Passes++
	b := auth.NewAccounts(auth.AccountsOptions{Store: t.Store, Hasher: auth.NewHasher(dearer, 1), Now: c.Now})
	t.counts("a hash made anew", false, func() {
		_, err = b.Login(t.ctx, from, "eve", []byte(old))
		t.no(err)
	})
	now, err := t.Store.User(t.ctx, "eve")
	if err != nil || now.Password.Equal(u.Password) || !now.Stamp.Equal(u.Stamp) {
		t.Errorf("the hash was not made anew: %v", err)
	}
	t.holds(now, m.Session, m.Secret)
	_, err = b.Login(t.ctx, from, "eve", []byte(old))
	t.no(err)
	if again, err := t.Store.User(t.ctx, "eve"); err != nil || !again.Password.Equal(now.Password) {
		t.Errorf("the hash was made anew twice: %v", err)
	}
}

func testInstances(t *test) {
	a := t.accounts(&clock{now: start})
	var wg sync.WaitGroup
	minted := make([]auth.Minted, 12)
	for i := range minted {
		wg.Go(func() {
			var err error
			minted[i], err = a.MintInstance(t.ctx, fmt.Sprintf("Host-%d", i%3), address.UniqueInstanceID(strconv.Itoa(i)))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, m := range minted {
		f, err := t.Store.Find(t.ctx, m.Secret)
		if err != nil || f.User.Level != conduit.System || f.User.Name != fmt.Sprintf("instance:Host-%d", i%3) || f.Session.Instance != address.UniqueInstanceID(strconv.Itoa(i)) {
			t.Errorf("%d: %+v, %v", i, f, err)
		}
	}
	if users, err := a.Users(t.ctx); err != nil || len(users) != 3 {
		t.Errorf("%v, %v", users, err)
	}
	bad := func(err error) { t.Helper(); t.fails(err, conduit.InvalidArgument, conduit.ReasonBadUser) }
	_, err := a.MintInstance(t.ctx, "x", address.InstanceID{})
	bad(err)
	for _, name := range []string{"", "a:b", "a b", strings.Repeat("n", 65)} {
		_, err = a.MintInstance(t.ctx, name, address.RandomInstanceID())
		bad(err)
	}
	_, err = a.Mint(t.ctx, "instance:Host-0", auth.MintOptions{})
	bad(err)
	bad(a.SetPassword(t.ctx, "instance:Host-0", []byte("long enough")))
	bad(a.SetLevel(t.ctx, "instance:Host-0", conduit.User))
	t.no(a.SetDisabled(t.ctx, "instance:Host-0", true))
	t.ended(minted[0].Session, minted[0].Secret)
	_, err = a.MintInstance(t.ctx, "Host-0", address.RandomInstanceID())
	t.fails(err, conduit.FailedPrecondition, conduit.ReasonBadUser)
}
