package locator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// The original's TestDefaultRoutingStrategy: the best one gets the same call, and
// its value, error, parts and stream come back.
func TestDefaultRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		peers := []*peer{w.add("a", 10), w.add("b", 50), w.add("c", 30), w.add("d", 20), w.add("e", 40)}
		w.start()
		best := peers[1]

		check(t, "value", w.call(where, "Call"), "b")
		best.does(func(context.Context, *conduit.Invocation) conduit.Exchange {
			a := answer("part", "value")
			a.down[0].Part = 1
			return a
		})
		var part string
		got, err := conduit.Call[string](t.Context(), w.l.At(where), "Call", "argument", conduit.OnPart(1, func(m conduit.Message) {
			part, _ = conduit.Decode[string](m)
		}))
		if err != nil || got != "value" || part != "part" {
			t.Errorf("%q, part %q, %v", got, part, err)
		}
		if in := best.calls[1]; in.Method != "Call" || string(in.Request) != `"argument"` {
			t.Errorf("%+v", in)
		}
		best.does(func(context.Context, *conduit.Invocation) conduit.Exchange { return answer("1", "2", "3") })
		var items []string
		for s, err := range conduit.Stream[string](t.Context(), w.l.At(where), "Call", nil) {
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, s)
		}
		check(t, "stream", strings.Join(items, " "), "1 2 3")
		best.fails(conduit.Errorf(conduit.InvalidArgument, "mine", conduit.Executed, "no"))
		check(t, "error", w.call(where, "Call"), "mine executed")
		for _, p := range peers {
			if n := p.made(); p != best && n != 0 {
				t.Errorf("%s was called %d times", p.name, n)
			}
		}
	})
}

// The original's TestListAggregateRoutingStrategy and TestBroadcastRoutingStrategy.
func TestAggregateRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &hosting{standing: Standing{Hosted: true, Ready: true, Room: true}, nodes: []string{address.UniqueDeploymentID("d").String()}}
		w := newWorld(t, Options{Local: local, Self: idOf("c2"), PreferLocal: true})
		peers := []*peer{w.add("a", 10), w.add("b", 0), w.add("c", 30), w.add("d", 20), w.add("e", 40)}
		w.start()
		for _, p := range peers {
			p.does(func(context.Context, *conduit.Invocation) conduit.Exchange { return answer(p.name+"1", p.name+"2") })
		}
		list := conduit.Gather[string](t.Context(), w.l.All(where), "Call", nil)
		got, err := list.Collect()
		check(t, "concatenated in the order of nodes", strings.Join(got, " "), "a1 a2 b1 b2 c1 c2 here d1 d2 e1 e2")
		if err != nil || len(list.Report().Answered) != 6 || local.calls != 1 {
			t.Errorf("%v, %+v", err, list.Report())
		}
		for _, p := range peers {
			if p.made() != 1 || p.at[0] != p.id.String()+"://d/e/S" {
				t.Errorf("%s: %d calls at %q", p.name, p.made(), p.at)
			}
		}

		// Broadcast: no value.
		for _, p := range peers {
			p.does(func(context.Context, *conduit.Invocation) conduit.Exchange { return answer() })
		}
		if _, err := conduit.Gather[struct{}](t.Context(), w.l.All(where), "Call", nil).Collect(); err == nil || local.calls != 2 {
			// The local one yields a value, which is no struct{}: the call says so.
			t.Logf("local: %d calls, %v", local.calls, err)
		}
		for _, p := range peers {
			if p.made() != 2 {
				t.Errorf("%s: %d calls", p.name, p.made())
			}
		}

		// An error comes back; full and draining ones are asked; one that died is not reached.
		peers[1].fails(refusal(conduit.ReasonNoCapacity, conduit.Refused, true))
		peers[3].hooks.GoAway(conduit.ReasonDraining)
		peers[4].kill()
		peers[0].fails(conduit.Errorf(conduit.Internal, "mine", conduit.Executed, "no"))
		synctest.Wait()
		gathering := conduit.Gather[string](t.Context(), w.l.All(where), "Costs", nil)
		_, err = gathering.Collect()
		r := gathering.Report()
		var failed, missed []string
		for _, n := range r.Failed {
			failed = append(failed, n.Err.Reason)
		}
		for _, n := range r.NotReached {
			missed = append(missed, n.Err.Reason)
		}
		if err == nil || len(r.Answered) != 2 || !slices.Equal(failed, []string{"mine", conduit.ReasonNoCapacity}) ||
			!slices.Equal(missed, []string{conduit.ReasonDraining, conduit.ReasonPeerUnreachable}) {
			t.Errorf("%v, answered %d, failed %q, not reached %q", err, len(r.Answered), failed, missed)
		}
		if c := peers[2].calls[2]; c.Units != 2 {
			t.Errorf("the method's units: %+v", c)
		}
	})
}

