package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/boltstore"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

const frontAddr = "*://front/echo/conduit.example.Echo"

// realm is a worker with echo, and an external instance with the same element as
// "front", that authenticate their callers and share a store.
type realm struct {
	t             *testing.T
	store         string
	worker, front *instance
	// secrets are all that were used; no log may hold one.
	mu      sync.Mutex
	secrets []string
}

func newRealm(t *testing.T, flags ...string) *realm {
	t.Helper()
	r := &realm{t: t, worker: prepare(t, []string{built.echo}), front: prepare(t, nil)}
	r.store = "bolt:" + filepath.Join(r.worker.dir, "users.db")
	r.worker.name, r.front.name = "w", "front"
	r.front.drop(built.echo, "front")
	flags = append([]string{"--auth-mode", "required", "--auth-store", r.store, "--log-level", "trace"}, flags...)
	r.worker.launch(flags...)
	r.worker.waitReady()
	r.front.launch(append(flags, "--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--discovery-static", r.worker.url)...)
	r.front.waitReady()
	r.front.until("the worker to be alive", func() bool {
		for _, row := range r.front.rows("ls", "instances") {
			if row["name"] == "w" && row["state"] == "alive" {
				return true
			}
		}
		return false
	})
	t.Cleanup(r.noSecrets)
	return r
}

// noSecrets checks that nothing that others can see holds one of the secrets that were
// used: what instances tell, their processes, what the store keeps, and the logs, which
// must be logs: an empty one holds none, either.
func (r *realm) noSecrets() {
	seen := r.sights()
	for _, i := range []*instance{r.worker, r.front} {
		i.kill()
		logs := []string{i.output()}
		if !strings.Contains(logs[0], `"link opened"`) && i == r.worker {
			r.t.Errorf("the log of %s is not at level trace", i.name)
		}
		files, _ := filepath.Glob(filepath.Join(i.dir, "data", "instances", i.name, "host", "logs", "*.log*"))
		if len(files) == 0 {
			r.t.Errorf("%s has no logs of its deployments", i.name)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				r.t.Error(err)
			}
			logs = append(logs, string(text))
		}
		for _, s := range r.secrets {
			for _, one := range seen {
				if i == r.worker && one.shows(s) {
					r.t.Errorf("%s shows the secret %s", one.what, s)
				}
			}
			if slices.ContainsFunc(logs, func(log string) bool { return strings.Contains(log, s) }) {
				r.t.Errorf("the log of %s holds the secret %s", i.name, s)
			}
		}
	}
}

func (r *realm) secret(s string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s == "" {
		r.t.Fatal("no secret")
	}
	r.secrets = append(r.secrets, s)
	return s
}

// run runs a command on the store.
func (r *realm) run(args ...string) string {
	r.t.Helper()
	got := conduitHost(r.t, append(args, "--auth-store", r.store)...)
	if got.code != 0 {
		r.t.Fatalf("%v: exit %d: %s", args, got.code, got.err)
	}
	return got.out
}

// user adds a user and returns the secret of a session.
func (r *realm) user(name, level string) string {
	r.t.Helper()
	r.run("user", "add", name, "--level", level)
	return r.mint(name)
}

func (r *realm) mint(name string) string {
	r.t.Helper()
	var m struct{ Secret, User, Expires string }
	if err := json.Unmarshal([]byte(r.run("session", "mint", "--user", name, "-o", "json")), &m); err != nil || m.User != name || m.Expires == "" {
		r.t.Fatalf("%+v, %v", m, err)
	}
	return r.secret(m.Secret)
}

// dialAs connects a Go client to the worker with a session; "" is anonymous.
func (r *realm) dialAs(session string) (*client.Client, context.Context) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	c, err := client.Dial(ctx, client.Options{Peers: []string{r.worker.url}, Session: session})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c, ctx
}

// asInstance returns what calls the worker over a link that a session of an
// instance opens. id is whom the link's Hello says it is.
func (r *realm) asInstance(session string, id address.InstanceID) *transport.Peer {
	c := transport.NewClient(transport.ClientOptions{Session: session, Link: link.Options{Hello: link.Hello{Instance: id.String()}}})
	r.t.Cleanup(func() { c.Close() })
	return c.Peer(r.worker.url)
}

