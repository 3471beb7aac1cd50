package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// where returns the servers to ask, and the absolute names that may be meant, in the
// order to ask for them.
func (s *SRV) where() (servers, names []string, err error) {
	if len(s.servers) > 0 {
		return s.servers, []string{s.name}, nil
	}
	conf, err := dns.ClientConfigFromFile(s.o.ResolvConf)
	if err != nil {
		return nil, nil, fmt.Errorf("the system's DNS servers are not known: %w: set discovery.srv.servers", err)
	}
	for _, server := range conf.Servers {
		servers = append(servers, net.JoinHostPort(server, conf.Port))
	}
	if len(servers) == 0 {
		servers = []string{"127.0.0.1:53"} // as resolv.conf(5) has it
	}
	for _, name := range conf.NameList(s.name) {
		if _, ok := dns.IsDomainName(name); ok { // a search domain may make it too long
			names = append(names, dns.CanonicalName(name))
		}
	}
	return servers, names, nil
}

// parseSRVName returns a name in lower case, or says what is wrong with it.
func parseSRVName(s string) (string, error) {
	bad := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("SRV name %q: %s", redact(s), fmt.Sprintf(format, args...))
	}
	name := strings.ToLower(strings.TrimSpace(s))
	if name == "" {
		return bad("it is empty: write a name such as _elements._tcp.internal")
	}
	if strings.ContainsAny(name, ":/") {
		return bad("write a name alone, such as _elements._tcp.internal: hosts and ports come from its records")
	}
	labels := strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(labels); err == nil {
		return bad("it is an address, which has no SRV records: list it in discovery.static, or in discovery.srv.servers if it is a DNS server")
	}
	if len(labels) > 253 {
		return bad("it is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(labels, ".") {
		switch {
		case label == "":
			return bad("a part of it is empty")
		case len(label) > 63:
			return bad("its part %q is longer than 63 bytes, which DNS cannot carry", label)
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return bad("it holds something else than letters, digits, '-', '_' and '.' (write a name of another script as xn--...)")
			}
		}
	}
	return name, nil
}

// baseName takes the leading _port and _protocol from a name. base is "" where there
// is nothing to look up.
func baseName(name string) (base, port string) {
	base = name
	for strings.HasPrefix(base, "_") {
		label, rest, _ := strings.Cut(base, ".")
		if port == "" {
			port = label[1:]
		}
		base = rest
	}
	return base, port
}

// parseServers reads the list of DNS servers into host:port.
func parseServers(entries []string) ([]string, error) {
	var servers []string
	for _, entry := range entries {
		for one := range strings.SplitSeq(entry, ",") {
			one = strings.TrimSpace(one)
			if one == "" {
				if strings.TrimSpace(entry) == "" {
					return nil, fmt.Errorf("DNS server %q: it is empty: write an address such as 10.0.0.53 or 10.0.0.53:8600", entry)
				}
				continue // a comma at the end, as in a static list
			}
			server, why := parseServer(one)
			if why != "" {
				return nil, fmt.Errorf("DNS server %q: %s", redact(one), why)
			}
			servers = append(servers, server)
		}
	}
	return servers, nil
}

// overTCP marks a server that is asked over TCP alone.
const overTCP = "tcp://"

// networkOf takes a server of parseServers apart.
func networkOf(server string) (network, address string) {
	if address, ok := strings.CutPrefix(server, overTCP); ok {
		return "tcp", address
	}
	return "udp", server
}

func parseServer(s string) (server, why string) {
	network := ""
	if len(s) > len(overTCP) && strings.EqualFold(s[:len(overTCP)], overTCP) {
		network, s = overTCP, s[len(overTCP):]
	}
	if strings.ContainsAny(s, "/@?#") {
		return "", "write an address alone, such as 10.0.0.53 or 10.0.0.53:8600, or with tcp:// in front"
	}
	_, err := netip.ParseAddr(s)
	switch {
	case err == nil:
		s = net.JoinHostPort(s, "53")
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"), !strings.Contains(s, ":"):
		s += ":53"
	}
	host, port, why := splitHostPort(s, "")
	if why != "" {
		return "", why
	}
	if host, _, why = normalHost(host); why != "" {
		return "", why
	}
	return network + net.JoinHostPort(host, port), ""
}
