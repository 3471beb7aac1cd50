package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// fixture is an element that runs, in a bubble of its own time.
type fixture struct {
	*plugintest.Client
	t   *testing.T
	ctx context.Context //nolint:containedctx // the test's own, with a deadline
}

func start(t *testing.T, opts ...plugintest.Option) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	t.Cleanup(cancel)
	return &fixture{Client: plugintest.Start(t, element(), opts...), t: t, ctx: ctx}
}

// ask calls a method that gives a match.
func (f *fixture) ask(method string, in any, opts ...conduit.CallOption) (standing, error) {
	return conduit.Call[standing](f.ctx, f.Service(serviceName), method, in, opts...)
}

// must is ask for what succeeds.
func (f *fixture) must(method string, in any, opts ...conduit.CallOption) standing {
	f.t.Helper()
	out, err := f.ask(method, in, opts...)
	if err != nil {
		f.t.Fatalf("%s %+v: %v", method, in, err)
	}
	return out
}

func (f *fixture) list() []standing {
	f.t.Helper()
	out, err := conduit.Call[listReply](f.ctx, f.Service(serviceName), "List", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return out.Matches
}

// held checks what is held of the budget, once all has come to rest.
func (f *fixture) held(units int64, claims int) {
	f.t.Helper()
	synctest.Wait()
	if b := f.Budget(); b.Claimed != units || b.Claims != claims || b.Reservations != 0 {
		f.t.Errorf("the budget is %+v; want %d units in %d claims", b, units, claims)
	}
}

func wantError(t *testing.T, err error, code conduit.Code, reason string, outcome conduit.Outcome) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Outcome != outcome {
		t.Errorf("the error is %v, want %s/%s %s", err, code, reason, outcome)
	}
}

// watching collects what a watcher sees, as "kind player reason", until the end.
func (f *fixture) watching(c *plugintest.Client, match string) <-chan string {
	f.t.Helper()
	seen, begun := make(chan string, 1), make(chan struct{})
	go func() {
		var all []string
		for e, err := range conduit.Stream[event](f.ctx, c.Service(serviceName), "Watch", matchRequest{match}) {
			if err != nil {
				all = append(all, err.Error())
				break
			}
			if all = append(all, strings.TrimSpace(e.Kind+" "+e.Player+e.Reason)); len(all) == 1 {
				close(begun)
			}
		}
		seen <- strings.Join(all, ", ")
	}()
	<-begun
	return seen
}

func (f *fixture) saw(seen <-chan string, want string) {
	f.t.Helper()
	if got := <-seen; got != want {
		f.t.Errorf("the watcher saw %q, want %q", got, want)
	}
}

func TestAMatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, plugintest.Budget(10))
		m := f.must("Create", createRequest{Size: 3, LastsMS: 60_000}, conduit.WithUnits(3))
		if m.Size != 3 || m.Units != 3 || m.LeftMS != 60_000 || m.Owner != "test" || len(m.Players) != 0 || !strings.HasSuffix(m.Address, "://matches/matches/"+serviceName) {
			t.Errorf("created: %+v", m)
		}
		f.held(3, 1) // and the call has ended
		seen := f.watching(f.Client, m.Match)
		for _, player := range []string{"ada", "bob", "cy"} {
			m = f.must("Join", playerRequest{m.Match, player})
		}
		if !slices.Equal(m.Players, []string{"ada", "bob", "cy"}) {
			t.Errorf("they are %q", m.Players)
		}
		_, err := f.ask("Join", playerRequest{m.Match, "dee"})
		wantError(t, err, conduit.ResourceExhausted, reasonMatchFull, conduit.Executed)
		_, err = f.ask("Join", playerRequest{m.Match, "ada"})
		wantError(t, err, conduit.AlreadyExists, reasonPlayerThere, conduit.Executed)
		_, err = f.ask("Leave", playerRequest{m.Match, "dee"})
		wantError(t, err, conduit.NotFound, reasonPlayerNotFound, conduit.Executed)
		f.must("Leave", playerRequest{m.Match, "bob"})
		m = f.must("Join", playerRequest{m.Match, "dee"})
		// By its address, too.
		if m, err = conduit.Call[standing](f.ctx, f.At(m.Address), "Leave", playerRequest{m.Match, "cy"}); err != nil || !slices.Equal(m.Players, []string{"ada", "dee"}) {
			t.Errorf("they are %q, %v", m.Players, err)
		}
		if all := f.list(); len(all) != 1 || all[0].Match != m.Match || len(all[0].Players) != 2 {
			t.Errorf("listed: %+v", all)
		}

		_, err = conduit.Call[standing](f.ctx, f.As("eve", conduit.User).Service(serviceName), "End", matchRequest{m.Match})
		wantError(t, err, conduit.PermissionDenied, reasonNotYours, conduit.Executed)
		f.must("End", matchRequest{m.Match})
		f.saw(seen, "present, joined ada, joined bob, joined cy, left bob, joined dee, left cy, ended asked")
		f.held(0, 0)
		for method, in := range map[string]any{"Join": playerRequest{m.Match, "x"}, "Leave": playerRequest{m.Match, "ada"}, "End": matchRequest{m.Match}} {
			_, err := f.ask(method, in)
			wantError(t, err, conduit.NotFound, reasonMatchNotFound, conduit.Executed)
		}
		if all := f.list(); len(all) != 0 {
			t.Errorf("listed: %+v", all)
		}
	})
}

func TestMatchesEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, plugintest.Attributes(map[string]string{"longest": "10m", "empty": "1m"}))
		create := func() standing { return f.must("Create", createRequest{Size: 2}) }

		long := create()
		seen := f.watching(f.Client, long.Match)
		began := time.Now()
		f.must("Join", playerRequest{long.Match, "ada"})
		f.saw(seen, "present, joined ada, ended time")
		if took := time.Since(began); took != 10*time.Minute {
			t.Errorf("it took %v", took)
		}

		// Nobody ever came.
		seen, began = f.watching(f.Client, create().Match), time.Now()
		f.saw(seen, "present, ended empty")
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v", took)
		}

		// All have left, one after another: it is empty for a while from then on.
		m := create()
		seen, began = f.watching(f.Client, m.Match), time.Now()
		for _, player := range []string{"ada", "bob"} {
			time.Sleep(40 * time.Second)
			f.must("Join", playerRequest{m.Match, player})
			time.Sleep(40 * time.Second)
			f.must("Leave", playerRequest{m.Match, player})
		}
		f.saw(seen, "present, joined ada, left ada, joined bob, left bob, ended empty")
		if took := time.Since(began); took != 220*time.Second {
			t.Errorf("it took %v", took)
		}
		f.held(0, 0)
	})
}

func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, plugintest.Budget(20), plugintest.Attributes(map[string]string{"units_per_player": "2"}))
		// What the call has reserved is taken over: none of it is needed twice.
		m := f.must("Create", createRequest{Size: 8}, conduit.WithUnits(16))
		f.held(16, 1)
		// Refused before it began, so that it may be tried elsewhere: by the host, which
		// has no 6 units, or by the element, whose claim of 6 fails.
		_, err := f.ask("Create", createRequest{Size: 3}, conduit.WithUnits(6))
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
		_, err = f.ask("Create", createRequest{Size: 3})
		wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
		// What is reserved beyond the need is given back.
		f.must("Create", createRequest{Size: 2}, conduit.WithUnits(4))
		f.held(20, 2)
		f.must("End", matchRequest{m.Match})
		f.held(4, 1)
		f.must("Create", createRequest{Size: 2}, conduit.WithUnits(10))
		f.held(8, 2)
		f.Cordon(true)
		_, err = f.ask("Create", createRequest{Size: 3})
		wantError(t, err, conduit.Unavailable, conduit.ReasonCordoned, conduit.Refused)
	})
}

func TestBadRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		m := f.must("Create", createRequest{Size: 2})
		for _, bad := range []struct {
			method string
			in     any
		}{
			{"Create", createRequest{Size: 1}},
			{"Create", createRequest{Size: 65}},
			{"Create", createRequest{Size: 2, LastsMS: -1}},
			{"Create", createRequest{Size: 2, LastsMS: 3_600_001}},
			{"Join", playerRequest{m.Match, ""}},
			{"Join", playerRequest{m.Match, strings.Repeat("x", 65)}},
			{"Leave", playerRequest{m.Match, ""}},
		} {
			_, err := f.ask(bad.method, bad.in)
			wantError(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified, conduit.Executed)
		}
		f.held(2, 1)
		for attribute, value := range map[string]string{"units_per_player": "0", "longest": "soon", "empty": "-1s"} {
			h := newHall()
			attributes := map[string]string{"units_per_player": "1", "longest": "1h", "empty": "30s"}
			attributes[attribute] = value
			if _, err := h.configure(f.ctx, pluginapi.Configuration{Attributes: attributes}); err == nil || !strings.Contains(err.Error(), attribute) {
				t.Errorf("%s %q: %v", attribute, value, err)
			}
		}
		_, err := f.ask("End", matchRequest{"somewhere-1"})
		wantError(t, err, conduit.NotFound, reasonMatchNotFound, conduit.Executed)
	})
}

