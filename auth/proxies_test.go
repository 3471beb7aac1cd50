package auth_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/auth"
)

func TestProxies(t *testing.T) {
	proxies := auth.Proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	listed, standard := "X-Forwarded-For", "Forwarded"
	for _, row := range []struct {
		what, conn string
		header     []string
		want       string
	}{
		{"no header", "10.0.0.1:1", nil, "10.0.0.1"},
		{"a stranger is not believed", "198.51.100.7:1", []string{listed, "203.0.113.5"}, "198.51.100.7"},
		{"a stranger is not believed, standard", "198.51.100.7:1", []string{standard, "for=203.0.113.5"}, "198.51.100.7"},
		{"one proxy", "10.0.0.1:1", []string{listed, "203.0.113.5"}, "203.0.113.5"},
		{"what a caller wrote before", "10.0.0.1:1", []string{listed, "127.0.0.1, 203.0.113.5"}, "203.0.113.5"},
		{"a caller that pretends to be a proxy", "10.0.0.1:1", []string{listed, "192.0.2.1, 10.9.9.9, 203.0.113.5"}, "203.0.113.5"},
		{"two proxies", "10.0.0.1:1", []string{listed, "192.0.2.1, 203.0.113.5 ,10.0.0.2"}, "203.0.113.5"},
		{"two lines", "10.0.0.1:1", []string{listed, "192.0.2.1", listed, "203.0.113.5,10.0.0.2"}, "203.0.113.5"},
		{"two lines, the second of proxies", "10.0.0.1:1", []string{listed, "192.0.2.1", listed, "10.0.0.3,10.0.0.2"}, "192.0.2.1"},
		{"proxies alone", "10.0.0.1:1", []string{listed, "10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"a port", "10.0.0.1:1", []string{listed, "203.0.113.5:4711"}, "203.0.113.5"},
		{"IPv6", "[2001:db8::1]:1", []string{listed, "2001:db9::5"}, "2001:db9::5"},
		{"IPv6 with a port", "10.0.0.1:1", []string{listed, "[2001:db9::5]:80"}, "2001:db9::5"},
		{"IPv6 in brackets", "10.0.0.1:1", []string{listed, "[2001:db9::5]"}, "2001:db9::5"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:1", []string{listed, "::ffff:203.0.113.5"}, "203.0.113.5"},
		{"a zone", "10.0.0.1:1", []string{listed, "fe80::1%eth0"}, "10.0.0.1"},
		{"no address", "10.0.0.1:1", []string{listed, "203.0.113.5, unknown"}, "10.0.0.1"},
		{"no address behind a proxy", "10.0.0.1:1", []string{listed, "203.0.113.5, , 10.0.0.2"}, "10.0.0.2"},
		{"an empty one", "10.0.0.1:1", []string{listed, ""}, "10.0.0.1"},
		{"IPv4 in brackets", "10.0.0.1:1", []string{listed, "[203.0.113.5]"}, "10.0.0.1"},
		{"leading zeros", "10.0.0.1:1", []string{listed, "203.0.113.05"}, "10.0.0.1"},
		{"both", "10.0.0.1:1", []string{listed, "203.0.113.5", standard, "for=203.0.113.6"}, "10.0.0.1"},
		{"standard", "10.0.0.1:1", []string{standard, "for=192.0.2.1, For=203.0.113.5;proto=https;by=10.0.0.1"}, "203.0.113.5"},
		{"standard, quoted", "10.0.0.1:1", []string{standard, `for=192.0.2.1, host="a,b;for=1.1.1.1";for="[2001:db9::5]:4711"`}, "2001:db9::5"},
		{"standard, through a proxy", "10.0.0.1:1", []string{standard, `for=203.0.113.5`, standard, `for="[2001:db8::2]"`}, "203.0.113.5"},
		{"standard, hidden", "10.0.0.1:1", []string{standard, "for=203.0.113.5, for=_hidden"}, "10.0.0.1"},
		{"standard, nobody", "10.0.0.1:1", []string{standard, "for=203.0.113.5, proto=http"}, "10.0.0.1"},
		{"standard, two", "10.0.0.1:1", []string{standard, "for=203.0.113.5;for=203.0.113.6"}, "10.0.0.1"},
		{"standard, an open quote", "10.0.0.1:1", []string{standard, `for="203.0.113.5`}, "10.0.0.1"},
		{"standard, an escape", "10.0.0.1:1", []string{standard, `for="203.0.113.\5"`}, "10.0.0.1"},
		{"a socket", "@", []string{listed, "203.0.113.5"}, "invalid IP"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = row.conn
		for i := 0; i < len(row.header); i += 2 {
			r.Header.Add(row.header[i], row.header[i+1])
		}
		if got := proxies.From(r).String(); got != row.want {
			t.Errorf("%s: %s, want %s", row.what, got, row.want)
		}
		var marked netip.Addr
		proxies.Mark(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { marked = auth.From(r) })).ServeHTTP(httptest.NewRecorder(), r)
		if marked.String() != row.want {
			t.Errorf("%s, marked: %s, want %s", row.what, marked, row.want)
		}
		if got := auth.From(r); row.conn != "@" && !strings.Contains(row.conn, got.String()) {
			t.Errorf("%s, not marked: %s", row.what, got)
		}
	}
	none := auth.Proxies(nil)
	none.Mark(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got := auth.From(r).String(); got != "10.0.0.1" {
			t.Errorf("without proxies: %s", got)
		}
	})).ServeHTTP(nil, func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		r.Header.Set(listed, "203.0.113.5")
		return r
	}())
}

// Whatever stands in the headers, the address is the connection's or one that is
// written there behind the last stranger.
func FuzzProxies(f *testing.F) {
	f.Add("203.0.113.5, 10.0.0.2", "")
	f.Add("", `for="[2001:db9::5]:1";by=x, for=10.0.0.2`)
	f.Add(`",\`, `;=",`)
	proxies := auth.Proxies{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, listed, standard string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		if listed != "" {
			r.Header.Set("X-Forwarded-For", listed)
		}
		if standard != "" {
			r.Header.Set("Forwarded", standard)
		}
		got := proxies.From(r)
		if !got.IsValid() || got.Zone() != "" || listed != "" && standard != "" && got.String() != "10.0.0.1" {
			t.Errorf("%q, %q: %s", listed, standard, got)
		}
		r.RemoteAddr = "198.51.100.7:1"
		if got := proxies.From(r).String(); got != "198.51.100.7" {
			t.Errorf("a stranger: %s", got)
		}
	})
}
