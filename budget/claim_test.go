package budget

import (
	"testing"

	"github.com/elemental-conduit/conduit"
)

// What a call has reserved can be claimed alone: nothing of what is available goes into
// it, and a claim of more leaves the reservation as it was.
func TestClaimReserved(t *testing.T) {
	b := New(100)
	r, err := b.Reserve(5)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := r.ClaimReserved(6); c != nil || err != nil || r.Units() != 5 {
		t.Errorf("more than is reserved: %v, %v; %d are left", c, err, r.Units())
	}
	b.Cordon(true)
	c, err := r.ClaimReserved(4)
	if err != nil || c.Units() != 4 || r.Units() != 1 {
		t.Fatalf("%v, %v", c, err)
	}
	if s := check(t, b); s.Available != 95 || s.Claimed != 4 || s.Reserved != 1 {
		t.Errorf("%+v", s)
	}
	_, err = r.ClaimReserved(0)
	want(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified)
	r.Release()
	if c, err := r.ClaimReserved(1); c != nil || err != nil {
		t.Errorf("after its release: %v, %v", c, err)
	}
	c.Release()
	idle(t, b)
}
