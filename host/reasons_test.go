package host

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/locator"
)

// reasonsWorld is an instance of the simulation, in which nothing fails by chance.
type reasonsWorld struct {
	*simWorld
	i *simInstance
}

// at calls a method at an address over a link, as the client or the instance that the
// link is of.
func (w *reasonsWorld) at(c *link.Conn, addr, method string, change func(*conduit.Invocation)) conduit.Exchange {
	return w.within(context.Background(), c, addr, method, change)
}

func (w *reasonsWorld) within(ctx context.Context, c *link.Conn, addr, method string, change func(*conduit.Invocation)) conduit.Exchange {
	op := &simOp{key: method, method: method, level: conduit.Superuser, up: 1, down: 1, size: 16}
	w.mu.Lock()
	w.ops[op.key] = op
	w.mu.Unlock()
	in := &conduit.Invocation{Method: method, ContentType: conduit.ContentBytes, Request: op.payload(0, 0), HasRequest: true, Last: true, TraceParent: simParent, TraceState: op.key}
	if change != nil {
		change(in)
	}
	return c.Invoke(ctx, link.NewRoute(address.MustParse(addr)), in)
}

// peer is a link as another instance has it.
func (w *reasonsWorld) peer() *link.Conn {
	x, a, b := w.wire("peer", simCluster, w.i)
	w.i.accept(b, x, link.Peer{Name: "another", User: "instance", Level: conduit.System, System: true}, w.i.cluster)
	return w.link(a, link.Options{Dialer: true, Op: "cluster", Peer: link.Peer{Name: w.i.s.id.String()}})
}

func (w *reasonsWorld) user() *link.Conn { return w.client(0, conduit.User) }

func end(x conduit.Exchange) error {
	_, err := x.Recv(context.Background())
	for err == nil {
		_, err = x.Recv(context.Background())
	}
	return err
}

const reasonsWork = "*://work/work/" + simService

