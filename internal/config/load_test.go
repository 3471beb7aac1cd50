package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// valid is the least that this version takes.
var valid = []string{"--mode=worker", "--auth-mode=disabled"}

func machine() Machine { return Machine{HostName: "box"} }

// load reads a configuration from a file's content, an environment and a command
// line.
func load(t *testing.T, file string, environ, args []string) (*Config, []Problem) {
	t.Helper()
	src := Sources{Environ: environ, Flags: &Flags{}, Machine: machine()}
	if file != "" {
		src.File = filepath.Join(t.TempDir(), "conduit.yaml")
		if err := os.WriteFile(src.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	src.Flags.AddFlags(set, func(*Key) bool { return true })
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, err := Load(src)
	if err == nil {
		return c, nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("error is a %T: %v", err, err)
	}
	for i := range e.Problems {
		e.Problems[i].Where = strings.TrimPrefix(e.Problems[i].Where, filepath.Dir(src.File)+"/")
	}
	return c, e.Problems
}

func TestDefaults(t *testing.T) {
	c, problems := load(t, "", nil, valid)
	if problems != nil {
		t.Fatalf("the defaults have problems: %v", problems)
	}
	for _, v := range c.Values() {
		if v.Key.Name != "mode" && v.Key.Name != "auth.mode" && v.Layer != FromDefault {
			t.Errorf("%s comes from %s %s", v.Key.Name, v.Layer, v.Where)
		}
	}
	if got, want := len(c.Values()), len(Keys()); got != want {
		t.Errorf("%d values, %d keys", got, want)
	}
	if got := c.Duration("drain.timeout"); got != 30*time.Second {
		t.Errorf("drain.timeout = %v", got)
	}
	if got := c.Size("cluster.max_payload"); got != 10<<20 {
		t.Errorf("cluster.max_payload = %d", got)
	}
	if got := c.String("name"); got != "box" {
		t.Errorf("name = %q", got)
	}
	if got := c.IDFile(); got != "data/instances/box/instance-id.txt" {
		t.Errorf("id file = %q", got)
	}
}

// What this version cannot do is refused, never half done; the defaults can be done.
func TestUnavailable(t *testing.T) {
	_, problems := load(t, "", nil, append(valid, "--tracing-otlp-endpoint=x", "--host-plugin-tls=auto"))
	expect(t, problems,
		`--tracing-otlp-endpoint: tracing.otlp_endpoint: is not available in this version`,
		`--host-plugin-tls: host.plugin_tls: is not available`)

	_, problems = load(t, "", nil, append(valid, "--discovery-static=127.0.0.1:7400,ftp://x"))
	expect(t, problems, `--discovery-static: discovery.static: "127.0.0.1:7400,ftp://x" has an entry that is no peer:`)

	if _, problems := load(t, "host: {plugin_tls: 'off'}\nregistry: {policy: p2c}\n", nil, valid); problems != nil {
		t.Errorf("asking for the default is no mistake: %v", problems)
	}
}

func TestPrecedence(t *testing.T) {
	file := "drain: {timeout: 1s}\n"
	environ := []string{"CONDUIT_CFG_DRAIN_TIMEOUT=2s", "PATH=/bin"}
	for _, tc := range []struct {
		file    string
		environ []string
		args    []string
		want    time.Duration
		layer   Layer
		where   string
	}{
		{"", nil, nil, 30 * time.Second, FromDefault, ""},
		{file, nil, nil, time.Second, FromFile, "conduit.yaml:1"},
		{file, environ, nil, 2 * time.Second, FromEnv, "CONDUIT_CFG_DRAIN_TIMEOUT"},
		{file, environ, []string{"--drain-timeout", "3s"}, 3 * time.Second, FromFlag, "--drain-timeout"},
		{file, nil, []string{"--drain-timeout=3s"}, 3 * time.Second, FromFlag, "--drain-timeout"},
	} {
		c, problems := load(t, tc.file, tc.environ, append(tc.args, valid...))
		if problems != nil {
			t.Fatal(problems)
		}
		v := c.Value("drain.timeout")
		if c.Duration("drain.timeout") != tc.want || v.Layer != tc.layer || !strings.HasSuffix(v.Where, tc.where) {
			t.Errorf("got %v from %s %s, want %v from %s %s", c.Duration("drain.timeout"), v.Layer, v.Where, tc.want, tc.layer, tc.where)
		}
	}
}

// A mistake in a layer that is overruled is still a mistake.
func TestHiddenMistake(t *testing.T) {
	_, problems := load(t, "drain: {timeout: 30}\n", nil, append(valid, "--drain-timeout=3s"))
	expect(t, problems, `conduit.yaml:1: drain.timeout: "30" has no unit; write, for example, 30s`)
}

// The three sources agree about what a value means: CLI-01 and CLI-03.
func TestSourcesAgree(t *testing.T) {
	const refused = -1
	for _, tc := range []struct {
		key, text string
		want      int64
		why       string
	}{
		{"drain.timeout", `30`, refused, `"30" has no unit; write, for example, 30s`},
		{"drain.timeout", `30.5`, refused, `has no unit`},
		{"drain.timeout", `0`, refused, `has no unit`},
		{"drain.timeout", `30s`, int64(30 * time.Second), ""},
		{"drain.timeout", `1m30s`, int64(90 * time.Second), ""},
		{"drain.timeout", `0s`, 0, ""},
		{"drain.timeout", ``, refused, `is empty; write, for example, 30s`},
		{"drain.timeout", `-5s`, refused, `has a sign`},
		{"drain.timeout", `+5s`, refused, `has a sign`},
		{"drain.timeout", `1ns`, refused, `is too short; the least is 1ms`},
		{"drain.timeout", `30 s`, refused, `is not a duration; the units are ms, s, m and h`},
		{"drain.timeout", `30S`, refused, `is not a duration`},
		{"drain.timeout", `PT30S`, refused, `is not a duration`},
		{"drain.timeout", `1e9h`, refused, `is not a duration`},
		{"drain.timeout", `1000000h`, refused, `is longer than ten years`},
		{"drain.timeout", `99999999999999h`, refused, `is not a duration`},
		{"cluster.ping_interval", `1ms`, refused, `is too short; the least is 10ms; write, for example, 20s`},
		{"cluster.max_payload", `10MiB`, 10 << 20, ""},
		{"cluster.max_payload", `64KiB`, 64 << 10, ""},
		{"cluster.max_payload", `0.5MiB`, 512 << 10, ""},
		{"cluster.memory", `1.5GiB`, 3 << 29, ""},
		{"cluster.max_payload", `10MB`, refused, `sizes take KiB, MiB or GiB`},
		{"cluster.max_payload", `10M`, refused, `sizes take KiB, MiB or GiB`},
		{"cluster.max_payload", `10m`, refused, `sizes take KiB, MiB or GiB`},
		{"cluster.max_payload", `10 mib`, refused, `sizes take KiB, MiB or GiB`},
		{"cluster.max_payload", `10 MiB`, refused, `without spaces`},
		{"cluster.max_payload", `10485760`, refused, `has no unit; sizes take KiB, MiB or GiB`},
		{"cluster.max_payload", `0`, refused, `has no unit`},
		{"cluster.max_payload", `0MiB`, refused, `is too small; the least is 4KiB`},
		{"cluster.max_payload", `1KiB`, refused, `is too small; the least is 4KiB`},
		{"cluster.max_payload", `-1`, refused, `has no unit`},
		{"cluster.max_payload", `-1MiB`, refused, `is not a size`},
		{"cluster.max_payload", `99999999999GiB`, refused, `is too large; the most is 1GiB`},
		{"cluster.memory", `99999999999GiB`, refused, `is too large; the most is 1048576GiB`},
		{"cluster.max_payload", `0.3333KiB`, refused, `is not a whole number of bytes`},
		{"cluster.max_payload", ``, refused, `is empty`},
		{"cluster.max_calls", `5`, 5, ""},
		{"cluster.max_calls", `0`, refused, `is out of range; it may be 1 to 1048576`},
		{"cluster.max_calls", `-1`, refused, `is out of range`},
		{"cluster.max_calls", `+1`, refused, `is not a whole number`},
		{"cluster.max_calls", `1.5`, refused, `is not a whole number; write, for example, 4096`},
		{"cluster.max_calls", `0x10`, refused, `is not a whole number`},
		{"cluster.max_calls", `many`, refused, `is not a whole number`},
		{"cluster.max_calls", ``, refused, `is not a whole number`},
		{"log.level", `INFO`, refused, `is none of trace, debug, info, warn, error; did you mean info?`},
		{"host.remote_admin", `on`, refused, `is not true or false`},
		{"cluster.listen", `7400`, refused, `is not host:port`},
		{"cluster.listen", `127.0.0.1:http`, refused, `has no port`},
		{"cluster.listen", `127.0.0.1:70000`, refused, `has no port`},
		{"cluster.listen", `::1:7400`, refused, `is not host:port`},
		{"cluster.origins", `https://a.example,,https://b.example`, refused, `has an empty entry`},
		{"cluster.origins", `a.example`, refused, `which is not an origin`},
		{"name", ``, refused, `is empty`},
		{"name", `../x`, refused, `is not a name`},
	} {
		flag := (&Key{Name: tc.key}).Flag()
		env := (&Key{Name: tc.key}).Env()
		sources := map[string]struct {
			file    string
			environ []string
			args    []string
		}{
			"quoted": {nested(tc.key, fmt.Sprintf("%q", tc.text)), nil, nil},
			"plain":  {nested(tc.key, tc.text), nil, nil},
			"env":    {"", []string{env + "=" + tc.text}, nil},
			"flag":   {"", nil, []string{"--" + flag + "=" + tc.text}},
		}
		if tc.text == "" || strings.HasPrefix(tc.text, ":") || strings.Contains(tc.text, ": ") {
			delete(sources, "plain") // YAML has its own idea of these
		}
		for name, s := range sources {
			t.Run(fmt.Sprintf("%s=%s/%s", tc.key, tc.text, name), func(t *testing.T) {
				c, problems := load(t, s.file, s.environ, append(s.args, valid...))
				if tc.want == refused {
					expect(t, problems, tc.key+": "+fmt.Sprintf("%q ", tc.text), tc.why)
					return
				}
				if problems != nil {
					t.Fatal(problems)
				}
				v := c.Value(tc.key)
				if got := v.number(); got != tc.want {
					t.Errorf("got %d, want %d", got, tc.want)
				}
			})
		}
	}
}

// nested writes a key and its value as YAML.
func nested(key, value string) string {
	var b strings.Builder
	indent := ""
	parts := strings.Split(key, ".")
	for i, part := range parts {
		b.WriteString(indent + part + ":")
		if i == len(parts)-1 {
			b.WriteString(" " + value)
		}
		b.WriteString("\n")
		indent += "  "
	}
	return b.String()
}

// expect wants each text in the problems, in any of them.
func expect(t *testing.T, problems []Problem, texts ...string) {
	t.Helper()
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String()
	}
	all := strings.Join(lines, "\n")
	if len(problems) == 0 {
		t.Error("nothing was refused")
	}
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("no problem says %q in:\n%s", text, all)
		}
	}
}

