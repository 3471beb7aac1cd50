//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// countingGuest counts its calls that are over.
type countingGuest struct{ left atomic.Int64 }

func (g *countingGuest) CallLeft() { g.left.Add(1) }

func (g *countingGuest) check(t *testing.T, what string, want int64) {
	t.Helper()
	synctest.Wait()
	if got := g.left.Load(); got != want {
		t.Errorf("%s: %d calls have left, want %d", what, got, want)
	}
}

// Calls of one guest are cancelled, wherever they run, and no others.
func TestCancelIncomingOf(t *testing.T) {
	over := &conduit.Error{Code: conduit.Unauthenticated, Reason: conduit.ReasonSessionExpired, Message: "over"}
	for _, how := range []string{"served", "spliced", "held", "parked"} {
		bubble(t, how, func(t *testing.T) {
			ada, bob := &countingGuest{}, &countingGuest{}
			s := newRouted(t, Options{}, Options{}, nil)
			s.handler = func(in *Incoming) {
				switch string(in.Invoke.Element) {
				case "ada":
					in.SetGuest(ada)
				case "bob":
					in.SetGuest(bob)
				}
				out := *in.Invoke
				switch how {
				case "served":
					in.Serve(func(ctx context.Context, _ *ServerCall) error {
						<-ctx.Done()
						return context.Cause(ctx)
					})
				case "spliced":
					in.Splice(s.back[0], &out, s.router, 1)
				case "held":
					in.SpliceHeld(s.back[0], &out, s.router, 1)
				case "parked":
					s.parked = append(s.parked, in.Park())
				}
			}
			for i, who := range []string{"ada", "bob", "", "ada"} {
				f := invokeFrame(uint64(2*i+1), "M", whole("x", false))
				f.GetInvoke().Element = who
				s.caller.send(f)
			}
			s.caller.take()
			s.plugin[0].take()
			s.front.CancelIncomingOf(ada, over)
			if how == "spliced" || how == "held" {
				cancelled := map[uint64]bool{}
				for _, f := range s.plugin[0].take() {
					if x := f.GetCancel(); x != nil {
						cancelled[f.Call] = true
						if x.Reason != conduit.ReasonSessionExpired {
							t.Errorf("the plugin is told %q", x.Reason)
						}
						s.plugin[0].send(failureFrame(f.Call, &conduitv1.Failure{Code: conduitv1.Code(over.Code), Reason: over.Reason}))
					}
				}
				if len(cancelled) != 2 {
					t.Errorf("cancelled at the plugin: %v", cancelled)
				}
			}
			got := s.caller.take()
			for id, gone := range map[uint64]bool{1: true, 3: false, 5: false, 7: true} {
				f := failure(got, id)
				if (f != nil) != gone || gone && f.Reason != conduit.ReasonSessionExpired {
					t.Errorf("call %d: %v", id, f)
				}
			}
			ada.check(t, "ada", 2)
			bob.check(t, "bob", 0)
			s.front.CancelIncomingOf(ada, over) // none is left
			s.front.Close(CloseDone, "")
			bob.check(t, "bob, whose link is over", 1)
			ada.check(t, "ada, at the end", 2)
			for _, p := range s.parked {
				p.Refuse(over)
			}
		})
	}
}

// However a call ends, its guest hears of it once.
func TestGuestsLeaveOnce(t *testing.T) {
	bubble(t, "answered", func(t *testing.T) {
		g := &countingGuest{}
		_, r := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) { in.SetGuest(g); echoHandler(in) })}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Echo", whole("x", true)), invokeFrame(3, "Refuse", whole("x", true)))
		r.take()
		g.check(t, "both", 2)
	})
	bubble(t, "another guest in its place", func(t *testing.T) {
		a, b := &countingGuest{}, &countingGuest{}
		_, r := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) { in.SetGuest(a); in.SetGuest(b); echoHandler(in) })}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Wait", whole("x", true)))
		r.take()
		a.check(t, "the first", 1)
		b.check(t, "the second", 0)
		r.send(cancelFrame(1, ""))
		r.take()
		b.check(t, "the second, at its end", 1)
	})
	bubble(t, "parked", func(t *testing.T) {
		s := newRouted(t, Options{}, Options{}, nil)
		s.handler = func(in *Incoming) { s.parked = append(s.parked, in.Park()) }
		for id := uint64(1); id <= 7; id += 2 {
			s.caller.send(invokeFrame(id, "M", whole("x", true)))
		}
		s.caller.send(cancelFrame(3, ""))
		synctest.Wait()
		g := [4]countingGuest{}
		s.parked[0].SetGuest(&g[0])
		g[0].check(t, "one that waits", 0)
		s.parked[1].SetGuest(&g[1])
		g[1].check(t, "one that is cancelled", 1)
		s.parked[2].Refuse(refusedError())
		s.parked[2].SetGuest(&g[2])
		g[2].check(t, "one that is decided about", 1)
		s.parked[3].SetGuest(&g[3])
		out := *s.parked[3].Invoke()
		s.parked[3].Splice(s.back[0], &out, s.router, 1)
		g[3].check(t, "one that is passed on", 0)
		s.front.CancelIncomingOf(&g[3], refusedError())
		for _, f := range s.plugin[0].take() {
			if f.GetCancel() != nil {
				s.plugin[0].send(failureFrame(f.Call, &conduitv1.Failure{Code: 1}))
			}
		}
		g[3].check(t, "one that was passed on, and is over", 1)
		s.parked[0].Refuse(refusedError())
		s.parked[1].Refuse(refusedError())
		g[0].check(t, "one that is refused", 1)
	})
}

