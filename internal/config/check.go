package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit/discovery"
)

// maxSocketPath is how long the path of a Unix socket may be: sun_path has 108
// bytes on Linux and 104 on macOS, the last of them a NUL.
const maxSocketPath = 103

// checkStore holds auth.store to the stores that there are.
func checkStore(v Value) string {
	kind, rest, ok := strings.Cut(v.Text, ":")
	switch {
	case ok && kind == "bolt" && rest != "":
		return ""
	case ok && kind == "etcd":
		_, _, why := parseEtcd(v.Text)
		return why
	default:
		return "is no auth store; write bolt:PATH, such as bolt:/var/lib/conduit/auth.db, or etcd://HOST,HOST/PREFIX"
	}
}

//nolint:gochecknoglobals // compiled once, never changed
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// checkName keeps names fit for a file name, a DNS label of a metric, and a
// line of a log.
func checkName(v Value) string {
	if nameForm.MatchString(v.Text) {
		return ""
	}
	return "is not a name: it takes 1 to 64 letters, digits, '.', '_' or '-' and begins with a letter or a digit; give one with --name"
}

// checkListen holds a listener to host:port.
func checkListen(v Value) string {
	if _, _, why := splitListen(v.Text); why != "" {
		return why
	}
	return ""
}

func splitListen(text string) (host string, port int, why string) {
	const example = "; write, for example, 127.0.0.1:7400, [::1]:7400 or :7400 (all interfaces)"
	host, service, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, "is not host:port" + example
	}
	port, err = strconv.Atoi(service)
	if err != nil || port < 0 || port > 65535 || service[0] == '+' || service[0] == '-' {
		return "", 0, "has no port from 0 to 65535" + example
	}
	return host, port, ""
}

// isLoopback reports whether only this machine reaches a listener on host.
// Another name than localhost is not looked up: what it means may change.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// checkAttributes holds names to what an attribute can be called.
func checkAttributes(v Value) string {
	attributes, ok := v.parsed.(map[string]string)
	if !ok {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ',' || r == '\\' }) || len(name) > 256 {
			return fmt.Sprintf("has an attribute %s; a name has at most 256 bytes, and no space, comma, '\\' or control character", quoted(name))
		}
	}
	return ""
}

func checkOrigins(v Value) string {
	list, ok := v.parsed.([]string)
	if !ok {
		return ""
	}
	for _, origin := range list {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || u.Scheme == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return fmt.Sprintf("has %s, which is not an origin; write, for example, https://console.example", quoted(origin))
		}
	}
	return ""
}

// checkPeers holds a list of peers to the forms that discovery takes.
func checkPeers(v Value) string {
	list, ok := v.parsed.([]string)
	if !ok {
		return ""
	}
	if _, err := discovery.ParseStatic(list, false); err != nil {
		return "has an entry that is no peer: " + err.Error()
	}
	return ""
}

// checkSRVName and checkSRVServers hold a look-up to what discovery can ask.
func checkSRVName(v Value) string {
	if v.Text == "" {
		return ""
	}
	return srvProblem(discovery.SRVOptions{Name: v.Text})
}

func checkSRVServers(v Value) string {
	list, ok := v.parsed.([]string)
	if !ok || len(list) == 0 {
		return ""
	}
	return srvProblem(discovery.SRVOptions{Name: "_conduit._tcp.example", Servers: list})
}

func srvProblem(o discovery.SRVOptions) string {
	if _, err := discovery.NewSRV(o); err != nil {
		return "cannot be looked up: " + err.Error()
	}
	return ""
}

// checkCORS is checkOrigins with the origin of all.
func checkCORS(v Value) string {
	if list, ok := v.parsed.([]string); ok && slices.Equal(list, []string{"*"}) {
		return ""
	}
	return checkOrigins(v)
}

func checkNetworks(v Value) string {
	list, _ := v.parsed.([]string)
	_, why := ParseNetworks(list)
	return why
}

// ParseNetworks reads networks as 10.0.0.0/8, or addresses. why says what is wrong with
// the first that is none, "" if all are.
func ParseNetworks(list []string) (networks []netip.Prefix, why string) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, bad := netip.ParseAddr(s)
			if bad != nil || a.Zone() != "" {
				return nil, quoted(s) + " is no network: write one as 10.0.0.0/8 or 2001:db8::/32, or an address"
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		switch {
		case p.Addr().Is4In6():
			return nil, fmt.Sprintf("%q is of IPv4: write it as such", s)
		case p != p.Masked():
			return nil, fmt.Sprintf("%q has bits set behind its prefix: the network is %s", s, p.Masked())
		case p.Bits() == 0:
			return nil, fmt.Sprintf("%q is everybody, and anybody could say where a request comes from", s)
		}
		networks = append(networks, p)
	}
	return networks, ""
}

