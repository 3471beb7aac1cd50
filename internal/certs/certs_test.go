package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// made has Dev make an authority and a certificate in a new directory.
func made(t *testing.T, hosts ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tls")
	again(t, dir, true, hosts...)
	return dir
}

func again(t *testing.T, dir string, wantNew bool, hosts ...string) {
	t.Helper()
	isNew, err := Dev{Dir: dir, Hosts: hosts, Life: time.Hour, Now: time.Now()}.Make()
	if err != nil || isNew != wantNew {
		t.Fatalf("a new authority: %v, %v", isNew, err)
	}
}

func open(t *testing.T, f Files) *Keeper {
	t.Helper()
	k, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func files(dir string) Files {
	return Files{Cert: filepath.Join(dir, DevCert), Key: filepath.Join(dir, DevKey), CA: filepath.Join(dir, DevCA)}
}

// shake has a client and a server shake hands, and returns what each saw.
func shake(t *testing.T, client, server *tls.Config) (state tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	// Sockets, since a pipe without a buffer has both ends write alerts and wait.
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	a, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	s, c := tls.Server(b, server), tls.Client(a, client)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
		_ = b.Close()
	}()
	clientErr = c.Handshake()
	if clientErr == nil { // with TLS 1.3 a client learns only now that it was refused
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	_ = a.Close()
	return c.ConnectionState(), clientErr, <-done
}

func named(c *tls.Config, name string) *tls.Config { c.ServerName = name; return c }

func TestHandshake(t *testing.T) {
	dir, other := made(t, "one.example", "127.0.0.1"), made(t, "one.example")
	plain := files(dir)
	asks := plain
	asks.ClientCA = plain.CA
	stranger := Files{CA: plain.CA, Cert: files(other).Cert, Key: files(other).Key}
	for _, tt := range []struct {
		name           string
		client, server Files
		host           string
		good           bool
	}{
		{"by name", Files{CA: plain.CA}, plain, "one.example", true},
		{"by address", Files{CA: plain.CA}, plain, "127.0.0.1", true},
		{"another name", Files{CA: plain.CA}, plain, "two.example", false},
		{"another authority", Files{CA: files(other).CA}, plain, "one.example", false},
		{"the system's authorities", Files{}, plain, "one.example", false},
		{"with a certificate", plain, asks, "one.example", true},
		{"without one", Files{CA: plain.CA}, asks, "one.example", false},
		{"with a stranger's", stranger, asks, "one.example", false},
		{"nothing to serve with", Files{CA: plain.CA}, Files{}, "one.example", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state, ce, se := shake(t, named(open(t, tt.client).Client(), tt.host), open(t, tt.server).Server())
			if (ce == nil && se == nil) != tt.good {
				t.Fatalf("client %v, server %v", ce, se)
			}
			if tt.good && (state.NegotiatedProtocol != "" || state.Version < tls.VersionTLS12) {
				t.Errorf("%+v", state)
			}
		})
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	f := files(made(t, "one.example"))
	c := named(open(t, Files{CA: f.CA}).Client(), "one.example")
	c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 //nolint:gosec // that is the test
	_, ce, se := shake(t, c, open(t, f).Server())
	if ce == nil || se == nil {
		t.Errorf("client %v, server %v", ce, se)
	}
}

func TestHTTP2IsNotOffered(t *testing.T) {
	f := files(made(t, "one.example"))
	c := named(open(t, Files{CA: f.CA}).Client(), "one.example")
	c.NextProtos = []string{"h2", "http/1.1"}
	if state, ce, se := shake(t, c, open(t, f).Server()); ce != nil || se != nil || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("%q, client %v, server %v", state.NegotiatedProtocol, ce, se)
	}
}

