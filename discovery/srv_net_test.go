package discovery_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

// limit is the deadline of a test: far beyond what any needs on a busy machine.
const limit = 30 * time.Second

func TestSRVConforms(t *testing.T) {
	discoverytest.Run(t, func(t *testing.T, peers ...string) discoverytest.Subject {
		t.Helper()
		d := discoverytest.NewDNS(t)
		d.On("c.example.", "A", discoverytest.Reply{Answer: []string{"c.example. 5 IN A 192.0.2.3"}})
		set := func(peers ...string) {
			t.Helper()
			if len(peers) == 0 {
				d.Off(service)
				return
			}
			var targets []string
			for _, p := range peers {
				u, err := url.Parse(p)
				if err != nil {
					t.Fatal(err)
				}
				targets = append(targets, u.Host)
			}
			d.On(service, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 0, targets...)})
		}
		set(peers...)
		s := newSRV(t, discovery.SRVOptions{Servers: []string{d.Addr()}, Interval: 10 * time.Millisecond})
		return discoverytest.Subject{Source: s, Set: set}
	})
}

func newSRV(t *testing.T, o discovery.SRVOptions) *discovery.SRV {
	t.Helper()
	o.Name = service
	s, err := discovery.NewSRV(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// over runs a source over the network until a snapshot is as wanted.
func over(t *testing.T, s discovery.Source, what string, is func(discovery.Snapshot) bool) discovery.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var found, last discovery.Snapshot
	err := s.Run(ctx, func(s discovery.Snapshot) {
		last = s
		if is(s) {
			found = s
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if found.At.IsZero() {
		t.Fatalf("%s: not seen; the last snapshot is %+v", what, last)
	}
	return found
}

func listed(n int) func(discovery.Snapshot) bool {
	return func(s discovery.Snapshot) bool { return len(s.Peers) == n }
}

func says(text string) func(discovery.Snapshot) bool {
	return func(s discovery.Snapshot) bool {
		return slices.ContainsFunc(s.Problems, func(p discovery.Problem) bool { return strings.Contains(p.Err.Error(), text) })
	}
}

// An answer that does not go into a datagram comes over TCP, whole.
func TestSRVTruncated(t *testing.T) {
	d := discoverytest.NewDNS(t)
	var targets []string
	for i := range 200 {
		targets = append(targets, "127.0.1."+strconv.Itoa(i+1)+":7001")
	}
	d.On(service, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 5, targets...)})
	o := discovery.SRVOptions{Servers: []string{d.Addr()}, Interval: 20 * time.Millisecond}
	over(t, newSRV(t, o), "200 peers", listed(200))
	if n := d.AskedOverTCP(); n != 1 {
		t.Errorf("%d questions over TCP", n)
	}
}

// A list of which only the beginning is to be had is no list.
func TestSRVTruncatedAndNoTCP(t *testing.T) {
	for _, test := range []struct{ name, over, says string }{
		{"AlsoCut", "", "cut short even over TCP"},
		{"Unreadable", "nonsense of more than twelve bytes", "longer than a datagram, and over TCP: it sent a message that cannot be read"},
		{"Empty", "empty", "longer than a datagram, and over TCP: it sent a message that cannot be read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := discoverytest.NewDNS(t)
			d.On(service, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, tcp bool) []byte {
				if tcp && test.over != "" {
					return []byte(strings.TrimPrefix(test.over, "empty"))
				}
				m := answerTo(q, "127.0.0.1:7001")
				m.Truncated = true
				return pack(m)
			}})
			o := discovery.SRVOptions{Servers: []string{d.Addr()}, Interval: 20 * time.Millisecond}
			s := over(t, newSRV(t, o), "a problem", says(test.says))
			if len(s.Peers) > 0 {
				t.Errorf("half a list is taken for the whole: %q", s.Peers)
			}
		})
	}
}

