package discovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

const service = "_conduit._tcp.cl.example."

// fake is DNS inside a bubble: a script of servers, and the looks that it has seen.
type fake struct {
	t *testing.T

	mu     sync.Mutex
	script map[string]discoverytest.Reply // by "name type", and before that by "server name type"
	down   map[string]error               // servers
	asked  []string                       // "server name type"
	looks  []time.Time                    // questions for SRV records
}

func newFake(t *testing.T) *fake {
	t.Helper()
	return &fake{t: t, script: map[string]discoverytest.Reply{}, down: map[string]error{}}
}

// on scripts a question, "name type" or "server name type".
func (f *fake) on(q string, r discoverytest.Reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script[q] = r
}

// serve lists targets, each with an address of its own.
func (f *fake) serve(ttl int, targets ...string) {
	f.on(service+" SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, ttl, targets...)})
	for i, target := range targets {
		host, _, _ := strings.Cut(target, ":")
		host = dns.CanonicalName(host)
		f.on(host+" A", discoverytest.Reply{Answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.%d", host, ttl, i+1)}})
	}
}

func (f *fake) exchange(ctx context.Context, _, server string, q *dns.Msg) (*dns.Msg, error) {
	name, rrtype := q.Question[0].Name, dns.TypeToString[q.Question[0].Qtype]
	f.mu.Lock()
	f.asked = append(f.asked, server+" "+name+" "+rrtype)
	if rrtype == "SRV" {
		f.looks = append(f.looks, time.Now())
	}
	r, ok := f.script[server+" "+name+" "+rrtype]
	if !ok {
		r, ok = f.script[name+" "+rrtype]
	}
	if !ok {
		r.Rcode = dns.RcodeNameError
		for other := range f.script {
			if strings.HasPrefix(other, name+" ") {
				r.Rcode = dns.RcodeSuccess
			}
		}
	}
	down := f.down[server]
	f.mu.Unlock()
	if down != nil {
		return nil, down
	}
	if r.Silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := new(dns.Msg).SetRcode(q, r.Rcode)
	for _, part := range []struct {
		lines []string
		rrs   *[]dns.RR
	}{{r.Answer, &m.Answer}, {r.Authority, &m.Ns}, {r.Additional, &m.Extra}} {
		for _, line := range part.lines {
			rr, err := dns.NewRR(line)
			if err != nil {
				f.t.Errorf("%q: %v", line, err)
				continue
			}
			*part.rrs = append(*part.rrs, rr)
		}
	}
	if r.Raw != nil { // in the bubble: changes the message
		if err := m.Unpack(r.Raw(m, false)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (f *fake) count(part string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, q := range f.asked {
		if strings.Contains(q, part) {
			n++
		}
	}
	return n
}

// running is a source under way in a bubble.
type running struct {
	t    *testing.T
	srv  *discovery.SRV
	stop func()

	mu  sync.Mutex
	all []discovery.Snapshot
}

func (f *fake) run(o discovery.SRVOptions) *running {
	f.t.Helper()
	if o.Name == "" {
		o.Name = service
	}
	if o.Servers == nil && o.ResolvConf == "" {
		o.Servers = []string{"s1"}
	}
	s, err := discovery.NewSRV(o)
	if err != nil {
		f.t.Fatal(err)
	}
	s.SetExchange(f.exchange)
	r := &running{t: f.t, srv: s}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(s discovery.Snapshot) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all = append(r.all, s)
		})
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run returned %v", err)
		}
	})
	f.t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

func (r *running) last() discovery.Snapshot {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return discovery.Snapshot{}
	}
	return r.all[len(r.all)-1]
}

func (r *running) count() int {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// see fails unless exactly these hosts are peers; each is host:port, dialled by wss.
func (r *running) see(hosts ...string) {
	r.t.Helper()
	s := r.last()
	if s.At.IsZero() {
		r.t.Fatal("nothing is published")
	}
	want := make([]string, 0, len(hosts))
	for _, h := range hosts {
		want = append(want, "wss://"+h+"/cluster/v1")
	}
	if !slices.Equal(s.Peers, want) {
		r.t.Fatalf("peers %q, want %q; problems %v", s.Peers, want, s.Problems)
	}
}

// problem fails unless an entry's problem says all of the given.
func (r *running) problem(entry string, says ...string) {
	r.t.Helper()
	all := r.last().Problems
	for _, p := range all {
		has := p.Entry == entry
		for _, part := range says {
			has = has && strings.Contains(p.Err.Error(), part)
		}
		if has {
			return
		}
	}
	r.t.Fatalf("no problem of %q says %q: %v", entry, says, all)
}

func (r *running) noProblem() {
	r.t.Helper()
	if p := r.last().Problems; len(p) > 0 {
		r.t.Fatalf("problems %v", p)
	}
}

// Each way in which DNS says that nobody is there, and each in which it says nothing.
func TestSRVAnswers(t *testing.T) {
	soa := []string{"cl.example. 3600 IN SOA ns. admin. 1 3600 600 86400 3600"}
	for _, test := range []struct {
		name   string
		reply  discoverytest.Reply
		server error // instead of a reply
		// For how long a peer is kept, and what is said meanwhile.
		kept  time.Duration
		stale bool
		says  string
	}{
		{name: "NXDOMAIN", reply: discoverytest.Reply{Rcode: dns.RcodeNameError, Authority: soa}, kept: 10 * time.Second, says: "NXDOMAIN"},
		{name: "Empty", reply: discoverytest.Reply{Authority: soa}, kept: 10 * time.Second, says: "no SRV records"},
		{name: "EmptyWithoutSOA", reply: discoverytest.Reply{}, kept: 10 * time.Second, says: "no SRV records"},
		{name: "OthersRecords", reply: discoverytest.Reply{Answer: discoverytest.SRV("_other._tcp.cl.example.", 5, "a.cl.example:7001")}, kept: 10 * time.Second, says: "no SRV records"},
		{name: "Off", reply: discoverytest.Reply{Answer: discoverytest.SRV(service, 5, ".:0")}, kept: 0, says: "switched off"},
		{name: "PortZero", reply: discoverytest.Reply{Answer: discoverytest.SRV(service, 5, "a.cl.example:0")}, kept: 10 * time.Second, says: ""},
		{name: "SERVFAIL", reply: discoverytest.Reply{Rcode: dns.RcodeServerFailure}, kept: time.Minute, stale: true, says: "s1:53: SERVFAIL"},
		{name: "REFUSED", reply: discoverytest.Reply{Rcode: dns.RcodeRefused}, kept: time.Minute, stale: true, says: "s1:53: REFUSED"},
		{name: "UnknownCode", reply: discoverytest.Reply{Rcode: 13}, kept: time.Minute, stale: true, says: "13"},
		{name: "Silence", reply: discoverytest.Reply{Silent: true}, kept: time.Minute, stale: true, says: "s1:53: silent for 2s"},
		{name: "Referral", reply: discoverytest.Reply{Authority: []string{"example. 60 IN NS ns.example."}}, kept: time.Minute, stale: true, says: "refers to other servers"},
		{name: "NoNetwork", server: errors.New("network is unreachable"), kept: time.Minute, stale: true, says: "network is unreachable"},
		{name: "AnotherQuestion", reply: discoverytest.Reply{Raw: func(m *dns.Msg, _ bool) []byte {
			m.Question[0].Name = "_other._tcp.cl.example."
			return pack(m)
		}}, kept: time.Minute, stale: true, says: "another question"},
		{name: "AnotherId", reply: discoverytest.Reply{Raw: func(m *dns.Msg, _ bool) []byte {
			m.Id++
			return pack(m)
		}}, kept: time.Minute, stale: true, says: "something else than an answer"},
		{name: "AQuestion", reply: discoverytest.Reply{Raw: func(m *dns.Msg, _ bool) []byte {
			m.Response = false
			return pack(m)
		}}, kept: time.Minute, stale: true, says: "something else than an answer"},
		{name: "Nonsense", reply: discoverytest.Reply{Raw: func(*dns.Msg, bool) []byte { return []byte("no DNS message") }}, kept: time.Minute, stale: true, says: ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.serve(5, "a.cl.example:7001", "b.cl.example:7001")
				r := f.run(discovery.SRVOptions{Stale: time.Minute, HoldDown: 10 * time.Second})
				r.see("a.cl.example:7001", "b.cl.example:7001")
				r.noProblem()
				f.on(service+" SRV", test.reply)
				if test.server != nil {
					f.mu.Lock()
					f.down["s1:53"] = test.server
					f.mu.Unlock()
				}
				time.Sleep(8 * time.Second) // one look is by then, and its answer
				if test.kept > 0 {
					r.see("a.cl.example:7001", "b.cl.example:7001")
				}
				if s := r.last(); s.Stale.IsZero() == test.stale {
					t.Errorf("stale since %v, want it: %v", s.Stale, test.stale)
				} else if test.stale && (time.Since(s.Stale) > 4*time.Second || s.At.After(s.Stale)) {
					t.Errorf("stale since %v, known at %v, now %v", s.Stale, s.At, time.Now())
				}
				if test.says != "" {
					r.problem(service, test.says)
				}
				switch {
				case test.stale:
					r.problem(service, "those of the last answer, kept for 1m0s")
					time.Sleep(test.kept - 14*time.Second) // a minute after the last answer is not over yet
					r.see("a.cl.example:7001", "b.cl.example:7001")
					time.Sleep(15 * time.Second)
					r.see()
					r.problem(service, "nobody has answered for 1m0s")
				case test.kept > 0:
					time.Sleep(test.kept)
					r.see()
				default:
					r.see()
				}
				// What is known is no more than before, but nobody is forgotten for ever.
				f.mu.Lock()
				delete(f.down, "s1:53")
				f.mu.Unlock()
				f.serve(5, "b.cl.example:7001")
				time.Sleep(8 * time.Second) // a look may be under way, in silence for 2 s
				r.see("b.cl.example:7001")
				r.noProblem()
				if s := r.last(); !s.Stale.IsZero() {
					t.Errorf("stale since %v", s.Stale)
				}
			})
		})
	}
}

