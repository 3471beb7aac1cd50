package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// The test binary is the plugin: copied into a deployments directory and
// started with this variable, it does what the name of its deployment says.
const fixtureVar = "HOST_FIXTURE"

// modeVar is what a script that runs the test binary has it do, as the end of a binary says
// by itself: see fixtureMode.
const modeVar = "HOST_FIXTURE_MODE"

func TestMain(m *testing.M) {
	SandboxEntry()
	if dieAt := os.Getenv(dieAtVar); dieAt != "" {
		deployAndDie(dieAt)
	}
	if name := os.Getenv(debugVar); name != "" {
		debugFixture(name)
		os.Exit(0)
	}
	if os.Getenv(fixtureVar) != "" {
		dir, _ := os.Getwd()
		runFixture(filepath.Base(dir))
		os.Exit(0)
	}
	remove, err := buildPlugin()
	if err != nil {
		remove()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		remove()
		os.Exit(code)
	}))
}

func runFixture(name string) {
	switch {
	case strings.HasPrefix(name, "dies"):
		_, _ = fmt.Fprintln(os.Stderr, "cannot live")
		os.Exit(4)
	case strings.HasPrefix(name, "hangs"):
		select {}
	}
	mode := os.Getenv(modeVar)
	if mode == "" {
		mode = fixtureMode()
	}
	if mode == "dies" {
		os.Exit(4)
	}
	if err := pluginlink.Serve(&fixture{name: name, mode: mode}); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fixtureMode is what the end of the binary says that it is to do: two files of one name
// may differ in it.
func fixtureMode() string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	end := make([]byte, 64)
	_, _ = f.ReadAt(end, info.Size()-int64(len(end)))
	_, mode, _ := strings.Cut(string(end), "MODE=")
	mode, _, _ = strings.Cut(mode, ";")
	return mode
}

