package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// wellConnected is an instance at a management socket that knows peers, and passes
// on what is called there.
type wellConnected struct {
	id, near, far address.InstanceID
	explains      atomic.Pointer[conduitv1.ExplainResponse]
	asked         chan *conduitv1.ExplainRequest
	waiting       chan struct{} // a call of Wait is being served
	runDir        string
	hostsNothing  atomic.Bool
}

func (w *wellConnected) deployments() []*conduitv1.DeploymentInfo {
	return []*conduitv1.DeploymentInfo{{
		Id: address.UniqueDeploymentID("echo").String(), Name: "echo", Status: "clean",
		Elements: []*conduitv1.ElementInfo{{Name: "echo", State: "degraded", Reason: "half of it is gone; the disk is slow, and was slow the day before; the key is old", InFlight: 2, Claims: 3, Services: []*conduitv1.ServiceDescription{{
			Name: "conduit.example.Echo", Methods: []*conduitv1.MethodDescription{{Name: "Where", Remote: true}},
		}}}},
	}}
}

func (w *wellConnected) Deployments() []*conduitv1.DeploymentInfo {
	if w.hostsNothing.Load() {
		return nil
	}
	return w.deployments()
}

func (w *wellConnected) State() conduitv1.InstanceState {
	return conduitv1.InstanceState_INSTANCE_STATE_ACTIVE
}
func (w *wellConnected) Drain(string, string) {}

func (*wellConnected) DiscoveryProblems() []string { return nil }

func (w *wellConnected) Peers(context.Context) ([]*conduitv1.PeerInfo, error) {
	info := func(id address.InstanceID, name string, state conduitv1.InstanceState) *conduitv1.InstanceInfo {
		return &conduitv1.InstanceInfo{
			Instance: id.String(), Name: name, Epoch: 1, Mode: "worker", State: state, Digest: []byte("d"), Deployments: w.deployments(),
			Available: 40, Total: 50, InFlight: 3,
		}
	}
	return []*conduitv1.PeerInfo{
		{
			Info: info(w.near, "near", conduitv1.InstanceState_INSTANCE_STATE_CORDONED), Urls: []string{"ws://near:1/cluster/v1"}, State: "alive",
			Effective: 38, Sent: 9, Judged: 7, Outstanding: 2, HeardMillis: 1500, InfoMillis: 60_000,
		},
		{Info: info(w.far, "far", conduitv1.InstanceState_INSTANCE_STATE_ACTIVE), Urls: []string{"ws://far:1/cluster/v1"}, State: "unreachable", Reason: "nothing listens there"},
		{Info: &conduitv1.InstanceInfo{}, Urls: []string{"ws://new:1/cluster/v1"}, State: "unreachable", Reason: "no such host"},
	}, nil
}

func (w *wellConnected) Links() []*conduitv1.LinkInfo {
	return []*conduitv1.LinkInfo{
		{Kind: "management", Peer: "operator", Remote: "unix socket", CallsIn: 1},
		{Kind: "peer", Peer: w.near.String(), Remote: "near:1", CallsOut: 2, RttMicros: 1500, IdleMillis: 3000, Overdue: 5},
	}
}

func (w *wellConnected) Explain(_ context.Context, in *conduitv1.ExplainRequest) (*conduitv1.ExplainResponse, error) {
	w.asked <- in
	return w.explains.Load(), nil
}

// Handle takes the calls of elements: each node says who it is, but one.
func (w *wellConnected) Handle(in *link.Incoming) {
	instance := string(in.Invoke.Instance)
	if instance == w.far.String() {
		in.Refuse(conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent, "there is no link to it"))
		return
	}
	method := string(in.Invoke.Method)
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		switch method {
		case "Wait":
			w.waiting <- struct{}{}
			fallthrough
		case "Slow":
			<-ctx.Done()
			return conduit.FromContext(ctx, conduit.Executed)
		}
		text, err := json.Marshal(instance)
		if err != nil {
			return err
		}
		return s.Send(ctx, conduit.Message{ContentType: conduit.ContentJSON, Data: text})
	})
}

