package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit"
)

// door checks what can be checked of a request without looking at what it asks
// for: where it was sent, from which page, by which method, to which path. done
// says that it has been answered.
func (q *request) door() (done bool, f *fault) {
	r := q.r
	if !q.g.hosts.allow(r) {
		return false, refuse(http.StatusMisdirectedRequest, conduit.PermissionDenied, reasonHost,
			"the gateway does not go by the name in the Host header")
	}
	page, f := q.g.origins.check(r.Header)
	if f != nil {
		return false, f
	}
	h := q.reply.w.Header()
	if q.g.origins.any() {
		h.Add("Vary", "Origin")
	}
	if page != "" {
		h.Set("Access-Control-Allow-Origin", page)
		h.Set("Access-Control-Expose-Headers", "Retry-After, "+headerContentType+", "+headerTraceID)
	}

	path := r.URL.EscapedPath()
	method := q.g.methodOf(path)
	if method == "" {
		return false, refuse(http.StatusNotFound, conduit.NotFound, reasonPath, "there is nothing at this path")
	}
	if r.Method == http.MethodOptions && page != "" && r.Header.Get("Access-Control-Request-Method") != "" {
		h.Set("Access-Control-Allow-Methods", method)
		h.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, "+headerTimeout+", Elements-SessionSecret, Traceparent, Tracestate")
		h.Set("Access-Control-Max-Age", "600")
		q.reply.begin(http.StatusNoContent)
		return true, nil
	}
	headed := listOf(path) != "" || path == openAPIPath && method != ""
	if r.Method != method && (r.Method != http.MethodHead || !headed) {
		if headed {
			method += ", " + http.MethodHead
		}
		h.Set("Allow", method)
		return false, refuse(http.StatusMethodNotAllowed, conduit.InvalidArgument, reasonHTTPMethod, "%s", wrongMethod(path))
	}
	if rest, ok := strings.CutPrefix(path, callPrefix); ok {
		q.route, f = parseRoute(rest)
	}
	return false, f
}

// wrongMethod says what a path is asked with.
func wrongMethod(path string) string {
	switch path {
	case sessionsPath:
		return "a session is made with POST"
	case currentPath:
		return "a session is ended with DELETE"
	}
	if isDirectory(path) {
		return "what there is is asked with GET"
	}
	return "calls are made with POST"
}

// origins are the web pages that may call.
type origins struct {
	all    bool
	listed []string
}

func parseOrigins(list []string) (o origins, err error) {
	for _, s := range list {
		if s == "*" {
			o.all = true
			continue
		}
		origin, err := parseOrigin(s)
		if err != nil {
			return o, err
		}
		o.listed = append(o.listed, origin)
	}
	return o, nil
}

// parseOrigin brings an origin into the form in which browsers send it.
func parseOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the origin %q is not of the form https://host[:port], without a path", s)
	}
	host := strings.ToLower(u.Host)
	if p := u.Port(); p == "" || p == "80" && u.Scheme == "http" || p == "443" && u.Scheme == "https" {
		host = strings.TrimSuffix(host, ":"+p)
	}
	return u.Scheme + "://" + host, nil
}

// any reports whether pages may call at all.
func (o *origins) any() bool { return o.all || len(o.listed) > 0 }

// check returns the origin of the page that the request comes from, "" if it comes
// from no page. A request from a page that is not listed is refused, since the
// browser would send it for any page and hide no more than the answer.
func (o *origins) check(h http.Header) (page string, f *fault) {
	switch list := h.Values("Origin"); {
	case len(list) == 1 && (o.all && list[0] != "" || slices.Contains(o.listed, strings.ToLower(list[0]))):
		return list[0], nil
	case len(list) > 0:
	default:
		// Without an Origin a browser still says what it is about.
		if site := h.Get("Sec-Fetch-Site"); site == "" || site == "none" || site == "same-origin" {
			return "", nil
		}
	}
	return "", refuse(http.StatusForbidden, conduit.PermissionDenied, reasonOrigin, "pages of this origin may not call; gateway.cors lists those that may")
}

// hosts are the names that the gateway goes by, in lower case, each with its port
// or without one for all.
type hosts []string

func parseHosts(list []string) (h hosts, err error) {
	for _, s := range list {
		host := normalHost(s)
		if host == "" || strings.ContainsAny(host, "/@*? ") {
			return nil, fmt.Errorf("the host %q is not of the form name or name:port", s)
		}
		h = append(h, host)
	}
	return h, nil
}

// allow keeps pages out whose name was pointed at this machine: they are of the
// same origin for the browser, and their Host is the one thing that tells.
func (h hosts) allow(r *http.Request) bool {
	if len(h) == 0 {
		return !onLoopback(r) || isLoopback(r.Host)
	}
	host := normalHost(r.Host)
	return slices.Contains(h, host) || slices.Contains(h, withoutPort(host))
}

func normalHost(s string) string {
	host := strings.ToLower(strings.TrimSuffix(s, "."))
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		return "[" + host + "]"
	}
	return host
}

// withoutPort keeps the brackets of an address.
func withoutPort(host string) string {
	h, _, err := net.SplitHostPort(host)
	if err != nil {
		return host
	}
	return normalHost(h)
}

// onLoopback reports whether the request came in on a loopback address.
func onLoopback(r *http.Request) bool {
	tcp, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func isLoopback(hostport string) bool {
	host := withoutPort(normalHost(hostport))
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.Unmap().IsLoopback()
}
