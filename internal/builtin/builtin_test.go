package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 20 * time.Second

// fake is all parts of an instance.
type fake struct {
	mu       sync.Mutex
	inFlight uint64
	version  string
	drains   []string
}

func (f *fake) Deployments() []*conduitv1.DeploymentInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	method := func(name string, remote bool, level conduitv1.Level) *conduitv1.MethodDescription {
		return &conduitv1.MethodDescription{Name: name, Remote: remote, MinLevel: level}
	}
	return []*conduitv1.DeploymentInfo{{
		Id: "0101", Name: "store", Status: "unstable",
		Elements: []*conduitv1.ElementInfo{{
			Name: "store", Version: f.version, State: "backoff", Reason: "CANARY-reason", LastExit: "CANARY-exit", Stderr: []string{"CANARY-stderr"},
			File: "CANARY-file", Pid: 42, InFlight: f.inFlight, SinceMillis: f.inFlight,
			Services: []*conduitv1.ServiceDescription{
				{Name: "example.Store", Methods: []*conduitv1.MethodDescription{
					method("Free", true, conduitv1.Level_LEVEL_ANONYMOUS), method("Get", true, conduitv1.Level_LEVEL_USER),
					method("Wipe", true, conduitv1.Level_LEVEL_SUPERUSER), method("hidden", false, conduitv1.Level_LEVEL_ANONYMOUS),
				}},
				{Name: "example.Store#admin", Methods: []*conduitv1.MethodDescription{method("Wipe", true, conduitv1.Level_LEVEL_SUPERUSER)}},
			},
		}},
	}}
}

func (f *fake) State() conduitv1.InstanceState { return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE }

func (f *fake) Drain(user, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drains = append(f.drains, user+": "+reason)
}

func (f *fake) Links() []*conduitv1.LinkInfo { return []*conduitv1.LinkInfo{{Kind: "cluster"}} }

func (f *fake) Units() (available, total uint64) { return 7, 10 }

func (f *fake) Peers(context.Context) ([]*conduitv1.PeerInfo, error) {
	return []*conduitv1.PeerInfo{{State: "alive"}}, nil
}

func (f *fake) DiscoveryProblems() []string { return []string{"_c._tcp.x: NXDOMAIN"} }

func (f *fake) Explain(_ context.Context, in *conduitv1.ExplainRequest) (*conduitv1.ExplainResponse, error) {
	return &conduitv1.ExplainResponse{Chosen: in.GetMethod()}, nil
}

// Logs gives two records, and with follow as many until the caller leaves.
func (f *fake) Logs(ctx context.Context, in *conduitv1.LogsRequest, send func(*conduitv1.LogRecord) error) error {
	for n := int64(1); n <= 2 || in.GetFollow(); n++ {
		if err := send(&conduitv1.LogRecord{Deployment: in.GetDeployment(), UnixMicros: n}); err != nil {
			return err
		}
		if n == 2 && in.GetFollow() {
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	return nil
}

func byPeer(peer link.Peer, in *frame.Invoke) (string, conduit.Level, *conduit.Error) {
	if in.HasAs && in.As.Kind == frame.AsAnonymous {
		return "", conduit.Anonymous, nil
	}
	return peer.User, peer.Level, nil
}

// harness is one instance, asked through any door at any level.
type harness struct {
	t *testing.T
	*fake
	*Services
	others chan string // calls that went to next
}

func start(t *testing.T, change func(o *Options)) *harness {
	t.Helper()
	f := &fake{version: "1"}
	o := Options{
		Instance: address.RandomInstanceID(), Name: "w", Mode: "worker", Version: "v1", Epoch: 5, Started: time.Now(),
		Authorize: byPeer, Inventory: f, Lifecycle: f, Links: f, Capacity: f, Peers: f, Explainer: f, Logs: f,
	}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &harness{t: t, fake: f, Services: s, others: make(chan string, 10)}
}

// Handle takes the calls that are not for the built-in services.
func (h *harness) Handle(in *link.Incoming) {
	h.others <- string(in.Invoke.Deployment)
	in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "next"))
}

