package transport

import (
	"crypto/tls"
	"net"
	"time"
)

// tune sets a connection's options; TCP_NODELAY is Go's default. An error is
// of no consequence to the caller: the connection works without them.
func tune(conn net.Conn, userTimeout time.Duration) error {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok || userTimeout < 0 {
		return nil
	}
	if userTimeout == 0 {
		userTimeout = DefaultUserTimeout
	}
	return setUserTimeout(tcp, userTimeout)
}