func refusedError() *conduit.Error {
	return conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused, "no")
}

// The units of a parked call are judged when it is decided about, and once.
func TestParkedIsJudgedWhenDecided(t *testing.T) {
	decisions := map[string]func(p Parked, back *Conn, owner Router){
		"refused": func(p Parked, _ *Conn, _ Router) { p.Refuse(refusedError()) },
		"spliced": func(p Parked, back *Conn, owner Router) {
			out := *p.Invoke()
			p.Splice(back, &out, owner, 1)
		},
		"held": func(p Parked, back *Conn, owner Router) {
			out := *p.Invoke()
			p.SpliceHeld(back, &out, owner, 1)
		},
		"served": func(p Parked, _ *Conn, _ Router) {
			p.Serve(func(context.Context, *ServerCall) error { return nil })
		},
		"judged by the handler": func(p Parked, _ *Conn, _ Router) {
			p.Reporter().Refuse(7)
			p.MarkJudged()
			p.Refuse(refusedError())
		},
	}
	for what, decide := range decisions {
		for _, gone := range []bool{false, true} {
			bubble(t, what, func(t *testing.T) {
				l := newLedger()
				router := &testRouter{failed: func(Parked, *conduit.Error) bool { return false }}
				back, plugin := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{})
				var parked Parked
				_, r := statusLink(t, Options{Reporter: l, Handler: handlerFunc(func(in *Incoming) { parked = in.Park() })})
				r.send(unitsFrame(1, "M", 7))
				r.take()
				if got := l.judged(); len(got) != 0 {
					t.Errorf("judged %v while it waits", got)
				}
				if gone {
					r.send(cancelFrame(1, ""))
					r.take()
				}
				decide(parked, back, router)
				decide(parked, back, router) // the second does nothing but count what the handler counts
				got := r.take()
				plugin.take()
				want := []int64{7}
				if what == "judged by the handler" {
					want = append(want, 7)
				}
				if judged := l.judged(); len(judged) != len(want) || judged[0] != 7 {
					t.Errorf("judged %v, want %v", judged, want)
				}
				if f := failure(got, 1); what == "refused" && !gone && (f == nil || kinds(got) != "status failure") {
					t.Errorf("got %v, and what was judged goes first", got)
				}
			})
		}
	}
	bubble(t, "of a second attempt", func(t *testing.T) {
		l := newLedger()
		back, plugin := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{})
		var parked Parked
		router := &testRouter{failed: func(p Parked, _ *conduit.Error) bool { parked = p; return true }}
		_, r := statusLink(t, Options{Reporter: l, Handler: handlerFunc(func(in *Incoming) {
			out := *in.Invoke
			in.SpliceHeld(back, &out, router, 1)
		})})
		r.send(unitsFrame(1, "M", 7))
		plugin.take()
		if got := l.judged(); len(got) != 1 {
			t.Errorf("judged %v by the first attempt", got)
		}
		plugin.send(failureFrame(1, refused("overloaded")))
		synctest.Wait()
		out := *parked.Invoke()
		parked.SpliceHeld(back, &out, router, 2)
		plugin.take()
		if got := l.judged(); len(got) != 0 {
			t.Errorf("judged %v once more", got)
		}
		plugin.send(dataFrame(3, whole("x", true)))
		if b, last := data(r.take(), 1); string(b) != "x" || !last {
			t.Errorf("got %q", b)
		}
	})
	bubble(t, "of one for which there is no memory", func(t *testing.T) {
		l := newLedger()
		var parked Parked
		_, r := statusLink(t, Options{Reporter: l, Memory: NewMemory(1), Handler: handlerFunc(func(in *Incoming) { parked = in.Park() })})
		r.send(unitsFrame(1, "M", 7))
		r.take()
		parked.Refuse(refusedError())
		if got := l.judged(); len(got) != 1 {
			t.Errorf("judged %v", got)
		}
	})
}
