package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/discovery"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster that consists of a registry's view of it.
type world struct {
	t      *testing.T
	r      *Registry
	static *discovery.Static
	listed []string
	start  func() // called by the first list
	stop   func()

	mu     sync.Mutex
	at     map[string]*instance // by URL
	dials  map[string]int
	links  []*fakeLink
	events []string
}

// instance is one that the world has.
type instance struct {
	w     *world
	id    address.InstanceID
	epoch uint64

	mu     sync.Mutex
	budget *budget.Budget
	info   *conduitv1.InstanceInfo
	asked  int           // how often it told what it hosts
	looked int           // how often it was asked, whatever it told
	mute   bool          // it does not answer
	slow   time.Duration // it takes so long to answer
	silent bool          // it sends no Status by itself
	hosts  []*fakeLink
}

// newWorld starts a registry; it ends with the test.
func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{t: t, at: map[string]*instance{}, dials: map[string]int{}}
	var err error
	if w.static, err = discovery.NewStatic(nil, true); err != nil {
		t.Fatal(err)
	}
	o.Source, o.Dialer = w.static, w
	w.r = New(o)
	w.r.Subscribe(func(e Event) {
		w.events = append(w.events, fmt.Sprintf("%s %s %s", e.Kind, e.Peer.Name, e.Peer.State))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w.start = sync.OnceFunc(func() { go func() { done <- w.r.Run(ctx) }() })
	w.stop = sync.OnceFunc(func() {
		w.start()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, l := range w.links {
			if n := l.releases(); n != 1 {
				t.Errorf("a link to %s was released %d times", l.of.info.GetName(), n)
			}
			l.die()
		}
	})
	t.Cleanup(w.stop)
	return w
}

func url(name string) string { return "ws://" + name + ":7400/cluster/v1" }

// host makes an instance with room for units at a URL of its name, with a
// deployment and element of each name given, which have service S and methods:
// Call, of no units; Costs, of 2; Same, which is idempotent.
func (w *world) host(name string, units int64, deployments ...string) *instance {
	i := &instance{w: w, id: address.UniqueInstanceID(name), epoch: 1, budget: budget.New(units)}
	i.info = &conduitv1.InstanceInfo{Instance: i.id.String(), Name: name, Digest: []byte("1")}
	for _, d := range deployments {
		i.info.Deployments = append(i.info.Deployments, deploymentOf(d, elementOf(d, "ready")))
	}
	w.put(url(name), i)
	return i
}

func deploymentOf(name string, elements ...*conduitv1.ElementInfo) *conduitv1.DeploymentInfo {
	return &conduitv1.DeploymentInfo{Id: address.UniqueDeploymentID(name).String(), Name: name, Elements: elements}
}

func elementOf(name, state string) *conduitv1.ElementInfo {
	return &conduitv1.ElementInfo{Name: name, State: state, Services: []*conduitv1.ServiceDescription{{
		Name: "S", Methods: []*conduitv1.MethodDescription{{Name: "Call"}, {Name: "Costs", Units: 2}, {Name: "Same", Idempotent: true}},
	}}}
}

func (w *world) put(url string, i *instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[url] = i
}

// list says what discovery names, by the names of hosts.
func (w *world) list(names ...string) {
	w.t.Helper()
	w.listed = nil
	for _, n := range names {
		w.listed = append(w.listed, url(n))
	}
	if err := w.static.Reload(w.listed); err != nil {
		w.t.Fatal(err)
	}
	w.start()
	synctest.Wait()
}

func (w *world) Route(a address.Address) Route { return fakeRoute{a} }

type fakeRoute struct{ a address.Address }

func (r fakeRoute) Address() address.Address { return r.a }

var errNobody = errors.New("connection refused")

func (w *world) Connect(ctx context.Context, url string, h Hooks) (Link, error) {
	w.mu.Lock()
	w.dials[url]++
	i := w.at[url]
	w.mu.Unlock()
	if i == nil {
		return nil, errNobody
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := &fakeLink{of: i, hooks: h, ledger: i.budget.Ledger(), done: make(chan struct{}), epoch: i.epoch}
	i.mu.Lock()
	i.hosts = append(i.hosts, l)
	silent := i.silent
	i.mu.Unlock()
	w.mu.Lock()
	w.links = append(w.links, l)
	w.mu.Unlock()
	if !silent {
		l.status()
	}
	return l, nil
}

func (w *world) dialled(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials[url(name)]
}

// fakeLink is a link to an instance of the world.
type fakeLink struct {
	of     *instance
	hooks  Hooks
	ledger *budget.Ledger
	epoch  uint64
	done   chan struct{}

	mu          sync.Mutex
	dead, away  bool
	released    int
	unsent      uint64
	outstanding int
	calls       int
}

func (l *fakeLink) Instance() string { return l.of.id.String() }
func (l *fakeLink) Epoch() uint64    { return l.epoch }

func (l *fakeLink) WhoAreYou(ctx context.Context, digest []byte) (*conduitv1.InstanceInfo, error) {
	i := l.of
	i.mu.Lock()
	i.looked++
	slow, mute, silent := i.slow, i.mute, i.silent
	i.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if !l.Usable() {
		return nil, errors.New("the link is dead")
	}
	if !silent {
		l.status()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if string(digest) == string(i.info.GetDigest()) && len(digest) > 0 {
		return &conduitv1.InstanceInfo{Instance: i.info.GetInstance(), Digest: digest, Unchanged: true}, nil
	}
	i.asked++
	return proto.CloneOf(i.info), nil
}

func (l *fakeLink) Invoke(_ context.Context, _ Route, in *conduit.Invocation) conduit.Exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.outstanding++
	x := &fakeExchange{l: l}
	if l.dead || l.away {
		l.unsent += uint64(in.Units)
		x.err = conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.NotSent, "the link is dead")
		return x
	}
	// The peer judges at once; that it did so is heard with the next Status.
	x.hold, x.err = l.ledger.Judge(int64(in.Units), int64(in.Units))
	return x
}

func (l *fakeLink) Usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dead && !l.away
}

