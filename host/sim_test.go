package host

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/router"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

var (
	simSeeds = flag.Int("sim.seeds", 40, "how many seeds the simulation of clusters runs")          //nolint:gochecknoglobals // a flag
	simFirst = flag.Uint64("sim.first", 1, "the first seed of the simulation of clusters")          //nolint:gochecknoglobals // a flag
	simSeed  = flag.Uint64("sim.seed", 0, "run this one seed of the simulation of clusters, alone") //nolint:gochecknoglobals // a flag
)

// TestSim runs random calls through clusters of two to ten instances with plugins, in
// fake time. Real are the links, the registries, locators, routers, dispatchers, budgets
// and built-in services; simulated are the connections, and the processes of plugins and
// clients. Each seed is one world of its own; a failure names it, and the command that
// runs it again.
//
// What a seed fixes is the story: who calls what when, and what fails. The order of
// goroutines, and which of two equal peers is picked, is chance all the same: a seed that
// failed once may need -count.
func TestSim(t *testing.T) {
	first, n := *simFirst, uint64(*simSeeds)
	if *simSeed != 0 {
		first, n = *simSeed, 1
	}
	sum := map[string]int{}
	var mu sync.Mutex
	t.Run("worlds", func(t *testing.T) {
		for seed := first; seed < first+n; seed++ {
			t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				mu.Lock()
				told := sum["failures"] > 0
				mu.Unlock()
				if told {
					return // one story is enough
				}
				synctest.Test(t, func(t *testing.T) {
					w := newSimWorld(t, seed)
					w.run()
					mu.Lock()
					defer mu.Unlock()
					for what, n := range w.counts {
						sum[what] += n
					}
				})
				if t.Failed() {
					mu.Lock()
					sum["failures"]++
					mu.Unlock()
					t.Logf("once more: go test ./host -run 'TestSim$' -count 20 -sim.seed %d", seed)
				}
			})
		}
	})
	for _, what := range slices.Sorted(maps.Keys(sum)) {
		t.Logf("%-28s %d", what, sum[what])
	}
	if *simSeed != 0 || n < 100 || t.Failed() {
		return
	}
	for _, what := range []string{
		"calls", "ended well", "cancels acknowledged", "reroutes", "swaps", "plugins killed", "instances killed", "drains", "links failed", "restarts", "claims",
		"as not_sent", "as refused", "as unknown", "as executed",
	} {
		if sum[what] == 0 {
			t.Errorf("there were no %s: the test tests too little", what)
		}
	}
}

// simWorld is one cluster, its clients, and what is to happen.
type simWorld struct {
	t     *testing.T
	seed  uint64
	r     *rand.Rand // of who makes the story, before it begins
	quiet bool       // nothing fails: each call comes to its natural end
	// orderly: there are drains, swaps and cordons, with time enough for what is under
	// way, and no other fault. Then no call that was begun is lost, nor any answer.
	orderly bool

	all      sync.WaitGroup // what runs until the end
	stopped  chan struct{}
	failures atomic.Int32 // so many wires may still fail

	mu        sync.Mutex
	instances map[string]*simInstance // by URL: those that are up
	every     []*simInstance          // that ever were
	conns     []*link.Conn
	wires     []*simWire
	memories  []simMemory
	ops       map[string]*simOp
	doors     map[string]*link.Conn // clients, by instance and level
	counts    map[string]int
	chance    *rand.Rand // while it runs
}

type simMemory struct {
	m     *link.Memory
	total int64
}

// simOp is one call of a client, and what it and its handler do.
type simOp struct {
	id         int
	key        string
	method     string
	relayed    bool // through an element that calls another
	level      conduit.Level
	door, to   int // instances; to = -1 is any
	up, down   int // messages
	size       int
	slow       time.Duration
	timeout    time.Duration
	cancelAt   time.Duration
	start      time.Duration
	background bool
	greedy     bool // its caller, and the element that relays it, ask to be more than they are

	// Guarded by simWorld.mu.
	arrivals []simArrival
	ran      int
	acked    bool
	err      error
	done     bool
	lone     bool // its client had no link to call over
	attempt  uint32
}

// simArrival is an Invoke that came to an end of a wire.
type simArrival struct {
	x  *simWire
	id uint64
}

const (
	simService = "sim.Work"
	// simParent is well formed, or the host would drop it with the state, which names the
	// call throughout.
	simParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

func newSimWorld(t *testing.T, seed uint64) *simWorld {
	t.Helper()
	w := &simWorld{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 31)), chance: rand.New(rand.NewPCG(seed, 32)), stopped: make(chan struct{}),
		instances: map[string]*simInstance{}, ops: map[string]*simOp{}, doors: map[string]*link.Conn{}, counts: map[string]int{},
	}
	w.quiet = w.r.IntN(4) == 0
	w.orderly = !w.quiet && w.r.IntN(3) == 0
	if !w.quiet && !w.orderly {
		w.failures.Store(int32(w.r.IntN(8)))
	}
	n := 2 + w.r.IntN(2)
	if w.r.IntN(8) == 0 {
		n = 2 + w.r.IntN(9)
	}
	for i := range n {
		name := fmt.Sprintf("i%d", i)
		w.boot(&simSpec{
			name: name, url: "ws://" + name + ":7400/cluster/v1", id: address.UniqueInstanceID(name),
			work: i == 0 || w.r.IntN(3) > 0, relay: w.r.IntN(2) == 0, total: []int64{20, 1000}[w.r.IntN(2)],
			memory: []int64{4 << 20, 16 << 20, 256 << 20}[w.r.IntN(3)], credit: []uint32{64 << 10, 0}[w.r.IntN(2)],
			local: w.r.IntN(2) == 0, peers: n, concurrency: []int{3, 1024}[w.r.IntN(2)],
		}, uint64(i+1))
	}
	return w
}

func (w *simWorld) bad(format string, args ...any) {
	w.t.Errorf("seed %d: at %s: %s", w.seed, time.Now().Format("05.000"), fmt.Sprintf(format, args...))
}

func (w *simWorld) count(what string, n int) {
	w.mu.Lock()
	w.counts[what] += n
	w.mu.Unlock()
}

// random returns one of 0 to n-1, while the world runs.
func (w *simWorld) random(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chance.IntN(n)
}