// awaitFile waits until a file is in the process's working directory, or ctx ends.
func awaitFile(ctx context.Context, name string) error {
	for {
		if _, err := os.Stat(name); err == nil {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fixture is the element: its methods say what they do.
type fixture struct {
	name string
	mode string
	mu   sync.Mutex
	conn *link.Conn

	given *conduitv1.ConfigureRequest
	units unitsFixture
	lock  *os.File // of an exclusive element, as long as it lives
}

func (f *fixture) Describe() *conduitv1.Description {
	method := func(name string, level conduitv1.Level) *conduitv1.MethodDescription {
		return &conduitv1.MethodDescription{Name: name, Remote: true, MinLevel: level}
	}
	heavy := func(name string) *conduitv1.MethodDescription {
		return &conduitv1.MethodDescription{Name: name, Remote: true, Units: 10, Idempotent: true}
	}
	element, _, _ := strings.Cut(f.name, "-")
	element, _, _ = strings.Cut(element, "[") // another of its name
	if f.name == "misnamed" {
		element = "../../etc"
	}
	version := "1"
	if element == "loud" {
		version = strings.Repeat("v", 1<<20)
	}
	if f.name == "posing" {
		element = "conduit"
	}
	return &conduitv1.Description{
		Element: element, Version: version, Exclusive: element == "single" || f.mode == "exclusive",
		Services: []*conduitv1.ServiceDescription{{
			Name: "test.Fixture",
			Methods: []*conduitv1.MethodDescription{
				method("Echo", conduitv1.Level_LEVEL_ANONYMOUS), method("Wait", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Exit", conduitv1.Level_LEVEL_ANONYMOUS), method("Who", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Call", conduitv1.Level_LEVEL_ANONYMOUS), method("Own", conduitv1.Level_LEVEL_SUPERUSER),
				method("Claim", conduitv1.Level_LEVEL_ANONYMOUS), method("Release", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Hold", conduitv1.Level_LEVEL_ANONYMOUS), method("Peak", conduitv1.Level_LEVEL_ANONYMOUS),
				method("ClaimUntil", conduitv1.Level_LEVEL_ANONYMOUS), method("Print", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Finish", conduitv1.Level_LEVEL_ANONYMOUS), method("Raw", conduitv1.Level_LEVEL_ANONYMOUS), method("Println", conduitv1.Level_LEVEL_ANONYMOUS), method("Flood", conduitv1.Level_LEVEL_ANONYMOUS),
				method("CallTwice", conduitv1.Level_LEVEL_ANONYMOUS), method("CallLoop", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Given", conduitv1.Level_LEVEL_ANONYMOUS), method("Try", conduitv1.Level_LEVEL_ANONYMOUS),
				heavy("Heavy"), heavy("HeavyClaim"), heavy("Stuck"),
				{Name: "Hidden"},
				method("Told", conduitv1.Level_LEVEL_ANONYMOUS), method("Watch", conduitv1.Level_LEVEL_ANONYMOUS),
				method("Subscribe", conduitv1.Level_LEVEL_ANONYMOUS),
			},
		}},
		Attributes: toldAttributes(element),
	}
}

func (f *fixture) Configure(ctx context.Context, in *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	f.given = in
	if strings.HasPrefix(f.name, "told") {
		if r, err := f.tell(); r != nil || err != nil {
			return r, err
		}
	}
	switch f.mode {
	case "fails":
		return nil, errors.New("the new key is missing")
	case "slow": // comes up when it is told to
		if err := os.WriteFile("starting", strconv.AppendInt(nil, int64(os.Getpid()), 10), 0o600); err != nil {
			return nil, err
		}
		if err := awaitFile(ctx, "go"); err != nil {
			return nil, err
		}
	}
	if f.Describe().GetExclusive() {
		lock, err := os.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			return nil, fmt.Errorf("another one has the lock: %w", err)
		}
		f.lock = lock
	}
	if f.name == "badconfig" {
		return nil, errors.New("the key is missing")
	}
	r := &conduitv1.ConfigureResponse{}
	switch f.name {
	case "warns":
		r.Warnings = []string{"the disk is slow"}
	case "loud":
		for range 100 {
			r.Warnings = append(r.Warnings, strings.Repeat("w", 20000))
		}
	case "loud-error":
		return nil, errors.New(strings.Repeat("e", 3<<20))
	}
	return r, nil
}

func (f *fixture) Health(context.Context) *conduitv1.HealthResponse {
	if f.name == "loud" {
		return &conduitv1.HealthResponse{State: conduitv1.HealthResponse_STATE_DEGRADED, Text: strings.Repeat("\x1b", 3<<20)}
	}
	if f.given.GetAttributes()["ill"] != "" {
		return &conduitv1.HealthResponse{State: conduitv1.HealthResponse_STATE_DEGRADED, Text: "it is " + f.given.GetAttributes()["ill"]}
	}
	if f.name == "ill" {
		return &conduitv1.HealthResponse{State: conduitv1.HealthResponse_STATE_DEGRADED, Text: "half of it is gone"}
	}
	return nil
}

func (f *fixture) Stop(ctx context.Context) error {
	if f.name == "stopless" {
		<-ctx.Done()
	}
	return os.WriteFile("stopped", []byte("in order"), 0o600) // in its working directory
}

func (f *fixture) Linked(c *link.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = c
}

func (f *fixture) Handler() link.Handler { return f }

func (f *fixture) Handle(in *link.Incoming) {
	method := string(in.Invoke.Method)
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		m, err := s.Recv(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		c := s.Invoke().Caller
		var chain []string
		for _, l := range c.Chain {
			chain = append(chain, string(l))
		}
		answer := m.Data
		switch method {
		case "Claim", "HeavyClaim", "Release", "Hold", "Peak", "Stuck":
			answer, err = f.units.serve(ctx, s, method, string(m.Data))
			if err != nil {
				return err
			}
		case "ClaimUntil": // "<file>": its claim of one unit is held until the file is there
			x, _, err := claim(ctx, s, 1, "parent")
			if err != nil {
				return err
			}
			go func() {
				_ = awaitFile(context.Background(), string(m.Data))
				x.Cancel(context.Canceled)
			}()
		case "Given": // "<variable> <attribute>": what it was started with
			var variable, attribute string
			if _, err := fmt.Sscan(string(m.Data), &variable, &attribute); err != nil {
				return err
			}
			answer = fmt.Appendf(nil, "%q %s %s %s", os.Args[1:], os.Getenv(variable), f.given.GetAttributes()[attribute], filepath.Base(f.given.GetDataDir()))
		case "Try":
			if answer, err = tryAll(m.Data); err != nil {
				return err
			}
		case "Told", "Watch", "Subscribe":
			if answer, err = f.hostService(ctx, s, method, string(m.Data)); err != nil {
				return err
			}
		case "Print":
			_, _ = fmt.Fprintf(os.Stderr, "%s\n", m.Data)
		case "Println":
			fmt.Println(string(m.Data))
		case "Raw": // past what the library puts in the place of os.Stderr
			_, _ = syscall.Write(2, m.Data)
		case "Flood": // "<n>" lines at once
			n, err := strconv.Atoi(string(m.Data))
			if err != nil {
				return err
			}
			_, _ = syscall.Write(2, bytes.Repeat([]byte("flood\n"), n))
		case "Finish": // "<file>": ends well once the file is there
			if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentBytes, Data: []byte("began")}); err != nil {
				return err
			}
			if err := awaitFile(ctx, string(m.Data)); err != nil {
				return err
			}
			answer = []byte("done")
		case "Wait", "Heavy":
			if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentBytes, Data: []byte("began")}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		case "Exit":
			os.Exit(9)
		case "Who":
			answer = fmt.Appendf(nil, "%s %s %s via %s", f.name, c.User, conduit.Level(c.Level), strings.Join(chain, ","))
		case "Call", "CallTwice", "CallLoop": // passes the question on: "<as> <address> <method>"
			var as, addr, next string
			var request []byte
			switch method {
			case "CallTwice": // by way of itself
				as, addr, next, request = "caller", echo, "Call", m.Data
			case "CallLoop":
				as, addr, next = "caller", echo, "CallLoop"
			default:
				if _, err := fmt.Sscan(string(m.Data), &as, &addr, &next); err != nil {
					return err
				}
			}
			f.mu.Lock()
			conn := f.conn
			f.mu.Unlock()
			in := &conduit.Invocation{Method: next, ContentType: conduit.ContentBytes, Request: request, HasRequest: true, Last: true, Parent: s.ID(), Chain: chain}
			switch as {
			case "self":
				in.As.Kind = conduit.AsSelf
			case "forged":
				in.As = conduit.AsWhom{Kind: conduit.AsVouched, Name: "root", Level: conduit.Superuser}
			case "orphan":
				in.Parent = 0
			}
			reply, err := conn.Invoke(ctx, link.NewRoute(address.MustParse(addr)), in).Recv(ctx)
			if err != nil {
				return err
			}
			answer = reply.Data
		}
		s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: answer})
		return nil
	})
}

