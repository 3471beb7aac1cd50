package ops

import (
	"net"
	"net/http"
	"net/netip"
)

// loopbackOnly hides next from everyone who is not on this machine: they get the
// 404 of a path that does not exist.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fromThisMachine(r) {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromThisMachine looks at more than the sender's address: a reverse proxy and a
// web page whose name was pointed at 127.0.0.1 are on this machine, too, and
// speak for somebody who may not be. The first forwards, the second has another
// Host or an Origin.
func fromThisMachine(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via", "Origin"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	return isLoopback(r.RemoteAddr) && isLoopback(r.Host)
}

// isLoopback takes host:port or host alone, as Host headers come.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if host == "localhost" {
		return true
	}
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