// instanceSession returns a session of an instance with that id.
func (r *realm) instanceSession(ctx context.Context, id address.InstanceID) string {
	r.t.Helper()
	store, err := boltstore.Open(ctx, strings.TrimPrefix(r.store, "bolt:"), boltstore.Options{MustExist: true})
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := auth.NewAccounts(auth.AccountsOptions{Store: store, Hasher: auth.NewHasher(auth.PasswordCost{}, 1)}).MintInstance(ctx, "w", id)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.secret(m.Secret.Reveal())
}

// door opens the management socket of the front, as an operator.
func (r *realm) door(ctx context.Context) *link.Conn {
	r.t.Helper()
	token, err := os.ReadFile(filepath.Join(r.front.dir, "run", "front.token"))
	if err != nil {
		r.t.Fatal(err)
	}
	secret := r.secret(strings.TrimSpace(string(token)))
	door, err := transport.DialSocket(ctx, filepath.Join(r.front.dir, "run", "front.sock"), []byte(secret), link.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { door.Close(link.CloseDone, ""); <-door.Done() })
	return door
}

// viaGateway calls by the gateway of the front and returns an error as a caller of
// package client would see it.
func (r *realm) viaGateway(session, path, body string) error {
	header := []string{}
	if session != "" {
		header = []string{"Authorization", "Bearer " + session}
	}
	status, _, answer := r.front.post(path, body, header...)
	if status == http.StatusOK {
		return nil
	}
	var p struct{ Reason string }
	if err := json.Unmarshal([]byte(answer), &p); err != nil || p.Reason == "" {
		return fmt.Errorf("%d: %s", status, answer)
	}
	return &conduit.Error{Reason: p.Reason, Message: answer}
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*conduit.Error](err); ok {
		return e.Reason
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestNobodyGetsMoreThanTheirOwn calls methods of each level, as everybody, by every
// door.
func TestNobodyGetsMoreThanTheirOwn(t *testing.T) {
	t.Parallel()
	nobodyGetsMoreThanTheirOwn(t)
}

func nobodyGetsMoreThanTheirOwn(t *testing.T, flags ...string) {
	t.Helper()
	r := newRealm(t, flags...)
	secrets := map[conduit.Level]string{
		conduit.Anonymous: "", conduit.User: r.user("ada", "user"), conduit.Superuser: r.user("root", "superuser"),
	}
	methods := map[string]conduit.Level{"WhoAmI": conduit.Anonymous, "UserOnly": conduit.User, "SuperuserOnly": conduit.Superuser, "Hidden": conduit.System + 1}

	// The system user of an instance, as a thief would use it.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	id := address.RandomInstanceID()
	system := r.instanceSession(ctx, id)
	instanceLink := r.asInstance(system, id)

	echo := address.MustParse(echoAddr)
	as := func(inv conduit.Invoker, method string, as conduit.AsWhom) error {
		_, err := conduit.Call[json.RawMessage](ctx, inv, method, nil, conduit.WithAs(as))
		return err
	}
	nested := func(address, method string, self bool) string {
		b, err := json.Marshal(map[string]any{"address": address, "method": method, "as_self": self})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	clients := map[conduit.Level]*client.Client{}
	for level, s := range secrets {
		clients[level], _ = r.dialAs(s)
	}
	session := func(s string) conduit.AsWhom {
		if s == "" {
			return conduit.AsWhom{Kind: conduit.AsAnonymous}
		}
		return conduit.AsWhom{Kind: conduit.AsSession, Session: s}
	}
	door := r.door(ctx)
	operator := onDoor{door, link.NewRoute(echo)}
	operatorHere := onDoor{door, link.NewRoute(address.MustParse(frontAddr))}

	check := func(what, method string, level conduit.Level, err error) {
		t.Helper()
		want := ""
		switch {
		case method == "Hidden":
			want = conduit.ReasonNotRemote
		case level < methods[method]:
			want = conduit.ReasonLevelTooLow
		}
		if got := reasonOf(err); got != want {
			t.Errorf("%s, as %s, %s: %q, want %q", what, level, method, got, want)
		}
	}
	for method := range methods {
		for level, s := range secrets {
			path := "/echo/conduit.example.Echo/"
			check("gateway to a peer", method, level, r.viaGateway(s, "echo"+path+method, "null"))
			check("gateway, local shortcut", method, level, r.viaGateway(s, "front"+path+method, "null"))
			check("cluster link", method, level, as(clients[level].At(echoAddr), method, conduit.AsWhom{}))
			// Everybody may bring another session, which counts alone, on any link.
			check("cluster link of a superuser", method, level, as(clients[conduit.Superuser].At(echoAddr), method, session(s)))
			check("cluster link of nobody", method, level, as(clients[conduit.Anonymous].At(echoAddr), method, session(s)))
			check("instance link", method, level, as(instanceLink.At(echo), method, session(s)))
			check("management door to a peer", method, level, as(operator, method, session(s)))
			check("management door, local shortcut", method, level, as(operatorHere, method, session(s)))
			check("nested call to a peer", method, level, r.viaGateway(s, "front"+path+"Chain", nested(echoAddr, method, false)))
			check("nested call, local shortcut", method, level, r.viaGateway(s, "front"+path+"Chain", nested(frontAddr, method, false)))
			// An element that calls as itself is a user, whoever called it.
			check("as an element to a peer", method, conduit.User, r.viaGateway(s, "front"+path+"Chain", nested(echoAddr, method, true)))
			check("as an element, local shortcut", method, conduit.User, r.viaGateway(s, "front"+path+"Chain", nested(frontAddr, method, true)))
		}
		check("the operator, to a peer", method, conduit.Superuser, as(operator, method, conduit.AsWhom{}))
		check("the operator, local shortcut", method, conduit.Superuser, as(operatorHere, method, conduit.AsWhom{}))
		check("an instance that says nothing", method, conduit.Anonymous, as(instanceLink.At(echo), method, conduit.AsWhom{}))
		for _, l := range []conduit.Level{conduit.Anonymous, conduit.User, conduit.Superuser, conduit.System} {
			vouched := conduit.AsWhom{Kind: conduit.AsVouched, Name: "element:x", Level: l}
			check("vouched for", method, min(l, conduit.Superuser), as(instanceLink.At(echo), method, vouched))
			vouched.Name = "operator:x"
			check("vouched for", method, min(l, conduit.Superuser), as(instanceLink.At(echo), method, vouched))
			for _, name := range []string{"ada", "instance:w", "", "element:"} {
				vouched.Name = name
				if got := reasonOf(as(instanceLink.At(echo), method, vouched)); got != conduit.ReasonUnauthenticated {
					t.Errorf("vouched for %q: %q", name, got)
				}
			}
			vouched.Name = "element:x"
			for _, c := range clients {
				if got := reasonOf(as(c.At(echoAddr), method, vouched)); got != conduit.ReasonUnauthenticated {
					t.Errorf("a client vouches: %q", got)
				}
			}
			if got := reasonOf(as(operator, method, vouched)); got != conduit.ReasonUnauthenticated {
				t.Errorf("an operator vouches: %q", got)
			}
		}
		// Whoever has an instance's session is nobody in a call, and an instance only
		// towards the instance itself.
		for what, err := range map[string]error{
			"an instance's session in a call":        as(clients[conduit.User].At(echoAddr), method, session(system)),
			"an instance's session, by an instance":  as(instanceLink.At(echo), method, session(system)),
			"an instance as itself":                  as(instanceLink.At(echo), method, conduit.AsWhom{Kind: conduit.AsLink}),
			"an instance's session at the gateway":   r.viaGateway(system, "echo/echo/conduit.example.Echo/"+method, "null"),
			"a session that is none":                 as(clients[conduit.User].At(echoAddr), method, session("00")),
			"a session that is none, at the gateway": r.viaGateway("00", "echo/echo/conduit.example.Echo/"+method, "null"),
			"a caller":                               as(clients[conduit.Superuser].At(echoAddr), method, conduit.AsWhom{Kind: conduit.AsCaller}),
			"an element":                             as(clients[conduit.Superuser].At(echoAddr), method, conduit.AsWhom{Kind: conduit.AsSelf}),
			"something to come":                      as(clients[conduit.Superuser].At(echoAddr), method, conduit.AsWhom{Kind: 99}),
		} {
			if got := reasonOf(err); got != conduit.ReasonUnauthenticated {
				t.Errorf("%s, %s: %q", what, method, got)
			}
		}
	}

	// An instance's session opens links of that instance alone.
	// (The server judges the dialer's Hello, which comes with the first call.)
	err := as(r.asInstance(system, address.RandomInstanceID()).At(echo), "WhoAmI", conduit.AsWhom{})
	if err == nil || !strings.Contains(err.Error(), "bound to another instance") {
		t.Errorf("another instance with its session: %v", err)
	}
	noOne := transport.NewClient(transport.ClientOptions{Session: system})
	t.Cleanup(func() { noOne.Close() })
	err = as(noOne.Peer(r.worker.url).At(echo), "WhoAmI", conduit.AsWhom{})
	if err == nil || !strings.Contains(err.Error(), "does not say which instance") {
		t.Errorf("an instance's session and no instance: %v", err)
	}
	// What an instance is told at the door of another is no more than the instance's own.
	for _, method := range []string{"Drain", "Links", "Peers"} {
		admin := address.MustParse("*://conduit/conduit/conduit.v1.Admin")
		if got := reasonOf(as(instanceLink.At(admin), method, conduit.AsWhom{Kind: conduit.AsLink})); got != conduit.ReasonNotRemote {
			t.Errorf("Admin %s over the cluster endpoint: %q", method, got)
		}
	}
}

// onDoor calls an address at a management socket.
type onDoor struct {
	conn  *link.Conn
	route *link.Route
}

func (d onDoor) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return d.conn.Invoke(ctx, d.route, in)
}

// within fails the test if what was to happen soon after begun has not. The bound is
// for a busy machine; what it took is in the log.
func within(t *testing.T, what string, begun time.Time) {
	t.Helper()
	took := time.Since(begun)
	t.Logf("%s: after %s", what, took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("%s took %s", what, took)
	}
}

func TestRevocationIsSoon(t *testing.T) {
	t.Parallel()
	revocationIsSoon(t)
}

func revocationIsSoon(t *testing.T, flags ...string) {
	t.Helper()
	r := newRealm(t, flags...)
	ada := r.user("ada", "user")
	byLink, ctx := r.dialAs(ada)
	nobody, _ := r.dialAs("")
	asAda := conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: ada})
	userOnly := func(c *client.Client, o ...conduit.CallOption) error {
		_, err := conduit.Call[conduit.Level](ctx, c.At(echoAddr), "UserOnly", nil, o...)
		return err
	}
	if err := errors.Join(userOnly(byLink), userOnly(nobody, asAda)); err != nil {
		t.Fatal(err)
	}

	// A level that is changed counts for links that are open.
	superuserOnly := func() error {
		_, err := conduit.Call[conduit.Level](ctx, byLink.At(echoAddr), "SuperuserOnly", nil)
		return err
	}
	if got := reasonOf(superuserOnly()); got != conduit.ReasonLevelTooLow {
		t.Fatalf("a user as superuser: %q", got)
	}
	begun := time.Now()
	r.run("user", "set", "ada", "--level", "superuser")
	r.worker.until("the new level to count", func() bool { return superuserOnly() == nil })
	r.run("user", "set", "ada", "--level", "user")
	r.worker.until("the old level to count", func() bool { return superuserOnly() != nil })
	within(t, "two changed levels", begun)

	// A stream on the session's own link, by the gateway, and as the session on links of
	// others: of nobody, of an instance, and of an operator, by way of another instance.
	id := address.RandomInstanceID()
	streams := map[string]struct {
		inv conduit.Invoker
		o   []conduit.CallOption
	}{
		"the session's link": {byLink.At(echoAddr), nil},
		"nobody's link":      {nobody.At(echoAddr), []conduit.CallOption{asAda}},
		"an instance's link": {r.asInstance(r.instanceSession(ctx, id), id).At(address.MustParse(echoAddr)), []conduit.CallOption{asAda}},
		"an operator's door": {onDoor{r.door(ctx), link.NewRoute(address.MustParse(echoAddr))}, []conduit.CallOption{asAda}},
	}
	type ending struct {
		of  string
		err error
	}
	streaming, ends, gatewayEnd := make(chan struct{}, len(streams)+1), make(chan ending, len(streams)), make(chan string, 1)
	for what, s := range streams {
		go func() {
			first := sync.OnceFunc(func() { streaming <- struct{}{} })
			var last error
			for _, err := range conduit.Stream[int](ctx, s.inv, "CountSlow", map[string]int{"n": 1000, "interval_ms": 100}, s.o...) {
				first()
				last = err
			}
			ends <- ending{what, last}
		}()
	}
	go func() {
		gatewayEnd <- r.gatewayStream(ctx, ada, streaming)
	}()
	for range len(streams) + 1 {
		select {
		case <-streaming:
		case <-time.After(patience):
			t.Fatal("no stream begins")
		}
	}
	begun = time.Now()
	r.run("session", "revoke", "--user", "ada")
	r.worker.until("the session in a call to be refused", func() bool {
		got := reasonOf(userOnly(nobody, asAda))
		return got == conduit.ReasonUnauthenticated || got == conduit.ReasonSessionExpired
	})
	within(t, "refused in a call", begun)
	r.front.until("the gateway to refuse it", func() bool {
		status, _, _ := r.front.post("echo/echo/conduit.example.Echo/WhoAmI", "null", "Authorization", "Bearer "+ada)
		return status == http.StatusUnauthorized
	})
	within(t, "refused by the gateway", begun)
	select {
	case last := <-gatewayEnd:
		within(t, "the gateway's stream ended", begun)
		if !strings.Contains(last, conduit.ReasonSessionExpired) {
			t.Errorf("the gateway's stream ended with %s", last)
		}
	case <-time.After(patience):
		t.Fatal("the gateway's stream goes on")
	}
	for range streams {
		select {
		case end := <-ends:
			within(t, "the stream on "+end.of+" ended", begun)
			if got := reasonOf(end.err); got != conduit.ReasonSessionExpired {
				t.Errorf("the stream on %s ended with %v", end.of, end.err)
			}
		case <-time.After(patience):
			t.Fatal("a stream goes on")
		}
	}
	r.worker.until("the link to be refused", func() bool { return reasonOf(userOnly(byLink)) != "" })
	within(t, "refused on its link", begun)

	// A link that does nothing ends as well: it is the server that closes it.
	bob := r.user("bob", "user")
	idle := transport.NewClient(transport.ClientOptions{Session: bob})
	t.Cleanup(func() { idle.Close() })
	p := idle.Peer(r.worker.url)
	if err := p.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	r.run("user", "rm", "bob")
	r.worker.until("the idle link to be closed", func() bool { return !p.Connected() })
	within(t, "the idle link was closed", begun)
	if err := p.Connect(ctx); conduit.AsError(err, conduit.NotSent).Code != conduit.Unauthenticated {
		t.Errorf("a link for a user who is no more: %v", err)
	}
	// The instances lost nothing of it.
	if err := userOnly(nobody, conduit.WithAs(conduit.AsWhom{Kind: conduit.AsSession, Session: r.user("eve", "user")})); err != nil {
		t.Error(err)
	}
}

