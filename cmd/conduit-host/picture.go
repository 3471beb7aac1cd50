package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// picture is what a command knows, at one moment, of the instances that it can
// call: those that the instance of this machine knows, each called by way of that
// one, or the peers of the command line, each called over a link of its own. It must
// be closed.
type picture struct {
	// infos are what the instances have said of themselves.
	infos []*conduitv1.InstanceInfo
	// all is the nodes that an address stands for.
	all   func(addr string) conduit.Group
	close func()
}

// hidden is an instance that somebody knows of and that is not in the picture.
type hidden struct {
	URL    string `json:"url"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// newPicture looks at all instances, and returns when each has answered or failed
// to. hidden are those of which no more than a URL is known.
func (a *app) newPicture(ctx context.Context) (p *picture, unseen []hidden, err error) {
	if len(a.peers) > 0 {
		return a.picturePeers(ctx)
	}
	return a.pictureKnown(ctx)
}

// dialAll makes a client of --peer that has heard each of them, or why not. One at
// least has answered.
func (a *app) dialAll(ctx context.Context) (*client.Client, error) {
	o, err := a.checkPeers()
	if err != nil {
		return nil, err
	}
	o.Refresh, o.RefreshTimeout = time.Hour, askTimeout
	c, err := client.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	c.WaitPeers(ctx)
	return c, nil
}

// picturePeers sees each of --peer for itself.
func (a *app) picturePeers(ctx context.Context) (*picture, []hidden, error) {
	c, err := a.dialAll(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := &picture{all: c.All, close: func() { _ = c.Close() }} // what was asked is answered; how the links end changes nothing
	var unseen []hidden
	for _, s := range c.Peers() {
		switch s.State {
		case registry.StateAlive, registry.StateDraining:
			p.infos = append(p.infos, s.Info)
		default:
			unseen = append(unseen, hidden{URL: s.URLs[0], State: s.State.String(), Reason: s.Reason})
		}
	}
	return p, unseen, nil
}

// pictureKnown sees what the instance of this machine knows.
func (a *app) pictureKnown(ctx context.Context) (*picture, []hidden, error) {
	t, err := a.localTarget(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	known, err := instances(ctx, c)
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	p := &picture{}
	d := &relay{c: c, infos: map[string]*conduitv1.InstanceInfo{}, through: known[0].GetInfo().GetInstance()}
	var unseen []hidden
	for _, k := range known {
		info := k.GetInfo()
		if info.GetInstance() == "" || k.GetState() == registry.StateConflict.String() {
			unseen = append(unseen, hidden{URL: firstOf(k.GetUrls()), State: k.GetState(), Reason: k.GetReason()})
			continue
		}
		p.infos, d.infos[info.GetInstance()] = append(p.infos, info), info
	}
	r := registry.New(registry.Options{Source: d, Dialer: d, Refresh: time.Hour})
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = r.Run(ctx) // its only failure is the source's, and that is a list
	}()
	r.WaitSettled(ctx)
	p.all = locator.New(locator.Options{Registry: r}).All
	p.close = func() {
		stop()
		<-over
		_ = c.Close() // what was asked is answered; how the link ends changes nothing
	}
	return p, unseen, nil
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// relay is the instances that one of them knows, each of which is called by way of
// it: a discovery.Source that names them by their ids, and a registry.Dialer.
type relay struct {
	c     connection
	infos map[string]*conduitv1.InstanceInfo
	// through is the instance by way of which all are called.
	through string
}

// Run implements discovery.Source.
func (d *relay) Run(ctx context.Context, publish func(discovery.Snapshot)) error {
	s := discovery.Snapshot{At: time.Now()}
	for id := range d.infos {
		s.Peers = append(s.Peers, id)
	}
	slices.Sort(s.Peers)
	publish(s)
	<-ctx.Done()
	return nil
}

// Route implements registry.Dialer.
func (*relay) Route(a address.Address) registry.Route { return route{a} }

type route struct{ a address.Address }

// Address implements registry.Route.
func (r route) Address() address.Address { return r.a }

// Connect implements registry.Dialer.
func (d *relay) Connect(_ context.Context, id string, _ registry.Hooks) (registry.Link, error) {
	return &relayLink{c: d.c, info: d.infos[id], relayed: d.through != id}, nil
}

// relayLink is one instance, by way of another.
type relayLink struct {
	c       connection
	info    *conduitv1.InstanceInfo
	relayed bool
}

// Instance implements registry.Link.
func (l *relayLink) Instance() string { return l.info.GetInstance() }

// Epoch implements registry.Link.
func (l *relayLink) Epoch() uint64 { return l.info.GetEpoch() }

// WhoAreYou implements registry.Link: it was asked already.
func (l *relayLink) WhoAreYou(context.Context, []byte) (*conduitv1.InstanceInfo, error) {
	return l.info, nil
}

// Invoke implements registry.Link.
func (l *relayLink) Invoke(ctx context.Context, r registry.Route, in *conduit.Invocation) conduit.Exchange {
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
func (*relayLink) Usable() bool { return true }

// Unsent implements registry.Link: it is of a moment before any call.
func (*relayLink) Unsent() uint64 { return 0 }

// Outstanding implements registry.Link.
func (*relayLink) Outstanding() int { return 0 }

// Done implements registry.Link: what is lost shows at the calls.
func (*relayLink) Done() <-chan struct{} { return nil }

// Release implements registry.Link; close ends the connection.
func (*relayLink) Release() {}