func answerTo(q *dns.Msg, targets ...string) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	for _, line := range discoverytest.SRV(service, 5, targets...) {
		rr, err := dns.NewRR(line)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// DSC-07: targets that are compressed are read as others are.
func TestDSC07CompressedTarget(t *testing.T) {
	d := discoverytest.NewDNS(t)
	d.On(service, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, _ bool) []byte {
		q.Extra = nil
		raw := pack(new(dns.Msg).SetReply(q)) // header, question: "_conduit" "_tcp" "cl" "example" ""
		binary.BigEndian.PutUint16(raw[6:], 2)
		for _, label := range []string{"\x01a", "\x01b"} {
			raw = append(raw, 0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 5, 0, 10, 0, 0, 0, 0, 0x1b, 0x59) // to "SRV 0 0 7001"
			raw = append(raw, label...)
			raw = append(raw, 0xc0, 12+9+5) // "cl.example" of the question
		}
		return raw
	}})
	for i, host := range []string{"a.cl.example.", "b.cl.example."} {
		d.On(host, "A", discoverytest.Reply{Answer: []string{fmt.Sprintf("%s 5 IN A 127.0.0.%d", host, i+1)}})
	}
	s := over(t, newSRV(t, discovery.SRVOptions{Servers: []string{d.Addr()}}), "two peers", listed(2))
	want := []string{"wss://a.cl.example:7001/cluster/v1", "wss://b.cl.example:7001/cluster/v1"}
	if !slices.Equal(s.Peers, want) {
		t.Errorf("%q, want %q", s.Peers, want)
	}
}

// What cannot be read names the server, and says so.
func TestSRVUnreadable(t *testing.T) {
	for _, test := range []struct {
		name, says string
		raw        func(q *dns.Msg) []byte
	}{
		{"Cut", "cannot be read", func(q *dns.Msg) []byte {
			raw := pack(answerTo(q, "127.0.0.1:7001", "127.0.0.2:7001"))
			return raw[:len(raw)-3]
		}},
		{"CutBetweenRecords", "announces 2 records and holds 1", func(q *dns.Msg) []byte {
			q.Extra = nil
			raw := pack(answerTo(q, "127.0.0.1:7001"))
			binary.BigEndian.PutUint16(raw[6:], 2)
			return raw
		}},
		{"Loop", "cannot be read", func(q *dns.Msg) []byte {
			q.Extra = nil
			raw := pack(new(dns.Msg).SetReply(q))
			binary.BigEndian.PutUint16(raw[6:], 1)
			at := byte(len(raw))
			return append(raw, 0xc0, at, 0, 33, 0, 1, 0, 0, 0, 5, 0, 0)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := discoverytest.NewDNS(t)
			d.On(service, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, _ bool) []byte { return test.raw(q) }})
			o := discovery.SRVOptions{Servers: []string{d.Addr()}, Interval: 20 * time.Millisecond}
			s := over(t, newSRV(t, o), "a problem", says(test.says))
			if !says(d.Addr())(s) {
				t.Errorf("the server is not named: %v", s.Problems)
			}
		})
	}
}

// A datagram that answers no question of ours is somebody else's guess: the true
// answer still counts.
func TestSRVForgedDatagram(t *testing.T) {
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			q := new(dns.Msg)
			if err := q.Unpack(buf[:n]); err != nil {
				t.Error(err)
				return
			}
			forged := answerTo(q, "127.0.0.66:7001")
			forged.Id++
			for _, raw := range [][]byte{{}, {1, 2, 3}, pack(forged), pack(answerTo(q, "127.0.0.1:7001"))} {
				if _, err := packets.WriteTo(raw, from); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer server.Wait()
	defer packets.Close()
	s := over(t, newSRV(t, discovery.SRVOptions{Servers: []string{packets.LocalAddr().String()}}), "a peer", listed(1))
	if s.Peers[0] != "ws://127.0.0.1:7001/cluster/v1" {
		t.Errorf("%q", s.Peers)
	}
}

// A server that shortens datagrams in silence, as Consul does, is asked over TCP.
func TestSRVOverTCP(t *testing.T) {
	d := discoverytest.NewDNS(t)
	d.On(service, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, tcp bool) []byte {
		if tcp {
			return pack(answerTo(q, "127.0.0.1:7001", "127.0.0.2:7001", "127.0.0.3:7001"))
		}
		return pack(answerTo(q, "127.0.0.1:7001"))
	}})
	o := discovery.SRVOptions{Servers: []string{"TCP://" + d.Addr()}}
	over(t, newSRV(t, o), "three peers", listed(3))
	if n, tcp := d.Asked(service, "SRV"), d.AskedOverTCP(); n != 1 || tcp != 1 {
		t.Errorf("%d questions, %d of them over TCP", n, tcp)
	}
	d.All(&discoverytest.Reply{Raw: func(q *dns.Msg, _ bool) []byte {
		m := answerTo(q, "127.0.0.1:7001")
		m.Truncated = true
		return pack(m)
	}})
	s := over(t, newSRV(t, o), "a problem", says("cut short even over TCP"))
	if len(s.Peers) > 0 {
		t.Errorf("half a list is taken for the whole: %q", s.Peers)
	}
}

