//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// end is what an owner was told.
type end struct {
	tag     uint64
	code    conduit.Code
	outcome conduit.Outcome
}

// testRouter notes what it is told, and asks a func about failures.
type testRouter struct {
	mu     sync.Mutex
	ends   []end
	errs   []*conduit.Error
	tags   []uint64
	failed func(p Parked, err *conduit.Error) bool
}

func (r *testRouter) CallEnded(tag uint64, code conduit.Code, outcome conduit.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, end{tag, code, outcome})
}

func (r *testRouter) Failed(p Parked, tag uint64, err *conduit.Error) bool {
	r.mu.Lock()
	r.errs, r.tags = append(r.errs, err), append(r.tags, tag)
	r.mu.Unlock()
	return r.failed(p, err)
}

// told holds the router to what it was told: these ends, and so many failures.
func (r *testRouter) told(t *testing.T, failures int, want ...end) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.ends, want) || len(r.errs) != failures {
		t.Errorf("the router was told of ends %v and %d failures %v, want %v and %d", r.ends, len(r.errs), r.errs, want, failures)
	}
}

// routed is a caller played by hand, a host, and two plugins played by hand.
type routed struct {
	t       *testing.T
	front   *Conn
	caller  *rawEnd
	back    [2]*Conn
	plugin  [2]*rawEnd
	router  *testRouter
	mem     *Memory
	parked  []Parked // given back by the router, or taken by the handler
	handler func(in *Incoming)
}

// newRouted makes one whose handler passes calls on to the first plugin, and whose
// router keeps each that fails for the test to decide.
func newRouted(t *testing.T, front, back Options, plugin *conduitv1.Hello) *routed {
	t.Helper()
	s := &routed{t: t, router: &testRouter{}, mem: NewMemory(0)}
	s.router.failed = func(p Parked, _ *conduit.Error) bool {
		s.parked = append(s.parked, p)
		return true
	}
	s.handler = func(in *Incoming) {
		out := *in.Invoke
		in.SpliceHeld(s.back[0], &out, s.router, 1)
	}
	if plugin == nil {
		plugin = &conduitv1.Hello{}
	}
	back.Dialer, back.Duplex, back.LostReason = true, true, conduit.ReasonPluginLost
	for i := range s.back {
		s.back[i], s.plugin[i] = rawLink(t, back, plugin)
	}
	front.Memory, front.Handler = s.mem, handlerFunc(func(in *Incoming) { s.handler(in) })
	s.front, s.caller = rawLink(t, front, &conduitv1.Hello{})
	t.Cleanup(func() { checkHolds(t, "the caller's link", s.front) })
	return s
}

// again passes the parked call on to a plugin, as an attempt with that tag.
func (s *routed) again(to int, tag uint64) {
	s.t.Helper()
	synctest.Wait()
	if len(s.parked) == 0 {
		s.t.Fatal("no call is parked")
	}
	s.passOn(to, tag)
}

func (s *routed) passOn(to int, tag uint64) {
	p := s.parked[len(s.parked)-1]
	out := *p.Invoke()
	out.Attempt = uint32(tag - 1)
	p.SpliceHeld(s.back[to], &out, s.router, tag)
}

func refused(reason string) *conduitv1.Failure {
	return &conduitv1.Failure{Code: conduitv1.Code(conduit.ResourceExhausted), Reason: reason, Outcome: conduitv1.Outcome(conduit.Refused), Retryable: true}
}

// request is what a plugin got of a call's request.
type request struct {
	invoke *conduitv1.Invoke
	bytes  []byte
	sizes  []int
	last   bool
	cancel bool
}

func (q *request) add(d *conduitv1.Data) {
	if d != nil {
		q.bytes, q.sizes, q.last = append(q.bytes, d.Bytes...), append(q.sizes, len(d.Bytes)), q.last || d.Last
	}
}

func (q *request) take(frames []*conduitv1.Frame, id uint64) {
	for _, f := range frames {
		if f.Call != id {
			continue
		}
		switch {
		case f.GetInvoke() != nil:
			q.invoke = f.GetInvoke()
			q.add(q.invoke.Data)
		case f.GetData() != nil:
			q.add(f.GetData())
		case f.GetCancel() != nil:
			q.cancel = true
		}
	}
}

func requestOf(frames []*conduitv1.Frame, id uint64) *request {
	q := &request{}
	q.take(frames, id)
	return q
}

func credits(frames []*conduitv1.Frame, id uint64) (n uint64) {
	for _, f := range frames {
		if f.Call == id {
			n += f.GetCredit().GetBytes()
		}
	}
	return n
}

func (s *routed) answered(id uint64, want string) {
	s.t.Helper()
	got := s.caller.take()
	if b, last := data(got, id); string(b) != want || !last {
		s.t.Errorf("call %d got %q (last %v), want %q: %v", id, b, last, want, got)
	}
}

func (s *routed) failedAs(id uint64, reason string, outcome conduit.Outcome) {
	s.t.Helper()
	got := s.caller.take()
	f, n := failure(got, id), 0
	for _, g := range got {
		if g.GetFailure() != nil {
			n++
		}
	}
	if f == nil || n != 1 || f.Reason != reason || conduit.Outcome(f.Outcome) != outcome {
		s.t.Errorf("call %d ended with %v, want one failure %s, %v", id, got, reason, outcome)
	}
}