func pack(m *dns.Msg) []byte {
	raw, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return raw
}

// DNS that fails while a peer is held down does not bring the peer back, and does not
// keep it longer.
func TestSRVFailureDuringHoldDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example:7001", "b.cl.example:7001")
		r := f.run(discovery.SRVOptions{HoldDown: 20 * time.Second})
		f.serve(5, "a.cl.example:7001")
		time.Sleep(6 * time.Second)
		r.see("a.cl.example:7001", "b.cl.example:7001")
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		time.Sleep(20 * time.Second)
		r.see("a.cl.example:7001")
		r.problem(service, "those of the last answer")
	})
}

// A peer that is listed again is one, though its addresses cannot be asked for just
// then: those that it had are as good as before.
func TestSRVListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example:7001", "b.cl.example:7001")
		r := f.run(discovery.SRVOptions{HoldDown: 20 * time.Second, Stale: 3 * time.Minute})
		f.serve(5, "a.cl.example:7001")
		time.Sleep(10 * time.Second)
		f.serve(5, "a.cl.example:7001", "b.cl.example:7001")
		f.on("b.cl.example. A", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		time.Sleep(2 * time.Minute)
		r.see("a.cl.example:7001", "b.cl.example:7001")
		r.problem("b.cl.example:7001", "not to be had")
		if got := fmt.Sprint(r.srv.Addresses("b.cl.example")); got != "[192.0.2.2]" {
			t.Errorf("addresses %s", got)
		}
		time.Sleep(time.Minute)
		r.see("a.cl.example:7001")
	})
}