func TestLists(t *testing.T) {
	for name, s := range map[string]struct {
		file    string
		environ []string
		args    []string
	}{
		"file":       {file: "cluster:\n  origins: [https://a.example, 'https://b.example']\n"},
		"file block": {file: "cluster:\n  origins:\n    - https://a.example\n    - https://b.example\n"},
		"file text":  {file: "cluster:\n  origins: https://a.example, https://b.example\n"},
		"env":        {environ: []string{"CONDUIT_CFG_CLUSTER_ORIGINS=https://a.example,https://b.example"}},
		"flag":       {args: []string{"--cluster-origins=https://a.example,https://b.example"}},
		"flags":      {args: []string{"--cluster-origins=https://a.example", "--cluster-origins", "https://b.example"}},
	} {
		c, problems := load(t, s.file, s.environ, append(s.args, valid...))
		if problems != nil {
			t.Errorf("%s: %v", name, problems)
			continue
		}
		if got := fmt.Sprint(c.List("cluster.origins")); got != "[https://a.example https://b.example]" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// Strictness of the file: CLI-05 and what YAML can be abused for.
func TestMaps(t *testing.T) {
	want := map[string]string{"motto": "one, two", "path": `c:\x`, "empty": "", "eq": "a=b", "a.b": "5"}
	for what, c := range map[string]func() (*Config, []Problem){
		"file": func() (*Config, []Problem) {
			return load(t, "mode: worker\nauth.mode: disabled\nhost:\n  attributes:\n    motto: one, two\n    path: 'c:\\x'\n    empty: \"\"\n    eq: a=b\n    a.b: 5\n", nil, nil)
		},
		"environment": func() (*Config, []Problem) {
			return load(t, "", []string{`CONDUIT_CFG_HOST_ATTRIBUTES=motto=one\, two,path=c:\\x, empty=,eq=a=b,a.b=5`}, valid)
		},
		"flags": func() (*Config, []Problem) {
			return load(t, "", nil, append(slices.Clone(valid), `--host-attributes=motto=one\, two,path=c:\\x`, "--host-attributes", "empty=", "--host-attributes=eq=a=b,a.b=5"))
		},
	} {
		if got, problems := c(); problems != nil || !maps.Equal(got.Map("host.attributes"), want) {
			t.Errorf("%s: %q, %v", what, got.Map("host.attributes"), problems)
		}
	}
	if c, _ := load(t, "", nil, valid); len(c.Map("host.attributes")) != 0 {
		t.Errorf("the default is %v", c.Map("host.attributes"))
	}
	for text, want := range map[string]string{
		"motto": "not name=value", "=x": "not name=value", "a=1,a=2": "twice", "a=1,": "ends with a comma", `a=\n`: "before something else",
		"a b=1": "no space", `a=1\`: "before something else",
	} {
		if _, problems := load(t, "", nil, append(slices.Clone(valid), "--host-attributes="+text)); len(problems) != 1 || !strings.Contains(problems[0].Message, want) {
			t.Errorf("%q: %v, want %q", text, problems, want)
		}
	}
	for text, want := range map[string]string{
		"{a: [1]}": "plain text", "[a=1]": "takes one value", "{a: }": "plain text", "{a=b: 1}": "'='",
	} {
		if _, problems := load(t, "mode: worker\nhost:\n  attributes: "+text+"\n", nil, nil); len(problems) != 1 || !strings.Contains(problems[0].Message, want) || problems[0].Where != "conduit.yaml:3" {
			t.Errorf("%s: %v, want %q", text, problems, want)
		}
	}
}

func TestFile(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		want       []string // nothing: the file is fine
	}{
		{"empty", "\n# nothing\n", nil},
		{"null group", "drain:\n", nil},
		{"typo", "mode: worker\ndrian:\n  timeout: 5s\n", []string{"conduit.yaml:2: drian: is not a key; did you mean drain?"}},
		{"typo at the end", "drain:\n  timeuot: 5s\n", []string{"conduit.yaml:2: drain.timeuot: is not a key; did you mean drain.timeout?"}},
		{"underscores", "drain_timeout: 5s\n", []string{"conduit.yaml:1: drain_timeout: is not a key; did you mean drain.timeout?"}},
		{"wrong depth", "rescan: 5s\n", []string{"conduit.yaml:1: rescan: is not a key; did you mean host.rescan?"}},
		{"too deep", "host:\n  drain:\n    timeout: 5s\n", []string{"conduit.yaml:2: host.drain: is not a key"}},
		{"wrong case", "Mode: worker\n", []string{"conduit.yaml:1: Mode: is not a key; did you mean mode?"}},
		{"wrong case inside", "drain:\n  Timeout: 5s\n", []string{"conduit.yaml:2: drain.Timeout: is not a key; did you mean drain.timeout?"}},
		{"two faults", "moda: x\nnaem: y\n", []string{"conduit.yaml:1: moda", "conduit.yaml:2: naem"}},
		{"twice", "mode: worker\nmode: both\n", []string{"conduit.yaml:2: mode: is set twice; the first is in line 1"}},
		{"twice inside", "drain:\n  timeout: 1s\n  timeout: 2s\n", []string{"conduit.yaml:3: drain.timeout: is set twice; the first is in line 2"}},
		{"second document", "mode: worker\n---\nmode: both\n", []string{"conduit.yaml:2: a second document begins here"}},
		{"second empty document", "mode: worker\n---\n", []string{"a second document"}},
		{"no value", "mode:\n", []string{"conduit.yaml:1: mode: has no value"}},
		{"list for text", "name: [a, b]\n", []string{"conduit.yaml:1: name: takes one value, not a list"}},
		{"group for text", "name: {a: b}\n", []string{"name: takes a value, not a group of keys"}},
		{"text for group", "drain: 5s\n", []string{"conduit.yaml:1: drain: is a group of keys, not a value; one of its keys is drain.timeout"}},
		{"list entry", "cluster: {origins: [[a]]}\n", []string{"an entry of the list is not plain text"}},
		{"not a mapping", "- a\n", []string{"conduit.yaml:1: a configuration file is a mapping"}},
		{"not YAML", "mode: [\n", []string{"conduit.yaml:2:1: is not YAML"}},
		{"tab", "drain:\n\ttimeout: 5s\n", []string{"conduit.yaml:2:1: is not YAML"}},
		{"alias", "x: 1\nname: *none\n", []string{"is not YAML: unknown anchor"}},
		{"anchor for a value", "drain: {timeout: &t 7s}\ncluster: {ping_interval: *t}\n", nil},
		{"anchor for a group", "drain: &d {timeout: 7s}\ncluster: *d\n", []string{"an alias can stand for a value"}},
		{"merge", "drain:\n  <<: {timeout: 7s}\n", []string{"merge keys are not read"}},
		{"complex key", "? [a]\n: 1\n", []string{"a key must be plain text"}},
		{"binary", "\x00\x01", []string{"is not YAML"}},
		{"alias bomb", bomb(), []string{"is not a key"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, problems := load(t, tc.file, nil, valid)
			if tc.want == nil {
				if problems != nil {
					t.Errorf("refused: %v", problems)
				}
				return
			}
			expect(t, problems, tc.want...)
		})
	}
}

// A file may write a key with its dots, as the documentation does, but not both
// ways at once.
func TestDottedKey(t *testing.T) {
	c, problems := load(t, "drain.timeout: 5s\n", nil, valid)
	if problems != nil || c.Duration("drain.timeout") != 5*time.Second {
		t.Errorf("drain.timeout = %v, %v", c.Duration("drain.timeout"), problems)
	}
	_, problems = load(t, "drain.timeout: 5s\ndrain:\n  timeout: 6s\n", nil, valid)
	expect(t, problems, "conduit.yaml:3: drain.timeout: is set twice; the first is at ")
}

// bomb expands to 10^9 entries in a reader that follows aliases.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	b.WriteString("cluster: {origins: *a29}\n")
	return b.String()
}

func TestFileCannotBeRead(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(large, make([]byte, MaxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "none.yaml"): "cannot be opened: no such file or directory",
		t.TempDir():                             "cannot be read: is a directory",
		large:                                   "larger than 1MiB",
		"/dev/zero":                             "is a pipe or a device",
	} {
		_, err := Load(Sources{File: path, Machine: machine()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A pipe is refused, and at once, whether or not somebody will write to it: its text
// would be there for the first reader only, and the others would find an empty file.
func TestFileIsAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("mode: worker\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, fmt.Sprint("/dev/fd/", r.Fd())} {
		loaded := make(chan error, 1)
		go func() {
			_, err := Load(Sources{File: path, Machine: machine()})
			loaded <- err
		}()
		select {
		case err := <-loaded:
			if err == nil || !strings.Contains(err.Error(), "is a pipe or a device") || !strings.Contains(err.Error(), "write it to a file") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s is waited for", path)
		}
	}
	if _, err := Load(Sources{File: os.DevNull, Machine: machine()}); err != nil && strings.Contains(err.Error(), "pipe") {
		t.Errorf("%s is an empty file each time, and was refused: %v", os.DevNull, err)
	}
}

func TestUnknownEnvironment(t *testing.T) {
	c, problems := load(t, "", []string{"CONDUIT_CFG_DRIAN_TIMEOUT=5s", "CONDUIT_CFG_SESSION=secret", "CONDUIT_HOME=/x"}, valid)
	if problems != nil {
		t.Fatal(problems)
	}
	want := "the environment variable CONDUIT_CFG_DRIAN_TIMEOUT is not a key and is ignored; did you mean CONDUIT_CFG_DRAIN_TIMEOUT?"
	if len(c.Warnings) != 1 || c.Warnings[0] != want {
		t.Errorf("warnings: %q", c.Warnings)
	}
}

// Keys fold to names of the environment and of flags without collision.
func TestKeysFold(t *testing.T) {
	seen := map[string]string{SessionEnv: "the session", EtcdPasswordEnv: "the password of etcd", "--config": "config", "--instance": "instance", "--peer": "peer", "--session": "session", "--output": "output", "--help": "help"}
	for _, key := range Keys() {
		for _, name := range []string{key.Env(), "--" + key.Flag()} {
			if other, twice := seen[name]; twice {
				t.Errorf("%s and %s both fold to %s", key.Name, other, name)
			}
			seen[name] = key.Name
		}
		if key.Doc == "" || strings.HasSuffix(key.Doc, ".") {
			t.Errorf("%s: a doc is one sentence without a full stop", key.Name)
		}
	}
}

func TestCrossChecks(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--cluster-listen=0.0.0.0:7400"}, `--cluster-listen: cluster.listen: "0.0.0.0:7400" is not loopback, but with auth.mode disabled every caller is superuser`},
		// With authentication a listener may be heard elsewhere, if what is said there may.
		{[]string{"--auth-mode=required", "--cluster-listen=0.0.0.0:7400"}, `--cluster-listen: cluster.listen: "0.0.0.0:7400" is not loopback, and ws:// lets everybody on the way read sessions and payloads; give a certificate with --cluster-tls-cert`},
		{[]string{"--auth-mode=required", "--cluster-listen=0.0.0.0:7400", "--cluster-insecure"}, ``},
		{[]string{"--auth-mode=required", "--mode=both", "--gateway-listen=0.0.0.0:7480", "--ops-listen=0.0.0.0:7490"}, ``},
		{[]string{"--cluster-listen=0.0.0.0:7400", "--cluster-insecure"}, `with auth.mode disabled every caller is superuser`},
		{[]string{"--auth-store=users.db"}, `auth.store: "users.db" is no auth store; write bolt:PATH`},
		{[]string{"--auth-store=bolt:"}, `auth.store: "bolt:" is no auth store; write bolt:PATH`},
		{[]string{"--auth-store="}, `auth.store`},
		{[]string{"--auth-store=etcd://h1,h2:2380,[::1],[::1]:99/a/b-c.d_e/"}, ``},
		{[]string{"--auth-store=etcd://127.0.0.1"}, ``},
		{[]string{"--auth-store=etcd:"}, `auth.store: "etcd:" is no store in etcd; write, for example, etcd://`},
		{[]string{"--auth-store=etcd:///p"}, `names a server that is none`},
		{[]string{"--auth-store=etcd://h1,/p"}, `names a server that is none`},
		{[]string{"--auth-store=etcd://h1:0/p"}, `names a server that is none`},
		{[]string{"--auth-store=etcd://h1:x/p"}, `names a server that is none`},
		{[]string{"--auth-store=etcd://h1 h2/p"}, `names a server that is none`},
		{[]string{"--auth-store=etcd://h1,h1:2379/p"}, `names a server twice`},
		{[]string{"--auth-store=etcd://h1//p"}, `has a prefix that is none`},
		{[]string{"--auth-store=etcd://h1/p?x=1"}, `has a prefix that is none`},
		{[]string{"--auth-store=etcd://root:hunter2@h1/p"}, `auth.store: "etcd://...@h1/p" has a user in it, and a password has no place in a setting; give the user as auth.etcd.user`},
		{[]string{"--auth-etcd-user=u"}, `auth.etcd.user: "u" is about a store in etcd, and auth.store is bolt:`},
		{[]string{"--auth-store=etcd://h1", "--auth-etcd-password-file=f"}, `auth.etcd.password_file: "f" is the password of nobody`},
		{[]string{"--auth-store=etcd://h1", "--auth-etcd-user=u", "--auth-etcd-password-file=f", "--auth-etcd-tls-ca=ca.pem"}, ``},
		{[]string{"--auth-store=etcd://h1", "--auth-etcd-tls-cert=c.pem"}, `auth.etcd.tls.cert: "c.pem" is a certificate without a key; name it with --auth-etcd-tls-key`},
		{[]string{"--auth-store=etcd://h1", "--auth-etcd-insecure", "--auth-etcd-tls-ca=ca.pem"}, `auth.etcd.insecure: "true" is for speaking in the clear`},
		{[]string{"--auth-session-timeout=1ms"}, `auth.session_timeout`},
		{[]string{"--auth-session-timeout=90000h"}, `auth.session_timeout`},
		{[]string{"--cluster-listen=:7400"}, `is not loopback`},
		{[]string{"--cluster-listen=box.example:7400"}, `is not loopback`},
		{[]string{"--cluster-listen=[::]:7400"}, `is not loopback`},
		{[]string{"--ops-listen=192.0.2.1:7400"}, `ops.listen: "192.0.2.1:7400" is not loopback`},
		{[]string{"--auth-mode=required", "--cluster-listen=[::]:7400", "--cluster-tls-cert=c.pem", "--cluster-tls-key=k.pem"}, ``},
		{[]string{"--gateway-tls-cert=c.pem"}, `gateway.tls.cert: "c.pem" is a certificate without a key; name it with --gateway-tls-key`},
		{[]string{"--ops-tls-key=k.pem"}, `ops.tls.key: "k.pem" is a key without a certificate; name it with --ops-tls-cert`},
		{[]string{"--cluster-tls-client-ca=ca.pem"}, `cluster.tls.client_ca: "ca.pem" asks callers for certificates, but there is no TLS to ask with`},
		{[]string{"--cluster-listen=[::1]:0", "--ops-listen=localhost:0"}, ``},
		{[]string{"--ops-listen=127.0.0.1:7400"}, `ops.listen: "127.0.0.1:7400" is also cluster.listen`},
		{[]string{"--cluster-link-memory=512MiB"}, `cluster.link_memory: "512MiB" is too much for cluster.memory, which is 256MiB`},
		{[]string{"--cluster-memory=8MiB"}, `cluster.memory: "8MiB" is too little for cluster.link_memory, which is 16MiB`},
		{[]string{"--cluster-max-payload=200MiB"}, `is too much for cluster.memory, which is 256MiB; it must fit 2 times`},
		{[]string{"--cluster-probe-interval=2s"}, `is too much for cluster.dead_after, which is 3s`},
		{[]string{"--drain-grace=39s"}, `drain.grace: "39s" is too little for a drain, which may take 40s: drain.delay 0s, drain.timeout 30s and 10s for the elements to end; raise TimeoutStopSec`},
		{[]string{"--drain-grace=40s"}, ``},
		{[]string{"--mode=external", "--drain-grace=40s"}, `which may take 45s: drain.delay 5s`},
		{[]string{"--drain-grace=1m", "--drain-timeout=1m"}, `to 1m10s at least`},
		{[]string{"--run-dir=/" + strings.Repeat("r", 100)}, `makes the path of a socket too long: /rrrr`},
	} {
		_, problems := load(t, "", nil, append(slices.Clip(valid), tc.args...))
		if tc.want == "" {
			if problems != nil {
				t.Errorf("%v: %v", tc.args, problems)
			}
			continue
		}
		expect(t, problems, tc.want)
	}
}

// What works until something else comes to it is a warning, and only where it matters.
func TestDoubts(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--mode=both"}, ""},
		{[]string{"--mode=external"}, ""},
		{[]string{"--cluster-ping-interval=30s"}, ""},
		{[]string{"--cluster-ping-interval=31s"}, `--cluster-ping-interval: cluster.ping_interval: "31s" is slower than proxies wait: nginx (proxy_read_timeout) and many load balancers cut a connection after 60s without a word; ping every 30s at most, or see that no proxy on the way cuts within 1m2s`},
		{[]string{"--gateway-max-body=20MiB"}, ""}, // there is no gateway
		{[]string{"--mode=both", "--gateway-max-body=20MiB"}, `gateway.max_body: "20MiB" is more than cluster.max_payload (10MiB)`},
		{[]string{"--mode=both", "--gateway-max-body=20MiB", "--cluster-max-payload=20MiB"}, ""},
		{[]string{"--cluster-max-payload=20MiB"}, ""},
		{[]string{"--cluster-max-payload=20MiB", "--host-reattach=a=/run/a.sock"}, `cluster.max_payload: "20MiB" is more than a process takes that is debugged (10MiB)`},
		{[]string{"--drain-delay=5s"}, `drain.delay: "5s" only makes the end later in mode worker`},
		{[]string{"--mode=both", "--drain-delay=5s"}, ""},
	} {
		c, problems := load(t, "", nil, append(slices.Clip(valid), tc.args...))
		if problems != nil {
			t.Errorf("%v: %v", tc.args, problems)
		}
		switch {
		case tc.want == "" && len(c.Warnings) > 0:
			t.Errorf("%v: warnings %q", tc.args, c.Warnings)
		case tc.want != "" && (len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], tc.want)):
			t.Errorf("%v: warnings %q, want %s", tc.args, c.Warnings, tc.want)
		}
	}
}

