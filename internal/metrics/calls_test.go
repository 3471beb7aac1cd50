package metrics

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

const greet = "deployment=greeter,method=Greet,outcome=executed,service=example.Greeter,side=server"

func TestCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{})
		c := m.Calls().Method(Server, "greeter", "example.Greeter", "Greet")
		scrape(t, m).want(t, "conduit_call", page{
			"conduit_calls_total{code=ok," + greet + "}": 0,
			"conduit_calls_in_flight{side=server}":       0,
			"conduit_calls_in_flight{side=client}":       0,
		})

		first, second := c.Begin(), c.Begin()
		if p := scrape(t, m); p["conduit_calls_in_flight{side=server}"] != 2 || p["conduit_calls_in_flight{side=client}"] != 0 {
			t.Errorf("two calls are in flight: %v", p.of("conduit_calls_in_flight"))
		}
		time.Sleep(3 * time.Second)
		c.End(first, 0, conduit.OutcomeUnknown)
		time.Sleep(1 * time.Second)
		c.End(second, conduit.Unavailable, conduit.Refused)
		c.Refuse(conduit.PermissionDenied, conduit.Refused)

		labels := "{deployment=greeter,method=Greet,service=example.Greeter,side=server}"
		failed := func(code, outcome string) string {
			return "conduit_calls_total{code=" + code + "," + strings.Replace(greet, "executed", outcome, 1) + "}"
		}
		scrape(t, m).want(t, "conduit_call", page{
			"conduit_calls_total{code=ok," + greet + "}":   1,
			failed("unavailable", "refused"):               1,
			failed("permission_denied", "refused"):         1,
			"conduit_call_duration_seconds_count" + labels: 2, // what was refused has none
			"conduit_call_duration_seconds_sum" + labels:   7,
			"conduit_calls_in_flight{side=server}":         0,
			"conduit_calls_in_flight{side=client}":         0,
		})
	})
}

// Numbers that a peer or a plugin made up make no labels.
func TestCodesOfAnotherWorld(t *testing.T) {
	m := New(Options{})
	c := m.Calls().Method(Server, "d", "s", "m")
	c.Refuse(17, 4)
	c.Refuse(255, 255)
	scrape(t, m).want(t, "conduit_calls_total{code=unknown", page{
		"conduit_calls_total{code=unknown,deployment=d,method=m,outcome=unknown,service=s,side=server}": 2,
	})
}

func TestLabelsAreDeclared(t *testing.T) {
	c := New(Options{}).Calls()
	c.Method(Server, "greeter", "example.Greeter", "Greet")
	c.Method(Server, "greeter", "example.Greeter", "Part")
	c.Method(Server, "unused", "example.Unused", "Rest")
	c.Declare("remote", map[string][]string{"example.Remote": {"Do"}})
	id := address.UniqueDeploymentID("greeter").String()
	for _, tc := range []struct {
		side Side
		in   series
		want series
	}{
		{Server, series{"greeter", "example.Greeter", "Greet"}, series{"greeter", "example.Greeter", "Greet"}},
		{Server, series{id, "example.Greeter", "Greet"}, series{"greeter", "example.Greeter", "Greet"}},
		{Server, series{strings.ToUpper(id), "example.Greeter", "Greet"}, series{"greeter", "example.Greeter", "Greet"}},
		{Server, series{"*", "example.Greeter", "Greet"}, series{"*", "example.Greeter", "Greet"}},
		{Server, series{"", "example.Greeter", "Greet"}, series{"*", "example.Greeter", "Greet"}},
		{Server, series{"*", "example.Greeter", "Rest"}, series{"*", "example.Greeter", unknown}},
		{Server, series{"*", "x", "Greet"}, series{"*", unknown, unknown}},
		{Server, series{"greeter", "example.Greeter", "greet"}, series{"greeter", "example.Greeter", unknown}},
		{Server, series{"greeter", "example.Unused", "Rest"}, series{"greeter", unknown, unknown}},
		{Server, series{"greeter", "", ""}, series{"greeter", unknown, unknown}},
		{Server, series{"grreeter", "example.Greeter", "Greet"}, series{unknown, unknown, unknown}},
		{Server, series{address.UniqueDeploymentID("x").String(), "example.Greeter", "Greet"}, series{unknown, unknown, unknown}},
		{Server, series{unknown, unknown, unknown}, series{unknown, unknown, unknown}},
		{Server, series{"\xff", "\xff", "\xff"}, series{unknown, unknown, unknown}},
		// What others offer, no caller of this instance can name; what this one
		// offers may be called from here, too.
		{Server, series{"remote", "example.Remote", "Do"}, series{unknown, unknown, unknown}},
		{Client, series{"remote", "example.Remote", "Do"}, series{"remote", "example.Remote", "Do"}},
		{Client, series{"greeter", "example.Greeter", "Greet"}, series{"greeter", "example.Greeter", "Greet"}},
		{Client, series{"*", "example.Remote", "Do"}, series{"*", "example.Remote", "Do"}},
	} {
		got := c.Find(tc.side, tc.in.deployment, tc.in.service, tc.in.method)
		if want := c.methods[tc.side][tc.want]; got == nil || got != want {
			t.Errorf("%s %q is not counted as %q", tc.side, tc.in, tc.want)
		}
	}
}