// A server that knows no EDNS is asked without.
func TestSRVWithoutEDNS(t *testing.T) {
	d := discoverytest.NewDNS(t)
	d.On(service, "SRV", discoverytest.Reply{Raw: func(q *dns.Msg, _ bool) []byte {
		if q.IsEdns0() != nil {
			return pack(&dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Rcode: dns.RcodeFormatError}})
		}
		return pack(answerTo(q, "127.0.0.1:7001"))
	}})
	over(t, newSRV(t, discovery.SRVOptions{Servers: []string{d.Addr()}}), "a peer", listed(1))
}

// A server that is not there costs no wait, and its port is none of the message's.
func TestSRVClosedPort(t *testing.T) {
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := packets.LocalAddr().String()
	if err := packets.Close(); err != nil {
		t.Fatal(err)
	}
	o := discovery.SRVOptions{Servers: []string{gone}, Interval: 20 * time.Millisecond, Timeout: time.Hour}
	over(t, newSRV(t, o), "a problem", says(gone+": nothing listens there"))
	d := discoverytest.NewDNS(t)
	d.On(service, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 5, "127.0.0.1:7001")})
	o.Servers = []string{gone, d.Addr()}
	over(t, newSRV(t, o), "a peer", listed(1))
}

// The end of a Run does not wait for a server that is silent.
func TestSRVEndsWhileItAsks(t *testing.T) {
	d := discoverytest.NewDNS(t)
	d.All(&discoverytest.Reply{Silent: true})
	s := newSRV(t, discovery.SRVOptions{Servers: []string{d.Addr()}, Timeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(s discovery.Snapshot) { t.Errorf("published %+v", s) })
	}()
	for tick, over := time.NewTicker(time.Millisecond), time.After(limit); d.Asked(service, "SRV") == 0; {
		select {
		case <-tick.C:
		case <-over:
			t.Fatal("it does not ask")
		}
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("Run goes on")
	}
}

// A peer is dialled at the address that its own DNS server gave.
func TestSRVDialContext(t *testing.T) {
	d := discoverytest.NewDNS(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	d.On(service, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 5, "node1.node.dc1.consul:"+port)})
	// Nothing listens at the first address.
	d.On("node1.node.dc1.consul.", "A", discoverytest.Reply{Answer: []string{"node1.node.dc1.consul. 0 IN A 127.0.0.1"}})
	d.On("node1.node.dc1.consul.", "AAAA", discoverytest.Reply{Answer: []string{"node1.node.dc1.consul. 0 IN AAAA ::1"}})
	s := newSRV(t, discovery.SRVOptions{Servers: []string{d.Addr()}})
	over(t, s, "a peer", listed(1))
	conn, err := s.DialContext((&net.Dialer{}).DialContext)(t.Context(), "tcp", "node1.node.dc1.consul:"+port)
	if err != nil {
		t.Fatal(err)
	}
	if conn.RemoteAddr().String() != listener.Addr().String() {
		t.Errorf("connected to %v, want %v", conn.RemoteAddr(), listener.Addr())
	}
	_ = conn.Close()
}

// conn is a connection that knows whether it was closed.
type conn struct {
	net.Conn
	address string
	closed  chan struct{}
}

func (c *conn) Close() error {
	close(c.closed)
	return nil
}