// rig is a host under test and a client's link to it.
type rig struct {
	t       testing.TB
	ctx     context.Context //nolint:containedctx // the test's own
	h       *Host
	dir     string // deployments
	private string
	client  *link.Conn
	done    chan error

	mu   sync.Mutex
	wake chan struct{}
}

var testInstance = address.UniqueInstanceID("under test")

func newRig(tb testing.TB, deployments ...string) *rig {
	tb.Helper()
	return newRigWith(tb, nil, deployments...)
}

// newRigWith runs a host with copies of the test binary under the given names,
// and stops it at the end, when nothing may be left.
func newRigWith(tb testing.TB, change func(*Options), deployments ...string) *rig {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	tb.Cleanup(cancel)
	r := &rig{t: tb, ctx: ctx, dir: tb.TempDir(), private: tb.TempDir(), done: make(chan error, 1), wake: make(chan struct{})}
	for _, d := range deployments {
		r.deploy(d, "")
	}
	r.run(tb, change)
	return r
}

// run runs a host in the rig's directories.
func (r *rig) run(tb testing.TB, change func(*Options)) {
	tb.Helper()
	o := Options{
		Dir: r.dir, Private: r.private, Instance: testInstance, Env: []string{fixtureVar + "=1"},
		ScanInterval: 50 * time.Millisecond, StartTimeout: 20 * time.Second, DrainTimeout: 10 * time.Second, StopTimeout: 2 * time.Second,
		RestartMin: 20 * time.Millisecond, RestartMax: 100 * time.Millisecond, HealthInterval: 100 * time.Millisecond,
		OnChange: r.changed,
	}
	if testing.Verbose() {
		o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	}
	if change != nil {
		change(&o)
	}
	h, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	r.h = h
	go func() { r.done <- h.Run(context.Background()) }()
	r.client = r.dial("ada", conduit.User)
	tb.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := h.Stop(stop); err != nil {
			tb.Error(err)
		}
		if err := <-r.done; err != nil {
			tb.Error(err)
		}
		for _, d := range h.Snapshot() {
			for _, e := range d.Elements {
				if e.Pid != 0 || e.Calls != 0 || e.Claims != 0 {
					tb.Errorf("after the stop %s has pid %d, %d calls and %d claims", d.Name, e.Pid, e.Calls, e.Claims)
				}
			}
		}
		if left, _ := filepath.Glob(filepath.Join(h.priv.sockets, "*")); len(left) > 0 {
			tb.Errorf("sockets are left: %v", left)
		}
	})
}

