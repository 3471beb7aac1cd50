package metrics

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// maxScrapes run at once; further ones are told to come again.
	maxScrapes = 4
	// scrapeTimeout ends a scrape whose sources hang. It also means that a reader
	// who is slow to take the page holds none of the maxScrapes.
	scrapeTimeout = 10 * time.Second
	// maxSources bounds the names of Lookup, and maxDialled those of Dialled
	// between two scrapes, against a caller who takes them from elsewhere.
	maxSources = 16
	maxDialled = 16384
)

// Options are where the numbers come from. Each func is called at every scrape,
// by several at once, and must not block for long; nil = the instance has no such
// thing, and its metrics are not shown.
type Options struct {
	// Version is the build's, for conduit_build_info.
	Version string
	// Links returns the links that are open to other instances and to clients.
	// Links to plugins are not meant: elements have metrics of their own.
	Links func() []Link
	// Peers returns the instances that this one knows, itself not among them.
	Peers func() []Peer
	// Budget returns this instance's units.
	Budget func() Budget
	// Auth returns the checks of credentials so far.
	Auth func() AuthChecks
	// Elements returns what this instance hosts, whatever its state.
	Elements func() []Element
	// Measures returns what elements count and measure by themselves.
	Measures func() []Measure
	// Log takes a warning when names are no longer told apart, and at debug level
	// what was wrong with a scrape; nil = nothing.
	Log *slog.Logger

	// usage says what a process uses; tests have their own.
	usage func(pid int) (usage, bool)
}

// Metrics is what an instance shows. All methods may be called concurrently.
type Metrics struct {
	o        Options
	registry *prometheus.Registry
	calls    *Calls
	scrapes  scrapes

	mu      sync.Mutex
	lookups map[string]*tries // by source
	dials   map[string]*tries // by peer
}

// tries counts what may go well or not.
type tries struct {
	ok, failed uint64
	missed     bool // nobody knew the name at the last scrape
}

func (t *tries) count(err error) {
	if err != nil {
		t.failed++
	} else {
		t.ok++
	}
}

// New returns the metrics of an instance, all at zero.
func New(o Options) *Metrics {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.usage == nil {
		o.usage = usageOf()
	}
	m := &Metrics{
		o: o, registry: prometheus.NewRegistry(), calls: newCalls(o.Log),
		lookups: map[string]*tries{}, dials: map[string]*tries{},
	}
	m.registry.MustRegister(
		m.calls, (*collector)(m),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Handler answers a scrape. A source whose numbers do not fit together costs its
// own metrics and no others.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.o.Log.Handler(), slog.LevelDebug),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
	})
}

// Calls counts the instance's calls.
func (m *Metrics) Calls() *Calls { return m.calls }

// LinkEnded tells the last numbers of a link that Options.Links has returned or
// would have: without it, what a link did after the last scrape is lost, and a
// link that no scrape saw is not counted at all. It is to be called once for a
// link, soon after Options.Links has stopped to return it.
func (m *Metrics) LinkEnded(l Link) {
	m.scrapes.mu.Lock()
	defer m.scrapes.mu.Unlock()
	m.scrapes.links.end(label(l.Peer), l.ID, l.totals())
}

// Dialled counts a dial: err says why it made no link. peer is the name of the
// instance that was meant, or empty if that is not known yet, and never a URL.
// What is counted under a name is forgotten once neither Options.Links nor
// Options.Peers has the peer.
func (m *Metrics) Dialled(peer string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bounded(m.dials, label(peer), maxDialled).count(err)
}

// LookedUp counts a look for peers in a source, such as "dns", which must be the
// program's own word for it. err says why there was no answer.
func (m *Metrics) LookedUp(source string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bounded(m.lookups, label(source), maxSources).count(err)
}

// bounded returns the counter of a name, or that of all names that came too late.
func bounded(all map[string]*tries, name string, most int) *tries {
	t := all[name]
	if t == nil && len(all) >= most {
		name = unknown
		t = all[name]
	}
	if t == nil {
		t = &tries{}
		all[name] = t
	}
	return t
}

const (
	resultOK     = "ok"
	resultDenied = "denied"
	resultError  = "error"
)
