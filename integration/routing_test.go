package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

const echoPath = "echo/echo/conduit.example.Echo/"

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// where asks, by the gateway, which process answers.
func (c *cluster) where() (pid string, err error) {
	status, _, body := c.front.post(echoPath+"Where", `{}`)
	if status != http.StatusOK {
		return "", fmt.Errorf("%d: %s", status, body)
	}
	return pidIn(body)
}

func pidIn(body string) (string, error) {
	var reply struct{ PID int }
	if err := json.Unmarshal([]byte(body), &reply); err != nil || reply.PID == 0 {
		return "", fmt.Errorf("no pid in %q: %w", body, err)
	}
	return strconv.Itoa(reply.PID), nil
}

// pids asks n times and counts who answered.
func (c *cluster) pids(n int) map[string]int {
	c.t.Helper()
	seen := map[string]int{}
	for range n {
		pid, err := c.where()
		if err != nil {
			c.t.Fatal(err)
		}
		seen[pid]++
	}
	return seen
}

func (i *instance) plugin(t *testing.T) string {
	t.Helper()
	for _, row := range i.rows("ls", "elements") {
		if pid, ok := row["pid"].(float64); ok && pid > 0 {
			return strconv.Itoa(int(pid))
		}
	}
	t.Fatalf("%s runs no plugin", i.name)
	return ""
}

// Calls spread over three workers, one can be named, all can be asked, and one
// that is killed is missed by nobody and used again when it is back.
func TestThreeWorkers(t *testing.T) {
	t.Parallel()
	threeWorkers(t)
}

func threeWorkers(t *testing.T, flags ...string) {
	t.Helper()
	c := newCluster(t, 3, flags...)
	owner := map[string]*instance{}
	for _, w := range c.workers {
		owner[w.plugin(t)] = w
	}

	// Spread. That one of three gets none of 60 has a chance of 3*(2/3)^60 even
	// with plain dice.
	seen := c.pids(60)
	if len(seen) != 3 {
		t.Errorf("60 calls went to %v of %v", seen, slices.Collect(maps.Keys(owner)))
	}

	// One, by its InstanceID.
	peers := c.peers()
	for pid, w := range owner {
		id, _ := peers[w.name]["instance"].(string)
		r := c.front.ask("call", id+"://echo/echo/conduit.example.Echo", "Where", "{}")
		if got, err := pidIn(r.out); err != nil || got != pid {
			t.Errorf("%s is pid %s; %q, %s", w.name, pid, r.out, r.err)
		}
	}
	c.front.ask("call", "010000112233445566778899aabbccddeeff://echo/echo/conduit.example.Echo", "Where", "{}").
		want(t, 3, "", "instance_not_found")

	// All.
	all := c.front.ask("call", echoAddr, "Where", "{}", "--all")
	all.want(t, 0, "", "3")
	for pid := range owner {
		if !strings.Contains(all.out, pid) {
			t.Errorf("call --all did not reach %s:\n%s%s", pid, all.out, all.err)
		}
	}

	// An element of a worker calls elements of others: Host.At picks as well.
	r := c.front.ask("call", echoAddr, "Chain", fmt.Sprintf(`{"address":%q,"method":"WhoAmI"}`, otherThan(peers, c.workers[0])))
	r.want(t, 0, "")
	if !strings.Contains(r.out, `"echo/echo"`) {
		t.Errorf("the chain is not told: %s", r.out)
	}

	// Killed under load.
	victim := c.workers[1]
	load := c.front.load(8, "Where", `{"ms":2}`)
	load.reach(200)
	victim.kill()
	before := load.ok.Load()
	load.reach(int(before) + 300)
	failed := load.stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d idempotent calls failed; the first: %s", len(failed), load.ok.Load(), failed[0])
	}
	c.front.until("the dead worker to be seen", func() bool { return c.peers()[victim.name]["state"] != "alive" })
	for pid := range c.pids(40) {
		if owner[pid] == victim {
			t.Errorf("a pick fell on the dead worker")
		}
	}
	victim.noneLeft()

	// And back.
	victim.launch(victim.flags...)
	victim.waitReady()
	c.front.until("the worker to be back", func() bool { return c.candidates() == 3 })
	again := victim.plugin(t)
	c.front.until("a call on the worker that is back", func() bool {
		pid, err := c.where()
		if err != nil {
			t.Fatal(err)
		}
		return pid == again
	})
}

