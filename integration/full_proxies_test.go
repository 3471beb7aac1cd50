//go:build full

package integration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// proxyKind is a proxy as docs/proxies.md configures it.
type proxyKind struct {
	name string
	// whole is the configuration of a process of its own, of what the page has; dir is
	// for what it writes.
	whole func(page, dir string) string
	// args start it in the foreground with a configuration.
	args func(file, dir string) []string
	// reload makes the process, or a new one beside it, take its configuration anew.
	reload func(p *proxy) error
	// spoilt changes the page's configuration into one that rewrites the path of the
	// first worker, and takes the headers of the upgrade from what goes to the second.
	spoilt *strings.Replacer
	// cuts: it ends links that are silent; keeps: a reload leaves links as they are.
	cuts, keeps bool
}

func proxyKinds() []proxyKind {
	signals := func(s syscall.Signal) func(p *proxy) error {
		return func(p *proxy) error { return p.cmd.Process.Signal(s) }
	}
	return []proxyKind{
		{
			name: "nginx", cuts: true, keeps: true,
			whole: func(page, dir string) string {
				user := ""
				if os.Getuid() == 0 { // or its workers could not read a directory of ours
					user = "user root;\n"
				}
				var temp strings.Builder
				for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
					fmt.Fprintf(&temp, "%s_temp_path %s/%s;\n", kind, dir, kind)
				}
				return fmt.Sprintf("daemon off;\n%spid %s/pid;\nevents { }\nhttp {\naccess_log off;\n%s%s\n}\n", user, dir, temp.String(), page)
			},
			args:   func(file, dir string) []string { return []string{"nginx", "-e", "stderr", "-p", dir, "-c", file} },
			reload: signals(syscall.SIGHUP),
			spoilt: strings.NewReplacer(
				"location = /cluster/v1 { proxy_pass http://127.0.0.1:7400; }", "location = /cluster/v1 { proxy_pass http://127.0.0.1:7400/links; }",
				"location = /cluster/v1 { proxy_pass http://127.0.0.1:7401; }", "location = /cluster/v1 { proxy_set_header Host $host; proxy_pass http://127.0.0.1:7401; }",
			),
		},
		{
			name: "haproxy", cuts: true, keeps: true,
			whole:  func(page, _ string) string { return page },
			args:   func(file, _ string) []string { return []string{"haproxy", "-W", "-db", "-f", file} },
			reload: signals(syscall.SIGUSR2),
			spoilt: strings.NewReplacer(
				"    server worker-1 127.0.0.1:7400\n\nlisten", "    http-request set-path /links\n    server worker-1 127.0.0.1:7400\n\nlisten",
				"    server worker-2 127.0.0.1:7401\n\nfrontend", "    http-request del-header Upgrade\n    server worker-2 127.0.0.1:7401\n\nfrontend",
			),
		},
		{
			name:  "caddy",
			whole: func(page, _ string) string { return page },
			args: func(file, _ string) []string {
				return []string{"caddy", "run", "--adapter", "caddyfile", "--config", file}
			},
			reload: func(p *proxy) error {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, "caddy", "reload", "--force", "--adapter", "caddyfile", "--config", p.file)
				cmd.Env = p.cmd.Env
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			},
			spoilt: strings.NewReplacer(
				"reverse_proxy 127.0.0.1:7400\n", "rewrite * /links\n\treverse_proxy 127.0.0.1:7400\n",
				"reverse_proxy 127.0.0.1:7401\n", "reverse_proxy 127.0.0.1:7401 {\n\t\theader_up -Upgrade\n\t}\n",
			),
		},
	}
}

// proxyPage returns the configuration of a proxy on docs/proxies.md.
func proxyPage(t *testing.T, kind string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/proxies.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```"+kind+"\n")
	text, _, end := strings.Cut(text, "```")
	if !ok || !end {
		t.Fatalf("docs/proxies.md has no configuration of %s", kind)
	}
	return text
}

// proxy is one that a test has started.
type proxy struct {
	t    *testing.T
	cmd  *exec.Cmd
	file string

	mu     sync.Mutex
	out    bytes.Buffer
	exited chan struct{}
}

