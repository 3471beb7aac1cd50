package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// unitsFixture is what the fixture's element does with units.
type unitsFixture struct {
	mu       sync.Mutex
	claims   []conduit.Exchange
	released chan struct{} // closed by Release
	now, top int64         // units that are held, as the element itself counts them
}

func (u *unitsFixture) count(n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now += n
	u.top = max(u.top, u.now)
}

// release returns what Release closes.
func (u *unitsFixture) release() chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.released == nil {
		u.released = make(chan struct{})
	}
	return u.released
}

func (u *unitsFixture) serve(ctx context.Context, s *link.ServerCall, method, data string) ([]byte, error) {
	switch method {
	case "Stuck": // whatever becomes of its call
		<-u.release()
	case "Release":
		close(u.release())
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, x := range u.claims {
			if err := x.CloseSend(); err != nil { // of those that are open
				return nil, err
			}
			if data == "cancel" {
				x.Cancel(context.Canceled)
			}
		}
	case "Peak":
		u.mu.Lock()
		defer u.mu.Unlock()
		return strconv.AppendInt(nil, u.top, 10), nil
	case "Hold":
		return nil, u.hold(ctx, s, data)
	default: // "<units> <how>": parent, orphan, open; "go" waits for one more message
		var n uint64
		var how string
		if _, err := fmt.Sscan(data, &n, &how); err != nil {
			return nil, err
		}
		if how == "go" {
			if err := s.Send(ctx, conduit.Message{ContentType: conduit.ContentBytes, Data: []byte("began")}); err != nil {
				return nil, err
			}
			if _, err := s.Recv(ctx); err != nil {
				return nil, err
			}
		}
		x, available, err := claim(ctx, s, n, how)
		if err != nil {
			return nil, err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.claims = append(u.claims, x)
		return strconv.AppendUint(nil, available, 10), nil
	}
	return nil, nil
}

// hold counts the units of its call and of a claim that it makes while it has them:
// "<units of the call> <units to claim>".
func (u *unitsFixture) hold(ctx context.Context, s *link.ServerCall, data string) error {
	var units, more int64
	if _, err := fmt.Sscan(data, &units, &more); err != nil {
		return err
	}
	u.count(units)
	defer func() { u.count(-units) }()
	runtime.Gosched()
	if more == 0 {
		return nil
	}
	x, _, err := claim(ctx, s, uint64(more), "parent")
	if err != nil {
		return err
	}
	over := min(units, more)
	u.count(more - over)
	units -= over
	runtime.Gosched()
	u.count(-more)
	x.Cancel(context.Canceled)
	return nil
}

// claim is the element's side of a claim, frame by frame.
func claim(ctx context.Context, s *link.ServerCall, n uint64, how string) (conduit.Exchange, uint64, error) {
	request, err := proto.Marshal(&conduitv1.ClaimRequest{Units: n})
	if err != nil {
		return nil, 0, err
	}
	in := &conduit.Invocation{
		Method: pluginlink.ClaimMethod, ContentType: conduit.ContentProto, Request: request, HasRequest: true, Last: how != "open", Background: true, Parent: s.ID(),
	}
	if how == "orphan" {
		in.Parent = 0
	}
	x := s.Conn().Invoke(context.WithoutCancel(ctx), link.NewRoute(address.MustParse(pluginlink.HostAddress)), in)
	m, err := x.Recv(ctx)
	if err != nil {
		return nil, 0, err
	}
	var g conduitv1.ClaimGranted
	if err := proto.Unmarshal(m.Data, &g); err != nil || g.GetUnits() != n {
		return nil, 0, fmt.Errorf("granted %d of %d units: %w", g.GetUnits(), n, err)
	}
	return x, g.GetAvailable(), nil
}

// untilBudget waits until the budget is as wanted.
func untilBudget(t *testing.T, b *budget.Budget, what string, ok func(budget.Snapshot) bool) {
	t.Helper()
	// Not within the rig's context, which ends before the test's cleanups run.
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	changed, stop := b.Subscribe()
	defer stop()
	for {
		if ok(b.Snapshot()) {
			return
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond): // a claim that takes over changes nothing that watchers are told of
		case <-late.C:
			t.Fatalf("never came: %s; it is %+v", what, b.Snapshot())
		}
	}
}