// Kubernetes tells a pod of each service by variables that begin with the service's
// name. However somebody calls one, none of these is a key of ours.
func TestNamesOfServicesAreNoKeys(t *testing.T) {
	var environ []string
	for _, service := range []string{"CONDUIT", "CONDUIT_CFG", "CONDUIT_CFG_CLUSTER", "CONDUIT_CFG_OPS", "CONDUIT_CFG_GATEWAY", "CONDUIT_CFG_HOST"} {
		environ = append(environ, service+"_SERVICE_HOST=10.0.0.1", service+"_SERVICE_PORT=7400", service+"_SERVICE_PORT_CLUSTER=7400", service+"_PORT=tcp://10.0.0.1:7400",
			service+"_PORT_7400_TCP=tcp://10.0.0.1:7400", service+"_PORT_7400_TCP_PROTO=tcp", service+"_PORT_7400_TCP_PORT=7400", service+"_PORT_7400_TCP_ADDR=10.0.0.1")
	}
	c, problems := load(t, "", environ, valid)
	if problems != nil {
		t.Fatal(problems)
	}
	for _, v := range c.Values() {
		if v.Layer == FromEnv {
			t.Errorf("%s is set by %s", v.Key.Name, v.Where)
		}
	}
	// No key that is to come may take such a name, either.
	for _, key := range Keys() {
		for _, tail := range []string{"_SERVICE_HOST", "_SERVICE_PORT", "_PORT", "_TCP", "_TCP_PROTO", "_TCP_ADDR"} {
			if strings.HasSuffix(key.Env(), tail) {
				t.Errorf("%s: a service of that name sets %s", key.Name, key.Env())
			}
		}
	}
}