func (p *proxy) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *proxy) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// startProxy starts a proxy with a configuration, and waits until it listens. When the
// test ends, so does it, with all processes that it has started.
func startProxy(t *testing.T, k proxyKind, config string, ports ...string) *proxy {
	t.Helper()
	dir := t.TempDir()
	p := &proxy{t: t, file: filepath.Join(dir, "proxy.conf"), exited: make(chan struct{})}
	if err := writeFile(p.file, k.whole(config, dir)); err != nil {
		t.Fatal(err)
	}
	args := k.args(p.file, dir)
	if _, err := exec.LookPath(args[0]); err != nil {
		if os.Getenv("CONDUIT_TEST_ALL") != "" {
			t.Fatal(err)
		}
		t.Skipf("%v: apt-get install %s", err, k.name)
	}
	p.cmd = exec.Command(args[0], args[1:]...) //nolint:gosec // one of three
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its signal, as a rule
		close(p.exited)
	}()
	t.Cleanup(p.end)
	for _, port := range ports {
		p.until("it to listen", func() bool {
			select {
			case <-p.exited:
				t.Fatalf("%s ended:\n%s", k.name, p.output())
			default:
			}
			conn, err := net.DialTimeout("tcp", port, patience)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	return p
}

// end ends the processes of the proxy, the hard way if they do not end by themselves.
func (p *proxy) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Errorf("the proxy does not end:\n%s", p.output())
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it has left, if anything
	p.until("its processes to end", func() bool { return errors.Is(syscall.Kill(-p.cmd.Process.Pid, 0), syscall.ESRCH) })
}

func (p *proxy) until(what string, holds func() bool) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("waited for %s in vain:\n%s", what, p.output())
		}
	}
}

// proxied is two workers, and an external instance that reaches them through a proxy,
// which its callers reach the same way.
type proxied struct {
	// proxies: one, or, where a reload cuts links, one for each worker.
	proxies []*proxy
	kind    proxyKind
	certs   string
	workers []*instance
	front   *instance
	// The proxy's listeners: one for each worker, and one for the pool.
	members []string
	pool    string
	replace *strings.Replacer
}

// silence is how long the proxies of the tests let a link be silent.
const silence = 8 * time.Second

func newProxied(t *testing.T, k proxyKind) *proxied {
	t.Helper()
	x := &proxied{kind: k, certs: devCerts(t, filepath.Join(t.TempDir(), "tls"))}
	for range 2 {
		x.workers = append(x.workers, start(t, []string{built.echo}))
		x.members = append(x.members, freeAddress(t))
	}
	x.pool = freeAddress(t)
	gateway, admin := freeAddress(t), freeAddress(t)
	both := filepath.Join(t.TempDir(), "proxy.pem")
	cert, key := filepath.Join(x.certs, "cert.pem"), filepath.Join(x.certs, "key.pem")
	var pem []byte
	for _, file := range []string{cert, key} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pem = append(pem, text...)
	}
	if err := writeFile(both, string(pem)); err != nil {
		t.Fatal(err)
	}
	port := func(address string) string { return address[strings.LastIndex(address, ":"):] }
	x.replace = strings.NewReplacer(
		"0.0.0.0", "127.0.0.1", ":7441", port(x.members[0]), ":7442", port(x.members[1]), ":7443", port(x.pool),
		"127.0.0.1:7400", host(x.workers[0]), "127.0.0.1:7401", host(x.workers[1]), "127.0.0.1:7480", gateway, "127.0.0.1:2019", admin,
		"/etc/conduit/proxy.crt", cert, "/etc/conduit/proxy.key", key, "/etc/conduit/proxy.pem", both,
		"60s", silence.String(),
	)
	config := proxyPage(t, k.name)
	x.proxies = []*proxy{startProxy(t, k, x.replace.Replace(config), x.members[0], x.members[1], x.pool)}
	if !k.keeps {
		second, others := freeAddress(t), elsewhere(t, "7441", "7443", "2019")
		x.members[1] = second
		config = strings.ReplaceAll(others.Replace(config), ":7442", port(second))
		x.proxies = append(x.proxies, startProxy(t, k, x.replace.Replace(config), second))
	}
	x.front = x.external(t, "front", "--gateway-listen", gateway, "--gateway-trusted-proxies", "127.0.0.1", "--cluster-ping-interval", "3s")
	return x
}

