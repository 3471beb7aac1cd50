package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/gateway"
	"github.com/elemental-conduit/conduit/internal/builtin"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// directory is a gateway.Directory: what `ls -o json` prints, for those who ask over
// HTTP. They may know what they would be told at the cluster endpoint.
type directory struct{ i *instance }

var _ gateway.Directory = directory{}

// List implements gateway.Directory.
func (d directory) List(ctx context.Context, as conduit.AsWhom, what string, cluster bool) (any, error) {
	level, err := d.i.access.levelOf(ctx, as)
	if err != nil {
		return nil, err
	}
	switch what {
	case "instances":
		return d.instances(ctx, level), nil
	case "links":
		return d.links(level)
	}
	if level < conduit.User {
		return nil, d.tooLow()
	}
	deployments, elements, services, methods := hostedRows(d.hosts(level, cluster))
	switch what {
	case "deployments":
		return deployments, nil
	case "elements":
		return elements, nil
	case "services":
		return services, nil
	default:
		return methods, nil
	}
}

// tooLow is the error of who may know this instance's name alone.
func (d directory) tooLow() error {
	return conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused,
		"the instance %s tells anonymous callers no more than its name; send a session", d.i.c.String("name"))
}

func (d directory) instances(ctx context.Context, level conduit.Level) []instanceRow {
	one := answer{peers: []*conduitv1.PeerInfo{{Info: d.i.builtins.Tell(level, false)}}}
	if d.i.builtins.Operates(level) {
		peers, err := d.i.Peers(ctx)
		if err == nil { // it has none
			one.peers = append(one.peers, peers...)
		}
	}
	return instanceRows([]answer{one})
}

func (d directory) links(level conduit.Level) ([]linkRow, error) {
	switch {
	case d.i.builtins.Operates(level):
	case level >= conduit.Superuser:
		return nil, conduit.Errorf(conduit.PermissionDenied, conduit.ReasonNotRemote, conduit.Refused,
			"links are told here if host.remote_admin is set; on the instance's machine, `conduit-host ls links` lists them")
	default:
		return nil, conduit.Errorf(conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused, "links are told to level superuser and above, the caller is %s", level)
	}
	rows := []linkRow{}
	for _, l := range d.i.Links() {
		rows = append(rows, linkRowOf(l))
	}
	return rows, nil
}

// hosts are this instance and, with cluster, those that it knows, with what a caller may
// know of them.
func (d directory) hosts(level conduit.Level, cluster bool) []report {
	self := d.i.builtins.Tell(level, false)
	list, now := []report{{info: self}}, time.Now()
	if !cluster {
		return list
	}
	seen := map[string]bool{self.GetInstance(): true}
	for _, p := range d.i.fabric.registry.Peers() {
		id := instanceText(p.Instance)
		if p.Info == nil || seen[id] || p.State == registry.StateSelf || p.State == registry.StateConflict {
			continue
		}
		seen[id] = true
		info := &conduitv1.InstanceInfo{Instance: id, Name: p.Name, Deployments: builtin.Restricted(p.Info.GetDeployments(), level)}
		list = append(list, report{info, millis(now.Sub(p.InfoAt))})
	}
	return list
}

// loadedEvent is an event of a host, and peerEvent one of the registry, for JSON.
type loadedEvent struct {
	// Present: it is no change, but part of what holds now.
	Present      bool   `json:"present,omitempty"`
	Sequence     uint64 `json:"sequence"`
	Deployment   string `json:"deployment,omitempty"`
	DeploymentID string `json:"deployment_id,omitempty"`
	Element      string `json:"element,omitempty"`
	Version      string `json:"version,omitempty"`
	Generation   uint64 `json:"generation,omitempty"`
	State        string `json:"state,omitempty"`
}

