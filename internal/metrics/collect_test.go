package metrics

import (
	"bytes"
	"compress/gzip"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

func TestUnits(t *testing.T) {
	budget := Budget{Units: 1000, Available: 250, Claims: 3}
	peers := []Peer{
		{Name: "worker-1", Alive: true, Units: 500, Available: 100, Debit: 7},
		{Name: "worker-2", Units: 9000, Available: 9000}, // gone
		// Two that were given one name are shown as one.
		{Name: "worker-3", Alive: true, Units: 200, Available: 50, Debit: 1},
		{Name: "worker-3", Alive: true, Units: 300, Available: 100, Debit: 1},
	}
	m := New(Options{Budget: func() Budget { return budget }, Peers: func() []Peer { return peers }})
	p := scrape(t, m)
	p.want(t, "conduit_budget", page{"conduit_budget_units": 1000, "conduit_budget_available_units": 250, "conduit_budget_claims": 3})
	p.want(t, "conduit_peer", page{
		"conduit_peer_units{peer=worker-1}": 500, "conduit_peer_available_units{peer=worker-1}": 100, "conduit_peer_debit_units{peer=worker-1}": 7,
		"conduit_peer_units{peer=worker-3}": 500, "conduit_peer_available_units{peer=worker-3}": 150, "conduit_peer_debit_units{peer=worker-3}": 2,
	})
	p.want(t, "conduit_cluster", page{"conduit_cluster_available_ratio": 0.25})

	budget, peers = Budget{}, nil
	scrape(t, m).want(t, "conduit_cluster", page{}) // of nothing there is no part
}

func TestElements(t *testing.T) {
	elements := []Element{
		{Deployment: "greeter", Name: "greeter", State: "ready", Pid: 10, Restarts: 2},
		{Deployment: "broken", State: "refused"},
		// Two of one name in one deployment.
		{Deployment: "pair", Name: "half", State: "ready", Pid: 20, Restarts: 1},
		{Deployment: "pair", Name: "half", State: "backoff", Restarts: 4},
	}
	processes := map[int]usage{10: {begun: 1, started: 1000, resident: 4096, cpu: 5}, 20: {begun: 2, started: 2000, resident: 8192, cpu: 1}}
	m := New(Options{
		Elements: func() []Element { return elements },
		usage:    func(pid int) (usage, bool) { u, ok := processes[pid]; return u, ok },
	})
	const greeter = "{deployment=greeter,element=greeter}"
	p := scrape(t, m)
	if n := len(p.of("conduit_element_state{deployment=greeter")); n != len(states) {
		t.Errorf("%d states are shown of %d", n, len(states))
	}
	for at, want := range (page{
		"conduit_element_state{deployment=greeter,element=greeter,state=ready}":   1,
		"conduit_element_state{deployment=greeter,element=greeter,state=backoff}": 0,
		"conduit_element_state{deployment=broken,element=unknown,state=refused}":  1,
		"conduit_element_state{deployment=pair,element=half,state=ready}":         1,
		"conduit_element_state{deployment=pair,element=half,state=backoff}":       1,
		"conduit_element_restarts_total" + greeter:                                2,
		"conduit_element_restarts_total{deployment=pair,element=half}":            5,
		"conduit_element_start_seconds" + greeter:                                 1000,
		"conduit_element_resident_bytes" + greeter:                                4096,
		"conduit_element_cpu_seconds_total" + greeter:                             5,
	}) {
		if got, ok := p[at]; !ok || got != want {
			t.Errorf("%s is %v, want %v", at, got, want)
		}
	}
	if got := p.of("conduit_element_resident_bytes{deployment=broken"); len(got) != 0 {
		t.Errorf("what has no process uses memory: %v", got)
	}

	// It dies and comes back: the processor time goes on, and is not the new
	// process' alone.
	cpu := func() float64 { return scrape(t, m)["conduit_element_cpu_seconds_total"+greeter] }
	elements[0].Pid, elements[0].State = 0, "backoff"
	for range 3 {
		if got := cpu(); got != 5 {
			t.Errorf("without a process: %v", got)
		}
	}
	processes[10] = usage{begun: 9, started: 3000, cpu: 0.25} // the system has given the same pid
	elements[0].Pid = 10
	if got := cpu(); got != 5.25 {
		t.Errorf("with the next process: %v", got)
	}
	delete(processes, 10) // between the look at the host and the look at /proc
	if got := cpu(); got != 5.25 {
		t.Errorf("with a process that has just ended: %v", got)
	}
	elements = elements[1:]
	if p := scrape(t, m); len(p.of("conduit_element_state{deployment=greeter")) != 0 {
		t.Error("an element that is gone is shown")
	}
}

// What an element counts goes on over its processes; what it measures is what it says.
func TestMeasures(t *testing.T) {
	list := []Measure{
		{Deployment: "d", Element: "e", Name: "orders", Counter: true, Value: 5, Pid: 1},
		{Deployment: "d", Element: "e", Name: "queue", Value: 3, Pid: 1},
	}
	m := New(Options{Measures: func() []Measure { return list }})
	want := func(counted float64, queue ...float64) {
		t.Helper()
		p := scrape(t, m)
		if got := p["conduit_element_counted_total{deployment=d,element=e,name=orders}"]; got != counted {
			t.Errorf("counted: %v, want %v", got, counted)
		}
		if got, ok := p["conduit_element_measured{deployment=d,element=e,name=queue}"]; ok != (len(queue) > 0) || ok && got != queue[0] {
			t.Errorf("measured: %v %v, want %v", got, ok, queue)
		}
	}
	want(5, 3)
	list = list[:1] // the process has ended, and what it counted stays
	want(5)
	list = []Measure{{Deployment: "d", Element: "e", Name: "orders", Counter: true, Value: 2, Pid: 2}, {Deployment: "d", Element: "e", Name: "queue", Value: -1, Pid: 2}}
	want(7, -1)
	want(7, -1)
}

// A name that is no valid text costs its looks, and not the page.
func TestNamesThatAreNoText(t *testing.T) {
	m := New(Options{
		Version: "\xff",
		Elements: func() []Element {
			return []Element{{Deployment: "a\xff", Name: strings.Repeat("ü", 200), State: "\xfe"}}
		},
		Links: func() []Link { return []Link{{ID: 1, Peer: "\xff"}} },
		Peers: func() []Peer {
			return []Peer{{Name: "\xff", Alive: true, Units: 1}, {Name: "\xfe", Alive: true, Units: 1}}
		},
	})
	m.LookedUp("\xff", nil)
	m.Dialled("\xff", nil)
	if got := scrape(t, m)["conduit_peer_units{peer=\uFFFD}"]; got != 2 {
		t.Errorf("two names that read alike are not one: %v", got)
	}
}

func TestCounters(t *testing.T) {
	m := New(Options{Auth: func() AuthChecks { return AuthChecks{OK: 1, Denied: 2, Failed: 3} }})
	m.LookedUp("dns", nil)
	m.LookedUp("dns", errors.New("no such host"))
	p := scrape(t, m)
	p.want(t, "conduit_auth", page{
		"conduit_auth_checks_total{result=ok}": 1, "conduit_auth_checks_total{result=denied}": 2, "conduit_auth_checks_total{result=error}": 3,
	})
	p.want(t, "conduit_discovery", page{
		"conduit_discovery_lookups_total{result=ok,source=dns}": 1, "conduit_discovery_lookups_total{result=error,source=dns}": 1,
	})
	for i := range 1000 {
		m.LookedUp(strconv.Itoa(i), nil)
	}
	if n := len(scrape(t, m).of("conduit_discovery")); n > 2*(maxSources+1) {
		t.Errorf("%d series of sources", n)
	}
}

// The states are the host's; the test reads its source, as this package does not
// import it.
func TestStatesAreTheHosts(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../../host/state.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if of, ok := v.Type.(*ast.Ident); !ok || of.Name != "State" {
				continue
			}
			name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			hosts = append(hosts, name)
		}
	}
	if !slices.Equal(hosts, states[:]) {
		t.Errorf("the host has the states\n%v, here are\n%v", hosts, states)
	}
}