// wire makes a connection with its delay and its fate.
func (w *simWorld) wire(name string, kind simKind, into *simInstance) (*simWire, link.Carrier, link.Carrier) {
	x, a, b := newSimWire(w, name, kind, into)
	latency := time.Duration(w.random(3)) * 4 * time.Millisecond
	r := rand.New(rand.NewPCG(w.seed, uint64(w.random(1<<30))))
	x.delay = func() time.Duration { return latency + time.Duration(r.IntN(1000))*time.Microsecond }
	at, what, side, pause := 1+w.random(80), w.random(6), w.random(2), time.Duration(1+w.random(8000))*time.Millisecond
	x.fate = func(x *simWire, n int) {
		if n != at || w.failures.Add(-1) < 0 {
			return
		}
		x.faulty = true
		w.count("links failed", 1)
		switch what {
		case 0, 1:
			x.kill()
		case 2:
			x.hole = [2]bool{true, true}
		case 3: // half-open
			x.hole[side] = true
		default:
			x.frozen[side] = true
			time.AfterFunc(pause, x.thaw)
		}
	}
	w.mu.Lock()
	w.wires = append(w.wires, x)
	w.mu.Unlock()
	return x, a, b
}

func (w *simWorld) link(c link.Carrier, o link.Options) *link.Conn {
	n := link.New(c, o)
	w.mu.Lock()
	w.conns = append(w.conns, n)
	w.mu.Unlock()
	return n
}

// memory makes a memory that is looked at.
func (w *simWorld) memory(total int64) *link.Memory {
	m := link.NewMemory(total)
	w.mu.Lock()
	w.memories = append(w.memories, simMemory{m, total})
	w.mu.Unlock()
	return m
}

// arrived notes an Invoke that was delivered to its end of a wire.
func (w *simWorld) arrived(x *simWire, id uint64, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op := w.ops[key]; op != nil {
		op.arrivals = append(op.arrivals, simArrival{x, id})
	}
}