// Whatever callers think up, the page does not grow.
func TestCallersMakeNoSeries(t *testing.T) {
	m := New(Options{})
	c := m.Calls()
	c.Method(Server, "d", "s", "m")
	server := c.Observer(Server)
	for i := range 1000 {
		x := fmt.Sprint("x", i)
		server.Refused(x, x, x, conduit.NotFound, conduit.Refused)
		server.Refused("d", x, x, conduit.NotFound, conduit.Refused)
		server.Refused("d", "s", x, conduit.NotFound, conduit.Refused)
		server.Refused("*", x, x, conduit.NotFound, conduit.Refused)
	}
	p := scrape(t, m)
	for _, at := range []string{
		"deployment=unknown,method=unknown,outcome=refused,service=unknown",
		"deployment=d,method=unknown,outcome=refused,service=unknown",
		"deployment=d,method=unknown,outcome=refused,service=s",
		"deployment=*,method=unknown,outcome=refused,service=unknown",
	} {
		if n := p["conduit_calls_total{code=not_found,"+at+",side=server}"]; n != 1000 {
			t.Errorf("%s: %v refusals, want 1000", at, n)
		}
	}
	if n := len(p.of("conduit_calls_total{code=not_found")); n != 4 {
		t.Errorf("%d series of refusals, want 4", n)
	}
}

// Not even who may declare can fill the memory, and what others declare takes no
// room from what is hosted here.
func TestDeclarationsAreLimited(t *testing.T) {
	var log bytes.Buffer
	m := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	c := m.Calls()
	for i := range 3 * maxDeclared {
		c.Declare(fmt.Sprint("remote", i), map[string][]string{"s": {"m"}})
	}
	if got := c.catalogs[Client].size; got > maxDeclared {
		t.Errorf("peers have declared %d names, at most %d are kept", got, maxDeclared)
	}
	if got := c.Find(Client, fmt.Sprint("remote", 2*maxDeclared), "s", "m"); got != c.Find(Client, "?", "", "") {
		t.Error("what found no room is not counted as unknown")
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want one: %s", n, &log)
	}
	c.Method(Server, "own", "s", "m")
	for _, side := range []Side{Server, Client} {
		if c.Find(side, "own", "s", "m") == c.Find(side, "?", "", "") {
			t.Errorf("%s: what is hosted here is not told apart", side)
		}
	}
	for i := range 3 * maxDeclared {
		c.Method(Server, fmt.Sprint("own", i), "s", "m")
	}
	if got := len(c.methods[Server]); got > maxDeclared {
		t.Errorf("%d methods are kept", got)
	}
	for _, bad := range []string{"", "*", "\xff", strings.Repeat("a", maxLabel+1)} {
		c := New(Options{}).Calls()
		c.Declare(bad, map[string][]string{"s": {"m"}})
		if n := c.catalogs[Client].size; n != 0 {
			t.Errorf("%.20q is declared as a deployment", bad)
		}
	}
}

// A method is the same to all that declare it: the next process of an element goes
// on where the last has ended.
func TestMethodsOutliveProcesses(t *testing.T) {
	c := New(Options{}).Calls()
	m := c.Method(Server, "d", "s", "m")
	if c.Method(Server, "d", "s", "m") != m || c.Find(Server, "d", "s", "m") != m {
		t.Error("one method has two counters")
	}
	if c.Method(Client, "d", "s", "m") == m {
		t.Error("both sides have one counter")
	}
}