// Handle implements link.Handler: whoever has a link to the rig calls as that link's
// principal.
func (r *rig) Handle(in *link.Incoming) {
	from := Origin{Principal: Principal{User: in.Peer().User, Level: in.Peer().Level}}
	for _, name := range in.Invoke.Chain {
		from.Chain = append(from.Chain, string(name))
	}
	if err := r.h.Take(from, in, in.Invoke); err != nil {
		in.Refuse(err)
	}
}

// dial makes a link to the host, as a transport would.
func (r *rig) dial(user string, level conduit.Level) *link.Conn {
	r.t.Helper()
	a, b := link.Pipe(64)
	server := link.New(b, link.Options{Handler: r, Peer: link.Peer{Name: "client", User: user, Level: level}})
	client := link.New(a, link.Options{Dialer: true, Peer: link.Peer{Name: "host"}})
	r.t.Cleanup(func() {
		client.Close(link.CloseDone, "")
		<-client.Done()
		<-server.Done()
	})
	if err := client.Ready(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	return client
}

// deploy puts a copy of the test binary into the directory; extra changes its
// bytes. It appears whole, and at rest.
func (r *rig) deploy(name, extra string) {
	r.t.Helper()
	self, err := pluginFile()
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(name, append(b, extra...), 0o755)
}

func (r *rig) write(name string, b []byte, mode os.FileMode) {
	r.t.Helper()
	tmp := filepath.Join(r.dir, ".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := errors.Join(os.Chmod(tmp, mode), os.Chtimes(tmp, past, past), os.Rename(tmp, filepath.Join(r.dir, name))); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.wake)
	r.wake = make(chan struct{})
}

// until waits until the host's snapshot is as wanted.
func (r *rig) until(what string, ok func(map[string]ElementStatus) bool) map[string]ElementStatus {
	r.t.Helper()
	for {
		r.mu.Lock()
		wake := r.wake
		r.mu.Unlock()
		m := r.elements()
		if ok(m) {
			return m
		}
		select {
		case <-wake:
		case <-time.After(100 * time.Millisecond): // calls and claims come and go without a word
		case <-r.ctx.Done():
			r.t.Fatalf("never came: %s; it is %+v", what, m)
		}
	}
}

func (r *rig) elements() map[string]ElementStatus {
	m := map[string]ElementStatus{}
	for _, d := range r.h.Snapshot() {
		m[d.Name] = d.Elements[0]
	}
	return m
}

func (r *rig) untilState(name string, s State) ElementStatus {
	r.t.Helper()
	return r.until(name+" "+string(s), func(m map[string]ElementStatus) bool { return m[name].State == s })[name]
}

func (r *rig) ready() {
	r.t.Helper()
	select {
	case <-r.h.Ready():
	case err := <-r.done:
		r.done <- err
		r.t.Fatalf("Run ended: %v", err)
	case <-r.ctx.Done():
		r.t.Fatalf("not ready: %+v", r.h.Snapshot())
	}
}

// invoke starts a call.
func invoke(ctx context.Context, c *link.Conn, addr, method, data string) conduit.Exchange {
	return c.Invoke(ctx, link.NewRoute(address.MustParse(addr)), &conduit.Invocation{
		Method: method, ContentType: conduit.ContentBytes, Request: []byte(data), HasRequest: true, Last: true, Streaming: true,
	})
}

func (r *rig) call(addr, method, data string) (string, error) {
	m, err := invoke(r.ctx, r.client, addr, method, data).Recv(r.ctx)
	return string(m.Data), err
}

func wantReason(tb testing.TB, err error, reason string, outcome conduit.Outcome) *conduit.Error {
	tb.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Reason != reason || e.Outcome != outcome {
		tb.Fatalf("got %v, want reason %s, outcome %s", err, reason, outcome)
	}
	return e
}
