package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

const (
	// linksEach is how many links doctor makes to a URL, one after another: what stands for
	// several instances seldom leads to the same one so often.
	linksEach = 6
	// probesAtOnce bounds how many URLs are looked at beside each other.
	probesAtOnce = 16
	// mostSkew is how far two clocks may be apart without a word: the Date of an answer has
	// whole seconds.
	mostSkew = 2 * time.Second
)

// runner is the instance that runs here, which says itself whom it cannot reach; the zero
// value = none runs.
type runner struct {
	self string   // its id
	lost []string // the URLs that it could not reach
}

// met is what doctor has seen of one URL.
type met struct {
	url  string
	why  string        // there is no link
	who  []link.Hello  // each instance that answered, once
	skew time.Duration // its clock less this machine's; what is within the accuracy is 0
	told bool          // skew is known
	idle *quietTime    // nil = it was not held
}

// quietTime is how a link went on that neither end said anything on.
type quietTime struct {
	lasted time.Duration
	cut    bool
}

// examineLinks looks at the peers that discovery names from outside, as anybody may: it
// makes links without a session, and asks nothing. here is the instance that runs here.
func examineLinks(ctx context.Context, f *findings, c *config.Config, srv []string, dial discovery.Dial, here runner, idle time.Duration) {
	const check = "links"
	listed, err := discovery.ParseStatic(c.List("discovery.static"), c.Bool("cluster.insecure"))
	if err != nil {
		return // config has told
	}
	urls := slices.Compact(slices.Sorted(slices.Values(slices.Concat(listed, srv))))
	if len(urls) == 0 {
		f.add(check, findingSkipped, "discovery names nobody")
		return
	}
	var keys *tls.Config
	if k, err := openCertsOf(c, "cluster"); err == nil { // else serve says so
		keys = k.Client()
	}
	p := &prober{
		c: c, idle: idle, ping: c.Duration("cluster.ping_interval"),
		client: transport.NewClient(transport.ClientOptions{
			DialContext: dial, DialTimeout: c.Duration("cluster.dial_timeout"), Insecure: c.Bool("cluster.insecure"), TLS: keys,
			Link: link.Options{PingInterval: 24 * time.Hour}, // it is to be silent
		}),
		web: &http.Client{
			Timeout:       c.Duration("cluster.dial_timeout"),
			Transport:     &http.Transport{DialContext: dial, TLSClientConfig: keys, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	all := p.meet(ctx, urls)
	_ = p.client.Close() // nothing is under way
	if ctx.Err() != nil {
		return
	}
	for i := range all {
		all[i].judge(f, here, p.ping)
	}
	judgeDoubles(f, all, here.self)
	if idle <= 0 {
		f.add("idle", findingSkipped, "whether something cuts idle links is measured with --idle 30s")
	}
}

// prober looks at peers.
type prober struct {
	c          *config.Config
	client     *transport.Client
	web        *http.Client
	idle, ping time.Duration
}

func (p *prober) meet(ctx context.Context, urls []string) []met {
	all := make([]met, len(urls))
	places := make(chan struct{}, probesAtOnce)
	var each sync.WaitGroup
	for i, url := range urls {
		each.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			all[i] = p.one(ctx, url)
		})
	}
	each.Wait()
	return all
}

func (p *prober) one(ctx context.Context, url string) met {
	m := met{url: url}
	for n := range linksEach {
		conn, err := p.client.DialLink(ctx, url, transport.LinkHooks{})
		if err != nil {
			if m.why = conduit.AsError(err, conduit.NotSent).Message; n > 0 {
				m.why = fmt.Sprintf("%s (link %d of %d; those before it came)", m.why, n+1, linksEach)
			}
			return m
		}
		theirs := conn.Theirs()
		if !slices.ContainsFunc(m.who, func(h link.Hello) bool { return h.Instance == theirs.Instance && h.Epoch == theirs.Epoch }) {
			m.who = append(m.who, theirs)
		}
		if n == 0 && p.idle > 0 {
			m.idle = p.hold(ctx, conn)
		}
		conn.Close(link.CloseDone, "doctor has seen enough")
	}
	m.skew, m.told = p.clock(ctx, url)
	return m
}

// hold says nothing on a link until it is cut, the other end says something, or the time
// for it is over.
func (p *prober) hold(ctx context.Context, conn *link.Conn) *quietTime {
	began := time.Now()
	over := time.NewTimer(p.idle)
	defer over.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	first := conn.Stats().PacketsIn
	for {
		select {
		case <-conn.Done():
			return &quietTime{lasted: time.Since(began), cut: true}
		case <-over.C:
			return &quietTime{lasted: time.Since(began)}
		case <-ctx.Done():
			return nil
		case <-tick.C:
			// What follows the Hello at once is not counted.
			if n := conn.Stats().PacketsIn; n != first {
				if time.Since(began) > time.Second {
					return &quietTime{lasted: time.Since(began)}
				}
				first, began = n, time.Now()
			}
		}
	}
}

// clock reads a peer's clock off its answer to a plain request, which needs no rights.
func (p *prober) clock(ctx context.Context, url string) (skew time.Duration, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+strings.TrimPrefix(url, "ws"), http.NoBody)
	if err != nil {
		return 0, false
	}
	asked := time.Now()
	resp, err := p.web.Do(req)
	if err != nil {
		return 0, false
	}
	_ = resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, false
	}
	return skewOf(date, asked, time.Now()), true
}

