package metrics

import (
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// scrapes is what one scrape leaves to the next.
type scrapes struct {
	mu    sync.Mutex // held for the whole of a scrape: looks at links must not cross
	links ledger[string, any]
	cpu   ledger[elementKey, process]

	measured ledger[measureKey, int] // by the id of the process
}

type measureKey struct {
	elementKey

	name string
}

type elementKey struct{ deployment, element string }

type process struct {
	pid   int
	begun uint64
}

// states are those of an element, so that each is shown, be it at zero.
//
//nolint:gochecknoglobals // a constant
var states = [...]string{
	"discovered", "refused", "starting", "ready", "degraded", "draining", "stopped", "backoff", "crash_looping", "disabled",
}

// Descriptions of all that collector shows.
//
//nolint:gochecknoglobals // constants
var (
	linkOpen    = desc("link_open", "Links that are open to the peer.", "peer")
	linkRTT     = desc("link_rtt_seconds", "The last measured round trip; of several links the longest.", "peer")
	linkBytes   = desc("link_bytes_total", "Bytes on links to the peer, as packets have them.", "peer", "direction")
	linkPackets = desc("link_packets_total", "Packets on links to the peer; one carries many frames.", "peer", "direction")
	linkQueued  = desc("link_queued_calls", "Calls that have something to write and wait for the link.", "peer")
	linkDials   = desc("link_dials_total", "Dials to the peer, by how they ended.", "peer", "result")

	peerUnits     = desc("peer_units", "Units that the peer has in total.", "peer")
	peerAvailable = desc("peer_available_units", "Units that the peer has said are free.", "peer")
	peerDebit     = desc("peer_debit_units", "Units of calls sent to the peer that its last word did not know of.", "peer")

	budgetUnits     = desc("budget_units", "Units that this instance has in total.")
	budgetAvailable = desc("budget_available_units", "Units of this instance that nobody holds.")
	budgetClaims    = desc("budget_claims", "Claims that hold units of this instance.")

	clusterAvailable = desc("cluster_available_ratio", "Free units over all units, of this instance and the peers that are alive.")

	elementState    = desc("element_state", "1 for the state that the element is in, 0 for the others.", "deployment", "element", "state")
	elementRestarts = desc("element_restarts_total", "Processes of the element that ended without being asked to.", "deployment", "element")
	elementStart    = desc("element_start_seconds", "When the element's process started, in seconds since 1970.", "deployment", "element")
	elementResident = desc("element_resident_bytes", "Resident memory of the element's process.", "deployment", "element")
	elementCPU      = desc("element_cpu_seconds_total", "Processor time of the element's processes, user and system.", "deployment", "element")

	elementCounter = desc("element_counted_total", "What the element counts by itself.", "deployment", "element", "name")
	elementGauge   = desc("element_measured", "What the element measures by itself.", "deployment", "element", "name")

	lookupsTotal = desc("discovery_lookups_total", "Looks for peers, by how they ended.", "source", "result")
	authTotal    = desc("auth_checks_total", "Checks of credentials, by how they ended.", "result")
	buildInfo    = desc("build_info", "Always 1; the labels say what runs.", "version", "goversion")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("conduit_"+name, help, labels, nil)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// collector is a Metrics as a scrape sees it.
type collector Metrics

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		linkOpen, linkRTT, linkBytes, linkPackets, linkQueued, linkDials,
		peerUnits, peerAvailable, peerDebit, budgetUnits, budgetAvailable, budgetClaims, clusterAvailable,
		elementState, elementRestarts, elementStart, elementResident, elementCPU,
		elementCounter, elementGauge,
		lookupsTotal, authTotal, buildInfo,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Whatever goes under the same labels is
// summed up before it is shown, since a name may be there twice: two elements of a
// deployment, two instances that were given one name.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	known := map[string]bool{}
	var peers []Peer
	if c.o.Peers != nil {
		peers = c.o.Peers()
	}
	c.collectLinks(ch, known, peers)
	c.collectUnits(ch, known, peers)
	c.collectElements(ch)
	c.collectMeasures(ch)
	c.collectTries(ch, known)
	if c.o.Auth != nil {
		checks := c.o.Auth()
		counter(ch, authTotal, float64(checks.OK), resultOK)
		counter(ch, authTotal, float64(checks.Denied), resultDenied)
		counter(ch, authTotal, float64(checks.Failed), resultError)
	}
	gauge(ch, buildInfo, 1, label(c.o.Version), runtime.Version())
}

// collectLinks notes in known whom there are links to. Of clients and of all who are
// known as peers it shows what earlier links did, also while there is none.
func (c *collector) collectLinks(ch chan<- prometheus.Metric, known map[string]bool, instances []Peer) {
	if c.o.Links == nil {
		return
	}
	type now struct{ open, queued, rtt float64 }
	peers := map[string]now{}

	c.scrapes.mu.Lock()
	l := &c.scrapes.links
	l.begin()
	l.keepKnown(Clients)
	for _, p := range instances {
		l.keepKnown(label(p.Name))
	}
	for _, link := range c.o.Links() {
		name := label(link.Peer)
		l.feed(name, link.ID, link.totals())
		n := peers[name]
		n.open++
		n.queued += float64(link.Queued)
		n.rtt = max(n.rtt, link.RTT.Seconds())
		peers[name] = n
	}
	sums := l.finish()
	c.scrapes.mu.Unlock()

	for peer, t := range sums {
		n := peers[peer]
		known[peer] = true
		gauge(ch, linkOpen, n.open, peer)
		gauge(ch, linkQueued, n.queued, peer)
		if n.rtt > 0 {
			gauge(ch, linkRTT, n.rtt, peer)
		}
		counter(ch, linkBytes, t[0], peer, "in")
		counter(ch, linkBytes, t[1], peer, "out")
		counter(ch, linkPackets, t[2], peer, "in")
		counter(ch, linkPackets, t[3], peer, "out")
	}
}

// collectUnits notes in known which peers there are.
func (c *collector) collectUnits(ch chan<- prometheus.Metric, known map[string]bool, instances []Peer) {
	var all Budget // of the cluster
	if c.o.Budget != nil {
		b := c.o.Budget()
		all.Units, all.Available = b.Units, b.Available
		gauge(ch, budgetUnits, float64(b.Units))
		gauge(ch, budgetAvailable, float64(b.Available))
		gauge(ch, budgetClaims, float64(b.Claims))
	}
	if c.o.Peers != nil {
		peers := map[string]Peer{}
		for _, p := range instances {
			name := label(p.Name)
			known[name] = true
			if !p.Alive {
				continue
			}
			all.Units += p.Units
			all.Available += p.Available
			sum := peers[name]
			sum.Units += p.Units
			sum.Available += p.Available
			sum.Debit += p.Debit
			peers[name] = sum
		}
		for name, p := range peers {
			gauge(ch, peerUnits, float64(p.Units), name)
			gauge(ch, peerAvailable, float64(p.Available), name)
			gauge(ch, peerDebit, float64(p.Debit), name)
		}
	}
	if all.Units > 0 { // of nothing there is no part
		gauge(ch, clusterAvailable, float64(all.Available)/float64(all.Units))
	}
}

// collectMeasures shows what elements tell. A counter goes on over the processes of its
// element.
func (c *collector) collectMeasures(ch chan<- prometheus.Metric) {
	if c.o.Measures == nil {
		return
	}
	gauges := map[measureKey]float64{}
	c.scrapes.mu.Lock()
	l := &c.scrapes.measured
	l.begin()
	for _, m := range c.o.Measures() {
		k := measureKey{elementKey{label(m.Deployment), label(m.Element)}, label(m.Name)}
		if m.Counter {
			l.feed(k, m.Pid, totals{m.Value})
		} else {
			gauges[k] += m.Value
		}
	}
	sums := l.finish()
	c.scrapes.mu.Unlock()
	for k, t := range sums {
		counter(ch, elementCounter, t[0], k.deployment, k.element, k.name)
	}
	for k, v := range gauges {
		gauge(ch, elementGauge, v, k.deployment, k.element, k.name)
	}
}

func (c *collector) collectElements(ch chan<- prometheus.Metric) {
	if c.o.Elements == nil {
		return
	}
	type now struct {
		states            map[string]float64
		restarts          float64
		process           bool
		started, resident float64
	}
	elements := map[elementKey]*now{}

	c.scrapes.mu.Lock()
	l := &c.scrapes.cpu
	l.begin()
	for _, e := range c.o.Elements() {
		k := elementKey{label(e.Deployment), label(e.Name)}
		n := elements[k]
		if n == nil {
			n = &now{states: make(map[string]float64, len(states))}
			for _, s := range states {
				n.states[s] = 0
			}
			elements[k] = n
		}
		n.states[label(e.State)]++
		n.restarts += float64(e.Restarts)
		l.keep(k)
		if e.Pid <= 0 {
			continue
		}
		if u, ok := c.o.usage(e.Pid); ok {
			l.feed(k, process{e.Pid, u.begun}, totals{u.cpu})
			n.process = true
			n.started = max(n.started, u.started)
			n.resident += u.resident
		}
	}
	sums := l.finish()
	c.scrapes.mu.Unlock()

	for k, n := range elements {
		for state, v := range n.states {
			gauge(ch, elementState, v, k.deployment, k.element, state)
		}
		counter(ch, elementRestarts, n.restarts, k.deployment, k.element)
		if n.process {
			gauge(ch, elementResident, n.resident, k.deployment, k.element)
		}
		if n.started > 0 {
			gauge(ch, elementStart, n.started, k.deployment, k.element)
		}
		if cpu := sums[k][0]; n.process || cpu > 0 {
			counter(ch, elementCPU, cpu, k.deployment, k.element)
		}
	}
}

// collectTries shows lookups and dials, and forgets the dials to peers that are
// not known any more. Those to nobody by name stay.
func (c *collector) collectTries(ch chan<- prometheus.Metric, known map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, t := range c.lookups {
		t.collect(ch, lookupsTotal, source)
	}
	for peer, t := range c.dials {
		switch {
		case known[peer] || peer == unknown:
			t.missed = false
		case !t.missed: // it may have been dialled just now, and be known in a moment
			t.missed = true
		default:
			delete(c.dials, peer)
			continue
		}
		t.collect(ch, linkDials, peer)
	}
}

func (t *tries) collect(ch chan<- prometheus.Metric, d *prometheus.Desc, name string) {
	counter(ch, d, float64(t.ok), name, resultOK)
	counter(ch, d, float64(t.failed), name, resultError)
}