// A first look that fails may be early; a second one that does is a state of things.
func TestSRVBeginsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		var looked []error
		r := f.run(discovery.SRVOptions{Looked: func(err error) { looked = append(looked, err) }})
		if n := r.count(); n != 0 {
			t.Errorf("after one look %d snapshots", n)
		}
		time.Sleep(1200 * time.Millisecond)
		r.see()
		r.problem(service, "SERVFAIL")
		if s := r.last(); s.Stale.IsZero() {
			t.Error("it is not stale")
		}
		f.serve(5, "a.cl.example:7001")
		time.Sleep(3 * time.Second)
		r.see("a.cl.example:7001")
		r.noProblem()
		r.stop()
		if len(looked) < 3 || looked[0] == nil || looked[1] == nil || looked[len(looked)-1] != nil {
			t.Errorf("looked: %v", looked)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the one that was early is not told at all
		f := newFake(t)
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		r := f.run(discovery.SRVOptions{})
		f.serve(5, "a.cl.example:7001")
		time.Sleep(1200 * time.Millisecond)
		r.see("a.cl.example:7001")
		if n := r.count(); n != 1 {
			t.Errorf("%d snapshots", n)
		}
	})
}

// Servers are asked in order until one has an answer; NXDOMAIN is one.
func TestSRVServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example:7001")
		f.on("s1:53 "+service+" SRV", discoverytest.Reply{Silent: true})
		f.on("s2:53 "+service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		f.on("[2001:db8::53]:8600 "+service+" SRV", discoverytest.Reply{Rcode: dns.RcodeRefused})
		r := f.run(discovery.SRVOptions{Servers: []string{"s1", "S2:53,[2001:db8::53]:8600", "s4"}})
		time.Sleep(2 * time.Second)
		r.see("a.cl.example:7001")
		if s := r.last(); !s.Stale.IsZero() || len(s.Problems) > 0 {
			t.Errorf("%+v", s)
		}
		want := []string{"s1:53 ", "s2:53 ", "[2001:db8::53]:8600 ", "s4:53 "}
		f.mu.Lock()
		for i, server := range want {
			if f.asked[i] != server+service+" SRV" {
				t.Errorf("question %d is %q, want it to go to %s", i, f.asked[i], server)
			}
		}
		f.asked = nil
		f.mu.Unlock()
		time.Sleep(6 * time.Second) // the silent one has cost its 2 s once
		if n := f.count("s1:53 " + service); n != 0 {
			t.Errorf("the silent server was asked %d times more within its penalty", n)
		}
		time.Sleep(35 * time.Second)
		if n := f.count("s1:53 " + service); n < 1 || n > 3 {
			t.Errorf("the silent server was asked %d times in 40 s", n)
		}
		// All fail: each says why, in their order.
		f.on("s4:53 "+service+" SRV", discoverytest.Reply{Rcode: dns.RcodeRefused})
		time.Sleep(8 * time.Second)
		r.problem(service, "s1:53: silent for 2s; s2:53: SERVFAIL; [2001:db8::53]:8600: REFUSED; s4:53: REFUSED")
		// One that says that nobody is there ends the search.
		f.on("s2:53 "+service+" SRV", discoverytest.Reply{Rcode: dns.RcodeNameError})
		time.Sleep(8 * time.Second)
		r.see()
		r.problem(service, "NXDOMAIN")
	})
}

