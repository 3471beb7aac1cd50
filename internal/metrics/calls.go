package metrics

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/elemental-conduit/conduit"
)

// Side says where an instance stands in a call.
type Side uint8

// The sides. A call of one element of an instance to another of the same
// instance is counted on both.
const (
	Server Side = iota // the call goes to an element of this instance
	Client             // the call is made through this instance's locator
	sides
)

// String returns the side's name in metrics.
func (s Side) String() string {
	if s == Server {
		return "server"
	}
	return "client"
}

// MethodObserver hears of the calls of one method. It is an alias, as [Observer]
// is: a package that calls through the same interface declares it for itself, as
// an alias as well, and then neither has to import the other. All methods may be
// called concurrently, never block and allocate nothing.
type MethodObserver = interface {
	// Begin counts a call as being in flight. What it returns, a moment on a clock
	// of its own, is End's.
	Begin() time.Duration
	// End counts a call out that Begin has counted in. It is called once. code is 0
	// for success, whatever the outcome then says.
	End(begun time.Duration, code conduit.Code, outcome conduit.Outcome)
	// Refuse counts a call that was never begun. It has no duration.
	Refuse(code conduit.Code, outcome conduit.Outcome)
}

// Observer hears of the calls on one side. All methods may be called concurrently
// and never block.
type Observer = interface {
	// Method declares a method, named as the host names it, and returns who hears
	// of its calls, always the same. It is asked once for a method of a process,
	// not at each call.
	Method(deployment, service, method string) MethodObserver
	// Refused counts a call that was refused before its method was found, or
	// because it was not. The names are as the caller wrote them; those that were
	// never declared are not told apart.
	Refused(deployment, service, method string, code conduit.Code, outcome conduit.Outcome)
}

// Calls counts calls. All methods may be called concurrently.
type Calls struct {
	log   *slog.Logger
	epoch time.Time // moments are counted from here
	desc  callDescs

	mu sync.RWMutex
	// catalogs by side. What this instance hosts is in both: it may be called from
	// here, too.
	catalogs [sides]*catalog
	methods  [sides]map[series]*Method
	warned   bool
}

type callDescs struct{ total, duration, inFlight *prometheus.Desc }

func newCalls(log *slog.Logger) *Calls {
	c := &Calls{log: log, epoch: time.Now(), desc: callDescs{
		total: prometheus.NewDesc("conduit_calls_total",
			"Calls that have ended, by how they did. The code of a success is ok.", []string{"side", "deployment", "service", "method", "code", "outcome"}, nil),
		duration: prometheus.NewDesc("conduit_call_duration_seconds",
			"How long calls took from their start to their end; those that were refused before they began are not among them.", []string{"side", "deployment", "service", "method"}, nil),
		inFlight: prometheus.NewDesc("conduit_calls_in_flight", "Calls under way.", []string{"side"}, nil),
	}}
	for s := range sides {
		c.catalogs[s], c.methods[s] = newCatalog(), map[series]*Method{}
	}
	return c
}

// Declare makes methods known that other instances offer, so that calls to them
// are counted by name on the side of the client: what a registry has heard of its
// peers. services has the names of methods by service.
//
// What was declared stays declared, here as with [Calls.Method]. A series that
// vanished with the last process that had it, to begin anew with the next, would
// lose its count at every reload, and there is no end to be had from it: what can
// be declared is limited, and what is not called has no series.
func (c *Calls) Declare(deployment string, services map[string][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for service, methods := range services {
		for _, method := range methods {
			c.declare(Client, series{deployment, service, method})
		}
	}
}

// declare makes a method known to a side. c.mu is held.
func (c *Calls) declare(side Side, s series) {
	room := c.catalogs[side].declare(s, maxDeclared)
	if side == Server {
		// Whatever others declare, they take no room from what is hosted here.
		c.catalogs[Client].declare(s, 2*maxDeclared)
	}
	if !room && !c.warned {
		c.warned = true
		c.log.Warn("metrics: too many deployments, services and methods to tell them apart; calls of further ones are counted as unknown",
			"side", side.String(), "most", maxDeclared)
	}
}

// Method declares a method and returns what counts its calls, always the same.
// Ask once for a method, not at each call.
func (c *Calls) Method(side Side, deployment, service, method string) *Method {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := series{deployment, service, method}
	c.declare(side, s)
	return c.method(side, c.catalogs[side].resolve(s))
}

// Find returns what counts the calls of a method as a caller wrote it: the
// deployment may be an id, or "*". Names that were never declared are not told
// apart, so a caller cannot make a series.
func (c *Calls) Find(side Side, deployment, service, method string) *Method {
	s := series{deployment, service, method}
	c.mu.RLock()
	m := c.methods[side][s]
	if m == nil {
		s = c.catalogs[side].resolve(s)
		m = c.methods[side][s]
	}
	c.mu.RUnlock()
	if m != nil {
		return m
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.method(side, s)
}

// method returns the counters of labels that are bounded. c.mu is held.
func (c *Calls) method(side Side, s series) *Method {
	m := c.methods[side][s]
	if m == nil {
		m = &Method{epoch: c.epoch}
		c.methods[side][s] = m
	}
	return m
}

// Observer returns what hears of the calls on a side.
func (c *Calls) Observer(side Side) Observer { return observer{c, side} }

type observer struct {
	c    *Calls
	side Side
}

func (o observer) Method(deployment, service, method string) MethodObserver {
	return o.c.Method(o.side, deployment, service, method)
}

func (o observer) Refused(deployment, service, method string, code conduit.Code, outcome conduit.Outcome) {
	o.c.Find(o.side, deployment, service, method).Refuse(code, outcome)
}

// Describe implements prometheus.Collector.
func (c *Calls) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.desc.total
	ch <- c.desc.duration
	ch <- c.desc.inFlight
}

// Collect implements prometheus.Collector.
func (c *Calls) Collect(ch chan<- prometheus.Metric) {
	for side := range sides {
		var inFlight uint64
		for s, m := range c.all(side) {
			inFlight += c.collect(ch, []string{side.String(), s.deployment, s.service, s.method}, m)
		}
		ch <- prometheus.MustNewConstMetric(c.desc.inFlight, prometheus.GaugeValue, float64(inFlight), side.String())
	}
}

// all returns the methods of a side; whoever reads their numbers holds up nobody.
func (c *Calls) all(side Side) map[series]*Method {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.methods[side])
}

// collect shows a method and returns how many of its calls are in flight.
func (c *Calls) collect(ch chan<- prometheus.Metric, labels []string, m *Method) (inFlight uint64) {
	ended := uint64(0)
	for code := range m.ended {
		for outcome := range m.ended[code] {
			n := m.ended[code][outcome].Load()
			ended += n
			// Success is shown from the start: a rate needs a zero to begin from.
			if n > 0 || code == 0 && conduit.Outcome(outcome) == conduit.Executed {
				ch <- prometheus.MustNewConstMetric(c.desc.total, prometheus.CounterValue, float64(n),
					append(slices.Clip(labels), codeName(conduit.Code(code)), conduit.Outcome(outcome).String())...)
			}
		}
	}
	if n, seconds, buckets := m.took.read(); n > 0 {
		ch <- prometheus.MustNewConstHistogram(c.desc.duration, n, seconds, buckets, labels...)
	}
	return m.begun.Load() - ended // read last, so it is not the smaller
}

func codeName(code conduit.Code) string {
	if code == 0 {
		return resultOK
	}
	return code.String()
}