// Addresses are tried in turn, and beside each other when they are slow; of two
// connections one stays.
func TestSRVDialOrder(t *testing.T) {
	refused := errors.New("refused")
	type plan struct {
		after    time.Duration
		err      error
		stubborn bool // is connected though it was told to give up
	}
	six, four, last := "[2001:db8::1]:7001", "192.0.2.1:7001", "192.0.2.2:7001"
	for _, test := range []struct {
		name  string
		plans map[string]plan
		want  string // the address, or the error
		took  time.Duration
		tried int
	}{
		{"First", map[string]plan{six: {after: 100 * time.Millisecond}}, six, 100 * time.Millisecond, 1},
		{"Refused", map[string]plan{six: {err: refused}, four: {}}, four, 0, 2},
		{"Slow", map[string]plan{six: {after: time.Hour}, four: {after: 100 * time.Millisecond}}, four, 350 * time.Millisecond, 2},
		{"Both", map[string]plan{six: {after: 400 * time.Millisecond, stubborn: true}, four: {after: 100 * time.Millisecond}}, four, 400 * time.Millisecond, 2},
		{"All", map[string]plan{six: {err: refused}, four: {err: errors.New("other")}, last: {after: time.Second, err: errors.New("late")}}, "refused", time.Second, 3},
		{"Silent", map[string]plan{six: {after: time.Hour}, four: {after: time.Hour}, last: {after: time.Hour}}, "context deadline exceeded", 5 * time.Second, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.serve(5, "a.cl.example:7001")
				f.on("a.cl.example. A", discoverytest.Reply{Answer: []string{"a.cl.example. 5 IN A 192.0.2.1", "a.cl.example. 5 IN A 192.0.2.2"}})
				f.on("a.cl.example. AAAA", discoverytest.Reply{Answer: []string{"a.cl.example. 5 IN AAAA 2001:db8::1"}})
				r := f.run(discovery.SRVOptions{})
				r.see("a.cl.example:7001")
				r.stop()
				var mu sync.Mutex
				var made []*conn
				tried := 0
				dial := r.srv.DialContext(func(ctx context.Context, _, address string) (net.Conn, error) {
					mu.Lock()
					tried++
					p := test.plans[address]
					mu.Unlock()
					if p.stubborn {
						ctx = context.WithoutCancel(ctx)
					}
					select {
					case <-time.After(p.after):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					if p.err != nil {
						return nil, p.err
					}
					c := &conn{address: address, closed: make(chan struct{})}
					mu.Lock()
					made = append(made, c)
					mu.Unlock()
					return c, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				begin := time.Now()
				got, err := dial(ctx, "tcp", "A.cl.example:7001")
				is := fmt.Sprint(err)
				if c, ok := got.(*conn); ok {
					is = c.address
				}
				if is != test.want || time.Since(begin) != test.took || tried != test.tried {
					t.Errorf("%s after %v and %d attempts, want %s after %v and %d", is, time.Since(begin), tried, test.want, test.took, test.tried)
				}
				for _, c := range made {
					select {
					case <-c.closed:
						if got == c {
							t.Error("the connection that is returned is closed")
						}
					default:
						if got != c {
							t.Errorf("a second connection to %s stays open", c.address)
						}
					}
				}
			})
		})
	}
}

// Hosts that are no peers are the next Dial's business.
func TestSRVDialOthers(t *testing.T) {
	s := newSRV(t, discovery.SRVOptions{})
	if a := s.Addresses("a.cl.example"); a != nil {
		t.Errorf("before it runs it knows %v", a)
	}
	var dialled []string
	dial := s.DialContext(func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("no")
	})
	for _, address := range []string{"static.example:7400", "127.0.0.1:7400", "nonsense"} {
		if _, err := dial(t.Context(), "tcp", address); err == nil {
			t.Error("it is connected")
		}
	}
	if want := []string{"static.example:7400", "127.0.0.1:7400", "nonsense"}; !slices.Equal(dialled, want) {
		t.Errorf("%q", dialled)
	}
}

