package transport

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/elemental-conduit/conduit"
)

// checkURL says whether a link may be dialled at a URL, and returns it in the
// form that the link cache knows it by. Its errors quote scheme and host only: a
// secret that was put into the URL stays out of logs.
func checkURL(raw string, insecure bool) (string, *conduit.Error) {
	bad := func(format string, args ...any) (string, *conduit.Error) {
		e := conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, format, args...)
		e.Op = "transport.dial"
		return "", e
	}
	u, err := url.Parse(raw)
	if err != nil { // err quotes the URL
		return bad("the peer's URL does not parse: it should look like wss://host:7400%s", Path)
	}
	switch {
	case u.Scheme != "ws" && u.Scheme != "wss":
		return bad("a peer's URL begins with ws:// or wss://")
	case u.User != nil:
		return bad("the peer %s://%s has a user or password in its URL: give the session as an option, where it is not logged", u.Scheme, u.Host)
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return bad("the peer %s://%s has a query or fragment in its URL, which links do not have; a session is given as an option", u.Scheme, u.Host)
	case u.Hostname() == "":
		return bad("the peer's URL names no host: it should look like wss://host:7400%s", Path)
	case !plainHost(u.Host, u.Hostname()):
		return bad("the host in the peer's URL is neither a name of letters, digits, '-', '_' and '.' nor an IP address (IPv6 in brackets)")
	case u.Path != "" && u.Path != "/" && u.Path != Path:
		return bad("the peer %s://%s has another path than %s in its URL", u.Scheme, u.Host, Path)
	case u.Scheme == "ws" && !insecure && !isLoopback(u.Hostname()):
		return bad("ws://%s would carry session and calls in the clear: use wss://, or allow it (setting cluster.insecure; in Go, the option Insecure)", u.Host)
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" {
		port = map[string]string{"ws": "80", "wss": "443"}[u.Scheme]
	}
	clean := url.URL{Scheme: u.Scheme, Host: net.JoinHostPort(host, port), Path: Path}
	return clean.String(), nil
}

// isLoopback says whether a host is this machine by its name alone; other names
// are not looked up, since the answer could change until the dial.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// checkSession says whether a session secret can stand in a header. It does not
// quote it.
func checkSession(secret string) *conduit.Error {
	for i := range len(secret) {
		if c := secret[i]; c <= ' ' || c > '~' {
			e := conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent,
				"the session secret holds a blank, a control or a non-ASCII character at byte %d: is it a file's content with its line break?", i)
			e.Op = "transport.dial"
			return e
		}
	}
	return nil
}

// plainHost reports whether a URL's host reads back as it was once it is written
// in its normal form: a name without escapes, or an address with a plain zone.
func plainHost(host, name string) bool {
	plain := func(s, more string) bool {
		return !strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(more, r)
		})
	}
	if !strings.HasPrefix(host, "[") {
		return plain(name, "-_.")
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && plain(ip.Zone(), "-_.~")
}
