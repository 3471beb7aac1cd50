package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// start runs echo and bounds the test's calls.
func start(t *testing.T, opts ...plugintest.Option) (context.Context, *plugintest.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx, plugintest.Start(t, element(), opts...)
}

// wantError checks the error of a call.
func wantError(t *testing.T, err error, code conduit.Code, reason string, outcome conduit.Outcome) *conduit.Error {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		t.Fatalf("the error is %v, want a *conduit.Error of %s/%s", err, code, reason)
	}
	if e.Code != code || e.Reason != reason || e.Outcome != outcome {
		t.Errorf("the error is %s/%s %s (%s), want %s/%s %s", e.Code, e.Reason, e.Outcome, e.Message, code, reason, outcome)
	}
	if e.Method == "" || e.Address == "" {
		t.Errorf("the error names no method or no address: %+v", e)
	}
	return e
}

func TestEventsArePassedOn(t *testing.T) {
	ctx, c := start(t, plugintest.Deployment("mine"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var heard []string
	for e, err := range conduit.Stream[eventItem](ctx, c.Service(serviceName), "Events", pluginapi.EventDeploymentLoaded) {
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, fmt.Sprintf("%s %s %d %v", e.Name, e.Deployment, e.Generation, e.Present))
		if len(heard) == 2 {
			break
		}
		c.Tell(pluginapi.Event{Name: pluginapi.EventDeploymentLoaded, Deployment: "new"})
	}
	if want := []string{"deployment_loaded mine 1 true", "deployment_loaded new 1 false"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	_, err := conduit.Call[eventItem](ctx, c.As("", conduit.Anonymous).Service(serviceName), "Events", "")
	wantError(t, err, conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused)
}

func TestEnvShowsNoSecret(t *testing.T) {
	ctx, c := start(t, plugintest.SensitiveAttributes(map[string]string{"password": "hunter2", "warning": "x"}))
	env, err := conduit.Call[envReply](ctx, c.Service(serviceName), "Env", nil)
	want := map[string]string{"password": "(redacted)", "warning": "(redacted)", "motto": "make it so"}
	if err != nil || !maps.Equal(env.Attributes, want) {
		t.Errorf("it shows %v, %v, want %v", env.Attributes, err, want)
	}
}

func TestEchoGivesBytesBack(t *testing.T) {
	ctx, c := start(t)
	for _, size := range []int{0, 1, 4096, 1 << 20, 10 << 20} {
		in := bytes.Repeat([]byte{7}, size)
		out, err := conduit.Call[[]byte](ctx, c.Service(serviceName), "Echo", in)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if !bytes.Equal(in, out) {
			t.Errorf("%d bytes went up, %d others came down", len(in), len(out))
		}
	}
	_, err := conduit.Call[[]byte](ctx, c.Service(serviceName), "Echo", make([]byte, 10<<20+1))
	wantError(t, err, conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.NotSent)
}

func TestBigAnswerAboveTheCapFailsItsCallAlone(t *testing.T) {
	ctx, c := start(t)
	_, err := conduit.Call[[]byte](ctx, c.Service(serviceName), "Big", bigRequest{Bytes: 10<<20 + 1})
	wantError(t, err, conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.Executed)
	out, err := conduit.Call[[]byte](ctx, c.Service(serviceName), "Big", bigRequest{Bytes: 3 << 20})
	if err != nil || len(out) != 3<<20 {
		t.Errorf("the next call gives %d bytes, %v", len(out), err)
	}
}

func TestEchoTakesAnyContentTypeAsBytes(t *testing.T) {
	ctx, c := start(t)
	out, err := conduit.Call[conduit.Message](ctx, c.Service(serviceName), "Echo", json.RawMessage(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if string(out.Data) != `{"a":1}` || out.ContentType != conduit.ContentBytes {
		t.Errorf("got %s %s", out.ContentType, out.Data)
	}
}

func TestJSON(t *testing.T) {
	ctx, c := start(t)
	s := c.Service(serviceName)
	if out, err := conduit.Call[map[string]int](ctx, s, "EchoJSON", map[string]int{"a": 1}); err != nil || out["a"] != 1 {
		t.Errorf("EchoJSON gives %v, %v", out, err)
	}
	if out, err := conduit.Call[string](ctx, s, "Upper", "äb"); err != nil || out != "ÄB" {
		t.Errorf("Upper gives %q, %v", out, err)
	}
	if out, err := conduit.Call[string](ctx, c.Service(serviceName+"#loud"), "Upper", "hey"); err != nil || out != "HEY!" {
		t.Errorf("#loud gives %q, %v", out, err)
	}
	_, err := conduit.Call[string](ctx, s, "Upper", 5)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused)
	_, err = conduit.Call[string](ctx, s, "Upper", []byte("raw"))
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused)
	_, err = conduit.Call[string](ctx, s, "Upper", nil)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Refused)
	_, err = conduit.Call[int](ctx, s, "Upper", "text")
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	_, err = conduit.Call[string](ctx, s, "Nothing", nil)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	if _, err := conduit.Call[struct{}](ctx, s, "Nothing", nil); err != nil {
		t.Error(err)
	}
	if _, err := conduit.Call[struct{}](ctx, s, "Nothing", map[string]int{}); err != nil {
		t.Errorf("an empty object for nothing: %v", err)
	}
	if _, err := conduit.Call[struct{}](ctx, s, "Upper", "a value that nobody wants"); err != nil {
		t.Error(err)
	}
}

func TestStreams(t *testing.T) {
	ctx, c := start(t)
	s := c.Service(serviceName)
	var got []int
	for n, err := range conduit.Stream[int](ctx, s, "Count", 1000) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
	}
	if len(got) != 1000 || got[0] != 0 || got[999] != 999 || !slices.IsSorted(got) {
		t.Errorf("got %d items", len(got))
	}
	for n, err := range conduit.Stream[int](ctx, s, "Count", 0) {
		t.Errorf("an empty stream yields %d, %v", n, err)
	}
	total := 0
	for data, err := range conduit.Stream[[]byte](ctx, s, "BigItems", bigRequest{Bytes: 100_000, Items: 50}) {
		if err != nil {
			t.Fatal(err)
		}
		total += len(data)
	}
	if total != 5_000_000 {
		t.Errorf("got %d bytes", total)
	}
	_, err := conduit.Call[int](ctx, s, "Count", 3)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonWrongShape, conduit.OutcomeUnknown)
}

