package discoverytest

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// DNS is a server on loopback, over UDP and TCP on one port, that answers from a
// script. A name that it was told nothing of does not exist (NXDOMAIN), and one that
// has other records only has none of the type. All methods may be called concurrently.
type DNS struct {
	tb   testing.TB
	addr string

	mu     sync.Mutex
	script map[question]Reply
	always *Reply
	asked  map[question]int
	tcp    int
}

type question struct {
	name   string
	rrtype uint16
}

// Reply is what a DNS server answers to a question.
type Reply struct {
	// Rcode is the response code: dns.RcodeSuccess is 0.
	Rcode int
	// Answer, Authority and Additional are records as zone files write them. An
	// answer that is too long for the client's datagram is cut short, with the bit
	// that says so.
	Answer, Authority, Additional []string
	// Silent sends nothing.
	Silent bool
	// Raw makes the message instead, of the question: what stands in none of the above.
	Raw func(question *dns.Msg, tcp bool) []byte
}

// NewDNS starts a server, which ends with the test.
func NewDNS(tb testing.TB) *DNS {
	tb.Helper()
	d := &DNS{tb: tb, script: map[question]Reply{}, asked: map[question]int{}}
	packets, listener := listen(tb)
	d.addr = listener.Addr().String()
	for _, s := range []*dns.Server{{PacketConn: packets}, {Listener: listener}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { d.serve(w, q, s.Listener != nil) })
		s.IdleTimeout = func() time.Duration { return time.Second }
		ended := make(chan error, 1)
		go func() { ended <- s.ActivateAndServe() }()
		select {
		case <-started:
		case err := <-ended:
			tb.Fatalf("the DNS server ended: %v", err)
		}
		tb.Cleanup(func() {
			_ = s.Shutdown() // it says that it was not running, or waits for nobody
			if err := <-ended; err != nil {
				tb.Errorf("the DNS server ended: %v", err)
			}
		})
	}
	return d
}

// listen finds a port that is free for both.
func listen(tb testing.TB) (net.PacketConn, net.Listener) {
	tb.Helper()
	var last error
	for range 20 {
		var config net.ListenConfig
		listener, err := config.Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		packets, err := config.ListenPacket(tb.Context(), "udp", listener.Addr().String())
		if err == nil {
			return packets, listener
		}
		last = err
		_ = listener.Close()
	}
	tb.Fatalf("no port is free for TCP and UDP: %v", last)
	panic("unreachable")
}

// Addr is where the server listens, as an entry of discovery.srv.servers.
func (d *DNS) Addr() string { return d.addr }

// On answers questions of a type, such as "SRV", for a name, from now on.
func (d *DNS) On(name, rrtype string, r Reply) {
	d.tb.Helper()
	for _, part := range [][]string{r.Answer, r.Authority, r.Additional} {
		d.records(part)
	}
	q := question{dns.CanonicalName(name), dns.StringToType[rrtype]}
	if q.rrtype == 0 {
		d.tb.Fatalf("there is no type %q", rrtype)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script[q] = r
}

// Off forgets what was said of a name: it does not exist.
func (d *DNS) Off(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.script {
		if q.name == dns.CanonicalName(name) {
			delete(d.script, q)
		}
	}
}

// All answers everything alike until it is called with nil.
func (d *DNS) All(r *Reply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.always = r
}

// Asked returns how often a question has come.
func (d *DNS) Asked(name, rrtype string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[question{dns.CanonicalName(name), dns.StringToType[rrtype]}]
}

// AskedOverTCP returns how many questions have come over TCP.
func (d *DNS) AskedOverTCP() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tcp
}

func (d *DNS) serve(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
	r := d.reply(q, tcp)
	var err error
	switch {
	case r.Silent:
	case r.Raw != nil:
		_, err = w.Write(r.Raw(q, tcp))
	default:
		m := new(dns.Msg).SetRcode(q, r.Rcode)
		m.RecursionAvailable, m.Compress = true, true
		m.Answer, m.Ns, m.Extra = d.records(r.Answer), d.records(r.Authority), d.records(r.Additional)
		size := dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = int(o.UDPSize())
			m.SetEdns0(o.UDPSize(), false)
		}
		if !tcp {
			m.Truncate(size)
		}
		err = w.WriteMsg(m)
	}
	if err != nil && !tcp { // over TCP the client may have gone
		d.tb.Errorf("the DNS server cannot answer: %v", err)
	}
}

func (d *DNS) reply(m *dns.Msg, tcp bool) Reply {
	d.mu.Lock()
	defer d.mu.Unlock()
	if tcp {
		d.tcp++
	}
	if len(m.Question) != 1 {
		return Reply{Rcode: dns.RcodeFormatError}
	}
	q := question{dns.CanonicalName(m.Question[0].Name), m.Question[0].Qtype}
	d.asked[q]++
	if d.always != nil {
		return *d.always
	}
	if r, ok := d.script[q]; ok {
		return r
	}
	soa := []string{". 3600 IN SOA ns. admin. 1 3600 600 86400 3600"}
	for other := range d.script {
		if other.name == q.name {
			return Reply{Authority: soa}
		}
	}
	return Reply{Rcode: dns.RcodeNameError, Authority: soa}
}

func (d *DNS) records(lines []string) []dns.RR {
	d.tb.Helper()
	rrs := make([]dns.RR, 0, len(lines))
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil || rr == nil {
			d.tb.Errorf("%q is no record: %v", line, err)
			continue
		}
		rrs = append(rrs, rr)
	}
	return rrs
}

// SRV writes the records of a name with a TTL in seconds; each target is host:port.
func SRV(name string, ttl int, targets ...string) []string {
	lines := make([]string, 0, len(targets))
	for _, target := range targets {
		host, port := target, "0"
		if i := strings.LastIndexByte(target, ':'); i >= 0 {
			host, port = target[:i], target[i+1:]
		}
		lines = append(lines, strings.Join([]string{dns.Fqdn(name), strconv.Itoa(ttl), "IN SRV 0 0", port, dns.Fqdn(host)}, " "))
	}
	return slices.Clip(lines)
}