// The system's servers and search domains, as resolv.conf has them at each look.
func TestSRVSystem(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked := func(f *fake) []string {
		f.mu.Lock()
		defer f.mu.Unlock()
		var names []string
		for _, q := range f.asked {
			if name, ok := strings.CutSuffix(q, " SRV"); ok {
				names = append(names, name)
			}
		}
		return names
	}
	for _, test := range []struct {
		name, srv, conf string
		want            []string
	}{
		{
			name: "Absolute", srv: "_Elements._tcp.internal.", conf: "nameserver 192.0.2.1\nsearch a.example b.example\noptions ndots:5\n",
			want: []string{"192.0.2.1:53 _elements._tcp.internal."},
		},
		{
			name: "FewDots", srv: "_elements._tcp.internal", conf: "nameserver 192.0.2.1\nsearch a.example b.example\noptions ndots:5\n",
			want: []string{"192.0.2.1:53 _elements._tcp.internal.a.example.", "192.0.2.1:53 _elements._tcp.internal.b.example.", "192.0.2.1:53 _elements._tcp.internal."},
		},
		{
			name: "EnoughDots", srv: "_elements._tcp.internal", conf: "nameserver fe80::1\nsearch A.example\n",
			want: []string{"[fe80::1]:53 _elements._tcp.internal.", "[fe80::1]:53 _elements._tcp.internal.a.example."},
		},
		{
			name: "NoServer", srv: "_elements._tcp.internal", conf: "search " + strings.Repeat("long.", 45) + "example\n",
			want: []string{"127.0.0.1:53 _elements._tcp.internal."},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			write(test.conf)
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				r := f.run(discovery.SRVOptions{Name: test.srv, ResolvConf: conf})
				r.see()
				if got := asked(f); !slices.Equal(got, test.want) {
					t.Errorf("asked %q, want %q", got, test.want)
				}
			})
		})
	}
	t.Run("WithServers", func(t *testing.T) { // then search domains are none of theirs
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.run(discovery.SRVOptions{Name: "_elements._tcp.internal", Servers: []string{"s1"}, ResolvConf: conf})
			if got := asked(f); !slices.Equal(got, []string{"s1:53 _elements._tcp.internal."}) {
				t.Errorf("asked %q", got)
			}
		})
	})
	t.Run("Reread", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.serve(5, "a.cl.example:7001")
			if err := os.Remove(conf); err != nil {
				t.Fatal(err)
			}
			r := f.run(discovery.SRVOptions{ResolvConf: conf})
			time.Sleep(2 * time.Second)
			r.see()
			r.problem(service, "servers are not known", "discovery.srv.servers")
			write("nameserver 192.0.2.1\n")
			time.Sleep(6 * time.Second)
			r.see("a.cl.example:7001")
		})
	})
	t.Run("FailingDomain", func(t *testing.T) {
		write("nameserver 192.0.2.1\nsearch broken.example good.example\noptions ndots:5\n")
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			failed := discoverytest.Reply{Rcode: dns.RcodeServerFailure}
			f.on("_e._tcp.x.broken.example. SRV", failed)
			f.on("_e._tcp.x.good.example. SRV", discoverytest.Reply{Answer: discoverytest.SRV("_e._tcp.x.good.example", 5, "a.cl.example:7001")})
			f.on("a.cl.example. A", discoverytest.Reply{Answer: []string{"a.cl.example. 5 IN A 192.0.2.1"}})
			r := f.run(discovery.SRVOptions{Name: "_e._tcp.x", ResolvConf: conf})
			r.see("a.cl.example:7001") // a search domain that is out of order does not stop the others
			// But when the peers' own domain is, another's are no answer.
			f.on("_e._tcp.x.good.example. SRV", failed)
			f.on("_e._tcp.x. SRV", discoverytest.Reply{Answer: discoverytest.SRV("_e._tcp.x.", 5, "a.cl.example:6666")})
			time.Sleep(20 * time.Second)
			r.see("a.cl.example:7001")
			r.problem("_e._tcp.x", "no answer on _e._tcp.x.good.example.: 192.0.2.1:53: SERVFAIL")
			// Nor is "nobody" one while a domain could not be asked.
			f.on("_e._tcp.x. SRV", discoverytest.Reply{Rcode: dns.RcodeNameError})
			time.Sleep(20 * time.Second)
			r.see("a.cl.example:7001")
		})
	})
}

