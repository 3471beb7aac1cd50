package pluginapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/schema"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Element is what a plugin offers. Name is required; the funcs may be nil.
//
// The host calls Configure, then Start, once each and one after the other; then
// Health at any time; then Stop. A func that panics has failed.
type Element struct {
	// Name is the element's part of an address.
	Name    string
	Version string
	// Services hold what can be called.
	Services []*Service
	// Attributes declare what the element reads of its configuration.
	Attributes []Attribute
	// Metrics are what the element counts and measures, made with [NewCounter] and
	// [NewGauge]; at most 32.
	Metrics []Metric

	// Configure checks what the deployment says, before anything is started.
	// Warnings are shown to the operator; an error keeps the element from
	// starting.
	Configure func(ctx context.Context, c Configuration) (warnings []string, err error)
	// Start makes the element ready. ctx bounds Start itself, not what it leaves
	// running. No call comes before it has returned.
	Start func(ctx context.Context, host Host) error
	// Health says how the element is; without it, it is healthy while it runs.
	Health func(ctx context.Context) Health
	// Stop lets the element flush what it holds, within ctx; then the process
	// ends. It is called after calls have ended or been given up, and only if
	// Start succeeded.
	Stop func(ctx context.Context) error

	// Exclusive says that the element cannot run beside another generation of
	// itself, since it holds a lock or a port: a reload stops it first.
	Exclusive bool
}

// Configuration is what a deployment gives to its element.
type Configuration struct {
	// Deployment is the deployment's name, as on disk.
	Deployment string
	Element    string
	// Instance is the InstanceID of the host.
	Instance string
	// Attributes are those of [Host.Attributes], the element's own defaults included.
	Attributes map[string]string
	// DataDir is a directory of the element's own, kept over restarts.
	DataDir string
	// MaxMessage is the size of the largest message in bytes.
	MaxMessage int64

	sensitive map[string]bool // by the names of attributes
}

// HealthState is how an element is. The zero value is healthy.
type HealthState uint8

// The states of health.
const (
	StateHealthy   HealthState = iota
	StateDegraded              // works, but somebody should look
	StateUnhealthy             // does not work
)

// Health is an element's own account of how it is.
type Health struct {
	State HealthState
	// Text says why, for people.
	Text string
	// Details are further facts for whoever looks.
	Details map[string]string
}

// Healthy says that all is well.
func Healthy() Health { return Health{} }

// Degraded says that the element works, but somebody should look.
func Degraded(format string, args ...any) Health {
	return Health{State: StateDegraded, Text: fmt.Sprintf(format, args...)}
}

// Unhealthy says that the element does not work.
func Unhealthy(format string, args ...any) Health {
	return Health{State: StateUnhealthy, Text: fmt.Sprintf(format, args...)}
}

// Check returns every mistake in the element's name, its services and their
// methods, one to a line, or nil.
func (e Element) Check() error {
	var mistakes []string
	if e.Name == "" {
		mistakes = append(mistakes, "the element has no name: set Element.Name")
	} else if _, err := address.FromParts("*", "*", e.Name, 0, false, "any.Service"); err != nil {
		mistakes = append(mistakes, fmt.Sprintf("the element's name %q cannot stand in an address: %v", e.Name, err))
	}
	seen := map[string]bool{}
	for i, s := range e.Services {
		if s == nil {
			mistakes = append(mistakes, fmt.Sprintf("Services[%d] is nil", i))
			continue
		}
		if seen[s.key] {
			mistakes = append(mistakes, fmt.Sprintf("service %q is there twice: tell them apart with Named", s.key))
		}
		seen[s.key] = true
		mistakes = append(mistakes, s.mistakes...)
	}
	mistakes = append(mistakes, checkAttributes(e.Attributes)...)
	mistakes = append(mistakes, checkMetrics(e.Metrics)...)
	if mistakes == nil {
		return nil
	}
	return errors.New(strings.Join(mistakes, "\n"))
}

// describe is what the host and `<binary> describe` are told.
func (e Element) describe() *conduitv1.Description {
	d := &conduitv1.Description{
		Element:    e.Name,
		Version:    e.Version,
		Exclusive:  e.Exclusive,
		MaxMessage: maxMessage,
		Api:        apiVersion(),
	}
	for _, s := range e.Services {
		sd := &conduitv1.ServiceDescription{Name: s.key}
		for _, m := range s.methods {
			sd.Methods = append(sd.Methods, m.describe())
		}
		d.Services = append(d.Services, sd)
	}
	d.Schemas = e.schemas()
	for _, a := range e.Attributes {
		d.Attributes = append(d.Attributes, a.describe())
	}
	return d
}

// schemas are those of the methods that others can call; nil if nothing is known of any.
func (e Element) schemas() *conduitv1.Schemas {
	var set schema.Set
	out := &conduitv1.Schemas{}
	for _, s := range e.Services {
		for _, m := range s.methods {
			if !m.remote {
				continue
			}
			one := &conduitv1.MethodSchema{Service: s.key, Method: m.name, Request: set.Of(m.request), Reply: set.Of(m.reply)}
			if one.GetRequest() != "" || one.GetReply() != "" {
				out.Methods = append(out.Methods, one)
			}
		}
	}
	if len(out.GetMethods()) == 0 {
		return nil
	}
	out.Definitions = set.Definitions()
	return out
}

// newServer makes the element's running self. The element has been checked.
func newServer(e Element, log *slog.Logger) *server {
	h := &host{log: log}
	x := &mux{services: map[string]map[string]*method{}, host: h, log: log}
	for _, s := range e.Services {
		methods := make(map[string]*method, len(s.methods))
		for _, m := range s.methods {
			methods[m.name] = m
		}
		x.services[s.key] = methods
	}
	return &server{element: e, host: h, mux: x}
}
