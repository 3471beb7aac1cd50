package transport

import (
	"net"
	"syscall"
	"time"
)

// hasUserTimeout says that there is a TCP_USER_TIMEOUT.
const hasUserTimeout = true

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), which package syscall lacks.
const tcpUserTimeout = 0x12

// setUserTimeout bounds how long sent bytes may stay unacknowledged, and how
// long a full receiver may stay full, before the kernel gives the connection
// up. Without it a peer that lost power is noticed after a quarter of an hour.
func setUserTimeout(conn *net.TCPConn, d time.Duration) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return set
}
