package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// desk is a Sessions that knows ada.
type desk struct{ out int }

func (d *desk) Login(_ context.Context, r *http.Request, user string, password []byte) (Session, error) {
	switch {
	case r.RemoteAddr == "":
		return Session{}, errors.New("no address")
	case user == "broken":
		return Session{}, errors.New("the secret is hunter2")
	case user != "ada" || string(password) != "geheim":
		return Session{}, conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused, "the name or the password is wrong")
	}
	return Session{Secret: "s3cret", User: "ada", Level: conduit.User, Expires: time.Unix(1e9, 0).UTC()}, nil
}

func (d *desk) Logout(_ context.Context, r *http.Request) error {
	if r.Header.Get("Authorization") != "Bearer s3cret" {
		return conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused, "no session")
	}
	d.out++
	return nil
}

func TestLoginAndLogout(t *testing.T) {
	d := &desk{}
	g := answering(t, Options{Sessions: d, AuthStore: "store-1", Authenticate: func(*http.Request) (conduit.AsWhom, error) {
		t.Error("a login is authenticated")
		return conduit.AsWhom{}, nil
	}})
	ask := func(method, path, body string, headers ...string) answer {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Host = "localhost"
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return do(g, r)
	}
	const json = "application/json"
	res := ask(http.MethodPost, "/v1/sessions", `{"user":"ada","password":"geheim"}`, "Content-Type", json)
	if got := bodyOf(t, res); res.StatusCode != http.StatusCreated || got != `{"secret":"s3cret","user":"ada","level":"user","expires":"2001-09-09T01:46:40Z"}`+"\n" || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %s %v", res.StatusCode, got, res.Header)
	}
	res = ask(http.MethodPost, "/v1/sessions", `{"user":"ada","password":"x"}`, "Content-Type", json)
	wantProblem(t, res, http.StatusUnauthorized, conduit.ReasonUnauthenticated)
	if res.Header.Get("WWW-Authenticate") != "Bearer" || res.Header.Get("Conduit-Auth-Store") != "store-1" {
		t.Errorf("%v", res.Header)
	}
	if p := wantProblem(t, ask(http.MethodPost, "/v1/sessions", `{"user":"broken","password":"x"}`, "Content-Type", json), http.StatusInternalServerError, conduit.ReasonInternal); strings.Contains(p.Detail, "hunter2") {
		t.Errorf("an inner error is shown: %s", p.Detail)
	}
	for _, body := range []string{"", "null", "[]", `{"user":"ada"}`, `{"password":"x"}`, `{"user":1,"password":"x"}`, `{"user":"ada","password":"geheim"} x`} {
		if p := wantProblem(t, ask(http.MethodPost, "/v1/sessions", body, "Content-Type", json), http.StatusBadRequest, reasonBadRequest); strings.Contains(p.Detail, "geheim") {
			t.Errorf("%q is quoted: %s", body, p.Detail)
		}
	}
	wantProblem(t, ask(http.MethodPost, "/v1/sessions", `{"user":"`+strings.Repeat("a", maxLogin)+`"}`, "Content-Type", json), http.StatusRequestEntityTooLarge, conduit.ReasonPayloadTooLarge)
	wantProblem(t, ask(http.MethodPost, "/v1/sessions", "user=ada", "Content-Type", "application/x-www-form-urlencoded"), http.StatusUnsupportedMediaType, reasonMediaType)
	wantProblem(t, ask(http.MethodPost, "/v1/sessions", `{"user":"ada","password":"geheim"}`, "Content-Type", json, "Origin", "https://evil.example"), http.StatusForbidden, reasonOrigin)
	for path, allow := range map[string]string{"/v1/sessions": http.MethodPost, "/v1/sessions/current": http.MethodDelete} {
		res := ask(http.MethodGet, path, "")
		wantProblem(t, res, http.StatusMethodNotAllowed, reasonHTTPMethod)
		if res.Header.Get("Allow") != allow {
			t.Errorf("%s: Allow %s", path, res.Header.Get("Allow"))
		}
	}
	wantProblem(t, ask(http.MethodDelete, "/v1/sessions/current", ""), http.StatusUnauthorized, conduit.ReasonUnauthenticated)
	if res := ask(http.MethodDelete, "/v1/sessions/current", "", "Authorization", "Bearer s3cret"); res.StatusCode != http.StatusNoContent || d.out != 1 {
		t.Errorf("%d, %d logouts", res.StatusCode, d.out)
	}
	wantProblem(t, ask(http.MethodDelete, "/v1/sessions/other", ""), http.StatusNotFound, reasonPath)

	g = answering(t, Options{}) // one that has no sessions has no paths for them
	wantProblem(t, ask(http.MethodPost, "/v1/sessions", `{"user":"ada","password":"geheim"}`, "Content-Type", json), http.StatusNotFound, reasonPath)
	if s := (Session{Secret: "s3cret", User: "ada"}); strings.Contains(s.String()+s.GoString(), "s3cret") {
		t.Error("a session shows its secret")
	}
}

// A stream ends when its caller may call no more; a call for one result does not.
func TestWatch(t *testing.T) {
	why := conduit.Errorf(conduit.Unauthenticated, conduit.ReasonSessionExpired, conduit.Refused, "over")
	stopped, watched := 0, make(chan func(*conduit.Error), 1)
	o := Options{
		Authenticate: func(*http.Request) (conduit.AsWhom, error) {
			return conduit.AsWhom{Kind: conduit.AsSession, Session: "s"}, nil
		},
		Watch: func(as conduit.AsWhom, ended func(*conduit.Error)) func() {
			if as.Session != "s" {
				t.Errorf("watched is %v", as)
			}
			watched <- ended
			return func() { stopped++ }
		},
	}
	s := newScript()
	o.Locate = s.locate
	g := newGateway(t, o)
	done := make(chan answer, 1)
	go func() {
		done <- do(g, post("/v1/call/d/e/a.B/Stream", "null", "Content-Type", "application/json", "Accept", "application/x-ndjson"))
	}()
	deadline := time.After(20 * time.Second)
	receive := func() *scripted {
		select {
		case c := <-s.came:
			return c
		case <-deadline:
			t.Fatal("no call came")
			return nil
		}
	}
	c := receive()
	c.say(t, `1`)
	(<-watched)(why)
	select {
	case res := <-done:
		lines := strings.Split(strings.TrimSpace(bodyOf(t, res)), "\n")
		if !strings.Contains(lines[len(lines)-1], conduit.ReasonSessionExpired) {
			t.Errorf("%q", lines)
		}
	case <-deadline:
		t.Fatal("the stream goes on")
	}
	if stopped != 1 {
		t.Errorf("the watching was stopped %d times", stopped)
	}
	g2 := answering(t, o, `1`)
	if res := do(g2, post("/v1/call/d/e/a.B/One", "null", "Content-Type", "application/json")); res.StatusCode != http.StatusOK || len(watched) != 0 {
		t.Errorf("%d; a call for one result is watched", res.StatusCode)
	}
}