func TestRunDir(t *testing.T) {
	m := Machine{HostName: "box", RuntimeDir: "/run/user/1"}
	run := func(data string) string {
		c, _ := Load(Sources{Machine: m, Environ: []string{"CONDUIT_CFG_DATA_DIR=" + data}})
		return c.String("run_dir")
	}
	a, b := run("/srv/a"), run("/srv/b")
	if a == b || !strings.HasPrefix(a, "/run/user/1/conduit/") || len(filepath.Base(a)) != 8 {
		t.Errorf("run_dir of two data directories: %s, %s", a, b)
	}
	m.RuntimeDir = ""
	if got := run("/srv/a"); got != "/srv/a/run" {
		t.Errorf("without a runtime directory: %s", got)
	}
}

func TestNearest(t *testing.T) {
	candidates := []string{"serve", "call", "config", "version"}
	for text, want := range map[string]string{"servr": "serve", "Serve": "serve", "cal": "call", "confg": "config", "xylophone": "", "": ""} {
		if got := Nearest(text, candidates); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", text, got, want)
		}
	}
}

// The store is where the data is, unless another place is named.
func TestStorePath(t *testing.T) {
	for want, args := range map[string][]string{
		"data/auth.db":    nil,
		"elsewhere/a:b":   {"--auth-store=bolt:elsewhere/a:b"},
		"/var/x/auth.db":  {"--data-dir=/var/x"},
		"/run/y/users.db": {"--data-dir=/var/x", "--auth-store=bolt:/run/y/users.db"},
	} {
		c, problems := load(t, "", nil, args)
		if got := c.StorePath(); got != want || problems != nil {
			t.Errorf("%v: %q, want %q; %v", args, got, want, problems)
		}
	}
}