// otherThan is the address of echo on an instance that is not w.
func otherThan(peers map[string]map[string]any, w *instance) string {
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		if id, _ := peers[name]["instance"].(string); strings.HasPrefix(name, "w") && name != w.name {
			return id + "://echo/echo/conduit.example.Echo"
		}
	}
	return ""
}

// load is calls that go on, from several callers, until it is stopped.
type load struct {
	i       *instance
	ok      atomic.Int64
	mu      sync.Mutex
	failed  []string
	cancel  context.CancelFunc
	callers sync.WaitGroup
}

// load begins calls of a method of echo by the gateway.
func (i *instance) load(callers int, method, body string) *load {
	ctx, cancel := context.WithCancel(i.t.Context())
	l := &load{i: i, cancel: cancel}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	if i.web != nil {
		client = i.web
	}
	for range callers {
		l.callers.Go(func() {
			for ctx.Err() == nil {
				if why := post(context.WithoutCancel(ctx), client, i.gateway+"/v1/call/"+echoPath+method, body); why == "" {
					l.ok.Add(1)
				} else {
					l.mu.Lock()
					l.failed = append(l.failed, why)
					l.mu.Unlock()
				}
			}
		})
	}
	i.t.Cleanup(func() {
		cancel()
		l.callers.Wait()
		client.CloseIdleConnections()
	})
	return l
}

// post makes one call and says why it failed, if it did.
func post(ctx context.Context, client *http.Client, url, body string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode, " ", string(text), err)
	}
	return ""
}

// reach waits until n calls have gone well.
func (l *load) reach(n int) {
	l.i.t.Helper()
	l.i.until(fmt.Sprintf("%d calls", n), func() bool { return l.ok.Load() >= int64(n) })
}

// stop ends the calls and returns what went wrong.
func (l *load) stop() []string {
	l.cancel()
	l.callers.Wait()
	return l.failed
}

// Workers restarted one after another under load: nobody notices.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	rollingRestart(t)
}

func rollingRestart(t *testing.T, flags ...string) {
	t.Helper()
	c := newCluster(t, 3, flags...)
	// Upper is not idempotent: no call of it may end unknown, or fail at all.
	idempotent, plain := c.front.load(4, "Where", `{"ms":1}`), c.front.load(4, "Upper", `"x"`)
	for _, w := range c.workers {
		idempotent.reach(int(idempotent.ok.Load()) + 50)
		plain.reach(int(plain.ok.Load()) + 50)
		w.signal(syscall.SIGTERM)
		if code := w.wait(); code != 0 {
			t.Errorf("%s exited %d", w.name, code)
		}
		w.noneLeft()
		w.launch(w.flags...)
		w.waitReady()
		c.front.until("the worker to be back", func() bool { return c.candidates() == 3 })
	}
	for what, l := range map[string]*load{"idempotent": idempotent, "plain": plain} {
		if failed := l.stop(); len(failed) > 0 {
			t.Errorf("%d of %d %s calls failed; the first: %s", len(failed), l.ok.Load(), what, failed[0])
		}
	}
}

// The gateway over real processes: one result, many, events, a typed error, and a
// client that hangs up.
func TestGateway(t *testing.T) {
	t.Parallel()
	theGateway(t)
}

func theGateway(t *testing.T, flags ...string) {
	t.Helper()
	c := newCluster(t, 1, flags...)
	if status, ct, body := c.front.post(echoPath+"Upper", `"ada"`); status != 200 || ct != "application/json" || strings.TrimSpace(body) != `"ADA"` {
		t.Errorf("%d %s %q", status, ct, body)
	}
	if status, ct, body := c.front.post(echoPath+"Count", `3`, "Accept", "application/x-ndjson"); status != 200 || ct != "application/x-ndjson" || body != "0\n1\n2\n" {
		t.Errorf("%d %s %q", status, ct, body)
	}
	if status, ct, body := c.front.post(echoPath+"Count", `2`, "Accept", "text/event-stream"); status != 200 || !strings.HasPrefix(ct, "text/event-stream") ||
		!strings.Contains(body, "data: 0\n") || !strings.Contains(body, "data: 1\n") {
		t.Errorf("%d %s %q", status, ct, body)
	}
	status, ct, body := c.front.post(echoPath+"Fail", `{"code":"failed_precondition","reason":"lobby_full","message":"the lobby is full"}`)
	var problem struct{ Code, Reason, Outcome string }
	if err := json.Unmarshal([]byte(body), &problem); err != nil || ct != "application/problem+json" || status < 400 ||
		problem.Code != "failed_precondition" || problem.Reason != "lobby_full" || problem.Outcome != "executed" {
		t.Errorf("%d %s %q, %v", status, ct, body, err)
	}
	if status, _, body := c.front.post("nowhere/echo/conduit.example.Echo/Upper", `"x"`); status != http.StatusNotFound || !strings.Contains(body, "deployment_not_found") {
		t.Errorf("%d %q", status, body)
	}

	// The link that carries it, from both ends.
	for i, kind := range map[*instance]string{c.front: "peer", c.workers[0]: "cluster"} {
		i.until("one link of kind "+kind+" to be what is left", func() bool {
			return len(slices.DeleteFunc(i.rows("ls", "links"), func(row map[string]any) bool { return row["kind"] != kind })) == 1
		})
	}

	// A client that hangs up ends the call at the worker's element.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.front.gateway+"/v1/call/"+echoPath+"CountSlow", strings.NewReader(`{"n":1000,"interval_ms":1000}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "0\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if c.workers[0].callsUnderWay() == 0 {
		t.Error("the worker shows no call under way")
	}
	cancel()
	c.front.until("the call to end", func() bool { return c.front.callsUnderWay() == 0 && c.workers[0].callsUnderWay() == 0 })
}

