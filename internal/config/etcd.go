package config

import (
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EtcdPasswordEnv holds the password of auth.etcd.user. Like [SessionEnv] it is no key: a
// flag shows in the process list, and a file of settings is read by many.
const EtcdPasswordEnv = EnvPrefix + "AUTH_ETCD_PASSWORD"

// etcdPort is where etcd listens for clients.
const etcdPort = "2379"

// etcdKeys begins the keys that say how to speak to etcd.
const etcdKeys = "auth.etcd."

//nolint:gochecknoglobals // compiled once, never changed
var (
	etcdPrefixForm = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
	etcdHostForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
)

// InEtcd reports whether auth.store is one in etcd.
func (c *Config) InEtcd() bool { return strings.HasPrefix(c.String("auth.store"), "etcd:") }

// Etcd returns what auth.store says of a store in etcd: servers, each with its port, and
// the prefix of its keys, without slashes around it; "" = none is named.
func (c *Config) Etcd() (endpoints []string, prefix string) {
	endpoints, prefix, _ = parseEtcd(c.String("auth.store"))
	return endpoints, prefix
}

// EtcdTLS reports whether etcd is spoken to over TLS: unless all of its servers are on
// this machine or auth.etcd.insecure is set, and wherever a certificate is named.
func (c *Config) EtcdTLS() bool {
	if c.String("auth.etcd.tls.ca") != "" || c.String("auth.etcd.tls.cert") != "" {
		return true
	}
	endpoints, _ := c.Etcd()
	return !c.Bool("auth.etcd.insecure") && slices.ContainsFunc(endpoints, func(e string) bool {
		host, _, _ := net.SplitHostPort(e)
		return !isLoopback(host)
	})
}

// parseEtcd reads etcd://h1,h2:2379/prefix. why quotes nothing of text, in which there may
// be a password that does not belong there.
func parseEtcd(text string) (endpoints []string, prefix, why string) {
	const example = "; write, for example, etcd://h1,h2:2379,[2001:db8::1]/conduit"
	rest, ok := strings.CutPrefix(text, "etcd://")
	if !ok {
		return nil, "", "is no store in etcd" + example
	}
	if strings.Contains(rest, "@") {
		return nil, "", "has a user in it, and a password has no place in a setting; give the user as auth.etcd.user, and the password in a file (auth.etcd.password_file) or in " + EtcdPasswordEnv
	}
	servers, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	if prefix != "" && !etcdPrefixForm.MatchString(prefix) {
		return nil, "", "has a prefix that is none: it takes letters, digits, '.', '_', '-', and '/' between them" + example
	}
	for server := range strings.SplitSeq(servers, ",") {
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			host, port = strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"), etcdPort
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || !etcdHostForm.MatchString(host) && net.ParseIP(host) == nil {
			return nil, "", "names a server that is none: each is a host, or host:port" + example
		}
		end := net.JoinHostPort(host, port)
		if slices.Contains(endpoints, end) {
			return nil, "", "names a server twice"
		}
		endpoints = append(endpoints, end)
	}
	return endpoints, prefix, ""
}

// etcd holds the keys of a store in etcd to each other.
func (x *crossChecker) etcd() {
	if !x.good("auth.store") {
		return
	}
	if !x.c.InEtcd() {
		for i := range x.c.keys {
			if key := x.c.keys[i].Name; strings.HasPrefix(key, etcdKeys) && x.good(key) && x.c.IsSet(key) {
				x.report(key, "is about a store in etcd, and auth.store is %s; leave it out, or name that store with --auth-store", x.c.String("auth.store"))
			}
		}
		return
	}
	if file := "auth.etcd.password_file"; x.good(file, "auth.etcd.user") && x.c.String(file) != "" && x.c.String("auth.etcd.user") == "" {
		x.report(file, "is the password of nobody; name the user with --auth-etcd-user")
	}
	if key := "auth.etcd.insecure"; x.good(key, "auth.etcd.tls.ca", "auth.etcd.tls.cert") && x.c.Bool(key) && x.c.EtcdTLS() {
		x.report(key, "is for speaking in the clear, and certificates are named; leave out one of the two")
	}
}
