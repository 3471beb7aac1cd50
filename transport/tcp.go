package transport

import (
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// userTimeoutOf returns how long the kernel is to wait for a peer, of what the
// options say: as long as the link's own probes do, unless they say otherwise.
// Negative = it is not told.
func userTimeoutOf(set, deadAfter time.Duration) time.Duration {
	switch {
	case set != 0:
		return set
	case deadAfter > 0:
		return deadAfter
	default:
		return DefaultUserTimeout
	}
}

// tune sets a connection's options; TCP_NODELAY is Go's default. It returns the
// TCP_USER_TIMEOUT that is in force, 0 if there is none. An error is of no
// consequence to the caller: the connection works without them.
func tune(conn net.Conn, userTimeout time.Duration) (time.Duration, error) {
	conn = bare(conn)
	if h, ok := conn.(*handshake); ok {
		conn = h.Conn
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok || userTimeout <= 0 || !hasUserTimeout {
		return 0, nil
	}
	if err := setUserTimeout(tcp, userTimeout); err != nil {
		return 0, err
	}
	return userTimeout, nil
}

// bare returns the connection below TLS.
func bare(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// explainTimeout says what has given a connection up when no deadline of ours had
// passed, so that it was the kernel, if it was time at all: its word, "connection timed
// out", says neither what nor after how long.
func explainTimeout(err error, userTimeout time.Duration) error {
	switch {
	case !isTimeout(err):
		return err
	case userTimeout > 0:
		return fmt.Errorf("the peer has acknowledged nothing, or made no room for more, for %v (TCP_USER_TIMEOUT, as cluster.dead_after): it does not read, or is cut off: %w", userTimeout, err)
	default:
		return fmt.Errorf("the peer has acknowledged nothing for as long as the kernel waits: it is dead or cut off: %w", err)
	}
}