func (l *fakeLink) Unsent() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsent
}

func (l *fakeLink) Outstanding() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outstanding
}

func (l *fakeLink) busy(calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outstanding = calls
}

func (l *fakeLink) Done() <-chan struct{} { return l.done }

func (l *fakeLink) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released++
}

func (l *fakeLink) releases() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

func (l *fakeLink) made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func (l *fakeLink) die() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dead {
		l.dead = true
		close(l.done)
	}
}

func (l *fakeLink) goAway(reason string) {
	l.mu.Lock()
	l.away = true
	l.mu.Unlock()
	l.hooks.GoAway(reason)
}

// status tells the caller of the room that there is.
func (l *fakeLink) status() {
	s := l.ledger.Status()
	l.of.mu.Lock()
	digest := l.of.info.GetDigest()
	l.of.mu.Unlock()
	state := conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
	if s.Cordoned {
		state = conduitv1.InstanceState_INSTANCE_STATE_CORDONED
	}
	l.hooks.Status(&conduitv1.Status{
		Available: uint64(s.Available), Total: uint64(s.Total), Judged: uint64(s.Judged), State: state, Digest: digest,
	})
}

// link returns the instance's latest link.
func (i *instance) link() *fakeLink {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hosts[len(i.hosts)-1]
}

// change changes what the instance hosts, and its digest.
func (i *instance) change(f func(*conduitv1.InstanceInfo)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.info = proto.CloneOf(i.info)
	f(i.info)
	i.info.Digest = append(i.info.Digest, '+')
}

// kill ends the instance as kill -9 does.
func (i *instance) kill() {
	i.w.mu.Lock()
	for url, other := range i.w.at {
		if other == i {
			delete(i.w.at, url)
		}
	}
	i.w.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, l := range i.hosts {
		l.die()
	}
}

// again is the instance started anew, with the same id.
func (i *instance) again() *instance { return i.as(i.id) }

// as is the instance started anew, with an id.
func (i *instance) as(id address.InstanceID) *instance {
	n := &instance{w: i.w, id: id, epoch: i.epoch + 1, budget: budget.New(i.budget.Snapshot().Total), info: proto.CloneOf(i.info)}
	n.info.Instance = id.String()
	i.w.put(url(i.info.GetName()), n)
	return n
}

type fakeExchange struct {
	l    *fakeLink
	err  *conduit.Error
	hold *budget.Reservation
	over bool
}

func (x *fakeExchange) Send(context.Context, []byte) error { return nil }
func (x *fakeExchange) CloseSend() error                   { return nil }
func (x *fakeExchange) Cancel(error)                       { x.end() }

func (x *fakeExchange) end() {
	x.l.mu.Lock()
	defer x.l.mu.Unlock()
	if !x.over {
		x.over = true
		x.l.outstanding--
	}
}

func (x *fakeExchange) Recv(context.Context) (conduit.Message, error) {
	x.end()
	if x.err != nil {
		return conduit.Message{}, x.err
	}
	return conduit.Message{Data: []byte(x.l.of.info.GetName())}, nil
}

// place parses an address.
func (w *world) place(addr string) *Place { return w.r.Place(address.MustParse(addr)) }

// in is the address of the element that host makes for a deployment.
func in(deployment string) string { return "*://" + deployment + "/" + deployment + "/S" }

// on is the same on one instance.
func (i *instance) on(deployment string) string {
	return i.id.String() + strings.TrimPrefix(in(deployment), "*")
}

// pick picks and abandons; it returns the name of the peer.
func (w *world) pick(addr string, q Query) (string, *conduit.Error) {
	w.t.Helper()
	c, err := w.r.Pick(w.t.Context(), w.place(addr), q)
	if err != nil {
		return "", err
	}
	c.Abandon()
	c.Abandon()
	return c.Peer.Name(), nil
}

// picks returns who is picked in many picks, sorted.
func (w *world) picks(addr string, q Query) string {
	w.t.Helper()
	seen := map[string]bool{}
	for range 64 {
		name, err := w.pick(addr, q)
		if err != nil {
			name = err.Reason
		}
		seen[name] = true
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// call picks and calls.
func (w *world) call(addr string, q Query) (string, *conduit.Error) {
	c, err := w.r.Pick(w.t.Context(), w.place(addr), q)
	if err != nil {
		return "", err
	}
	m, failed := c.Invoke(w.t.Context(), &conduit.Invocation{Method: q.Method, Units: q.Units}).Recv(w.t.Context())
	if failed != nil {
		return c.Peer.Name(), conduit.AsError(failed, conduit.OutcomeUnknown)
	}
	return string(m.Data), nil
}

// peers lists what the registry says there is.
func (w *world) peers() string {
	var all []string
	for _, p := range w.r.Peers() {
		name := p.Name
		if name == "" {
			name = "?"
		}
		all = append(all, name+" "+p.State.String())
	}
	return strings.Join(all, ", ")
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func wantError(t *testing.T, err *conduit.Error, code conduit.Code, reason string) {
	t.Helper()
	if err == nil || err.Code != code || err.Reason != reason || err.Outcome != conduit.NotSent {
		t.Errorf("%v, want %v %s, not_sent", err, code, reason)
	}
}