type peerEvent struct {
	Present  bool     `json:"present,omitempty"`
	Instance string   `json:"instance"`
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Cordoned bool     `json:"cordoned,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	URLs     []string `json:"urls,omitempty"`
}

// eventBacklog is how many changes of peers wait for one client, beyond the present
// state, before it is told no more: it may ask again, and gets the present state then.
const eventBacklog = 256

func errSlowReader() error {
	return conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonOverloaded, conduit.Executed,
		"the client reads more slowly than instances change; it may ask again, and gets the present state first")
}

// Events implements gateway.Directory.
func (d directory) Events(ctx context.Context, as conduit.AsWhom, send func(gateway.Event) error) error {
	level, err := d.i.access.levelOf(ctx, as)
	if err != nil {
		return err
	}
	if level < conduit.User {
		return d.tooLow()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer cancel(nil)
	loaded, ended := make(chan gateway.Event), make(chan error, 1)
	feeding.Go(func() { ended <- d.loaded(ctx, loaded) })
	peers := &peerEvents{operator: d.i.builtins.Operates(level), wake: make(chan struct{}, 1)}
	stop := d.i.fabric.registry.Subscribe(peers.add)
	defer stop()
	peers.settle()
	for {
		for {
			e, ok, lost := peers.next()
			if lost {
				return errSlowReader()
			}
			if !ok {
				break
			}
			if err := send(e); err != nil {
				return err
			}
		}
		select {
		case e := <-loaded:
			if err := send(e); err != nil {
				return err
			}
		case <-peers.wake:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.i.leaves:
			return errDraining()
		}
	}
}

// loaded passes the host's events on until ctx ends, and returns why there are no more.
// The host keeps what comes while nobody takes one, within its bounds.
func (d directory) loaded(ctx context.Context, to chan<- gateway.Event) error {
	err := d.i.host.events(ctx, func(e *conduitv1.HostEvent) error {
		select {
		case to <- gateway.Event{Name: e.GetName(), Data: loadedEvent{
			Present: e.GetPresent(), Sequence: e.GetSequence(), Deployment: e.GetDeployment(), DeploymentID: e.GetDeploymentId(),
			Element: e.GetElement(), Version: e.GetVersion(), Generation: e.GetGeneration(), State: e.GetState(),
		}}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// peerEvents keeps what the registry tells until a client has taken it.
type peerEvents struct {
	operator bool
	wake     chan struct{} // has one in it when there is something new

	mu      sync.Mutex
	queue   []gateway.Event
	most    int // of them; 0 = the present state is still being told
	dropped bool
}

// add takes an event of the registry. It does not wait.
func (q *peerEvents) add(e registry.Event) {
	if e.Peer.Instance.IsZero() || e.Peer.State == registry.StateSelf {
		return // a URL at which nobody was met
	}
	p := peerEvent{Instance: e.Peer.Instance.String(), Name: e.Peer.Name, State: e.Peer.State.String(), Cordoned: e.Peer.Cordoned}
	if q.operator {
		p.Reason, p.URLs = utf8Text(e.Peer.Reason), e.Peer.URLs
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	p.Present = q.most == 0 && e.Kind == registry.EventAdded
	if q.most > 0 && len(q.queue) >= q.most {
		q.dropped = true
		return
	}
	q.queue = append(q.queue, gateway.Event{Name: "instance_" + e.Kind.String(), Data: p})
	select {
	case q.wake <- struct{}{}:
	default: // it is awake
	}
}

// settle says that all of the present state was told, which is kept however much it is.
func (q *peerEvents) settle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most = len(q.queue) + eventBacklog
}

// next takes the oldest event; lost says that some are missing after those that were
// taken.
func (q *peerEvents) next() (e gateway.Event, ok, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return e, false, q.dropped
	}
	e, q.queue = q.queue[0], q.queue[1:]
	return e, true, false
}

const (
	// maxAsked is how many instances are asked for the schemas of their methods, and
	// schemaPatience how long: what has none is in the document all the same.
	maxAsked       = 32
	schemaPatience = 2 * time.Second
)

// Methods implements gateway.Directory. Anonymous callers are told of none: they may know
// this instance's name alone.
func (d directory) Methods(ctx context.Context, as conduit.AsWhom) ([]gateway.Method, error) {
	level, err := d.i.access.levelOf(ctx, as)
	if err != nil || level < conduit.User {
		return nil, err
	}
	told := d.hosts(level, true)
	infos := make([]*conduitv1.InstanceInfo, len(told))
	for i, r := range told {
		infos[i] = r.info
	}
	infos[0] = d.i.builtins.Tell(level, true)
	type place struct{ deployment, element, service, method string }
	// The first instance that has a method tells of it.
	var list []gateway.Method
	seen := map[place]bool{}
	fresh := make([]bool, len(infos))
	schemas := make([]map[[2]string]*conduitv1.Schemas, len(infos))
	var of []int // by the same index, which of infos
	for n, info := range infos {
		for _, dep := range info.GetDeployments() {
			for _, e := range dep.GetElements() {
				for _, s := range e.GetServices() {
					for _, m := range s.GetMethods() {
						at := place{addressed(dep), e.GetName(), s.GetName(), m.GetName()}
						if seen[at] || !m.GetRemote() {
							continue
						}
						seen[at], fresh[n] = true, true
						list = append(list, methodOf(at.deployment, at.element, at.service, m))
						of = append(of, n)
					}
				}
			}
		}
	}
	schemas[0] = schemasOf(infos[0])
	d.askSchemas(ctx, infos, fresh, schemas)
	definitions := map[*conduitv1.Schemas]map[string]json.RawMessage{}
	for k := range list {
		m := &list[k]
		all := schemas[of[k]][[2]string{m.Deployment, m.Element}]
		for _, one := range all.GetMethods() {
			if one.GetService() == m.Service && one.GetMethod() == m.Name {
				m.Request, m.Reply = json.RawMessage(one.GetRequest()), json.RawMessage(one.GetReply())
			}
		}
		if len(m.Request)+len(m.Reply) > 0 {
			if definitions[all] == nil {
				definitions[all] = map[string]json.RawMessage{}
				for name, text := range all.GetDefinitions() {
					definitions[all][name] = json.RawMessage(text)
				}
			}
			m.Definitions = definitions[all]
		}
	}
	return list, nil
}

// askSchemas asks the instances that are fresh, but for the first, for their schemas, side
// by side.
func (d directory) askSchemas(ctx context.Context, infos []*conduitv1.InstanceInfo, fresh []bool, schemas []map[[2]string]*conduitv1.Schemas) {
	ctx, cancel := context.WithTimeout(ctx, schemaPatience)
	defer cancel()
	var asking sync.WaitGroup
	asked := 0
	for n := 1; n < len(infos); n++ {
		if !fresh[n] || asked == maxAsked {
			continue
		}
		asked++
		asking.Go(func() {
			inv := d.i.fabric.locator.At(infos[n].GetInstance() + "://conduit/conduit/" + instanceService)
			info, err := conduit.Call[*conduitv1.InstanceInfo](ctx, inv, "WhoAreYou", &conduitv1.WhoAreYouRequest{Schemas: true},
				conduit.WithAs(conduit.AsWhom{Kind: conduit.AsLink})) // nobody's call but this instance's: what comes is held to what the caller may see
			if err != nil {
				d.i.log.Debug("no schemas of an instance's methods", "instance", infos[n].GetInstance(), "error", err)
				return
			}
			schemas[n] = schemasOf(info)
		})
	}
	asking.Wait()
}

// schemasOf are an instance's schemas, by deployment and element.
func schemasOf(info *conduitv1.InstanceInfo) map[[2]string]*conduitv1.Schemas {
	all := map[[2]string]*conduitv1.Schemas{}
	for _, dep := range info.GetDeployments() {
		for _, e := range dep.GetElements() {
			all[[2]string{addressed(dep), e.GetName()}] = e.GetSchemas()
		}
	}
	return all
}

func methodOf(deployment, element, service string, m *conduitv1.MethodDescription) gateway.Method {
	shape := m.GetShape()
	return gateway.Method{
		Deployment: deployment, Element: element, Service: service, Name: m.GetName(),
		ManyResults:  shape == conduitv1.Shape_SHAPE_SERVER_STREAM || shape == conduitv1.Shape_SHAPE_DUPLEX,
		ManyMessages: shape == conduitv1.Shape_SHAPE_CLIENT_STREAM || shape == conduitv1.Shape_SHAPE_DUPLEX,
		Level:        conduit.Level(m.GetMinLevel()), Units: m.GetUnits(), Idempotent: m.GetIdempotent(), Deprecated: m.GetDeprecated(),
		Timeout:     time.Duration(min(m.GetTimeoutMicros(), 1<<50)) * time.Microsecond,
		RequestType: m.GetRequestType(), ReplyType: m.GetReplyType(), ContentTypes: m.GetContentTypes(),
	}
}