func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.add("a", 1)
		a.host("x")
		b := w.add("b", 1)
		w.start()
		size := func(g conduit.Group) int {
			all, err := g.Members(t.Context())
			if err != nil {
				return -1
			}
			return len(all)
		}
		node := func(p *peer, d string) HasNode { return address.NewNodeID(p.id, address.UniqueDeploymentID(d)) }
		for _, test := range []struct {
			what string
			g    conduit.Group
			want int
		}{
			{"a deployment", w.l.All(where), 2},
			{"any deployment", w.l.All("*://*/e/S"), 3},
			{"any deployment, an ordinal", w.l.All("*://*/e[1]/S"), 1},
			{"one instance", w.l.All(b.id.String() + "://*/e/S"), 1},
			{"nobody", w.l.All("*://d/f/S"), -1},
			{"no address", w.l.All("nonsense"), -1},
			{"no ids", w.l.Nodes("e", "S"), 3},
			{"two of one node", w.l.Nodes("e", "S", node(a, "d"), node(a, "d")), 1},
			{"three nodes", w.l.Nodes("e", "S", node(a, "d"), node(a, "x"), node(b, "d")), 3},
			{"a nil one counts not", w.l.Nodes("e", "S", nil, node(b, "d")), 1},
			{"an id without a node", w.l.Nodes("e", "S", address.NodeID{}), -1},
		} {
			if got := size(test.g); got != test.want {
				t.Errorf("%s: %d members, want %d", test.what, got, test.want)
			}
		}
		_, err := w.l.All("*://d/f/S").Members(t.Context())
		check(t, "nobody", reasonOf("", err), "element_not_found not_sent")
		_, err = w.l.All("nonsense").Members(t.Context())
		check(t, "nonsense", reasonOf("", err), "bad_address not_sent")
	})
}

// The original's TestSameNodeIdRoutingStrategy, with testEmptyRoute and
// testConflictingRoute.
func TestSameNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a, b := w.add("a", 1), w.add("b", 100)
		w.start()
		na := address.NewNodeID(a.id, address.UniqueDeploymentID("d"))
		nb := address.NewNodeID(b.id, address.UniqueDeploymentID("d"))
		one, two := address.RandomResourceID(na), address.RandomResourceID(na)
		call := func(ids ...HasNode) string {
			return reasonOf(conduit.Call[string](t.Context(), w.l.SameNode("e", "S", ids...), "Call", nil))
		}
		check(t, "that node", call(one, two, na), "a")
		check(t, "the other", call(address.RandomResourceID(nb)), "b")
		check(t, "empty", call(), "bad_address not_sent")
		check(t, "conflicting", call(one, address.RandomResourceID(nb)), "bad_address not_sent")
		a.kill()
		synctest.Wait()
		check(t, "it is gone", call(one), "peer_unreachable not_sent")
		if b.made() != 1 {
			t.Error("another node was called")
		}
	})
}

func TestBadAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		for _, addr := range []string{"", "echo", "*://d/e", "*://d/*/S"} {
			_, err := conduit.Call[string](t.Context(), w.l.At(addr), "Call", nil)
			e, ok := errors.AsType[*conduit.Error](err)
			if !ok || e.Code != conduit.InvalidArgument || e.Reason != conduit.ReasonBadAddress || e.Outcome != conduit.NotSent || e.Method != "Call" {
				t.Errorf("%q: %v", addr, err)
			}
		}
		check(t, "a bad key", reasonOf(conduit.Call[string](t.Context(), w.l.FindRemote("d", "a/b"), "Call", nil)), "bad_address not_sent")
		check(t, "a bad deployment", reasonOf(conduit.Call[string](t.Context(), w.l.FindRemote("a/b", "S"), "Call", nil)), "bad_address not_sent")
	})
}

func TestFindRemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.add("a", 1)
		w.start()
		inv := w.l.FindRemote("d", "S")
		for range 2 {
			check(t, "found", reasonOf(conduit.Call[string](t.Context(), inv, "Call", nil)), "a")
		}
		check(t, "anywhere", reasonOf(conduit.Call[string](t.Context(), w.l.FindRemote("*", "S"), "Call", nil)), "a")
		check(t, "not there", reasonOf(conduit.Call[string](t.Context(), w.l.FindRemote("d", "T"), "Call", nil)), "service_not_found not_sent")
		if a.at[0] != where {
			t.Errorf("%q", a.at)
		}
	})
}