// crossCheck reports what is wrong between values, leaving out keys that have a
// problem of their own.
func (c *Config) crossCheck(known []Problem) []Problem {
	x := &crossChecker{c: c, bad: map[string]bool{}}
	for _, p := range known {
		x.bad[p.Key] = true
	}
	x.loopback()
	x.tls()
	x.proportions()
	x.socket()
	x.etcd()
	x.grace()
	x.doubts()
	return x.problems
}

type crossChecker struct {
	c        *Config
	bad      map[string]bool
	problems []Problem
}

func (x *crossChecker) good(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return x.bad[k] })
}

func (x *crossChecker) report(key, format string, args ...any) {
	v := x.c.Value(key)
	x.problems = append(x.problems, Problem{Key: key, Where: v.Where, Message: quoted(v.Text) + " " + fmt.Sprintf(format, args...)})
}

// loopback keeps to this machine what must not be heard elsewhere.
func (x *crossChecker) loopback() {
	if !x.good("auth.mode") {
		return
	}
	disabled := x.c.String("auth.mode") == "disabled"
	for _, key := range x.listeners() {
		host, _, _ := splitListen(x.c.String(key))
		switch {
		case isLoopback(host):
		case disabled:
			x.report(key, "is not loopback, but with auth.mode disabled every caller is superuser; listen on 127.0.0.1 or [::1]")
		case key == "cluster.listen" && x.good("cluster.insecure", "cluster.tls.cert") && !x.c.Bool("cluster.insecure") && x.c.String("cluster.tls.cert") == "":
			x.report(key, "is not loopback, and ws:// lets everybody on the way read sessions and payloads; give a certificate with --cluster-tls-cert and --cluster-tls-key, set --cluster-insecure if that network encrypts by other means, or listen on 127.0.0.1 or [::1]")
		}
	}
}

// tls wants the halves of what makes a certificate.
func (x *crossChecker) tls() {
	for _, prefix := range []string{"cluster.tls.", "gateway.tls.", "ops.tls.", etcdKeys + "tls."} {
		cert, key := prefix+"cert", prefix+"key"
		switch {
		case !x.good(cert, key) || (x.c.String(cert) == "") == (x.c.String(key) == ""):
		case x.c.String(key) == "":
			x.report(cert, "is a certificate without a key; name it with --%s", x.c.Value(key).Key.Flag())
		default:
			x.report(key, "is a key without a certificate; name it with --%s", x.c.Value(cert).Key.Flag())
		}
	}
	if ca := "cluster.tls.client_ca"; x.good(ca, "cluster.tls.cert") && x.c.String(ca) != "" && x.c.String("cluster.tls.cert") == "" {
		x.report(ca, "asks callers for certificates, but there is no TLS to ask with; give a certificate with --cluster-tls-cert and --cluster-tls-key")
	}
}

func (x *crossChecker) proportions() {
	x.atMost("cluster.link_memory", "cluster.memory", 1)
	x.atMost("cluster.max_payload", "cluster.memory", 2)
	x.atMost("cluster.probe_interval", "cluster.dead_after", 2)
	x.atMost("cluster.dead_after", "cluster.ping_interval", 1)
	x.atMost("registry.refresh_timeout", "registry.refresh", 1)
	x.ports()
}

// listeners are the keys of what the mode listens on, without those that have a
// problem of their own.
func (x *crossChecker) listeners() []string {
	keys := []string{"cluster.listen", "gateway.listen", "ops.listen"}
	return slices.DeleteFunc(keys, func(key string) bool {
		return !x.good(key, "mode") || key == "cluster.listen" && !x.c.ServesCluster() || key == "gateway.listen" && !x.c.ServesGateway()
	})
}

// ports reports listeners that were given one and the same address.
func (x *crossChecker) ports() {
	taken := map[string]string{}
	for _, key := range x.listeners() {
		text := x.c.String(key)
		if _, port, _ := splitListen(text); port == 0 {
			continue
		}
		if other, ok := taken[text]; ok {
			x.report(key, "is also %s; give each its own port", other)
		}
		taken[text] = key
	}
}