// provocations are how each reason comes about. want is what the error says beside it:
// retryable, and what of address, peer and limit it names.
func provocations() map[string]struct {
	want    string
	provoke func(w *reasonsWorld) error
} {
	type how = struct {
		want    string
		provoke func(w *reasonsWorld) error
	}
	vouched := func(in *conduit.Invocation) {
		in.As = conduit.AsWhom{Kind: conduit.AsVouched, Name: "ada", Level: conduit.User}
	}
	return map[string]how{
		conduit.ReasonBadAddress: {"", func(*reasonsWorld) error {
			return end(locator.New(locator.Options{}).At("nonsense").Invoke(context.Background(), &conduit.Invocation{Method: "M", Last: true}))
		}},
		conduit.ReasonCallLoop: {"address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), reasonsWork, "Unary", func(in *conduit.Invocation) {
				vouched(in)
				in.Chain = slices.Repeat([]string{"a/b"}, maxChain+1)
			}))
		}},
		conduit.ReasonCanceled: {"", func(w *reasonsWorld) error {
			x := w.at(w.user(), reasonsWork, "Wait", nil)
			time.AfterFunc(time.Second, func() { x.Cancel(context.Canceled) })
			return end(x)
		}},
		conduit.ReasonCordoned: {"retryable address", func(w *reasonsWorld) error {
			w.i.host.Cordon(true)
			return end(w.at(w.peer(), reasonsWork, "Heavy", vouched))
		}},
		conduit.ReasonDeadline: {"", func(w *reasonsWorld) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := w.within(ctx, w.user(), reasonsWork, "Wait", nil).Recv(ctx)
			return err
		}},
		conduit.ReasonDeploymentNotFound: {"retryable address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), "*://none/work/"+simService, "Unary", vouched))
		}},
		conduit.ReasonDraining: {"retryable address", func(w *reasonsWorld) error {
			w.i.host.draining.Store(true)
			return end(w.at(w.peer(), reasonsWork, "Unary", vouched))
		}},
		conduit.ReasonElementNotFound: {"retryable address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), "*://work/none/"+simService, "Unary", vouched))
		}},
		conduit.ReasonInstanceNotFound: {"retryable address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), address.UniqueInstanceID("other").String()+"://work/work/"+simService, "Unary", vouched))
		}},
		conduit.ReasonLevelTooLow: {"address", func(w *reasonsWorld) error { return end(w.at(w.user(), reasonsWork, "Super", nil)) }},
		conduit.ReasonMethodNotFound: {"address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), reasonsWork, "None", vouched))
		}},
		conduit.ReasonServiceNotFound: {"retryable address", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), "*://work/work/sim.None", "Unary", vouched))
		}},
		conduit.ReasonNotRemote: {"address", func(w *reasonsWorld) error { return end(w.at(w.peer(), reasonsWork, "Inner", vouched)) }},
		conduit.ReasonNoCapacity: {"retryable address limit", func(w *reasonsWorld) error {
			return end(w.at(w.peer(), reasonsWork, "Heavy", func(in *conduit.Invocation) {
				vouched(in)
				in.Units = 100
			}))
		}},
		conduit.ReasonOverloaded: {"retryable address", func(w *reasonsWorld) error {
			c := w.peer()
			for range w.i.s.concurrency {
				x := w.at(c, reasonsWork, "Wait", vouched)
				defer x.Cancel(nil)
			}
			time.Sleep(time.Second)
			return end(w.at(c, reasonsWork, "Unary", vouched))
		}},
		conduit.ReasonPanic: {"", func(w *reasonsWorld) error { return end(w.at(w.user(), reasonsWork, "Panic", nil)) }},
		conduit.ReasonPayloadTooLarge: {"limit", func(w *reasonsWorld) error {
			return end(w.at(w.user(), reasonsWork, "Unary", func(in *conduit.Invocation) { in.Request = make([]byte, link.DefaultMaxMessage+1) }))
		}},
		conduit.ReasonPeerLost: {"retryable peer", func(w *reasonsWorld) error {
			x := w.at(w.peer(), reasonsWork, "Wait", vouched)
			time.Sleep(time.Second)
			w.i.mu.Lock()
			wire := w.i.wires[len(w.i.wires)-1]
			w.i.mu.Unlock()
			wire.cut()
			return end(x)
		}},
		conduit.ReasonPluginFailed: {"retryable address", func(w *reasonsWorld) error {
			w.i.host.elements["work"].set(CrashLooping, "", "")
			return end(w.at(w.peer(), reasonsWork, "Unary", vouched))
		}},
		conduit.ReasonPluginStarting: {"retryable address", func(w *reasonsWorld) error {
			w.i.host.elements["work"].set(Starting, "", "")
			return end(w.at(w.peer(), reasonsWork, "Unary", vouched))
		}},
		conduit.ReasonPluginLost: {"retryable peer", func(w *reasonsWorld) error {
			x := w.at(w.peer(), reasonsWork, "Wait", vouched)
			time.Sleep(time.Second)
			w.i.crash("work")
			return end(x)
		}},
		conduit.ReasonReloaded: {"retryable", func(w *reasonsWorld) error {
			x := w.at(w.peer(), reasonsWork, "Wait", vouched)
			time.Sleep(time.Second)
			w.all.Go(func() { w.i.replace("work", time.Second) })
			return end(x)
		}},
		conduit.ReasonUnspecified: {"", func(w *reasonsWorld) error { return end(w.at(w.user(), reasonsWork, "Odd", nil)) }},
		conduit.ReasonUnauthenticated: {"address", func(w *reasonsWorld) error {
			x := w.i.host.elements["work"].gen // an element that would be somebody of its choice
			var plugin *link.Conn
			w.mu.Lock()
			for n, c := range w.conns {
				if c == x.conn {
					plugin = w.conns[n+1]
				}
			}
			w.mu.Unlock()
			return end(w.at(plugin, reasonsWork, "Unary", vouched))
		}},
	}
}