// elsewhere gives ports of the page other numbers, which are free.
func elsewhere(t *testing.T, ports ...string) *strings.Replacer {
	t.Helper()
	var pairs []string
	for _, p := range ports {
		address := freeAddress(t)
		pairs = append(pairs, ":"+p, address[strings.LastIndex(address, ":"):])
	}
	return strings.NewReplacer(pairs...)
}

// host is where an instance serves links, as host and port.
func host(i *instance) string {
	return strings.TrimSuffix(strings.TrimPrefix(i.url, "ws://"), "/cluster/v1")
}

// external starts an external instance whose peers are the workers, through the proxy.
func (x *proxied) external(t *testing.T, name string, flags ...string) *instance {
	t.Helper()
	i := prepare(t, nil)
	i.name = name
	i.launch(append([]string{
		"--mode", "external", "--drain-delay", "0s", "--registry-refresh", "10m",
		"--cluster-tls-ca", filepath.Join(x.certs, "ca.pem"), "--discovery-static", "wss://" + x.members[0] + ",wss://" + x.members[1],
	}, flags...)...)
	i.waitReady()
	c := &cluster{t: t, front: i}
	i.until("both workers to be picked from", func() bool { return c.candidates() == 2 })
	return i
}

// TestFullProxies has each proxy before two workers and a gateway, with the
// configuration that docs/proxies.md shows.
func TestFullProxies(t *testing.T) {
	t.Parallel()
	for _, k := range proxyKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			x := newProxied(t, k)
			for _, step := range []struct {
				name string
				run  func(*testing.T)
			}{
				{"calls", x.calls}, {"gateway", x.gateway}, {"silent", x.silent}, {"cut", x.cut}, {"reloaded", x.reloaded}, {"spoilt", x.spoilt},
			} {
				if step.name == "cut" && !k.cuts {
					continue
				}
				if !t.Run(step.name, step.run) {
					for _, p := range x.proxies {
						t.Logf("the proxy:\n%s", p.output())
					}
					t.FailNow()
				}
			}
		})
	}
}

