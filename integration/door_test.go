package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// raw sends a request as it stands, and returns the answer's status and what was read with
// it; 0 = the connection was closed without one.
func raw(t *testing.T, addr, request string) (status int, answer string) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() { _, _ = conn.Write([]byte(request)) }() // who is refused early is not read to the end
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, fmt.Sprint(resp.Header)
	}
	return resp.StatusCode, fmt.Sprint(resp.Header) + readAll(t, resp.Body)
}

// upgrade is a request for a link with further headers.
func upgrade(path, protocols, more string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: " + protocols + "\r\n" + more + "\r\n"
}

// TestDoorIsAttacked shows requests to both doors of HTTP that no client should send. None is
// more than anonymous, none breaks anything, and no secret of theirs is seen anywhere, not in
// the traces of all goroutines that SIGQUIT prints, either.
func TestDoorIsAttacked(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	ada := r.user("ada", "user")
	addr, _, _ := strings.Cut(strings.TrimPrefix(r.worker.url, "ws://"), "/")
	for name, c := range map[string]struct {
		request string
		status  int // 0 = any below 500 that opens no link
	}{
		"as it should be":       {upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer "+ada+"\r\n"), 101},
		"a cookie":              {upgrade("/cluster/v1", "conduit.v1", "Cookie: session="+ada+"\r\n"), 101},
		"a query":               {upgrade("/cluster/v1?access_token="+ada, "conduit.v1", ""), 101},
		"a query of nonsense":   {upgrade("/cluster/v1?a;b=%zz&&="+ada, "conduit.v1", ""), 101},
		"a fragment":            {upgrade("/cluster/v1#"+ada, "conduit.v1", ""), 404},
		"a user in the host":    {strings.Replace(upgrade("/cluster/v1", "conduit.v1", ""), "Host: ", "Host: ada:"+ada+"@", 1), 400},
		"two alike":             {upgrade("/cluster/v1", "conduit.v1", strings.Repeat("Authorization: Bearer "+ada+"\r\n", 2)), 401},
		"empty":                 {upgrade("/cluster/v1", "conduit.v1", "Authorization: \r\n"), 401},
		"no secret":             {upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer\r\n"), 401},
		"basic":                 {upgrade("/cluster/v1", "conduit.v1", "Authorization: Basic "+ada+"\r\n"), 401},
		"bytes":                 {upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer \xff\xfe"+ada+"\r\n"), 401},
		"a NUL":                 {upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer "+ada+"\x00\r\n"), 400},
		"an override":           {upgrade("/cluster/v1", "conduit.v1", "Elements-SessionSecret: "+ada+" u123\r\n"), 401},
		"no page":               {upgrade("/cluster/v1", "conduit.v1, conduit.session."+ada, ""), 401},
		"another's page":        {upgrade("/cluster/v1", "conduit.v1, conduit.session."+ada, "Origin: http://evil.example\r\n"), 403},
		"a page of a file":      {upgrade("/cluster/v1", "conduit.v1, conduit.session."+ada, "Origin: null\r\n"), 403},
		"a page of our own":     {upgrade("/cluster/v1", "conduit.v1, conduit.session."+ada, "Origin: http://"+addr+"\r\n"), 403},
		"a long secret":         {upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer "+strings.Repeat("a", 9<<10)+"\r\n"), 401},
		"a header of 2 MiB":     {upgrade("/cluster/v1", "conduit.v1", "X: "+strings.Repeat("a", 2<<20)+"\r\n"), 431},
		"20,000 headers":        {upgrade("/cluster/v1", "conduit.v1", strings.Repeat("X: a\r\n", 20_000)), 431},
		"a body":                {upgrade("/cluster/v1", "conduit.v1", "Content-Length: 5\r\n") + "hello", 400},
		"two lengths":           {upgrade("/cluster/v1", "conduit.v1", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
		"POST":                  {strings.Replace(upgrade("/cluster/v1", "conduit.v1", ""), "GET", "POST", 1), 405},
		"HTTP/1.0":              {strings.Replace(upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer "+ada+"\r\n"), "HTTP/1.1", "HTTP/1.0", 1), 426},
		"HTTP/2":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
		"TLS":                   {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 200) + "\r\n\r\n", 0},
		"a path around":         {upgrade("/x/../cluster/v1", "conduit.v1", ""), 404},
		"a secret for a path":   {upgrade("/"+ada, "conduit.v1", ""), 404},
		"a secret for a method": {strings.Replace(upgrade("/cluster/v1", "conduit.v1", ""), "GET", ada, 1), 405},
	} {
		status, answer := raw(t, addr, c.request)
		if c.status == 0 && (status >= 500 || status == 101) || c.status != 0 && status != c.status {
			t.Errorf("%s: %d, want %d: %.300s", name, status, c.status, answer)
		}
		if status == 401 && (!strings.Contains(answer, "Www-Authenticate") || !strings.Contains(answer, "Conduit-Auth-Store")) {
			t.Errorf("%s: a 401 without WWW-Authenticate, or without the store: %s", name, answer)
		}
		if strings.Contains(answer, ada) {
			t.Errorf("%s: the answer shows the secret: %.300s", name, answer)
		}
	}
	// The gateway takes no such query at all.
	for _, path := range []string{"?session=" + ada, "?access_token=" + ada, "?secret=" + ada} {
		if status, _, who := r.front.post("echo/echo/conduit.example.Echo/WhoAmI"+path, "null", "Cookie", "session="+ada); status != http.StatusBadRequest || strings.Contains(who, ada) {
			t.Errorf("the gateway, %.20s: %d %s", path, status, who)
		}
	}
	// Who guesses is stopped, whatever addresses it makes up, and those who are known are not.
	web, _, _ := strings.Cut(strings.TrimPrefix(r.front.gateway, "http://"), "/")
	guess := 0
	r.worker.until("the limit on guesses", func() bool {
		guess++
		lie := fmt.Sprintf("X-Forwarded-For: 192.0.2.%d\r\nForwarded: for=198.51.100.%d\r\nX-Real-IP: 192.0.2.%[1]d\r\n", guess%250, guess%250)
		status, _ := raw(t, addr, upgrade("/cluster/v1", "conduit.v1", lie+fmt.Sprintf("Authorization: Bearer %064x\r\n", guess)))
		if status != http.StatusUnauthorized && status != http.StatusTooManyRequests {
			t.Fatalf("a guess: %d", status)
		}
		return status == http.StatusTooManyRequests
	})
	if status, answer := raw(t, addr, upgrade("/cluster/v1", "conduit.v1", "Authorization: Bearer "+ada+"\r\n")); status != http.StatusSwitchingProtocols {
		t.Errorf("who is known, from the address of the guesses: %d %s", status, answer)
	}
	if status, answer := raw(t, web, "POST /v1/call/echo/echo/conduit.example.Echo/WhoAmI HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 4\r\nContent-Type: application/json\r\nAuthorization: Bearer "+ada+"\r\n\r\nnull"); status < 400 || status >= 500 {
		t.Errorf("the gateway under another's name: %d %s", status, answer)
	}
	r.worker.call(echoAddr, "Upper", `"well"`).want(t, 0, "\"WELL\"\n")

	// What it prints when it is told to end at once.
	r.worker.signal(syscall.SIGQUIT)
	<-r.worker.exited
	if !strings.Contains(r.worker.output(), "goroutine ") {
		t.Error("SIGQUIT prints no traces: this test has lost what it looks at")
	}
}

// TestStoreIsAttacked does to the file of an instance that runs what people and disks do.
// Whoever is known goes on, nobody else is let in, and all is as before once it is mended.
func TestStoreIsAttacked(t *testing.T) {
	t.Parallel()
	i := prepare(t, []string{built.echo})
	file := filepath.Join(i.dir, "users.db")
	store := []string{"--auth-store", "bolt:" + file}
	i.launch(append(store, "--auth-mode", "required", "--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s")...)
	i.waitReady()
	run := func(args ...string) string {
		t.Helper()
		got := conduitHost(t, append(args, store...)...)
		if got.code != 0 {
			t.Fatalf("%v: %s", args, got.err)
		}
		return got.out
	}
	mint := func() string {
		t.Helper()
		var m struct{ Secret string }
		if err := json.Unmarshal([]byte(run("session", "mint", "--user", "ada", "-o", "json")), &m); err != nil || m.Secret == "" {
			t.Fatal(m, err)
		}
		return m.Secret
	}
	call := func(secret string) (int, string) {
		t.Helper()
		status, _, answer := i.post("echo/echo/conduit.example.Echo/UserOnly", "null", "Authorization", "Bearer "+secret)
		return status, answer
	}
	run("user", "add", "ada", "--level", "user")
	known := mint()
	if status, answer := call(known); status != http.StatusOK {
		t.Fatal(status, answer)
	}
	write := func(text []byte) error { return os.WriteFile(file, text, 0o600) }
	for _, c := range []struct {
		name string
		do   func(whole []byte) error
	}{
		{"removed", func([]byte) error { return os.Remove(file) }},
		{"empty", func([]byte) error { return write(nil) }},
		{"cut short", func([]byte) error { return os.Truncate(file, 9000) }},
		{"overwritten", func(whole []byte) error { return write([]byte(strings.Repeat("not a store\n", len(whole)/12))) }},
		{"flipped behind its headers", func(whole []byte) error {
			text := append([]byte(nil), whole...)
			for k := 8192 + 16; k < len(text); k += 37 {
				text[k] ^= 0xff
			}
			return write(text)
		}},
		{"a pipe", func([]byte) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return syscall.Mkfifo(file, 0o600)
		}},
		{"a link to an endless file", func([]byte) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink("/dev/zero", file)
		}},
		{"readable by others", func([]byte) error { return os.Chmod(file, 0o644) }}, //nolint:gosec // that is what is refused
	} {
		fresh := mint()
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.do(whole); err != nil {
			t.Fatal(err)
		}
		if status, answer := call(fresh); status != http.StatusServiceUnavailable || !strings.Contains(answer, "store_unavailable") && !strings.Contains(answer, "bad_store") {
			t.Errorf("%s: who is not known: %d %s", c.name, status, answer)
		}
		if status, answer := call(known); status != http.StatusOK {
			t.Errorf("%s: who is known: %d %s", c.name, status, answer)
		}
		i.until("word of it, "+c.name, func() bool { return strings.Contains(lastOf(i.output(), "the auth store "), "cannot be asked") })
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".new", whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		i.until("it to be as before, "+c.name, func() bool {
			a, _ := call(known)
			b, _ := call(fresh)
			return a == http.StatusOK && b == http.StatusOK && strings.Contains(lastOf(i.output(), "the auth store "), "is back")
		})
	}
	// Revoked in a copy, which then takes the place of the file.
	other := mint()
	if status, answer := call(other); status != http.StatusOK {
		t.Fatal(status, answer)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".copy", whole, 0o600); err != nil {
		t.Fatal(err)
	}
	got := conduitHost(t, "user", "rm", "ada", "--auth-store", "bolt:"+file+".copy")
	if got.code != 0 {
		t.Fatal(got.err)
	}
	if err := os.Rename(file+".copy", file); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{known, other} {
		i.until("it to be refused", func() bool { status, _ := call(secret); return status == http.StatusUnauthorized })
	}
}

// lastOf returns the last line that holds a text.
func lastOf(text, what string) (last string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			last = line
		}
	}
	return last
}