// What /proc says of this process is what the process knows of itself.
func TestUsageOfAProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	of := usageOf()
	u, ok := of(os.Getpid())
	if !ok {
		t.Fatal("nothing is known of this process")
	}
	now := float64(time.Now().Unix())
	if u.started > now+2 || u.started < now-3600 {
		t.Errorf("it started at %v, and now is %v", u.started, now)
	}
	if u.resident < 1<<20 || u.begun == 0 {
		t.Errorf("%+v", u)
	}
	deadline := time.Now().Add(20 * time.Second)
	for busy := 0; u.cpu < 0.01; busy++ { // a tick of the clock that counts it
		if busy%1024 == 0 && time.Now().After(deadline) {
			t.Fatalf("it has used no processor in 20 s: %+v", u)
		}
		u, _ = of(os.Getpid())
	}
	if _, ok := of(1 << 30); ok {
		t.Error("a process that does not exist has a usage")
	}
}

func TestHandler(t *testing.T) {
	m := New(Options{Version: "v1.2.3"})
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`conduit_build_info{goversion="` + runtime.Version() + `",version="v1.2.3"} 1`, "# HELP conduit_build_info ", "go_goroutines ",
	} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if got := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(got, "text/plain; version=0.0.4") {
		t.Errorf("%d %s", w.Code, got)
	}
}

// Two instances in one process do not meet, and everything may go on at once.
func TestConcurrently(t *testing.T) {
	other := New(Options{})
	ls := []Link{{ID: 1, Peer: "client"}, {ID: 2, Peer: "worker-1"}}
	m := New(Options{
		Links:    func() []Link { return ls },
		Peers:    func() []Peer { return []Peer{{Name: "worker-1", Alive: true, Units: 1}} },
		Elements: func() []Element { return []Element{{Deployment: "d", Name: "e", State: "ready", Pid: os.Getpid()}} },
	})
	h := m.Handler()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if w.Code != 200 && w.Code != http.StatusServiceUnavailable {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
				m.LinkEnded(Link{ID: 10 + i, Peer: "client", BytesIn: 1})
				m.Dialled("worker-1", nil)
				m.LookedUp("static", nil)
				m.Calls().Declare("d", map[string][]string{"s": {strconv.Itoa(i)}})
				m.Calls().Find(Client, "d", "s", strconv.Itoa(i)).Refuse(conduit.NotFound, conduit.Refused)
			}
		})
	}
	wg.Wait()
	p := scrape(t, m)
	if got := p["conduit_link_bytes_total{direction=in,peer=client}"]; got != 80 {
		t.Errorf("%v bytes, want 80", got)
	}
	if got := scrape(t, other)["conduit_discovery_lookups_total{result=ok,source=static}"]; got != 0 {
		t.Errorf("another instance has counted %v lookups", got)
	}
}