// dial makes a link through a door.
func (h *harness) dial(at Door, level conduit.Level) *link.Conn {
	h.t.Helper()
	a, b := link.Pipe(16)
	server := link.New(a, link.Options{Handler: h.Door(at, h), Peer: link.Peer{Name: "client", User: "ada", Level: level}})
	client := link.New(b, link.Options{Dialer: true})
	h.t.Cleanup(func() {
		client.Close(link.CloseDone, "")
		<-client.Done()
		<-server.Done()
	})
	return client
}

func invoke(t *testing.T, l *link.Conn, addr string, in *conduit.Invocation) (conduit.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	in.Last = true
	x := l.Invoke(ctx, link.NewRoute(address.MustParse(addr)), in)
	m, err := x.Recv(ctx)
	if err != nil {
		return m, err
	}
	if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v", err)
	}
	return m, nil
}

func ask[Res proto.Message](t *testing.T, l *link.Conn, service, method string, in proto.Message) (Res, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return conduit.Call[Res](ctx, onLink{l, address.MustParse("*://conduit/conduit/" + service)}, method, in)
}

type onLink struct {
	l *link.Conn
	a address.Address
}

func (o onLink) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	return o.l.Invoke(ctx, link.NewRoute(o.a), in)
}

func refused(t *testing.T, what string, err error, code conduit.Code, reason string) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != conduit.Refused {
		t.Errorf("%s: %v; want %v %s refused", what, err, code, reason)
	}
}

const (
	instanceService = "conduit.v1.Instance"
	adminService    = "conduit.v1.Admin"
)

// methodsOf lists what an answer tells of methods.
func methodsOf(info *conduitv1.InstanceInfo) string {
	var names []string
	for _, d := range info.GetDeployments() {
		for _, e := range d.GetElements() {
			for _, s := range e.GetServices() {
				for _, m := range s.GetMethods() {
					names = append(names, s.GetName()+"."+m.GetName())
				}
			}
		}
	}
	return strings.Join(names, " ")
}

// Each is told what his level permits, and only operators of the machine.
func TestWhoAreYou(t *testing.T) {
	h := start(t, nil)
	for _, tc := range []struct {
		door     Door
		level    conduit.Level
		methods  string
		operator bool
	}{
		{Cluster, conduit.Anonymous, "", false},
		{Cluster, conduit.User, "example.Store.Free example.Store.Get", false},
		{Cluster, conduit.Superuser, "example.Store.Free example.Store.Get example.Store.Wipe example.Store#admin.Wipe", false},
		{Cluster, conduit.System, "example.Store.Free example.Store.Get example.Store.Wipe example.Store#admin.Wipe", false},
		{Plugin, conduit.User, "example.Store.Free example.Store.Get", false},
		{Management, conduit.User, "example.Store.Free example.Store.Get", false},
		{Management, conduit.Superuser, "example.Store.Free example.Store.Get example.Store.Wipe example.Store.hidden example.Store#admin.Wipe", true},
	} {
		info, err := ask[*conduitv1.InstanceInfo](t, h.dial(tc.door, tc.level), instanceService, "WhoAreYou", &conduitv1.WhoAreYouRequest{})
		if err != nil {
			t.Fatal(err)
		}
		text := info.String()
		if got := methodsOf(info); got != tc.methods {
			t.Errorf("door %d, %s: methods %s, want %s", tc.door, tc.level, got, tc.methods)
		}
		if told := strings.Contains(text, "CANARY"); told != tc.operator {
			t.Errorf("door %d, %s: told of the machine: %v\n%s", tc.door, tc.level, told, text)
		}
		if info.GetInstance() != h.o.Instance.String() || info.GetName() != "w" || info.GetState() != conduitv1.InstanceState_INSTANCE_STATE_ACTIVE {
			t.Errorf("%s", text)
		}
		if tc.level == conduit.Anonymous {
			bare := &conduitv1.InstanceInfo{Instance: info.Instance, Name: info.Name, State: info.State}
			if !proto.Equal(info, bare) {
				t.Errorf("anonymous is told %s", text)
			}
		} else if info.GetTotal() != 10 || info.GetAvailable() != 7 || info.GetEpoch() != 5 || info.GetMode() != "worker" || len(info.GetDigest()) == 0 {
			t.Errorf("%s", text)
		}
	}
	if got := methodsOf(h.Info()); !strings.Contains(got, "hidden") {
		t.Errorf("Info: %s", got)
	}
}

