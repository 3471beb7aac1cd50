//go:build !linux

package sandbox

import "testing"

func closeOnExec() error { return nil }

// TestElsewhere: where there is no sandbox, what is required is refused, and best effort
// says that it is nothing.
func TestElsewhere(t *testing.T) {
	if _, err := New(Spec{Mode: Required}, nil); err == nil {
		t.Error("what is required is to be had")
	}
	s, err := New(Spec{Mode: BestEffort}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if e, err := s.Started(t.Context(), 1); err != nil || len(e.Missing()) == 0 || len(e.Problems) == 0 {
		t.Errorf("%+v, %v", e, err)
	}
}

func probe(string) {}
