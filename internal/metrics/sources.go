package metrics

import "time"

// Clients is the Link.Peer of all links that are no instance's, as far as is known.
const Clients = "client"

// Link is a link to another instance or to a client, at one moment.
type Link struct {
	// ID tells links apart and is the same whenever the link is returned: the
	// pointer of its connection does. It is compared, kept while the link is
	// there, and never shown.
	ID any
	// Peer is the name of the instance at its other end, or Clients. It must be
	// the same for the life of the link.
	Peer string
	// RTT is the last measured round trip; 0 = none yet.
	RTT time.Duration
	// Since its start: bytes, and packets, each of which carries many frames.
	BytesIn, BytesOut, PacketsIn, PacketsOut uint64
	// Queued is how many calls have something that waits to be written.
	Queued int
}

func (l Link) totals() totals {
	return totals{float64(l.BytesIn), float64(l.BytesOut), float64(l.PacketsIn), float64(l.PacketsOut)}
}

// Peer is an instance that this one knows, at one moment.
type Peer struct {
	Name string
	// Alive: it takes new work. The units of one that is not are not shown.
	Alive bool
	// Units that it has in total, those that it has said are free, and those of
	// them that calls on their way to it will take as far as is known here.
	Units, Available, Debit int64
}

// Budget are this instance's units, at one moment.
type Budget struct {
	Units, Available int64
	Claims           int // how many, not their units
}

// AuthChecks are the checks of credentials since the start, by how they ended: the
// credential is good, it is not (or there is none where one is needed), or nobody
// could tell.
type AuthChecks struct{ OK, Denied, Failed uint64 }

// Element is a program that this instance hosts, at one moment.
type Element struct {
	Deployment string
	// Name is empty until the element has described itself.
	Name string
	// State is one of the host's, such as "ready".
	State string
	// Pid of its process; 0 = it has none.
	Pid int
	// Restarts counts the processes that ended without being asked to.
	Restarts uint64
}

// Measure is what an element counts or measures by itself, at one moment.
type Measure struct {
	Deployment, Element string
	// Name is one of a bounded set.
	Name    string
	Counter bool
	Value   float64
	// Pid is of the process that tells: a counter begins at zero with each.
	Pid int
}

// usage is what a process uses.
type usage struct {
	// begun tells the process from a later one with the same id; its unit is the
	// system's.
	begun    uint64
	started  float64 // seconds since 1970
	resident float64 // bytes
	cpu      float64 // seconds
}
