package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/peerlink"
	"github.com/elemental-conduit/conduit/internal/router"
	"github.com/elemental-conduit/conduit/locator"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
	"github.com/elemental-conduit/conduit/transport"
)

// fabric is the part of an instance that knows other instances: who there is, and
// where a call goes. It is the same in every mode.
type fabric struct {
	static   *discovery.Static
	client   *transport.Client
	registry *registry.Registry
	locator  *locator.Locator
	router   *router.Router

	stop context.CancelFunc
}

// joinCluster makes the fabric; nobody is dialled before it runs.
func (i *instance) joinCluster() error {
	insecure := i.c.Bool("cluster.insecure")
	static, err := discovery.NewStatic(i.c.List("discovery.static"), insecure)
	if err != nil {
		return configf("discovery.static: %v", err)
	}
	source, dial, err := i.discover(static, insecure)
	if err != nil {
		return err
	}
	log := slogTo(i.log.Named("cluster"))
	o := i.linkOptions("cluster")
	o.Check = i.access.sameStore
	client := transport.NewClient(transport.ClientOptions{
		DialContext: dial,
		SessionOf:   i.access.secret,
		DialTimeout: i.c.Duration("cluster.dial_timeout"),
		Insecure:    insecure,
		TLSOf:       i.certs["cluster"].Client,
		Link:        o,
		Log:         log,
	})
	r := registry.New(registry.Options{
		Source: source, Dialer: peerlink.New(client, peerlink.Options{
			Dialled: i.dialled, PerCall: i.c.String("cluster.link") == "per-call", Alone: i.followAlone,
		}),
		Self: i.id, SelfEpoch: i.epoch,
		Policy:  policies[i.c.String("registry.policy")],
		Refresh: i.c.Duration("registry.refresh"), RefreshTimeout: i.c.Duration("registry.refresh_timeout"),
		DialTimeout: i.c.Duration("cluster.dial_timeout"),
		Log:         slogTo(i.log.Named("registry")),
	})
	i.fabric = &fabric{
		static: static, client: client, registry: r, stop: func() {},
		locator: locator.New(locator.Options{
			Registry: r, Local: local{i}, Self: i.id,
			PreferLocal: i.c.Bool("registry.prefer_local"), Attempts: i.c.Int("registry.attempts"),
			CallTimeout: i.c.Duration("cluster.call_timeout"),
		}),
	}
	passOn := router.Options{Locator: i.fabric.locator, ConnOf: connOf}
	if i.c.String("cluster.link") == "per-call" {
		passOn.Alone = aloneOf
	}
	i.fabric.router = router.New(passOn)
	return nil
}

// discover returns all that says which hosts there are, and what dials those that
// DNS told of, whose addresses it told as well; nil = the system's way.
func (i *instance) discover(static *discovery.Static, insecure bool) (discovery.Source, discovery.Dial, error) {
	name := i.c.String("discovery.srv.name")
	if name == "" {
		return static, nil, nil
	}
	srv, err := discovery.NewSRV(discovery.SRVOptions{
		Name: name, Servers: i.c.List("discovery.srv.servers"), Interval: i.c.Duration("discovery.srv.interval"),
		Stale: i.c.Duration("discovery.stale"), HoldDown: i.c.Duration("discovery.hold_down"), Insecure: insecure,
		Log:    slogTo(i.log.Named("discovery")),
		Looked: func(err error) { i.metrics.LookedUp("dns", err) },
	})
	if err != nil {
		return nil, nil, configf("discovery.srv: %v", err)
	}
	return discovery.Merge(static, srv), srv.DialContext((&net.Dialer{}).DialContext), nil
}

// connOf returns the connection behind one of the registry's links, which are all
// of peerlink.
func connOf(l registry.Link) *link.Conn { return dialledLink(l).Conn() }

// aloneOf dials a connection for one call to where a link of the registry leads.
func aloneOf(ctx context.Context, l registry.Link, units uint32, background bool) (*link.Conn, *conduit.Error) {
	return dialledLink(l).Alone(ctx, units, background)
}

func dialledLink(l registry.Link) *peerlink.Link {
	p, ok := l.(*peerlink.Link)
	if !ok {
		panic(fmt.Sprintf("the registry has a link that this program did not dial: %T", l))
	}
	return p
}

//nolint:gochecknoglobals // a table: the configuration's words
var policies = map[string]registry.Policy{"p2c": registry.P2C, "headroom": registry.Headroom}

// findPeers begins to look for other instances. What ends it is fabric.leave, so
// ctx's own end does not.
func (i *instance) findPeers(ctx context.Context) {
	ctx, i.fabric.stop = context.WithCancel(context.WithoutCancel(ctx))
	i.run("certificates", func() error { i.keepCerts(ctx); return nil })
	i.run("registry", func() error { return i.fabric.registry.Run(ctx) })
	i.fabric.registry.Subscribe(i.declare)
	i.run("status", func() error { i.tellPeers(ctx); return nil })
}

// leave ends the links to other instances and the calls on them. Nobody's call waits
// for a peer any more after it.
func (f *fabric) leave() {
	f.stop()
	_ = f.client.Close()
	f.router.Close()
}