// The example of the documentation is a configuration.
func TestDocumentedExample(t *testing.T) {
	_, rest, _ := strings.Cut(string(documentation()), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the documentation has no example")
	}
	if _, problems := load(t, example, nil, nil); problems != nil {
		t.Error(problems)
	}
}

// A machine without a name needs one given, and no more.
func TestNoHostName(t *testing.T) {
	environ := []string{"CONDUIT_CFG_MODE=worker", "CONDUIT_CFG_AUTH_MODE=disabled"}
	_, err := Load(Sources{Environ: environ})
	if err == nil || !strings.Contains(err.Error(), `name: ""`) {
		t.Errorf("without a name: %v", err)
	}
	if _, err := Load(Sources{Environ: append(environ, "CONDUIT_CFG_NAME=w")}); err != nil {
		t.Error(err)
	}
}

// TestEtcd: what auth.store says of etcd, and when it is spoken to over TLS.
func TestEtcd(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		ends   string
		prefix string
		tls    bool
	}{
		{[]string{"--auth-store=etcd://127.0.0.1,localhost:99,[::1]/p"}, "127.0.0.1:2379 localhost:99 [::1]:2379", "p", false},
		{[]string{"--auth-store=etcd://h1,127.0.0.1/a/b/"}, "h1:2379 127.0.0.1:2379", "a/b", true},
		{[]string{"--auth-store=etcd://h1", "--auth-etcd-insecure"}, "h1:2379", "", false},
		{[]string{"--auth-store=etcd://127.0.0.1", "--auth-etcd-tls-ca=ca.pem"}, "127.0.0.1:2379", "", true},
	} {
		c, problems := load(t, "", []string{EtcdPasswordEnv + "=x"}, append(tc.args, valid...))
		if problems != nil || len(c.Warnings) != 0 {
			t.Fatal(problems, c.Warnings)
		}
		ends, prefix := c.Etcd()
		if got := strings.Join(ends, " "); !c.InEtcd() || got != tc.ends || prefix != tc.prefix || c.EtcdTLS() != tc.tls {
			t.Errorf("%v: %q, %q, TLS %v", tc.args, got, prefix, c.EtcdTLS())
		}
	}
}
