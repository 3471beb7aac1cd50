package pluginlink

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// hostOnly has a plugin's server take connections of its host's process alone. The
// socket's directory keeps other users away, but not what runs as this one: whoever could
// connect could stop the plugin, and a sandbox cannot keep another plugin from connecting
// to a socket whose path it has learned.
func hostOnly(next credentials.TransportCredentials, hostPID int) credentials.TransportCredentials {
	if hostPID <= 0 {
		return next
	}
	return &peerOnly{next, hostPID}
}

// peerOnly is the plain connection, with a look at who has made it.
type peerOnly struct {
	credentials.TransportCredentials
	pid int
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *peerOnly) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if u, ok := conn.(*net.UnixConn); ok {
		raw, err := u.SyscallConn()
		if err != nil {
			return nil, nil, err
		}
		var peer *unix.Ucred
		var failed error
		err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		switch {
		case err != nil:
			return nil, nil, err
		case failed != nil:
			return nil, nil, failed
		case int(peer.Pid) != c.pid:
			return nil, nil, fmt.Errorf("process %d is not this plugin's host (%d)", peer.Pid, c.pid)
		}
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

// ClientHandshake implements credentials.TransportCredentials; a server has no use for it.
func (c *peerOnly) ClientHandshake(ctx context.Context, name string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.TransportCredentials.ClientHandshake(ctx, name, conn)
}

// Clone implements credentials.TransportCredentials.
func (c *peerOnly) Clone() credentials.TransportCredentials {
	return &peerOnly{c.TransportCredentials.Clone(), c.pid}
}