// TestLeavingALoopEndsTheHandler: the element's end of the test fails if the
// handler ran on.
func TestLeavingALoopEndsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := start(t)
		for n, err := range conduit.Stream[int](ctx, c.Service(serviceName), "CountSlow", countSlowRequest{N: 1 << 30, IntervalMS: 10}) {
			if err != nil {
				t.Fatal(err)
			}
			if n == 3 {
				break
			}
		}
		for n, err := range conduit.Stream[int](ctx, c.Service(serviceName), "Count", 1<<40) {
			if err != nil {
				t.Fatal(err)
			}
			if n == 3 {
				break
			}
		}
	})
}

func TestPartsComeInOrderBeforeTheReturn(t *testing.T) {
	ctx, c := start(t)
	var got []part
	take := func(m conduit.Message) {
		p, err := conduit.Decode[part](m)
		if err != nil {
			t.Error(err)
		}
		got = append(got, p)
	}
	n, err := conduit.Call[int](ctx, c.Service(serviceName), "Parts", 3, conduit.OnPart(1, take), conduit.OnPart(2, take))
	if err != nil || n != 3 {
		t.Fatal(n, err)
	}
	want := []part{{1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n, err := conduit.Call[int](ctx, c.Service(serviceName), "Parts", 3); err != nil || n != 3 {
		t.Errorf("without handlers: %d, %v", n, err)
	}
}

func TestUploads(t *testing.T) {
	ctx, c := start(t)
	s := c.Service(serviceName)
	if n, err := conduit.Upload[int](ctx, s, "Sum", slices.Values([]int{1, 2, 3})); err != nil || n != 6 {
		t.Errorf("the sum is %d, %v", n, err)
	}
	if n, err := conduit.Upload[int](ctx, s, "Sum", slices.Values([]int(nil))); err != nil || n != 0 {
		t.Errorf("the sum of nothing is %d, %v", n, err)
	}
	items := func(yield func([]byte) bool) {
		for range 40 {
			if !yield(make([]byte, 100_000)) {
				return
			}
		}
	}
	if r, err := conduit.Upload[sizeReply](ctx, s, "Size", items); err != nil || r.Items != 40 || r.Bytes != 4_000_000 {
		t.Errorf("the size is %+v, %v", r, err)
	}
	// An item of another type reaches the handler as an error, which it returns.
	_, err := conduit.Upload[int](ctx, s, "Sum", slices.Values([]string{"one"}))
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	// A unary method takes one message.
	_, err = conduit.Upload[string](ctx, s, "Upper", slices.Values([]string{"one", "two"}))
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonWrongShape, conduit.Refused)
	if out, err := conduit.Upload[string](ctx, s, "Upper", slices.Values([]string{"one"})); err != nil || out != "ONE" {
		t.Errorf("Upper of an upload of one gives %q, %v", out, err)
	}
	// What is too large ends the call here.
	_, err = conduit.Upload[sizeReply](ctx, s, "Size", slices.Values([][]byte{make([]byte, 11<<20)}))
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonPayloadTooLarge {
		t.Errorf("an item above the cap: %v", err)
	}
}

// TestUploadEndsWhenTheElementRefuses: the sequence never ends by itself.
func TestUploadEndsWhenTheElementRefuses(t *testing.T) {
	ctx, c := start(t)
	forever := func(yield func([]byte) bool) {
		for yield(make([]byte, 1000)) {
		}
	}
	_, err := conduit.Upload[struct{}](ctx, c.Service(serviceName), "Missing", forever)
	wantError(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused)
}

func TestChat(t *testing.T) {
	ctx, c := start(t)
	d := conduit.Duplex[string, string](ctx, c.Service(serviceName), "Chat")
	for _, text := range []string{"a", "b", "c"} {
		if err := d.Send(text); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Recv(); err != nil || got != text {
			t.Fatalf("got %q, %v, want %q", got, err, text)
		}
	}
	if err := d.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.Recv(); err != io.EOF {
			t.Errorf("the end is %v, want io.EOF, and again", err)
		}
	}
	if err := d.Send("late"); err == nil {
		t.Error("a message after the end was taken")
	}

	left := conduit.Duplex[string, string](ctx, c.Service(serviceName), "Chat")
	left.Close()
	_, err := left.Recv()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a closed call ends with %v", err)
	}
}

