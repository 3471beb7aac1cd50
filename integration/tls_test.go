package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// devCerts has `tls dev` make certificates, and returns the directory.
func devCerts(t *testing.T, dir string) string {
	t.Helper()
	r := conduitHost(t, "tls", "dev", "--dir", dir, "--host", "w", "--host", "front", "-o", "json")
	var v struct {
		CA, Cert, Key string
		Hosts         []string
	}
	if err := json.Unmarshal([]byte(r.out), &v); r.code != 0 || err != nil || v.CA != filepath.Join(dir, "ca.pem") || len(v.Hosts) < 5 {
		t.Fatalf("exit %d, %v, %s%s", r.code, err, r.out, r.err)
	}
	return dir
}

// trusting is how a Go program dials who has a certificate of the authority in dir,
// with a certificate of its own.
func trusting(t *testing.T, dir string, own bool) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !c.RootCAs.AppendCertsFromPEM(text) {
		t.Fatal("no authority")
	}
	if own {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// serial is the serial number of the certificate that a listener shows.
func serial(t *testing.T, url string, c *tls.Config) string {
	t.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(url, "wss://"), "https://"), "/")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String() //nolint:forcetypeassert // a tls.Dialer's
}

// Everything over TLS, with certificates on both sides: an external instance finds a
// worker, the gateway, the command line and a Go program call it, those without a
// certificate or without trust are told what to do, and new certificates are taken
// over while links stay.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs := devCerts(t, filepath.Join(t.TempDir(), "tls"))
	ca, cert, key := filepath.Join(certs, "ca.pem"), filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
	r := newRealm(
		t, "--cluster-tls-cert", cert, "--cluster-tls-key", key, "--cluster-tls-ca", ca, "--cluster-tls-client-ca", ca,
		"--gateway-tls-cert", cert, "--gateway-tls-key", key,
	)
	if !strings.HasPrefix(r.worker.url, "wss://") || !strings.HasPrefix(r.front.gateway, "https://") {
		t.Fatalf("%s, %s", r.worker.url, r.front.gateway)
	}
	ada := r.user("ada", "user")

	with := []string{"--cluster-tls-ca", ca, "--cluster-tls-cert", cert, "--cluster-tls-key", key, "--session", "@" + secretFile(t, ada)}
	if got := r.worker.call(echoAddr, "Upper", append([]string{`"over tls"`}, with...)...); got.code != 0 || got.out != "\"OVER TLS\"\n" {
		t.Errorf("the command line: exit %d, %s%s", got.code, got.out, got.err)
	}
	if got := r.worker.call(echoAddr, "Upper", `"x"`); got.code != 3 || !strings.Contains(got.err, "--cluster-tls-ca") {
		t.Errorf("who trusts nobody: exit %d, %s", got.code, got.err)
	}
	if got := r.worker.call(echoAddr, "Upper", `"x"`, "--cluster-tls-ca", ca); got.code != 3 || !strings.Contains(got.err, "certificate") {
		t.Errorf("who has no certificate: exit %d, %s", got.code, got.err)
	}
	plain := strings.Replace(r.worker.url, "wss://", "ws://", 1)
	if got := conduitHost(t, "call", echoAddr, "Upper", `"x"`, "--peer", plain); got.code != 3 || !strings.Contains(got.err, "wss://") {
		t.Errorf("without TLS: exit %d, %s", got.code, got.err)
	}

	web := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: trusting(t, certs, false)}}
	defer web.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.gateway+"/v1/call/echo/echo/conduit.example.Echo/Upper", strings.NewReader(`"by https"`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+ada)
	resp, err := web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Proto != "HTTP/1.1" {
		t.Errorf("%s %s", resp.Proto, resp.Status)
	}

	// New certificates while a stream is under way.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{r.worker.url}, Session: ada, TLS: trusting(t, certs, true)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := serial(t, r.worker.url, trusting(t, certs, true))
	items := 0
	for _, err := range conduit.Stream[int](ctx, c.At(echoAddr), "Count", 200_000) {
		if err != nil {
			t.Fatal(err)
		}
		if items++; items == 1 {
			devCerts(t, certs)
			for _, i := range []*instance{r.worker, r.front} {
				i.signal(syscall.SIGHUP)
			}
			// Each listener tells of its own: the cluster's word says nothing of the gateway's.
			for door, i := range map[string]*instance{"cluster": r.worker, "gateway": r.front} {
				i.waitLine("word of new certificates", func(s string) bool {
					return strings.Contains(s, "certificates were read again") && strings.Contains(s, `"listener":"`+door+`"`)
				})
			}
			for _, url := range []string{r.worker.url, r.front.gateway} {
				if now := serial(t, url, trusting(t, certs, true)); now == before {
					t.Errorf("%s shows the old certificate", url)
				}
			}
		}
	}
	if items != 200_000 {
		t.Errorf("%d items", items)
	}

	// Half a file changes nothing, and is told once.
	if err := os.WriteFile(cert, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.worker.signal(syscall.SIGHUP)
	r.worker.waitLine("a warning", func(s string) bool { return strings.Contains(s, "what was read before holds on") })
	if got := r.front.ask("call", echoAddr, "Upper", `"still"`); got.code != 0 {
		t.Errorf("exit %d, %s", got.code, got.err)
	}
}

func secretFile(t *testing.T, secret string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "session")
	if err := os.WriteFile(name, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Files that make no sense stop the start, and say which and why.
func TestTLSBadFiles(t *testing.T) {
	t.Parallel()
	certs := devCerts(t, filepath.Join(t.TempDir(), "tls"))
	for _, args := range [][]string{
		{"--cluster-tls-cert", filepath.Join(certs, "none.pem"), "--cluster-tls-key", filepath.Join(certs, "key.pem")},
		{"--ops-tls-cert", filepath.Join(certs, "cert.pem"), "--ops-tls-key", filepath.Join(certs, "ca.pem")},
	} {
		i := prepare(t, nil)
		i.launch(args...)
		if code := i.wait(); code != 2 || !strings.Contains(i.output(), args[1]) {
			t.Errorf("exit %d:\n%s", code, i.output())
		}
	}
}

// The ops listener over TLS.
func TestOpsTLS(t *testing.T) {
	t.Parallel()
	certs := devCerts(t, filepath.Join(t.TempDir(), "tls"))
	i := prepare(t, nil)
	i.launch("--ops-tls-cert", filepath.Join(certs, "cert.pem"), "--ops-tls-key", filepath.Join(certs, "key.pem"))
	url := strings.TrimPrefix(i.waitLine("line ops:", func(s string) bool { return strings.HasPrefix(s, "ops: ") }), "ops: ")
	web := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: trusting(t, certs, false)}}
	defer web.CloseIdleConnections()
	i.until("/livez", func() bool {
		resp, err := web.Get(url + "/livez")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK && resp.TLS != nil
	})
	if left := time.Until(webExpiry(t, url, trusting(t, certs, false))); left < 24*time.Hour {
		t.Errorf("%v are left", left)
	}
}

func webExpiry(t *testing.T, url string, c *tls.Config) time.Time {
	t.Helper()
	conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].NotAfter //nolint:forcetypeassert // a tls.Dialer's
}