// atMost reports small unless times of it fit into big.
func (x *crossChecker) atMost(small, big string, times int64) {
	if !x.good(small, big) {
		return
	}
	a, b := x.c.Value(small), x.c.Value(big)
	if a.number()*times <= b.number() {
		return
	}
	// Blame the one that somebody wrote.
	if a.Layer == FromDefault {
		x.report(big, "is too little for %s, which is %s%s", small, a.Text, share(times))
		return
	}
	x.report(small, "is too much for %s, which is %s%s", big, b.Text, share(times))
}

func share(times int64) string {
	if times == 1 {
		return ""
	}
	return fmt.Sprintf("; it must fit %d times", times)
}

// socket holds the path of the management socket to what the system can bind.
func (x *crossChecker) socket() {
	if !x.good("run_dir", "name", "data_dir") {
		return
	}
	if path := x.c.Socket(); len(path) > maxSocketPath {
		x.report("run_dir", "makes the path of a socket too long: %s has %d bytes, and the system takes %d; give a shorter directory with --run-dir, such as /tmp/conduit",
			path, len(path), maxSocketPath)
	}
}

// afterDrain is what an instance may take beyond its drain: for the elements' own Stop,
// for those that must be killed, and for its listeners.
const afterDrain = 10 * time.Second

// grace holds the drain to what whoever stops the instance leaves it.
func (x *crossChecker) grace() {
	grace, delay, timeout := x.c.Duration("drain.grace"), x.c.Duration("drain.delay"), x.c.Duration("drain.timeout")
	if !x.good("drain.grace", "drain.delay", "drain.timeout", "mode") || grace == 0 {
		return
	}
	if need := delay + timeout + afterDrain; need > grace {
		x.report("drain.grace", "is too little for a drain, which may take %v: drain.delay %v, drain.timeout %v and %v for the elements to end; raise TimeoutStopSec or terminationGracePeriodSeconds, and drain.grace with it, to %v at least, or lower drain.timeout",
			need, delay, timeout, afterDrain, need)
	}
}

const (
	// slowestPing is the interval that still fits twice into the minute after which
	// nginx, HAProxy and the load balancers of clouds cut a connection.
	slowestPing = 30 * time.Second
	// debuggedPayload is what a process takes that `BINARY debug` has started.
	debuggedPayload = 10 * mib
)

// doubts warns of what works until something else comes to it.
func (x *crossChecker) doubts() {
	if ping := x.c.Duration("cluster.ping_interval"); x.good("cluster.ping_interval") && ping > slowestPing {
		x.warn("cluster.ping_interval", "is slower than proxies wait: nginx (proxy_read_timeout) and many load balancers cut a connection after 60s without a word; ping every %v at most, or see that no proxy on the way cuts within %v", slowestPing, 2*ping)
	}
	body, payload := x.c.Size("gateway.max_body"), x.c.Size("cluster.max_payload")
	if x.good("gateway.max_body", "cluster.max_payload", "mode") && x.c.ServesGateway() && body > payload {
		x.warn("gateway.max_body", "is more than cluster.max_payload (%s): what is larger than that is taken by the gateway, and then refused; raise cluster.max_payload here and on the workers, or lower gateway.max_body", x.c.Value("cluster.max_payload").Text)
	}
	if x.good("cluster.max_payload", "host.reattach") && len(x.c.Map("host.reattach")) > 0 && payload > debuggedPayload {
		x.warn("cluster.max_payload", "is more than a process takes that is debugged (10MiB): larger messages to those of host.reattach fail; leave cluster.max_payload at its default while you debug")
	}
	if x.good("drain.delay", "mode") && !x.c.ServesGateway() && x.c.Duration("drain.delay") > 0 {
		x.warn("drain.delay", "only makes the end later in mode %s: peers are told of a drain at once, and no load balancer needs the time to notice; leave it out", x.c.String("mode"))
	}
}

// warn is report for what keeps nothing from starting.
func (x *crossChecker) warn(key, format string, args ...any) {
	v := x.c.Value(key)
	p := Problem{Key: key, Where: v.Where, Message: quoted(v.Text) + " " + fmt.Sprintf(format, args...)}
	x.c.Warnings = append(x.c.Warnings, p.String())
}