// Addresses that come with the records are not asked for, and others as long as their
// TTL says, within bounds.
func TestSRVAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on(service+" SRV", discoverytest.Reply{
			Answer: discoverytest.SRV(service, 5, "with.cl.example:7001", "six.cl.example:7001", "both.cl.example:7001", "alias.cl.example:7001", "old.cl.example:7001"),
			Additional: []string{
				"WITH.cl.example. 5 IN A 192.0.2.1", "with.cl.example. 5 IN A 192.0.2.1", "stranger.cl.example. 5 IN A 192.0.2.99",
			},
		})
		f.on("six.cl.example. AAAA", discoverytest.Reply{Answer: []string{"six.cl.example. 5 IN AAAA 2001:db8::6"}})
		f.on("six.cl.example. A", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		f.on("both.cl.example. AAAA", discoverytest.Reply{Answer: []string{"both.cl.example. 86400 IN AAAA 2001:db8::2", "both.cl.example. 86400 IN AAAA 2001:db8::1"}})
		f.on("both.cl.example. A", discoverytest.Reply{Answer: []string{"both.cl.example. 86400 IN A 192.0.2.2", "both.cl.example. 86400 IN A 0.0.0.0"}})
		f.on("alias.cl.example. A", discoverytest.Reply{Answer: []string{
			"alias.cl.example. 5 IN CNAME Real.cl.example.", "real.cl.example. 5 IN A 192.0.2.3", "other.cl.example. 5 IN A 192.0.2.98",
		}})
		f.on("old.cl.example. AAAA", discoverytest.Reply{Rcode: dns.RcodeNotImplemented}) // never learned IPv6
		f.on("old.cl.example. A", discoverytest.Reply{Answer: []string{"old.cl.example. 5 IN A 192.0.2.4"}})
		r := f.run(discovery.SRVOptions{})
		r.see("alias.cl.example:7001", "both.cl.example:7001", "old.cl.example:7001", "six.cl.example:7001", "with.cl.example:7001")
		r.noProblem()
		for host, want := range map[string]string{
			"with.cl.example": "[192.0.2.1]", "six.cl.example": "[2001:db8::6]", "Both.cl.example.": "[2001:db8::1 192.0.2.2 2001:db8::2]",
			"alias.cl.example": "[192.0.2.3]", "old.cl.example": "[192.0.2.4]", "stranger.cl.example": "[]", "real.cl.example": "[]",
		} {
			if got := fmt.Sprint(r.srv.Addresses(host)); got != want {
				t.Errorf("%s: %s, want %s", host, got, want)
			}
		}
		time.Sleep(50 * time.Second)
		if n := f.count("with.cl.example. A"); n != 0 {
			t.Errorf("an address that came with the records was asked for %d times", n)
		}
		if n := f.count("both.cl.example. AAAA"); n != 1 {
			t.Errorf("addresses with a TTL of a day were asked for %d times in 50 s", n)
		}
		if n := f.count("six.cl.example. AAAA"); n < 5 {
			t.Errorf("addresses with a TTL of 5 s were asked for %d times in 50 s", n)
		}
		// A host that moves is found, at the same URL, without a word to anybody.
		f.on("both.cl.example. A", discoverytest.Reply{Answer: []string{"both.cl.example. 86400 IN A 192.0.2.77"}})
		f.on("both.cl.example. AAAA", discoverytest.Reply{})
		time.Sleep(30 * time.Second)
		if got := fmt.Sprint(r.srv.Addresses("both.cl.example")); got != "[192.0.2.77]" {
			t.Errorf("after a move: %s", got)
		}
		if n := r.count(); n != 1 {
			t.Errorf("%d snapshots", n)
		}
	})
}

// The records' own name may be an alias, and each of a loop of aliases is looked at once.
func TestSRVAlias(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example:7001")
		f.on(service+" SRV", discoverytest.Reply{Answer: append(discoverytest.SRV("_real._tcp.cl.example", 5, "a.cl.example:7001"),
			service+" 5 IN CNAME _Real._tcp.cl.example.")})
		r := f.run(discovery.SRVOptions{})
		r.see("a.cl.example:7001")
		f.on(service+" SRV", discoverytest.Reply{Answer: []string{service + " 5 IN CNAME x.cl.example.", "x.cl.example. 5 IN CNAME " + service}})
		time.Sleep(6 * time.Second)
		r.see()
	})
}

// ws:// and wss:// are as ParsePeer has them.
func TestSRVSchemes(t *testing.T) {
	targets := []string{"a.cl.example:7001", "127.0.0.1:7002", "localhost:7003", "192.0.2.9:7004"}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, targets...)
		r := f.run(discovery.SRVOptions{})
		want := []string{"ws://127.0.0.1:7002/cluster/v1", "ws://localhost:7003/cluster/v1", "wss://192.0.2.9:7004/cluster/v1", "wss://a.cl.example:7001/cluster/v1"}
		if got := r.last().Peers; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if n := f.count("localhost") + f.count("127.0.0.1") + f.count("192.0.2.9"); n > 0 {
			t.Errorf("%d questions for what is no name in DNS", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, targets...)
		for _, peer := range f.run(discovery.SRVOptions{Insecure: true}).last().Peers {
			if !strings.HasPrefix(peer, "ws://") {
				t.Errorf("insecure, and %s", peer)
			}
		}
	})
}

// DSC-01: the dot of a target is minded in look-ups and shown nowhere.
func TestDSC01TrailingDot(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 192.0.2.53\nsearch cl.example\noptions ndots:5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example.:7001", "a.cl.example:7001")
		f.on("a.cl.example.cl.example. A", discoverytest.Reply{Answer: []string{"a.cl.example.cl.example. 5 IN A 192.0.2.66"}})
		r := f.run(discovery.SRVOptions{ResolvConf: conf})
		r.see("a.cl.example:7001")
		if n := f.count("a.cl.example.cl.example."); n > 0 {
			t.Errorf("the target was completed with a search domain in %d questions", n)
		}
		if got := fmt.Sprint(r.srv.Addresses("a.cl.example")); got != "[192.0.2.2]" {
			t.Errorf("addresses %s", got)
		}
	})
}

