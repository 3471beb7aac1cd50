package transport

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

type guest struct{ name string }

// The owner of a Server judges a link by what its other end says, hears of it, and
// of its end, with what it knew of it when it let it in.
func TestGuests(t *testing.T) {
	ctx := testContext(t)
	opened, ended, template := make(chan string, 10), make(chan string, 10), atomic.Int64{}
	name := func(p link.Peer) string {
		g, ok := p.Guest.(*guest)
		if !ok {
			t.Errorf("the guest is %T", p.Guest)
			return ""
		}
		return g.name
	}
	in := serve(t, "", ServerOptions{
		Authenticate: func(r *http.Request) (link.Peer, error) {
			return link.Peer{User: "ada", Level: conduit.User, Guest: &guest{strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}}, nil
		},
		Check: func(p link.Peer, theirs link.Hello) error {
			if theirs.Instance != name(p) {
				return errors.New("this guest is " + name(p))
			}
			return nil
		},
		Opened: func(p link.Peer, l *link.Conn) func() {
			who := name(p)
			if l == nil {
				t.Error("there is no link")
			}
			opened <- who
			return func() { ended <- who }
		},
		Link: link.Options{Check: func(link.Hello) error { template.Add(1); return nil }},
	})
	hello := func(id string) link.Options { return link.Options{Hello: link.Hello{Instance: id}} }
	who := func(o ClientOptions) error {
		_, err := conduit.Call[[]byte](ctx, dialer(t, o).Peer(in.url).At(echoAddress), "Who", nil)
		return err
	}
	if err := who(ClientOptions{Session: "one", Link: hello("one")}); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, opened, "a link"); got != "one" {
		t.Errorf("opened by %s", got)
	}
	if template.Load() != 1 {
		t.Error("the template's Check was not asked")
	}
	if err := who(ClientOptions{Session: "two", Link: hello("other")}); err == nil || !strings.Contains(err.Error(), "this guest is two") {
		t.Errorf("another guest than it says: %v", err)
	}
	if got := wait(t, opened, "a link that is refused"); got != "two" {
		t.Errorf("opened by %s", got)
	}
	if got := wait(t, ended, "its end"); got != "two" {
		t.Errorf("%s has ended", got)
	}
	_ = in.Close()
	if got := wait(t, ended, "the end"); got != "one" {
		t.Errorf("%s has ended", got)
	}
}

// A secret that is replaced opens the next links; those that there are go on.
func TestSessionIsAskedForEachLink(t *testing.T) {
	ctx := testContext(t)
	in := serve(t, "", ServerOptions{Authenticate: func(r *http.Request) (link.Peer, error) {
		return link.Peer{User: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), Level: conduit.User}, nil
	}})
	var secret atomic.Value
	secret.Store("first")
	c := dialer(t, ClientOptions{Session: "unused", SessionOf: func() string { s, _ := secret.Load().(string); return s }})
	dial := func() *link.Conn {
		t.Helper()
		l, err := c.DialLink(ctx, in.url, LinkHooks{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	who := func(l *link.Conn) string {
		t.Helper()
		x := l.Invoke(ctx, link.NewRoute(echoAddress), &conduit.Invocation{Method: "Who", Last: true})
		m, err := x.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return string(m.Data)
	}
	first := dial()
	secret.Store("second")
	second := dial()
	if a, b := who(first), who(second); a != "first" || b != "second" {
		t.Errorf("%s and %s", a, b)
	}
	got, err := conduit.Call[[]byte](ctx, c.Peer(in.url).At(echoAddress), "Who", nil)
	if err != nil || string(got) != "second" {
		t.Errorf("a Peer's link is %s's, %v", got, err)
	}
}
