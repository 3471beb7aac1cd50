package main

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// count returns how many sessions are kept, and how many calls they have under way.
func (t *tenants) count() (sessions, calls int) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for _, one := range sh.open {
			sessions, calls = sessions+1, calls+one.calls
		}
		sh.mu.Unlock()
	}
	return sessions, calls
}

// until waits for what comes soon.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(deadline); !is(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// A stream of a session that ends is ended on a link of somebody else, whichever; the
// streams of others go on, and nothing is kept of sessions without calls.
func TestCallsEndWithTheirSession(t *testing.T) {
	a := testAccess(t, address.RandomInstanceID())
	ada, bob := a.testUser(t, "ada", conduit.User), a.testUser(t, "bob", conduit.User)
	stream := func(ctx context.Context, s *link.ServerCall) error {
		if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: []byte("1")}); err != nil {
			return err
		}
		if string(s.Invoke().Method) == "Once" {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	handler := a.door(func(c pending, _ *frame.Invoke, _ host.Principal) { c.Serve(stream) })
	var links []*link.Conn
	for _, peer := range []link.Peer{{Name: "client"}, a.testGuest(t, bob), {Name: "i", System: true, Level: conduit.System}, operator("w")} {
		near, far := link.Pipe(innerDepth)
		served := link.New(far, link.Options{Handler: handler, Peer: peer})
		conn := link.New(near, link.Options{Dialer: true})
		t.Cleanup(func() {
			conn.Close(link.CloseDone, "")
			<-conn.Done()
			<-served.Done()
		})
		links = append(links, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	route := link.NewRoute(address.MustParse("*://echo/echo/conduit.example.Echo"))
	begin := func(conn *link.Conn, m auth.Minted, method string) conduit.Exchange {
		t.Helper()
		x := conn.Invoke(ctx, route, &conduit.Invocation{
			Method: method, Last: true, Streaming: true, As: conduit.AsWhom{Kind: conduit.AsSession, Session: m.Secret.Reveal()},
		})
		if _, err := x.Recv(ctx); err != nil {
			t.Fatal(err)
		}
		return x
	}
	var adas, bobs []conduit.Exchange
	for _, conn := range links {
		for range 2 {
			adas = append(adas, begin(conn, ada, "Watch"))
			bobs = append(bobs, begin(conn, bob, "Watch"))
		}
	}
	if sessions, calls := a.tenants.count(); sessions != 8 || calls != 16 {
		t.Errorf("%d sessions with %d calls are kept", sessions, calls)
	}
	for range 100 { // whose calls are over, they take no room
		m, err := a.accounts.Mint(ctx, "ada", auth.MintOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := begin(links[0], m, "Once").Recv(ctx); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	until(t, "sessions without calls to be forgotten", func() bool { sessions, calls := a.tenants.count(); return sessions == 8 && calls == 16 })
	if err := a.accounts.Revoke(ctx, ada.Session.ID); err != nil {
		t.Fatal(err)
	}
	for _, x := range adas {
		if _, err := x.Recv(ctx); conduit.AsError(err, 0).Reason != conduit.ReasonSessionExpired {
			t.Errorf("a stream of the session ended with %v", err)
		}
	}
	until(t, "the session to be forgotten", func() bool { sessions, calls := a.tenants.count(); return sessions == 4 && calls == 8 })
	for _, x := range bobs {
		x.Cancel(nil)
		if _, err := x.Recv(ctx); conduit.AsError(err, 0).Reason == conduit.ReasonSessionExpired {
			t.Errorf("a stream of another session ended with %v", err)
		}
	}
	until(t, "all to be forgotten", func() bool { sessions, _ := a.tenants.count(); return sessions == 0 })
}

// A call whose session ended between the question and the call is another tenant's than
// those that were there, and ended as well.
func TestTenantsThatComeLate(t *testing.T) {
	a := testAccess(t, address.RandomInstanceID())
	ada := a.testUser(t, "ada", conduit.User)
	g, bad := a.sessions.Validate(t.Context(), []byte(ada.Secret.Reveal()), "test")
	if bad != nil {
		t.Fatal(bad)
	}
	near, far := link.Pipe(innerDepth)
	lodged := make(chan struct{}, 2)
	served := link.New(far, link.Options{Handler: handlerFunc(func(in *link.Incoming) {
		a.lodge(in, in.Invoke, g) // as if it had been valid a moment ago
		in.Serve(func(ctx context.Context, _ *link.ServerCall) error {
			lodged <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})})
	conn := link.New(near, link.Options{Dialer: true})
	t.Cleanup(func() {
		conn.Close(link.CloseDone, "")
		<-conn.Done()
		<-served.Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := a.accounts.Revoke(ctx, ada.Session.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "the session to be over", func() bool {
		_, err := a.sessions.Validate(ctx, []byte(ada.Secret.Reveal()), "test")
		return err != nil
	})
	for range 2 {
		_, err := conduit.Call[string](ctx, doorInvoker{conn, "*://e/e/s.S"}, "M", nil, conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: ada.Secret.Reveal()}))
		if conduit.AsError(err, 0).Reason != conduit.ReasonSessionExpired {
			t.Errorf("it ended with %v", err)
		}
		<-lodged
	}
}
