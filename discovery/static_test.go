package discovery

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParsePeer(t *testing.T) {
	for _, test := range []struct {
		in, want string
		insecure bool
	}{
		{in: "127.0.0.1:7400", want: "ws://127.0.0.1:7400/cluster/v1"},
		{in: "localhost:7400", want: "ws://localhost:7400/cluster/v1"},
		{in: "LOCALHOST.:7400", want: "ws://localhost:7400/cluster/v1"},
		{in: "host:7400", want: "wss://host:7400/cluster/v1"},
		{in: "host:7400", insecure: true, want: "ws://host:7400/cluster/v1"},
		{in: "host:07400", want: "wss://host:7400/cluster/v1"},
		{in: " Host.Example:7400 ", want: "wss://host.example:7400/cluster/v1"},
		{in: "[::1]:7400", want: "ws://[::1]:7400/cluster/v1"},
		{in: "[2001:DB8:0::1]:7400", want: "wss://[2001:db8::1]:7400/cluster/v1"},
		{in: "[::ffff:127.0.0.1]:7400", want: "ws://127.0.0.1:7400/cluster/v1"},
		{in: "[fe80::1%eth0]:7400", want: "wss://[fe80::1%25eth0]:7400/cluster/v1"},
		{in: "ws://host:7400", want: "ws://host:7400/cluster/v1"},
		{in: "WS://HOST:7400/", want: "ws://host:7400/cluster/v1"},
		{in: "ws://host", want: "ws://host:80/cluster/v1"},
		{in: "wss://host", want: "wss://host:443/cluster/v1"},
		{in: "wss://host:7400/cluster/v1", want: "wss://host:7400/cluster/v1"},
		{in: "wss://host:7400/cluster/v1/", want: "wss://host:7400/cluster/v1"},
		{in: "wss://[2001:db8::1]/cluster/v1", want: "wss://[2001:db8::1]:443/cluster/v1"},
	} {
		got, err := ParsePeer(test.in, test.insecure)
		if err != nil || got != test.want {
			t.Errorf("ParsePeer(%q) = %q, %v; want %q", test.in, got, err, test.want)
		}
		again, err := ParsePeer(got, test.insecure)
		if err != nil || again != got {
			t.Errorf("the normal form %q parses to %q, %v", got, again, err)
		}
	}
}

func TestParsePeerRefuses(t *testing.T) {
	const canary = "s3cr3t-CANARY-91"
	for _, test := range []struct{ in, why string }{
		{"", "empty"},
		{"host", "port is missing"},
		{":7400", "names no host"},
		{"host:0", "1 to 65535"},
		{"host:65536", "1 to 65535"},
		{"host:http", "1 to 65535"},
		{"host:", "1 to 65535"},
		{"0.0.0.0:7400", "cannot be dialled"},
		{"[::]:7400", "cannot be dialled"},
		{"::1:7400", "in brackets"},
		{"[::1", "not closed"},
		{"[::1]x:7400", "may follow"},
		{"[host]:7400", "only an IPv6"},
		{"http://host:7400", "write ws://"},
		{"https://host:7400", "write wss://"},
		{"tcp://host:7400", "none of ws://"},
		{"ws://", "names no host"},
		{"ws://host:7400/other", "path is not"},
		{"ws://ho st:7400", "something else than letters"},
		{"ws://bücher:7400", "xn--"},
		{"ws://a..b:7400", "empty or longer"},
		{"ws://user:" + canary + "@host:7400", "user or password"},
		{"user:" + canary + "@host:7400", "user or password"},
		{"ws://host:7400/cluster/v1?session=" + canary, "query or fragment"},
		{"ws://host:7400#" + canary, "query or fragment"},
		{"http://user:" + canary + "@host:7400?session=" + canary, "write ws://"},
		{canary + "@x://host:7400", "none of ws://"},
	} {
		got, err := ParsePeer(test.in, false)
		if err == nil {
			t.Errorf("ParsePeer(%q) = %q, want an error", test.in, got)
			continue
		}
		if _, ok := errors.AsType[*EntryError](err); !ok || !strings.Contains(err.Error(), test.why) {
			t.Errorf("ParsePeer(%q): %v, want %q in it", test.in, err, test.why)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("ParsePeer(%q): the error holds the secret: %v", test.in, err)
		}
	}
}

func TestParseStatic(t *testing.T) {
	got, err := ParseStatic([]string{"127.0.0.1:7400, b:7400", "ws://127.0.0.1:7400/cluster/v1", "WSS://B:7400,", "[::1]:7400"}, false)
	want := []string{"ws://127.0.0.1:7400/cluster/v1", "wss://b:7400/cluster/v1", "ws://[::1]:7400/cluster/v1"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if got, err := ParseStatic(nil, false); len(got) != 0 || err != nil {
		t.Errorf("an empty list: %q, %v", got, err)
	}
	if _, err := ParseStatic([]string{" "}, false); err == nil {
		t.Error("an empty entry is taken")
	}
	if _, err := ParseStatic([]string{"a:7400,b"}, false); err == nil {
		t.Error("the second of two is bad, and taken")
	}
}

func FuzzParsePeer(f *testing.F) {
	for _, s := range []string{"host:7400", "ws://[::1]:7400", "wss://host/cluster/v1", "u:p@h:1", "ws://h?x", "[fe80::1%a]:1", "a,b"} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, insecure bool) {
		got, err := ParsePeer(s, insecure)
		if err != nil {
			if _, ok := errors.AsType[*EntryError](err); !ok {
				t.Fatalf("%q: %T", s, err)
			}
			return
		}
		if again, err := ParsePeer(got, insecure); err != nil || again != got {
			t.Fatalf("%q gives %q, which gives %q, %v", s, got, again, err)
		}
	})
}