// The digest stands while nothing but numbers move, and is the same for all.
func TestDigest(t *testing.T) {
	h := start(t, nil)
	l := h.dial(Cluster, conduit.User)
	who := func(digest []byte) *conduitv1.InstanceInfo {
		info, err := ask[*conduitv1.InstanceInfo](t, l, instanceService, "WhoAreYou", &conduitv1.WhoAreYouRequest{Digest: digest})
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := who(nil)
	if first.GetUnchanged() || string(first.GetDigest()) != string(h.Digest()) || string(h.Info().GetDigest()) != string(h.Digest()) {
		t.Errorf("%s", first)
	}
	h.mu.Lock()
	h.inFlight = 3
	h.mu.Unlock()
	if info := who(first.GetDigest()); !info.GetUnchanged() || len(info.GetDeployments()) != 0 || info.GetInFlight() != 3 {
		t.Errorf("unchanged: %s", info)
	}
	h.mu.Lock()
	h.version = "2"
	h.mu.Unlock()
	if info := who(first.GetDigest()); info.GetUnchanged() || len(info.GetDeployments()) != 1 || string(info.GetDigest()) == string(first.GetDigest()) {
		t.Errorf("changed: %s", info)
	}
}

func TestAdmin(t *testing.T) {
	h := start(t, nil)
	l := h.dial(Management, conduit.Superuser)
	if r, err := ask[*conduitv1.LinksResponse](t, l, adminService, "Links", &conduitv1.LinksRequest{}); err != nil || len(r.GetLinks()) != 1 {
		t.Errorf("Links: %v, %v", r, err)
	}
	if r, err := ask[*conduitv1.PeersResponse](t, l, adminService, "Peers", &conduitv1.PeersRequest{}); err != nil || len(r.GetPeers()) != 1 || len(r.GetDiscoveryProblems()) != 1 || r.GetSelf().GetName() != "w" {
		t.Errorf("Peers: %v, %v", r, err)
	}
	if r, err := ask[*conduitv1.ExplainResponse](t, l, adminService, "Explain", &conduitv1.ExplainRequest{Address: "*://a/b/c", Method: "M"}); err != nil || r.GetChosen() != "M" {
		t.Errorf("Explain: %v, %v", r, err)
	}
	_, err := ask[*conduitv1.ExplainResponse](t, l, adminService, "Explain", &conduitv1.ExplainRequest{Address: "nowhere"})
	refused(t, "Explain of no address", err, conduit.InvalidArgument, conduit.ReasonBadAddress)
	if _, err := ask[*conduitv1.DrainResponse](t, l, adminService, "Drain", &conduitv1.DrainRequest{Reason: strings.Repeat("é", 150)}); err != nil {
		t.Error(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.drains) != 1 || h.drains[0] != "ada: "+strings.Repeat("é", maxReason/2) {
		t.Errorf("%q", h.drains)
	}
}

// A log is a stream; to follow it is a call in the background, which ends with the drain
// and with its caller.
func TestLogs(t *testing.T) {
	h := start(t, nil)
	a, b := link.Pipe(16)
	server := link.New(a, link.Options{Handler: h.Door(Management, h), Peer: link.Peer{Name: "client", User: "ada", Level: conduit.Superuser}})
	client := link.New(b, link.Options{Dialer: true})
	t.Cleanup(func() {
		client.Close(link.CloseDone, "")
		<-client.Done()
		<-server.Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	admin := onLink{client, address.MustParse("*://conduit/conduit/" + adminService)}
	read := func(follow bool, each func(n int64), options ...conduit.CallOption) error {
		next := int64(1)
		for r, err := range conduit.Stream[*conduitv1.LogRecord](ctx, admin, "Logs", &conduitv1.LogsRequest{Deployment: "d", Follow: follow}, options...) {
			if err != nil {
				return err
			}
			if r.GetDeployment() != "d" || r.GetUnixMicros() != next {
				t.Errorf("%v instead of record %d", r, next)
			}
			each(next)
			next++
		}
		if next != 3 {
			t.Errorf("it ended before record %d", next)
		}
		return nil
	}
	if err := read(false, func(int64) {}); err != nil {
		t.Error(err)
	}
	refused(t, "follow in the foreground", read(true, func(int64) {}), conduit.InvalidArgument, conduit.ReasonWrongShape)
	err := read(true, func(n int64) {
		if n == 2 {
			server.CancelBackground(conduit.Errorf(conduit.Unavailable, conduit.ReasonDraining, conduit.OutcomeUnknown, "going away"))
		}
	}, conduit.AsBackground())
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.Unavailable || e.Reason != conduit.ReasonDraining || e.Outcome != conduit.OutcomeUnknown {
		t.Errorf("at the drain it ends with %v", err)
	}
	for _, err := range conduit.Stream[*conduitv1.LogRecord](ctx, admin, "Logs", &conduitv1.LogsRequest{Deployment: "d", Follow: true}, conduit.AsBackground()) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if err := server.WaitServed(ctx); err != nil {
		t.Errorf("the handler of a caller that has left goes on: %v", err)
	}
}

func TestAdminRefused(t *testing.T) {
	closed, open := start(t, nil), start(t, func(o *Options) { o.RemoteAdmin = true })
	for _, tc := range []struct {
		h      *harness
		door   Door
		level  conduit.Level
		reason string // "" = served
	}{
		{closed, Cluster, conduit.System, conduit.ReasonNotRemote},
		{closed, Cluster, conduit.Anonymous, conduit.ReasonNotRemote},
		{closed, Plugin, conduit.Superuser, conduit.ReasonNotRemote},
		{closed, Management, conduit.User, conduit.ReasonLevelTooLow},
		{closed, Management, conduit.Superuser, ""},
		{open, Cluster, conduit.User, conduit.ReasonLevelTooLow},
		{open, Cluster, conduit.Superuser, ""},
		{open, Plugin, conduit.Superuser, conduit.ReasonNotRemote},
	} {
		l := tc.h.dial(tc.door, tc.level)
		for _, method := range []string{"Links", "Peers", "Drain", "Logs"} {
			if method == "Logs" && tc.reason == "" {
				continue // it has more than one answer; TestLogs reads them
			}
			_, err := invoke(t, l, "*://conduit/conduit/"+adminService, &conduit.Invocation{Method: method})
			if tc.reason != "" {
				refused(t, method, err, conduit.PermissionDenied, tc.reason)
			} else if err != nil {
				t.Errorf("door %d, %s, %s: %v", tc.door, tc.level, method, err)
			}
		}
	}
	if len(closed.drains) != 1 || len(open.drains) != 1 {
		t.Errorf("drains: %d, %d", len(closed.drains), len(open.drains))
	}
}

// An instance without a part says so.
func TestLacking(t *testing.T) {
	h := start(t, func(o *Options) { o.Links, o.Peers, o.Explainer, o.Capacity, o.Logs = nil, nil, nil, nil, nil })
	l := h.dial(Management, conduit.Superuser)
	for _, method := range []string{"Links", "Peers", "Explain", "Logs"} {
		_, err := invoke(t, l, "*://conduit/conduit/"+adminService, &conduit.Invocation{Method: method})
		refused(t, method, err, conduit.Unimplemented, reasonUnimplemented)
	}
	if _, err := invoke(t, l, "*://conduit/conduit/"+instanceService, &conduit.Invocation{Method: "WhoAreYou"}); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("an instance of nothing")
	}
}

// Both encodings, each by what the caller says.
func TestContentTypes(t *testing.T) {
	h := start(t, nil)
	l := h.dial(Cluster, conduit.User)
	for _, tc := range []struct {
		name         string
		in           conduit.Invocation
		json, refuse bool
	}{
		{"nothing", conduit.Invocation{}, false, false},
		{"json accepted", conduit.Invocation{Accept: conduit.ContentJSON}, true, false},
		{"json sent", conduit.Invocation{ContentType: "application/json; charset=utf-8", Request: []byte("{}"), HasRequest: true}, true, false},
		{"json null", conduit.Invocation{ContentType: conduit.ContentJSON, Request: []byte(" null\n"), HasRequest: true}, true, false},
		{"unknown field", conduit.Invocation{ContentType: conduit.ContentJSON, Request: []byte(`{"newer":1}`), HasRequest: true}, true, false},
		{"json sent, proto accepted", conduit.Invocation{ContentType: conduit.ContentJSON, Accept: conduit.ContentProto, Request: []byte("{}"), HasRequest: true}, false, false},
		{"proto sent", conduit.Invocation{ContentType: conduit.ContentProto, HasRequest: true}, false, false},
		{"no json", conduit.Invocation{ContentType: conduit.ContentJSON, Request: []byte("{"), HasRequest: true}, false, true},
		{"no proto", conduit.Invocation{ContentType: conduit.ContentProto, Request: []byte{0xff}, HasRequest: true}, false, true},
		{"text", conduit.Invocation{ContentType: "text/plain", Request: []byte("hello"), HasRequest: true}, false, true},
	} {
		tc.in.Method = "WhoAreYou"
		m, err := invoke(t, l, "*://conduit/conduit/"+instanceService, &tc.in)
		switch {
		case tc.refuse:
			refused(t, tc.name, err, conduit.InvalidArgument, conduit.ReasonBadContent)
		case err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.json:
			if m.ContentType != conduit.ContentJSON || !json.Valid(m.Data) || !strings.Contains(string(m.Data), `"name":"w"`) {
				t.Errorf("%s: %s %s", tc.name, m.ContentType, m.Data)
			}
		default:
			if m.ContentType != conduit.ContentProto || proto.Unmarshal(m.Data, &conduitv1.InstanceInfo{}) != nil {
				t.Errorf("%s: %s %q", tc.name, m.ContentType, m.Data)
			}
		}
	}
}

// What is not for this instance's services goes on, or is not found.
func TestAddresses(t *testing.T) {
	h := start(t, nil)
	l := h.dial(Management, conduit.Superuser)
	id := address.UniqueDeploymentID(address.BuiltinDeployment).String()
	me, other := h.o.Instance.String(), address.RandomInstanceID().String()
	for addr, reason := range map[string]string{
		"*://conduit/conduit/" + instanceService:                         "",
		"*://" + id + "/conduit/" + instanceService:                      "",
		me + "://conduit/conduit/" + instanceService:                     "",
		strings.ToUpper(me) + "://conduit/conduit[0]/" + instanceService: "",
		"*://conduit/conduit[1]/" + instanceService:                      conduit.ReasonElementNotFound,
		"*://conduit/other/" + instanceService:                           conduit.ReasonElementNotFound,
		"*://conduit/conduit/conduit.v1.Nothing":                         conduit.ReasonServiceNotFound,
		"*://echo/conduit/" + instanceService:                            "next",
		"*://*/conduit/" + instanceService:                               "next",
		other + "://conduit/conduit/" + instanceService:                  "next",
	} {
		_, err := invoke(t, l, addr, &conduit.Invocation{Method: "WhoAreYou"})
		switch reason {
		case "":
			if err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		case "next":
			refused(t, addr, err, conduit.NotFound, conduit.ReasonDeploymentNotFound)
			<-h.others
		default:
			refused(t, addr, err, conduit.NotFound, reason)
		}
	}
	_, err := invoke(t, l, "*://conduit/conduit/"+instanceService, &conduit.Invocation{Method: "Knock"})
	refused(t, "Knock", err, conduit.NotFound, conduit.ReasonMethodNotFound)
	_, err = invoke(t, l, "*://conduit/conduit/"+adminService, &conduit.Invocation{Method: "Links", As: conduit.AsWhom{Kind: conduit.AsAnonymous}})
	refused(t, "as nobody", err, conduit.PermissionDenied, conduit.ReasonLevelTooLow)
}
