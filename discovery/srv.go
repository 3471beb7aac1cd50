package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Defaults of an SRV, and bounds that are not to be set.
const (
	DefaultSRVInterval = 5 * time.Second
	DefaultSRVTimeout  = 2 * time.Second
	DefaultSRVStale    = 5 * time.Minute

	// srvFloor is the shortest pause between two looks, unless Interval itself is
	// shorter: a TTL of zero is no wish for a busy loop.
	srvFloor = time.Second
	// addressMax is how long addresses of a target are used at most, whatever their
	// TTL: a host that moves is found again before people lose patience.
	addressMax = time.Minute
	// lookupsAtOnce bounds the questions for addresses that are under way.
	lookupsAtOnce = 16
)

// SRVOptions say where an SRV looks, and how it takes what it hears. All times but
// HoldDown: 0 = the default.
type SRVOptions struct {
	// Name is the name whose SRV records are the peers, such as
	// _elements._tcp.internal. With a dot at the end, or with Servers, it is
	// absolute; else the search domains of the system apply, as for any name.
	Name string
	// Servers are the DNS servers to ask, in order, in place of the system's:
	// 10.0.0.53, 10.0.0.53:8600, [2001:db8::53]:53 or a name that the system
	// resolves; an entry may hold several, separated by commas. The port is 53
	// unless it is said. With tcp:// in front, one is asked over TCP alone: some
	// shorten what they send in a datagram, and do not say so.
	Servers []string
	// Interval is the longest time between two looks: 5 s. It is less when the
	// records' TTL is, but no less than 1 s, unless Interval is. Each pause is up to
	// a tenth shorter or longer, so that instances do not ask in step.
	Interval time.Duration
	// Timeout bounds the wait for one server: 2 s.
	Timeout time.Duration
	// Stale is how long a peer is kept that no server could be asked about: 5 min.
	Stale time.Duration
	// HoldDown is how long a peer is kept that DNS lists no more; 0 = not at all.
	HoldDown time.Duration
	// Insecure is the setting cluster.insecure: see [ParsePeer].
	Insecure bool
	// ResolvConf is the file that names the system's servers and search domains; it
	// is read at each look. Empty = /etc/resolv.conf.
	ResolvConf string
	// Log takes what there is to say; nil = nothing. It is told when DNS ceases and
	// begins to answer, and when a problem appears and goes, not of each look.
	Log *slog.Logger
	// Looked is called after each look, with nil or why nobody answered. nil =
	// nobody is told.
	Looked func(err error)
}

// SRV is the source of the peers that SRV records of DNS list. Each record is one
// peer, wss://target:port/cluster/v1 or ws:// by the rules of [ParsePeer], so names
// and not addresses stand in URLs: TLS checks names, and a host that moves stays the
// peer that it was. A target that is an address by itself is taken as that.
// Priorities and weights are not used: among peers the one with the most room is
// picked, which is known better than a weight says.
//
// The addresses of targets are asked for, from the same servers, with names that are
// absolute. A target without any is a problem and no peer, and costs the others
// nothing. [SRV.DialContext] dials the addresses that were found.
//
//   - An answer that lists a peer no longer, the answer that there is no such name
//     (NXDOMAIN) and one without records take peers away after HoldDown.
//   - The target "." says that the service is off: its peers go at once.
//   - No answer at all (SERVFAIL, REFUSED, silence, nonsense), from no server, keeps
//     a peer for Stale since it was last confirmed. So it is for a single target
//     whose addresses are not to be had.
//
// All methods may be called concurrently.
type SRV struct {
	o        SRVOptions
	name     string // in lower case; with a dot at the end if it is absolute
	servers  []string
	floor    time.Duration
	log      *slog.Logger
	exchange exchange
	// addresses of the targets that are peers, by host in the form of URLs.
	addresses atomic.Pointer[map[string][]netip.Addr]
}