// What fails before an answer begins is passed on again, whole, and the caller
// hears of the answer only.
func TestReroute(t *testing.T) {
	const tag = 2
	ways := map[string]struct {
		fail    func(s *routed)
		outcome conduit.Outcome
		reason  string
	}{
		"refused": {func(s *routed) { s.plugin[0].send(failureFrame(1, refused("overloaded"))) }, conduit.Refused, "overloaded"},
		"link dies": {func(s *routed) {
			if err := s.plugin[0].c.Close(CloseGoingAway, ""); err != nil {
				s.t.Error(err)
			}
		}, conduit.OutcomeUnknown, conduit.ReasonPluginLost},
		"goes away": {func(s *routed) { s.plugin[0].send(goAwayFrame(&conduitv1.GoAway{Reason: "draining"})) }, conduit.Refused, conduit.ReasonDraining},
	}
	for name, way := range ways {
		for _, size := range []int{0, 1, 3000, 20_000, 30_000, 60_000} {
			for _, deferred := range []bool{false, true} {
				bubble(t, fmt.Sprintf("%s/%d/%v", name, size, deferred), func(t *testing.T) {
					s := newRouted(t, Options{}, Options{}, nil)
					if !deferred {
						s.router.failed = func(p Parked, _ *conduit.Error) bool {
							out := *p.Invoke()
							out.Attempt++
							p.SpliceHeld(s.back[1], &out, s.router, tag)
							return true
						}
					}
					want := strings.Repeat("r", size)
					s.caller.send(invokeFrame(1, "M", whole(want, true)))
					if q := requestOf(s.plugin[0].take(), 1); q.invoke == nil || string(q.bytes) != want || !q.last {
						t.Fatalf("the first got %d bytes, last %v", len(q.bytes), q.last)
					}
					way.fail(s)
					if deferred {
						if got := s.caller.take(); failure(got, 1) != nil {
							t.Fatalf("the caller was told %v", got)
						}
						s.router.told(t, 1)
						go s.passOn(1, tag) // from another goroutine
					}
					q := requestOf(s.plugin[1].take(), 1)
					if q.invoke == nil || string(q.bytes) != want || !q.last || q.invoke.Attempt != 1 || q.invoke.Method != "M" {
						t.Fatalf("the second got %d bytes, last %v, %v", len(q.bytes), q.last, q.invoke)
					}
					if name == "refused" { // what the first says late goes nowhere
						s.plugin[0].send(dataFrame(1, whole("late", true)), failureFrame(1, refused("late")))
					}
					s.plugin[1].send(dataFrame(1, whole("answer", true)))
					s.answered(1, "answer")
					s.router.told(t, 1, end{tag, 0, 0})
					if e := s.router.errs[0]; e.Outcome != way.outcome || e.Reason != way.reason || s.router.tags[0] != 1 {
						t.Errorf("the router was told %v", e)
					}
					if name == "refused" && !s.back[0].Usable() {
						t.Error("the first link is gone")
					}
					if out, _ := s.back[0].Calls(); out != 0 {
						t.Errorf("%d calls are left at the first", out)
					}
				})
			}
		}
	}
}

// A link that cannot take the call: the router is asked before SpliceHeld returns.
func TestRerouteOfALocalRefusal(t *testing.T) {
	for name, begin := range map[string]func(s *routed){
		"dead":       func(s *routed) { s.back[0].Close(CloseDone, "") },
		"going away": func(s *routed) { s.plugin[0].send(goAwayFrame(&conduitv1.GoAway{Reason: "draining"})) },
	} {
		bubble(t, name, func(t *testing.T) {
			s := newRouted(t, Options{}, Options{}, nil)
			begin(s)
			synctest.Wait()
			tag := uint64(1)
			s.router.failed = func(p Parked, err *conduit.Error) bool {
				if err.Outcome != conduit.Refused || !err.Retryable {
					t.Errorf("told %v", err)
				}
				tag++
				out := *p.Invoke()
				p.SpliceHeld(s.back[tag-2], &out, s.router, tag) // the first once more, then the second
				return false                                     // it was decided: this says nothing
			}
			s.caller.send(invokeFrame(1, "M", whole("x", true)))
			s.plugin[1].take()
			s.plugin[1].send(dataFrame(1, whole("answer", true)))
			s.answered(1, "answer")
			s.router.told(t, 2, end{3, 0, 0})
		})
	}
}

// Once something of an answer has gone to the caller, a failure is passed on.
func TestNoRerouteAfterAnAnswerBegan(t *testing.T) {
	for name, begin := range map[string]*conduitv1.Data{"a message": whole("part", false), "a piece": piece(10, "p"), "flags": {}} {
		bubble(t, name, func(t *testing.T) {
			s := newRouted(t, Options{}, Options{}, nil)
			s.caller.send(invokeFrame(1, "M", whole("x", true)))
			s.plugin[0].take()
			s.plugin[0].send(dataFrame(1, begin))
			s.plugin[0].send(failureFrame(1, refused("overloaded")))
			s.failedAs(1, "overloaded", conduit.Refused)
			s.router.told(t, 0, end{1, conduit.ResourceExhausted, conduit.Refused})
		})
	}
}

// stream sends n messages of a size as one packet each, and returns their bytes.
func (s *routed) stream(id uint64, from, n, size int) (sent []byte) {
	for i := range n {
		b := bytes.Repeat([]byte{byte('a' + (from+i)%26)}, size+i%3)
		s.caller.send(dataFrame(id, whole(string(b), false)))
		sent = append(sent, b...)
	}
	synctest.Wait()
	return sent
}

// A request that outgrows its window is an ordinary splice from then on.
func TestNoRerouteBeyondTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.caller.send(invokeFrame(1, "M", nil))
		synctest.Wait()
		s.plugin[0].send(creditFrame(1, 20_000))
		sent := s.stream(1, 0, 70, 1000)
		if q := requestOf(s.plugin[0].take(), 1); !bytes.Equal(q.bytes, sent) {
			t.Fatalf("the plugin got %d bytes in %d messages", len(q.bytes), len(q.sizes))
		}
		if w, _ := s.mem.Usage(); w < DefaultRequestCredit {
			t.Errorf("only %d bytes are accounted for", w)
		}
		s.plugin[0].send(failureFrame(1, refused("overloaded")))
		s.failedAs(1, "overloaded", conduit.Refused)
		s.router.told(t, 0, end{1, conduit.ResourceExhausted, conduit.Refused})
	})
}

// Whatever of a streamed request came before, during and after a reroute arrives at
// the second link once, whole and in order, and its caller is credited for each byte
// once, though a part of it was written on the first and a part waited there.
func TestStreamedRequestIsRerouted(t *testing.T) {
	for name, credit := range map[string]uint32{"all written": 0, "some queued": minCallCredit} {
		bubble(t, name, func(t *testing.T) {
			s := newRouted(t, Options{}, Options{}, &conduitv1.Hello{CallCredit: credit})
			s.caller.send(invokeFrame(1, "M", whole("begin", false)))
			sent := append([]byte("begin"), s.stream(1, 0, 40, 1000)...)
			granted := credits(s.caller.take(), 1)
			if name == "some queued" && granted > minCallCredit {
				t.Fatalf("%d bytes were credited: the test tests nothing", granted)
			}
			s.plugin[0].take()
			s.plugin[0].send(failureFrame(1, refused("overloaded")))
			sent = append(sent, s.stream(1, 40, 10, 900)...) // while it is parked
			if n := credits(s.caller.take(), 1); n != 0 {
				t.Errorf("%d bytes were credited while it was parked", n)
			}
			if w, _ := s.mem.Usage(); w < int64(len(sent)) {
				t.Errorf("%d bytes are accounted for, %d held", w, len(sent))
			}
			s.again(1, 2)
			sent = append(sent, s.stream(1, 50, 10, 700)...)
			s.caller.send(dataFrame(1, &conduitv1.Data{Last: true}))
			q := &request{}
			for range 40 {
				q.take(s.plugin[1].take(), 1)
				s.plugin[1].send(creditFrame(1, 2000))
			}
			granted += credits(s.caller.take(), 1)
			if !bytes.Equal(q.bytes, sent) || !q.last || len(q.sizes) < 62 {
				t.Errorf("the second got %d bytes in %d pieces, last %v; sent were %d", len(q.bytes), len(q.sizes), q.last, len(sent))
			}
			if most := uint64(len(sent) + 62*dataCost); granted > most {
				t.Errorf("%d bytes were credited, and %d sent", granted, most)
			}
			s.plugin[1].send(dataFrame(1, whole("sum", true)))
			s.answered(1, "sum")
			s.router.told(t, 1, end{2, 0, 0})
		})
	}
}

