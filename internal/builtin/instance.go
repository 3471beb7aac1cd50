package builtin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func instanceMethods() map[string]method {
	return map[string]method{
		"WhoAreYou": unary(func() *conduitv1.WhoAreYouRequest { return &conduitv1.WhoAreYouRequest{} },
			func(_ context.Context, s *Services, who asker, in *conduitv1.WhoAreYouRequest) (*conduitv1.InstanceInfo, error) {
				return s.whoAmI(who, in.GetDigest(), in.GetSchemas()), nil
			}),
	}
}

// Info returns all that there is to know of the instance.
func (s *Services) Info() *conduitv1.InstanceInfo {
	return s.whoAmI(asker{level: conduit.System, operator: true}, nil, false)
}

// Tell returns what an asker at a door of the network may know: an operator there, if
// host.remote_admin is set, everything; anonymous callers the name.
// With schemas it has those of methods.
func (s *Services) Tell(level conduit.Level, schemas bool) *conduitv1.InstanceInfo {
	return s.whoAmI(asker{level: level, operator: s.Operates(level)}, nil, schemas)
}

// Operates reports whether an asker at a door of the network is told what operators are.
func (s *Services) Operates(level conduit.Level) bool {
	return s.o.RemoteAdmin && level >= conduit.Superuser
}

// Restricted returns of what another instance said of its deployments what an asker of a
// level may know who is no operator. It changes nothing, and shares what it can.
func Restricted(deployments []*conduitv1.DeploymentInfo, level conduit.Level) (list []*conduitv1.DeploymentInfo) {
	for _, d := range deployments {
		out := &conduitv1.DeploymentInfo{
			Id: d.GetId(), Name: d.GetName(), Status: d.GetStatus(), Disabled: d.GetDisabled(), Cordoned: d.GetCordoned(), Transient: d.GetTransient(),
		}
		for _, e := range d.GetElements() {
			out.Elements = append(out.Elements, &conduitv1.ElementInfo{
				Name: e.GetName(), Version: e.GetVersion(), State: e.GetState(), SinceMillis: e.GetSinceMillis(), Generation: e.GetGeneration(),
				Restarts: e.GetRestarts(), InFlight: e.GetInFlight(), Claims: e.GetClaims(), Sandbox: e.GetSandbox(), Services: callable(e.GetServices(), level),
			})
		}
		list = append(list, out)
	}
	return list
}

// Digest returns InstanceInfo.digest as it is now, for the Status of links.
func (s *Services) Digest() []byte { return digest(s.o.Inventory.Deployments()) }

// whoAmI tells an asker what he may know, without the deployments if they are
// those of the digest that he has.
func (s *Services) whoAmI(who asker, known []byte, schemas bool) *conduitv1.InstanceInfo {
	info := &conduitv1.InstanceInfo{Instance: s.instance, Name: s.o.Name, State: s.o.Lifecycle.State()}
	if who.level < conduit.User {
		return info
	}
	info.Epoch, info.Mode, info.Version = s.o.Epoch, s.o.Mode, s.o.Version
	info.UptimeMillis = uint64(max(0, time.Since(s.o.Started).Milliseconds()))
	if c := s.o.Capacity; c != nil {
		info.Available, info.Total = c.Units()
	}
	deployments := s.o.Inventory.Deployments()
	info.Digest = digest(deployments)
	for _, d := range deployments {
		for _, e := range d.GetElements() {
			info.InFlight += e.GetInFlight()
		}
	}
	if len(known) > 0 && bytes.Equal(known, info.GetDigest()) {
		info.Unchanged = true
		return info
	}
	if !who.operator {
		for _, d := range deployments {
			restrict(d, who.level)
		}
	}
	for _, d := range deployments {
		for _, e := range d.GetElements() {
			if schemas {
				e.Schemas = SchemasOf(e.GetSchemas(), e.GetServices())
			} else {
				e.Schemas = nil
			}
		}
	}
	info.Deployments = deployments
	return info
}

