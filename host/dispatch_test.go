package host

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// offline makes a host with elements that have no process.
func offline(t *testing.T, elements ...*element) *Host {
	t.Helper()
	h, err := New(Options{Dir: "-", Private: "-", Instance: testInstance})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		e.h = h
		h.elements[e.deployment] = e
	}
	h.rebuild()
	return h
}

func offlineElement(deployment, name string, s State) *element {
	e := &element{deployment: deployment, deploymentID: address.UniqueDeploymentID(deployment)}
	e.status.Name, e.status.State = name, s
	if s.Serving() {
		e.gen = newGeneration(e, &conduitv1.Description{Element: name, Services: []*conduitv1.ServiceDescription{{
			Name: "a.B", Methods: []*conduitv1.MethodDescription{{Name: "M", Remote: true, MinLevel: conduitv1.Level_LEVEL_USER}},
		}}}, nil)
	}
	return e
}

func invokeFrame(deployment, element string, ordinal int) *frame.Invoke {
	in := &frame.Invoke{Deployment: []byte(deployment), Element: []byte(element), Service: []byte("a.B"), Method: []byte("M")}
	if ordinal >= 0 {
		in.HasOrdinal, in.Ordinal = true, uint32(ordinal)
	}
	return in
}

// byID sorts names as a scan does.
func byID(a, b string) (first, second string) {
	if address.UniqueDeploymentID(a).Compare(address.UniqueDeploymentID(b)) > 0 {
		return b, a
	}
	return a, b
}

// TestOrdinalNeverSlides: an ordinal whose element is not ready is refused; only
// without one the next is taken.
func TestOrdinalNeverSlides(t *testing.T) {
	first, second := byID("one", "two")
	h := offline(t, offlineElement(first, "e", Starting), offlineElement(second, "e", Ready), offlineElement("new", "", Starting), offlineElement("bad", "", Refused))
	user := Principal{Level: conduit.User}
	for _, c := range []struct {
		deployment, element string
		ordinal             int
		want                string // a deployment, or a reason
	}{
		{"*", "e", -1, second},
		{"", "e", -1, second},
		{"*", "e", 0, conduit.ReasonPluginStarting},
		{"*", "e", 1, second},
		{"*", "e", 2, conduit.ReasonElementNotFound},
		{first, "e", -1, conduit.ReasonPluginStarting},
		{second, "e", 0, second},
		{second, "e", 1, conduit.ReasonElementNotFound},
		{"new", "whatever", -1, conduit.ReasonPluginStarting},
		{"bad", "whatever", -1, conduit.ReasonPluginFailed},
		{"*", "whatever", -1, conduit.ReasonElementNotFound},
	} {
		t.Run(fmt.Sprintf("%s/%s[%d]", c.deployment, c.element, c.ordinal), func(t *testing.T) {
			g, _, err := h.admit(invokeFrame(c.deployment, c.element, c.ordinal), user, 0, "")
			switch {
			case err != nil:
				if err.Reason != c.want || err.Outcome != conduit.Refused {
					t.Errorf("got %v, want %s", err, c.want)
				}
			case g.el.deployment != c.want:
				t.Errorf("got %s, want %s", g.el.deployment, c.want)
			default:
				g.CallEnded(g.callers.add(nil, user, "", nil, "", nil, nil), 0, 0)
			}
		})
	}
}