// gatewayStream reads lines from the gateway until the end and returns the last one.
func (r *realm) gatewayStream(ctx context.Context, session string, first chan<- struct{}) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.front.gateway+"/v1/call/echo/echo/conduit.example.Echo/CountSlow", strings.NewReader(`{"n":1000,"interval_ms":100}`))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/x-ndjson")
	req.Header.Set("Authorization", "Bearer "+session)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	last, once := "", sync.OnceFunc(func() { first <- struct{}{} })
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		last = s.Text()
		once()
	}
	return last
}

// An instance whose session is ended gets itself another one, and is found again.
func TestInstanceSessionIsRenewed(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	ada := r.user("ada", "user")
	before := r.run("session", "ls", "--user", "instance:front", "-o", "json")
	r.run("session", "revoke", "--user", "instance:front")
	r.front.until("another session", func() bool {
		now := r.run("session", "ls", "--user", "instance:front", "-o", "json")
		return now != before && strings.Contains(now, `"instance":"`)
	})
	r.front.until("a call to reach the worker again", func() bool {
		return r.viaGateway(ada, "echo/echo/conduit.example.Echo/UserOnly", "null") == nil
	})
	// One that is kept out stays out.
	r.run("user", "set", "instance:front", "--disabled")
	r.front.until("the instance to be kept out", func() bool {
		for _, row := range r.front.rows("ls", "instances") {
			if row["name"] == "w" && row["state"] == "alive" {
				return false
			}
		}
		return true
	})
}

