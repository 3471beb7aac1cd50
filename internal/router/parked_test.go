package router

import (
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// A call that was parked before it came here goes the same way as any other, on to
// the next peer included, and so does one whose address is none.
func TestPassParked(t *testing.T) { inBothModes(t, testPassParked) }

func testPassParked(t *testing.T, m mode) {
	t.Helper()
	r := newRig(t, m, nil, startPeer(t, "full", full), startPeer(t, "free", answers))
	near, far := link.Pipe(16)
	served := link.New(far, link.Options{Handler: handlerFunc(func(in *link.Incoming) {
		p := in.Park()
		go r.router.PassParked(p, r.door)
	})})
	caller := link.New(near, link.Options{Dialer: true})
	t.Cleanup(func() {
		caller.Close(link.CloseDone, "")
		<-caller.Done()
		<-served.Done()
	})
	for range 10 {
		got, err := conduit.Call[string](testContext(t), at{caller, link.NewRoute(address.MustParse(workAddress))}, "Plain", "x")
		if err != nil || got != "free" {
			t.Errorf("%q, %v", got, err)
		}
	}
	_, err := conduit.Call[string](testContext(t), at{caller, link.NewRoute(address.MustParse("*://none/none/test.Work"))}, "Plain", "x")
	if e := conduit.AsError(err, 0); e.Code != conduit.NotFound && e.Code != conduit.Unavailable {
		t.Errorf("nobody's address: %v", err)
	}
}