func startWellConnected(t *testing.T) *wellConnected {
	t.Helper()
	dir, err := os.MkdirTemp("", "conduit-door-") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &wellConnected{
		id: address.RandomInstanceID(), near: address.RandomInstanceID(), far: address.RandomInstanceID(),
		asked: make(chan *conduitv1.ExplainRequest, 8), waiting: make(chan struct{}, 8), runDir: filepath.Join(dir, "run"),
	}
	if err := os.Mkdir(w.runDir, 0o700); err != nil {
		t.Fatal(err)
	}
	c, _ := config.Load(config.Sources{Environ: []string{"CONDUIT_CFG_NAME=w", "CONDUIT_CFG_RUN_DIR=" + w.runDir}, Machine: config.ThisMachine(false)})
	d, err := openDoor(c)
	if err != nil {
		t.Fatal(err)
	}
	services, err := builtin.New(builtin.Options{
		Instance: w.id, Name: "w", Mode: "worker", Epoch: 1, Started: time.Now(),
		Authorize: func(peer link.Peer, _ *frame.Invoke) (string, conduit.Level, *conduit.Error) {
			return peer.User, peer.Level, nil
		},
		Inventory: w, Lifecycle: w, Peers: w, Links: w, Explainer: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.serve(transport.ServerOptions{Handler: services.Door(builtin.Management, w), SocketPeer: operator("w")}, func(err error) { t.Error(err) })
	t.Cleanup(func() {
		d.shut()
		d.close(context.Background())
	})
	return w
}

func (w *wellConnected) command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return inProcess(t, nil, "", append(args, "--run-dir", w.runDir)...)
}

// Every node that the instance knows is called through it, and only those.
func TestCallAllThroughAnInstance(t *testing.T) {
	w := startWellConnected(t)
	status, stdout, stderr := w.command(t, "call", echoAddress, "Where", "--all")
	for node, id := range map[string]address.InstanceID{"w": w.id, "near": w.near} {
		if want := fmt.Sprintf("%s/echo\t%q\n", node, id); !strings.Contains(stdout, want) {
			t.Errorf("standard output lacks %q:\n%s", want, stdout)
		}
	}
	if n := strings.Count(stdout, "\n"); n != 2 || status != exitUnavailable {
		t.Errorf("exit %d, %d lines", status, n)
	}
	for _, want := range []string{
		"3 nodes: 2 answered, 0 failed, 1 not reached\n", "not reached far/echo: there is no link to it (reason=peer_unreachable outcome=not_sent",
		"warning: ws://new:1/cluster/v1 could not be asked: no such host\n", "error: 1 of 3 nodes did not answer; the worst that one said: there is no link to it",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error lacks %q:\n%s", want, stderr)
		}
	}

	one := w.near.String() + strings.TrimPrefix(echoAddress, "*")
	if status, stdout, stderr := w.command(t, "call", one, "Where", "--all"); status != exitDone || stdout != fmt.Sprintf("near/echo\t%q\n", w.near) {
		t.Errorf("one instance: exit %d, %s%s", status, stdout, stderr)
	}
}

func TestLsInstancesShowsPeers(t *testing.T) {
	w := startWellConnected(t)
	status, stdout, stderr := w.command(t, "ls", "instances")
	if status != exitDone {
		t.Fatalf("exit %d, %s", status, stderr)
	}
	lines := strings.Split(stdout, "\n")
	if len(lines) != 6 { // a heading, itself, three others, and nothing behind the last end of line
		t.Fatalf("%d lines:\n%s", len(lines), stdout)
	}
	for i, want := range []string{
		"NAME INSTANCE STATE MODE VERSION UPTIME UNITS CALLS HEARD URL",
		"w " + w.id.String() + " active worker",
		"near " + w.near.String() + " alive, cordoned worker - - 40/50 3 1.5s ago ws://near:1/cluster/v1",
		"far " + w.far.String() + " unreachable (nothing listens there) worker - - 40/50 3 - ws://far:1/cluster/v1",
	} {
		got := strings.ReplaceAll(strings.Join(strings.Fields(lines[i]), " "), "1s ago", "1.5s ago")
		if !strings.HasPrefix(got, want) {
			t.Errorf("line %d: %s, want %s", i, got, want)
		}
	}
	if got := strings.Join(strings.Fields(lines[4]), " "); !strings.HasPrefix(got, "- - unreachable (no such host)") {
		t.Errorf("the last line: %s", got)
	}

	status, stdout, _ = w.command(t, "ls", "instances", "-o", "json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || status != exitDone || len(rows) != 4 {
		t.Fatalf("exit %d, %v: %s", status, err, stdout)
	}
	for key, want := range map[string]any{
		"state": "alive", "cordoned": true, "effective": 38.0, "sent": 9.0, "judged": 7.0, "outstanding": 2.0, "heard_ms": 1500.0, "available": 40.0, "total": 50.0,
	} {
		if rows[1][key] != want {
			t.Errorf("%s is %v, want %v", key, rows[1][key], want)
		}
	}
}

