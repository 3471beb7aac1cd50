package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// picture is what a command knows, at one moment, of the instances that it can
// call: a registry of its own. Its instances are those that the instance of this
// machine knows, each called by way of that one, or the peers of the command line,
// each called over a link of its own.
type picture struct {
	registry *registry.Registry
	sights   map[string]sight // by what discovery calls it
	// through is the instance by way of which all are called; empty for --peer.
	through string
	stop    context.CancelFunc
	over    chan struct{}

	mu     sync.Mutex
	infos  []*conduitv1.InstanceInfo
	failed error // of one that could not be seen, the one to tell if none could
	opened []connection
}

// sight is how the picture comes to know one instance.
type sight func(ctx context.Context) (connection, *conduitv1.InstanceInfo, error)

// hidden is an instance that somebody knows of and that is not in the picture.
type hidden struct {
	URL    string `json:"url"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// newPicture looks at all instances, and returns when each has answered or failed
// to. hidden are those of which the instance of this machine knows no more than a
// URL. The picture must be closed.
func (a *app) newPicture(ctx context.Context) (p *picture, unseen []hidden, err error) {
	p = &picture{sights: map[string]sight{}, over: make(chan struct{})}
	if len(a.peers) > 0 {
		err = a.sightPeers(p)
	} else {
		unseen, err = a.sightKnown(ctx, p)
	}
	if err != nil {
		p.closeLinks()
		return nil, nil, err
	}
	p.registry = registry.New(registry.Options{Source: p, Dialer: p, Refresh: time.Hour, RefreshTimeout: askTimeout})
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		defer close(p.over)
		_ = p.registry.Run(ctx) // its only failure is the source's, and that is the picture
	}()
	p.registry.WaitSettled(ctx)
	if err := p.nothing(); err != nil {
		p.close()
		return nil, nil, err
	}
	for _, s := range p.registry.Peers() {
		if s.State != registry.StateAlive && s.State != registry.StateDraining {
			unseen = append(unseen, hidden{URL: s.URLs[0], State: s.State.String(), Reason: s.Reason})
		}
	}
	return p, unseen, nil
}

// sightPeers sees each of --peer for itself.
func (a *app) sightPeers(p *picture) error {
	secret, err := a.checkPeers()
	if err != nil {
		return err
	}
	for _, url := range a.peers {
		p.sights[url] = func(ctx context.Context) (connection, *conduitv1.InstanceInfo, error) {
			c, err := a.dial(ctx, []string{url}, secret)
			if err != nil {
				return nil, nil, err
			}
			p.opens(c)
			info, err := whoAreYou(ctx, c, "*")
			return c, info, err
		}
	}
	return nil
}

// sightKnown sees what the instance of this machine knows.
func (a *app) sightKnown(ctx context.Context, p *picture) ([]hidden, error) {
	t, err := a.localTarget(ctx)
	if err != nil {
		return nil, err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	p.opens(c)
	known, err := instances(ctx, c)
	if err != nil {
		return nil, err
	}
	p.through = known[0].GetInfo().GetInstance()
	var unseen []hidden
	for _, k := range known {
		info := k.GetInfo()
		if info.GetInstance() == "" || k.GetState() == registry.StateConflict.String() {
			unseen = append(unseen, hidden{URL: firstOf(k.GetUrls()), State: k.GetState(), Reason: k.GetReason()})
			continue
		}
		p.sights[info.GetInstance()] = func(context.Context) (connection, *conduitv1.InstanceInfo, error) { return c, info, nil }
	}
	return unseen, nil
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func (p *picture) opens(c connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = append(p.opened, c)
}

// close ends the picture and what calls are under way.
func (p *picture) close() {
	p.stop()
	<-p.over
	p.closeLinks()
}

func (p *picture) closeLinks() {
	for _, c := range p.opened {
		_ = c.Close() // what was asked is answered; how the link ends changes nothing
	}
}

// nothing is why no instance was seen; nil if one was.
func (p *picture) nothing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.infos) > 0 {
		return nil
	}
	return p.failed
}

// all is the nodes that an address stands for.
func (p *picture) all(addr address.Address) conduit.Group {
	return locator.New(locator.Options{Registry: p.registry}).All(addr.String())
}

// known is what the instances have said of themselves.
func (p *picture) known() []*conduitv1.InstanceInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.infos)
}

// Run implements discovery.Source.
func (p *picture) Run(ctx context.Context, publish func(discovery.Snapshot)) error {
	s := discovery.Snapshot{At: time.Now()}
	for name := range p.sights {
		s.Peers = append(s.Peers, name)
	}
	slices.Sort(s.Peers)
	publish(s)
	<-ctx.Done()
	return nil
}

// Route implements registry.Dialer.
func (*picture) Route(a address.Address) registry.Route { return route{a} }

type route struct{ a address.Address }

// Address implements registry.Route.
func (r route) Address() address.Address { return r.a }

// Connect implements registry.Dialer.
func (p *picture) Connect(ctx context.Context, name string, h registry.Hooks) (registry.Link, error) {
	c, info, err := p.sights[name](ctx)
	if err != nil {
		e := conduit.AsError(err, conduit.NotSent)
		p.mu.Lock()
		defer p.mu.Unlock()
		// Who may not in is told so, and not that nobody was there.
		if p.failed == nil || e.Code == conduit.Unauthenticated || e.Code == conduit.PermissionDenied {
			p.failed = e
		}
		return nil, errors.New(errorMessage(e))
	}
	p.mu.Lock()
	p.infos = append(p.infos, info)
	p.mu.Unlock()
	// Without a budget, or to callers who are told nothing, an instance says
	// nothing of its room; then it has not been heard.
	if info.GetTotal() > 0 || info.GetState() != conduitv1.InstanceState_INSTANCE_STATE_ACTIVE {
		h.Status(&conduitv1.Status{Available: info.GetAvailable(), Total: info.GetTotal(), InFlight: info.GetInFlight(), State: info.GetState()})
	}
	return &pictureLink{c: c, info: info, relayed: p.through != "" && p.through != info.GetInstance()}, nil
}

// pictureLink is one instance of a picture.
type pictureLink struct {
	c       connection
	info    *conduitv1.InstanceInfo
	relayed bool
}

// Instance implements registry.Link.
func (l *pictureLink) Instance() string { return l.info.GetInstance() }

// Epoch implements registry.Link.
func (l *pictureLink) Epoch() uint64 { return l.info.GetEpoch() }

// WhoAreYou implements registry.Link: it was asked already.
func (l *pictureLink) WhoAreYou(context.Context, []byte) (*conduitv1.InstanceInfo, error) {
	return l.info, nil
}

// Invoke implements registry.Link.
func (l *pictureLink) Invoke(ctx context.Context, r registry.Route, in *conduit.Invocation) conduit.Exchange {
	x := l.c.At(r.Address().String()).Invoke(ctx, in)
	if l.relayed {
		return relayed{x}
	}
	return x
}

// relayed is a call by way of another instance than the one that it is for.
type relayed struct{ conduit.Exchange }

// Recv implements conduit.Exchange. An instance refuses a call that it could not
// pass on; to who asked that instance to, the call has not been sent.
func (r relayed) Recv(ctx context.Context) (conduit.Message, error) {
	m, err := r.Exchange.Recv(ctx)
	if e, ok := errors.AsType[*conduit.Error](err); ok && e.Outcome == conduit.Refused && e.Reason == conduit.ReasonPeerUnreachable {
		unsent := *e
		unsent.Outcome = conduit.NotSent
		return m, &unsent
	}
	return m, err
}

// Usable implements registry.Link.
func (*pictureLink) Usable() bool { return true }

// Unsent implements registry.Link: the picture is of a moment before any call.
func (*pictureLink) Unsent() uint64 { return 0 }

// Outstanding implements registry.Link.
func (*pictureLink) Outstanding() int { return 0 }

// Done implements registry.Link: what is lost shows at the calls.
func (*pictureLink) Done() <-chan struct{} { return nil }

// Release implements registry.Link; close ends the connections.
func (*pictureLink) Release() {}