func idleBudget(s budget.Snapshot) bool {
	return s.Available == s.Total && s.Reservations == 0 && s.Claims == 0
}

func held(reserved, claimed int64) func(budget.Snapshot) bool {
	return func(s budget.Snapshot) bool { return s.Reserved == reserved && s.Claimed == claimed }
}

func unitsRig(t *testing.T, total int64, deployments ...string) (*rig, *budget.Budget) {
	t.Helper()
	b := budget.New(total)
	r := newRigWith(t, func(o *Options) { o.Budget = b }, deployments...)
	t.Cleanup(func() { // before the rig's own: the links still live
		untilBudget(t, b, "a budget of which nothing is held", idleBudget)
	})
	r.ready()
	return r, b
}

// began starts a call and returns when its handler runs.
func (r *rig) began(method, data string) conduit.Exchange {
	r.t.Helper()
	x := invoke(r.ctx, r.client, echo, method, data)
	if m, err := x.Recv(r.ctx); err != nil || string(m.Data) != "began" {
		r.t.Fatalf("%s: %q, %v", method, m.Data, err)
	}
	return x
}

// TestUnits: what a call costs is reserved before its work starts, and given back when
// that has ended.
func TestUnits(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	x := r.began("Heavy", "")
	if s := b.Snapshot(); s.Reserved != 10 || s.Reservations != 1 {
		t.Errorf("a call of 10 units is under way: %+v", s)
	}
	_, err := r.call(echo, "Heavy", "")
	e := wantReason(t, err, conduit.ReasonNoCapacity, conduit.Refused)
	if e.Code != conduit.ResourceExhausted || !e.Retryable || e.Details["available"] != "5" || e.Details["total"] != "15" || e.Address == "" || e.Method != "Heavy" {
		t.Errorf("got %+v", e)
	}
	// The larger of the method's units and the caller's counts.
	units := func(method string, n uint32) error {
		_, err := r.client.Invoke(r.ctx, link.NewRoute(address.MustParse(echo)), &conduit.Invocation{
			Method: method, ContentType: conduit.ContentBytes, HasRequest: true, Last: true, Units: n,
		}).Recv(r.ctx)
		return err
	}
	if err := units("Echo", 5); err != nil {
		t.Errorf("5 of 5 units: %v", err)
	}
	wantReason(t, units("Echo", 6), conduit.ReasonNoCapacity, conduit.Refused)
	wantReason(t, units("Heavy", 1), conduit.ReasonNoCapacity, conduit.Refused)
	if n := r.elements()["echo"].Calls; n != 1 {
		t.Errorf("%d calls are counted; refused ones are none", n)
	}

	r.h.Cordon(true)
	if !r.h.Cordoned() {
		t.Error("not cordoned")
	}
	_, err = r.call(echo, "Heavy", "")
	if e := wantReason(t, err, conduit.ReasonCordoned, conduit.Refused); !e.Retryable {
		t.Errorf("got %+v", e)
	}
	if _, err := r.call(echo, "Echo", ""); err != nil {
		t.Errorf("a call without units on a cordoned host: %v", err)
	}
	r.h.Cordon(false)

	x.Cancel(context.Canceled)
	untilBudget(t, b, "what the cancelled call gives back", idleBudget)

	r.began("Heavy", "")
	_, err = r.call(echo, "Exit", "")
	wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown)
	untilBudget(t, b, "what the calls of a dead process give back", idleBudget)
}

// witness is a link's reporter that notes how units came to be judged.
type witness struct {
	*budget.Ledger

	b              *budget.Budget
	mu             sync.Mutex
	judged, others []int64
}

func (w *witness) Judge(invoke, want int64) (*budget.Reservation, *conduit.Error) {
	w.mu.Lock()
	w.judged = append(w.judged, invoke)
	w.mu.Unlock()
	return w.Ledger.Judge(invoke, want)
}

func (w *witness) Refuse(invoke int64) {
	w.mu.Lock()
	w.others = append(w.others, invoke)
	w.mu.Unlock()
	w.Ledger.Refuse(invoke)
}