func TestExplainThroughAnInstance(t *testing.T) {
	w := startWellConnected(t)
	w.explains.Store(&conduitv1.ExplainResponse{Chosen: w.near.String(), Reason: "p2c: the reason", Candidates: []*conduitv1.Candidate{
		{Instance: w.near.String(), Name: "near", Url: "ws://near:1", Verdict: "chosen", Effective: 38, Available: 40, Sent: 9, Judged: 7, Outstanding: 2},
		{Instance: w.far.String(), Name: "far", Url: "ws://far:1", Verdict: "full", Effective: 1, Available: 2},
		{Name: "w", Instance: w.id.String(), Verdict: "plugin_starting", Local: true},
		{Url: "ws://gone:1", Verdict: "unreachable", Untold: true},
	}})
	status, stdout, stderr := w.command(t, "explain", echoAddress, "Where", "--units", "5")
	if in := wait(t, w.asked, "the question"); in.GetAddress() != echoAddress || in.GetMethod() != "Where" || in.GetUnits() != 5 {
		t.Errorf("asked %s", in)
	}
	if status != exitDone {
		t.Errorf("exit %d, %s", status, stderr)
	}
	var got []string
	for line := range strings.Lines(stdout) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"chosen near (" + w.near.String() + ")", "because p2c: the reason", "",
		"NAME VERDICT HEALTH EFFECTIVE AVAILABLE SENT JUDGED CALLS URL WHY",
		"near chosen alive 38 40 9 7 2 ws://near:1 -",
		"far full alive 1 2 0 0 0 ws://far:1 1 of 2 units are effective, and the call costs more",
		"w (this) plugin_starting starting 0 0 0 0 0 - the element is not ready",
		"- unreachable unreachable - - - - 0 ws://gone:1 there is no link to it",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	w.explains.Store(&conduitv1.ExplainResponse{Reason: "all are full"})
	status, stdout, stderr = w.command(t, "explain", echoAddress, "Where", "-o", "json")
	if status != exitUnavailable || !strings.Contains(stdout, `"reason":"all are full","candidates":[]}`) || !strings.Contains(stderr, "the call could go nowhere: all are full") {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
}

// What is deployed in the cluster is listed of each instance once, and an address of any
// instance is described wherever it is hosted.
func TestLsCluster(t *testing.T) {
	w := startWellConnected(t)
	status, stdout, stderr := w.command(t, "ls", "services", "--cluster")
	want := strings.ReplaceAll("INSTANCE ADDRESS METHODS\nw @ 1\nnear @ 1\nfar @ 1\n", "@", echoAddress)
	if status != exitDone || squeezed(stdout) != want {
		t.Errorf("exit %d, %s%s\nwant %s", status, stdout, stderr, want)
	}
	if status, stdout, stderr = w.command(t, "ls", "services"); status != exitDone || strings.Contains(stdout, "near") {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
	// What a peer has said is as old as it is.
	status, stdout, stderr = w.command(t, "ls", "elements", "--cluster")
	if lines := strings.Split(squeezed(stdout), "\n"); status != exitDone || len(lines) < 4 || !strings.HasPrefix(lines[1], "w echo echo - degraded 0s ") || !strings.HasPrefix(lines[2], "near echo echo - degraded 1m0s ") {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
	if status, _, stderr = w.command(t, "ls", "links", "--cluster"); status != exitUsage || !strings.Contains(stderr, "--cluster goes with") {
		t.Errorf("exit %d, %s", status, stderr)
	}
	w.hostsNothing.Store(true)
	status, stdout, stderr = w.command(t, "describe", echoAddress)
	if status != exitDone || !strings.Contains(squeezed(stdout), "instance near ("+w.near.String()+")") {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
	if status, _, stderr = w.command(t, "describe", strings.Replace(echoAddress, "echo/echo", "echo/other", 1)); status != exitUnavailable || !strings.Contains(stderr, "deployment_not_found") {
		t.Errorf("exit %d, %s", status, stderr)
	}
}

func TestLsLinksShowsPeers(t *testing.T) {
	w := startWellConnected(t)
	status, stdout, stderr := w.command(t, "ls", "links")
	if want := "\npeer " + w.near.String() + " near:1 2 0 0 0 1.5ms 3s 0 5\n"; status != exitDone || !strings.Contains(squeezed(stdout), want) {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
}

// An element shows what it holds, and all of why it is not well; a link shows what it
// waits for.
func TestLsElementsShowsClaimsAndWhy(t *testing.T) {
	w := startWellConnected(t)
	status, stdout, stderr := w.command(t, "ls", "elements")
	if want := "INSTANCE DEPLOYMENT ELEMENT VERSION STATE SINCE CALLS CLAIMS RESTARTS PID WHY\nw echo echo - degraded 0s 2 3 0 - half of it is gone; the disk is slow, and was slow the day before; the key is old\n"; status != exitDone || squeezed(stdout) != want {
		t.Errorf("exit %d, %s%s", status, stdout, stderr)
	}
	if status, stdout, _ = w.command(t, "ls", "elements", "-o", "json"); status != exitDone || !strings.Contains(stdout, `"in_flight":2,"claims":3`) {
		t.Errorf("exit %d, %s", status, stdout)
	}
	if status, stdout, _ = w.command(t, "ls", "links", "-o", "json"); status != exitDone || !strings.Contains(stdout, `"queued":0,"overdue":5`) {
		t.Errorf("exit %d, %s", status, stdout)
	}
}

// squeezed is a table with one space between cells.
func squeezed(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// Interrupted, or too slow, the call of all nodes ends as any call does, with a
// report.
func TestCallAllEndsEarly(t *testing.T) {
	w := startWellConnected(t)
	status, _, stderr := w.command(t, "call", w.id.String()+strings.TrimPrefix(echoAddress, "*"), "Slow", "--all", "--timeout", "2s") // a busy machine takes some of it to connect
	if status != exitDeadline || !strings.Contains(stderr, "1 node: 0 answered, ") {
		t.Errorf("exit %d, %s", status, stderr)
	}

	cmd := program(t, "call", w.id.String()+strings.TrimPrefix(echoAddress, "*"), "Wait", "--all", "--run-dir", w.runDir)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait(t, w.waiting, "the call")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted || !strings.Contains(errs.String(), "1 node: 0 answered, ") {
		t.Errorf("exit %d, %s", got, &errs)
	}
}

// A watch goes on until it is interrupted, and through the end of who it watches.
func TestLsWatch(t *testing.T) {
	w := startWellConnected(t)
	cmd := program(t, "ls", "deployments", "--watch", "--interval", "100ms", "-o", "json", "--run-dir", w.runDir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(stdout)
	for n := range 3 {
		if !in.Scan() || !strings.HasPrefix(in.Text(), `[{"instance":"w","id":"0101`) {
			t.Fatalf("line %d: %q, %v; %s", n, in.Text(), in.Err(), &stderr)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for in.Scan() { // what was on its way
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted || stderr.String() != "" {
		t.Errorf("exit %d, stderr: %s", got, &stderr)
	}
	for _, interval := range []string{"1", "1ms"} {
		if status, _, stderr := w.command(t, "ls", "links", "--interval", interval); status != exitUsage || !strings.Contains(stderr, "--interval: ") {
			t.Errorf("--interval %s: exit %d, %s", interval, status, stderr)
		}
	}
}