// calls: all shapes, over links that end TLS at the proxy, by the pool; and a message
// that is far larger than any buffer on the way.
func (x *proxied) calls(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: []string{"wss://" + x.pool}, TLS: trusting(t, x.certs, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all sync.WaitGroup
	for _, shape := range []func(*testing.T, context.Context, conduit.Invoker){
		unaryShape, streamShape, uploadShape, duplexShape, partsShape, failingShape, lateShape, leftShape,
	} {
		all.Go(func() { shape(t, ctx, c.At(echoAddr)) })
	}
	all.Wait()
	if big, err := conduit.Call[[]byte](ctx, c.At(echoAddr), "Echo", bytes.Repeat([]byte("8 bytes."), 1<<20)); err != nil || len(big) != 8<<20 {
		t.Errorf("8 MiB: %d came back, %v", len(big), err)
	}

	// Each call by a link of its own: the proxy spreads them.
	lone, err := client.Dial(ctx, client.Options{Peers: []string{"wss://" + x.pool}, TLS: trusting(t, x.certs, false), PerCall: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lone.Close()
	seen := map[int]bool{}
	for range 20 {
		reply, err := conduit.Call[struct{ PID int }](ctx, lone.At(echoAddr), "Where", map[string]int{"ms": 0})
		if err != nil {
			t.Fatal(err)
		}
		seen[reply.PID] = true
	}
	if len(seen) != 2 {
		t.Errorf("20 calls with links of their own went to %d of two workers", len(seen))
	}
}

// gateway: a stream of HTTP comes as it is made, not when it is over, and whoever hangs
// up ends the call.
func (x *proxied) gateway(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+x.pool+"/v1/call/"+echoPath+"CountSlow", strings.NewReader(`{"n":1000,"interval_ms":600000}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting(t, x.certs, false)}}
	defer web.CloseIdleConnections()
	resp, err := web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "0\n" {
		t.Errorf("%q, %v; the answer: %s %v", line, err, resp.Status, resp.Header)
	}
	cancel()
	x.front.until("the call to end", func() bool { return x.front.callsUnderWay() == 0 })
}

// silent: a link without calls outlives the proxy's limit, since both ends ping.
func (x *proxied) silent(t *testing.T) {
	t.Helper()
	x.front.until("its links to be idle for twice as long as the proxy permits", func() bool {
		idle := 0
		for _, row := range x.front.rows("ls", "links") {
			if ms, ok := row["idle_ms"].(float64); ok && row["kind"] == "peer" && ms > 2*float64(silence.Milliseconds()) {
				idle++
			}
		}
		return idle == 2
	})
	if strings.Contains(x.front.output(), "an idle link was lost") {
		t.Errorf("a link was cut:\n%s", x.front.output())
	}
}

// cut: without pings the proxy ends a silent link. That is seen, said with the reason,
// and costs no call.
func (x *proxied) cut(t *testing.T) {
	t.Helper()
	quiet := x.external(t, "quiet", "--gateway-listen", "127.0.0.1:0", "--cluster-ping-interval", "10m")
	quiet.waitLine("word of a link that was cut", func(s string) bool {
		return strings.Contains(s, "an idle link was lost") && strings.Contains(s, "silent") && strings.Contains(s, "cluster.ping_interval")
	})
	c := &cluster{t: t, front: quiet}
	quiet.until("both workers to be picked from again", func() bool { return c.candidates() == 2 })
	quiet.ask("call", echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")
}

// reloaded: under load, and no idempotent call fails.
func (x *proxied) reloaded(t *testing.T) {
	t.Helper()
	c := &cluster{t: t, front: x.front}
	load := x.front.load(4, "Where", `{"ms":1}`)
	for range 3 {
		for _, p := range x.proxies {
			load.reach(int(load.ok.Load()) + 100)
			gone := x.gone()
			if err := x.kind.reload(p); err != nil {
				t.Fatal(err)
			}
			if !x.kind.keeps {
				x.front.until("a link to be cut", func() bool { return x.gone() > gone })
			}
			x.front.until("both workers to be picked from", func() bool { return c.candidates() == 2 })
		}
	}
	load.reach(int(load.ok.Load()) + 200)
	if failed := load.stop(); len(failed) > 0 {
		t.Errorf("%d of %d calls failed; the first: %s", len(failed), load.ok.Load(), failed[0])
	}
	if n := x.gone(); n > 0 && x.kind.keeps {
		t.Errorf("%d links were lost, and docs/proxies.md says otherwise", n)
	}
	// Who dials now gets the new process.
	conduitHost(t, "call", echoAddr, "Upper", `"x"`, "--peer", "wss://"+x.pool, "--cluster-tls-ca", filepath.Join(x.certs, "ca.pem")).want(t, 0, "\"X\"\n")
}

// gone counts the links that the external instance has lost.
func (x *proxied) gone() int { return strings.Count(x.front.output(), "peer is gone") }

// spoilt: a proxy that rewrites the path, or takes the headers of the upgrade away, and
// a URL that counts on the former, are told what is wrong.
func (x *proxied) spoilt(t *testing.T) {
	t.Helper()
	page := proxyPage(t, x.kind.name)
	spoilt := x.kind.spoilt.Replace(page)
	if spoilt == page {
		t.Fatal("the configuration is as it was")
	}
	rewriting, stripping, pool, admin := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	port := func(address string) string { return address[strings.LastIndex(address, ":"):] }
	spoilt = strings.NewReplacer(":7441", port(rewriting), ":7442", port(stripping), ":7443", port(pool), "127.0.0.1:2019", admin).Replace(spoilt)
	startProxy(t, x.kind, x.replace.Replace(spoilt), rewriting, stripping)

	ca := filepath.Join(x.certs, "ca.pem")
	conduitHost(t, "call", echoAddr, "Upper", `"x"`, "--peer", "wss://"+rewriting, "--cluster-tls-ca", ca).
		want(t, 3, "", "reason=peer_unreachable", "outcome=not_sent", "404", "links are served at /cluster/v1")
	conduitHost(t, "call", echoAddr, "Upper", `"x"`, "--peer", "wss://"+stripping, "--cluster-tls-ca", ca).
		want(t, 3, "", "reason=peer_unreachable", "outcome=not_sent", "Upgrade: websocket", "missing", "a proxy in between must")
	conduitHost(t, "call", echoAddr, "Upper", `"x"`, "--peer", "wss://"+x.pool+"/conduit/cluster/v1", "--cluster-tls-ca", ca).
		want(t, 2, "", "its path is not /cluster/v1")
}