func (w *witness) Version() uint64 { return uint64(w.b.Snapshot().Reserved) }

func (w *witness) Status() link.Status {
	s := w.Ledger.Status()
	return link.Status{Available: s.Available, Total: s.Total, Judged: s.Judged}
}

func (w *witness) took() (judged, others []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	judged, others = w.judged, w.others
	w.judged, w.others = nil, nil
	return judged, others
}

// TestUnitsOfParkedCall: a call that was parked, as while its session is asked for, is
// judged by its link's reporter in the moment that its units are reserved, and once. A
// reporter that heard of it later would tell the caller of room that is taken twice.
func TestUnitsOfParkedCall(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	w := &witness{Ledger: b.Ledger(), b: b}
	parked := make(chan struct{})
	handler := parking(func(in *link.Incoming) {
		p := in.Park()
		go func() { // as who waits for a store
			defer close(parked)
			if judged, others := w.took(); len(judged)+len(others) != 0 {
				t.Errorf("judged before it was decided about: %v, %v", judged, others)
			}
			if err := r.h.Take(Origin{Principal: Principal{User: "ada", Level: conduit.User}}, p, p.Invoke()); err != nil {
				p.Refuse(err)
			}
		}()
	})
	c, s := link.Pipe(64)
	server := link.New(s, link.Options{Handler: handler, Reporter: w, Peer: link.Peer{Name: "client", User: "ada", Level: conduit.User}})
	client := link.New(c, link.Options{Dialer: true, Peer: link.Peer{Name: "host"}})
	t.Cleanup(func() {
		client.Close(link.CloseDone, "")
		<-client.Done()
		<-server.Done()
	})
	if err := client.Ready(r.ctx); err != nil {
		t.Fatal(err)
	}
	call := func(units uint32) error {
		parked = make(chan struct{})
		_, err := client.Invoke(r.ctx, link.NewRoute(address.MustParse(echo)), &conduit.Invocation{
			Method: "Echo", ContentType: conduit.ContentBytes, HasRequest: true, Last: true, Units: units,
		}).Recv(r.ctx)
		<-parked
		return err
	}
	if err := call(5); err != nil {
		t.Fatal(err)
	}
	if judged, others := w.took(); !slices.Equal(judged, []int64{5}) || len(others) != 0 {
		t.Errorf("judged %v, otherwise %v", judged, others)
	}
	wantReason(t, call(16), conduit.ReasonNoCapacity, conduit.Refused)
	if judged, others := w.took(); !slices.Equal(judged, []int64{16}) || len(others) != 0 {
		t.Errorf("refused: judged %v, otherwise %v", judged, others)
	}
	untilBudget(t, b, "what the call gives back", idleBudget)
	if s := w.Ledger.Status(); s.Judged != 21 || s.Available != 15 {
		t.Errorf("%+v", s)
	}
}

// parking is a link.Handler.
type parking func(*link.Incoming)

// Handle implements link.Handler.
func (p parking) Handle(in *link.Incoming) { p(in) }

// TestUnitsOutlastDeadline: a handler that goes on holds its units, whatever its
// caller thinks of it.
func TestUnitsOutlastDeadline(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	short, cancel := context.WithTimeout(r.ctx, 200*time.Millisecond)
	defer cancel()
	_, err := invoke(short, r.client, echo, "Stuck", "").Recv(short)
	wantReason(t, err, conduit.ReasonDeadline, conduit.OutcomeUnknown)
	_, err = r.call(echo, "Heavy", "")
	wantReason(t, err, conduit.ReasonNoCapacity, conduit.Refused)
	if s := b.Snapshot(); s.Reserved != 10 {
		t.Errorf("the handler still works: %+v", s)
	}
	if _, err := r.call(echo, "Release", ""); err != nil {
		t.Fatal(err)
	}
}

