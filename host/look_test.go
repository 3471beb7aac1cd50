package host

import (
	"slices"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// describing makes an offline element that has described itself, with a.B, a.B#named
// and methods Free, Heavy (10 units) and Safe (idempotent).
func describing(deployment, name string, s State) *element {
	e := offlineElement(deployment, name, s)
	d := &conduitv1.Description{Element: name}
	for _, service := range []string{"a.B", "a.B#named"} {
		d.Services = append(d.Services, &conduitv1.ServiceDescription{Name: service, Methods: []*conduitv1.MethodDescription{
			{Name: "Free", Remote: true}, {Name: "Heavy", Remote: true, Units: 10}, {Name: "Safe", Remote: true, Idempotent: true},
		}})
	}
	e.status.Description = d
	if s.Serving() {
		e.gen = newGeneration(e, d, nil)
	}
	return e
}

func TestLook(t *testing.T) {
	first, second := byID("one", "two")
	h := offline(t, describing(first, "e", Starting), describing(second, "e", Ready), describing("crashed", "c", CrashLooping),
		offlineElement("new", "", Starting), describing("off", "e", Disabled))
	const (
		hosted = 1 << iota
		ready
		room
		idempotent
		deployed
	)
	this, id := testInstance.String(), address.UniqueDeploymentID(second).String()
	for _, c := range []struct {
		addr, method string
		units        uint32
		want         int
	}{
		{"*://*/e/a.B", "Free", 0, hosted | ready | room},
		{"*://*/e/a.B#named", "Safe", 0, hosted | ready | room | idempotent},
		{this + "://" + id + "/e/a.B", "Safe", 0, deployed | hosted | ready | room | idempotent},
		{address.UniqueInstanceID("other").String() + "://*/e/a.B", "Free", 0, 0},
		{"*://*/e[0]/a.B", "Free", 0, hosted}, // an ordinal does not slide
		{"*://*/e[1]/a.B", "Free", 0, hosted | ready | room},
		{"*://*/e[2]/a.B", "Free", 0, 0}, // a scan leaves out what is turned off
		{"*://off/e/a.B", "Free", 0, deployed | hosted},
		{"*://" + first + "/e/a.B", "Safe", 0, deployed | hosted},
		{"*://crashed/c/a.B", "Free", 0, deployed | hosted},
		{"*://" + second + "/none/a.B", "Free", 0, deployed},
		{"*://none/e/a.B", "Free", 0, 0},
		{"*://new/whatever/a.B", "Free", 0, deployed | hosted}, // it has yet to say
		{"*://*/whatever/a.B", "Free", 0, 0},
		{"*://*/e/a.None", "Free", 0, hosted | ready | room}, // the call tells what is wrong with it
		{"*://*/e/a.B", "Heavy", 0, hosted | ready | room},
		{"*://*/e/a.B", "Heavy", 15, hosted | ready | room},
		{"*://*/e/a.B", "Heavy", 16, hosted | ready},
		{"*://*/e/a.B", "Free", 16, hosted | ready},
	} {
		h.o.Budget = budget.New(15)
		a := address.MustParse(c.addr)
		want := Standing{Hosted: c.want&hosted != 0, Ready: c.want&ready != 0, Room: c.want&room != 0, Idempotent: c.want&idempotent != 0, Deployed: c.want&deployed != 0}
		if got := h.Look(a, c.method, c.units); got != want {
			t.Errorf("%s %s of %d units: %+v, want %+v", c.addr, c.method, c.units, got, want)
		}
		if n := testing.AllocsPerRun(100, func() { h.Look(a, c.method, c.units) }); n != 0 {
			t.Errorf("%s: a look costs %v allocations", c.addr, n)
		}
	}

	// What a look says follows what the host does.
	a := address.MustParse("*://*/e/a.B")
	h.Cordon(true)
	if s := h.Look(a, "Heavy", 0); s.Room || !s.Ready {
		t.Errorf("cordoned: %+v", s)
	}
	if s := h.Look(a, "Free", 0); !s.Room {
		t.Errorf("cordoned, without units: %+v", s)
	}
	h.Cordon(false)
	g := h.elements[second].gen
	g.el.inflight.Store(int64(h.o.Concurrency))
	if s := h.Look(a, "Free", 0); s.Room || !s.Ready {
		t.Errorf("as many calls as it may serve: %+v", s)
	}
	g.el.inflight.Store(0)
	g.drain()
	if s := h.Look(a, "Free", 0); s.Ready || !s.Hosted {
		t.Errorf("a generation that drains: %+v", s)
	}
	g.state.Store(0)
	h.draining.Store(true)
	if s := h.Look(a, "Free", 0); s.Ready || !s.Hosted {
		t.Errorf("a host that drains: %+v", s)
	}
}

func TestNodesAndServices(t *testing.T) {
	first, second := byID("one", "two")
	idOf := func(name string) string { return address.UniqueDeploymentID(name).String() }
	h := offline(t, describing(first, "e", CrashLooping), describing(second, "e", Ready), describing("crashed", "c", CrashLooping),
		offlineElement("new", "", Starting), describing("off", "e", Disabled))
	elsewhere := address.UniqueInstanceID("other").String()
	for addr, want := range map[string][]string{
		"*://*/e/a.B":                        {idOf(first), idOf(second)},
		testInstance.String() + "://*/e/a.B": {idOf(first), idOf(second)},
		"*://*/e[1]/a.B":                     {idOf(second)},
		"*://*/e[2]/a.B":                     nil,
		"*://" + first + "/e/a.B":            {idOf(first)},
		"*://off/e/a.B":                      {idOf("off")},
		"*://new/e/a.B":                      nil,
		"*://none/e/a.B":                     nil,
		elsewhere + "://*/e/a.B":             nil,
	} {
		if got := h.Nodes(address.MustParse(addr)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}

	key := func(s string) address.ServiceKey {
		k, err := address.ParseServiceKey(s)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, c := range []struct{ deployment, service, want string }{
		{"*", "a.B", "*://*/e/a.B"},
		{second, "a.B#named", "*://" + second + "/e/a.B#named"},
		{idOf("crashed"), "a.B", "*://" + idOf("crashed") + "/c/a.B"},
		{"new", "a.B", ""},
		{"none", "a.B", ""},
		{"*", "a.None", ""},
		{"not a name", "a.B", ""},
	} {
		a, ok := h.FindService(c.deployment, key(c.service))
		if ok != (c.want != "") || a.String() != c.want {
			t.Errorf("%s in %s: %s, %v; want %q", c.service, c.deployment, a, ok, c.want)
		}
	}
}

// TestTake: a call that an element makes, and that whoever was asked sends back
// to this host, is dispatched as if nobody had been asked.
func TestTake(t *testing.T) {
	var r *rig
	asked := make(chan Origin, 100) // the link's reader must not wait
	r = newRigWith(t, func(o *Options) {
		o.FromPlugin = func(from Origin, in *link.Incoming) {
			asked <- from
			if err := r.h.Take(from, in, in.Invoke); err != nil {
				in.Refuse(err)
			}
		}
	}, "echo", "other")
	r.ready()
	to := "*://other/other/test.Fixture"
	for _, c := range []struct{ as, want string }{
		{"caller", "other ada user via echo/echo"},
		{"self", "other element:echo user via echo/echo"},
		{"orphan", "other  anonymous via echo/echo"},
	} {
		if got, err := r.call(echo, "Call", c.as+" "+to+" Who"); err != nil || got != c.want {
			t.Errorf("as %s: %q, %v; want %q", c.as, got, err, c.want)
		}
		if o := <-asked; o.Deployment != "echo" || !slices.Equal(o.Chain, []string{"echo/echo"}) {
			t.Errorf("asked of %+v", o)
		}
	}
	// An element that calls itself: the chain grows.
	if got, err := r.call(echo, "CallTwice", "caller "+to+" Who"); err != nil || got != "other ada user via echo/echo,echo/echo" {
		t.Errorf("through two: %q, %v", got, err)
	}
	_, err := r.call(echo, "CallLoop", "")
	wantReason(t, err, conduit.ReasonCallLoop, conduit.Refused)
}

func TestToPeer(t *testing.T) {
	in := &frame.Invoke{
		Instance: []byte("i"), Deployment: []byte("d"), Element: []byte("e"), Service: []byte("s"), Method: []byte("m"), Units: 3, Background: true,
		HasAs: true, As: frame.AsWhom{Kind: frame.AsSession, Session: []byte("CANARY")}, Parent: 7, Attempt: 1, Chain: [][]byte{[]byte("forged")},
		HasCaller: true, Caller: frame.Caller{User: []byte("root")}, HasData: true, Data: frame.Data{Bytes: []byte("x"), Last: true}, TraceParent: []byte("t"),
	}
	from := Origin{Principal: Principal{User: "ada", Level: conduit.System}, Chain: []string{"a/a", "b/b"}}
	out, err := from.ToPeer(in, 2)
	if err != nil {
		t.Fatal(err)
	}
	if out.As.Kind != frame.AsVouched || string(out.As.Name) != "ada" || out.As.Level != uint8(conduit.Superuser) || out.As.Session != nil || !out.HasAs {
		t.Errorf("as whom: %+v", out.As)
	}
	if out.Parent != 0 || out.HasCaller || out.Caller.User != nil || out.Attempt != 2 || len(out.Chain) != 2 || string(out.Chain[1]) != "b/b" {
		t.Errorf("got %+v", out)
	}
	if string(out.Instance) != "i" || string(out.Deployment) != "d" || string(out.Method) != "m" || out.Units != 3 || !out.Background || !out.HasData || string(out.TraceParent) != "t" {
		t.Errorf("what the call is has changed: %+v", out)
	}
	if string(in.As.Session) != "CANARY" || in.Parent != 7 {
		t.Error("the element's Invoke was changed")
	}
	if out, err := (Origin{Chain: []string{"a/a"}}).ToPeer(in, 0); err != nil || out.As.Kind != frame.AsAnonymous || out.As.Session != nil {
		t.Errorf("for nobody: %+v, %v", out.As, err)
	}
	from.Chain = make([]string, maxChain+1)
	if _, err := from.ToPeer(in, 0); err == nil || err.Reason != conduit.ReasonCallLoop {
		t.Errorf("%d elements: %v", len(from.Chain), err)
	}
}
