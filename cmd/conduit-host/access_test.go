package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// testAccess is the access of an instance with a store of its own.
func testAccess(t *testing.T, id address.InstanceID) *access {
	t.Helper()
	c, err := config.Load(config.Sources{
		Environ: []string{"CONDUIT_CFG_MODE=worker", "CONDUIT_CFG_NAME=w", "CONDUIT_CFG_DATA_DIR=" + filepath.Join(t.TempDir(), "data")},
		Machine: config.Machine{HostName: "box"},
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := openAccess(t.Context(), c, id, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(t.Context()) })
	return a
}

func (a *access) testUser(t *testing.T, name string, level conduit.Level) auth.Minted {
	t.Helper()
	if _, err := a.accounts.AddUser(t.Context(), name, level, nil); err != nil {
		t.Fatal(err)
	}
	m, err := a.accounts.Mint(t.Context(), name, auth.MintOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (a *access) testGuest(t *testing.T, m auth.Minted) link.Peer {
	t.Helper()
	g, err := a.sessions.Validate(t.Context(), []byte(m.Secret.Reveal()), "test")
	if err != nil {
		t.Fatal(err)
	}
	raw := []byte(m.Secret.Reveal())
	return link.Peer{Name: "client", User: g.User, Level: g.Level, System: !g.Instance.IsZero(), Guest: &guest{grant: g, secret: &m.Secret, text: func() []byte { return raw }}}
}

// TestDecide holds every link and everything that a call may say on it to what the
// caller has: the rights of its link, or of a session that it shows, or, for an
// instance, what it may vouch for.
func TestDecide(t *testing.T) {
	id := address.RandomInstanceID()
	a := testAccess(t, id)
	ada, root := a.testUser(t, "ada", conduit.User), a.testUser(t, "root", conduit.Superuser)
	system := *a.own.Load()
	links := map[string]link.Peer{
		"nobody":    {Name: "client"},
		"ada":       a.testGuest(t, ada),
		"root":      a.testGuest(t, root),
		"instance":  a.testGuest(t, system),
		"inner":     {Name: id.String(), System: true, Level: conduit.System},
		"operator":  operator("w"),
		"element":   {Name: "d/e", User: "element:d", Level: conduit.User},
		"pretender": {Name: "client", User: "", Level: conduit.Anonymous, System: false},
	}
	sessions := map[string]conduit.Level{ada.Secret.Reveal(): conduit.User, root.Secret.Reveal(): conduit.Superuser}
	says := map[string]*frame.AsWhom{"nothing": nil}
	for kind := frame.AsUnset; kind <= frame.AsSelf+2; kind++ {
		says[fmt.Sprint("kind ", kind)] = &frame.AsWhom{Kind: kind}
	}
	for _, s := range []string{ada.Secret.Reveal(), root.Secret.Reveal(), system.Secret.Reveal(), strings.Repeat("0", 64), "x"} {
		says["session "+s[:1]+strconv.Itoa(len(says))] = &frame.AsWhom{Kind: frame.AsSession, Session: []byte(s)}
	}
	for _, name := range []string{"element:x", "operator:y", "ada", "instance:w", "element:", ""} {
		for level := range uint8(6) {
			says[fmt.Sprintf("vouched %s %d", name, level)] = &frame.AsWhom{Kind: frame.AsVouched, Name: []byte(name), Level: level}
		}
	}
	allowed, refused := 0, 0
	for from, peer := range links {
		for what, as := range says {
			for _, deployment := range []string{"echo", "*", "conduit"} {
				in := &frame.Invoke{Deployment: []byte(deployment)}
				if as != nil {
					in.HasAs, in.As = true, *as
				}
				who, err, known := a.decide(peer, in, func(secret []byte) (auth.Principal, *conduit.Error, bool) {
					p, err := a.sessions.As(t.Context(), "test")(secret)
					return p, err, true
				})
				if !known {
					t.Fatalf("%s says %s: not known", from, what)
				}
				if err != nil {
					refused++
					if err.Code != conduit.Unauthenticated || err.Outcome != conduit.Refused || who != (host.Principal{}) {
						t.Errorf("%s says %s: %v, %v", from, what, who, err)
					}
					continue
				}
				allowed++
				most := conduit.Anonymous
				switch {
				case as != nil && as.Kind == frame.AsAnonymous:
				case as != nil && as.Kind == frame.AsSession:
					l, ok := sessions[string(as.Session)]
					if !ok || who.Session == nil || who.Session.Reveal() != string(as.Session) {
						t.Errorf("%s says %s: it is let in as %s, %v", from, what, who.User, who.Level)
					}
					most = l
				case as != nil && as.Kind == frame.AsVouched:
					if !peer.System || !strings.HasPrefix(who.User, "element:") && !strings.HasPrefix(who.User, "operator:") {
						t.Errorf("%s vouches for %s", from, who.User)
					}
					most = min(conduit.Level(as.Level), conduit.Superuser)
				case as != nil && (as.Kind == frame.AsCaller || as.Kind == frame.AsSelf):
					if from != "element" {
						t.Errorf("%s says %s", from, what)
					}
					most = conduit.User
				case as == nil || as.Kind == frame.AsUnset || as.Kind == frame.AsLink:
					if peer.System && (as == nil || as.Kind == frame.AsUnset) {
						break // an instance says as whom, or it is nobody
					}
					if peer.System && deployment != "conduit" {
						t.Errorf("%s calls %s as itself", from, deployment)
					}
					most = peer.Level
				default:
					t.Errorf("%s says %s, and is let in", from, what)
				}
				if who.Level > most {
					t.Errorf("%s says %s to %s: level %s, at most %s", from, what, deployment, who.Level, most)
				}
				if who.Level == conduit.System && deployment != "conduit" {
					t.Errorf("%s says %s to %s: level system", from, what, deployment)
				}
				if strings.Contains(fmt.Sprintf("%v %+v %#v %s", who, who, who, fmt.Sprint(&who)), ada.Secret.Reveal()) {
					t.Errorf("%s says %s: printed, the principal shows the secret", from, what)
				}
			}
		}
		if s := fmt.Sprintf("%v %+v %#v %+v", peer, peer, peer, peer.Guest); strings.Contains(s, ada.Secret.Reveal()) || strings.Contains(s, root.Secret.Reveal()) {
			t.Errorf("%s: printed, the peer shows the secret", from)
		}
	}
	if allowed < 100 || refused < 300 {
		t.Errorf("%d were let in and %d refused: the sweep is not what it was", allowed, refused)
	}
}

// A call whose session is remembered costs the reader no question and no memory.
func TestDecideAllocatesNothing(t *testing.T) {
	a := testAccess(t, address.RandomInstanceID())
	peer := a.testGuest(t, a.testUser(t, "ada", conduit.User))
	in := &frame.Invoke{Deployment: []byte("echo")}
	if n := testing.AllocsPerRun(200, func() {
		if who, err, known := a.decide(peer, in, a.cached); err != nil || !known || who.User != "ada" {
			t.Fatal(who, err, known)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	c, err := config.Load(config.Sources{Environ: []string{"CONDUIT_CFG_NAME=w", "CONDUIT_CFG_DATA_DIR=" + filepath.Join(b.TempDir(), "data")}})
	if err != nil {
		b.Fatal(err)
	}
	a, err := openAccess(b.Context(), c, address.RandomInstanceID(), hclog.NewNullLogger())
	if err != nil {
		b.Fatal(err)
	}
	defer a.close(b.Context())
	if _, err := a.accounts.AddUser(b.Context(), "ada", conduit.User, nil); err != nil {
		b.Fatal(err)
	}
	m, err := a.accounts.Mint(b.Context(), "ada", auth.MintOptions{})
	if err != nil {
		b.Fatal(err)
	}
	text := []byte(m.Secret.Reveal())
	g, bad := a.sessions.Validate(b.Context(), text, "bench")
	if bad != nil {
		b.Fatal(bad)
	}
	peer := link.Peer{User: "ada", Level: conduit.User, Guest: &guest{grant: g, secret: &m.Secret, text: func() []byte { return text }}}
	for _, row := range []struct {
		name string
		in   *frame.Invoke
	}{
		{"link", &frame.Invoke{Deployment: []byte("echo")}},
		{"session", &frame.Invoke{Deployment: []byte("echo"), HasAs: true, As: frame.AsWhom{Kind: frame.AsSession, Session: text}}},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err, known := a.decide(peer, row.in, a.cached); err != nil || !known {
					b.Fatal(err, known)
				}
			}
		})
	}
}

// Calls whose session is not remembered are parked, all of them are decided by one
// question to the store, and what comes after close is refused.
func TestUnknownSessionsAreParked(t *testing.T) {
	a := testAccess(t, address.RandomInstanceID())
	m := a.testUser(t, "ada", conduit.User)
	before := a.sessions.Stats().Lookups
	var answered atomic.Int64
	handler := a.door(func(c pending, _ *frame.Invoke, who host.Principal) {
		if _, parked := c.(link.Parked); parked {
			answered.Add(1)
		}
		c.Serve(func(_ context.Context, s *link.ServerCall) error {
			s.Return(conduit.Message{ContentType: conduit.ContentJSON, Data: fmt.Appendf(nil, "%q", who.User)})
			return nil
		})
	})
	near, far := link.Pipe(innerDepth)
	served := link.New(far, link.Options{Handler: handler})
	conn := link.New(near, link.Options{Dialer: true})
	t.Cleanup(func() {
		conn.Close(link.CloseDone, "")
		<-conn.Done()
		<-served.Done()
	})
	inv := doorInvoker{conn, "*://echo/echo/conduit.example.Echo"}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	as := conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: m.Secret.Reveal()})
	const callers = 50
	errs := make(chan error, callers)
	for range callers {
		go func() {
			who, err := conduit.Call[string](ctx, inv, "WhoAmI", nil, as)
			if err == nil && who != "ada" {
				err = errors.New("it ran as " + who)
			}
			errs <- err
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := a.sessions.Stats().Lookups - before; n != 1 {
		t.Errorf("%d calls asked the store %d times", callers, n)
	}
	if answered.Load() == 0 {
		t.Error("no call was parked")
	}
	bad := conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: auth.NewSecret(m.User.ID).Reveal()})
	if _, err := conduit.Call[string](ctx, inv, "WhoAmI", nil, bad); conduit.AsError(err, 0).Reason != conduit.ReasonUnauthenticated {
		t.Errorf("a session that nobody made: %v", err)
	}
	a.close(ctx)
	if _, err := conduit.Call[string](ctx, inv, "WhoAmI", nil, conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: auth.NewSecret(m.User.ID).Reveal()})); conduit.AsError(err, 0).Code != conduit.Unavailable {
		t.Errorf("after the end: %v", err)
	}
}

// The instance's own session is replaced when it has ended, and is gone when the
// instance is.
func TestOwnSession(t *testing.T) {
	id := address.RandomInstanceID()
	a := testAccess(t, id)
	kept := make(chan struct{})
	go func() { defer close(kept); a.keep() }()
	first := a.secret()
	if err := a.accounts.Revoke(t.Context(), a.own.Load().Session.ID); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(deadline); a.secret() == first; {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("the session that was revoked is kept")
		}
	}
	g, err := a.sessions.Validate(t.Context(), []byte(a.secret()), "test")
	if err != nil || g.User != "instance:w" || g.Level != conduit.System || g.Instance != id {
		t.Errorf("%+v, %v", g, err)
	}
	a.close(t.Context())
	<-kept
}