// What is tried before a worker is up is answered when it is, and an external
// instance alone says plainly that it knows nobody.
func TestExternalAlone(t *testing.T) {
	t.Parallel()
	f := prepare(t, nil)
	f.name = "alone"
	f.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s")
	f.waitReady()
	if f.url != "" {
		t.Errorf("it serves %s", f.url)
	}
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 3, "", "outcome=")
	status, _, body := f.post(echoPath+"Upper", `"x"`)
	if status != http.StatusNotFound && status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
	f.signal(syscall.SIGTERM)
	if code := f.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// SIGHUP, or a change of the file, has discovery.static read again: a worker that is
// named from then on is found, and one that is named no more is not called.
func TestReload(t *testing.T) {
	t.Parallel()
	w := start(t, []string{built.echo})
	f := prepare(t, nil)
	f.name = "front"
	file, secrets := f.dir+"/conduit.yaml", f.dir+"/secrets.yaml"
	put := func(path, text string) {
		if err := writeFile(path, text); err != nil {
			t.Fatal(err)
		}
	}
	write := func(peers string) {
		put(file, "host.attributes_file: "+secrets+"\ndiscovery:\n  static: ["+peers+"]\n")
	}
	reachable := func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 0 }
	word := func(parts ...string) {
		t.Helper()
		f.waitLine("a word on the bad file", func(s string) bool {
			return strings.Contains(s, "reload: everything is left as it was") && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
		})
	}
	put(secrets, "a: b\n")
	write("")
	f.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--config", file, "--host-deployments", "")
	f.waitReady()
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 3, "")

	write(`"` + w.url + `"`)
	f.signal(syscall.SIGHUP)
	f.until("the worker to be found", reachable)

	// CLI-07: of a file with a fault nothing is taken, whatever the fault is.
	write("not a peer://")
	f.signal(syscall.SIGHUP)
	word("discovery.static", "error")
	put(file, "discovery: [\n")
	f.signal(syscall.SIGHUP)
	word("is not YAML")
	put(file, "drian: {timeout: 5s}\ndiscovery: {static: []}\n")
	f.signal(syscall.SIGHUP)
	word("drian")
	put(secrets, "[not, a, mapping]\n")
	write("")
	f.signal(syscall.SIGHUP)
	word("host.attributes_file")
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")

	// And the next good one is taken, however often it is asked for. What needs a
	// restart is named.
	put(secrets, "a: c\n")
	put(file, "host.attributes_file: "+secrets+"\nbudget.total: 77\ndiscovery:\n  static: []\n")
	for range 10 {
		f.signal(syscall.SIGHUP)
	}
	f.until("the worker to be left", func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 3 })
	f.waitLine("what needs a restart", func(s string) bool {
		return strings.Contains(s, "takes effect at the next start only") && strings.Contains(s, "budget.total") && strings.Contains(s, "77")
	})
	write(`"` + w.url + `"`)
	f.signal(syscall.SIGHUP)
	f.until("the worker to be found again", reachable)

	// The same without a signal. A file of no bytes, which is what one is that is written
	// just now, lets go of nobody, whoever asks for it.
	put(file, "\n")
	f.waitLine("a word on the empty file", func(s string) bool { return strings.Contains(s, "the configuration file is empty") })
	f.signal(syscall.SIGHUP)
	f.until("another word", func() bool { return strings.Count(f.output(), "the configuration file is empty") >= 2 })
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")
	write("")
	f.until("the worker to be left", func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 3 })
	write(`"` + w.url + `"`)
	f.until("the worker to be found by itself", reachable)
}

