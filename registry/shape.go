package registry

import (
	"sync"

	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What shapes remembers at most: far more than a cluster has. Whoever describes its
// services otherwise each time shall not fill the memory.
const (
	mostShapes = 4096
	// maxShape is the longest description that is remembered, in bytes: a host lets
	// no element have a longer one. maxShapes bounds all of them.
	maxShape  = 64 << 10
	maxShapes = 16 << 20
)

// shapes are the methods of services, each description kept once however many
// instances have it: a pick among ten thousand peers reads one map, and not as many.
type shapes struct {
	mu    sync.Mutex
	known map[string]map[string]*Method
	size  int // of the descriptions in known, in bytes
}

// of returns the methods that a service describes. The result is immutable.
func (s *shapes) of(d *conduitv1.ServiceDescription) map[string]*Method {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil || len(text) > maxShape {
		return methodsOf(d) // not shared, and right as well
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if had := s.known[string(text)]; had != nil {
		return had
	}
	if s.known == nil || len(s.known) >= mostShapes || s.size+len(text) > maxShapes {
		s.known, s.size = map[string]map[string]*Method{}, 0
	}
	methods := methodsOf(d)
	s.known[string(text)] = methods
	s.size += len(text)
	return methods
}

func methodsOf(d *conduitv1.ServiceDescription) map[string]*Method {
	methods := make(map[string]*Method, len(d.GetMethods()))
	for _, m := range d.GetMethods() {
		methods[m.GetName()] = methodOf(m)
	}
	return methods
}
