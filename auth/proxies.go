package auth

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the networks of those who may say for whom they ask: of nobody else is
// it believed where a request comes from.
type Proxies []netip.Prefix

// From returns the address that a request comes from. If that of its connection is one
// of the proxies, it is the last address in X-Forwarded-For, or in Forwarded, that is
// none: each proxy appends who asked it, and what stands before a stranger the stranger
// may have written. Where the way back ends in something else than an address, it is
// the proxy that wrote that; so it is also if both headers are there, since proxies
// mind one of them and pass the other one on as it came.
func (p Proxies) From(r *http.Request) netip.Addr {
	at := plain(connectionAddress(r))
	if !p.trust(at) {
		return at
	}
	list, standard := r.Header["X-Forwarded-For"], r.Header["Forwarded"]
	if len(list) > 0 && len(standard) > 0 {
		return at
	}
	hop := listedHop
	if len(standard) > 0 {
		list, hop = standard, forwardedHop
	}
	for _, line := range slices.Backward(list) {
		elements, ok := splitQuoted(line, ',')
		if !ok {
			return at
		}
		for _, element := range slices.Backward(elements) {
			next, ok := hop(element)
			if !ok {
				return at
			}
			if at = next; !p.trust(at) {
				return at
			}
		}
	}
	return at
}

func (p Proxies) trust(a netip.Addr) bool {
	for _, network := range p {
		if network.Contains(a) {
			return true
		}
	}
	return false
}

// plain is an address in its one form: an IPv4 address that came as an IPv6 one is one
// of IPv4, and which interface it came by does not count.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// listedHop reads an element of X-Forwarded-For: an address, which some proxies write
// with a port.
func listedHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if a, err := netip.ParseAddr(s); err == nil {
		return plain(a), a.Zone() == ""
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr()), ap.Addr().Zone() == ""
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			a, err := netip.ParseAddr(inner)
			return plain(a), err == nil && a.Is6() && a.Zone() == ""
		}
	}
	return netip.Addr{}, false
}

// forwardedHop reads an element of Forwarded (RFC 7239): the address in its one "for".
func forwardedHop(s string) (a netip.Addr, ok bool) {
	pairs, ok := splitQuoted(s, ';')
	if !ok {
		return a, false
	}
	found := false
	for _, pair := range pairs {
		name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found {
			return a, false
		}
		if strings.HasPrefix(value, `"`) {
			if len(value) < 2 || !strings.HasSuffix(value, `"`) || strings.ContainsRune(value, '\\') {
				return a, false // an address has nothing to escape
			}
			value = value[1 : len(value)-1]
		}
		if a, ok = listedHop(value); !ok {
			return a, false // "unknown", or a name that the proxy made up
		}
		found = true
	}
	return a, found
}

// splitQuoted splits at a separator outside of quoted strings; ok is false if one does
// not end.
func splitQuoted(s string, at byte) (parts []string, ok bool) {
	quoted, begin := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == at && !quoted:
			parts = append(parts, s[begin:i])
			begin = i + 1
		}
	}
	return append(parts, s[begin:]), !quoted
}

// fromKey is of the address that a request was found to come from.
type fromKey struct{}

// Mark has [From] say of the requests that come to next where these proxies say they
// come from. Without proxies it returns next.
func (p Proxies) Mark(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), fromKey{}, p.From(r))))
	})
}

// From returns the address that a request comes from: what [Proxies.Mark] found, else
// the address of its connection; the zero one for what is no address.
func From(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(fromKey{}).(netip.Addr); ok {
		return a
	}
	return connectionAddress(r)
}
