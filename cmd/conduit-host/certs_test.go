package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
)

// An instance's session that comes over a certificate comes over that instance's own;
// users' sessions and links without certificates are not concerned.
func TestCertified(t *testing.T) {
	of := func(user string, id address.InstanceID) auth.Grant {
		return auth.Grant{Principal: auth.Principal{User: user}, Instance: id}
	}
	front := of(auth.InstancePrefix+"front", address.RandomInstanceID())
	shown := func(names ...string) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{DNSNames: names}}}
	}
	for _, tt := range []struct {
		name  string
		grant auth.Grant
		tls   *tls.ConnectionState
		good  bool
	}{
		{"its own", front, shown("w", "front"), true},
		{"by case", front, shown("FRONT"), true},
		{"another's", front, shown("w"), false},
		{"a part of it", front, shown("fron", "front.example"), false},
		{"nobody's", front, shown(), false},
		{"none asked for", front, &tls.ConnectionState{}, true},
		{"no TLS", front, nil, true},
		{"a user's session", of("ada", address.InstanceID{}), shown("w"), true},
	} {
		err := certified(&http.Request{TLS: tt.tls}, tt.grant)
		if (err == nil) != tt.good || err != nil && !strings.Contains(err.Error(), "DNS names") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