// reload takes over what may change while the instance runs, all of it or nothing, and
// says what may not.
func (i *instance) reload(c *config.Config) {
	select {
	case i.rereadCerts <- struct{}{}:
	default: // it is about to
	}
	attributes, err := instanceAttributes(c)
	if err == nil {
		err = i.fabric.static.Reload(c.List("discovery.static"))
	}
	if err != nil {
		i.log.Error("reload: everything is left as it was", "error", err)
		return
	}
	if err := i.host.setAttributes(attributes); err != nil { // checked, so it is the host that cannot
		i.log.Error("reload: the attributes of elements are left as they were", "error", err)
	}
	i.log.SetLevel(hclog.LevelFromString(c.String("log.level")))
	for _, v := range c.Values() {
		if old := i.c.Value(v.Key.Name); v.Text != old.Text && !v.Key.Reloadable {
			i.log.Warn("reload: this key takes effect at the next start only", "key", v.Key.Name, "now", old.Text, "then", v.Text)
		}
	}
	i.log.Info("reloaded", "log.level", c.String("log.level"), "discovery.static", strings.Join(c.List("discovery.static"), ","))
}

// Peers implements builtin.Peers.
func (i *instance) Peers(context.Context) ([]*conduitv1.PeerInfo, error) {
	now := time.Now()
	var list []*conduitv1.PeerInfo
	for _, p := range i.fabric.registry.Peers() {
		if p.State == registry.StateSelf {
			continue // who asks is told of it anyway
		}
		list = append(list, peerInfo(p, now))
	}
	return list, nil
}

// DiscoveryProblems implements builtin.Peers.
func (i *instance) DiscoveryProblems() (list []string) {
	for _, p := range i.fabric.registry.Problems() {
		list = append(list, utf8Text(fmt.Sprintf("%s: %v", p.Entry, p.Err)))
	}
	return list
}

func peerInfo(p registry.PeerStatus, now time.Time) *conduitv1.PeerInfo {
	info := &conduitv1.InstanceInfo{Name: p.Name, Epoch: p.Epoch}
	if !p.Instance.IsZero() {
		info.Instance = p.Instance.String()
	}
	if p.Info != nil {
		info.Mode, info.State, info.Version, info.Deployments = p.Info.GetMode(), p.Info.GetState(), p.Info.GetVersion(), p.Info.GetDeployments()
		info.Digest = p.Info.GetDigest() // its uptime was that of then
	}
	info.Available, info.Total, info.InFlight = unsigned(p.Available), unsigned(p.Total), unsigned(p.InFlight)
	out := &conduitv1.PeerInfo{
		Info: info, Urls: p.URLs, State: p.State.String(), Reason: utf8Text(p.Reason),
		Effective: p.Effective, Sent: unsigned(p.Sent), Judged: unsigned(p.Judged), Outstanding: uint32(max(0, p.Outstanding)),
	}
	if p.Cordoned && out.GetReason() == "" {
		out.Reason = "cordoned: it takes no new units"
	}
	if p.Info != nil {
		out.InfoMillis = millis(now.Sub(p.InfoAt))
	}
	if !p.Heard.IsZero() {
		out.HeardMillis = millis(now.Sub(p.Heard))
	}
	return out
}

// Explain implements builtin.Explainer.
func (i *instance) Explain(_ context.Context, in *conduitv1.ExplainRequest) (*conduitv1.ExplainResponse, error) {
	e, err := i.fabric.locator.Explain(in.GetAddress(), in.GetMethod(), in.GetUnits())
	if err != nil {
		return nil, err
	}
	out := &conduitv1.ExplainResponse{Reason: e.Reason}
	if !e.Chosen.IsZero() {
		out.Chosen = e.Chosen.String()
	}
	addr, _ := address.Parse(in.GetAddress()) // it has just been parsed
	out.Candidates = append(out.Candidates, i.here(addr, e))
	for _, c := range e.Candidates {
		out.Candidates = append(out.Candidates, &conduitv1.Candidate{
			Instance: instanceText(c.Instance), Name: c.Name, Url: c.URL, Verdict: string(c.Verdict), Why: utf8Text(c.Why),
			Effective: c.Effective, Available: unsigned(c.Available), Sent: unsigned(c.Sent), Judged: unsigned(c.Judged),
			Outstanding: uint32(max(0, c.Outstanding)), Units: c.Units,
			Untold: c.Untold,
		})
	}
	return out, nil
}

// here is this instance as a candidate.
func (i *instance) here(a address.Address, e locator.Explanation) *conduitv1.Candidate {
	units := i.budget.Snapshot()
	c := &conduitv1.Candidate{
		Instance: i.id.String(), Name: i.c.String("name"), Local: true,
		Available: unsigned(units.Available), Effective: units.Available,
	}
	switch {
	case e.Local:
		if c.Verdict = string(registry.Chosen); e.Here.Cordoned {
			c.Why = "nobody else can be picked, and it takes no new units: it is going to refuse the call"
		} else if e.Here.Ready && !e.Here.Room {
			c.Why = "nobody else can be picked, and it has no room: it is going to refuse the call"
		}
	case !e.Here.Hosted:
		c.Verdict = string(i.notHosted(a))
	case !e.Here.Ready:
		c.Verdict = string(registry.Starting)
	case e.Here.Cordoned:
		c.Verdict, c.Why = string(registry.Cordoned), "this instance, or the deployment here, takes no new units"
	case !e.Here.Room:
		c.Verdict = string(registry.Full)
	default:
		c.Verdict = string(registry.Candidate)
	}
	return c
}

// notHosted says what of an address that this instance does not host it lacks.
func (i *instance) notHosted(a address.Address) registry.Verdict {
	if id, anyInstance := a.Instance(); !anyInstance && id != i.id {
		return registry.AnotherInstance
	}
	id, anyDeployment := a.Deployment()
	deployments := i.host.Deployments()
	if len(deployments) == 0 || !anyDeployment && !slices.ContainsFunc(deployments, func(d *conduitv1.DeploymentInfo) bool { return d.GetId() == id.String() }) {
		return registry.NoDeployment
	}
	return registry.NoElement
}

func instanceText(id address.InstanceID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}
