package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// endpoint is where an instance serves its links; every normal form ends in it.
const endpoint = "/cluster/v1"

// EntryError says what is wrong with one entry of a static list. It never holds
// more of the entry than its scheme and host: people put secrets into URLs.
type EntryError struct {
	// Entry is the entry, without what may be a secret.
	Entry string
	// Why says what is wrong and what to write instead.
	Why string
}

// Error names the entry and says why.
func (e *EntryError) Error() string { return fmt.Sprintf("peer %q: %s", e.Entry, e.Why) }

// ParseStatic reads a list of peers as discovery.static and --peer take it: each
// entry is one peer, or several separated by commas. The result holds each peer
// once, in the order of the list, in the normal form of [ParsePeer]; so an
// instance finds itself by comparing with the normal form of its own address.
func ParseStatic(entries []string, insecure bool) ([]string, error) {
	var peers []string
	for _, entry := range entries {
		for one := range strings.SplitSeq(entry, ",") {
			one = strings.TrimSpace(one)
			if one == "" {
				if strings.TrimSpace(entry) == "" {
					return nil, &EntryError{Entry: "", Why: "it is empty: write host:port or a ws:// or wss:// URL"}
				}
				continue // a comma at the end is no mistake worth a stop
			}
			peer, err := ParsePeer(one, insecure)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(peers, peer) {
				peers = append(peers, peer)
			}
		}
	}
	return peers, nil
}

// ParsePeer reads one peer and returns its normal form, such as
// wss://host:7400/cluster/v1: lower case, with port and path, so that two
// spellings of one peer are equal. It takes
//
//	host:7400
//	[2001:db8::1]:7400
//	ws://host:7400
//	wss://host:7400/cluster/v1
//
// Without a scheme, this machine's own loopback addresses are dialled with ws://
// and all others with wss://, or with ws:// as well if insecure (the setting
// cluster.insecure). A URL without a port has its scheme's, 80 or 443.
//
// The error is an *EntryError.
func ParsePeer(s string, insecure bool) (string, error) {
	s = strings.TrimSpace(s)
	bad := func(format string, args ...any) (string, error) {
		return "", &EntryError{Entry: redact(s), Why: fmt.Sprintf(format, args...)}
	}
	if s == "" {
		return bad("it is empty: write host:port or a ws:// or wss:// URL")
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	if !hasScheme {
		scheme, rest = "", s
	}
	scheme = strings.ToLower(scheme)
	switch scheme {
	case "", "ws", "wss":
	case "http", "https":
		return bad("links are WebSockets: write %s://", map[string]string{"http": "ws", "https": "wss"}[scheme])
	default:
		return bad("its scheme is none of ws:// and wss://")
	}
	switch {
	case strings.ContainsRune(rest, '@'):
		return bad("a user or password has no place in it: give the session with --session or as an option, where it is not logged")
	case strings.ContainsAny(rest, "?#"):
		return bad("a query or fragment has no place in it: a session is given with --session or as an option")
	}
	authority, path, _ := strings.Cut(rest, "/")
	if path = "/" + path; path != "/" && strings.TrimSuffix(path, "/") != endpoint {
		return bad("its path is not %s, which may be left out", endpoint)
	}
	host, port, why := splitHostPort(authority, scheme)
	if why != "" {
		return bad("%s", why)
	}
	if hasScheme { // a zone is escaped in a URL (RFC 6874)
		host = strings.Replace(host, "%25", "%", 1)
	}
	host, loopback, why := normalHost(host)
	if why != "" {
		return bad("%s", why)
	}
	if scheme == "" {
		scheme = "wss"
		if insecure || loopback {
			scheme = "ws"
		}
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port), Path: endpoint}
	return u.String(), nil
}

// splitHostPort takes an authority apart; without a scheme it must have a port.
func splitHostPort(authority, scheme string) (host, port, why string) {
	switch {
	case authority == "":
		return "", "", "it names no host"
	case strings.HasPrefix(authority, "["):
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return "", "", "the bracket of its IPv6 address is not closed"
		}
		host, port = authority[1:end], authority[end+1:]
		if !strings.Contains(host, ":") {
			return "", "", "only an IPv6 address stands in brackets"
		}
		if port != "" && port[0] != ':' {
			return "", "", "only a port may follow the brackets"
		}
	case strings.Count(authority, ":") > 1:
		return "", "", "an IPv6 address stands in brackets, as in [2001:db8::1]:7400"
	default:
		host = authority
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			host, port = authority[:i], authority[i:]
		}
	}
	switch {
	case port == "" && scheme == "":
		return "", "", "its port is missing: an instance listens on 7400 unless told otherwise"
	case port == "" && scheme == "ws":
		return host, "80", ""
	case port == "":
		return host, "443", ""
	}
	port = port[1:]
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", "", "its port is not a number from 1 to 65535"
	}
	return host, strconv.FormatUint(n, 10), ""
}

// normalHost checks a host and returns its one spelling.
func normalHost(host string) (normal string, loopback bool, why string) {
	if ip, err := netip.ParseAddr(strings.TrimSuffix(host, ".")); err == nil && ip.Is4() {
		host = ip.String() // written as a name is that is absolute
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		ip = ip.Unmap()
		if ip.IsUnspecified() {
			return "", false, "it is the address to listen on everywhere, which cannot be dialled"
		}
		// What a URL would escape would not read back as it was.
		if strings.ContainsFunc(ip.Zone(), func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~", r)
		}) {
			return "", false, "the zone of its IPv6 address holds something else than letters, digits, '-', '.', '_' and '~'"
		}
		return ip.String(), ip.IsLoopback(), ""
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" {
		return "", false, "it names no host"
	}
	if len(host) > 253 {
		return "", false, "its host's name is longer than 253 bytes"
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return "", false, "a part of its host's name is empty or longer than 63 bytes"
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", false, "its host's name holds something else than letters, digits, '-' and '.' (write a name of another script as xn--...)"
			}
		}
	}
	return host, host == "localhost", ""
}

// redact leaves of an entry what cannot be a secret, for errors.
func redact(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	} else {
		scheme += "://"
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = "…@" + rest[i+1:]
	}
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i+1] + "…"
	}
	const most = 120
	if strings.ContainsRune(scheme, '@') || len(scheme) > 16 {
		scheme = "…"
	}
	if len(rest) > most {
		rest = strings.ToValidUTF8(rest[:most], "") + "…"
	}
	return scheme + rest
}