// The credit of a stream that is rerouted early lets its caller go on for ever.
func TestCreditAfterAReroute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, &conduitv1.Hello{CallCredit: 1 << 20, LinkCredit: 1 << 24})
		s.caller.send(invokeFrame(1, "M", nil))
		left := int64(DefaultRequestCredit)
		send := func(n int) {
			for range n {
				s.stream(1, 0, 1, 1000)
				left -= 1000 + dataCost
				left += int64(credits(s.caller.take(), 1))
				if left < 0 {
					t.Fatal("the window is exhausted")
				}
			}
		}
		send(50)
		before := left
		s.plugin[0].send(failureFrame(1, refused("overloaded")))
		s.again(1, 2)
		if left += int64(credits(s.caller.take(), 1)); left != before {
			t.Errorf("what the first had written was credited again: %d after %d", left, before)
		}
		if w, _ := s.mem.Usage(); w < before+50*(1000+dataCost) { // a window, and what was credited
			t.Errorf("%d bytes are counted: a window, and what was credited before, may wait at the second", w)
		}
		for range 10 {
			send(50)
		}
		s.front.mu.Lock()
		k := s.front.calls[1]
		if at := k.recvLeft + k.recvOwed; k.recvLeft != left || at != DefaultRequestCredit || k.hold != nil {
			t.Errorf("the caller has %d, the host thinks %d, and %d with what is owed", left, k.recvLeft, at)
		}
		s.front.mu.Unlock()
		s.plugin[1].send(failureFrame(1, refused("full")))
		s.failedAs(1, "full", conduit.Refused)
		s.router.told(t, 1, end{2, conduit.ResourceExhausted, conduit.Refused})
	})
}

// A request that outgrows its window while the router decides cannot be passed on
// again: it ends with the failure.
func TestRequestOutgrowsWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.caller.send(invokeFrame(1, "M", nil))
		s.stream(1, 0, 50, 1000)
		s.plugin[0].send(failureFrame(1, refused("overloaded")))
		synctest.Wait()
		done := s.parked[0].Done()
		s.stream(1, 0, 20, 1000)
		<-done
		s.failedAs(1, "overloaded", conduit.Refused)
		s.router.told(t, 1) // the end follows the decision
		s.again(1, 2)
		if got := s.plugin[1].take(); len(got) != 0 {
			t.Errorf("the second got %v", got)
		}
		s.router.told(t, 1, end{2, conduit.ResourceExhausted, conduit.Refused})
	})
}

// What the router decides, and what the caller hears of it.
func TestRouterDecides(t *testing.T) {
	lost := func(s *routed) {
		if err := s.plugin[0].c.Close(CloseGoingAway, ""); err != nil {
			s.t.Error(err)
		}
	}
	refuse := func(s *routed) { s.plugin[0].send(failureFrame(1, refused("overloaded"))) }
	mine := func(o conduit.Outcome) *conduit.Error {
		return &conduit.Error{Code: conduit.Unavailable, Reason: "mine", Outcome: o}
	}
	for name, c := range map[string]struct {
		fail    func(s *routed)
		decide  func(s *routed, p Parked, err *conduit.Error) bool
		reason  string
		outcome conduit.Outcome
	}{
		"no":                        {refuse, func(*routed, Parked, *conduit.Error) bool { return false }, "overloaded", conduit.Refused},
		"no, of unknown":            {lost, func(*routed, Parked, *conduit.Error) bool { return false }, conduit.ReasonPluginLost, conduit.OutcomeUnknown},
		"refuse":                    {refuse, func(_ *routed, p Parked, _ *conduit.Error) bool { p.Refuse(mine(0)); return true }, "mine", conduit.Refused},
		"refuse what may have run":  {lost, func(_ *routed, p Parked, _ *conduit.Error) bool { p.Refuse(mine(0)); return true }, "mine", conduit.OutcomeUnknown},
		"fail, and the same error":  {lost, func(_ *routed, p Parked, e *conduit.Error) bool { p.Fail(e); return true }, conduit.ReasonPluginLost, conduit.OutcomeUnknown},
		"fail as unknown":           {refuse, func(_ *routed, p Parked, _ *conduit.Error) bool { p.Fail(mine(0)); return true }, "mine", conduit.OutcomeUnknown},
		"fail as not sent":          {refuse, func(_ *routed, p Parked, _ *conduit.Error) bool { p.Fail(mine(conduit.NotSent)); return true }, "mine", conduit.Refused},
		"fail as not sent, but ran": {lost, func(_ *routed, p Parked, _ *conduit.Error) bool { p.Fail(mine(conduit.NotSent)); return true }, "mine", conduit.OutcomeUnknown},
		"decide twice": {refuse, func(_ *routed, p Parked, _ *conduit.Error) bool {
			p.Fail(mine(conduit.Refused))
			p.Refuse(mine(conduit.Executed))
			return false
		}, "mine", conduit.Refused},
		"later": {refuse, func(_ *routed, p Parked, _ *conduit.Error) bool {
			time.AfterFunc(time.Second, func() { p.Refuse(mine(0)) })
			return true
		}, "mine", conduit.Refused},
		"both die": {lost, func(s *routed, p Parked, _ *conduit.Error) bool {
			if len(s.router.errs) == 2 {
				return false
			}
			out := *p.Invoke()
			p.SpliceHeld(s.back[1], &out, s.router, 1)
			go s.back[1].Close(CloseDone, "")
			return true
		}, conduit.ReasonPluginLost, conduit.OutcomeUnknown},
		"the second refuses what may have run": {lost, func(s *routed, p Parked, e *conduit.Error) bool {
			if len(s.router.errs) == 2 {
				if e.Outcome != conduit.Refused { // of this attempt
					s.t.Errorf("told %v", e)
				}
				return false
			}
			out := *p.Invoke()
			p.SpliceHeld(s.back[1], &out, s.router, 1)
			s.plugin[1].send(failureFrame(1, refused("full")))
			return true
		}, "full", conduit.OutcomeUnknown},
		"an ordinary splice that is refused after one that may have run": {lost, func(s *routed, p Parked, _ *conduit.Error) bool {
			out := *p.Invoke()
			p.Splice(s.back[1], &out, s.router, 1)
			s.plugin[1].send(failureFrame(1, refused("full")))
			return true
		}, "full", conduit.OutcomeUnknown},
		"an ordinary splice to a dead link": {refuse, func(s *routed, p Parked, _ *conduit.Error) bool {
			s.back[1].Close(CloseDone, "")
			out := *p.Invoke()
			p.Splice(s.back[1], &out, s.router, 1)
			return true
		}, conduit.ReasonPluginLost, conduit.Refused},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newRouted(t, Options{}, Options{}, nil)
			s.router.failed = func(p Parked, err *conduit.Error) bool { return c.decide(s, p, err) }
			s.caller.send(invokeFrame(1, "M", whole("x", true)))
			s.plugin[0].take()
			c.fail(s)
			if name == "later" {
				synctest.Wait()
				time.Sleep(2 * time.Second)
			}
			s.failedAs(1, c.reason, c.outcome)
			if len(s.router.ends) != 1 || s.router.ends[0].tag != 1 {
				t.Errorf("ends %v", s.router.ends)
			}
			if name != "an ordinary splice that is refused after one that may have run" && s.router.ends[0].outcome != c.outcome {
				t.Errorf("ends %v", s.router.ends)
			}
		})
	}
}

