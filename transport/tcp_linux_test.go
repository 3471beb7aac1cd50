package transport

import (
	"net"
	"strings"
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
		got, err := tune(conn, userTimeoutOf(set, 0))
		if err != nil {
			t.Fatal(err)
		}
		if ms := get(conn); ms != want || got.Milliseconds() != int64(want) {
			t.Errorf("with %v, it is %d ms, said to be %v; want %d", set, ms, got, want)
		}
		_ = server.Close(link.CloseAbnormal, "")
	}
}

// TestUserTimeoutFollowsDeadAfter: a peer that the probes would give more time gets
// it from the kernel, too.
func TestUserTimeoutFollowsDeadAfter(t *testing.T) {
	for _, test := range []struct{ set, deadAfter, want time.Duration }{
		{0, 0, 3 * time.Second}, {0, 10 * time.Second, 10 * time.Second}, {time.Second, 10 * time.Second, time.Second}, {-1, 10 * time.Second, -1},
	} {
		o := link.Options{DeadAfter: test.deadAfter}
		c := NewClient(ClientOptions{UserTimeout: test.set, Link: o})
		s := NewServer(ServerOptions{UserTimeout: test.set, Link: o})
		if c.o.UserTimeout != test.want || s.o.UserTimeout != test.want {
			t.Errorf("%+v: %v and %v", test, c.o.UserTimeout, s.o.UserTimeout)
		}
		_ = c.Close()
		_ = s.Close()
	}
}

// TestStalledReader: when a peer does not read, the error says which of the limits
// has ended the link, and how long that is.
func TestStalledReader(t *testing.T) {
	server, _ := carriers(t, 0, limit)
	var err error
	if server.userTimeout, err = tune(server.ws.NetConn(), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		p := make([]byte, 64<<10)
		for {
			if err := server.WriteMessage(p); err != nil {
				written <- err
				return
			}
		}
	}()
	known := false
	for what, end := range map[string]<-chan error{"write": written, "read": read(server)} {
		err := wait(t, end, "the "+what)
		told := strings.Contains(err.Error(), "300ms (TCP_USER_TIMEOUT") && !strings.Contains(err.Error(), limit.String())
		if isTimeout(err) && !told { // whoever comes second may find the socket closed instead
			t.Errorf("%s: %v", what, err)
		}
		known = known || told
	}
	if !known {
		t.Error("neither the reader nor the writer was told")
	}
}
