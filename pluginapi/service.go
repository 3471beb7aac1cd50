package pluginapi

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Service is an interface that an element exports: a name, and methods that
// [Handle] and its likes add. Fill it on one goroutine, before [Main]. Mistakes
// are kept, and reported by Main.
type Service struct {
	key      string
	methods  []*method
	mistakes []string
}

// ServiceOption says something of a service: see [Named].
type ServiceOption func(*serviceSettings)

type serviceSettings struct {
	name  string
	named bool
}

// Named tells this service from others of the same type in one element: a
// service example.Greeter that is Named("formal") is called as
// example.Greeter#formal.
func Named(name string) ServiceOption {
	return func(s *serviceSettings) { s.name, s.named = name, true }
}

// NewService makes a service of a type, by its fully qualified name, such as
// "example.Greeter".
func NewService(typ string, opts ...ServiceOption) *Service {
	var set serviceSettings
	for _, o := range opts {
		o(&set)
	}
	s := &Service{key: typ}
	if set.named {
		s.key += "#" + set.name
	}
	key, err := address.NewServiceKey(typ, set.name)
	switch {
	case strings.Contains(typ, "#"):
		s.mistake("its type holds a '#'; use Named for the part after it")
	case err != nil:
		s.mistake("%v", err)
	case set.named && set.name == "":
		s.mistake("Named has an empty name; leave it out for none")
	default:
		s.key = key.String()
	}
	return s
}

// Name returns the service's key: "Type" or "Type#name".
func (s *Service) Name() string { return s.key }

func (s *Service) mistake(format string, args ...any) {
	s.mistakes = append(s.mistakes, fmt.Sprintf("service %q: ", s.key)+fmt.Sprintf(format, args...))
}

// method is a registered method: what its author said of it, and how to run it.
type method struct {
	name       string
	shape      conduitv1.Shape
	remote     bool
	level      Level
	units      uint32
	idempotent bool
	deprecated string
	timeout    time.Duration
	request    reflect.Type
	reply      reflect.Type
	content    []string
	// run is one call: it receives, runs the handler, and hands over its result.
	run func(ctx context.Context, c *call) error

	mistakes []string
}

func (m *method) mistake(format string, args ...any) {
	m.mistakes = append(m.mistakes, fmt.Sprintf(format, args...))
}

// add registers a method and keeps what is wrong with it.
func (s *Service) add(m *method, opts []MethodOption) {
	m.level = User
	if why := checkMethodName(m.name); why != "" {
		m.mistake("%s", why)
	}
	if slices.ContainsFunc(s.methods, func(o *method) bool { return o.name == m.name }) {
		m.mistake("it is there twice")
	}
	if m.run == nil {
		m.mistake("its handler is nil")
	}
	for _, t := range []reflect.Type{m.request, m.reply} {
		types, err := conduit.ContentTypes(t)
		if err != nil {
			m.mistake("%v", err)
		}
		for _, ct := range types {
			if !slices.Contains(m.content, ct) {
				m.content = append(m.content, ct)
			}
		}
	}
	for _, o := range opts {
		o(m)
	}
	for _, why := range m.mistakes {
		s.mistake("method %q: %s", m.name, why)
	}
	s.methods = append(s.methods, m)
}

// maxMethodName bounds a method's name: it travels with every call.
const maxMethodName = 128

func checkMethodName(name string) (why string) {
	switch {
	case name == "":
		return "its name is empty"
	case len(name) > maxMethodName:
		return fmt.Sprintf("its name has more than %d bytes", maxMethodName)
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '.' && r != '-') {
			return "its name must be a letter followed by letters, digits, '_', '.' and '-'"
		}
	}
	return ""
}

func (m *method) describe() *conduitv1.MethodDescription {
	return &conduitv1.MethodDescription{
		Name:          m.name,
		Remote:        m.remote,
		Shape:         m.shape,
		MinLevel:      conduitv1.Level(m.level),
		Units:         m.units,
		Idempotent:    m.idempotent,
		Deprecated:    m.deprecated,
		TimeoutMicros: uint64(m.timeout.Microseconds()), //nolint:gosec // Timeout takes no negative
		RequestType:   conduit.TypeName(m.request),
		ReplyType:     conduit.TypeName(m.reply),
		ContentTypes:  m.content,
	}
}