// The caller's Cancel, its deadline and the loss of its link end a call that waits
// for a decision, before any attempt and between two.
func TestParkedCallEnds(t *testing.T) {
	for _, between := range []string{"", "refused", "unknown"} {
		for name, c := range map[string]struct {
			end    func(s *routed)
			reason string
		}{
			"cancel":    {func(s *routed) { s.caller.send(cancelFrame(1, "canceled")) }, conduit.ReasonCanceled},
			"deadline":  {func(*routed) { time.Sleep(10 * time.Second) }, conduit.ReasonDeadline},
			"link dies": {func(s *routed) { s.front.Close(CloseGoingAway, "") }, ""},
			"drain": {func(s *routed) {
				s.front.CancelIncoming(&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonDraining})
			}, conduit.ReasonDraining},
			"broken": {func(s *routed) { s.caller.send(dataFrame(1, whole(string(make([]byte, 70_000)), false))) }, conduit.ReasonProtocol},
		} {
			for _, how := range []string{"splice", "splice held", "refuse", "fail", "serve"} {
				bubble(t, between+"/"+name+"/"+how, func(t *testing.T) {
					s := newRouted(t, Options{}, Options{}, nil)
					if between == "" {
						s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
					}
					f := invokeFrame(1, "M", whole("x", false))
					f.GetInvoke().TimeoutMicros = 9_000_000
					s.caller.send(f, dataFrame(1, whole("y", false)))
					s.plugin[0].take()
					switch between {
					case "refused":
						s.plugin[0].send(failureFrame(1, refused("overloaded")))
					case "unknown":
						s.back[0].Close(CloseDone, "")
					}
					synctest.Wait()
					p := s.parked[0]
					select {
					case <-p.Done():
						t.Fatal("it is over")
					default:
					}
					done := p.Done()
					c.end(s)
					select {
					case <-done:
					case <-time.After(time.Second):
						t.Fatal("the holder was not told")
					}
					outcome := conduit.Refused
					if between == "unknown" || name == "broken" {
						outcome = conduit.OutcomeUnknown
					}
					if c.reason != "" {
						s.failedAs(1, c.reason, outcome)
					}
					if _, in := s.front.Calls(); in != 0 {
						t.Errorf("%d calls are left", in)
					}
					if string(p.Invoke().Method) != "M" {
						t.Errorf("the Invoke is gone: %v", p.Invoke())
					}
					attempts := 0
					if between != "" {
						attempts = 1
					}
					s.router.told(t, attempts)
					out := *p.Invoke()
					want := uint64(1)
					switch how {
					case "splice":
						want = 7
						p.Splice(s.back[1], &out, s.router, 7)
					case "splice held":
						want = 7
						p.SpliceHeld(s.back[1], &out, s.router, 7)
					case "refuse":
						p.Refuse(&conduit.Error{})
					case "fail":
						p.Fail(&conduit.Error{})
					case "serve":
						p.Serve(func(context.Context, *ServerCall) error {
							t.Error("it is served")
							return nil
						})
					}
					<-p.Done()
					synctest.Wait()
					if between == "" && want == 1 {
						s.router.told(t, 0)
					} else if e := s.router.ends; len(e) != 1 || e[0].tag != want || e[0].outcome != outcome {
						t.Errorf("ends %v", e)
					}
					if got := append(s.plugin[1].take(), s.caller.take()...); len(got) != 0 {
						t.Errorf("still: %v", got)
					}
				})
			}
		}
	}
}

// A call that is cancelled, or whose caller is lost, during an attempt is not
// passed on again.
func TestNoRerouteOfACancelledCall(t *testing.T) {
	for name, end0 := range map[string]func(s *routed){
		"cancel":    func(s *routed) { s.caller.send(cancelFrame(1, "canceled")) },
		"link dies": func(s *routed) { s.front.Close(CloseGoingAway, "") },
	} {
		for _, attempt := range []int{0, 1} {
			bubble(t, fmt.Sprintf("%s/%d", name, attempt), func(t *testing.T) {
				s := newRouted(t, Options{}, Options{}, nil)
				s.caller.send(invokeFrame(1, "M", whole("x", true)))
				if attempt == 1 {
					s.plugin[0].take()
					s.plugin[0].send(failureFrame(1, refused("overloaded")))
					s.again(1, 2)
				}
				s.plugin[attempt].take()
				end0(s)
				if !requestOf(s.plugin[attempt].take(), 1).cancel {
					t.Error("the plugin was not told")
				}
				s.router.told(t, attempt)
				s.plugin[attempt].send(failureFrame(1, refused("overloaded")))
				if name == "cancel" {
					s.failedAs(1, "overloaded", conduit.Refused)
				}
				s.router.told(t, attempt, end{uint64(attempt + 1), conduit.ResourceExhausted, conduit.Refused})
			})
		}
	}
}