func TestChainDepth(t *testing.T) {
	h := offline(t, offlineElement("d", "e", Ready))
	user := Principal{Level: conduit.User}
	if _, _, err := h.admit(invokeFrame("d", "e", -1), user, 15, "x"); err != nil {
		t.Errorf("16 elements: %v", err)
	}
	for depth, last := range map[int]string{17: "", 16: "x"} {
		if _, _, err := h.admit(invokeFrame("d", "e", -1), user, depth, last); err == nil || err.Reason != conduit.ReasonCallLoop || err.Retryable {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

// TestAdmitAllocates nothing for a call that is passed on.
func TestAdmitAllocates(t *testing.T) {
	h := offline(t, offlineElement("d", "e", Ready))
	user := Principal{User: "ada", Level: conduit.User}
	for _, in := range []*frame.Invoke{invokeFrame("d", "e", -1), invokeFrame("*", "e", 0), invokeFrame(address.UniqueDeploymentID("d").String(), "e", -1)} {
		in.Instance = []byte(testInstance.String())
		n := testing.AllocsPerRun(1000, func() {
			g, _, err := h.admit(in, user, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			units, err := h.judge(nil, in, 0) // most calls cost none
			if err != nil {
				t.Fatal(err)
			}
			g.CallEnded(g.callers.add(nil, user, "peer", nil, "", units, nil), 0, 0)
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", in.Deployment, n)
		}
	}
}

// TestGenerationDrains: nobody enters a draining generation, and it is idle when
// the last has left, whatever the order.
func TestGenerationDrains(t *testing.T) {
	e := offlineElement("d", "e", Ready)
	g := e.gen
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for g.enter() {
				g.leave()
			}
		})
	}
	if !g.enter() {
		t.Fatal("it drains already")
	}
	g.drain()
	wg.Wait()
	select {
	case <-g.idle:
		t.Fatal("idle with a call inside")
	default:
	}
	if g.enter() {
		t.Fatal("entered a draining generation")
	}
	g.leave()
	<-g.idle
	if n := g.calls(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// TestCallers: a tag finds its caller while the call lives, never a later one.
func TestCallers(t *testing.T) {
	var cs callers
	a := cs.add(nil, Principal{User: "ada"}, "", nil, "d/e", nil, nil)
	b := cs.add(nil, Principal{User: "bob"}, "peer", [][]byte{[]byte("x/y")}, "d/e", nil, nil)
	if c, ok := cs.find(a); !ok || c.User != "ada" || len(c.chain) != 1 {
		t.Errorf("got %+v, %v", c, ok)
	}
	cs.remove(a)
	if _, ok := cs.find(a); ok {
		t.Error("a call that has ended is found")
	}
	again := cs.add(nil, Principal{User: "eve"}, "", nil, "", nil, nil)
	if _, ok := cs.find(a); ok || again == a {
		t.Error("a tag found the next user of its slot")
	}
	if c, ok := cs.find(b); !ok || c.User != "bob" || c.peer != "peer" || len(c.chain) != 2 {
		t.Errorf("got %+v, %v", c, ok)
	}
	if _, ok := cs.find(99); ok {
		t.Error("a tag that never was is found")
	}
}

// A link may not take all of an element: there is a place left for another one, and for a
// third that comes while the second has some.
func TestLinkShare(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(o *Options) { o.Concurrency = 16 }, "echo")
	r.ready()
	// take makes calls until one is refused, and returns how many were not.
	take := func(c *link.Conn) (list []conduit.Exchange) {
		for {
			x := invoke(r.ctx, c, echo, "Wait", "")
			if _, err := x.Recv(r.ctx); err != nil {
				if e := wantReason(t, err, conduit.ReasonOverloaded, conduit.Refused); !e.Retryable {
					t.Error(e)
				}
				return list
			}
			list = append(list, x)
		}
	}
	second, third := r.dial("bob", conduit.User), r.dial("eve", conduit.User)
	all := take(r.client)
	if len(all) != 14 { // 14 = 7 * 2 free places
		t.Fatalf("one link has taken %d of 16", len(all))
	}
	if got, err := invokeOnce(r, second, "Echo", "hi"); err != nil || got != "hi" {
		t.Errorf("another link: %q, %v", got, err)
	}
	// What the first one gives back is not its alone.
	for _, x := range all[4:] {
		x.Cancel(context.Canceled)
	}
	r.until("them to end", func(m map[string]ElementStatus) bool { return m["echo"].Calls == 4 })
	if n := len(take(second)); n != 11 { // 4 + 11 = 15: the last place is not for one that has 11
		t.Errorf("the second has taken %d beside 4 of the first", n)
	}
	if got, err := invokeOnce(r, third, "Echo", "hi"); err != nil || got != "hi" {
		t.Errorf("a third link: %q, %v", got, err)
	}
	if n := len(r.h.table.Load().order[0].elements[0].gen.callers.links); n != 2 {
		t.Errorf("%d links are remembered, 2 have calls", n)
	}
}

func invokeOnce(r *rig, c *link.Conn, method, data string) (string, error) {
	m, err := invoke(r.ctx, c, echo, method, data).Recv(r.ctx)
	return string(m.Data), err
}

// TestSnapshotIsTrueOfCalls: an element changes first and the table a little later. Who
// has read of a generation in a snapshot gets it with the next call all the same.
func TestSnapshotIsTrueOfCalls(t *testing.T) {
	e := offlineElement("a", "x", Ready)
	h := offline(t, e)
	next := newGeneration(e, e.gen.desc, nil)
	e.mu.Lock()
	e.gen = next
	e.status.Generation = 2
	e.mu.Unlock()
	if s := h.Snapshot(); len(s) != 1 || s[0].Elements[0].Generation != 2 {
		t.Fatalf("%+v", s)
	}
	route, err := h.table.Load().find(invokeFrame("a", "x", 0))
	if err != nil || route.gen != next {
		t.Errorf("a call finds the generation before (%v)", err)
	}
}