// skewOf compares the whole second that a clock showed at some time between two of this
// machine's: 0 if that is possible without a difference.
func skewOf(date, asked, answered time.Time) time.Duration {
	switch {
	case date.After(answered):
		return date.Sub(answered)
	case date.Add(time.Second).Before(asked):
		return date.Add(time.Second).Sub(asked)
	}
	return 0
}

// judge adds what there is to say of one URL.
func (m *met) judge(f *findings, here runner, ping time.Duration) {
	const check = "links"
	switch {
	case m.why != "" && slices.Contains(here.lost, m.url): // the instance has told of it
	case m.why != "":
		f.add(check, findingProblem, "%s; see whether it runs, and whether its address and the way there are right, or take it off the list", m.why)
	}
	ids := map[string]bool{}
	for _, h := range m.who {
		ids[h.Instance] = true
	}
	switch {
	case len(ids) > 1:
		f.add(check, findingProblem, "%s leads to %d instances, and one of them is found at best: a balancer, a service with an address of its own, or several hosts of one name are there; give each instance a name or a port of its own (on Kubernetes a headless service: clusterIP: None)", m.url, len(ids))
	case len(ids) == 1 && ids[here.self]:
		f.add(check, findingOK, "%s is this instance itself, which does no harm", m.url)
	case len(ids) == 1 && m.why == "":
		f.add(check, findingOK, "%s leads to one instance", m.url)
	}
	if m.told && max(m.skew, -m.skew) > mostSkew {
		how := "ahead of"
		if m.skew < 0 {
			how = "behind"
		}
		f.add("clock", findingWarning, "the clock of %s is %v %s this machine's: sessions and certificates end at other times there, and logs do not fit together; have both set by NTP", m.url, max(m.skew, -m.skew).Round(time.Second), how)
	}
	if m.idle != nil {
		m.idle.judge(f, m.url, ping)
	}
}

func (s *quietTime) judge(f *findings, url string, ping time.Duration) {
	const check = "idle"
	lasted := s.lasted.Round(100 * time.Millisecond)
	switch {
	case s.cut && s.lasted < 2*ping:
		f.add(check, findingProblem, "a silent link to %s was cut after %v: something on the way (a proxy, a balancer, a firewall) lets go of idle connections before the pings of cluster.ping_interval (%v) come; give it a longer idle time, or set cluster.ping_interval to %v or less everywhere",
			url, lasted, ping, max(s.lasted/3, time.Millisecond).Round(time.Millisecond))
	case s.cut:
		f.add(check, findingOK, "a silent link to %s was cut after %v, and links are pinged every %v", url, lasted, ping)
	default:
		f.add(check, findingOK, "a silent link to %s was not cut in %v; in use there are pings every %v", url, lasted, ping)
	}
}

// judgeDoubles adds which URLs lead to one instance, and which to two that say that they
// are one; a running instance tells of the latter itself.
func judgeDoubles(f *findings, all []met, self string) {
	const check = "links"
	type one struct {
		url   string
		hello link.Hello
	}
	by := map[string][]one{}
	for _, m := range all {
		for _, h := range m.who {
			by[h.Instance] = append(by[h.Instance], one{m.url, h})
		}
	}
	ids := make([]string, 0, len(by))
	for id := range by {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		ones := by[id]
		slices.SortFunc(ones, func(a, b one) int { return cmp.Compare(a.url, b.url) })
		for _, other := range ones[1:] {
			switch first := ones[0]; {
			case other.hello.Epoch == first.hello.Epoch && other.url != first.url:
				f.add(check, findingOK, "%s and %s are one instance, which does no harm", first.url, other.url)
			case other.hello.Epoch != first.hello.Epoch && self == "":
				f.add(check, findingProblem, "%s and %s are two processes that both say that they are the instance %s; if a data directory was copied, give the copy an id of its own with: conduit-host id reset", first.url, other.url, id)
			}
		}
	}
}

// dialOf is what dials the peers that DNS named; nil = the system's way.
func dialOf(srv *discovery.SRV) discovery.Dial {
	if srv == nil {
		return nil
	}
	return srv.DialContext((&net.Dialer{}).DialContext)
}