// A new certificate, and new authorities, hold for the next connection, without a new
// configuration of the listener; files that make no sense change nothing.
func TestReload(t *testing.T) {
	dir := made(t, "one.example")
	f := files(dir)
	f.ClientCA = filepath.Join(t.TempDir(), "client-ca.pem")
	copyFile(t, f.CA, f.ClientCA)
	k := open(t, f)
	server := k.Server()
	client := func() *tls.Config {
		return named(open(t, Files{CA: f.CA, Cert: f.Cert, Key: f.Key}).Client(), "one.example")
	}
	serial := func() string {
		state, ce, se := shake(t, client(), server)
		if ce != nil || se != nil {
			t.Fatalf("client %v, server %v", ce, se)
		}
		return state.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	if changed, err := k.Reload(); changed || err != nil {
		t.Errorf("nothing has changed: %v, %v", changed, err)
	}

	again(t, dir, false, "one.example")
	if serial() != first {
		t.Error("another certificate before Reload")
	}
	if changed, err := k.Reload(); !changed || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
	second := serial()
	if second == first {
		t.Error("the same certificate after Reload")
	}

	key, err := os.ReadFile(f.Key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.Key, key[:len(key)/2])
	if changed, err := k.Reload(); changed || err == nil || strings.Contains(err.Error(), string(key[40:60])) {
		t.Errorf("%v, %v", changed, err)
	}
	write(t, f.Key, key)
	if serial() != second {
		t.Error("half a key has changed something")
	}

	// Authorities that do not know the client any more.
	copyFile(t, files(made(t)).CA, f.ClientCA)
	if changed, err := k.Reload(); !changed || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
	if _, ce, se := shake(t, client(), server); ce == nil || se == nil {
		t.Errorf("client %v, server %v", ce, se)
	}
	if left := time.Until(k.Expires()); left > time.Hour || left < 50*time.Minute {
		t.Errorf("%v are left", left)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, b)
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBadFiles(t *testing.T) {
	dir, other := made(t, "one.example"), made(t, "one.example")
	good := files(dir)
	junk, empty, big := filepath.Join(dir, "junk"), filepath.Join(dir, "empty"), filepath.Join(dir, "big")
	write(t, junk, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	write(t, empty, nil)
	write(t, big, make([]byte, maxFile+1))
	for _, tt := range []struct {
		name string
		f    Files
		says string
	}{
		{"no key", Files{Cert: good.Cert}, "a certificate without a key"},
		{"no certificate", Files{Key: good.Key}, "a key without a certificate"},
		{"missing", Files{Cert: good.Cert, Key: filepath.Join(dir, "none")}, "no such file"},
		{"another's key", Files{Cert: good.Cert, Key: files(other).Key}, "no certificate and its key"},
		{"swapped", Files{Cert: good.Key, Key: good.Cert}, "no certificate and its key"},
		{"junk", Files{CA: junk}, "certificate 1"},
		{"empty", Files{CA: empty}, "is empty"},
		{"a directory", Files{CA: dir}, "is empty, or no file"},
		{"too large", Files{ClientCA: big}, "more than"},
		{"a key for an authority", Files{ClientCA: good.Key}, "takes certificates only"},
		{"text for an authority", Files{CA: "certs_test.go"}, "no PEM file"},
	} {
		if _, err := Open(tt.f); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestDev(t *testing.T) {
	dir := made(t, "one.example", "::1")
	for name, want := range map[string]os.FileMode{DevCA: 0o644, devCAKey: 0o600, DevCert: 0o644, DevKey: 0o600} {
		if i, err := os.Stat(filepath.Join(dir, name)); err != nil || i.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, i.Mode(), err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 4 {
		t.Errorf("%v, %v", list, err)
	}
	// A certificate is no authority.
	text, err := os.ReadFile(filepath.Join(dir, DevCert))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(firstBlock(text, "CERTIFICATE")); err != nil || c.IsCA || len(c.IPAddresses) != 1 || len(c.DNSNames) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := (Dev{Dir: dir, Life: 2 * devCALife, Now: time.Now()}).Make(); err == nil || !strings.Contains(err.Error(), "before the certificate would") {
		t.Errorf("a certificate that outlives its authority: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, devCAKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := (Dev{Dir: dir, Life: time.Hour, Now: time.Now()}).Make(); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "has lost its key") {
		t.Errorf("an authority without its key: %v", err)
	}
}

func FuzzAuthorities(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("text"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if pool, err := authorities("f", text); (pool == nil) == (err == nil) {
			t.Errorf("%v, %v", pool, err)
		}
	})
}
