package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/config"
)

// auditLog takes what an audit writes.
type auditLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *auditLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// records returns the records so far, each held to the audit's logger.
func (l *auditLog) records(t *testing.T) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := bufio.NewScanner(bytes.NewReader(l.text.Bytes())); s.Scan(); {
		var r map[string]any
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r["@module"] == auditName {
			all = append(all, r)
		}
	}
	return all
}

func (l *auditLog) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "some-instance", Output: l, JSONFormat: true})
}

// A flood of refusals is counted, and what succeeds is written meanwhile.
func TestAuditIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &auditLog{}
		a := newAudit(l.logger())
		const flood = 10_000
		for k := range flood {
			a.record(auditRecord{what: "login", door: "gateway", from: strconv.Itoa(k), result: conduit.ReasonUnauthenticated})
		}
		a.record(auditRecord{what: "login", who: "ada", door: "gateway", result: auditOK})
		if got := l.records(t); len(got) != auditRefusals+1 || got[auditRefusals]["who"] != "ada" || got[auditRefusals]["result"] != auditOK {
			t.Fatalf("%d records, the last %v", len(got), got[len(got)-1])
		}
		time.Sleep(2 * time.Second)
		got := l.records(t)
		if last := got[len(got)-1]; len(got) != auditRefusals+2 || last["count"] != float64(flood-auditRefusals) || last["what"] != "login" || last["result"] != conduit.ReasonUnauthenticated {
			t.Errorf("%d records, the last %v", len(got), last)
		}
		for k := range flood { // also when each is of another kind
			a.record(auditRecord{what: "call", door: "cluster", result: fmt.Sprint("reason ", k)})
		}
		a.close()
		count, written := 0.0, 0
		for _, r := range l.records(t)[len(got):] {
			if n, ok := r["count"].(float64); ok {
				count += n
			}
			written++
		}
		if count != flood-auditRefusals || written > auditRefusals+auditKinds+1 {
			t.Errorf("%v are counted in %d records", count, written)
		}
		a.record(auditRecord{what: "call", result: "late"})
		(*audit)(nil).record(auditRecord{})
	})
}

// What is done at the doors is written, with who did it, from where and what came of
// it, and without what they said to prove it.
func TestAuditOfTheDoors(t *testing.T) {
	l := &auditLog{}
	c, err := config.Load(config.Sources{Environ: []string{"CONDUIT_CFG_NAME=w", "CONDUIT_CFG_DATA_DIR=" + filepath.Join(t.TempDir(), "data")}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := openAccess(t.Context(), c, address.RandomInstanceID(), l.logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(t.Context()) })
	const password = "a password that nobody reads"
	if _, err := a.accounts.AddUser(t.Context(), "ada", conduit.User, []byte(password)); err != nil {
		t.Fatal(err)
	}
	from := func(secret string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.RemoteAddr = "192.0.2.7:4711"
		if secret != "" {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		return r
	}
	want := func(what string, fields map[string]string) {
		t.Helper()
		got := l.records(t)
		last := got[len(got)-1]
		for k, v := range fields {
			if last[k] != v {
				t.Errorf("%s: %s is %v, want %s, in %v", what, k, last[k], v, last)
			}
		}
	}
	s, err := logins{a}.Login(t.Context(), from(""), "Ada", []byte(password))
	if err != nil {
		t.Fatal(err)
	}
	want("a login", map[string]string{"what": "login", "who": "ada", "door": "gateway", "from": "192.0.2.7", "result": auditOK})
	const typed = "another password of ada"
	if _, err := (logins{a}).Login(t.Context(), from(""), typed, []byte(typed)); err == nil {
		t.Fatal("it is let in")
	}
	want("a login that is refused", map[string]string{"what": "login", "from": "192.0.2.7", "result": conduit.ReasonUnauthenticated})
	bad := auth.NewSecret(auth.UserID{}).Reveal()
	if _, err := a.caller(from(bad)); err == nil {
		t.Fatal("it is let in")
	}
	want("a request", map[string]string{"what": "request", "door": "gateway", "from": "192.0.2.7", "result": conduit.ReasonUnauthenticated})
	if _, err := a.caller(from(a.secret())); err == nil {
		t.Fatal("it is let in")
	}
	want("a request as an instance", map[string]string{"what": "request", "who": "instance:w", "result": conduit.ReasonUnauthenticated})
	if _, err := a.authenticate(from(bad)); err == nil {
		t.Fatal("it is let in")
	}
	want("a link", map[string]string{"what": "link", "door": "cluster", "from": "192.0.2.7", "result": conduit.ReasonUnauthenticated})
	if err := (logins{a}).Logout(t.Context(), from(s.Secret)); err != nil {
		t.Fatal(err)
	}
	want("a logout", map[string]string{"what": "logout", "who": "ada", "result": auditOK})
	for _, secret := range []string{password, typed, bad, a.secret(), s.Secret} {
		if strings.Contains(l.text.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

// What commands do is written beside the store, and that file does not grow for ever.
func TestAuditOfCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "auth.db.audit")
	for range 2 {
		if err := auditCommand(file, auditRecord{what: "session mint", whom: "ada", session: "00", result: auditOK}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(`"@module":"audit"`)); n != 2 || !bytes.Contains(text, []byte(`"whom":"ada"`)) || !bytes.Contains(text, []byte(`"who":"uid:`)) {
		t.Errorf("%s", text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Truncate(file, auditFile); err != nil {
		t.Fatal(err)
	}
	if err := auditCommand(file, auditRecord{what: "user rm", result: conduit.ReasonUserNotFound}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > 1000 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(file + ".1"); err != nil || info.Size() != auditFile {
		t.Errorf("%v, %v", info, err)
	}
	linked := filepath.Join(t.TempDir(), "auth.db.audit")
	if err := os.Symlink(file, linked); err != nil {
		t.Fatal(err)
	}
	if err := auditCommand(linked, auditRecord{what: "user rm", result: auditOK}); err == nil {
		t.Error("it writes through a link")
	}
	if r := auditResult(errors.New("a secret in an error")); strings.Contains(r, "secret") {
		t.Errorf("the result is %q", r)
	}
}
