package pluginlink

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// sameUser says which process is at the other end of a Unix socket. The error says that
// it is not this user's.
func sameUser(conn net.Conn) (pid int, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("a %T is no Unix socket", conn)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, failed
	case int(peer.Uid) != os.Geteuid():
		return 0, fmt.Errorf("process %d at the other end is user %d's, and this one is user %d's", peer.Pid, peer.Uid, os.Geteuid())
	}
	return int(peer.Pid), nil
}