// elsewhere are the reasons that need files, a store, an operator or a broken peer to come
// about, and the tests that provoke them.
var elsewhere = map[string]string{ //nolint:gochecknoglobals // a constant
	conduit.ReasonAborted:          "transport.TestClientClose",
	conduit.ReasonBadContent:       "gateway.TestResultsThatLie",
	conduit.ReasonBadDeployment:    "host.TestDeployRefuses",
	conduit.ReasonBadStore:         "auth.TestBadHash",
	conduit.ReasonBadUser:          "auth.TestReasonsOfAccounts",
	conduit.ReasonDeployFailed:     "host.TestDeployFails",
	conduit.ReasonDeploymentExists: "host.TestDeployRefuses",
	conduit.ReasonDisabled:         "host.TestDisabled",
	conduit.ReasonInternal:         "pluginapi.TestHandlersErrors",
	conduit.ReasonNoPrevious:       "host.TestDeployAndBack",
	conduit.ReasonNotWritable:      "host.TestDeployReadOnly",
	conduit.ReasonPeerUnreachable:  "registry.TestKill",
	conduit.ReasonProtocol:         "internal/link.TestHelloRefusals",
	conduit.ReasonSessionExpired:   "auth.TestExpiry",
	conduit.ReasonSessionNotFound:  "auth.TestReasonsOfAccounts",
	conduit.ReasonStoreUnavailable: "auth.TestStoreDown",
	conduit.ReasonSuperseded:       "host.TestDeployAtOnce",
	conduit.ReasonTooManyAttempts:  "auth.TestLoginAttempts",
	conduit.ReasonUserExists:       "auth.TestReasonsOfAccounts",
	conduit.ReasonUserNotFound:     "auth.TestReasonsOfAccounts",
	conduit.ReasonWrongShape:       "plugins/echo.TestStreams",
}

// TestReasons provokes each reason of error.go and compares what comes with docs/errors.md.
func TestReasons(t *testing.T) {
	known := reasonsOf(t)
	page := errorsPage(t)
	how := provocations()
	for name, reason := range known {
		row, ok := page[reason]
		if !ok {
			t.Errorf("docs/errors.md lacks %s", reason)
			continue
		}
		if row.cause == "" {
			t.Errorf("docs/errors.md does not say what causes %s", reason)
		}
		if p, ok := how[reason]; ok {
			t.Run(reason, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { provokeReason(t, reason, p.want, row, p.provoke) })
			})
			continue
		}
		if mendOf(t, reason, row) == byMessage {
			saysMend(t, name, reason, row.mend)
		}
		where, ok := elsewhere[reason]
		if !ok {
			t.Errorf("nothing provokes %s: add it to provocations, or to elsewhere", reason)
			continue
		}
		if dir, test, _ := cutLast(where, "."); !mentions(t, filepath.Join("..", dir), test, name) {
			t.Errorf("%s does not provoke %s", where, name)
		}
	}
	values := slices.Collect(maps.Values(known))
	for reason := range page {
		if !slices.Contains(values, reason) && !slices.Contains(others(t, ".."), reason) {
			t.Errorf("docs/errors.md lists %s, which is no reason of ours any more", reason)
		}
	}
	for _, reason := range others(t, "../cmd/conduit-host") {
		if _, ok := page[reason]; !ok {
			t.Errorf("docs/errors.md lacks %s, of cmd/conduit-host", reason)
		}
	}
	for reason := range mends {
		if !slices.Contains(values, reason) {
			t.Errorf("mends has %s, which is no reason of ours", reason)
		}
	}
	if len(known) < 40 {
		t.Errorf("found %d reasons: the pattern must be wrong", len(known))
	}
}

func provokeReason(t *testing.T, reason, want string, row errorsRow, provoke func(*reasonsWorld) error) {
	t.Helper()
	w := &reasonsWorld{simWorld: &simWorld{
		t: t, quiet: true, r: rand.New(rand.NewPCG(1, 1)), chance: rand.New(rand.NewPCG(1, 2)), stopped: make(chan struct{}),
		instances: map[string]*simInstance{}, ops: map[string]*simOp{}, doors: map[string]*link.Conn{}, counts: map[string]int{},
	}}
	w.i = w.boot(&simSpec{name: "i0", url: "ws://i0:7400/cluster/v1", id: address.UniqueInstanceID("i0"), work: true, total: 40, memory: 64 << 20, local: true, peers: 1, concurrency: 3}, 1)
	time.Sleep(time.Second)
	err := provoke(w)
	close(w.stopped)
	w.end()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	t.Logf("%v", e)
	if e.Reason != reason || !slices.Contains(row.codes, e.Code.String()) || !row.any && !slices.Contains(row.outcomes, e.Outcome.String()) {
		t.Errorf("it is %s, code %s, outcome %s; docs/errors.md says %v, %v", e.Reason, e.Code, e.Outcome, row.codes, row.outcomes)
	}
	if e.Message == "" {
		t.Error("it has no message")
	}
	switch how := mendOf(t, reason, row); {
	case how == retryably && !e.Retryable:
		t.Error("docs/errors.md says that it is retryable")
	case how == byMessage && !regexp.MustCompile(mends[reason]).MatchString(e.Message):
		t.Errorf("docs/errors.md says %q, and the message does not", row.mend)
	}
	limit := e.Details["limit"] != "" || e.Details["available"] != "" || regexp.MustCompile(`\d`).MatchString(e.Message)
	for what, has := range map[string]bool{"retryable": e.Retryable, "address": e.Address != "" && e.Method != "", "peer": e.Peer != "", "limit": limit} {
		switch wants := strings.Contains(want, what); {
		case wants && !has:
			t.Errorf("it lacks %s: %+v", what, e)
		case !wants && has && what == "retryable":
			t.Errorf("it is retryable: %+v", e)
		}
	}
}