// DSC-03: a target that does not resolve is a problem, and nobody else's.
func TestDSC03OneBadTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "good.cl.example:7001", "failing.cl.example:7001", "silent.cl.example:7001", "late.cl.example:7001")
		f.on(service+" SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 5,
			"good.cl.example:7001", "none.cl.example:7001", "failing.cl.example:7001", "silent.cl.example:7001", `bad\032name.cl.example:7001`, "zero.cl.example:0", ".:0", "late.cl.example:7001")})
		failed := discoverytest.Reply{Rcode: dns.RcodeServerFailure}
		f.on("failing.cl.example. A", failed)
		f.on("failing.cl.example. AAAA", failed)
		f.on("silent.cl.example. A", discoverytest.Reply{Silent: true})
		f.on("silent.cl.example. AAAA", discoverytest.Reply{Silent: true})
		r := f.run(discovery.SRVOptions{HoldDown: 10 * time.Second, Stale: 30 * time.Second})
		time.Sleep(3 * time.Second)
		r.see("good.cl.example:7001", "late.cl.example:7001")
		r.problem("none.cl.example:7001", "has no address")
		r.problem("failing.cl.example:7001", "not to be had", "s1:53: SERVFAIL")
		r.problem("silent.cl.example:7001", "not to be had", "silent for 2s")
		r.problem("zero.cl.example:0", "port is 0")
		r.problem(`bad\032name.cl.example:7001`, "something else than letters")
		r.problem(service, `"." stands beside others`)
		// They are tried again.
		f.on("failing.cl.example. A", discoverytest.Reply{Answer: []string{"failing.cl.example. 5 IN A 192.0.2.5"}})
		f.on("silent.cl.example. A", discoverytest.Reply{Answer: []string{"silent.cl.example. 5 IN A 192.0.2.6"}})
		f.on("none.cl.example. A", discoverytest.Reply{Answer: []string{"none.cl.example. 5 IN A 192.0.2.7"}})
		time.Sleep(10 * time.Second)
		r.see("failing.cl.example:7001", "good.cl.example:7001", "late.cl.example:7001", "none.cl.example:7001", "silent.cl.example:7001")
		// One that was good is kept: for Stale if nobody knows, for HoldDown if it has no address.
		f.on("failing.cl.example. A", failed)
		f.on("none.cl.example. A", discoverytest.Reply{Rcode: dns.RcodeNameError})
		time.Sleep(9 * time.Second)
		r.see("failing.cl.example:7001", "good.cl.example:7001", "late.cl.example:7001", "none.cl.example:7001", "silent.cl.example:7001")
		if got := fmt.Sprint(r.srv.Addresses("failing.cl.example")); got != "[192.0.2.5]" {
			t.Errorf("the addresses last known are %s", got)
		}
		time.Sleep(12 * time.Second)
		r.see("failing.cl.example:7001", "good.cl.example:7001", "late.cl.example:7001", "silent.cl.example:7001")
		time.Sleep(20 * time.Second)
		r.see("good.cl.example:7001", "late.cl.example:7001", "silent.cl.example:7001")
		if s := r.last(); !s.Stale.IsZero() {
			t.Error("the whole source is stale for the sake of one target")
		}
	})
}

// DSC-05: what is repeated while DNS is gone has an end, and the log a line for it.
func TestDSC05NotKeptForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var text bytes.Buffer
		f.serve(5, "a.cl.example:7001", "b.cl.example:7001", "c.cl.example:7001")
		r := f.run(discovery.SRVOptions{Stale: 20 * time.Second, Log: slog.New(slog.NewTextHandler(&text, nil))})
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		time.Sleep(19 * time.Second)
		r.see("a.cl.example:7001", "b.cl.example:7001", "c.cl.example:7001")
		time.Sleep(time.Second)
		r.see()
		r.problem(service, "nobody has answered for 20s")
		time.Sleep(time.Hour)
		r.stop()
		for _, line := range []string{"DNS does not answer", "peers dropped"} {
			if n := strings.Count(text.String(), line); n != 1 {
				t.Errorf("%q is logged %d times:\n%s", line, n, &text)
			}
		}
		if n := r.count(); n > 4 {
			t.Errorf("%d snapshots", n)
		}
	})
}