// Who does not take what happens is told so in the end, and costs nobody anything.
func TestWatcherBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		m := f.must("Create", createRequest{Size: 2})
		h := newHall()
		h.matches = []*match{{id: m.Match, size: 2, claim: &pluginapi.Claim{}, changed: make(chan struct{})}}
		mine := h.matches[0]
		mine.idle = time.AfterFunc(time.Hour, func() {})
		defer mine.idle.Stop()
		seen := 0
		err := h.follow(f.ctx, mine, func(event) error {
			if seen++; seen == 1 {
				for n := range keptEvents + 1 {
					h.mu.Lock()
					mine.tell(kindJoined, strconv.Itoa(n), "")
					h.mu.Unlock()
				}
			}
			return nil
		})
		if !hasReason(err, reasonBehind) || seen != 1 {
			t.Errorf("after %d events: %v", seen, err)
		}
	})
}

// twoGenerations starts an element, and in a deployment beside it one that it has
// replaced.
func twoGenerations(t *testing.T, secret string) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	t.Cleanup(cancel)
	next, before := newHall(), newHall()
	next.kin.secret, before.kin.secret = "the same", secret
	e := before.element()
	e.Configure = func(ctx context.Context, c pluginapi.Configuration) ([]string, error) {
		warnings, err := before.configure(ctx, c)
		before.deployment, before.address = "matches", "*://matches/matches/"+serviceName
		return warnings, err
	}
	c := plugintest.Start(t, next.element(), plugintest.Beside("before", e))
	f := &fixture{Client: c, t: t, ctx: ctx}
	synctest.Wait()    // they have heard of each other
	t.Cleanup(func() { // the one that was replaced ends first
		before.kin.stop()
		synctest.Wait()
	})
	return f
}

const before = "*://before/matches/" + serviceName

// A process that was replaced keeps its matches, and is asked for them.
func TestTwoGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoGenerations(t, "the same")
		var old []standing
		for range 2 {
			m, err := conduit.Call[standing](f.ctx, f.At(before), "Create", createRequest{Size: 2})
			if err != nil {
				t.Fatal(err)
			}
			old = append(old, m)
		}
		young := f.must("Create", createRequest{Size: 2})
		if all := f.list(); len(all) != 3 || all[0].Match != old[0].Match || all[2].Match != young.Match {
			t.Errorf("listed: %+v", all)
		}
		seen := f.watching(f.Client, old[0].Match)
		f.must("Join", playerRequest{old[0].Match, "ada"})
		f.must("Join", playerRequest{old[0].Match, "bob"})
		_, err := f.ask("Join", playerRequest{old[0].Match, "cy"})
		wantError(t, err, conduit.ResourceExhausted, reasonMatchFull, conduit.Executed)
		f.must("Leave", playerRequest{old[0].Match, "bob"})
		_, err = conduit.Call[standing](f.ctx, f.As("eve", conduit.User).Service(serviceName), "End", matchRequest{old[0].Match})
		wantError(t, err, conduit.PermissionDenied, reasonNotYours, conduit.Executed)
		// A watcher that leaves is not watched for any more: the test's end says so.
		for _, err := range conduit.Stream[event](f.ctx, f.Service(serviceName), "Watch", matchRequest{old[0].Match}) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		f.must("End", matchRequest{old[0].Match})
		f.saw(seen, "present, joined ada, joined bob, left bob, ended asked")
		began := time.Now()
		_, err = f.ask("Join", playerRequest{"another-1", "ada"})
		wantError(t, err, conduit.NotFound, reasonMatchNotFound, conduit.Executed)
		if took := time.Since(began); took > settling {
			t.Errorf("it took %v", took)
		}
		f.held(4, 2)
	})
}

// Who does not know the secret is no generation of the element.
func TestStrangersAreNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoGenerations(t, "another")
		if _, err := conduit.Call[standing](f.ctx, f.At(before), "Create", createRequest{Size: 2}); err != nil {
			t.Fatal(err)
		}
		if all := f.list(); len(all) != 0 {
			t.Errorf("listed: %+v", all)
		}
		call := conduit.Duplex[fromElder, toElder](f.ctx, f.Service(serviceName), "Adopt")
		if err := call.Send(fromElder{Process: "x"}); err != nil {
			t.Fatal(err)
		}
		_, err := call.Recv()
		wantError(t, err, conduit.PermissionDenied, reasonNotYours, conduit.Executed)
	})
}