// NewSRV returns a source that looks while its Run does. The error says what is
// wrong with Name or Servers; DNS is not asked yet.
func NewSRV(o SRVOptions) (*SRV, error) {
	name, err := parseSRVName(o.Name)
	if err != nil {
		return nil, err
	}
	servers, err := parseServers(o.Servers)
	if err != nil {
		return nil, err
	}
	if len(servers) > 0 {
		name = dns.Fqdn(name)
	}
	if o.Interval <= 0 {
		o.Interval = DefaultSRVInterval
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultSRVTimeout
	}
	if o.Stale <= 0 {
		o.Stale = DefaultSRVStale
	}
	o.HoldDown = max(o.HoldDown, 0)
	if o.ResolvConf == "" {
		o.ResolvConf = "/etc/resolv.conf"
	}
	s := &SRV{o: o, name: name, servers: servers, floor: min(srvFloor, o.Interval), log: o.Log, exchange: overNetwork}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

// Run implements Source. It returns no error: what is wrong with DNS may be right
// again, and is a problem of the snapshots until then.
//
// A look that fails before there was any answer is published when the next one fails
// as well: while a network comes up, callers rather wait than hear that nobody is
// there.
func (s *SRV) Run(ctx context.Context, publish func(Snapshot)) error {
	r := &srvRun{
		s: s, known: map[string]*known{}, hosts: map[string]*target{},
		resolver: resolver{exchange: s.exchange, timeout: s.o.Timeout, failed: map[string]time.Time{}},
	}
	s.addresses.Store(nil)
	var last *Snapshot
	timer := time.NewTimer(0)
	defer timer.Stop()
	var next time.Time // of the next look
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(next) {
			seen := r.look(ctx)
			if ctx.Err() != nil {
				return nil // what it saw may only be that
			}
			now = time.Now()
			r.take(ctx, seen, now)
			next = now.Add(jitter(r.pause(seen)))
			if s.o.Looked != nil {
				s.o.Looked(seen.err)
			}
		}
		ends := r.expire(ctx, time.Now())
		s.addresses.Store(r.reachable())
		snapshot, tell := r.snapshot()
		if tell && (last == nil || !same(*last, snapshot)) {
			last = &snapshot
			publish(snapshot)
		}
		wake := next
		if !ends.IsZero() && ends.Before(wake) {
			wake = ends
		}
		timer.Reset(time.Until(wake))
	}
}

// srvRun is what one Run knows. It is used by that goroutine alone.
type srvRun struct {
	s        *SRV
	resolver resolver

	known map[string]*known  // peers by URL
	hosts map[string]*target // by absolute name
	from  string             // the absolute name whose records the peers are

	at       time.Time // of the last answer
	failing  time.Time // since when there is none; zero = there is
	failures int       // looks in a row without an answer
	empty    int       // answers in a row without a peer
	hint     string    // what may be wrong, asked for once as answers became empty
	dropped  bool      // peers have gone since nobody answered
	problems []Problem
	told     map[string]bool // entries of the problems of the last answer: the log has them
}

// known is a peer that is published.
type known struct {
	host      string    // absolute name, or "" if nothing is to be resolved
	confirmed time.Time // when it was last listed, with addresses
	unsure    bool      // it could not be confirmed by the last look: Stale runs
	gone      time.Time // since when it is not listed: HoldDown runs; zero = it is
}

// target is what is known of the addresses of a host.
type target struct {
	addrs   []netip.Addr
	expires time.Time
}

// seen is what one look has seen.
type seen struct {
	err      error // nobody answered; the rest is void
	from     string
	off      bool
	ttl      time.Duration
	peers    map[string]string // URLs, and the hosts whose addresses are known
	unsure   map[string]string // the same, where the addresses could not be asked for
	problems []Problem
}

// look asks for the records and then for the addresses that did not come with them.
func (r *srvRun) look(ctx context.Context) seen {
	servers, names, err := r.s.where()
	if err != nil {
		return seen{err: err}
	}
	a, err := r.records(ctx, servers, names)
	if err != nil {
		return seen{err: err}
	}
	if a.nobody() {
		if r.empty == 0 {
			r.hint = r.whyNobody(ctx, servers, names)
		}
		what := "it has no SRV records: nobody is there"
		if !a.exists {
			what = "there is no such name (NXDOMAIN): nobody is there"
		}
		return seen{from: r.from, ttl: a.ttl, problems: []Problem{{Entry: r.s.name, Err: errors.New(what + r.hint)}}}
	}
	out := seen{from: a.name, off: a.off, ttl: a.ttl, problems: a.problems, peers: map[string]string{}, unsure: map[string]string{}}
	if a.off {
		out.problems = append(out.problems, Problem{Entry: r.s.name, Err: errors.New(`its target is ".": the service is switched off`)})
	}
	found := r.resolve(ctx, servers, a)
	for _, rec := range a.records {
		entry := net.JoinHostPort(strings.TrimSuffix(rec.host, "."), strconv.Itoa(int(rec.port)))
		url, err := ParsePeer(entry, r.s.o.Insecure)
		if err != nil {
			if e, ok := errors.AsType[*EntryError](err); ok {
				err = errors.New(e.Why)
			}
			out.problems = append(out.problems, Problem{Entry: entry, Err: err})
			continue
		}
		host := rec.host
		if !isName(host) {
			out.peers[url] = ""
			continue
		}
		switch f := found[host]; {
		case f.err == nil:
			out.peers[url] = host
		case f.none:
			out.problems = append(out.problems, Problem{Entry: entry, Err: f.err})
		default:
			out.problems = append(out.problems, Problem{Entry: entry, Err: f.err})
			out.unsure[url] = host
		}
	}
	return out
}