// DSC-09: SRV records exist for named ports only, which people forget.
func TestDSC09NameWithoutSRV(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on("app.ns.svc.cluster.local. A", discoverytest.Reply{Answer: []string{"app.ns.svc.cluster.local. 5 IN A 192.0.2.1"}})
		r := f.run(discovery.SRVOptions{Name: "_cluster._tcp.app.ns.svc.cluster.local"})
		r.see()
		r.problem("_cluster._tcp.app.ns.svc.cluster.local.", "NXDOMAIN", "app.ns.svc.cluster.local has addresses", `is the port named "cluster"?`)
		time.Sleep(time.Minute)
		r.problem("_cluster._tcp.app.ns.svc.cluster.local.", `is the port named "cluster"?`)
		if n := f.count(" app.ns.svc.cluster.local. A"); n != 2 {
			t.Errorf("the hint was asked for with %d questions, want one for each family", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on("app.ns.svc. AAAA", discoverytest.Reply{Answer: []string{"app.ns.svc. 5 IN AAAA 2001:db8::1"}})
		r := f.run(discovery.SRVOptions{Name: "App.ns.svc."})
		r.problem("app.ns.svc.", "no SRV records", "_port._tcp.app.ns.svc")
	})
	for _, test := range []struct{ name, why string }{
		{"", "it is empty"},
		{"  ", "it is empty"},
		{".", "a part of it is empty"},
		{"_a..b", "a part of it is empty"},
		{"_elements._tcp." + strings.Repeat("x", 64) + ".internal", "longer than 63 bytes"},
		{strings.Repeat("abcdefg.", 32) + "internal", "longer than 253 bytes"},
		{"_elements._tcp.bücher", "xn--"},
		{"host:7400", "a name alone"},
		{"ws://host:7400", "a name alone"},
		{"10.0.0.1", "discovery.static"},
		{"2001:db8::1", "a name alone"},
	} {
		if _, err := discovery.NewSRV(discovery.SRVOptions{Name: test.name}); err == nil || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%q: %v, want %q in it", test.name, err, test.why)
		}
	}
	for _, test := range []struct{ server, why string }{
		{"", "it is empty"},
		{"10.0.0.1:0", "1 to 65535"},
		{"10.0.0.1:dns", "1 to 65535"},
		{"udp://10.0.0.1", "an address alone"},
		{"tcp://", "an address alone"},
		{"tcp://0.0.0.0:53", "cannot be dialled"},
		{"user@10.0.0.1", "an address alone"},
		{"0.0.0.0", "cannot be dialled"},
		{"[2001:db8::1", "not closed"},
		{"a b", "something else"},
	} {
		if _, err := discovery.NewSRV(discovery.SRVOptions{Name: "_a._tcp.b", Servers: []string{test.server}}); err == nil || !strings.Contains(err.Error(), test.why) {
			t.Errorf("server %q: %v, want %q in it", test.server, err, test.why)
		}
	}
}

// DSC-11: the next look is never planned from a TTL alone.
func TestDSC11Pace(t *testing.T) {
	records := func(ttl int) discoverytest.Reply {
		return discoverytest.Reply{Answer: discoverytest.SRV(service, ttl, "127.0.0.1:7001")}
	}
	nobody := discoverytest.Reply{Rcode: dns.RcodeNameError, Authority: []string{"cl.example. 3600 IN SOA ns. admin. 1 3600 600 86400 3600"}}
	for _, test := range []struct {
		name     string
		reply    discoverytest.Reply
		interval time.Duration
		pauses   []time.Duration // the last one goes on
	}{
		{"Zero", records(0), 5 * time.Second, []time.Duration{time.Second}},
		{"One", records(1), 5 * time.Second, []time.Duration{time.Second}},
		{"Three", records(3), 5 * time.Second, []time.Duration{3 * time.Second}},
		{"Day", records(86400), 5 * time.Second, []time.Duration{5 * time.Second}},
		{"Negative", records(1 << 31), 5 * time.Second, []time.Duration{time.Second}}, // RFC 2181: it is zero
		{"ShortInterval", records(0), 200 * time.Millisecond, []time.Duration{200 * time.Millisecond}},
		{"Nobody", nobody, 5 * time.Second, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}},
		{"Failure", discoverytest.Reply{Rcode: dns.RcodeServerFailure}, 5 * time.Second, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}},
		{"Off", discoverytest.Reply{Answer: discoverytest.SRV(service, 86400, ".:0")}, 5 * time.Second, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.on(service+" SRV", test.reply)
				r := f.run(discovery.SRVOptions{Interval: test.interval})
				time.Sleep(40 * test.interval)
				r.stop()
				if len(f.looks) < 20 {
					t.Fatalf("%d looks", len(f.looks))
				}
				differ := map[time.Duration]bool{}
				for i := range f.looks[1:] {
					want := test.pauses[min(i, len(test.pauses)-1)]
					got := f.looks[i+1].Sub(f.looks[i])
					differ[got] = true
					if got < want*9/10 || got > want*11/10 {
						t.Errorf("pause %d is %v, want %v and a tenth more or less", i, got, want)
					}
				}
				if len(differ) < 10 {
					t.Errorf("pauses are the same: %v", differ)
				}
			})
		})
	}
}

// DSC-13: a peer is one, however often and however it is listed.
func TestDSC13Duplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.serve(5, "a.cl.example:7001", "A.Cl.Example.:7001", "a.cl.example:7001", "a.cl.example:7002")
		srv, err := discovery.NewSRV(discovery.SRVOptions{Name: "_CONDUIT._tcp.cl.Example", Servers: []string{"s1"}})
		if err != nil {
			t.Fatal(err)
		}
		srv.SetExchange(f.exchange)
		static, err := discovery.NewStatic([]string{"A.cl.example.:7001", "b.cl.example:7001"}, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		var last discovery.Snapshot
		go func() { done <- discovery.Merge(static, srv).Run(ctx, func(s discovery.Snapshot) { last = s }) }()
		synctest.Wait()
		want := []string{"wss://a.cl.example:7001/cluster/v1", "wss://a.cl.example:7002/cluster/v1", "wss://b.cl.example:7001/cluster/v1"}
		if !slices.Equal(last.Peers, want) {
			t.Errorf("%q, want %q", last.Peers, want)
		}
		if n := f.count("a.cl.example. A"); n != 2 { // A and AAAA
			t.Errorf("its addresses were asked for with %d questions", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// DSC-15: a target that looks like an address with a dot is that address.
func TestDSC15NumericTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.on(service+" SRV", discoverytest.Reply{Answer: discoverytest.SRV(service, 5, "192.0.2.7.:7001", "192-0-2-7.pods.example.:7001", "0.0.0.0.:7001")})
		f.on("192-0-2-7.pods.example. A", discoverytest.Reply{Answer: []string{"192-0-2-7.pods.example. 5 IN A 192.0.2.7"}})
		r := f.run(discovery.SRVOptions{})
		r.see("192-0-2-7.pods.example:7001", "192.0.2.7:7001")
		r.problem("0.0.0.0:7001", "cannot be dialled")
		if n := f.count("192.0.2.7. "); n > 0 {
			t.Errorf("an address was looked up %d times", n)
		}
	})
}

