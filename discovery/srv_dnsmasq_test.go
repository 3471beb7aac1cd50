//go:build dnsmasq

// Run by scripts/dnsmasq.sh, which sees to it that there is one.

package discovery_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

// dnsmasq runs a real server on a port of loopback until stop.
func dnsmasq(t *testing.T, port string, args ...string) (stop func()) {
	t.Helper()
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		path = "/usr/sbin/dnsmasq"
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	cmd := exec.CommandContext(ctx, path, append([]string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=", "--no-resolv", "--no-hosts", "--log-facility=-",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port=" + port, "--local=/example/", "--local-ttl=1",
	}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		var said []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said = append(said, lines.Text())
			if strings.Contains(lines.Text(), "started") {
				started <- ""
			}
		}
		select {
		case started <- "it ended: " + strings.Join(said, "\n"):
		default:
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-read
			_ = cmd.Wait() // it was killed
		}
	}
	t.Cleanup(stop)
	if why := <-started; why != "" {
		t.Fatal(why)
	}
	return stop
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(discoverytest.NewDNS(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A real server, through a life: records with addresses, more than a datagram holds,
// a name less, a service that is off, no name, and no server.
func TestDnsmasq(t *testing.T) {
	var port string
	t.Run("port", func(t *testing.T) { port = freePort(t) }) // free again behind it
	peer := func(i int) string { return fmt.Sprintf("h%d.cl.example", i) }
	serve := func(n int) (args []string) {
		for i := range n {
			args = append(args, "--srv-host=_conduit._tcp.cl.example,"+peer(i)+",7001", "--host-record="+peer(i)+",127.0.1."+strconv.Itoa(i+1)+",2001:db8::"+strconv.Itoa(i+1))
		}
		return append(args, "--srv-host=_conduit._tcp.cl.example,none.cl.example,7001")
	}
	stop := dnsmasq(t, port, serve(150)...)

	s := newSRV(t, discovery.SRVOptions{
		Servers: []string{"127.0.0.1:" + port}, Interval: 50 * time.Millisecond, Timeout: 200 * time.Millisecond, Stale: 2 * time.Second,
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	got := make(chan discovery.Snapshot)
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(s discovery.Snapshot) {
			select {
			case got <- s:
			case <-ctx.Done():
			}
		})
	}()
	var last discovery.Snapshot
	see := func(what string, is func(discovery.Snapshot) bool) {
		t.Helper()
		for {
			select {
			case last = <-got:
				if is(last) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%s: not seen; the last snapshot is %+v", what, last)
			}
		}
	}

	see("150 peers", listed(150))
	if !slices.ContainsFunc(last.Problems, func(p discovery.Problem) bool { return p.Entry == "none.cl.example:7001" }) {
		t.Errorf("the target without address is no problem: %v", last.Problems)
	}
	if a := fmt.Sprint(s.Addresses(peer(0))); a != "[2001:db8::1 127.0.1.1]" {
		t.Errorf("addresses of %s: %s", peer(0), a)
	}
	stop()
	see("stale peers", func(s discovery.Snapshot) bool { return len(s.Peers) == 150 && !s.Stale.IsZero() })
	stop = dnsmasq(t, port, serve(149)...)
	see("one peer less", func(s discovery.Snapshot) bool { return len(s.Peers) == 149 && s.Stale.IsZero() })
	stop()
	see("stale peers", func(s discovery.Snapshot) bool { return len(s.Peers) == 149 && !s.Stale.IsZero() })
	see("that they are dropped", listed(0))
	stop = dnsmasq(t, port, serve(3)...)
	see("3 peers", listed(3))
	stop()
	stop = dnsmasq(t, port) // NXDOMAIN
	see("nobody", func(s discovery.Snapshot) bool { return len(s.Peers) == 0 && says("NXDOMAIN")(s) })
	stop()
	dnsmasq(t, port, "--srv-host=_conduit._tcp.cl.example")
	see("a service that is off", says("switched off"))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