// TestUnitsOfLostLink: a link that is lost does not end the process, and what its
// calls have reserved is held until the process is gone.
func TestUnitsOfLostLink(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	x := r.began("Heavy", "")
	pid := r.elements()["echo"].Pid
	stop(t, pid) // so that it cannot leave by itself when it sees the link end
	r.h.Links()[0].Conn.Close(link.CloseBug, "the test says so")
	_, err := x.Recv(r.ctx)
	wantReason(t, err, conduit.ReasonPluginLost, conduit.OutcomeUnknown)
	if s := b.Snapshot(); s.Reserved != 10 && syscall.Kill(pid, 0) == nil {
		t.Errorf("the process is there: %+v", s)
	}
	untilBudget(t, b, "the end of the process", idleBudget)
	r.until("another process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Pid != pid })
}

// TestClaim: a claim takes over what its call has reserved, outlives the call, and is
// given back once.
func TestClaim(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	available, err := r.call(echo, "HeavyClaim", "12 parent")
	if err != nil || available != "3" {
		t.Fatalf("available after the grant: %q, %v", available, err)
	}
	untilBudget(t, b, "the end of the call, and the claim alone", held(0, 12))
	if s := r.elements()["echo"]; s.Claims != 1 || s.Calls != 0 {
		t.Errorf("%d claims, %d calls", s.Claims, s.Calls)
	}
	_, err = r.call(echo, "Claim", "4 parent")
	e := wantReason(t, err, conduit.ReasonNoCapacity, conduit.Refused)
	if e.Details["available"] != "3" {
		t.Errorf("got %+v", e)
	}
	if _, err := r.call(echo, "Claim", "3 orphan"); err != nil {
		t.Errorf("a claim that is made in no call: %v", err)
	}
	_, err = r.call(echo, "Claim", "0 orphan")
	wantReason(t, err, conduit.ReasonBadContent, conduit.Refused)
	if _, err := r.call(echo, "Release", "cancel"); err != nil {
		t.Fatal(err)
	}
}

// TestClaimClosed: an element that leaves its request open ends the claim by closing it.
func TestClaimClosed(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	for range 3 {
		if _, err := r.call(echo, "Claim", "5 open"); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.Snapshot(); s.Claimed != 15 || s.Claims != 3 {
		t.Errorf("%+v", s)
	}
	if _, err := r.call(echo, "Release", "close"); err != nil {
		t.Fatal(err)
	}
}

// TestClaimCordoned: what the call has reserved moves also then, and nothing else.
func TestClaimCordoned(t *testing.T) {
	t.Run("instance", func(t *testing.T) {
		testClaimCordoned(t, func(r *rig, on bool) { r.h.Cordon(on) })
	})
	t.Run("deployment", func(t *testing.T) {
		testClaimCordoned(t, func(r *rig, on bool) {
			if _, err := r.h.CordonDeployment("echo", on); err != nil {
				t.Error(err)
			}
		})
	})
}

func testClaimCordoned(t *testing.T, cordon func(*rig, bool)) {
	t.Helper()
	r, b := unitsRig(t, 25, "echo")
	claimed := func(data string) error {
		x := r.client.Invoke(r.ctx, link.NewRoute(address.MustParse(echo)), &conduit.Invocation{
			Method: "HeavyClaim", ContentType: conduit.ContentBytes, Request: []byte(data), HasRequest: true, Streaming: true,
		})
		if _, err := x.Recv(r.ctx); err != nil {
			t.Fatal(err)
		}
		cordon(r, true)
		defer cordon(r, false)
		if err := x.Send(r.ctx, []byte("go")); err != nil {
			t.Fatal(err)
		}
		_, err := x.Recv(r.ctx)
		if err == nil {
			_, err = x.Recv(r.ctx)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	wantReason(t, claimed("11 go"), conduit.ReasonCordoned, conduit.Executed)
	if err := claimed("10 go"); err != nil {
		t.Errorf("as much as was reserved: %v", err)
	}
	untilBudget(t, b, "the claim alone", held(0, 10))
	if _, err := r.call(echo, "Release", "cancel"); err != nil {
		t.Fatal(err)
	}
}

// TestClaimsAreInNoLimit of calls, neither of the link's nor of the element's.
func TestClaimsAreInNoLimit(t *testing.T) {
	b := budget.New(15)
	r := newRigWith(t, func(o *Options) { o.Budget, o.MaxCalls, o.Concurrency = b, 1, 1 }, "echo", "other")
	r.ready()
	for range 3 {
		if _, err := r.call(echo, "Claim", "5 parent"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := r.call(echo, "Call", "self *://other/other/test.Fixture Who"); err != nil || got != "other element:echo user via echo/echo" {
		t.Errorf("beside three claims: %q, %v", got, err)
	}
	if _, err := r.call(echo, "Release", "cancel"); err != nil {
		t.Fatal(err)
	}
	untilBudget(t, b, "what the claims give back", idleBudget)
}

// TestClaimsOfDeadProcess: a kill gives back what its claims held.
func TestClaimsOfDeadProcess(t *testing.T) {
	r, b := unitsRig(t, 15, "echo")
	if _, err := r.call(echo, "Claim", "9 parent"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.elements()["echo"].Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	untilBudget(t, b, "what the dead process held", idleBudget)
	r.until("another process", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Generation == 2 })
}

// TestClaimsAtTheEnd: a removed element and a host that stops wait for claims until
// the drain's time is over, and take them then.
func TestClaimsAtTheEnd(t *testing.T) {
	b := budget.New(15)
	r := newRigWith(t, func(o *Options) { o.Budget, o.DrainTimeout = b, 500*time.Millisecond }, "echo", "other")
	r.ready()
	other := "*://other/other/test.Fixture"
	for _, addr := range []string{echo, other} {
		if _, err := r.call(addr, "Claim", "5 parent"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "other")); err != nil {
		t.Fatal(err)
	}
	r.until("the element waits for its claim", func(m map[string]ElementStatus) bool {
		return m["other"].State == Draining && m["other"].Claims == 1
	})
	r.until("its end", func(m map[string]ElementStatus) bool { _, ok := m["other"]; return !ok })
	if s := b.Snapshot(); s.Claimed != 5 {
		t.Errorf("after the end of one element: %+v", s)
	}

	// A host that stops waits for the claim, and ends as soon as it is given back.
	short, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	if err := r.h.Drain(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "holds 1 claims") {
		t.Errorf("a drain with a claim: %v", err)
	}
	if !r.h.Cordoned() {
		t.Error("a host that drains gives new units")
	}
	stop, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	if err := r.h.Stop(stop); err != nil {
		t.Fatal(err)
	}
	if s := b.Snapshot(); !idleBudget(s) {
		t.Errorf("after the stop: %+v", s)
	}
}

// TestNeverMoreThanTheTotal: however calls and claims come together, what the element
// counts itself, from before a grant is used to before it is given back, never
// exceeds the total.
func TestNeverMoreThanTheTotal(t *testing.T) {
	const total = 20
	r, _ := unitsRig(t, total, "echo")
	route := link.NewRoute(address.MustParse(echo))
	var mu sync.Mutex
	outcomes := map[string]int{}
	var wg sync.WaitGroup
	for g := range uint64(16) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 1))
			for range 60 {
				units, more := rnd.Uint32N(8), rnd.Uint32N(8)
				_, err := r.client.Invoke(r.ctx, route, &conduit.Invocation{
					Method: "Hold", ContentType: conduit.ContentBytes, HasRequest: true, Last: true, Units: units,
					Request: fmt.Appendf(nil, "%d %d", units, more),
				}).Recv(r.ctx)
				key := "served"
				if e, ok := errors.AsType[*conduit.Error](err); ok {
					key = e.Reason + " " + e.Outcome.String()
				} else if err != nil && !errors.Is(err, io.EOF) {
					key = err.Error()
				}
				mu.Lock()
				outcomes[key]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	peak, err := r.call(echo, "Peak", "")
	if n, _ := strconv.Atoi(peak); err != nil || n > total || n < total/2 {
		t.Errorf("the element held %s of %d units at once: %v", peak, total, err)
	}
	for key := range outcomes {
		if !slices.Contains([]string{"served", "no_capacity refused"}, key) {
			t.Errorf("a call ended with %s", key)
		}
	}
	if outcomes["served"] == 0 || outcomes["no_capacity refused"] == 0 {
		t.Errorf("the outcomes are %v: too little was asked for, or too much", outcomes)
	}
}
