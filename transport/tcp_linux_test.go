package transport

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/internal/link"
)

// TestUserTimeout: both ends of a link set TCP_USER_TIMEOUT.
func TestUserTimeout(t *testing.T) {
	get := func(conn net.Conn) (ms int) {
		t.Helper()
		raw, err := conn.(*net.TCPConn).SyscallConn() //nolint:errcheck // a panic fails the test as well
		if err != nil {
			t.Fatal(err)
		}
		var got error
		if err := raw.Control(func(fd uintptr) { ms, got = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) }); err != nil || got != nil {
			t.Fatal(err, got)
		}
		return ms
	}
	for set, want := range map[time.Duration]int{0: 3000, 1500 * time.Millisecond: 1500, -1: 0} {
		server, _ := carriers(t, 0, 0)
		conn := server.ws.NetConn()
		if err := tune(conn, set); err != nil {
			t.Fatal(err)
		}
		if ms := get(conn); ms != want {
			t.Errorf("tune(%v) sets %d ms, want %d", set, ms, want)
		}
		_ = server.Close(link.CloseAbnormal, "")
	}
}