// playing plays what happens while a call is being passed on to the second plugin:
// each goroutine that does so comes through here, between the Invoke and the rest.
func (s *routed) playing(p Parked, tag uint64, router Router, play func()) {
	h, c := p.h, p.h.conn
	k, first := p.claim()
	if k == nil || !first {
		s.t.Fatal("it is over")
	}
	c.begin(k, h, s.router, router, tag)
	from := spliceFrom{call: h.call, deadline: h.deadline, credit: h.inv.ReplyCredit, chunk: h.chunks[0], held: router != nil}
	from.call.try = k.try
	c.unlock()
	out := h.inv
	b, paid, err := s.back[1].spliced(&from, &out, s.router, tag)
	if err != nil || paid == 0 {
		s.t.Fatalf("paid %d, %v", paid, err)
	}
	s.back[1].flush()
	synctest.Wait()
	play()
	synctest.Wait()
	c.mu.Lock()
	h.follow(b, from.call, paid)
	s.back[1].flush()
	c.flush()
}

// What happens while another goroutine passes a call on.
func TestWhileItIsPassedOn(t *testing.T) {
	const tag = 5
	fails := func(s *routed) { s.plugin[1].send(failureFrame(1, refused("full"))) }
	for name, c := range map[string]struct {
		play   func(s *routed)
		after  func(s *routed)
		reason string // of the failure that the caller gets; "" = an answer
		asked  int    // how often the router was asked
	}{
		"nothing":                 {func(*routed) {}, func(s *routed) { s.plugin[1].send(dataFrame(1, whole("answer", true))) }, "", 1},
		"fails":                   {fails, func(s *routed) { s.parked[1].Fail(s.router.errs[1]) }, "full", 2},
		"fails after":             {func(*routed) {}, func(s *routed) { fails(s); synctest.Wait(); s.parked[1].Fail(s.router.errs[1]) }, "full", 2},
		"answers":                 {func(s *routed) { s.plugin[1].send(dataFrame(1, whole("answer", true))) }, func(*routed) {}, "", 1},
		"begins":                  {func(s *routed) { s.plugin[1].send(dataFrame(1, whole("ans", false))) }, func(s *routed) { s.plugin[1].send(dataFrame(1, whole("wer", true))) }, "", 1},
		"begins, fails":           {func(s *routed) { s.plugin[1].send(dataFrame(1, whole("ans", false))); fails(s) }, func(*routed) {}, "full", 1},
		"begins, and fails after": {func(s *routed) { s.plugin[1].send(dataFrame(1, whole("ans", false))) }, fails, "full", 1},
		"outgrown":                {func(s *routed) { s.stream(1, 3, 40, 1000) }, fails, "full", 1},
		"cancelled":               {func(s *routed) { s.caller.send(cancelFrame(1, "canceled")) }, fails, "full", 1},
		"cancelled, fails":        {func(s *routed) { s.caller.send(cancelFrame(1, "canceled")); synctest.Wait(); fails(s) }, func(*routed) {}, "full", 1},
		"caller lost":             {func(s *routed) { s.front.Close(CloseDone, "") }, fails, "-", 1},
		"caller lost, fails":      {func(s *routed) { s.front.Close(CloseDone, ""); synctest.Wait(); fails(s) }, func(*routed) {}, "-", 1},
		"fails, caller lost":      {func(s *routed) { fails(s); synctest.Wait(); s.front.Close(CloseDone, "") }, func(*routed) {}, "-", 1},
		"broken":                  {func(s *routed) { s.caller.send(dataFrame(1, whole(strings.Repeat("x", 66_000), false))) }, fails, conduit.ReasonProtocol, 1},
		"broken, and the failure waits": {func(s *routed) {
			s.front.mu.Lock()
			s.front.linkCredit = 0
			s.front.mu.Unlock()
			s.caller.send(dataFrame(1, whole(strings.Repeat("x", 66_000), false)))
		}, func(s *routed) { fails(s); s.caller.send(creditFrame(0, 60_000)) }, conduit.ReasonProtocol, 1},
		"broken, the failure waits, fails": {func(s *routed) {
			s.front.mu.Lock()
			s.front.linkCredit = 0
			s.front.mu.Unlock()
			s.caller.send(dataFrame(1, whole(strings.Repeat("x", 66_000), false)))
			synctest.Wait()
			fails(s)
		}, func(s *routed) { s.caller.send(creditFrame(0, 60_000)) }, conduit.ReasonProtocol, 1},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newRouted(t, Options{}, Options{}, &conduitv1.Hello{CallCredit: 1 << 20})
			s.caller.send(invokeFrame(1, "M", whole("x", false)))
			sent := append([]byte("x"), s.stream(1, 0, 2, 15_000)...)
			sent = append(sent, s.stream(1, 2, 1, 3_000)...)
			s.plugin[0].take()
			s.plugin[0].send(failureFrame(1, refused("overloaded")))
			synctest.Wait()
			q := &request{}
			s.playing(s.parked[0], tag, s.router, func() {
				s.caller.send(dataFrame(1, whole("meanwhile", false)))
				sent = append(sent, "meanwhile"...)
				c.play(s)
			})
			q.take(s.plugin[1].take(), 1)
			if name == "outgrown" {
				sent = append(sent, q.bytes[len(sent):]...)
				if len(sent) < 70_000 {
					t.Errorf("%d bytes arrived", len(sent))
				}
			}
			if name == "nothing" || name == "begins" {
				sent = append(sent, s.stream(1, 9, 5, 100)...)
				s.caller.send(dataFrame(1, &conduitv1.Data{Last: true}))
				q.take(s.plugin[1].take(), 1)
				if !bytes.Equal(q.bytes, sent) || !q.last {
					t.Errorf("the second got %d bytes of %d", len(q.bytes), len(sent))
				}
			}
			if over := strings.HasPrefix(name, "cancel") || strings.HasPrefix(name, "caller") || strings.HasPrefix(name, "broken"); q.cancel != (over && !strings.Contains(name, "fails")) {
				t.Errorf("cancelled: %v", q.cancel)
			}
			c.after(s)
			switch c.reason {
			case "":
				s.answered(1, "answer")
			case "-":
			default:
				s.failedAs(1, c.reason, map[bool]conduit.Outcome{true: conduit.OutcomeUnknown, false: conduit.Refused}[c.reason == conduit.ReasonProtocol])
			}
			want := end{tag, 0, 0}
			if c.reason != "" {
				want = end{tag, conduit.ResourceExhausted, conduit.Refused}
			}
			s.router.told(t, c.asked, want)
		})
	}
}