// acknowledged notes that who made a call has the answer to its Cancel. What an element
// calls in a call is a call of its own, whose end the first does not wait for.
func (w *simWorld) acknowledged(x *simWire, k *simSeen, f *frame.Frame) {
	var m conduitv1.Failure
	if f.Kind == frame.KindFailure {
		if err := proto.Unmarshal(f.Body, &m); err != nil {
			w.bad("a Failure: %v", err)
		}
	}
	if m.GetReason() != conduit.ReasonCanceled {
		return // it ended by itself, or a link was lost: what is beyond that, nobody knows
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	op := w.ops[k.op]
	switch {
	case op == nil:
	case x.kind == simDoor && !op.relayed, x.kind == simPlugin && k.by == 1 && op.method != "Safe": // a relay may run again
		op.acked = true
		w.counts["cancels acknowledged"]++
	}
}

// simSpec is what an instance is, whenever it is up.
type simSpec struct {
	name, url   string
	id          address.InstanceID
	work, relay bool
	total       int64 // units
	memory      int64 // bytes
	credit      uint32
	local       bool // it prefers its own elements
	peers       int
	concurrency int
}

// simInstance is one life of an instance.
type simInstance struct {
	w        *simWorld
	s        *simSpec
	epoch    uint64
	host     *Host
	budget   *budget.Budget
	memory   *link.Memory
	builtins *builtin.Services
	registry *registry.Registry
	router   *router.Router
	state    atomic.Int32 // conduitv1.InstanceState
	news     atomic.Uint64
	closing  atomic.Bool
	gone     chan struct{} // closed when it is taken down
	stop     context.CancelFunc

	mu    sync.Mutex
	links []*link.Conn // that it serves
	wires []*simWire
	down  bool
}

// boot brings an instance up.
func (w *simWorld) boot(s *simSpec, epoch uint64) *simInstance {
	i := &simInstance{w: w, s: s, epoch: epoch, budget: budget.New(s.total), memory: w.memory(s.memory), gone: make(chan struct{})}
	i.state.Store(int32(conduitv1.InstanceState_INSTANCE_STATE_ACTIVE))
	var err error
	i.builtins, err = builtin.New(builtin.Options{
		Instance: s.id, Name: s.name, Mode: "worker", Epoch: epoch, Started: time.Now(), Inventory: i, Lifecycle: i,
		Authorize: func(p link.Peer, _ *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			return p.User, p.Level, nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	i.host, err = New(Options{
		Dir: "-", Private: "-", Instance: s.id, Memory: i.memory, Budget: i.budget, OnChange: i.changed, Concurrency: s.concurrency,
		FromPlugin: func(from Origin, in *link.Incoming) { i.pass(from, in) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for name, there := range map[string]bool{"work": s.work, "relay": s.relay} {
		if there {
			i.deploy(name)
		}
	}
	i.host.rebuild()
	var urls []string
	for n := range s.peers {
		if url := fmt.Sprintf("ws://i%d:7400/cluster/v1", n); url != s.url {
			urls = append(urls, url)
		}
	}
	static, err := discovery.NewStatic(urls, true)
	if err != nil {
		w.t.Fatal(err)
	}
	i.registry = registry.New(registry.Options{Source: static, Dialer: simDialer{i}, Self: s.id, SelfEpoch: epoch})
	i.router = router.New(router.Options{
		Locator: locator.New(locator.Options{Registry: i.registry, Local: simLocal{i}, Self: s.id, PreferLocal: s.local}),
		ConnOf:  func(l registry.Link) *link.Conn { return l.(*simLink).conn }, //nolint:forcetypeassert // simDialer makes no other
	})
	ctx, stop := context.WithCancel(context.Background())
	i.stop = stop
	w.all.Go(func() {
		if err := i.registry.Run(ctx); err != nil {
			w.bad("registry: %v", err)
		}
	})
	w.mu.Lock()
	w.instances[s.url] = i
	w.every = append(w.every, i)
	w.mu.Unlock()
	return i
}

// deploy adds an element whose process runs.
func (i *simInstance) deploy(name string) {
	e := &element{h: i.host, deployment: name, deploymentID: address.UniqueDeploymentID(name), log: hclog.NewNullLogger()}
	e.status = ElementStatus{Name: name, State: Starting, Since: time.Now()}
	i.host.elements[name] = e
	g := i.launch(e)
	e.status.Description = g.desc
	e.swap(g, Ready)
}

func simDescription(name string) *conduitv1.Description {
	method := func(name string, units uint32, level conduit.Level, idempotent, remote bool) *conduitv1.MethodDescription {
		return &conduitv1.MethodDescription{Name: name, Remote: remote, Units: units, MinLevel: conduitv1.Level(level), Idempotent: idempotent}
	}
	user := conduit.User
	return &conduitv1.Description{Element: name, Services: []*conduitv1.ServiceDescription{{Name: simService, Methods: []*conduitv1.MethodDescription{
		method("Unary", 0, user, false, true), method("Safe", 0, user, true, true), method("Heavy", 15, user, false, true),
		method("Stream", 0, user, false, true), method("Upload", 0, user, false, true), method("Duplex", 0, user, false, true),
		method("Fail", 0, user, false, true), method("Wait", 0, user, false, true), method("Claim", 5, user, false, true),
		method("Panic", 0, user, false, true), method("Odd", 0, user, false, true), // of TestReasons
		method("Super", 0, conduit.Superuser, false, true), method("Inner", 0, user, false, false),
	}}}}
}

// launch starts a process of an element: the two ends of its link, and who looks after
// it as supervise does.
func (i *simInstance) launch(e *element) *generation {
	g := newGeneration(e, simDescription(e.deployment), nil)
	x, a, b := i.w.wire(i.s.name+"/"+e.deployment, simPlugin, i)
	i.mu.Lock()
	i.wires = append(i.wires, x)
	i.mu.Unlock()
	p := &simProcess{w: i.w, i: i, name: e.deployment, x: x}
	// As start.go opens it.
	g.conn = i.w.link(a, link.Options{
		Dialer: true, Duplex: true, Handler: elementCalls{h: i.host, g: g},
		Peer:   link.Peer{Name: i.s.id.String(), User: "element:" + e.deployment, Level: conduit.User},
		Hello:  link.Hello{Instance: i.s.id.String(), LinkCredit: i.s.credit},
		Memory: i.memory, DeadAfter: 10 * time.Second, Op: "plugin", LostReason: conduit.ReasonPluginLost,
	})
	p.conn = i.w.link(b, link.Options{Duplex: true, Handler: p, Memory: i.w.memory(16 << 20), Hello: link.Hello{CallCredit: []uint32{4 << 10, 0}[i.w.random(2)], LinkCredit: i.s.credit}})
	i.w.all.Go(func() { i.supervise(e, g, p) })
	return g
}

// supervise ends what a process held once its link is gone, and starts another one if
// the element has none.
func (i *simInstance) supervise(e *element, g *generation, p *simProcess) {
	select {
	case <-g.conn.Done():
	case <-p.conn.Done():
		g.conn.Close(link.CloseGoingAway, "the process ended")
		<-g.conn.Done()
	}
	p.conn.Close(link.CloseGoingAway, "killed")
	p.x.thaw()
	<-p.conn.Done()
	p.handlers.Wait()
	g.drain()
	g.ended()
	e.mu.Lock()
	serves := e.gen == g
	e.old = slices.DeleteFunc(e.old, func(o *generation) bool { return o == g })
	e.mu.Unlock()
	if !serves {
		return
	}
	e.swap(nil, Backoff)
	select {
	case <-time.After(time.Duration(i.w.random(400)) * time.Millisecond):
	case <-i.gone:
		return
	}
	i.mu.Lock()
	down := i.down
	i.mu.Unlock()
	if !down && !i.closing.Load() {
		i.w.count("restarts", 1)
		e.swap(i.launch(e), Ready)
	}
}

// replace is a reload: another process serves, and the old one finishes.
func (i *simInstance) replace(name string, patience time.Duration) {
	e := i.host.elements[name]
	if e == nil || i.closing.Load() {
		return
	}
	next := i.launch(e)
	e.mu.Lock()
	old := e.gen
	if old != nil {
		e.old = append(e.old, old)
	}
	e.mu.Unlock()
	e.swap(next, Ready)
	if old == nil {
		return
	}
	i.w.count("swaps", 1)
	old.drain()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-old.idle:
	case <-old.conn.Done():
	case <-late.C:
		e.endCalls(old, conduit.ReasonReloaded)
		select { // claims are waited for
		case <-old.idle:
		case <-old.conn.Done():
		case <-i.gone:
		case <-i.w.stopped:
		}
	}
	old.conn.Close(link.CloseGoingAway, conduit.ReasonDraining)
}

// crash kills the process of an element.
func (i *simInstance) crash(name string) {
	e := i.host.elements[name]
	if e == nil {
		return
	}
	for _, g := range e.generations() {
		i.w.count("plugins killed", 1)
		i.mu.Lock()
		wires := slices.Clone(i.wires)
		i.mu.Unlock()
		for _, x := range wires {
			if x.kind == simPlugin && x.name == i.s.name+"/"+name {
				x.cut()
			}
		}
		_ = g
	}
}

// State implements builtin.Lifecycle.
func (i *simInstance) State() conduitv1.InstanceState {
	return conduitv1.InstanceState(i.state.Load())
}

// Drain implements builtin.Lifecycle.
func (i *simInstance) Drain(string, string) {}

// Deployments implements builtin.Inventory.
func (i *simInstance) Deployments() []*conduitv1.DeploymentInfo {
	var list []*conduitv1.DeploymentInfo
	i.host.mu.Lock()
	elements := i.host.list()
	i.host.mu.Unlock()
	for _, e := range elements {
		e.mu.Lock()
		info := &conduitv1.ElementInfo{Name: e.status.Name, State: string(e.status.State), Services: e.status.Description.GetServices()}
		e.mu.Unlock()
		list = append(list, &conduitv1.DeploymentInfo{Id: e.deploymentID.String(), Name: e.deployment, Elements: []*conduitv1.ElementInfo{info}})
	}
	slices.SortFunc(list, func(a, b *conduitv1.DeploymentInfo) int { return bytes.Compare([]byte(a.GetId()), []byte(b.GetId())) })
	return list
}

// changed tells peers that something is other than it was.
func (i *simInstance) changed() {
	i.news.Add(1)
	i.mu.Lock()
	links := slices.Clone(i.links)
	i.mu.Unlock()
	for _, l := range links {
		l.StatusChanged()
	}
}

// simReporter is cmd/conduit-host's.
type simReporter struct {
	*budget.Ledger
	i *simInstance
}

func (r simReporter) Version() uint64 { return r.i.budget.Version() + r.i.news.Load() }

func (r simReporter) Status() link.Status {
	u := r.Ledger.Status()
	state := r.i.State()
	if u.Cordoned && state == conduitv1.InstanceState_INSTANCE_STATE_ACTIVE {
		state = conduitv1.InstanceState_INSTANCE_STATE_CORDONED
	}
	return link.Status{Available: u.Available, Total: u.Total, Judged: u.Judged, InFlight: r.i.host.InFlight(), State: state, Digest: strconv.AppendUint(nil, r.i.news.Load(), 10)}
}

// accept opens the instance's end of a link that somebody makes to it; nil = it takes none.
func (i *simInstance) accept(c link.Carrier, x *simWire, peer link.Peer, serve func(*link.Incoming)) *link.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down || i.state.Load() == int32(conduitv1.InstanceState_INSTANCE_STATE_DRAINING) {
		return nil
	}
	o := link.Options{Handler: simHandler(serve), Memory: i.memory, Peer: peer, Hello: link.Hello{Instance: i.s.id.String(), Epoch: i.epoch, LinkCredit: i.s.credit}}
	if peer.System {
		o.Reporter = simReporter{i.budget.Ledger(), i}
	}
	n := i.w.link(c, o)
	i.links = append(i.links, n)
	i.wires = append(i.wires, x)
	return n
}

type simHandler func(*link.Incoming)

// Handle implements link.Handler.
func (f simHandler) Handle(in *link.Incoming) { f(in) }

// cluster serves what other instances call: its own elements, and no others.
func (i *simInstance) cluster(in *link.Incoming) {
	inv := in.Invoke
	if i.host.isBuiltin(inv.Deployment) {
		i.builtins.Door(builtin.Cluster, nil).Handle(in)
		return
	}
	p := Principal{Level: conduit.Anonymous}
	if inv.HasAs && inv.As.Kind == frame.AsVouched {
		p = Principal{User: string(inv.As.Name), Level: min(conduit.Level(inv.As.Level), conduit.Superuser)}
	}
	from := Origin{Principal: p, Peer: in.Peer().Name}
	for _, name := range inv.Chain {
		from.Chain = append(from.Chain, string(name))
	}
	if err := i.host.Take(from, in, inv); err != nil {
		in.Refuse(err)
	}
}

// door serves a client: its calls go wherever the locator says.
func (i *simInstance) door(in *link.Incoming) {
	i.pass(Origin{Principal: Principal{User: in.Peer().User, Level: in.Peer().Level}}, in)
}

func (i *simInstance) pass(from Origin, in *link.Incoming) {
	i.router.Pass(in, router.Door{
		Here:   func(c router.Call, inv *frame.Invoke) *conduit.Error { return i.host.Take(from, c, inv) },
		ToPeer: from.ToPeer,
	})
}

// simLocal is an instance's own elements as its locator sees them.
type simLocal struct{ i *simInstance }

func (l simLocal) At(address.Address) conduit.Invoker { return simNowhere{} } // a router passes calls on below Invokers
func (l simLocal) Look(a address.Address, method string, units uint32) locator.Standing {
	return locator.Standing(l.i.host.Look(a, method, units))
}
func (l simLocal) Nodes(a address.Address) []string { return l.i.host.Nodes(a) }
func (l simLocal) FindService(d string, s address.ServiceKey) (address.Address, bool) {
	return l.i.host.FindService(d, s)
}

type simNowhere struct{}

func (simNowhere) Invoke(context.Context, *conduit.Invocation) conduit.Exchange {
	return conduit.FailedExchange(conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.NotSent, "not by this way"))
}

// simDialer makes an instance's links to others.
type simDialer struct{ i *simInstance }

// Route implements registry.Dialer.
func (simDialer) Route(a address.Address) registry.Route { return link.NewRoute(a) }

// Connect implements registry.Dialer.
func (d simDialer) Connect(ctx context.Context, url string, h registry.Hooks) (registry.Link, error) {
	w := d.i.w
	w.mu.Lock()
	to := w.instances[url]
	w.mu.Unlock()
	no := conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent, "nobody is there")
	if to == nil {
		return nil, no
	}
	x, a, b := w.wire(d.i.s.name+"->"+to.s.name, simCluster, to)
	far := to.accept(b, x, link.Peer{Name: d.i.s.id.String(), User: "instance", Level: conduit.System, System: true}, to.cluster)
	if far == nil {
		return nil, no
	}
	d.i.mu.Lock()
	d.i.wires = append(d.i.wires, x)
	d.i.mu.Unlock()
	near := w.link(a, link.Options{
		Dialer: true, Memory: d.i.memory, Op: "cluster", Peer: link.Peer{Name: to.s.id.String()},
		Hello: link.Hello{Instance: d.i.s.id.String(), Epoch: d.i.epoch, LinkCredit: d.i.s.credit},
		OnStatus: func(body []byte) {
			m := &conduitv1.Status{}
			if err := proto.Unmarshal(body, m); err != nil {
				w.bad("a Status: %v", err)
			}
			h.Status(m)
		},
		OnGoAway: func(reason string, _ time.Duration) { h.GoAway(reason) },
	})
	if err := near.Ready(ctx); err != nil {
		near.Close(link.CloseDone, "")
		return nil, err
	}
	return &simLink{conn: near, w: w}, nil
}

// simLink is internal/peerlink's, over a simulated connection.
type simLink struct {
	conn *link.Conn
	w    *simWorld
}

func (l *simLink) Instance() string { return l.conn.Theirs().Instance }
func (l *simLink) Epoch() uint64    { return l.conn.Theirs().Epoch }

func (l *simLink) WhoAreYou(ctx context.Context, digest []byte) (*conduitv1.InstanceInfo, error) {
	return conduit.Call[*conduitv1.InstanceInfo](ctx, simWho{l}, "WhoAreYou", &conduitv1.WhoAreYouRequest{Digest: digest}, conduit.WithAs(conduit.AsWhom{Kind: conduit.AsLink}))
}

type simWho struct{ l *simLink }

func (s simWho) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return s.l.conn.Invoke(ctx, link.NewRoute(address.MustParse("*://conduit/conduit/conduit.v1.Instance")), in)
}

func (l *simLink) Invoke(ctx context.Context, r registry.Route, in *conduit.Invocation) conduit.Exchange {
	return l.conn.Invoke(ctx, link.NewRoute(r.Address()), in)
}
func (l *simLink) Usable() bool          { return l.conn.Usable() }
func (l *simLink) Unsent() uint64        { return l.conn.Unsent() }
func (l *simLink) Outstanding() int      { return l.conn.Outstanding() }
func (l *simLink) Done() <-chan struct{} { return l.conn.Done() }
func (l *simLink) Release()              { l.conn.CloseWhenIdle() }

// drain ends an instance in order, as cmd/conduit-host does: no units, no new calls,
// those under way finish or are cancelled, and then it is gone.
func (i *simInstance) drain(delay, patience time.Duration) {
	i.mu.Lock()
	if i.down || i.closing.Load() {
		i.mu.Unlock()
		return
	}
	i.closing.Store(true)
	i.mu.Unlock()
	i.w.count("drains", 1)
	i.host.Cordon(true)
	i.changed()
	time.Sleep(delay)
	i.mu.Lock()
	i.state.Store(int32(conduitv1.InstanceState_INSTANCE_STATE_DRAINING))
	links := slices.Clone(i.links)
	i.mu.Unlock()
	i.changed()
	why := &conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining, Retryable: true, Message: "the instance is draining"}
	for _, l := range links {
		l.GoAway(conduit.ReasonDraining, time.Second)
		l.CancelBackground(why)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, l := range links {
		_ = l.WaitServed(ctx) // what is left is cancelled
	}
	_ = i.host.Drain(ctx)
	for _, l := range links {
		l.CancelIncoming(why)
	}
	time.Sleep(500 * time.Millisecond)
	i.takeDown("drained")
}

// takeDown ends an instance: its links close, its plugins end.
func (i *simInstance) takeDown(why string) {
	i.mu.Lock()
	if i.down {
		i.mu.Unlock()
		return
	}
	i.down = true
	close(i.gone)
	links := slices.Clone(i.links)
	i.mu.Unlock()
	i.w.mu.Lock()
	if i.w.instances[i.s.url] == i {
		delete(i.w.instances, i.s.url)
	}
	i.w.mu.Unlock()
	i.host.draining.Store(true)
	for _, l := range links {
		l.Close(link.CloseGoingAway, why)
	}
	i.stop()
	i.router.Close()
	i.host.mu.Lock()
	elements := i.host.list()
	i.host.mu.Unlock()
	for _, e := range elements {
		for _, g := range e.generations() {
			g.conn.Close(link.CloseGoingAway, why)
		}
	}
}

// kill ends an instance as SIGKILL does: all its connections end at once.
func (i *simInstance) kill() {
	i.w.count("instances killed", 1)
	i.mu.Lock()
	wires := slices.Clone(i.wires)
	i.mu.Unlock()
	for _, x := range wires {
		x.cut()
	}
	i.takeDown("killed")
}

// simProcess is the plugin's side of a link.
type simProcess struct {
	w        *simWorld
	i        *simInstance
	name     string
	x        *simWire
	conn     *link.Conn
	handlers sync.WaitGroup
}

// Handle implements link.Handler.
func (p *simProcess) Handle(in *link.Incoming) {
	inv := in.Invoke
	p.w.mu.Lock()
	op := p.w.ops[string(inv.TraceState)]
	p.w.mu.Unlock()
	if op == nil {
		p.w.bad("%s: a call %q that nobody made", p.x.name, inv.TraceState)
		in.Refuse(conduit.Errorf(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "who?"))
		return
	}
	if !inv.HasCaller || conduit.Level(inv.Caller.Level) > op.level {
		p.w.bad("call %v runs as level %d", op, inv.Caller.Level)
	}
	p.handlers.Add(1)
	in.Serve(func(ctx context.Context, c *link.ServerCall) error {
		defer p.handlers.Done()
		p.began(ctx, op, c)
		if p.name == "relay" {
			return p.relay(ctx, c, op)
		}
		return p.work(ctx, c, op)
	})
}

// began judges that a call is being worked on.
func (p *simProcess) began(ctx context.Context, op *simOp, c *link.ServerCall) {
	w := p.w
	if _, ok := ctx.Deadline(); !ok && op.timeout > 0 {
		w.bad("call %s runs without the deadline of its caller", op.key)
	}
	p.x.mu.Lock()
	if k := p.x.calls[c.ID()]; k == nil || k.ended {
		w.bad("call %s is started after its end at its plugin", op.key)
	}
	p.x.mu.Unlock()
	w.mu.Lock()
	if p.name == "work" {
		op.ran++
	}
	op.attempt = max(op.attempt, c.Invoke().Caller.Attempt)
	acked, arrivals := op.acked, slices.Clone(op.arrivals)
	w.mu.Unlock()
	if acked && p.name == "work" {
		w.bad("call %s is started after its cancel was acknowledged", op.key)
	}
	if op.method == "Super" && op.level < conduit.Superuser || op.method == "Inner" {
		w.bad("call %s of %s runs, and may not", op.key, op.method)
	}
	// It came to this instance by a call that was to be started.
	came, below := 0, 0
	for _, a := range arrivals {
		if a.x.into != p.i {
			continue
		}
		a.x.mu.Lock()
		toPlugin := a.x.kind == simPlugin && a.x.calls[a.id].by == 0
		last := a.x.away[1]
		a.x.mu.Unlock()
		if toPlugin {
			continue
		}
		came++
		if last < 0 || int64(a.id) <= last {
			below++
		}
	}
	if came > 0 && below == 0 {
		w.bad("call %s is started above last_call", op.key)
	}
}

// String says what an op is about, once it is over.
func (op *simOp) String() string {
	return fmt.Sprintf("%s {%s relayed %v, level %s, door i%d to i%d, up %d down %d of %d bytes, slow %s timeout %s cancel %s start %s background %v greedy %v; ran %d acked %v attempt %d: %v}",
		op.key, op.method, op.relayed, op.level, op.door, op.to, op.up, op.down, op.size, op.slow, op.timeout, op.cancelAt, op.start, op.background, op.greedy, op.ran, op.acked, op.attempt, op.err)
}

func (op *simOp) payload(n, dir int) []byte {
	at := (op.id*31 + n*7 + dir*3) % 256
	return simBytes[at : at+op.size/(1+n%3)]
}

// simBytes is what messages are cut from: no two bytes that are less than 251 apart are
// alike, and no two kilobytes are.
var simBytes = func() []byte { //nolint:gochecknoglobals // a constant
	b := make([]byte, 300_000+256)
	for i := range b {
		b[i] = byte(i%251 + i>>10)
	}
	return b
}()

func (p *simProcess) nap(ctx context.Context, op *simOp) {
	if op.slow > 0 {
		select {
		case <-time.After(op.slow):
		case <-ctx.Done():
		}
	}
}

// work is the element that does what the op says.
func (p *simProcess) work(ctx context.Context, c *link.ServerCall, op *simOp) error {
	recv := func(n int) error {
		m, err := c.Recv(ctx)
		if err == nil && !bytes.Equal(m.Data, op.payload(n, 0)) {
			p.w.bad("call %v: message %d up is wrong: %d bytes", op, n, len(m.Data))
		}
		return err
	}
	if err := recv(0); err != nil {
		return err
	}
	p.nap(ctx, op)
	switch op.method {
	case "Fail":
		return conduit.Errorf(conduit.NotFound, "no_such_thing", conduit.Executed, "as asked")
	case "Wait":
		<-ctx.Done()
		return context.Cause(ctx)
	case "Panic":
		panic("as asked")
	case "Odd":
		return errors.New("something went wrong")
	case "Stream":
		for n := range op.down - 1 {
			if err := c.Send(ctx, conduit.Message{Data: op.payload(n, 1)}); err != nil {
				return err
			}
			p.nap(ctx, op)
		}
	case "Upload":
		for n := 1; ; n++ {
			err := recv(n)
			if errors.Is(err, io.EOF) {
				if n != op.up {
					p.w.bad("call %v: %d messages came up", op, n)
				}
				break
			}
			if err != nil {
				return err
			}
		}
	case "Duplex":
		for n := range op.down - 1 {
			if err := c.Send(ctx, conduit.Message{Data: op.payload(n, 1)}); err != nil {
				return err
			}
			if err := recv(n + 1); err != nil {
				return err
			}
		}
	case "Claim":
		p.claim(c, op)
	}
	c.Return(conduit.Message{Data: op.payload(op.down-1, 1)})
	return nil
}

// claim holds units beyond the end of the call, for a while.
func (p *simProcess) claim(c *link.ServerCall, op *simOp) {
	request, err := proto.Marshal(&conduitv1.ClaimRequest{Units: 5})
	if err != nil {
		p.w.bad("%v", err)
	}
	x := p.conn.Invoke(context.Background(), link.NewRoute(address.MustParse(pluginlink.HostAddress)), &conduit.Invocation{
		Method: pluginlink.ClaimMethod, ContentType: conduit.ContentProto, Accept: conduit.ContentProto, Request: request, HasRequest: true,
		Last: true, Background: true, Streaming: true, Parent: c.ID(),
	})
	if _, err := x.Recv(context.Background()); err != nil {
		x.Cancel(nil)
		return
	}
	p.w.count("claims", 1)
	hold := 3 * op.slow
	p.handlers.Go(func() {
		stop := time.AfterFunc(hold, func() { x.Cancel(nil) })
		defer stop.Stop()
		_, err := x.Recv(context.Background())
		for err == nil {
			_, err = x.Recv(context.Background())
		}
	})
}

// relay is the element that calls another one in each of its calls.
func (p *simProcess) relay(ctx context.Context, c *link.ServerCall, op *simOp) error {
	m, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	as := conduit.AsWhom{}
	if op.greedy { // it has no right of its own choice: only what the call it is in has
		as = conduit.AsWhom{Kind: conduit.AsVouched, Name: "root", Level: conduit.System}
		if op.id%2 == 0 {
			as = conduit.AsWhom{Kind: conduit.AsCaller, Name: "root", Level: conduit.System}
		}
	}
	in := &conduit.Invocation{
		As: as, Method: op.method, ContentType: conduit.ContentBytes, Request: m.Data, HasRequest: true, Last: op.up == 1, Streaming: op.up > 1 || op.down > 1,
		Parent: c.ID(), TraceParent: simParent, TraceState: op.key,
	}
	x := p.conn.Invoke(ctx, link.NewRoute(address.MustParse("*://work/work/"+simService)), in)
	defer x.Cancel(nil)
	var up sync.WaitGroup
	defer up.Wait()
	if op.up > 1 {
		up.Go(func() {
			for {
				m, err := c.Recv(ctx)
				if errors.Is(err, io.EOF) {
					_ = x.CloseSend()
					return
				}
				if err != nil || x.Send(ctx, m.Data) != nil {
					return
				}
			}
		})
	}
	var before *conduit.Message
	for {
		m, err := x.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if before != nil {
			if err := c.Send(ctx, *before); err != nil {
				return err
			}
		}
		before = &m
	}
	if before != nil {
		c.Return(*before)
	}
	return nil
}

// op makes up a call.
func (w *simWorld) op(id int) *simOp {
	r := w.r
	methods := []string{"Unary", "Unary", "Safe", "Safe", "Heavy", "Stream", "Upload", "Duplex", "Fail", "Wait", "Claim", "Super", "Inner"}
	sizes := []int{0, 1, 900, 4096, 16_000, 40_000, 65_536, 131_072, 300_000}
	op := &simOp{
		id: id, key: fmt.Sprintf("op=%d", id), method: methods[r.IntN(len(methods))], relayed: r.IntN(3) == 0, level: conduit.User,
		door: r.IntN(len(w.instances)), to: -1, up: 1, down: 1, size: sizes[r.IntN(len(sizes))], start: time.Duration(300+r.IntN(700)) * time.Millisecond,
	}
	if r.IntN(3) == 0 {
		op.level = conduit.Superuser
	}
	if r.IntN(4) == 0 {
		op.to = r.IntN(len(w.instances))
	}
	many := 1 + r.IntN(8)
	if op.size > 50_000 {
		many = 1 + r.IntN(3)
	}
	switch op.method {
	case "Stream":
		op.down = many
	case "Upload":
		op.up = many
	case "Duplex":
		op.up, op.down = many, many
	}
	if r.IntN(2) == 0 {
		op.slow = time.Duration(r.IntN(80)) * time.Millisecond
	}
	if r.IntN(5) == 0 || op.method == "Wait" {
		op.timeout = time.Duration(1+r.IntN(600)) * time.Millisecond
	}
	if r.IntN(4) == 0 {
		op.cancelAt = time.Duration(r.IntN(120)) * time.Millisecond
	}
	op.background = r.IntN(8) == 0
	op.greedy = r.IntN(6) == 0
	return op
}

// run tells the story, and judges it.
func (w *simWorld) run() {
	n := 5 + w.r.IntN(20)
	var calls sync.WaitGroup
	names := len(w.instances)
	list := make([]*simOp, n)
	w.mu.Lock() // instances link to each other already
	for id := range n {
		list[id] = w.op(id)
		w.ops[list[id].key] = list[id]
	}
	w.mu.Unlock()
	for _, op := range list {
		calls.Go(func() {
			time.Sleep(op.start)
			w.call(op)
		})
	}
	var faults sync.WaitGroup
	if !w.quiet {
		events := w.r.IntN(5)
		if w.orderly {
			events = 2 + w.r.IntN(3)
		}
		for range events {
			at, who, what, name := time.Duration(250+w.r.IntN(900))*time.Millisecond, w.r.IntN(names), w.r.IntN(7), []string{"work", "relay"}[w.r.IntN(2)]
			pause := time.Duration(w.r.IntN(1500)) * time.Millisecond
			if w.orderly {
				what, pause = []int{2, 2, 5, 5, 5, 6}[w.r.IntN(6)], simEnough
			}
			faults.Go(func() {
				time.Sleep(at)
				w.happen(who, what, name, pause)
			})
		}
	}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { w.watch(over) })
	calls.Wait()
	faults.Wait()
	close(over)
	watch.Wait()
	time.Sleep(30 * time.Second) // handlers end, and claims; who serves finds out within 23 s that a caller is gone
	synctest.Wait()
	w.rest()
	close(w.stopped)
	w.end()
	w.verdict()
	if w.t.Failed() {
		for _, key := range slices.Sorted(maps.Keys(w.ops)) {
			w.t.Logf("%v", w.ops[key])
		}
	}
}

// happen is one thing that goes wrong, or that an operator does.
func (w *simWorld) happen(who, what int, name string, pause time.Duration) {
	url := fmt.Sprintf("ws://i%d:7400/cluster/v1", who)
	w.mu.Lock()
	i := w.instances[url]
	w.mu.Unlock()
	if i == nil {
		return
	}
	switch what {
	case 0, 1:
		i.crash(name)
	case 2, 3:
		i.replace(name, pause)
	case 4:
		i.kill()
		time.Sleep(pause)
		w.boot(i.s, i.epoch+100)
	case 5:
		i.drain(min(pause/4, time.Duration(w.random(400))*time.Millisecond), pause)
		w.boot(i.s, i.epoch+100)
	case 6:
		i.host.Cordon(true)
		time.Sleep(min(pause, 1500*time.Millisecond))
		i.host.Cordon(false)
	}
}

// simEnough is how long drains and swaps wait in an orderly world: no call takes so long.
const simEnough = time.Minute

// client returns a link to an instance's door.
func (w *simWorld) client(n int, level conduit.Level) *link.Conn {
	url := fmt.Sprintf("ws://i%d:7400/cluster/v1", n)
	key := fmt.Sprintf("%s %s", url, level)
	w.mu.Lock()
	c, i := w.doors[key], w.instances[url]
	w.mu.Unlock()
	if c != nil && c.Usable() {
		return c
	}
	if i == nil {
		return nil
	}
	x, a, b := w.wire(fmt.Sprintf("client->%s (%s)", i.s.name, level), simDoor, i)
	if i.accept(b, x, link.Peer{Name: "client", User: "ada", Level: level}, i.door) == nil {
		return nil
	}
	c = w.link(a, link.Options{Dialer: true, Memory: w.memory(64 << 20), Op: "client"})
	w.mu.Lock()
	w.doors[key] = c
	w.mu.Unlock()
	return c
}

// patience is how long a call without a limit of its own may take; one that meets it is
// stuck. The longest are those whose peer is found dead while the caller has to wait
// for another attempt.
const simPatience = 3 * time.Minute

// call makes one call and holds what comes to what was sent.
func (w *simWorld) call(op *simOp) {
	c := w.client(op.door, op.level)
	if c == nil {
		w.mu.Lock()
		op.lone, op.done = true, true
		w.mu.Unlock()
		return
	}
	guard, free := context.WithTimeout(context.Background(), simPatience)
	defer free()
	ctx, deadline := guard, time.Time{}
	if op.timeout > 0 {
		deadline = time.Now().Add(op.timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(guard, deadline)
		defer cancel()
	}
	instance := "*"
	if op.to >= 0 {
		instance = address.UniqueInstanceID(fmt.Sprintf("i%d", op.to)).String()
	}
	name := "work"
	if op.relayed {
		name = "relay"
	}
	as := conduit.AsWhom{}
	if op.greedy {
		as = conduit.AsWhom{Kind: conduit.AsVouched, Name: "root", Level: conduit.System}
	}
	x := c.Invoke(ctx, link.NewRoute(address.MustParse(instance+"://"+name+"/"+name+"/"+simService)), &conduit.Invocation{
		As: as, Method: op.method, ContentType: conduit.ContentBytes, Request: op.payload(0, 0), HasRequest: true, Last: op.up == 1,
		Streaming: op.up > 1 || op.down > 1, Background: op.background, TraceParent: simParent, TraceState: op.key,
	})
	if op.cancelAt > 0 {
		stop := time.AfterFunc(op.cancelAt, func() { x.Cancel(context.Canceled) })
		defer stop.Stop()
	}
	var sender sync.WaitGroup
	if op.up > 1 {
		sender.Go(func() {
			for n := 1; n < op.up; n++ {
				if err := x.Send(ctx, op.payload(n, 0)); err != nil {
					return
				}
			}
			_ = x.CloseSend()
		})
	}
	got := 0
	m, err := x.Recv(ctx)
	for ; err == nil; m, err = x.Recv(ctx) {
		if got >= op.down || !bytes.Equal(m.Data, op.payload(got, 1)) {
			w.bad("call %v: message %d down is wrong: %d bytes", op, got, len(m.Data))
		}
		got++
	}
	x.Cancel(errors.New("too late")) // it has ended, and as what it has ended
	if _, again := x.Recv(ctx); again == nil || again.Error() != err.Error() {
		w.bad("call %v ended with %v, and then with %v", op, err, again)
	}
	if !deadline.IsZero() && time.Since(deadline) > time.Millisecond {
		w.bad("call %v ended %s after its deadline", op, time.Since(deadline))
	}
	if guard.Err() != nil {
		w.bad("call %v is stuck", op)
	}
	sender.Wait()
	if errors.Is(err, io.EOF) {
		if err = nil; got != op.down {
			w.bad("call %v succeeded with %d messages", op, got)
		}
	}
	w.mu.Lock()
	op.err, op.done = err, true
	w.mu.Unlock()
}

// watch looks at what is held, now and then.
func (w *simWorld) watch(over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
		w.mu.Lock()
		memories, instances := slices.Clone(w.memories), slices.Clone(w.every)
		w.mu.Unlock()
		for n, m := range memories {
			if windows, held := m.m.Usage(); windows < 0 || held < 0 || windows+held > m.total {
				w.bad("memory %d of %d bytes: %d are promised, %d held", n, m.total, windows, held)
			}
		}
		for _, i := range instances {
			if b := i.budget.Snapshot(); b.Available < 0 || b.Available > b.Total {
				w.bad("%s: %+v", i.s.name, b)
			}
		}
	}
}

// rest judges the world when all calls have ended, and nothing has been taken down for that.
func (w *simWorld) rest() {
	w.mu.Lock()
	instances, wires := slices.Clone(w.every), slices.Clone(w.wires)
	w.mu.Unlock()
	for _, i := range instances {
		i.host.mu.Lock()
		elements := i.host.list()
		i.host.mu.Unlock()
		for _, e := range elements {
			for _, g := range e.generations() {
				if g.calls() != 0 || g.claims() != 0 {
					w.bad("%s: %d calls and %d claims are left at %s", i.s.name, g.calls(), g.claims(), e.deployment)
				}
				for _, s := range g.callers.slots {
					if s.live {
						w.bad("%s: a caller is left at %s: %+v", i.s.name, e.deployment, s.c.Principal)
					}
				}
			}
			if n, m := e.inflight.Load(), e.claims.Load(); n != 0 || m != 0 {
				w.bad("%s: %s has %d calls in flight and %d claims", i.s.name, e.deployment, n, m)
			}
		}
		if b := i.budget.Snapshot(); b.Available != b.Total {
			w.bad("%s: units are left: %+v", i.s.name, b)
		}
	}
	for _, x := range wires {
		x.rest()
	}
}

// end takes everything down, after which nothing is left.
func (w *simWorld) end() {
	w.mu.Lock()
	instances := slices.Clone(w.every)
	w.mu.Unlock()
	for _, i := range instances {
		i.takeDown("over")
	}
	w.mu.Lock()
	conns, wires := slices.Clone(w.conns), slices.Clone(w.wires)
	w.mu.Unlock()
	for _, c := range conns {
		c.Close(link.CloseDone, "over")
	}
	for _, x := range wires {
		x.thaw()
	}
	w.all.Wait()
	for _, c := range conns {
		<-c.Done()
		if out, in := c.Calls(); out != 0 || in != 0 {
			w.bad("a link that is over has calls: %d out, %d in", out, in)
		}
	}
	time.Sleep(10 * time.Second) // thaws that are still to come
	synctest.Wait()
	for n, m := range w.memories {
		if windows, held := m.m.Usage(); windows != 0 || held != 0 {
			w.bad("memory %d: %d bytes are still promised, %d held", n, windows, held)
		}
	}
}

// verdict compares what callers were told with what ran.
func (w *simWorld) verdict() {
	for _, op := range w.ops {
		w.counts["calls"]++
		if op.attempt > 0 {
			w.counts["reroutes"]++
		}
		if !op.done {
			w.bad("call %v has no outcome", op)
			continue
		}
		most := 1
		if op.method == "Safe" { // may be tried three times; a relay's is a call of its own
			if most = locator.DefaultAttempts; op.relayed {
				most *= locator.DefaultAttempts
			}
		}
		if op.ran > most {
			w.bad("call %v ran %d times", op, op.ran)
		}
		if op.lone {
			continue
		}
		if op.err == nil {
			w.counts["ended well"]++
			if op.ran == 0 {
				w.bad("call %v succeeded and never ran", op)
			}
			continue
		}
		e, ok := errors.AsType[*conduit.Error](op.err)
		if !ok {
			w.bad("call %v ended with %v, which is no *conduit.Error", op, op.err)
			continue
		}
		w.counts["as "+e.Outcome.String()]++
		if (e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused) && op.ran != 0 {
			w.bad("call %v ended as %s and ran: %v", op, e.Outcome, e)
		}
		if e.Outcome == conduit.Executed && op.ran == 0 && !op.relayed {
			w.bad("call %v ended as executed and never ran: %v", op, e)
		}
		if e.Reason == conduit.ReasonProtocol || e.Reason == conduit.ReasonInternal {
			w.bad("call %v: %v", op, e)
		}
		if w.quiet && !w.natural(op, e) {
			w.bad("call %v failed though nothing went wrong: %v", op, e)
		}
		if (w.quiet || w.orderly) && !w.inOrder(op, e) {
			w.bad("call %v was lost, though nothing but what is in order happened: %v", op, e)
		}
	}
}

// inOrder reports whether an error is how a call may end where nothing is lost: as it was
// asked to, by an answer, or refused before it began.
func (w *simWorld) inOrder(op *simOp, e *conduit.Error) bool {
	if op.timeout > 0 || op.cancelAt > 0 || op.background { // a drain ends those in the background at once
		return true
	}
	switch e.Reason {
	case conduit.ReasonPeerLost, conduit.ReasonPluginLost, conduit.ReasonReloaded, conduit.ReasonAborted, conduit.ReasonCanceled:
		return e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused
	case conduit.ReasonDraining: // a relay may say so of what it called, when it has sent already
		return e.Outcome == conduit.NotSent || e.Outcome == conduit.Refused || op.relayed && e.Outcome == conduit.Executed
	}
	return e.Outcome != conduit.OutcomeUnknown
}

// natural reports whether an error is how a call may end where nothing fails.
func (w *simWorld) natural(op *simOp, e *conduit.Error) bool {
	if op.timeout > 0 || op.cancelAt > 0 || op.to >= 0 || op.greedy || op.method == "Fail" || op.method == "Super" || op.method == "Inner" {
		return true // it was asked to, or where there is none
	}
	switch e.Reason {
	case conduit.ReasonOverloaded, conduit.ReasonNoCapacity:
		return true
	case conduit.ReasonElementNotFound, conduit.ReasonDeploymentNotFound, conduit.ReasonPeerUnreachable:
		return op.relayed // there may be no relay
	}
	return false
}