// records asks for the SRV records of the names that may be meant, in order. A name
// for which nobody answers is passed over as long as the peers are not its own.
func (r *srvRun) records(ctx context.Context, servers, names []string) (answer, error) {
	var failed error
	nobody := answer{ttl: r.s.o.Interval}
	for _, name := range names {
		m, err := r.resolver.ask(ctx, servers, name, dns.TypeSRV)
		if err != nil {
			err = fmt.Errorf("no answer on %s: %w", name, err)
			if name == r.from {
				return answer{}, err
			}
			if failed == nil {
				failed = err
			}
			continue
		}
		a := readSRV(m, name)
		if !a.nobody() {
			return a, nil
		}
		nobody.exists = nobody.exists || a.exists
	}
	return nobody, failed
}

// whyNobody looks for what people get wrong: SRV records exist for named ports only.
func (r *srvRun) whyNobody(ctx context.Context, servers, names []string) string {
	ctx, cancel := context.WithTimeout(ctx, r.s.o.Timeout)
	defer cancel()
	for _, name := range names {
		base, port := baseName(name)
		if base == "" {
			continue
		}
		addrs, _, err := r.resolver.addresses(ctx, servers, base)
		if err != nil || len(addrs) == 0 {
			continue
		}
		base = strings.TrimSuffix(base, ".")
		if port == "" {
			return fmt.Sprintf("; %s has addresses: is it _port._tcp.%[1]s that is meant, with the name of a port?", base)
		}
		return fmt.Sprintf("; %s has addresses, and SRV records are there for named ports only: is the port named %q?", base, port)
	}
	return ""
}

// found is what is known of the addresses of a target.
type found struct {
	err  error // why there are no addresses, old ones aside
	none bool  // for that is the answer; else nobody has answered
}

// resolve finds the addresses of all targets, and puts them into r.hosts. What comes
// with the records or is not old yet is not asked for.
func (r *srvRun) resolve(ctx context.Context, servers []string, a answer) map[string]found {
	now := time.Now()
	out := map[string]found{}
	var ask []string
	for _, rec := range a.records {
		if _, ok := out[rec.host]; ok || !isName(rec.host) {
			continue
		}
		if g, ok := a.glue[rec.host]; ok {
			r.hosts[rec.host] = &target{addrs: g.addrs, expires: now.Add(r.lifetime(g.ttl))}
		} else if t := r.hosts[rec.host]; t == nil || !now.Before(t.expires) {
			ask = append(ask, rec.host)
		}
		out[rec.host] = found{}
	}
	// Two servers have the time to be silent; more would hold up the targets that are
	// known by now.
	ctx, cancel := context.WithTimeout(ctx, 2*r.s.o.Timeout)
	defer cancel()
	answers := gather(ask, func(host string) addressAnswer {
		addrs, ttl, err := r.resolver.addresses(ctx, servers, host)
		return addressAnswer{addrs, ttl, err}
	})
	now = time.Now()
	for i, host := range ask {
		switch f := answers[i]; {
		case f.err != nil:
			out[host] = found{err: fmt.Errorf("its addresses are not to be had: %w", f.err)}
		case len(f.addrs) == 0:
			out[host] = found{err: errors.New("its name has no address"), none: true}
		default:
			r.hosts[host] = &target{addrs: f.addrs, expires: now.Add(r.lifetime(f.ttl))}
		}
	}
	return out
}

func (r *srvRun) lifetime(ttl time.Duration) time.Duration {
	return min(max(ttl, r.s.floor), addressMax)
}

