package registry

import (
	"sync"

	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// mostShapes bounds what shapes remembers: far more than a cluster has.
const mostShapes = 4096

// shapes are the methods of services, each description kept once however many
// instances have it: a pick among ten thousand peers reads one map, and not as many.
type shapes struct {
	mu    sync.Mutex
	known map[string]map[string]*Method
}

// of returns the methods that a service describes. The result is immutable.
func (s *shapes) of(d *conduitv1.ServiceDescription) map[string]*Method {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return methodsOf(d) // not shared, and right as well
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if had := s.known[string(text)]; had != nil {
		return had
	}
	if s.known == nil || len(s.known) >= mostShapes {
		s.known = map[string]map[string]*Method{}
	}
	methods := methodsOf(d)
	s.known[string(text)] = methods
	return methods
}

func methodsOf(d *conduitv1.ServiceDescription) map[string]*Method {
	methods := make(map[string]*Method, len(d.GetMethods()))
	for _, m := range d.GetMethods() {
		methods[m.GetName()] = methodOf(m)
	}
	return methods
}