// digest changes whenever something of the deployments does that is not in
// motion by itself. It is the same for every asker, whatever he may see of them:
// so one that a Status carries can be compared with it.
func digest(deployments []*conduitv1.DeploymentInfo) []byte {
	h := sha256.New()
	m := proto.MarshalOptions{Deterministic: true}
	for _, d := range deployments {
		still := &conduitv1.DeploymentInfo{Id: d.GetId(), Name: d.GetName(), Status: d.GetStatus(), Disabled: d.GetDisabled(), Cordoned: d.GetCordoned(), Transient: d.GetTransient(), Previous: d.GetPrevious()}
		for _, e := range d.GetElements() {
			still.Elements = append(still.Elements, &conduitv1.ElementInfo{
				Name: e.GetName(), Version: e.GetVersion(), State: e.GetState(), Reason: e.GetReason(), Generation: e.GetGeneration(),
				Restarts: e.GetRestarts(), LastExit: e.GetLastExit(), Services: e.GetServices(), File: e.GetFile(),
			})
		}
		text, err := m.Marshal(&conduitv1.InstanceInfo{Deployments: []*conduitv1.DeploymentInfo{still}})
		if err != nil {
			text = []byte(d.GetId()) // text that is not UTF-8, which no description has: nobody notices a change, and the refresh tells
		}
		_, _ = h.Write(text) // a hash takes everything
	}
	return h.Sum(nil)[:16]
}

// SchemasOf returns those of the methods of services, and what they refer to. It changes
// nothing.
func SchemasOf(all *conduitv1.Schemas, services []*conduitv1.ServiceDescription) *conduitv1.Schemas {
	methods := map[[2]string]bool{}
	for _, s := range services {
		for _, m := range s.GetMethods() {
			methods[[2]string{s.GetName(), m.GetName()}] = true
		}
	}
	out := &conduitv1.Schemas{Definitions: map[string]string{}}
	var follow func(text string)
	follow = func(text string) {
		const ref = `"#/$defs/`
		for {
			_, rest, found := strings.Cut(text, ref)
			if !found {
				return
			}
			var name string
			name, text, _ = strings.Cut(rest, `"`)
			definition, there := all.GetDefinitions()[name]
			if _, done := out.GetDefinitions()[name]; there && !done {
				out.Definitions[name] = definition
				follow(definition)
			}
		}
	}
	for _, m := range all.GetMethods() {
		if methods[[2]string{m.GetService(), m.GetMethod()}] {
			out.Methods = append(out.Methods, m)
			follow(m.GetRequest())
			follow(m.GetReply())
		}
	}
	if len(out.GetMethods()) == 0 {
		return nil
	}
	return out
}

// restrict leaves of a deployment what somebody of a level may know who is no
// operator: nothing of the machine and the processes, and of the methods those
// that he may call.
func restrict(d *conduitv1.DeploymentInfo, level conduit.Level) {
	d.Previous = ""
	for _, e := range d.GetElements() {
		e.Reason, e.LastExit, e.Stderr, e.File, e.Pid = "", "", nil, "", 0
		e.Attributes = nil
		e.Services = callable(e.GetServices(), level)
	}
}

// callable returns the services with the methods that are remote and not above a
// level. It changes nothing, since descriptions are shared.
func callable(services []*conduitv1.ServiceDescription, level conduit.Level) []*conduitv1.ServiceDescription {
	var out []*conduitv1.ServiceDescription
	for _, s := range services {
		methods := slices.DeleteFunc(slices.Clone(s.GetMethods()), func(m *conduitv1.MethodDescription) bool {
			return !m.GetRemote() || conduit.Level(m.GetMinLevel()) > level
		})
		if len(methods) > 0 {
			out = append(out, &conduitv1.ServiceDescription{Name: s.GetName(), Methods: methods})
		}
	}
	return out
}
