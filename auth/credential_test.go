package auth

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestCredential(t *testing.T) {
	const page = "https://example.com"
	for _, test := range []struct {
		name string
		h    http.Header
		want string
	}{
		{"absent", header(), ""},
		{"bearer", header(HeaderAuthorization, "Bearer abc"), "abc"},
		{"bearer, any case and blanks", header("authorization", " bearer   abc "), "abc"},
		{"session", header(HeaderSession, "abc"), "abc"},
		{"session, blanks around", header(HeaderSession, " abc "), "abc"},
		{"session, marks", header(HeaderSession, "a-b!c"), "a-b!c"},
		{"older", header(HeaderSessionOld, "abc"), "abc"},
		{"several that agree", header(HeaderSessionOld, "abc", HeaderSession, "abc", HeaderAuthorization, "Bearer abc"), "abc"},
		{"browser", header("Origin", page, "Sec-WebSocket-Protocol", "conduit.v1, conduit.session.abc"), "abc"},
		{"browser without", header("Origin", page, "Sec-WebSocket-Protocol", "conduit.v1"), ""},
	} {
		got, err := Credential(test.h)
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, got, err, test.want)
		}
	}
}

func TestCredentialRefuses(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	for name, h := range map[string]http.Header{
		"empty":               header(HeaderSession, ""),
		"blanks":              header(HeaderSession, "  "),
		"empty older":         header(HeaderSessionOld, ""),
		"no word":             header(HeaderSession, "---"),
		"override of user":    header(HeaderSession, canary+" u123"),
		"override of profile": header(HeaderSession, canary+" p456"),
		"extra":               header(HeaderAuthorization, "Bearer "+canary+" more"),
		"bearer alone":        header(HeaderAuthorization, "Bearer"),
		"bearer and blank":    header(HeaderAuthorization, "Bearer "),
		"empty authorization": header(HeaderAuthorization, ""),
		"basic":               header(HeaderAuthorization, "Basic "+canary),
		"no scheme":           header(HeaderAuthorization, canary),
		"twice":               header(HeaderSession, canary, HeaderSession, canary),
		"differing":           header(HeaderSession, canary, HeaderAuthorization, "Bearer other"),
		"older differing":     header(HeaderSession, canary, HeaderSessionOld, "other"),
		"older empty":         header(HeaderSession, canary, HeaderSessionOld, ""),
		"control":             header(HeaderSession, canary+"\x00"),
		"not ASCII":           header(HeaderSession, canary+"é"),
		"too long":            header(HeaderSession, strings.Repeat(canary, 1000)),
		"no browser":          header("Sec-WebSocket-Protocol", "conduit.v1, conduit.session."+canary),
		"browser, empty":      header("Origin", "https://x", "Sec-WebSocket-Protocol", "conduit.session."),
		"browser, two":        header("Origin", "https://x", "Sec-WebSocket-Protocol", "conduit.session."+canary+",conduit.session.b"),
		"browser and header":  header("Origin", "https://x", "Sec-WebSocket-Protocol", "conduit.session."+canary, HeaderSession, "b"),
	} {
		got, err := Credential(h)
		e, ok := errors.AsType[*conduit.Error](err)
		if !ok || got != "" {
			t.Errorf("%s: %q, %v; want a *conduit.Error", name, got, err)
			continue
		}
		if e.Code != conduit.Unauthenticated || e.Reason != conduit.ReasonUnauthenticated || e.Outcome != conduit.Refused {
			t.Errorf("%s: %v %q %v", name, e.Code, e.Reason, e.Outcome)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error holds the secret: %v", name, err)
		}
	}
}

func FuzzCredential(f *testing.F) {
	f.Add("Bearer abc", "abc", "abc", "conduit.session.abc")
	f.Add("Basic x", "a u1", "", "conduit.v1")
	f.Fuzz(func(t *testing.T, authorization, session, older, protocol string) {
		h := header(HeaderAuthorization, authorization, HeaderSession, session, HeaderSessionOld, older,
			"Origin", "https://example.com", "Sec-WebSocket-Protocol", protocol)
		secret, err := Credential(h)
		switch {
		case err != nil:
			if secret != "" {
				t.Fatalf("both %q and %v", secret, err)
			}
		case secret == "":
			t.Fatal("headers that are present count as absent")
		case strings.ContainsAny(secret, " \t\r\n,") && !strings.Contains(secret, ","):
			t.Fatalf("%q holds blanks", secret)
		case strings.TrimSpace(session) != secret || strings.TrimSpace(older) != secret:
			t.Fatalf("%q is not what each header says", secret)
		}
	})
}