func TestErrors(t *testing.T) {
	ctx, c := start(t)
	s := c.Service(serviceName)

	_, err := conduit.Call[int](ctx, s, "Fail", failRequest{Code: conduit.AlreadyExists, Reason: "taken", Message: "it is there", Details: map[string]string{"by": "Ada"}})
	e := wantError(t, err, conduit.AlreadyExists, "taken", conduit.Executed)
	if e.Message != "it is there" || e.Details["by"] != "Ada" {
		t.Errorf("the error came as %+v", e)
	}
	_, err = conduit.Call[int](ctx, s, "RefuseMe", refuseRequest{Reason: conduit.ReasonNoCapacity, RetryAfterMS: 1500})
	e = wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
	if !e.Retryable || e.RetryAfter != 1500*time.Millisecond {
		t.Errorf("the refusal came as %+v", e)
	}

	// After an item, neither is a refusal; the items come first.
	for method, request := range map[string]any{
		"Fail":     failRequest{Code: conduit.Aborted, Reason: "why", After: 2},
		"RefuseMe": refuseRequest{Reason: "why", After: 2},
	} {
		items, failed := 0, 0
		for _, err := range conduit.Stream[int](ctx, s, method, request) {
			if err == nil {
				items++
				continue
			}
			failed++
			if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != "why" || e.Outcome != conduit.Executed || e.Retryable {
				t.Errorf("%s after items: %#v", method, err)
			}
		}
		if items != 2 || failed != 1 {
			t.Errorf("%s: %d items and %d errors, want 2 and 1", method, items, failed)
		}
	}

	_, err = conduit.Call[struct{}](ctx, s, "Panic", "the secret")
	e = wantError(t, err, conduit.Internal, conduit.ReasonPanic, conduit.Executed)
	if strings.Contains(e.Message, "secret") {
		t.Errorf("the panic's text reached the caller: %s", e.Message)
	}
	if out, err := conduit.Call[string](ctx, s, "Upper", "alive"); err != nil || out != "ALIVE" {
		t.Errorf("after a panic: %q, %v", out, err)
	}
}

