//go:build full

package integration

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

// TestFullDNSIsAttacked has an instance ask a server that answers whatever may harm. The one good
// peer among it is found each time, and the instance is none the worse.
func TestFullDNSIsAttacked(t *testing.T) {
	t.Parallel()
	server := discoverytest.NewDNS(t)
	w := start(t, []string{built.echo})
	host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(w.url, "ws://"), "/cluster/v1"))
	if err != nil {
		t.Fatal(err)
	}
	const name, target = "_conduit._tcp.test.", "worker.test."
	good := target + ":" + port
	f := prepare(t, nil)
	f.name = "front"
	f.launch("--mode", "both", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--cluster-insecure", "--log-format", "json",
		"--discovery-srv-name", name, "--discovery-srv-servers", server.Addr(), "--discovery-srv-interval", "50ms", "--discovery-hold-down", "50ms")
	f.waitReady()
	_, own, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(f.url, "ws://"), "/cluster/v1"))
	if err != nil {
		t.Fatal(err)
	}
	reachable := func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 0 }
	srv := func(targets ...string) discoverytest.Reply {
		return discoverytest.Reply{Answer: discoverytest.SRV(name, 0, targets...)}
	}
	server.On(target, "A", discoverytest.Reply{Answer: []string{target + " 0 IN A " + host}})
	attack := func(what string, r discoverytest.Reply) {
		t.Helper()
		server.On(name, "SRV", srv(good))
		f.until("the worker before "+what, reachable)
		before := server.Asked(name, "SRV")
		server.On(name, "SRV", r)
		f.until("the questions during "+what, func() bool { return server.Asked(name, "SRV") > before+2 })
		f.until("the worker during "+what, reachable)
	}

	attack("a target that is the instance itself", srv(good, "self.test.:"+own))
	server.On("self.test.", "A", discoverytest.Reply{Answer: []string{"self.test. 0 IN A 127.0.0.1"}})
	attack("a target that is the instance itself, with an address", srv(good, "self.test.:"+own))
	server.On("loop.test.", "A", discoverytest.Reply{Answer: []string{"loop.test. 0 IN CNAME pool.test.", "pool.test. 0 IN CNAME loop.test."}})
	attack("a target that is an alias of itself", srv(good, "loop.test.:7400"))
	odd := &dns.Msg{}
	odd.Response, odd.RecursionAvailable = true, true
	attack("labels of any bytes", discoverytest.Reply{Raw: func(q *dns.Msg, _ bool) []byte {
		m := odd.Copy()
		m.SetReply(q)
		for _, odd := range []string{target, `\027[31mred\000.test.`, `a\.b.test.`, `a b\010c.test.`, strings.Repeat("x", 63) + "." + strings.Repeat("y", 63) + ".test.", `*.test.`, `..%2f@x:1.test.`, `\255\254.test.`} {
			var n int
			if _, err := fmt.Sscan(port, &n); err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, &dns.SRV{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeSRV, Class: dns.ClassINET}, Port: uint16(n), Target: odd})
		}
		text, err := m.Pack()
		if err != nil { // one that cannot be sent is none
			m.Answer = m.Answer[:2]
			if text, err = m.Pack(); err != nil {
				t.Error(err)
			}
		}
		return text
	}})
	for _, shown := range []string{f.ask("ls", "instances").out, f.ask("doctor").out, f.output()} {
		if strings.Contains(shown, "\x1b[31m") || strings.Contains(shown, "\x00") {
			t.Errorf("bytes of a label are shown as they came: %q", shown)
		}
	}
	// An answer that is cut short, and the whole of it never comes: the peers of before stay.
	server.On(name, "SRV", srv(good))
	f.until("the worker before an answer that hangs", reachable)
	over := server.AskedOverTCP()
	server.On(name, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, tcp bool) []byte {
		m := new(dns.Msg).SetReply(q)
		m.Truncated = !tcp
		text, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		if tcp {
			return text[:len(text)/2] // framed as if it were whole
		}
		return text
	}})
	f.until("questions over TCP", func() bool { return server.AskedOverTCP() > over+2 })
	if !reachable() {
		t.Error("the worker is lost by answers that cannot be read")
	}
	over = server.AskedOverTCP()
	server.On(name, "SRV", discoverytest.Reply{Silent: true})
	silent := server.Asked(name, "SRV")
	f.until("a question that nobody answers", func() bool { return server.Asked(name, "SRV") > silent })
	if !reachable() {
		t.Error("the worker is lost by silence")
	}
	// Thousands of targets, all of one address where nobody is.
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("h%d.test.:%d", i%50, 20_000+i))
	}
	for i := range 50 {
		h := fmt.Sprintf("h%d.test.", i)
		server.On(h, "A", discoverytest.Reply{Answer: []string{h + " 0 IN A 127.0.0.9"}})
	}
	attack("2,000 targets", srv(append(many, good)...))
	// And all of it away and back with each look.
	for range 3 {
		server.On(name, "SRV", srv(many[:500]...))
		before := server.Asked(name, "SRV")
		f.until("a look without the worker", func() bool { return server.Asked(name, "SRV") > before+1 })
		server.On(name, "SRV", srv(good))
		f.until("the worker, again", reachable)
	}
	if status := f.get("/readyz"); status != 200 {
		t.Errorf("it is not ready: %d", status)
	}
}