// take makes what a look has seen what is known.
func (r *srvRun) take(ctx context.Context, s seen, now time.Time) {
	if s.err != nil {
		if r.failing.IsZero() {
			r.failing = now
			r.s.log.WarnContext(ctx, "DNS does not answer: the peers known by now are kept for a while",
				"name", r.s.name, "error", s.err, "peers", len(r.known), "stale", r.s.o.Stale)
		}
		r.failures++
		r.problems = []Problem{{Entry: r.s.name, Err: s.err}}
		for _, k := range r.known {
			k.unsure = true
		}
		return
	}
	if !r.failing.IsZero() {
		r.s.log.InfoContext(ctx, "DNS answers again", "name", r.s.name, "after", now.Sub(r.failing))
	}
	r.at, r.failing, r.failures, r.dropped = now, time.Time{}, 0, false
	r.from, r.problems = s.from, s.problems
	r.tell(ctx)
	if len(s.peers)+len(s.unsure) == 0 {
		r.empty++
	} else {
		r.empty, r.hint = 0, ""
	}
	for url, host := range s.peers {
		r.known[url] = &known{host: host, confirmed: now}
	}
	for url, k := range r.known {
		_, listed := s.peers[url]
		_, unsure := s.unsure[url]
		k.unsure = unsure
		switch {
		case listed:
		case unsure:
			k.gone = time.Time{} // it is listed, at least
		case s.off:
			delete(r.known, url)
		case k.gone.IsZero():
			k.gone = now
		}
	}
}

// tell logs which problems have appeared with an answer, and which are gone: each once,
// by its entry, since the reason of one that stays may be put in other words each time.
func (r *srvRun) tell(ctx context.Context) {
	now := make(map[string]bool, len(r.problems))
	for _, p := range r.problems {
		if !r.told[p.Entry] && !now[p.Entry] {
			r.s.log.WarnContext(ctx, "DNS names no peer by this entry", "name", r.s.name, "entry", p.Entry, "error", p.Err)
		}
		now[p.Entry] = true
	}
	for _, entry := range slices.Sorted(maps.Keys(r.told)) {
		if !now[entry] {
			r.s.log.InfoContext(ctx, "nothing is wrong any more with this entry of DNS", "name", r.s.name, "entry", entry)
		}
	}
	r.told = now
}

// expire drops the peers whose time is over, and returns when the next one's is; zero
// = no one's.
func (r *srvRun) expire(ctx context.Context, now time.Time) (next time.Time) {
	dropped := 0
	for url, k := range r.known {
		var end time.Time
		stale := false
		if !k.gone.IsZero() {
			end = k.gone.Add(r.s.o.HoldDown)
		}
		if at := k.confirmed.Add(r.s.o.Stale); k.unsure && (end.IsZero() || at.Before(end)) {
			end, stale = at, true
		}
		switch {
		case end.IsZero():
		case !now.Before(end):
			delete(r.known, url)
			if stale {
				dropped++
			}
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	if dropped > 0 {
		r.dropped = !r.failing.IsZero()
		r.s.log.WarnContext(ctx, "peers dropped: DNS could not confirm them for too long",
			"name", r.s.name, "peers", dropped, "stale", r.s.o.Stale)
	}
	return next
}

// reachable returns the addresses of the peers' hosts, and forgets other hosts.
func (r *srvRun) reachable() *map[string][]netip.Addr {
	out := make(map[string][]netip.Addr, len(r.known))
	used := map[string]bool{}
	for _, k := range r.known {
		if t := r.hosts[k.host]; t != nil {
			used[k.host] = true
			out[strings.TrimSuffix(k.host, ".")] = t.addrs
		}
	}
	for host := range r.hosts {
		if !used[host] {
			delete(r.hosts, host)
		}
	}
	return &out
}

// snapshot says what is known, and whether it is worth telling.
func (r *srvRun) snapshot() (s Snapshot, tell bool) {
	s = Snapshot{Peers: make([]string, 0, len(r.known)), At: r.at, Stale: r.failing}
	for url := range r.known {
		s.Peers = append(s.Peers, url)
	}
	s.Peers = normal(s.Peers)
	s.Problems = slices.Clone(r.problems)
	switch {
	case r.failing.IsZero():
	case r.dropped:
		s.Problems = append(s.Problems, Problem{
			Entry: r.s.name,
			Err:   fmt.Errorf("nobody has answered for %v: peers known till then are dropped", r.s.o.Stale),
		})
	case len(s.Peers) > 0:
		s.Problems = append(s.Problems, Problem{
			Entry: r.s.name,
			Err:   fmt.Errorf("peers are those of the last answer, kept for %v", r.s.o.Stale),
		})
	}
	if s.At.IsZero() {
		s.At = r.failing
		return s, r.failures > 1
	}
	return s, true
}

// pause returns how long to wait for the next look. After no answer, or one without
// peers, it is short first, whatever a TTL says: that soon changes, or not for long.
func (r *srvRun) pause(s seen) time.Duration {
	if n := r.failures + r.empty; n > 0 {
		return min(r.s.floor<<min(n-1, 16), r.s.o.Interval)
	}
	return max(r.s.floor, min(r.s.o.Interval, s.ttl))
}
