package auth

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
)

func TestResolveAs(t *testing.T) {
	user := Principal{"ada", conduit.User}
	instance := Principal{"instance:b", conduit.System}
	nobody := Principal{}
	session := func(secret []byte) (Principal, *conduit.Error) {
		if string(secret) == "good" {
			return Principal{"bob", conduit.Superuser}, nil
		}
		return Principal{}, denied("there is no such session")
	}
	vouch := func(name string, level uint8) *frame.AsWhom {
		return &frame.AsWhom{Kind: frame.AsVouched, Name: []byte(name), Level: level}
	}
	kind := func(k frame.AsKind) *frame.AsWhom { return &frame.AsWhom{Kind: k} }
	const refused = "refused"
	for _, test := range []struct {
		name       string
		link       Principal
		system     bool
		deployment string
		as         *frame.AsWhom
		want       Principal
		err        string
	}{
		{name: "nothing said, client", link: user, deployment: "d", want: user},
		{name: "nothing said, anonymous client", link: nobody, deployment: "d", want: nobody},
		{name: "unset, client", link: user, deployment: "d", as: kind(frame.AsUnset), want: user},
		{name: "nothing said, instance", link: instance, system: true, deployment: "d", want: nobody},
		{name: "unset, instance, built-in", link: instance, system: true, deployment: "conduit", as: kind(frame.AsUnset), want: nobody},
		{name: "link, client", link: user, deployment: "d", as: kind(frame.AsLink), want: user},
		{name: "link, instance", link: instance, system: true, deployment: "d", as: kind(frame.AsLink), err: refused},
		{name: "link, instance, any", link: instance, system: true, deployment: "*", as: kind(frame.AsLink), err: refused},
		{name: "link, instance, built-in", link: instance, system: true, deployment: "conduit", as: kind(frame.AsLink), want: instance},
		{
			name: "link, instance, built-in by id", link: instance, system: true,
			deployment: address.UniqueDeploymentID("conduit").String(), as: kind(frame.AsLink), want: instance,
		},
		{name: "anonymous, client", link: user, deployment: "d", as: kind(frame.AsAnonymous), want: nobody},
		{name: "anonymous, instance", link: instance, system: true, deployment: "d", as: kind(frame.AsAnonymous), want: nobody},
		{name: "session, client", link: nobody, deployment: "d", as: &frame.AsWhom{Kind: frame.AsSession, Session: []byte("good")}, want: Principal{"bob", conduit.Superuser}},
		{name: "session, instance", link: instance, system: true, deployment: "d", as: &frame.AsWhom{Kind: frame.AsSession, Session: []byte("good")}, want: Principal{"bob", conduit.Superuser}},
		{name: "session, bad", link: user, deployment: "d", as: &frame.AsWhom{Kind: frame.AsSession, Session: []byte("bad")}, err: "no such session"},
		{name: "session, empty", link: user, deployment: "d", as: kind(frame.AsSession), err: "names none"},
		{name: "vouched by a client", link: user, deployment: "d", as: vouch("element:greeter", 1), err: "only an instance"},
		{name: "vouched by a superuser", link: Principal{"root", conduit.Superuser}, deployment: "d", as: vouch("element:greeter", 1), err: "only an instance"},
		{name: "vouched, element", link: instance, system: true, deployment: "d", as: vouch("element:greeter", 1), want: Principal{"element:greeter", conduit.User}},
		{name: "vouched, operator", link: instance, system: true, deployment: "d", as: vouch("operator:b", 2), want: Principal{"operator:b", conduit.Superuser}},
		{name: "vouched, system is cut", link: instance, system: true, deployment: "conduit", as: vouch("operator:b", 3), want: Principal{"operator:b", conduit.Superuser}},
		{name: "vouched, no level", link: instance, system: true, deployment: "d", as: vouch("operator:b", 4), err: "level 4"},
		{name: "vouched, a user", link: instance, system: true, deployment: "d", as: vouch("ada", 1), err: "vouches for"},
		{name: "vouched, nobody", link: instance, system: true, deployment: "d", as: vouch("element:", 1), err: "vouches for"},
		{name: "caller", link: instance, system: true, deployment: "d", as: kind(frame.AsCaller), err: "cannot be said"},
		{name: "self", link: user, deployment: "d", as: kind(frame.AsSelf), err: "cannot be said"},
		{name: "unknown kind", link: instance, system: true, deployment: "conduit", as: kind(99), err: "cannot be said"},
	} {
		got, err := ResolveAs(test.link, test.system, []byte(test.deployment), test.as, session)
		if test.err == "" {
			if err != nil || got != test.want {
				t.Errorf("%s: %v, %v; want %v", test.name, got, err, test.want)
			}
			continue
		}
		if err == nil || got != nobody {
			t.Errorf("%s: %v, %v; want it refused", test.name, got, err)
			continue
		}
		if !errors.Is(err, &conduit.Error{Code: conduit.Unauthenticated}) || err.Outcome != conduit.Refused || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, want unauthenticated, refused, and %q in it", test.name, err, test.err)
		}
	}
}

func TestResolveAsWithoutSessions(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	_, err := ResolveAs(Principal{}, false, nil, &frame.AsWhom{Kind: frame.AsSession, Session: []byte(canary)}, nil)
	if err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("%v", err)
	}
}

// TestNobodyGainsLevel: no word of a link that is not an instance's makes a call
// more than the link is, but for a session's own rights.
func TestNobodyGainsLevel(t *testing.T) {
	for kind := range frame.AsKind(16) {
		for level := range uint8(8) {
			as := &frame.AsWhom{Kind: kind, Level: level, Name: []byte("operator:x"), Session: []byte("s")}
			got, err := ResolveAs(Principal{"ada", conduit.User}, false, []byte("conduit"), as, nil)
			if err == nil && got.Level > conduit.User {
				t.Errorf("kind %d, level %d: %v", kind, level, got)
			}
			got, err = ResolveAs(Principal{"instance:b", conduit.System}, true, []byte("greeter"), as, nil)
			if err == nil && got.Level > conduit.Superuser {
				t.Errorf("instance, kind %d, level %d: %v", kind, level, got)
			}
		}
	}
}

func TestDisabled(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/cluster/v1", nil)
	r.Header.Set(HeaderAuthorization, "nonsense")
	p, err := Disabled{}.Authenticate(r)
	if err != nil || p.Level != conduit.Superuser {
		t.Errorf("%v, %v", p, err)
	}
	for kind := range frame.AsKind(16) {
		if p, err := (Disabled{}).Resolve("", conduit.Anonymous, false, &frame.AsWhom{Kind: kind}); err != nil || p.Level != conduit.Superuser {
			t.Errorf("kind %d: %v, %v", kind, p, err)
		}
	}
}