// mends is what of its mend, as docs/errors.md has it, the message of an error says: where
// that is more than that the error is retryable, or that the message tells.
var mends = map[string]string{ //nolint:gochecknoglobals // a constant
	conduit.ReasonAborted:            `again|any more`,
	conduit.ReasonCallLoop:           `in a circle`,
	conduit.ReasonCordoned:           `conduit-host uncordon`,
	conduit.ReasonDeadline:           `the deadline passed`, // who calls has set it, and knows how to set another
	conduit.ReasonDeploymentExists:   `already; .`,
	conduit.ReasonDeploymentNotFound: `ls deployments`,
	conduit.ReasonDisabled:           "enable it first|write `enabled: true`",
	conduit.ReasonElementNotFound:    `ls elements`,
	conduit.ReasonInstanceNotFound:   `call that one, or write \*.*ls instances`,
	conduit.ReasonLevelTooLow:        `is for level \w+ and above`,
	conduit.ReasonMethodNotFound:     `describe lists`,
	conduit.ReasonNoPrevious:         `deploy it from its source`,
	conduit.ReasonNotRemote:          `its author`,
	conduit.ReasonPanic:              `log of its process has the stack`,
	conduit.ReasonPayloadTooLarge:    `a stream of smaller ones, or raise cluster.max_payload`,
	conduit.ReasonPeerLost:           `see whether the work was done before calling again`,
	conduit.ReasonPluginFailed:       `ls elements -o json`,
	conduit.ReasonPluginLost:         `the host's log says how it ended`,
	conduit.ReasonReloaded:           `call again, and the new process answers`,
	conduit.ReasonServiceNotFound:    `describe lists`,
	conduit.ReasonSessionExpired:     `log in again`,
	conduit.ReasonSessionNotFound:    `session ls`,
	conduit.ReasonSuperseded:         `ls deployments|deploy it again|changed while`,
	conduit.ReasonTooManyAttempts:    `try again in`,
	conduit.ReasonUnauthenticated:    `as its caller, as itself, or as nobody`,
	conduit.ReasonUserExists:         `another name.*user passwd`,
	conduit.ReasonUserNotFound:       `user ls`,
	conduit.ReasonWrongShape:         `call it with|takes one message|after the last|OnPart|AsBackground`,
}

type mendKind int

const (
	noMend mendKind = iota
	retryably
	byMessage // what of it is in mends
)

// mendOf says how an error tells its mend.
func mendOf(t *testing.T, reason string, row errorsRow) mendKind {
	t.Helper()
	_, listed := mends[reason]
	switch {
	case listed:
		return byMessage
	case row.mend == "", reason == conduit.ReasonInternal: // it is for us
		return noMend
	case strings.HasPrefix(row.mend, "retryable"):
		return retryably
	case strings.Contains(row.mend, "the message"): // which is made of what was found
		return noMend
	}
	t.Errorf("docs/errors.md says of %s: %q. What of it does the message say? See mends", reason, row.mend)
	return noMend
}

// saysMend looks at each place of the module that makes an error of a reason with a text
// of its own, and whether that says what to do.
func saysMend(t *testing.T, name, reason, mend string) {
	t.Helper()
	pattern, places := regexp.MustCompile(mends[reason]), 0
	for _, m := range madeWith(t, name) {
		places++
		if !pattern.MatchString(m.text) {
			t.Errorf("%s makes a %s that says %q, and not what docs/errors.md says to do: %s", m.at, reason, m.text, mend)
		}
	}
	if places == 0 {
		t.Errorf("no place makes a %s with a text: the search must be wrong", reason)
	}
}