// A call whose link dies, or that is cancelled, while its handler decides.
func TestHeldTooLate(t *testing.T) {
	for _, end0 := range []string{"link dies", "cancelled"} {
		for _, how := range []string{"park", "splice held"} {
			bubble(t, end0+"/"+how, func(t *testing.T) {
				s := newRouted(t, Options{}, Options{}, nil)
				s.handler = func(in *Incoming) {
					if end0 == "cancelled" {
						in.Conn().CancelIncoming(causeOf(conduit.ReasonCanceled))
					} else {
						in.Conn().Close(CloseGoingAway, "")
					}
					if how == "park" {
						s.parked = append(s.parked, in.Park())
						return
					}
					out := *in.Invoke
					in.SpliceHeld(s.back[0], &out, s.router, 1)
				}
				s.caller.send(invokeFrame(1, "M", whole("x", true)))
				synctest.Wait()
				if end0 == "cancelled" {
					s.failedAs(1, conduit.ReasonCanceled, conduit.Refused)
				}
				if how == "park" {
					<-s.parked[0].Done()
					if s.parked[0].Peer() != s.front.o.Peer {
						t.Error("another peer")
					}
					s.passOn(0, 1)
				}
				if got := s.plugin[0].take(); len(got) != 0 {
					t.Errorf("the plugin got %v", got)
				}
				synctest.Wait()
				if e := s.router.ends; len(e) != 1 || e[0].tag != 1 || e[0].outcome != conduit.Refused || e[0].code == 0 {
					t.Errorf("ends %v", e)
				}
			})
		}
	}
}

// A handler that decides after it has parked the call: the holder hears that it is over.
func TestParkedAndRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.handler = func(in *Incoming) {
			s.parked = append(s.parked, in.Park())
			in.Refuse(&conduit.Error{Code: conduit.PermissionDenied, Reason: "no"})
		}
		s.caller.send(invokeFrame(1, "M", whole("x", true)))
		s.failedAs(1, "no", conduit.Refused)
		<-s.parked[0].Done()
		s.passOn(0, 2)
		if got := s.plugin[0].take(); len(got) != 0 {
			t.Errorf("the plugin got %v", got)
		}
		s.router.told(t, 0, end{2, conduit.Unavailable, conduit.Refused})
	})
}

// A call that failed elsewhere may be served here; one whose request is no good fails.
func TestServeParked(t *testing.T) {
	recv := func(ctx context.Context, c *ServerCall) error {
		m, err := c.Recv(ctx)
		if err == nil {
			c.Return(m)
		}
		return err
	}
	bubble(t, "after an attempt", func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.caller.send(invokeFrame(1, "M", whole("x", true)))
		s.plugin[0].take()
		s.plugin[0].send(failureFrame(1, refused("overloaded")))
		synctest.Wait()
		s.parked[0].Serve(recv)
		s.parked[0].Serve(recv)
		s.answered(1, "x")
		s.router.told(t, 1, end{1, conduit.ResourceExhausted, conduit.Refused})
	})
	bubble(t, "of a bad request", func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
		s.caller.send(invokeFrame(1, "M", piece(200_000, "abc")), dataFrame(1, whole("no piece of it", true)))
		synctest.Wait()
		s.parked[0].Serve(func(context.Context, *ServerCall) error {
			t.Error("it is served")
			return nil
		})
		s.failedAs(1, conduit.ReasonProtocol, conduit.Refused)
	})
	bubble(t, "a large message goes on", func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
		s.caller.send(invokeFrame(1, "M", piece(200_000, strings.Repeat("a", 30_000))), dataFrame(1, &conduitv1.Data{Bytes: bytes.Repeat([]byte("a"), 30_000), More: true}))
		synctest.Wait()
		s.parked[0].Serve(recv)
		if n := credits(s.caller.take(), 1); n < 200_000 {
			t.Errorf("%d bytes of credit", n)
		}
		for range 4 {
			s.caller.send(dataFrame(1, &conduitv1.Data{Bytes: bytes.Repeat([]byte("a"), 30_000), More: true}))
		}
		s.caller.send(dataFrame(1, &conduitv1.Data{Bytes: bytes.Repeat([]byte("a"), 20_000), Last: true}))
		if b, last := data(s.caller.take(), 1); len(b) != 200_000 || !last {
			t.Errorf("%d bytes came back", len(b))
		}
	})
}

// Each attempt has what is left of the deadline, and a reply window of its own.
func TestEachAttemptHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		f := invokeFrame(1, "M", whole("x", true))
		f.GetInvoke().TimeoutMicros = 9_000_000
		s.caller.send(f)
		first := requestOf(s.plugin[0].take(), 1).invoke
		time.Sleep(2 * time.Second)
		s.plugin[0].send(failureFrame(1, refused("overloaded")))
		synctest.Wait()
		if at, ok := s.parked[0].Deadline(); !ok || time.Until(at) != 7*time.Second || s.parked[0].ID() != 1 || s.parked[0].Conn() != s.front {
			t.Errorf("deadline in %v", time.Until(at))
		}
		time.Sleep(3 * time.Second)
		s.again(1, 2)
		second := requestOf(s.plugin[1].take(), 1).invoke
		if first.TimeoutMicros != 9_000_000 || second.TimeoutMicros != 4_000_000 {
			t.Errorf("remaining %d, then %d", first.TimeoutMicros, second.TimeoutMicros)
		}
		if second.ReplyCredit == 0 || second.ReplyCredit != first.ReplyCredit {
			t.Errorf("reply windows %d and %d", first.ReplyCredit, second.ReplyCredit)
		}
		if s.back[0].windows != 0 {
			t.Errorf("%d bytes are promised on the first link", s.back[0].windows)
		}
		s.plugin[1].send(dataFrame(1, whole("a", true)))
		s.answered(1, "a")
	})
}

