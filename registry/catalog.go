package registry

import (
	"slices"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Method is what is known of a method before it is called. It is a value.
type Method struct {
	// Known is false if nobody said anything about the method: the rest is zero.
	Known bool
	// Units that a call costs at least.
	Units      uint32
	Idempotent bool
	// Streams says that it yields many messages, Uploads that it takes many.
	Streams, Uploads bool
	Level            conduit.Level
	// Timeout is the method's own limit; 0 = none.
	Timeout time.Duration
}

// value returns what is known; the zero value for nil.
func (m *Method) value() Method {
	if m == nil {
		return Method{}
	}
	return *m
}

func methodOf(m *conduitv1.MethodDescription) *Method {
	s := m.GetShape()
	return &Method{
		Known: true, Units: m.GetUnits(), Idempotent: m.GetIdempotent(), Level: conduit.Level(min(m.GetMinLevel(), 255)),
		Streams: s == conduitv1.Shape_SHAPE_SERVER_STREAM || s == conduitv1.Shape_SHAPE_DUPLEX,
		Uploads: s == conduitv1.Shape_SHAPE_CLIENT_STREAM || s == conduitv1.Shape_SHAPE_DUPLEX,
		Timeout: time.Duration(min(m.GetTimeoutMicros(), 1<<40)) * time.Microsecond,
	}
}

// key is what a call is for, as the index has it: an address without its instance.
// The zero service stands for any, in the question whether there is the element;
// the empty element for any, in the search for a service.
type key struct {
	deployment address.DeploymentID
	any        bool  // deployment *
	ordinal    int32 // -1 = none
	element    string
	service    address.ServiceKey
}

// offer is what an instance has at a key. It is immutable.
type offer struct {
	ready      bool
	state      string // the host's, such as "starting"
	reason     string
	deployment string // id as text
	element    string
	ordinal    int32 // by which the element is found; -1 = by its name alone
	methods    map[string]*Method
	// open: nothing is known of its methods, so any is tried.
	open bool
}

// catalog is what an instance hosts, as it said last. It is immutable.
type catalog struct {
	digest string
	info   *conduitv1.InstanceInfo
	offers map[key]*offer
	// deployments are those that it has, by id.
	deployments map[address.DeploymentID]bool
	// opaque: it does not say what it hosts, so it may be anything.
	opaque bool
}

//nolint:gochecknoglobals // constant values of types that cannot be constants
var (
	anything  = &offer{ready: true, state: "ready", open: true}
	builtinID = address.UniqueDeploymentID(address.BuiltinDeployment)
)

// serving reports whether an element in a state of the host's takes calls.
func serving(state string) bool { return state == "ready" || state == "degraded" }

// newCatalog makes a catalog of an answer, which it keeps.
func newCatalog(info *conduitv1.InstanceInfo, known *shapes) *catalog {
	c := &catalog{
		digest: string(info.GetDigest()), info: info, offers: map[key]*offer{}, deployments: map[address.DeploymentID]bool{},
	}
	c.opaque = c.digest == "" && len(info.GetDeployments()) == 0
	everywhere := map[string][]*entry{} // by element, over all deployments
	services := map[address.ServiceKey]*entry{}
	for _, d := range inOrder(info.GetDeployments()) {
		here := map[string][]*entry{}
		exports := map[address.ServiceKey]*entry{}
		for _, e := range d.elements {
			n := &entry{ElementInfo: e, deployment: d.text}
			name := e.GetName()
			if name == "" || e.GetState() == "disabled" {
				continue
			}
			here[name] = append(here[name], n)
			everywhere[name] = append(everywhere[name], n)
			n.parse(known)
			for service := range n.services {
				firstServing(exports, service, n)
				firstServing(services, service, n)
			}
		}
		if d.id.IsZero() {
			continue // a transient one: scans find it, nobody can name it
		}
		c.deployments[d.id] = true
		for name, entries := range here {
			c.add(key{deployment: d.id, element: name}, entries)
		}
		c.export(key{deployment: d.id, ordinal: -1}, exports, here)
	}
	for name, entries := range everywhere {
		c.add(key{any: true, element: name}, entries)
	}
	c.export(key{any: true, ordinal: -1}, services, everywhere)
	return c
}

// entry is an element on the way into a catalog.
type entry struct {
	*conduitv1.ElementInfo

	deployment string
	services   map[address.ServiceKey]map[string]*Method
}

func (n *entry) parse(known *shapes) {
	n.services = map[address.ServiceKey]map[string]*Method{}
	for _, s := range n.GetServices() {
		k, err := address.ParseServiceKey(s.GetName())
		if err != nil {
			continue // nobody can write an address of it
		}
		n.services[k] = known.of(s)
	}
}

func firstServing(exports map[address.ServiceKey]*entry, service address.ServiceKey, n *entry) {
	if had := exports[service]; had == nil || !serving(had.GetState()) && serving(n.GetState()) {
		exports[service] = n
	}
}

// add adds the elements of one name: each at its ordinal whatever its state, and
// without ordinal the first that serves, as the host finds them.
func (c *catalog) add(k key, entries []*entry) {
	first := entries[0]
	for i, n := range entries {
		k.ordinal = int32(i)
		c.offer(k, n)
		if !serving(first.GetState()) && serving(n.GetState()) {
			first = n
		}
	}
	k.ordinal = -1
	c.offer(k, first)
}

// ordinalOf returns how an element is found among those of its name.
func ordinalOf(n *entry, entries []*entry) int32 {
	at := slices.Index(entries, n)
	first := slices.IndexFunc(entries, func(n *entry) bool { return serving(n.GetState()) })
	if at == max(first, 0) {
		return -1
	}
	return int32(at)
}

// offer adds an element with each of its services, and once without.
func (c *catalog) offer(k key, n *entry) {
	o := offer{
		ready: serving(n.GetState()), state: n.GetState(), reason: n.GetReason(), deployment: n.deployment, element: n.GetName(), ordinal: k.ordinal,
	}
	k.service = address.ServiceKey{}
	c.offers[k] = &o
	for service, methods := range n.services {
		k.service = service
		with := o
		with.methods = methods
		c.offers[k] = &with
	}
}

// export adds where services are found by themselves.
func (c *catalog) export(k key, exports map[address.ServiceKey]*entry, elements map[string][]*entry) {
	for service, n := range exports {
		k.service = service
		c.offers[k] = &offer{
			ready: serving(n.GetState()), state: n.GetState(), reason: n.GetReason(), deployment: n.deployment, element: n.GetName(),
			ordinal: ordinalOf(n, elements[n.GetName()]), methods: n.services[service],
		}
	}
}

// at returns what there is at a key; nil if nothing.
func (c *catalog) at(k key) *offer {
	if o := c.offers[k]; o != nil {
		return o
	}
	if c.opaque || k.deployment == builtinID && !k.any {
		return anything
	}
	return nil
}

// deployment is a deployment on the way into a catalog.
type deployment struct {
	id       address.DeploymentID // zero if it is transient
	text     string
	elements []*conduitv1.ElementInfo
}

// inOrder sorts deployments as a host's scan does: by id, transient ones last.
func inOrder(infos []*conduitv1.DeploymentInfo) []deployment {
	all := make([]deployment, 0, len(infos))
	for _, d := range infos {
		id, err := address.ParseDeploymentID(d.GetId())
		if err != nil {
			id = address.DeploymentID{}
		}
		all = append(all, deployment{id: id, text: d.GetId(), elements: d.GetElements()})
	}
	slices.SortStableFunc(all, func(a, b deployment) int {
		switch {
		case a.id.IsZero() && b.id.IsZero():
			return 0
		case a.id.IsZero():
			return 1
		case b.id.IsZero():
			return -1
		}
		return a.id.Compare(b.id)
	})
	return all
}
