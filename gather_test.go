package conduit_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// group is a Group of fixed members.
type group struct {
	members []conduit.Member
	err     error
}

func (g *group) Members(context.Context) ([]conduit.Member, error) { return g.members, g.err }

func (g *group) add(inv conduit.Invoker) {
	id := fmt.Sprintf("i%03d", len(g.members))
	g.members = append(g.members, conduit.Member{Node: conduit.Node{Instance: id, Deployment: "d"}, Invoker: inv})
}

// later answers after a while.
type later struct {
	conduit.Invoker

	d time.Duration
}

func (l later) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	time.Sleep(l.d)
	return l.Invoker.Invoke(ctx, in)
}

func part(n uint32, text string) conduit.Message {
	m := result(text)
	m.Part = n
	return m
}

func fail(outcome conduit.Outcome) *conduit.Error {
	return conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, outcome, "failed for the test")
}

func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		g.add(later{play(io.EOF, result("1"), result("2")), 3 * time.Second})
		g.add(play(io.EOF)) // nothing
		g.add(later{play(fail(conduit.Executed), part(1, "7")), time.Second})
		g.add(play(fail(conduit.NotSent)))
		g.add(play(fail(conduit.Refused)))
		g.add(play(io.EOF, result(`"no number"`)))
		gathering := conduit.Gather[int](t.Context(), &g, "Count", nil)
		var got []string
		for r := range gathering.All() {
			what := strconv.Itoa(r.Value)
			if r.Err != nil {
				what = conduit.AsError(r.Err, 0).Outcome.String()
				if r.Value != 0 {
					t.Error("an error with a value")
				}
			}
			got = append(got, fmt.Sprintf("%s/%d=%s", r.Node.Instance, r.Part, what))
		}
		first := got[:3] // in whatever order: they came at once
		slices.Sort(first)
		want := []string{
			"i003/0=not_sent", "i004/0=refused", "i005/0=unknown",
			"i002/1=7", "i002/0=executed", "i000/0=1", "i000/0=2",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		r := gathering.Report()
		if r.Nodes() != 6 || r.Err != nil || len(r.Answered) != 2 || r.Answered[0].Instance != "i000" || r.Answered[1].Instance != "i001" ||
			len(r.NotReached) != 1 || r.NotReached[0].Node.Instance != "i003" || len(r.Failed) != 3 {
			t.Errorf("%+v", r)
		}
		if e := r.Failed[0].Err; e.Method != "Count" {
			t.Errorf("the error does not name the method: %+v", e)
		}
	})
}

// In the order of nodes, whoever answers first.
func TestGatherCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		for i := range 5 {
			g.add(later{play(io.EOF, result(strconv.Itoa(2*i)), part(1, "99"), result(strconv.Itoa(2*i+1))), time.Duration(5-i) * time.Second})
		}
		got, err := conduit.Gather[int](t.Context(), &g, "List", nil).Collect()
		if err != nil || !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("%v, %v", got, err)
		}
		g.add(play(fail(conduit.Executed)))
		got, err = conduit.Gather[int](t.Context(), &group{members: g.members[5:]}, "List", nil).Collect()
		if err == nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// Broadcast: many nodes, no value.
func TestGatherNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		var all []*script
		for range 300 {
			s := play(io.EOF)
			all = append(all, s)
			g.add(later{s, time.Second})
		}
		began := time.Now()
		gathering := conduit.Gather[struct{}](t.Context(), &g, "Do", 1)
		if _, err := gathering.Collect(); err != nil {
			t.Error(err)
		}
		if n := len(gathering.Report().Answered); n != 300 || time.Since(began) != 3*time.Second {
			t.Errorf("%d answered in %v", n, time.Since(began))
		}
		for _, s := range all {
			if s.in.Method != "Do" || string(s.in.Request) != "1" {
				t.Fatalf("%+v", s.in)
			}
		}
	})
}

// Leaving the loop cancels what is under way, and waits for it.
func TestGatherLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		g.add(later{play(io.EOF, result("1")), time.Second})
		waiting := play(nil)
		g.add(waiting)
		for range 200 {
			g.add(play(nil))
		}
		gathering := conduit.Gather[int](t.Context(), &g, "Count", nil)
		for range gathering.All() {
			break
		}
		select {
		case <-waiting.cancelled:
		default:
			t.Error("a call goes on")
		}
		if r := gathering.Report(); r.Nodes() != 202 || len(r.NotReached) == 0 {
			t.Errorf("%d answered, %d failed, %d not reached", len(r.Answered), len(r.Failed), len(r.NotReached))
		}
	})
}

func TestGatherNobody(t *testing.T) {
	none := conduit.Errorf(conduit.NotFound, conduit.ReasonElementNotFound, conduit.NotSent, "nobody")
	for _, g := range []conduit.Group{nil, &group{err: none}} {
		gathering := conduit.Gather[int](t.Context(), g, "Count", nil)
		n := 0
		for r := range gathering.All() {
			if n++; r.Err == nil {
				t.Error("no error")
			}
		}
		if r := gathering.Report(); n != 1 || r.Err == nil || r.Err.Method != "Count" || r.Nodes() != 0 {
			t.Errorf("%d items, %+v", n, r)
		}
		if _, err := gathering.Collect(); err == nil {
			t.Error("no error")
		}
	}
	var g group
	g.add(play(io.EOF))
	gathering := conduit.Gather[int](t.Context(), &g, "Count", nil, conduit.OnPart(1, func(conduit.Message) {}))
	if _, err := gathering.Collect(); err == nil {
		t.Error("OnPart is taken")
	}
}

// When the time is over, each node that has not answered says so.
func TestGatherDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g group
		g.add(play(io.EOF, result("1")))
		for range 5 {
			g.add(play(nil))
		}
		gathering := conduit.Gather[int](t.Context(), &g, "Count", nil, conduit.WithTimeout(time.Second))
		late := 0
		for r := range gathering.All() {
			if r.Err != nil && conduit.AsError(r.Err, 0).Code == conduit.DeadlineExceeded {
				late++
			}
		}
		if r := gathering.Report(); late != 5 || len(r.Answered) != 1 || len(r.Failed) != 5 {
			t.Errorf("%d were late: %+v", late, r)
		}
	})
}