// A parked call is decided later: what came of its request meanwhile goes with it,
// and its caller gets no credit until then.
func TestPark(t *testing.T) {
	for _, how := range []string{"splice", "splice held", "serve", "refuse", "fail"} {
		for _, size := range []int{10, 4000} {
			bubble(t, fmt.Sprintf("%s/%d", how, size), func(t *testing.T) {
				s := newRouted(t, Options{}, Options{}, nil)
				s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
				s.caller.send(invokeFrame(1, "Sum", piece(8, "abc")), dataFrame(1, &conduitv1.Data{Bytes: []byte("defgh")}))
				sent := append([]byte("abcdefgh"), s.stream(1, 0, 15, size)...)
				s.caller.send(pingFrame(5, false)) // the reader goes on
				acked := false
				for _, f := range s.caller.take() {
					acked = acked || f.GetPing().GetAck()
					if f.Call != 0 { // link credit goes back at once
						t.Errorf("the caller got %v", f)
					}
				}
				if !acked {
					t.Error("the reader waits")
				}
				p := s.parked[0]
				if p.Invoke().Data.Total != 8 || string(p.Invoke().Data.Bytes) != "abc" {
					t.Errorf("the Invoke has %v", p.Invoke().Data)
				}
				go func() {
					out := *p.Invoke()
					switch how {
					case "splice":
						p.Splice(s.back[1], &out, s.router, 3)
					case "splice held":
						p.SpliceHeld(s.back[1], &out, s.router, 3)
					case "refuse":
						p.Refuse(&conduit.Error{Code: conduit.PermissionDenied, Reason: "no"})
					case "fail":
						p.Fail(&conduit.Error{Code: conduit.PermissionDenied, Reason: "no", Outcome: conduit.Executed})
					case "serve":
						p.Serve(func(ctx context.Context, c *ServerCall) error {
							var all []byte
							for {
								m, err := c.Recv(ctx)
								if errors.Is(err, io.EOF) {
									break
								} else if err != nil {
									return err
								}
								all = append(all, m.Data...)
							}
							c.Return(conduit.Message{Data: []byte(strconv.FormatBool(bytes.Equal(all, sent)))})
							return nil
						})
					}
				}()
				switch how {
				case "refuse":
					s.failedAs(1, "no", conduit.Refused)
					s.router.told(t, 0)
					return
				case "fail":
					s.failedAs(1, "no", conduit.Executed)
					s.router.told(t, 0)
					return
				}
				synctest.Wait()
				granted := credits(s.caller.take(), 1)
				if size == 4000 && granted == 0 {
					t.Error("its caller got no credit")
				}
				more := s.stream(1, 0, 3, 500)
				sent = append(sent, more...)
				s.caller.send(dataFrame(1, &conduitv1.Data{Last: true}))
				if how == "serve" {
					s.answered(1, "true")
					s.router.told(t, 0)
					return
				}
				q := requestOf(s.plugin[1].take(), 1)
				if !bytes.Equal(q.bytes, sent) || !q.last || q.sizes[0] != 3 || q.sizes[1] != 5 {
					t.Errorf("the plugin got %d bytes of %d, last %v", len(q.bytes), len(sent), q.last)
				}
				s.plugin[1].send(dataFrame(1, whole("a", true)))
				s.answered(1, "a")
				s.router.told(t, 0, end{3, 0, 0})
			})
		}
	}
}

// Without memory a call is not parked but refused, and a held splice is a plain one.
func TestNoMemoryToHold(t *testing.T) {
	for _, how := range []string{"park", "splice"} {
		bubble(t, how, func(t *testing.T) {
			s := newRouted(t, Options{LinkMemory: 1000}, Options{}, nil)
			if how == "park" {
				s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
			}
			s.caller.send(invokeFrame(1, "M", whole("x", true)))
			if how == "park" {
				s.failedAs(1, conduit.ReasonOverloaded, conduit.Refused)
				<-s.parked[0].Done()
				out := *s.parked[0].Invoke()
				s.parked[0].Splice(s.back[0], &out, s.router, 4)
				s.router.told(t, 0, end{4, conduit.ResourceExhausted, conduit.Refused})
				return
			}
			if q := requestOf(s.plugin[0].take(), 1); string(q.bytes) != "x" {
				t.Errorf("the plugin got %v", q)
			}
			s.plugin[0].send(failureFrame(1, refused("overloaded")))
			s.failedAs(1, "overloaded", conduit.Refused)
			s.router.told(t, 0, end{1, conduit.ResourceExhausted, conduit.Refused})
		})
	}
}

// What is held is counted as long as it is held, and its memory goes back only
// when nothing waits in it any more.
func TestHeldMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, &conduitv1.Hello{CallCredit: minCallCredit})
		s.caller.send(invokeFrame(1, "M", whole(string(make([]byte, 30_000)), true)))
		synctest.Wait()
		s.front.mu.Lock()
		k := s.front.calls[1]
		chunk0, window := k.hold.chunks[0], k.window
		s.front.mu.Unlock()
		if extra := k.extra; extra != int64(cap(*chunk0.mem))-30_000 {
			t.Errorf("%d bytes are counted beside the window", extra)
		}
		if window < 30_000 || chunk0.refs.Load() != 2 {
			t.Fatalf("%d bytes are promised, and the memory has %d users", window, chunk0.refs.Load())
		}
		s.plugin[0].send(creditFrame(1, 8000))
		synctest.Wait()
		if k.window != window {
			t.Errorf("%d bytes are promised while all is held", k.window)
		}
		s.plugin[0].send(dataFrame(1, whole("an answer begins", false)))
		synctest.Wait()
		if k.hold != nil || chunk0.refs.Load() != 1 || k.window > 30_000-8000 {
			t.Errorf("held %v, %d users, %d promised", k.hold != nil, chunk0.refs.Load(), k.window)
		}
		s.plugin[0].send(creditFrame(1, 40_000))
		if q := requestOf(s.plugin[0].take(), 1); len(q.bytes) != 30_000 || !q.last || !bytes.Equal(q.bytes, make([]byte, 30_000)) {
			t.Errorf("the plugin got %d bytes", len(q.bytes))
		}
		if chunk0.refs.Load() != 0 {
			t.Errorf("%d users are left", chunk0.refs.Load())
		}
		s.plugin[0].send(dataFrame(1, &conduitv1.Data{Last: true}))
		s.answered(1, "an answer begins")
		if w, held := s.mem.Usage(); w != 0 || held != 0 {
			t.Errorf("%d and %d bytes are still counted", w, held)
		}
	})
}