// Whatever a name is, a source of it asks for something that DNS can carry.
func FuzzSRVName(f *testing.F) {
	for _, s := range []string{"_elements._tcp.internal", "_Elements._TCP.internal.", "web.service.consul", "a..b", "10.0.0.1", "host:7400", ".", "\x00", "bücher", strings.Repeat("a.", 127)} {
		f.Add(s, "10.0.0.53")
	}
	for _, s := range []string{"[::1]:53", "::1", "[::1]", "a:53,b", "tcp://::1", "tcp://tcp://a", "tcp://", "fe80::1%eth0", "[fe80::1%eth0]:8600", ",", ":53", "1.2.3.4:99999"} {
		f.Add("_elements._tcp.internal", s)
	}
	f.Fuzz(func(t *testing.T, name, servers string) {
		s, err := discovery.NewSRV(discovery.SRVOptions{Name: name, Servers: []string{servers}})
		if err != nil {
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		s.SetExchange(func(_ context.Context, _, server string, q *dns.Msg) (*dns.Msg, error) {
			asked++
			host, port, err := net.SplitHostPort(server)
			if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || host == "" {
				t.Errorf("%q: asks %q", servers, server)
			}
			if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
				t.Errorf("%q: asks %q", servers, server)
			}
			if _, err := q.Pack(); err != nil || !dns.IsFqdn(q.Question[0].Name) || q.Question[0].Name != dns.CanonicalName(q.Question[0].Name) {
				t.Errorf("%q: asks for %q: %v", name, q.Question[0].Name, err)
			}
			if got := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(name)), "."); q.Question[0].Name != got+"." {
				t.Errorf("%q: asks for %q", name, q.Question[0].Name)
			}
			cancel()
			return nil, errors.New("no")
		})
		if err := s.Run(ctx, func(discovery.Snapshot) {}); err != nil {
			t.Error(err)
		}
		if asked == 0 && strings.Trim(servers, ", ") != "" {
			t.Errorf("%q, %q: it asks nobody", name, servers)
		}
		cancel()
	})
}

// Whatever a server sends, peers are in normal form, each once and in order, and
// problems can be printed.
func FuzzSRVAnswer(f *testing.F) {
	q := new(dns.Msg).SetQuestion(service, dns.TypeSRV)
	full := answerTo(q, "a.cl.example:7001", "A.cl.example:7001", "192.0.2.7:1", ".:0", `x\000y.example:5`, "b:0")
	for _, line := range []string{"a.cl.example. 5 IN A 192.0.2.1", "a.cl.example. 5 IN AAAA 2001:db8::1", "a.cl.example. 5 IN A 0.0.0.0"} {
		rr, err := dns.NewRR(line)
		if err != nil {
			f.Fatal(err)
		}
		full.Extra = append(full.Extra, rr)
	}
	cname, err := dns.NewRR(service + " 5 IN CNAME x.")
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []*dns.Msg{full, answerTo(q), answerTo(q, ".:0"), {MsgHdr: dns.MsgHdr{Response: true, Rcode: 2}}, {Answer: []dns.RR{cname}}} {
		f.Add(pack(m))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := discovery.NewSRV(discovery.SRVOptions{Name: service, Servers: []string{"s1"}, Interval: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		s.SetExchange(func(_ context.Context, _, _ string, q *dns.Msg) (*dns.Msg, error) {
			m := new(dns.Msg)
			if err := m.Unpack(raw); err != nil {
				return nil, err
			}
			m.Id, m.Response, m.Opcode, m.Question = q.Id, true, q.Opcode, q.Question
			return m, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err = s.Run(ctx, func(got discovery.Snapshot) {
			defer cancel()
			for i, p := range got.Peers {
				if again, err := discovery.ParsePeer(p, false); err != nil || again != p {
					t.Errorf("peer %q reads as %q, %v", p, again, err)
				}
				if i > 0 && got.Peers[i-1] >= p {
					t.Errorf("peers are not in order: %q", got.Peers)
				}
			}
			for _, p := range got.Problems {
				if strings.ContainsFunc(p.Entry+p.Err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) {
					t.Errorf("a problem that cannot be printed: %q", p)
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}