// DSC-17: a peer that comes and goes with each look stays, and nobody hears of it.
func TestDSC17Flapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var text bytes.Buffer
		f.serve(1, "a.cl.example:7001", "b.cl.example:7001", "c.cl.example:7001")
		r := f.run(discovery.SRVOptions{Interval: time.Second, HoldDown: 10 * time.Second, Log: slog.New(slog.NewTextHandler(&text, nil))})
		for i := range 120 {
			targets := []string{"a.cl.example:7001", "b.cl.example:7001", "c.cl.example:7001"}
			f.serve(1, targets[:2+i%2]...)
			time.Sleep(time.Second)
			r.see("a.cl.example:7001", "b.cl.example:7001", "c.cl.example:7001")
		}
		if n := r.count(); n != 1 {
			t.Errorf("%d snapshots", n)
		}
		f.serve(1, "a.cl.example:7001", "b.cl.example:7001") // gone for good
		time.Sleep(12 * time.Second)
		r.see("a.cl.example:7001", "b.cl.example:7001")
		if n := r.count(); n != 2 {
			t.Errorf("%d snapshots", n)
		}
		r.stop()
		if text.Len() > 0 {
			t.Errorf("logged:\n%s", &text)
		}
	})
}

// Many targets are resolved beside each other, within bounds.
func TestSRVManyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var targets []string
		for i := range 100 {
			targets = append(targets, "h"+strconv.Itoa(i)+".cl.example:7001")
		}
		f.serve(5, targets...)
		slow := newSlow(f.exchange, 10*time.Millisecond)
		srv, err := discovery.NewSRV(discovery.SRVOptions{Name: service, Servers: []string{"s1"}})
		if err != nil {
			t.Fatal(err)
		}
		srv.SetExchange(slow.exchange)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan int, 1)
		done := make(chan error)
		begin := time.Now()
		go func() { done <- srv.Run(ctx, func(s discovery.Snapshot) { got <- len(s.Peers) }) }()
		if n := <-got; n != 100 {
			t.Errorf("%d peers", n)
		}
		if d := time.Since(begin); d > 200*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		if slow.most > 32 || slow.most < 8 {
			t.Errorf("%d questions were under way at once", slow.most)
		}
		cancel()
		<-done
	})
}

type slow struct {
	next      func(context.Context, string, string, *dns.Msg) (*dns.Msg, error)
	d         time.Duration
	mu        sync.Mutex
	now, most int
}

func newSlow(next func(context.Context, string, string, *dns.Msg) (*dns.Msg, error), d time.Duration) *slow {
	return &slow{next: next, d: d}
}

func (s *slow) exchange(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	time.Sleep(s.d)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return s.next(ctx, network, server, q)
}

// A problem is in the log once when it appears, however often it is seen, and once when it
// is gone; that nobody answers meanwhile changes nothing.
func TestSRVTellsOfProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var mu sync.Mutex
		var text strings.Builder
		said := func(parts ...string) (n int) {
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(text.String()) {
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					n++
				}
			}
			return n
		}
		want := func(n int, parts ...string) {
			t.Helper()
			if got := said(parts...); got != n {
				t.Fatalf("%d lines have %q, want %d:\n%s", got, parts, n, text.String())
			}
		}
		r := f.run(discovery.SRVOptions{Log: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return text.Write(p)
		}), nil))})
		time.Sleep(30 * time.Second)
		r.problem(service, "NXDOMAIN")
		want(1, "level=WARN", "entry="+service, "NXDOMAIN")
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeServerFailure})
		time.Sleep(30 * time.Second)
		want(1, "level=WARN", "DNS does not answer")
		f.on(service+" SRV", discoverytest.Reply{})
		time.Sleep(30 * time.Second)
		want(1, "level=WARN", "entry="+service)
		want(0, "nothing is wrong any more")
		f.serve(5, "a.cl.example:7001")
		time.Sleep(30 * time.Second)
		r.see("a.cl.example:7001")
		want(1, "level=INFO", "nothing is wrong any more", "entry="+service)
		f.on(service+" SRV", discoverytest.Reply{Rcode: dns.RcodeNameError})
		time.Sleep(30 * time.Second)
		want(2, "level=WARN", "entry="+service)
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