// Local first, when it is ready and has room; it judges when there is no other.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &hosting{}
		self := idOf("self")
		w := newWorld(t, Options{Local: local, Self: self, PreferLocal: true})
		a := w.add("a", 100)
		w.start()
		for _, test := range []struct {
			what     string
			standing Standing
			want     string
		}{
			{"not hosted", Standing{}, "a"},
			{"hosted", Standing{Hosted: true, Ready: true, Room: true}, "here"},
			{"not ready", Standing{Hosted: true, Room: true}, "a"},
			{"full", Standing{Hosted: true, Ready: true}, "a"},
		} {
			local.standing = test.standing
			check(t, test.what, w.call(where, "Call"), test.want)
		}
		check(t, "this instance by name", w.call(self.String()+"://d/e/S", "Call"), "here")
		check(t, "the other by name", w.call(a.id.String()+"://d/e/S", "Call"), "a")

		// It refuses: the call goes elsewhere.
		local.standing.Room = true
		local.fail = refusal(conduit.ReasonOverloaded, conduit.Refused, true)
		check(t, "it refuses", w.call(where, "Call"), "a")
		check(t, "attempts", attempts(a), "a0 a0 a0 a0 a1")

		// Nobody has the deployment but this instance: it says which part is wrong.
		local.standing = Standing{Deployed: true}
		local.fail = refusal(conduit.ReasonElementNotFound, conduit.Refused, true)
		check(t, "the deployment is here", w.call("*://mine/typo/S", "Call"), "element_not_found refused")
		check(t, "a peer has the element", w.call(where, "Call"), "a")

		// Nobody else has it: this instance says what is wrong.
		a.kill()
		synctest.Wait()
		local.standing = Standing{Hosted: true}
		local.fail = refusal(conduit.ReasonPluginStarting, conduit.Refused, true)
		check(t, "alone and not ready", w.call(where, "Call"), "plugin_starting refused")
		local.standing = Standing{}
		check(t, "alone and not hosted", w.call(where, "Call"), "peer_unreachable not_sent")
	})
	synctest.Test(t, func(t *testing.T) {
		local := &hosting{standing: Standing{Hosted: true, Ready: true, Room: true}}
		w := newWorld(t, Options{Local: local, Self: idOf("self")})
		a := w.add("a", 100)
		w.start()
		check(t, "others are preferred", w.call(where, "Call"), "a")
		a.kill()
		check(t, "there are none", w.call(where, "Call"), "here")
	})
	// Without peers at all.
	l := New(Options{Local: &hosting{standing: Standing{Hosted: true, Ready: true, Room: true}}})
	if got, err := conduit.Call[string](t.Context(), l.At(where), "Call", nil); err != nil || got != "here" {
		t.Errorf("%q, %v", got, err)
	}
	l = New(Options{Local: &hosting{standing: Standing{Deployed: true}, fail: refusal(conduit.ReasonServiceNotFound, conduit.Refused, true)}})
	_, err := conduit.Call[string](t.Context(), l.At(where), "Call", nil)
	check(t, "the deployment alone", reasonOf("", err), "service_not_found refused")
	_, err = conduit.Call[string](t.Context(), New(Options{Local: &hosting{}}).At(where), "Call", nil)
	check(t, "nowhere", reasonOf("", err), "element_not_found not_sent")
	_, err = conduit.Call[string](t.Context(), New(Options{}).At(where), "Call", nil)
	check(t, "nobody", reasonOf("", err), "element_not_found not_sent")
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &hosting{}
		w := newWorld(t, Options{Local: local, Self: idOf("self"), PreferLocal: true})
		a := w.add("a", 100)
		w.start()
		e, err := w.l.Explain(where, "Call", 1)
		if err != nil || e.Local || e.Chosen != a.id || len(e.Candidates) != 1 || e.Candidates[0].Verdict != registry.Chosen {
			t.Errorf("%+v, %v", e, err)
		}
		local.standing = Standing{Hosted: true, Ready: true, Room: true}
		e, err = w.l.Explain(where, "Call", 1)
		if err != nil || !e.Local || e.Chosen != idOf("self") || e.Candidates[0].Verdict != registry.Candidate {
			t.Errorf("%+v, %v", e, err)
		}
		local.standing = Standing{}
		e, err = w.l.Explain("*://other/e/S", "Call", 0)
		if err != nil || e.Err == nil || e.Err.Reason != conduit.ReasonDeploymentNotFound {
			t.Errorf("%+v, %v", e, err)
		}
		if _, err := w.l.Explain("nonsense", "", 0); err == nil {
			t.Error("nonsense has an explanation")
		}
		if a.made() != 0 || local.calls != 0 {
			t.Error("explaining called somebody")
		}
	})
}

// A call that sends more than one message goes to one peer, whatever comes of it.
func TestUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.add("a", 100).fails(refusal(conduit.ReasonOverloaded, conduit.Refused, true))
		b := w.add("b", 10)
		w.start()
		_, err := conduit.Upload[string](t.Context(), w.l.At(where), "Call", slices.Values([]int{1, 2}))
		check(t, "upload", reasonOf("", err), "overloaded refused")
		if a.made() != 1 || b.made() != 0 {
			t.Errorf("a was called %d times, b %d", a.made(), b.made())
		}
	})
}