func TestGatewaySessions(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	const password = "a password to look for"
	r.secret(password)
	add := conduitHostWith(t, password, "user", "add", "ada", "--level", "user", "--password-stdin", "--auth-store", r.store)
	add.want(t, 0, "added ada, user\n")
	send := func(method, path, body string, header ...string) (int, http.Header, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.front.gateway+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for k := 0; k+1 < len(header); k += 2 {
			req.Header.Set(header[k], header[k+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header, readAll(t, resp.Body)
	}
	login := func(user, password string) (int, string) {
		body, err := json.Marshal(map[string]string{"user": user, "password": password})
		if err != nil {
			t.Fatal(err)
		}
		status, _, answer := send(http.MethodPost, "/v1/sessions", string(body))
		return status, answer
	}
	status, answer := login("Ada", password)
	var s struct{ Secret, User, Level, Expires string }
	if err := json.Unmarshal([]byte(answer), &s); err != nil || status != http.StatusCreated || s.User != "ada" || s.Level != "user" || s.Expires == "" {
		t.Fatalf("%d, %+v, %v", status, s, err)
	}
	r.secret(s.Secret)
	call := func(header ...string) (int, http.Header, string) {
		return send(http.MethodPost, "/v1/call/echo/echo/conduit.example.Echo/WhoAmI", "null", header...)
	}
	for _, header := range [][]string{{"Authorization", "Bearer " + s.Secret}, {"Elements-SessionSecret", s.Secret}, {"SocialEngine-SessionSecret", s.Secret}} {
		if status, _, who := call(header...); status != http.StatusOK || !strings.Contains(who, `"user":"ada","level":"user"`) {
			t.Errorf("%s: %d %s", header[0], status, who)
		}
	}
	// A bad credential is refused, and never anonymous.
	for _, header := range [][]string{{"Authorization", "Basic YTpi"}, {"Authorization", "Bearer " + strings.Repeat("0", 64)}, {"Elements-SessionSecret", s.Secret + " override"}} {
		status, h, _ := call(header...)
		if status != http.StatusUnauthorized || h.Get("WWW-Authenticate") == "" || len(h.Get("Conduit-Auth-Store")) != 32 {
			t.Errorf("%v: %d %v", header[0], status, h)
		}
	}
	if status, _, who := call("Cookie", "session="+s.Secret); status != http.StatusOK || !strings.Contains(who, `"anonymous"`) {
		t.Errorf("a cookie: %d %s", status, who)
	}

	if status, _ := login("ada", "something else"); status != http.StatusUnauthorized {
		t.Errorf("a wrong password: %d", status)
	}
	_, wrong := login("ada", "something else")
	_, unknown := login("nobody", "something else")
	if wrong != unknown {
		t.Errorf("a wrong password and an unknown user are told apart: %s, %s", wrong, unknown)
	}
	for _, bad := range []string{``, `{}`, `{"user":"ada"}`, `{"user":"ada","password":7}`, `[]`, `{"user":"ada","password":"` + strings.Repeat("x", 9<<10) + `"}`} {
		if status, _, answer := send(http.MethodPost, "/v1/sessions", bad); status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge {
			t.Errorf("%.40q: %d %s", bad, status, answer)
		}
	}
	if status, h, _ := send(http.MethodGet, "/v1/sessions", ""); status != http.StatusMethodNotAllowed || h.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d", status)
	}
	if status, _, _ := send(http.MethodPost, "/v1/sessions", "user=ada&password=x", "Content-Type", "application/x-www-form-urlencoded"); status != http.StatusUnsupportedMediaType {
		t.Errorf("a form: %d", status)
	}

	if status, _, answer := send(http.MethodDelete, "/v1/sessions/current", ""); status != http.StatusUnauthorized {
		t.Errorf("nobody logs out: %d %s", status, answer)
	}
	if status, _, answer := send(http.MethodDelete, "/v1/sessions/current", "", "Authorization", "Bearer "+s.Secret); status != http.StatusNoContent {
		t.Fatalf("logout: %d %s", status, answer)
	}
	if status, _, _ := call("Authorization", "Bearer "+s.Secret); status != http.StatusUnauthorized { // at once, where one has logged out
		t.Errorf("a call after the logout: %d", status)
	}

	// Who tries many passwords is stopped, whatever the passwords are.
	r.front.until("the limit on logins", func() bool {
		status, answer := login("ada", password)
		if status == http.StatusCreated {
			var s struct{ Secret string }
			if json.Unmarshal([]byte(answer), &s) == nil {
				r.secret(s.Secret)
			}
		}
		return status == http.StatusTooManyRequests && strings.Contains(answer, "too_many_attempts")
	})
}

// Without anonymous callers there is no way in without a session, and instances that
// share no store say so.
func TestNoAnonymous(t *testing.T) {
	t.Parallel()
	r := newRealm(t, "--cluster-anonymous=false")
	ada := r.user("ada", "user")
	r.worker.call(echoAddr, "WhoAmI").want(t, 4, "", "reason=unauthenticated", "a session's secret is needed")
	if status, _, _ := r.front.post("echo/echo/conduit.example.Echo/WhoAmI", "null"); status != http.StatusUnauthorized {
		t.Errorf("the gateway lets nobody in: %d", status)
	}
	if err := r.viaGateway(ada, "echo/echo/conduit.example.Echo/UserOnly", "null"); err != nil {
		t.Error(err)
	}
	file := filepath.Join(r.worker.dir, "ada")
	if err := writeFile(file, ada); err != nil {
		t.Fatal(err)
	}
	r.worker.call(echoAddr, "UserOnly", "--session", "@"+file).want(t, 0, "\"user\"\n")
	r.worker.call(echoAddr, "SuperuserOnly", "--session", "@"+file).want(t, 4, "", "reason=level_too_low")

	// An operator, and who is connected as somebody else, may call as ada and is she.
	other := filepath.Join(r.worker.dir, "root")
	if err := writeFile(other, r.user("root", "superuser")); err != nil {
		t.Fatal(err)
	}
	r.worker.call(echoAddr, "SuperuserOnly", "--session", "@"+other).want(t, 0, "\"superuser\"\n")
	r.worker.call(echoAddr, "SuperuserOnly", "--session", "@"+other, "--as-user", "@"+file).want(t, 4, "", "reason=level_too_low")
	r.worker.call(echoAddr, "UserOnly", "--session", "@"+other, "--as-user", "@"+file).want(t, 0, "\"user\"\n")
	for _, where := range []string{echoAddr, frontAddr} { // by way of the front, and there
		r.front.ask("call", where, "SuperuserOnly").want(t, 0, "\"superuser\"\n")
		r.front.ask("call", where, "SuperuserOnly", "--as-user", "@"+file).want(t, 4, "", "reason=level_too_low")
		r.front.ask("call", where, "UserOnly", "--as-user", "@"+file).want(t, 0, "\"user\"\n")
	}
	r.front.waitLine("the refusal in the audit", func(line string) bool {
		return strings.Contains(line, `"@module":"audit"`) && strings.Contains(line, `"who":"ada"`) && strings.Contains(line, `"result":"level_too_low"`) && strings.Contains(line, `"door":"management"`)
	})

	stranger := prepare(t, nil)
	stranger.name = "stranger"
	stranger.launch("--auth-mode", "required", "--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--discovery-static", r.worker.url)
	stranger.waitReady()
	stranger.until("it to say that the stores differ", func() bool {
		return strings.Contains(stranger.ask("ls", "instances", "-o", "json").out, "two auth stores: ")
	})
}
