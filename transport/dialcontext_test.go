package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestDialContext has a host found by a func that knows its address: the name that
// TLS checks is still the URL's.
func TestDialContext(t *testing.T) {
	ctx := testContext(t)
	s := NewServer(ServerOptions{Handler: newEcho(), Authenticate: anyone})
	h := httptest.NewUnstartedServer(s)
	h.Config.ErrorLog = s.HTTPServer(s).ErrorLog
	h.StartTLS()
	t.Cleanup(func() { h.Close(); _ = s.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	var asked atomic.Value
	c := dialer(t, ClientOptions{
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			asked.Store(network + " " + address)
			return (&net.Dialer{}).DialContext(ctx, network, h.Listener.Addr().String())
		},
	})
	mustEcho(ctx, t, c.Peer("wss://example.com:7400"+Path).At(echoAddress), "found")
	if got := asked.Load(); got != "tcp example.com:7400" {
		t.Errorf("asked for %v", got)
	}
	if _, err := call(ctx, c.Peer("wss://example.org:7400"+Path).At(echoAddress), "Echo", "x"); err == nil {
		t.Error("the certificate is for another name than the URL's, and it is taken")
	}
}