type made struct{ at, text string }

// sources are the files of the module that are not tests, parsed once.
var sources = sync.OnceValues(func() (map[string]*ast.File, error) { //nolint:gochecknoglobals // a cache
	files := map[string]*ast.File{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "benchmarks" || name == "authtest" || name == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		return err
	})
	return files, err
})

// madeWith returns the texts that stand beside the name of a reason: in a call that has
// it as an argument, or in the literal of an Error; and in calls of a function whose own
// text is what it is given.
func madeWith(t *testing.T, name string) (list []made) {
	t.Helper()
	files, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	is := func(e ast.Expr) bool {
		if s, ok := e.(*ast.SelectorExpr); ok {
			return s.Sel.Name == name
		}
		return false
	}
	text := func(e ast.Node) (s string) {
		ast.Inspect(e, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				part, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				s += part
			}
			return true
		})
		return s
	}
	makers := map[string]bool{} // functions that make one of a text that they are given
	for path, f := range files {
		for _, d := range f.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				found := false
				switch n := n.(type) {
				case *ast.CallExpr:
					found = slices.ContainsFunc(n.Args, is)
				case *ast.CompositeLit:
					found = slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
						kv, ok := e.(*ast.KeyValueExpr)
						return ok && is(kv.Value)
					})
				}
				if !found {
					return true
				}
				if s := text(n); strings.Contains(s, " ") {
					list = append(list, made{path, s})
				} else if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "err") {
					makers[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	for path, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && makers[id.Name] {
					list = append(list, made{path, text(call)})
				}
			}
			return true
		})
	}
	return list
}

// others are the reasons that are not error.go's: of commands, and of parts that have
// reasons of their own and list them in docs/errors.md; dir says below which directory.
func others(t *testing.T, dir string) (list []string) {
	t.Helper()
	files, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for path, f := range files {
		if !strings.HasPrefix(path, dir) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Names) != 1 || len(v.Values) != 1 || !strings.HasPrefix(strings.ToLower(v.Names[0].Name), "reason") {
				return true
			}
			if l, ok := v.Values[0].(*ast.BasicLit); ok && l.Kind == token.STRING {
				reason, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, reason)
			}
			return true
		})
	}
	return list
}

type errorsRow struct {
	codes, outcomes []string
	any             bool // outcomes
	cause, mend     string
}

// errorsPage reads the table of docs/errors.md.
func errorsPage(t *testing.T) map[string]errorsRow {
	t.Helper()
	page, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]errorsRow{}
	word := regexp.MustCompile("`([a-z_]+)`")
	words := func(s string) (all []string) {
		for _, m := range word.FindAllStringSubmatch(s, -1) {
			all = append(all, m[1])
		}
		return all
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([^|]*) \\| ([^|]*) \\| (.*?) \\| (.*?) ?\\|$").FindAllStringSubmatch(string(page), -1) {
		row := errorsRow{codes: words(m[2]), outcomes: words(m[3]), any: strings.Contains(m[3], "any"), cause: strings.TrimSpace(m[4]), mend: strings.TrimSpace(m[5])}
		if strings.Contains(m[2], "any") {
			for c := conduit.Canceled; c <= conduit.Unauthenticated; c++ {
				row.codes = append(row.codes, c.String())
			}
		}
		rows[m[1]] = row
	}
	return rows
}

// reasonsOf reads the names and values of error.go's reasons.
func reasonsOf(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 && len(v.Values) == 1 && strings.HasPrefix(v.Names[0].Name, "Reason") {
			if s, ok := v.Values[0].(*ast.BasicLit); ok {
				text, err := strconv.Unquote(s.Value)
				if err != nil {
					t.Fatal(err)
				}
				reasons[v.Names[0].Name] = text
			}
		}
		return true
	})
	return reasons
}

// mentions reports whether a test of a directory speaks of a name.
func mentions(t *testing.T, dir, test, name string) (found bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == test {
				ast.Inspect(fn, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					found = found || ok && id.Name == name
					return true
				})
			}
		}
	}
	return found
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
