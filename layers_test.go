package conduit_test

import (
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/elemental-conduit/conduit"

// A layer says what the Go files of one folder may import. Test files may import
// what they like.
type layer struct {
	// why the folder exists, and why it needs what it may import.
	why string
	// local lists folders of this module, "." being its root.
	local []string
	// third lists third-party modules, or packages of them.
	third []string
	// planned marks a folder that has no Go file yet.
	planned bool
}

const (
	backoff    = "github.com/cenkalti/backoff/v5"
	bbolt      = "go.etcd.io/bbolt"
	crypto     = "golang.org/x/crypto"
	etcd       = "go.etcd.io/etcd/client/v3"
	grpc       = "google.golang.org/grpc"
	hdr        = "github.com/HdrHistogram/hdrhistogram-go"
	hclog      = "github.com/hashicorp/go-hclog"
	landlock   = "github.com/landlock-lsm/go-landlock"
	miekg      = "github.com/miekg/dns"
	prometheus = "github.com/prometheus/client_golang"
	protobuf   = "google.golang.org/protobuf"
	rate       = "golang.org/x/time/rate"
	sync       = "golang.org/x/sync"
	sys        = "golang.org/x/sys"
	text       = "golang.org/x/text"
	yaml       = "go.yaml.in/yaml/v4"
)

// layers is the map of ARCHITECTURE.md, in the order in which one may read the
// packages: each imports from above itself only. A folder that is missing here
// fails the test, so the map stays whole; to add one, say why it exists.
var layers = map[string]layer{
	// Vocabulary: values and pure functions.
	"address": {
		why: "names of instances, deployments, elements and services: values without state",
	},
	".": {
		why:   "what a call is, for everyone: errors, outcomes, Invoker, Call and Stream; may carry proto messages",
		local: []string{"address"},
		third: []string{protobuf},
	},
	"proto/conduit/v1": {
		why:   "generated: the wire and the built-in services",
		third: []string{protobuf, grpc},
	},
	"proto/conduit/persist": {
		why:   "generated: the messages of the store's service",
		third: []string{protobuf, grpc},
	},
	"internal/frame": {
		why:   "bytes to frames and back, by protowire on the hot path",
		local: []string{"proto/conduit/v1"},
		third: []string{protobuf},
	},

	// The engine, and what carries it.
	"internal/link": {
		why:   "the multiplexer: calls over any carrier, so it knows neither WebSocket nor gRPC; Hello and Failure are proto messages, off the hot path",
		local: []string{".", "address", "internal/frame", "proto/conduit/v1"},
		third: []string{protobuf},
	},
	"transport": {
		why:   "calls between processes; alone in knowing WebSocket. Who may call is a func that it is given, what is called a Handler",
		local: []string{".", "address", "internal/frame", "internal/link"},
		third: []string{"github.com/gorilla/websocket", sync, hclog, backoff},
	},
	"internal/schema": {
		why:   "what the JSON of Go types and of protobuf messages looks like: an element says it of its methods, so authors compile it in",
		third: []string{protobuf},
	},
	"internal/tracecontext": {
		why: "the W3C trace context that calls carry: who takes one in, and who writes one into a log, read it by one rule",
	},
	"internal/attribute": {
		why: "what an attribute may be called: authors, operators and the host are held to one rule",
	},
	"internal/pluginlink": {
		why:   "host to plugin, both ends; alone in knowing go-plugin",
		local: []string{".", "internal/frame", "internal/link", "proto/conduit/v1"},
		third: []string{"github.com/hashicorp/go-plugin", hclog, grpc, protobuf, sys},
	},

	// Who is there, who asks, and what room there is.
	"budget": {
		why:   "the units of an instance and the claims on them: counting, nothing else",
		local: []string{"."},
	},
	"discovery": {
		why:   "which hosts exist: network addresses, not instances",
		third: []string{miekg}, // the standard resolver hides TTL and response code
	},
	"discovery/discoverytest": {
		why:   "what every source of discovery must do, as a test that each runs; and a DNS server that answers from a script",
		local: []string{"discovery"},
		third: []string{miekg},
	},
	"auth": {
		why:   "who is calling: users, sessions, levels; it speaks of principals, not of links",
		local: []string{".", "address", "internal/frame"},
		third: []string{crypto, text, rate}, // argon2id, one form of a password, attempts
	},
	"auth/authtest": {
		why:   "what every store of users must do, as a test that each runs, and one in memory",
		local: []string{".", "address", "auth"},
	},
	"auth/boltstore": {
		why:   "users and sessions in a file that the instances of one machine share",
		local: []string{".", "address", "auth"},
		third: []string{bbolt},
	},
	"auth/etcdstore": {
		why:   "users and sessions of a cluster",
		local: []string{".", "address", "auth"},
		third: []string{etcd, "go.etcd.io/etcd/api/v3", grpc, "go.uber.org/zap"}, // api: what etcd's client answers with; grpc: how it dials; zap: to keep it from logging
	},
	"registry": {
		why:   "which peers are alive, what they host and have room for; it dials through an interface of its own, so it does not know transport",
		local: []string{".", "address", "discovery", "proto/conduit/v1"},
		third: []string{protobuf, backoff, rate}, // backoff: between dials; rate: of questions to one peer
	},
	"internal/peerlink": {
		why:   "the registry's links to peers, made by transport's client: the one place that knows both",
		local: []string{".", "address", "internal/link", "proto/conduit/v1", "registry", "transport"},
		third: []string{protobuf},
	},
	"locator": {
		why:   "from an address to something callable: local, picked, rerouted or gathered",
		local: []string{".", "address", "registry"},
	},

	"internal/conformance": {
		why:   "what a host relies on in a plugin, as checks of its binary: it is the host of one process, by pluginlink alone, so that plugintest may use it; for plugintest and the command line",
		local: []string{".", "address", "internal/frame", "internal/link", "internal/pluginlink", "proto/conduit/v1"},
		third: []string{hclog, protobuf},
	},

	// Authors and clients.
	"pluginapi": {
		why:   "what an author imports: whatever stands here, every plugin compiles in",
		local: []string{".", "address", "internal/attribute", "internal/frame", "internal/link", "internal/pluginlink", "internal/schema", "internal/tracecontext", "proto/conduit/v1"},
		third: []string{protobuf},
	},
	"pluginapi/conformance": {
		why:   "the service that the conformance checks call, for elements in Go: apart from pluginapi, so that no binary has it that does not ask for it",
		local: []string{"pluginapi"},
	},
	"pluginapi/plugintest": {
		why:   "an author's tests: the real engine in process, a binary in a process of its own, and the conformance check for binaries; the real budget, so that claims are refused there as they are by a host",
		local: []string{".", "address", "budget", "internal/conformance", "internal/frame", "internal/link", "internal/pluginlink", "pluginapi", "proto/conduit/v1"},
		third: []string{hclog},
	},
	"client": {
		why:   "what a Go program outside of the cluster imports: discovery by a list, the registry over links of its own, the locator's pick and reroute",
		local: []string{".", "address", "discovery", "internal/peerlink", "locator", "registry", "transport"},
	},

	// An instance.
	"internal/sandbox": {
		why:   "confines a process before it becomes a plugin; alone in knowing Landlock, and it knows neither plugins nor hosts. internal/pluginlink sees it as an interface, since authors compile that in",
		third: []string{landlock, sys},
	},
	"internal/safepath": {
		why: "who else could change what a path leads to: asked of all that an instance runs or trusts",
	},
	"internal/pluginlog": {
		why:   "what plugins wrote: files of bounded size, who follows them, and the way back; it knows lines and names, and no process",
		local: []string{"address"},
		third: []string{hclog}, // its levels
	},
	"host": {
		why:   "deployments, their processes and the dispatch to them; other instances are none of its business",
		local: []string{".", "address", "auth", "budget", "internal/attribute", "internal/frame", "internal/link", "internal/manifest", "internal/pluginlink", "internal/pluginlog", "internal/safepath", "internal/sandbox", "internal/tracecontext", "proto/conduit/v1"},
		third: []string{hclog, protobuf, sys, backoff, "github.com/fsnotify/fsnotify"}, // backoff: between restarts; fsnotify: hints of changed files
	},
	"internal/values": {
		why:   "how durations, sizes and names are written: the same in the configuration and in deployment.yaml, so both ask here",
		third: []string{"github.com/agnivade/levenshtein"},
	},
	"internal/manifest": {
		why:   "deployment.yaml: what it may say and what is wrong with one; the host obeys it and config check reads it, so it is neither's",
		local: []string{".", "address", "internal/attribute", "internal/safepath", "internal/values"},
		third: []string{yaml},
	},
	"internal/router": {
		why:   "calls that come in at an instance's own doors, spliced to wherever the locator says",
		local: []string{".", "address", "internal/frame", "internal/link", "locator", "registry"},
	},
	"gateway": {
		why:   "the outward door over HTTP: it calls as any client does, through an Invoker that it is given, and sees no plugin",
		local: []string{".", "address", "internal/tracecontext"},
	},
	"internal/builtin": {
		why:   "what an instance answers of itself, from the interfaces that it is given",
		local: []string{".", "address", "internal/frame", "internal/link", "proto/conduit/v1"},
		third: []string{protobuf},
	},
	"internal/config": {
		why:   "the table of configuration keys, and where each value came from; it knows names and types, and of what they configure the forms alone",
		local: []string{"discovery", "internal/values"},
		third: []string{"github.com/spf13/pflag", "github.com/knadh/koanf", yaml, "github.com/dustin/go-humanize"},
	},
	"internal/metrics": {
		why:   "what an instance counts, and how Prometheus sees it: from plain values and funcs that it is given, so that it knows no part of an instance",
		local: []string{".", "address"},
		third: []string{prometheus, "github.com/prometheus/procfs"}, // procfs: what elements use
	},
	"internal/certs": {
		why: "what TLS needs of files, read again without dropping connections; and the certificates of `tls dev`",
	},
	"internal/ops": {
		why: "health and profiling for the operator's own tools, from funcs that it is given",
	},
	"internal/loadgen": {
		why:   "calls at a fixed rate, and how long each took from when it was due: whatever a call is, it is given as a func",
		local: []string{"."},
		third: []string{hdr},
	},
	"cmd/conduit-host": {
		why: "flags, configuration, wiring, signals, exit codes: the one place where everything meets",
		local: []string{
			".", "address", "auth", "auth/boltstore", "auth/etcdstore", "budget", "client", "discovery", "gateway", "host",
			"internal/builtin", "internal/certs", "internal/config", "internal/conformance", "internal/frame", "internal/link", "internal/loadgen", "internal/manifest", "internal/metrics", "internal/ops", "internal/peerlink", "internal/pluginlink", "internal/router", "internal/safepath", "internal/sandbox", "locator", "proto/conduit/v1", // loadgen: bench; sandbox: doctor says what this kernel can do
			"plugins/txpersist/client", "plugins/txpersist/store", "proto/conduit/persist", // persist: as any client, and on a file that no process has open; never the element itself
			"registry", "transport",
		},
		third: []string{
			"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/knadh/koanf", yaml,
			"github.com/dustin/go-humanize", hclog, protobuf, sync, sys,
			"github.com/fsnotify/fsnotify", // plugin dev: sources that were saved
			"github.com/coreos/go-systemd", // serve: that it is ready, for Type=notify
			hdr,                            // bench: percentiles
		},
	},

	// Elements that ship with it: authors like any other, so no package of ours
	// but those that an author may import.
	"plugins/echo": {
		why:   "the element to try things with, and the example for authors",
		local: []string{".", "pluginapi", "pluginapi/conformance"},
	},
	"plugins/matches": {
		why:   "the example of work that outlives its calls: matches that claim units, as a game server hosts them",
		local: []string{".", "pluginapi"},
	},
	"plugins/txpersist/store": {
		why:   "resources in transactions, in a file: usable without a plugin around it, so it knows ids and paths alone",
		local: []string{"address"},
		third: []string{bbolt},
	},
	"plugins/txpersist/api": {
		why:   "the messages of the store's service: apart from the element, so that a client compiles in neither store nor plugin",
		local: []string{"address", "proto/conduit/persist"},
	},
	"plugins/txpersist": {
		why:   "the store as an element, an author like any other",
		local: []string{".", "address", "pluginapi", "plugins/txpersist/api", "plugins/txpersist/store", "proto/conduit/persist"},
	},
	"plugins/txpersist/client": {
		why:   "what a Go program imports to call stores: over any Invoker or Group, so it knows neither client nor pluginapi, and both can have it",
		local: []string{".", "address", "plugins/txpersist/api", "proto/conduit/persist"},
	},

	"integration": {
		why: "whole processes, black box: test files only",
	},
}

// walls are the separations that a plain reading of the map could miss: no chain of
// permitted imports may lead from a folder to what is walled off from it.
var walls = []struct {
	from, why string
	off       []string
}{
	{
		from: "pluginapi", why: "an author's binary holds no host and no cluster",
		off: []string{"host", "transport", "auth", "budget", "discovery", "registry", "locator", "gateway", "github.com/gorilla/websocket", bbolt, "internal/sandbox", landlock},
	},
	{
		from: "pluginapi/plugintest", why: "an author's tests need no host and no cluster",
		off: []string{"host", "transport", "auth", "discovery", "registry", "locator", "gateway", "github.com/gorilla/websocket", bbolt},
	},
	{
		from: "client", why: "a program outside runs no plugins",
		off: []string{"host", "pluginapi", "internal/pluginlink", "auth", "gateway", "github.com/hashicorp/go-plugin", bbolt},
	},
	{
		from: "plugins/txpersist/client", why: "who calls a store holds none",
		off: []string{"pluginapi", "client", "host", "plugins/txpersist/store", bbolt},
	},
	{
		from: "transport", why: "it is given a Handler and a func that authenticates",
		off: []string{"host", "registry", "auth", "discovery", "locator"},
	},
	{
		from: "host", why: "it dispatches what reaches it, and knows of no other instance",
		off: []string{"transport", "registry", "discovery", "locator", "gateway"},
	},
	{
		from: "registry", why: "it dials through an interface",
		off: []string{"transport", "host"},
	},
}

// TestLayers reads the files itself rather than ask "go list": the test cache
// tracks the files that a test opens, but not those that a subprocess does.
func TestLayers(t *testing.T) {
	seen := map[string]bool{} // folders with a Go file
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(file)
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		row, ok := layers[dir]
		if !ok && !seen[dir] {
			t.Errorf("folder %q is not on the map in layers_test.go: add a row that says why it exists and what it may import", dir)
		}
		seen[dir] = true
		if !ok || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !row.allows(imp) {
				t.Errorf("%s imports %s, which the row %q of layers_test.go does not name\n\t%s: %s", file, imp, dir, dir, row.why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	for dir, row := range layers {
		switch {
		case !seen[dir] && !row.planned:
			t.Errorf("layers_test.go has a row for %q, which holds no Go file: remove the row, or mark it as planned", dir)
		case seen[dir] && row.planned:
			t.Errorf("folder %q has come to be: remove the mark \"planned\" from its row in layers_test.go", dir)
		}
		if row.why == "" {
			t.Errorf("the row %q of layers_test.go does not say why", dir)
		}
		for _, local := range row.local {
			if _, ok := layers[local]; !ok {
				t.Errorf("the row %q of layers_test.go names %q, which has no row", dir, local)
			}
		}
	}
}

func TestWalls(t *testing.T) {
	for _, wall := range walls {
		for _, off := range wall.off {
			if chain := permitted(wall.from, off); chain != nil {
				t.Errorf("the map lets %s reach %s: %s\n\tyet %s", wall.from, off, strings.Join(chain, " -> "), wall.why)
			}
		}
	}
}

// skip says which folders are none of this module's: hidden ones, test data, and
// modules of their own.
func skip(dir string) error {
	name := filepath.Base(dir)
	if dir == "." {
		return nil
	}
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return fs.SkipDir
	}
	switch _, err := os.Stat(filepath.Join(dir, "go.mod")); {
	case err == nil:
		return fs.SkipDir
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return err
	}
}

// allows says whether a file of the layer may import imp. The standard library is
// free to all.
func (l layer) allows(imp string) bool {
	if imp == module || strings.HasPrefix(imp, module+"/") {
		return slices.Contains(l.local, path.Clean("./"+strings.TrimPrefix(imp, module)))
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true
	}
	return slices.ContainsFunc(l.third, func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") })
}

// permitted returns a shortest chain of imports by which the map lets from reach to,
// both included, or nil if there is none.
func permitted(from, to string) []string {
	visited := map[string]bool{from: true}
	for chains := [][]string{{from}}; len(chains) > 0; chains = chains[1:] {
		chain := chains[0]
		row := layers[chain[len(chain)-1]]
		if slices.Contains(row.local, to) || slices.Contains(row.third, to) {
			return append(chain, to)
		}
		for _, next := range row.local {
			if !visited[next] {
				visited[next] = true
				chains = append(chains, append(slices.Clone(chain), next))
			}
		}
	}
	return nil
}