// While it drains, and still answers, the gateway closes each connection in order, so
// that nobody sends a request into the end of one.
func TestGatewayClosesConnections(t *testing.T) {
	t.Parallel()
	f := prepare(t, []string{built.echo})
	f.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "10m")
	f.waitReady()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	closes := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.gateway+"/v1/call/"+echoPath+"Upper", strings.NewReader(`"x"`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body := readAll(t, resp.Body); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", resp.Status, body)
		}
		return resp.Close
	}
	f.until("echo to answer, as the gateway knows it", func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 0 })
	if closes() {
		t.Error("a connection is closed though nothing drains")
	}
	f.signal(syscall.SIGTERM)
	f.until("/readyz to say no", func() bool { return f.get("/readyz") == http.StatusServiceUnavailable })
	if !closes() {
		t.Error("the connection stays open while the instance drains")
	}
	f.signal(syscall.SIGTERM)
	if code := f.wait(); code != 130 {
		t.Errorf("exit %d", code)
	}
}

// Units: what does not fit is refused at once, with what there is.
func TestCapacity(t *testing.T) {
	t.Parallel()
	capacityOfTwo(t)
}

func capacityOfTwo(t *testing.T, flags ...string) {
	t.Helper()
	c := newCluster(t, 2, append(flags, "--budget-total", "10")...) // Heavy costs 10
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type answer struct {
		status int
		body   string
	}
	answers := make(chan answer, 2)
	for range 2 {
		go func() {
			status, _, body := c.front.post(echoPath+"Heavy", `{"ms":60000}`, "Conduit-Timeout", "60s")
			answers <- answer{status, body}
		}()
	}
	full := func() bool {
		for name, p := range c.peers() {
			if available, ok := p["available"].(float64); strings.HasPrefix(name, "w") && (!ok || available != 0) {
				return false
			}
		}
		return true
	}
	c.front.until("both workers to be full", full)
	begun := time.Now()
	status, _, body := c.front.post(echoPath+"Heavy", `{"ms":1}`)
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable || !strings.Contains(body, "no_capacity") {
		t.Errorf("%d %s after %v", status, body, time.Since(begun))
	}
	// What costs nothing goes on.
	if status, _, body := c.front.post(echoPath+"Upper", `"x"`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	// A crash gives the units back, and ends the call once.
	r := c.front.ask("call", echoAddr, "Exit", `{"code":3}`, "--all")
	if r.code == 0 {
		t.Errorf("%s%s", r.out, r.err)
	}
	for range 2 {
		select {
		case a := <-answers:
			if !strings.Contains(a.body, "plugin_lost") {
				t.Errorf("%d %s", a.status, a.body)
			}
		case <-ctx.Done():
			t.Fatal("a call does not end")
		}
	}
	c.front.until("the units to come back", func() bool {
		status, _, _ := c.front.post(echoPath+"Heavy", `{"ms":1}`)
		return status == 200
	})
}

// A worker that only DNS knows is found, and when DNS fails it goes on being called.
func TestDiscoveryByDNS(t *testing.T) {
	t.Parallel()
	dns := discoverytest.NewDNS(t)
	w := start(t, []string{built.echo})
	host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(w.url, "ws://"), "/cluster/v1"))
	if err != nil {
		t.Fatal(err)
	}
	const name, target = "_conduit._tcp.test.", "worker.test."
	f := prepare(t, nil)
	f.name = "front"
	f.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--cluster-insecure",
		"--discovery-srv-name", name, "--discovery-srv-servers", dns.Addr(), "--discovery-srv-interval", "50ms", "--discovery-hold-down", "50ms")
	f.waitReady()
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 3, "")

	dns.On(target, "A", discoverytest.Reply{Answer: []string{target + " 1 IN A " + host}})
	dns.On(name, "SRV", discoverytest.Reply{Answer: discoverytest.SRV(name, 1, target+":"+port)})
	f.until("the worker to be found", func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 0 })

	dns.All(&discoverytest.Reply{Rcode: 2}) // SERVFAIL
	asked := dns.Asked(name, "SRV")
	f.until("it to be asked in vain", func() bool { return dns.Asked(name, "SRV") > asked+3 })
	f.ask("call", echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")

	dns.All(nil)
	dns.Off(name)
	f.until("the worker to be left", func() bool { return f.ask("call", echoAddr, "Upper", `"x"`).code == 3 })
}
