package discovery

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// udpSize is what we offer to take in one datagram (EDNS): what passes every path
	// unfragmented. Longer answers come over TCP.
	udpSize = 1232
	// penalty is how long a server that failed is asked after the others.
	penalty = 30 * time.Second
	// maxAliases bounds a chain of CNAMEs within an answer.
	maxAliases = 16
)

// exchange sends a question to one server over "udp" or "tcp" and returns its reply,
// whatever that says. ctx bounds the wait. The error does not name the server.
type exchange func(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error)

// overNetwork is the exchange with real servers. We do not use dns.Client since it
// minds the context's deadline, but not its end.
func overNetwork(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()                                                          //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) }) // ends reads and writes
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: 4096} // some send more than they were offered
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	for {
		raw, err := c.ReadMsgHeader(nil)
		if err != nil && !errors.Is(err, dns.ErrShortRead) {
			return nil, err
		}
		m := new(dns.Msg)
		err = m.Unpack(raw)
		if network == "udp" && (len(raw) < 2 || m.Id != q.Id) {
			continue // not for this question: somebody guesses, or is late
		}
		if network == "udp" && m.Truncated {
			return m, nil // it says so by itself, and is of no other use
		}
		if err != nil {
			return nil, fmt.Errorf("it sent a message that cannot be read: %w", err)
		}
		// The library takes a message that ends between two records for whole.
		if n := int(binary.BigEndian.Uint16(raw[6:])); n != len(m.Answer) {
			return nil, fmt.Errorf("it sent a message that cannot be read: it announces %d records and holds %d", n, len(m.Answer))
		}
		return m, nil
	}
}

// resolver asks servers in turn. It may be used concurrently.
type resolver struct {
	exchange exchange
	timeout  time.Duration

	mu     sync.Mutex
	failed map[string]time.Time // servers that sent no reply, and when
}

// ask returns the first answer that settles the question: records, or that there are
// none. The error says of each server, in their order, why it has none.
func (r *resolver) ask(ctx context.Context, servers []string, name string, qtype uint16) (*dns.Msg, error) {
	why := make([]string, len(servers))
	for _, i := range r.order(servers) {
		m, err := r.askOne(ctx, servers[i], name, qtype)
		if err == nil {
			return m, nil
		}
		why[i] = servers[i] + ": " + r.explain(err)
		if ctx.Err() != nil {
			break
		}
	}
	why = slices.DeleteFunc(why, func(s string) bool { return s == "" })
	return nil, errors.New(strings.Join(why, "; "))
}

// order returns the indexes of servers, those last that failed a short while ago.
func (r *resolver) order(servers []string) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	order := make([]int, len(servers))
	late := make([]int, len(servers))
	for i, s := range servers {
		order[i] = i
		if at, ok := r.failed[s]; ok && now.Sub(at) < penalty {
			late[i] = 1
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(late[a], late[b]) })
	return order
}

func (r *resolver) note(server string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed {
		r.failed[server] = time.Now()
	} else {
		delete(r.failed, server)
	}
}

// askOne asks one server: over UDP unless it is said otherwise, once more without EDNS if it does not know that,
// and over TCP if the answer is too long.
func (r *resolver) askOne(parent context.Context, server, name string, qtype uint16) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(parent, r.timeout)
	defer cancel()
	q := new(dns.Msg)
	q.SetQuestion(name, qtype) // a random id, recursion desired
	q.SetEdns0(udpSize, false)
	network, server := networkOf(server)
	m, err := r.exchange(ctx, network, server, q)
	if parent.Err() == nil {
		r.note(server, err != nil)
	}
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented || m.Rcode == dns.RcodeBadVers) {
		q.Extra, q.Id = nil, dns.Id()
		m, err = r.exchange(ctx, network, server, q)
	}
	if err == nil && m.Truncated && network != "tcp" {
		// Even if TCP fails, half a list is no list: peers would seem to be gone.
		q.Id = dns.Id()
		if m, err = r.exchange(ctx, "tcp", server, q); err != nil {
			return nil, fmt.Errorf("its answer is longer than a datagram, and over TCP: %s", r.explain(err))
		}
	}
	if err != nil {
		return nil, err
	}
	if m.Truncated {
		return nil, errors.New("its answer is cut short even over TCP")
	}
	return m, settles(q, m)
}