func TestDefaultDeny(t *testing.T) {
	ctx, c := start(t)
	nobody, user, boss := c.As("", conduit.Anonymous), c.As("ada", conduit.User), c.As("root", conduit.Superuser)

	_, err := conduit.Call[struct{}](ctx, boss.Service(serviceName), "Hidden", nil)
	wantError(t, err, conduit.PermissionDenied, conduit.ReasonNotRemote, conduit.Refused)
	_, err = conduit.Call[struct{}](ctx, boss.Service(serviceName), "Missing", nil)
	wantError(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused)
	_, err = conduit.Call[struct{}](ctx, boss.Service("no.Service"), "Echo", nil)
	wantError(t, err, conduit.NotFound, conduit.ReasonServiceNotFound, conduit.Refused)
	_, err = conduit.Call[struct{}](ctx, boss.At("nonsense"), "Echo", nil)
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonBadAddress || e.Outcome != conduit.NotSent {
		t.Errorf("a bad address: %v", err)
	}

	_, err = conduit.Call[conduit.Level](ctx, nobody.Service(serviceName), "UserOnly", nil)
	wantError(t, err, conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused)
	_, err = conduit.Call[conduit.Level](ctx, user.Service(serviceName), "SuperuserOnly", nil)
	wantError(t, err, conduit.PermissionDenied, conduit.ReasonLevelTooLow, conduit.Refused)
	if l, err := conduit.Call[conduit.Level](ctx, user.Service(serviceName), "UserOnly", nil); err != nil || l != conduit.User {
		t.Errorf("user: %v, %v", l, err)
	}
	if l, err := conduit.Call[conduit.Level](ctx, boss.Service(serviceName), "SuperuserOnly", nil); err != nil || l != conduit.Superuser {
		t.Errorf("superuser: %v, %v", l, err)
	}
}

func TestWhoAmI(t *testing.T) {
	ctx, c := start(t)
	who, err := conduit.Call[whoReply](ctx, c.As("ada", conduit.User).Service(serviceName), "WhoAmI", nil, conduit.WithTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if who.User != "ada" || who.Level != conduit.User || who.Peer != "" || len(who.Chain) != 0 {
		t.Errorf("the caller is %+v", who)
	}
	if who.TimeoutMS <= 0 || who.TimeoutMS > 10_000 {
		t.Errorf("the call has %d ms, want up to 10 s", who.TimeoutMS)
	}
}

func TestChainRunsAsTheCallerOrItself(t *testing.T) {
	ctx, c := start(t, plugintest.Beside("second", element()))
	ask := func(asSelf bool) whoReply {
		t.Helper()
		raw, err := conduit.Call[json.RawMessage](ctx, c.As("ada", conduit.Superuser).Service(serviceName), "Chain",
			chainRequest{Address: "*://second/echo/" + serviceName, Method: "WhoAmI", AsSelf: asSelf})
		if err != nil {
			t.Fatal(err)
		}
		var who whoReply
		if err := json.Unmarshal(raw, &who); err != nil {
			t.Fatal(err)
		}
		return who
	}
	if who := ask(false); who.User != "ada" || who.Level != conduit.Superuser || !slices.Equal(who.Chain, []string{"echo/echo"}) {
		t.Errorf("called as %+v", who)
	}
	if who := ask(true); who.User != "element:echo" || who.Level != conduit.User {
		t.Errorf("as itself called as %+v", who)
	}

	// The inner error is the outer answer, and of the outer handler's making.
	_, err := conduit.Call[json.RawMessage](ctx, c.Service(serviceName), "Chain", chainRequest{Address: "*://second/echo/" + serviceName, Method: "Missing"})
	wantError(t, err, conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Executed)

	// A loop ends.
	loop := chainRequest{Address: "*://echo/echo/" + serviceName, Method: "Nothing"}
	for range 20 {
		inner, err := json.Marshal(loop)
		if err != nil {
			t.Fatal(err)
		}
		loop = chainRequest{Address: loop.Address, Method: "Chain", Request: inner}
	}
	_, err = conduit.Call[json.RawMessage](ctx, c.Service(serviceName), "Chain", loop)
	wantError(t, err, conduit.FailedPrecondition, conduit.ReasonCallLoop, conduit.Executed)
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := start(t)
		s := c.Service(serviceName)

		begin := time.Now()
		_, err := conduit.Call[delayReply](ctx, s, "Delay", delayRequest{MS: 10_000}, conduit.WithTimeout(time.Second))
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.DeadlineExceeded {
			t.Errorf("after the caller's deadline: %v", err)
		}
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("the call took %v", waited)
		}

		// The method's own limit is shorter than the caller's.
		begin = time.Now()
		_, err = conduit.Call[delayReply](ctx, s, "Hurried", delayRequest{MS: 10_000}, conduit.WithTimeout(5*time.Second))
		wantError(t, err, conduit.DeadlineExceeded, conduit.ReasonDeadline, conduit.Executed)
		if waited := time.Since(begin); waited != 50*time.Millisecond {
			t.Errorf("the call took %v", waited)
		}

		// The caller does not wait for a handler that does not listen.
		begin = time.Now()
		_, err = conduit.Call[delayReply](ctx, s, "Delay", delayRequest{MS: 3000, IgnoreContext: true}, conduit.WithTimeout(time.Second))
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.DeadlineExceeded || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}

		// A caller that leaves ends the handler's context.
		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(time.Second, leave)
		_, err = conduit.Call[delayReply](leaving, s, "Delay", delayRequest{MS: 1 << 30})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call: %v", err)
		}
	})
}

func TestDefaultTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := plugintest.Start(t, element())
		begin := time.Now()
		_, err := conduit.Call[delayReply](context.WithoutCancel(t.Context()), c.Service(serviceName), "Delay", delayRequest{MS: 1 << 30})
		if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Code != conduit.DeadlineExceeded || time.Since(begin) != conduit.DefaultCallTimeout {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, c := start(t, plugintest.Budget(20))
		s := c.Service(serviceName)
		first, err := conduit.Call[claimReply](ctx, s, "HeavyClaim", claimRequest{Units: 12})
		if err != nil || first.Units != 12 {
			t.Fatalf("%+v, %v", first, err)
		}
		_, err = conduit.Call[claimReply](ctx, s, "Claim", claimRequest{Units: 9})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Executed)
		_, err = conduit.Call[claimReply](ctx, s, "HeavyClaim", claimRequest{Units: 1})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
		if _, err := conduit.Call[claimReply](ctx, s, "Claim", claimRequest{Units: 8}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if b := c.Budget(); b.Claimed != 20 || b.Claims != 2 || b.Reservations != 0 {
			t.Errorf("the budget is %+v", b)
		}
		if n, err := conduit.Call[int](ctx, s, "Release", first.ID); err != nil || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		_, err = conduit.Call[int](ctx, s, "Release", first.ID)
		wantError(t, err, conduit.NotFound, conduit.ReasonUnspecified, conduit.Executed)
		if n, err := conduit.Call[int](ctx, s, "Release", 0); err != nil || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		synctest.Wait()
		if b := c.Budget(); b.Available != 20 || b.Claims != 0 {
			t.Errorf("the budget is %+v", b)
		}
	})
}

func TestSettings(t *testing.T) {
	ctx, c := start(t, plugintest.Attributes(map[string]string{"health": "degraded", "warning": "look out", "who": "me"}))
	if h := c.Health(ctx); h.GetState().String() != "STATE_DEGRADED" || h.GetText() == "" {
		t.Errorf("health is %v", h)
	}
	env, err := conduit.Call[envReply](ctx, c.Service(serviceName), "Env", nil)
	if err != nil {
		t.Fatal(err)
	}
	if env.PID != os.Getpid() || env.Attributes["who"] != "me" || env.DataDir == "" || env.Dir == "" || len(env.Env) == 0 {
		t.Errorf("env is %+v", env)
	}
}

func TestStopTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		t.Cleanup(func() { // after that of start
			if took := time.Since(begin); took != 5*time.Second {
				t.Errorf("start and stop took %v", took)
			}
		})
		start(t, plugintest.Attributes(map[string]string{"start_ms": "2000", "stop_ms": "3000"}))
	})
}

// TestTableIsWhole: every method is in the table of doc.go, and the other way round.
func TestTableIsWhole(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "takes                                  gives\n")
	table, _, ok := strings.Cut(table, "\n//\n")
	if !ok {
		t.Fatal("doc.go has no table")
	}
	var documented []string
	for line := range strings.Lines(table) {
		documented = append(documented, strings.Fields(line)[1])
	}
	_, c := start(t)
	var there []string
	for _, m := range c.Description().GetServices()[0].GetMethods() {
		there = append(there, m.GetName())
		if !m.GetRemote() && m.GetName() != "Hidden" {
			t.Errorf("%s is not remote", m.GetName())
		}
	}
	slices.Sort(documented)
	slices.Sort(there)
	if !slices.Equal(documented, there) {
		t.Errorf("documented: %v\nthere:      %v", documented, there)
	}
}

func TestElementHasNoMistakes(t *testing.T) {
	if err := element().Check(); err != nil {
		t.Error(err)
	}
}
