package locator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster as a locator sees it.
type world struct {
	t      *testing.T
	l      *Locator
	r      *registry.Registry
	static *discovery.Static

	mu    sync.Mutex
	peers map[string]*peer // by URL
	names []string
}

// peer is an instance of the world: it answers calls as play says, and by default
// with its name.
type peer struct {
	w     *world
	name  string
	id    address.InstanceID
	info  *conduitv1.InstanceInfo
	hooks registry.Hooks

	mu    sync.Mutex
	play  func(ctx context.Context, in *conduit.Invocation) conduit.Exchange
	calls []conduit.Invocation
	at    []string
	done  chan struct{}
	dead  bool
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{t: t, peers: map[string]*peer{}}
	var err error
	if w.static, err = discovery.NewStatic(nil, true); err != nil {
		t.Fatal(err)
	}
	w.r = registry.New(registry.Options{Source: w.static, Dialer: w, Policy: registry.Headroom})
	o.Registry = w.r
	w.l = New(o)
	return w
}

// start starts the registry, with the peers that there are.
func (w *world) start() {
	w.t.Helper()
	w.list(w.names...)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.r.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	synctest.Wait()
}

func (w *world) list(names ...string) {
	w.t.Helper()
	var urls []string
	for _, n := range names {
		urls = append(urls, "ws://"+n+":7400")
	}
	if err := w.static.Reload(urls); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// add makes a peer with room for units that has element e of deployment d with
// service S.
func (w *world) add(name string, units int) *peer {
	p := &peer{w: w, name: name, id: idOf(name), done: make(chan struct{})}
	p.info = &conduitv1.InstanceInfo{Instance: p.id.String(), Name: name, Digest: []byte("1"), Available: uint64(units)}
	p.host("d")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peers["ws://"+name+":7400/cluster/v1"] = p
	w.names = append(w.names, name)
	return p
}

func (p *peer) host(deployment string) {
	p.info.Deployments = append(p.info.Deployments, &conduitv1.DeploymentInfo{
		Id: address.UniqueDeploymentID(deployment).String(), Name: deployment,
		Elements: []*conduitv1.ElementInfo{{Name: "e", State: "ready", Services: []*conduitv1.ServiceDescription{{
			Name: "S", Methods: []*conduitv1.MethodDescription{{Name: "Call"}, {Name: "Same", Idempotent: true}, {Name: "Costs", Units: 2}},
		}}}},
	})
}

// idOf gives ids in the order of names.
func idOf(name string) address.InstanceID {
	var u [16]byte
	copy(u[:], name)
	return address.InstanceIDFromUUID(u)
}

func (w *world) Route(a address.Address) registry.Route { return route{a} }

type route struct{ a address.Address }

func (r route) Address() address.Address { return r.a }

func (w *world) Connect(_ context.Context, url string, h registry.Hooks) (registry.Link, error) {
	w.mu.Lock()
	p := w.peers[url]
	w.mu.Unlock()
	if p == nil {
		return nil, errors.New("connection refused")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errors.New("connection refused")
	}
	p.hooks = h
	h.Status(&conduitv1.Status{Available: p.info.GetAvailable(), Total: p.info.GetAvailable(), Digest: p.info.GetDigest()})
	return p, nil
}

func (p *peer) Instance() string      { return p.id.String() }
func (p *peer) Epoch() uint64         { return 1 }
func (p *peer) Unsent() uint64        { return 0 }
func (p *peer) Outstanding() int      { return 0 }
func (p *peer) Done() <-chan struct{} { return p.done }
func (p *peer) Release()              {}

func (p *peer) WhoAreYou(context.Context, []byte) (*conduitv1.InstanceInfo, error) {
	return p.info, nil
}

func (p *peer) Usable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

// kill ends the peer: nobody can connect any more.
func (p *peer) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.dead = true
		close(p.done)
	}
}

// does sets what the peer does with calls.
func (p *peer) does(play func(ctx context.Context, in *conduit.Invocation) conduit.Exchange) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.play = play
	return p
}

// fails has it fail each call.
func (p *peer) fails(e *conduit.Error) *peer {
	return p.does(func(context.Context, *conduit.Invocation) conduit.Exchange { return conduit.FailedExchange(e) })
}

func (p *peer) Invoke(ctx context.Context, r registry.Route, in *conduit.Invocation) conduit.Exchange {
	p.mu.Lock()
	p.calls = append(p.calls, *in)
	p.at = append(p.at, r.Address().String())
	play := p.play
	p.mu.Unlock()
	if play != nil {
		return play(ctx, in)
	}
	return answer(p.name)
}

func (p *peer) made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// exchange that yields messages, and then ends.
type answers struct {
	conduit.Exchange

	mu   sync.Mutex
	down []conduit.Message
	end  error
}

// answer yields strings.
func answer(texts ...string) *answers {
	a := &answers{end: io.EOF}
	for _, s := range texts {
		a.down = append(a.down, conduit.Message{ContentType: conduit.ContentJSON, Data: fmt.Appendf(nil, "%q", s)})
	}
	return a
}

func (a *answers) Recv(ctx context.Context) (conduit.Message, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.down) > 0 {
		m := a.down[0]
		a.down = a.down[1:]
		return m, nil
	}
	if a.end == nil {
		<-ctx.Done()
		return conduit.Message{}, conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	return conduit.Message{}, a.end
}

func (a *answers) Cancel(error)                       {}
func (a *answers) CloseSend() error                   { return nil }
func (a *answers) Send(context.Context, []byte) error { return nil }

// hosting is a Local.
type hosting struct {
	standing Standing
	calls    int
	nodes    []string
	fail     *conduit.Error
	last     address.Address
}

func (h *hosting) At(a address.Address) conduit.Invoker { return here{h, a} }

func (h *hosting) Look(address.Address, string, uint32) Standing { return h.standing }

func (h *hosting) Nodes(address.Address) []string { return h.nodes }

func (h *hosting) FindService(deployment string, key address.ServiceKey) (address.Address, bool) {
	if !h.standing.Hosted {
		return address.Address{}, false
	}
	return address.MustParse("*://" + deployment + "/e/" + key.String()), true
}

type here struct {
	h *hosting
	a address.Address
}

func (h here) Invoke(context.Context, *conduit.Invocation) conduit.Exchange {
	h.h.calls++
	h.h.last = h.a
	if h.h.fail != nil {
		return conduit.FailedExchange(h.h.fail)
	}
	return answer("here")
}

const where = "*://d/e/S"

// call calls a method, and returns the answer or the error's reason.
func (w *world) call(addr, method string, opts ...conduit.CallOption) string {
	w.t.Helper()
	return reasonOf(conduit.Call[string](w.t.Context(), w.l.At(addr), method, nil, opts...))
}

func reasonOf(got string, err error) string {
	if err != nil {
		e := conduit.AsError(err, conduit.OutcomeUnknown)
		return e.Reason + " " + e.Outcome.String()
	}
	return got
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func refusal(reason string, outcome conduit.Outcome, retryable bool) *conduit.Error {
	e := conduit.Errorf(conduit.Unavailable, reason, outcome, "%s, for the test", reason)
	e.Retryable = retryable
	return e
}

// attempts lists what the calls to the peers said of their attempt.
func attempts(peers ...*peer) string {
	var all []string
	for _, p := range peers {
		p.mu.Lock()
		for _, c := range p.calls {
			all = append(all, fmt.Sprintf("%s%d", p.name, c.Attempt))
		}
		p.mu.Unlock()
	}
	return strings.Join(all, " ")
}