// settles says why a reply is none, or no answer to the question.
func settles(q, m *dns.Msg) error {
	if !m.Response || m.Id != q.Id || m.Opcode != q.Opcode {
		return errors.New("it sent something else than an answer")
	}
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		if s, ok := dns.RcodeToString[m.Rcode]; ok {
			return errors.New(s)
		}
		return fmt.Errorf("response code %d", m.Rcode)
	}
	if len(m.Question) != 1 || m.Question[0].Qtype != q.Question[0].Qtype || !strings.EqualFold(m.Question[0].Name, q.Question[0].Name) {
		return errors.New("it answered another question")
	}
	// A server that does not resolve names for others refers to those who know: that
	// says nothing about the name.
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && !m.Authoritative && has(m.Ns, dns.TypeNS) && !has(m.Ns, dns.TypeSOA) {
		return errors.New("it refers to other servers: it resolves no names for us")
	}
	return nil
}

func has(rrs []dns.RR, rrtype uint16) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype })
}

// explain words a failed exchange so that it is the same each time: our own port, for
// one, is not part of it.
func (r *resolver) explain(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "given up"
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("silent for %v", r.timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
		return "it closed the connection"
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return "its own name does not resolve: " + e.Err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// addresses asks for the addresses of both families; none at all is no error. One
// family is enough when the other's question fails: some servers never learned AAAA.
func (r *resolver) addresses(ctx context.Context, servers []string, name string) ([]netip.Addr, time.Duration, error) {
	answers := gather([]uint16{dns.TypeAAAA, dns.TypeA}, func(qtype uint16) addressAnswer {
		m, err := r.ask(ctx, servers, name, qtype)
		if err != nil {
			return addressAnswer{err: err}
		}
		addrs, ttl := readAddresses(m, name, qtype)
		return addressAnswer{addrs, ttl, nil}
	})
	var addrs []netip.Addr
	ttl := lifetimeMax
	for _, a := range answers {
		addrs = append(addrs, a.addrs...)
		if len(a.addrs) > 0 {
			ttl = min(ttl, a.ttl)
		}
	}
	if len(addrs) == 0 {
		if err := cmp.Or(answers[1].err, answers[0].err); err != nil {
			return nil, 0, err
		}
	}
	return sorted(addrs), ttl, nil
}

type addressAnswer struct {
	addrs []netip.Addr
	ttl   time.Duration
	err   error
}

// gather calls f for all at once, within bounds.
func gather[T, R any](all []T, f func(T) R) []R {
	out := make([]R, len(all))
	tickets := make(chan struct{}, lookupsAtOnce)
	var wg sync.WaitGroup
	for i, one := range all {
		tickets <- struct{}{}
		wg.Go(func() {
			out[i] = f(one)
			<-tickets
		})
	}
	wg.Wait()
	return out
}

// answer is what a message says about SRV records.
type answer struct {
	name     string
	exists   bool     // the name does; there may be no records nonetheless
	off      bool     // the target is "."
	records  []record // each once, in no order
	problems []Problem
	glue     map[string]glue // addresses that came with them, by host
	ttl      time.Duration
}

type record struct {
	host string // an absolute name in lower case
	port uint16
}

type glue struct {
	addrs []netip.Addr
	ttl   time.Duration
}

// nobody reports whether the answer holds no record at all, good or bad.
func (a *answer) nobody() bool { return len(a.records) == 0 && len(a.problems) == 0 && !a.off }

// readSRV reads an answer to the question for the SRV records of name.
func readSRV(m *dns.Msg, name string) answer {
	a := answer{name: name, exists: m.Rcode == dns.RcodeSuccess, glue: map[string]glue{}}
	owner, ttl := aliases(m, name)
	for _, rr := range m.Answer {
		srv, ok := rr.(*dns.SRV)
		if !ok || srv.Hdr.Class != dns.ClassINET || dns.CanonicalName(srv.Hdr.Name) != owner {
			continue
		}
		ttl = min(ttl, lifetime(rr))
		rec := record{host: dns.CanonicalName(srv.Target), port: srv.Port}
		switch {
		case rec.host == ".":
			a.off = true
		case rec.port == 0:
			a.problems = append(a.problems, Problem{
				Entry: net.JoinHostPort(strings.TrimSuffix(rec.host, "."), "0"),
				Err:   errors.New("its port is 0, which cannot be dialled"),
			})
		case !slices.Contains(a.records, rec):
			a.records = append(a.records, rec)
		}
	}
	a.ttl = ttl
	if a.off && len(a.records) > 0 { // RFC 2782 has it alone
		a.off = false
		a.problems = append(a.problems, Problem{Entry: name, Err: errors.New(`a target "." stands beside others, and is not minded`)})
	}
	for _, rec := range a.records {
		if _, ok := a.glue[rec.host]; ok {
			continue
		}
		if g := addressesOf(m.Extra, rec.host); len(g.addrs) > 0 {
			a.glue[rec.host] = glue{addrs: sorted(g.addrs), ttl: g.ttl}
		}
	}
	return a
}

// readAddresses reads an answer to the question for the addresses of name.
func readAddresses(m *dns.Msg, name string, qtype uint16) ([]netip.Addr, time.Duration) {
	owner, ttl := aliases(m, name)
	of := slices.DeleteFunc(slices.Clone(m.Answer), func(rr dns.RR) bool { return rr.Header().Rrtype != qtype })
	g := addressesOf(of, owner)
	return g.addrs, min(ttl, g.ttl)
}

// aliases follows the CNAMEs of an answer to the name that has the records.
func aliases(m *dns.Msg, name string) (owner string, ttl time.Duration) {
	owner, ttl = dns.CanonicalName(name), lifetimeMax
	for range maxAliases {
		i := slices.IndexFunc(m.Answer, func(rr dns.RR) bool {
			return rr.Header().Rrtype == dns.TypeCNAME && dns.CanonicalName(rr.Header().Name) == owner
		})
		if i < 0 {
			break
		}
		cname, ok := m.Answer[i].(*dns.CNAME)
		if !ok {
			break
		}
		owner, ttl = dns.CanonicalName(cname.Target), min(ttl, lifetime(cname))
	}
	return owner, ttl
}

// addressesOf returns the addresses of a host that can be dialled.
func addressesOf(rrs []dns.RR, host string) glue {
	g := glue{ttl: lifetimeMax}
	for _, rr := range rrs {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		default:
			continue
		}
		addr, ok := netip.AddrFromSlice(ip)
		addr = addr.Unmap()
		if !ok || addr.IsUnspecified() || addr.IsMulticast() || rr.Header().Class != dns.ClassINET || dns.CanonicalName(rr.Header().Name) != host {
			continue
		}
		g.addrs = append(g.addrs, addr)
		g.ttl = min(g.ttl, lifetime(rr))
	}
	return g
}

const lifetimeMax = time.Duration(1<<31-1) * time.Second

// lifetime is the TTL of a record; one with the highest bit is 0 (RFC 2181).
func lifetime(rr dns.RR) time.Duration {
	if d := time.Duration(rr.Header().Ttl) * time.Second; d <= lifetimeMax {
		return d
	}
	return 0
}

// sorted returns each address once, in the order to try them in: the families take
// turns (RFC 8305).
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	first := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !a.Is4() })
	if first < 0 {
		return addrs
	}
	four, six := addrs[:first], addrs[first:]
	out := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(four), len(six)) {
		if i < len(six) {
			out = append(out, six[i])
		}
		if i < len(four) {
			out = append(out, four[i])
		}
	}
	return out
}

// isName reports whether a target is to be resolved: an address is not, nor is this
// machine, which servers need not know.
func isName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	_, err := netip.ParseAddr(host)
	return err != nil && host != "localhost"
}

// jitter returns a time up to a tenth shorter or longer.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
