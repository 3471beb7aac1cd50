package config

import (
	"strings"
	"testing"
)

func TestParseNetworks(t *testing.T) {
	got, why := ParseNetworks([]string{"10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1"})
	if why != "" || len(got) != 4 || got[1].String() != "192.0.2.7/32" || got[3].String() != "::1/128" {
		t.Errorf("%v, %s", got, why)
	}
	for bad, want := range map[string]string{
		"10.0.0.1/8": "the network is 10.0.0.0/8", "0.0.0.0/0": "everybody", "::/0": "everybody", "proxy.internal": "is no network",
		"10.0.0.0/33": "is no network", "": "is no network", "fe80::1%eth0": "is no network", "::ffff:10.0.0.0/104": "of IPv4", "*": "is no network",
	} {
		if _, why := ParseNetworks([]string{"10.0.0.0/8", bad}); !strings.Contains(why, want) {
			t.Errorf("%q: %q, want %q", bad, why, want)
		}
	}
	_, err := Load(Sources{Environ: []string{"CONDUIT_CFG_GATEWAY_TRUSTED_PROXIES=10.0.0.1/8"}})
	if err == nil || !strings.Contains(err.Error(), "gateway.trusted_proxies") {
		t.Errorf("it was read: %v", err)
	}
}