// Calls are parked, spliced and rerouted by many goroutines at once, while links die.
func TestRerouteRaces(t *testing.T) {
	serve := handlerFunc(func(in *Incoming) {
		if in.ID()%3 == 0 {
			in.Refuse(&conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Retryable: true})
			return
		}
		echoHandler(in)
	})
	var mu sync.Mutex
	var toPlugin [2]*Conn
	dial := func() *Conn {
		c, _ := pair(t, Options{Duplex: true, LostReason: conduit.ReasonPluginLost}, Options{Duplex: true, Handler: serve})
		return c
	}
	toPlugin[0], toPlugin[1] = dial(), dial()
	pick := func(n uint64) *Conn {
		mu.Lock()
		defer mu.Unlock()
		return toPlugin[n%2]
	}
	var deciders sync.WaitGroup
	router := &testRouter{}
	router.failed = func(p Parked, err *conduit.Error) bool {
		if p.Invoke().Attempt > 0 && err.Outcome == conduit.OutcomeUnknown {
			return false
		}
		deciders.Go(func() {
			out := *p.Invoke()
			p.SpliceHeld(pick(p.ID()/2+1), &out, router, p.ID())
		})
		return true
	}
	c, h := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
		if in.ID()%4 == 1 {
			p := in.Park()
			deciders.Go(func() {
				out := *p.Invoke()
				p.SpliceHeld(pick(p.ID()/2), &out, router, p.ID())
			})
			return
		}
		out := *in.Invoke
		in.SpliceHeld(pick(in.ID()/2), &out, router, in.ID())
	})})
	ctx := testCtx(t)
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for n := range 12 {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
			}
			fresh := dial()
			mu.Lock()
			old := toPlugin[n%2]
			toPlugin[n%2] = fresh
			mu.Unlock()
			old.Close(CloseGoingAway, "")
		}
	})
	var wg sync.WaitGroup
	var good, calls int
	for g := range 16 {
		wg.Go(func() {
			for i := range 60 {
				req := bytes.Repeat([]byte{byte(g + i)}, g*i*977%50_000)
				short, cancel := ctx, context.CancelFunc(func() {})
				if i%7 == 0 {
					short, cancel = context.WithTimeout(ctx, time.Duration(i)*10*time.Microsecond)
				}
				got, err := unary(short, c, "Echo", req)
				cancel()
				mu.Lock()
				calls++
				if err == nil {
					good++
				}
				mu.Unlock()
				if err == nil && !bytes.Equal(got, req) {
					t.Errorf("%d bytes came back of %d", len(got), len(req))
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	killer.Wait()
	deciders.Wait()
	for _, l := range toPlugin {
		l.Close(CloseDone, "") // what was cancelled ends too
		<-l.Done()
	}
	if ctx.Err() != nil {
		t.Fatal("calls were stuck")
	}
	if good < calls/2 {
		t.Errorf("%d of %d calls succeeded", good, calls)
	}
	h.Close(CloseDone, "")
	<-h.Done()
	deciders.Wait()
	checkHolds(t, "the host", h)
	router.mu.Lock()
	defer router.mu.Unlock()
	seen := map[uint64]int{}
	for _, e := range router.ends {
		seen[e.tag]++
	}
	for tag, n := range seen {
		if n != 1 {
			t.Errorf("call %d ended %d times", tag, n)
		}
	}
	if len(seen) > calls || len(seen) < calls/2 || len(router.errs) == 0 {
		t.Errorf("%d ends and %d failures of %d calls", len(seen), len(router.errs), calls)
	}
}

// countingRouter takes calls back and passes them on to another link.
type countingRouter struct {
	ends, failures int
	to             *Conn
	out            frame.Invoke
}

func (r *countingRouter) CallEnded(uint64, conduit.Code, conduit.Outcome) { r.ends++ }

func (r *countingRouter) Failed(p Parked, tag uint64, _ *conduit.Error) bool {
	r.failures++
	r.out = *p.Invoke()
	p.SpliceHeld(r.to, &r.out, r, tag)
	return true
}

// A held splice costs no allocation either: its memory is pooled. A reroute may,
// since a failure is decoded.
func TestHeldSpliceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	back := drive(t, Options{Dialer: true, Duplex: true})
	other := drive(t, Options{Dialer: true, Duplex: true})
	router := &countingRouter{to: other.Conn}
	var out frame.Invoke
	front := drive(t, Options{Handler: handlerFunc(func(in *Incoming) {
		out = *in.Invoke
		in.SpliceHeld(back.Conn, &out, router, 1)
	})})
	failed := encodeFailure(&conduit.Error{Code: conduit.ResourceExhausted, Reason: conduit.ReasonOverloaded, Outcome: conduit.Refused})
	for _, c := range []struct {
		size    int
		reroute bool
		most    float64
	}{{32, false, 0}, {20_000, false, 0}, {32, true, 8}, {20_000, true, 8}} {
		payload := make([]byte, c.size)
		invoke := frame.Invoke{
			Instance: []byte("*"), Deployment: []byte("d"), Element: []byte("e"), Service: []byte("s.S"), Method: []byte("M"), ContentType: []byte("application/json"),
			TimeoutMicros: 30_000_000, ReplyCredit: DefaultReplyCredit, HasData: true,
			Data: frame.Data{Total: uint64(c.size), HasTotal: true, Bytes: payload},
		}
		rest := frame.Data{Total: uint64(c.size), HasTotal: true, Bytes: payload, Last: true}
		reply := frame.Data{Total: uint64(c.size), HasTotal: true, Bytes: payload, Last: true}
		id := (front.lastID + 1) | 1
		round := func() {
			reply1, reply2 := back.nextID, other.nextID
			b := frame.AppendInvoke(frame.AppendCredit(front.buf[:0], 0, uint64(front.unreturned)), id, &invoke)
			front.buf = frame.AppendData(b, id, &rest)
			front.take(t, front.buf)
			b = frame.AppendCredit(back.buf[:0], 0, uint64(back.unreturned))
			if c.reroute {
				back.buf = frame.AppendBody(b, reply1, frame.KindFailure, failed)
				back.take(t, back.buf)
				b = frame.AppendCredit(other.buf[:0], 0, uint64(other.unreturned))
				other.buf = frame.AppendData(b, reply2, &reply)
				other.take(t, other.buf)
			} else {
				back.buf = frame.AppendData(b, reply1, &reply)
				back.take(t, back.buf)
			}
			id += 2
		}
		for range 100 {
			round()
		}
		before, ends, failures := front.carrier.wrote, router.ends, router.failures
		n := testing.AllocsPerRun(200, round)
		if n > c.most {
			t.Errorf("%+v: %v allocations a call", c, n)
		}
		t.Logf("%+v: %v allocations a call", c, n)
		if wrote := front.carrier.wrote - before; wrote < 201*c.size || router.ends-ends != 201 || (router.failures-failures == 201) != c.reroute {
			t.Errorf("%+v: the test tests nothing: %d bytes written, %d ends, %d failures", c, wrote, router.ends-ends, router.failures-failures)
		}
	}
	front.Close(CloseDone, "")
	<-front.Done()
	checkHolds(t, "the front", front.Conn)
}