// The interfaces as another package would declare them.
type (
	theirMethod = interface {
		Begin() time.Duration
		End(begun time.Duration, code conduit.Code, outcome conduit.Outcome)
		Refuse(code conduit.Code, outcome conduit.Outcome)
	}
	theirObserver = interface {
		Method(deployment, service, method string) theirMethod
		Refused(deployment, service, method string, code conduit.Code, outcome conduit.Outcome)
	}
)

func TestObserver(t *testing.T) {
	m := New(Options{})
	var o theirObserver //nolint:staticcheck // that it can be assigned is what the test is about
	o = m.Calls().Observer(Server)
	method := o.Method("d", "s", "m")
	method.End(method.Begin(), 0, conduit.Executed)
	o.Refused("d", "s", "m", conduit.Unavailable, conduit.Refused)
	scrape(t, m).want(t, "conduit_calls_total", page{
		"conduit_calls_total{code=ok,deployment=d,method=m,outcome=executed,service=s,side=server}":         1,
		"conduit_calls_total{code=unavailable,deployment=d,method=m,outcome=refused,service=s,side=server}": 1,
	})
}

func TestDurationsFallIntoBuckets(t *testing.T) {
	var h durations
	for _, d := range []time.Duration{-1, 0, bounds[0], bounds[0] + 1, bounds[len(bounds)-1], bounds[len(bounds)-1] + 1, time.Hour} {
		h.add(d)
	}
	n, _, cumulative := h.read()
	if n != 7 {
		t.Errorf("%d calls, want 7", n)
	}
	for le, want := range map[float64]uint64{0.0001: 3, 0.00025: 4, 30: 4, 60: 5} {
		if got, ok := cumulative[le]; !ok || got != want {
			t.Errorf("%d calls took up to %vs, want %d", got, le, want)
		}
	}
	for i := 1; i < len(bounds); i++ {
		if bounds[i] <= bounds[i-1] {
			t.Errorf("bound %v follows %v", bounds[i], bounds[i-1])
		}
	}
	var short durations
	for range 1000 {
		short.add(400 * time.Nanosecond)
		short.add(600 * time.Nanosecond)
	}
	if _, s, _ := short.read(); s != 0.001 {
		t.Errorf("the sum of 2000 calls of 0.5µs on average is %v", s)
	}
}

// A scrape in the midst of calls shows numbers that fit together.
func TestScrapeWhileCalling(t *testing.T) {
	m := New(Options{})
	c := m.Calls()
	const callers, calls = 4, 2000
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			method := c.Method(Server, "d", "s", "m")
			for i := range calls {
				method.End(method.Begin(), conduit.Code(i%2), conduit.Executed)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	last := 0.0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		p := scrape(t, m)
		if n := p["conduit_calls_in_flight{side=server}"]; n < 0 || n > callers*calls {
			t.Fatalf("%v calls in flight", n)
		}
		n := p["conduit_call_duration_seconds_count{deployment=d,method=m,service=s,side=server}"]
		if n < last {
			t.Fatalf("the count of calls fell from %v to %v", last, n)
		}
		last = n
	}
	if last != callers*calls || scrape(t, m)["conduit_calls_in_flight{side=server}"] != 0 {
		t.Errorf("%v calls, want %d, and none in flight", last, callers*calls)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	c := New(Options{}).Calls()
	var o MethodObserver = c.Method(Server, "d", "s", "m")
	if n := testing.AllocsPerRun(1000, func() {
		o.End(o.Begin(), conduit.Unavailable, conduit.Executed)
		o.Refuse(conduit.NotFound, conduit.Refused)
		c.Find(Client, "d", "s", "m").Refuse(conduit.NotFound, conduit.Refused)
	}); n != 0 {
		t.Errorf("counting a call allocates %v times", n)
	}
}

func BenchmarkCall(b *testing.B) {
	var o MethodObserver = New(Options{}).Calls().Method(Server, "d", "s", "m")
	b.ReportAllocs()
	for b.Loop() {
		o.End(o.Begin(), 0, conduit.Executed)
	}
}

func BenchmarkCallsInParallel(b *testing.B) {
	var o MethodObserver = New(Options{}).Calls().Method(Server, "d", "s", "m")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			o.End(o.Begin(), 0, conduit.Executed)
		}
	})
}

func BenchmarkFind(b *testing.B) {
	c := New(Options{}).Calls()
	c.Method(Server, "greeter", "example.Greeter", "Greet")
	b.ReportAllocs()
	for b.Loop() {
		c.Find(Client, "greeter", "example.Greeter", "Greet")
	}
}
