package registry

import (
	"fmt"
	"slices"
	"strings"
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
	came   time.Time // when info did
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
		came:   time.Now(),
		digest: string(info.GetDigest()), info: info, offers: map[key]*offer{}, deployments: map[address.DeploymentID]bool{},
	}
	c.opaque = c.digest == "" && len(info.GetDeployments()) == 0
	everywhere := byName{} // over all deployments
	services := map[address.ServiceKey]*entry{}
	for _, d := range inOrder(info.GetDeployments()) {
		here := byName{}
		exports := map[address.ServiceKey]*entry{}
		for _, e := range d.elements {
			n := &entry{ElementInfo: e, deployment: d.text}
			name := e.GetName()
			if name == "" || e.GetState() == "disabled" {
				continue
			}
			n.inDeployment, n.inAll = here.add(n), everywhere.add(n)
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
		for name, list := range here {
			c.add(key{deployment: d.id, element: name}, list)
		}
		c.export(key{deployment: d.id, ordinal: -1}, exports, func(n *entry) int32 { return here.ordinal(n, n.inDeployment) })
	}
	for name, list := range everywhere {
		c.add(key{any: true, element: name}, list)
	}
	c.export(key{any: true, ordinal: -1}, services, func(n *entry) int32 { return everywhere.ordinal(n, n.inAll) })
	return c
}

// Bounds of what is kept of one instance's answer. A host that keeps to its own
// limits stays far below; beyond them a few bytes of an answer would cost kilobytes
// here, for each of its peers.
const (
	// mostHosted bounds its elements and their services, together.
	mostHosted = 1 << 16
	// mostMethods bounds the methods of all of these.
	mostMethods = 1 << 18
	// maxDigest is the longest digest, in bytes (docs/protocol.md): it is sent back
	// with each question.
	maxDigest = 64
	// maxText is how much is kept of what an instance says of itself: its name, its
	// mode and its version, in bytes. A name that can be configured is far shorter.
	maxText = 256
)

// checkInfo says what of an answer is beyond what is kept of one, and cuts its texts.
func checkInfo(info *conduitv1.InstanceInfo) error {
	if n := len(info.GetDigest()); n > maxDigest {
		return fmt.Errorf("its digest has %d bytes, more than %d", n, maxDigest)
	}
	hosted, methods := len(info.GetDeployments()), 0
	for _, d := range info.GetDeployments() {
		hosted += len(d.GetElements())
		for _, e := range d.GetElements() {
			hosted += len(e.GetServices())
			for _, s := range e.GetServices() {
				methods += len(s.GetMethods())
			}
		}
	}
	if hosted > mostHosted {
		return fmt.Errorf("it says that it has %d deployments, elements and services, more than the %d that one instance can have", hosted, mostHosted)
	}
	if methods > mostMethods {
		return fmt.Errorf("it says that it has %d methods, more than the %d that one instance can have", methods, mostMethods)
	}
	for _, text := range []*string{&info.Name, &info.Mode, &info.Version} {
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText], "") + "..."
		}
	}
	return nil
}

// byName are the elements of each name, in order.
type byName map[string]*namesakes

type namesakes struct {
	entries []*entry
	serving int32 // which of them is the first that serves; -1 = none
}

// add adds an element, and returns where it stands among those of its name.
func (b byName) add(n *entry) int32 {
	list := b[n.GetName()]
	if list == nil {
		list = &namesakes{serving: -1}
		b[n.GetName()] = list
	}
	at := int32(len(list.entries))
	if list.serving < 0 && serving(n.GetState()) {
		list.serving = at
	}
	list.entries = append(list.entries, n)
	return at
}

// ordinal returns how an element that stands at a place is found among those of its
// name: -1 if it is by the name alone.
func (b byName) ordinal(n *entry, at int32) int32 {
	if at == max(b[n.GetName()].serving, 0) {
		return -1
	}
	return at
}

// entry is an element on the way into a catalog.
type entry struct {
	*conduitv1.ElementInfo

	deployment string
	services   map[address.ServiceKey]map[string]*Method
	// Where it stands among the elements of its name, in its deployment and in all.
	inDeployment, inAll int32
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
func (c *catalog) add(k key, list *namesakes) {
	for i, n := range list.entries {
		k.ordinal = int32(i)
		c.offer(k, n)
	}
	k.ordinal = -1
	c.offer(k, list.entries[max(list.serving, 0)])
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

// export adds where services are found by themselves; ordinal says how their element
// is found.
func (c *catalog) export(k key, exports map[address.ServiceKey]*entry, ordinal func(*entry) int32) {
	for service, n := range exports {
		k.service = service
		c.offers[k] = &offer{
			ready: serving(n.GetState()), state: n.GetState(), reason: n.GetReason(), deployment: n.deployment, element: n.GetName(),
			ordinal: ordinal(n), methods: n.services[service],
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
