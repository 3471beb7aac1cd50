//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// FuzzPackets feeds arbitrary bytes, cut into packets, to a Conn in each role and
// to both sides of a splice. Whatever they are, nothing panics, hangs, or leaves
// memory held when the links are closed. The splice is a plain one, one whose calls are
// passed on again when they fail, or of calls that are parked until all has come; and
// each link may have the simple profile.
func FuzzPackets(f *testing.F) {
	hello, simple := packetOf(f, helloFrame(&conduitv1.Hello{})), packetOf(f, helloFrame(&conduitv1.Hello{Simple: true}))
	add := func(frames ...*conduitv1.Frame) {
		for _, role := range []byte{0, 1, 2, 3, 2 | 8, 3 | 8, 2 | 16, 3 | 16, 2 | 32} {
			f.Add(role, uint16(len(hello)), append(append([]byte{}, hello...), packetOf(f, frames...)...))
			f.Add(role|64, uint16(len(simple)), append(append([]byte{}, simple...), packetOf(f, frames...)...))
			f.Add(role|64, uint16(len(hello)), append(append([]byte{}, hello...), packetOf(f, frames...)...))
		}
	}
	add(invokeFrame(1, "Echo", whole("x", true)), dataFrame(1, whole("y", true)))
	add(invokeFrame(1, "Sum", piece(100_000, "x")), dataFrame(1, &conduitv1.Data{Bytes: []byte("yz"), More: true}), cancelFrame(1, "why"))
	add(invokeFrame(1, "Wait", nil), creditFrame(1, 1<<40), creditFrame(0, 7), pingFrame(3, false), pingFrame(1, true))
	add(dataFrame(1, whole("reply", false)), dataFrame(1, piece(5, "re")), failureFrame(1, &conduitv1.Failure{Code: 5, Reason: "no"}))
	add(goAwayFrame(&conduitv1.GoAway{LastCall: 1, Reason: "draining"}), unknownFrame(1), dataFrame(3, whole("x", true)))
	add(dataFrame(1, whole(string(make([]byte, 9000)), false)), dataFrame(1, whole(string(make([]byte, 9000)), false)), dataFrame(1, whole("x", true)))
	add(invokeFrame(1, "Sum", whole(string(make([]byte, 5000)), false)), dataFrame(1, whole(string(make([]byte, 4000)), false)), dataFrame(1, whole(string(make([]byte, 4000)), true)))
	add(invokeFrame(2, "Echo", whole("from a plugin", true)), invokeFrame(4, "Chat", nil), dataFrame(4, piece(70_000, "x")))
	f.Fuzz(func(t *testing.T, role byte, cut uint16, raw []byte) {
		synctest.Test(t, func(t *testing.T) {
			if role&64 != 0 {
				fuzzPackets(t, simple, role, cut, raw)
			} else {
				fuzzPackets(t, hello, role, cut, raw)
			}
		})
	})
}

func fuzzPackets(t *testing.T, hello []byte, role byte, cut uint16, raw []byte) {
	mem := NewMemory(1 << 20)
	mayBeSimple := role&64 != 0
	o := Options{Memory: mem, Handler: handlerFunc(echoHandler), Duplex: role&4 != 0, Simple: mayBeSimple, Reporter: newLedger()}
	o.Hello.MaxCalls = 8
	if mayBeSimple { // so that short messages are large
		o.Hello.CallCredit = minCallCredit
	}
	var conns []*driven
	start := func(o Options) *driven {
		d := &driven{carrier: &discard{over: make(chan struct{})}}
		d.Conn = New(d.carrier, o)
		conns = append(conns, d)
		return d
	}
	var d *driven
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	router := &fuzzRouter{serve: role&32 != 0}
	owner := new(countingOwner)
	spliced := 0
	splice := func(to func() *Conn) Handler {
		router.to = to
		return handlerFunc(func(in *Incoming) {
			spliced++
			out := *in.Invoke
			switch {
			case role&(16|32) != 0:
				spliced--
				router.parked = append(router.parked, in.Park())
			case role&8 != 0:
				in.SpliceHeld(to(), &out, router, 1)
			default:
				in.Splice(to(), &out, owner, 1)
			}
		})
	}
	switch role % 4 {
	case 0: // the acceptor
		d = start(o)
	case 1: // a dialer with calls under way
		o.Dialer = true
		d = start(o)
	case 2: // the caller's side of a splice
		back := start(Options{Dialer: true, Duplex: true, Simple: mayBeSimple, Memory: mem})
		if back.takePacket(&back.p, &back.f, hello) != nil {
			t.Fatal("no Hello")
		}
		o.Handler = splice(func() *Conn { return back.Conn })
		d = start(o)
	case 3: // the plugin's side
		back := Options{Dialer: true, Duplex: true, Simple: mayBeSimple, Memory: mem}
		d = start(back)
		front := start(Options{Memory: mem, Simple: mayBeSimple, Handler: splice(func() *Conn { return d.Conn })})
		if front.takePacket(&front.p, &front.f, hello) != nil {
			t.Fatal("no Hello")
		}
		if front.takePacket(&front.p, &front.f, packetOf(t, invokeFrame(1, "Sum", nil), invokeFrame(3, "Echo", whole("x", true)))) != nil {
			t.Fatal("no call")
		}
		if role&16 != 0 { // one of them now, the other when all has come
			spliced += router.decide(1)
		}
	}
	var calls []conduit.Exchange
	if role%4 == 1 {
		for range 2 {
			calls = append(calls, d.Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Request: []byte("x"), HasRequest: true, Streaming: true}))
		}
	}
	fed := make(chan struct{})
	go func() { // a reader of the simple profile may wait for room that never comes
		defer close(fed)
		for packets := 0; len(raw) > 0 && packets < 20; packets++ {
			n := min(int(cut)+1, len(raw))
			if packets > 0 {
				n = len(raw)
			} else if n > 1 {
				n-- // so that a seed's Hello is a packet of its own
			}
			if d.takePacket(&d.p, &d.f, raw[:n]) != nil {
				break
			}
			raw = raw[n:]
			time.Sleep(time.Nanosecond) // of the fake clock: so the writer has numbered the calls before more comes
		}
	}()
	time.Sleep(time.Millisecond) // of the fake clock, as above
	synctest.Wait()
	select {
	case <-fed:
	default:
		if !mayBeSimple {
			t.Error("a reader waits")
		}
		d.Close(CloseDone, "")
		<-fed
	}
	spliced += router.decide(len(router.parked))
	d.CancelIncoming(&conduit.Error{Code: conduit.Canceled, Reason: conduit.ReasonCanceled})
	for _, c := range conns {
		c.Close(CloseDone, "")
	}
	for _, c := range conns {
		checkOver(t, "link", c.Conn)
	}
	for _, x := range calls { // what came for them stays theirs to take until they are given up
		x.Cancel(nil)
	}
	synctest.Wait() // handlers that were cancelled give back what they hold
	for _, c := range conns {
		checkHolds(t, "link", c.Conn)
	}
	if ends := int(*owner) + router.ends; ends != spliced {
		t.Errorf("owners of %d calls were told of %d ends", spliced, ends)
	}
	checkMemory(t, "link", mem)
}

// fuzzRouter passes failed calls on once more, to the same link, and decides about
// parked ones when it is told to.
type fuzzRouter struct {
	to     func() *Conn
	serve  bool
	parked []Parked
	again  int
	ends   int
}

// decide decides about the first n parked calls, and returns how many it passed on.
func (r *fuzzRouter) decide(n int) (passed int) {
	for _, p := range r.parked[:n] {
		if r.serve {
			p.Serve(func(ctx context.Context, s *ServerCall) error {
				for {
					if _, err := s.Recv(ctx); err != nil {
						return err
					}
				}
			})
			continue
		}
		out := *p.Invoke()
		p.SpliceHeld(r.to(), &out, r, 1)
		passed++
	}
	r.parked = r.parked[n:]
	return passed
}

func (r *fuzzRouter) CallEnded(uint64, conduit.Code, conduit.Outcome) { r.ends++ }

func (r *fuzzRouter) Failed(p Parked, _ uint64, _ *conduit.Error) bool {
	if r.again++; r.again > 3 {
		return false
	}
	out := *p.Invoke()
	p.SpliceHeld(r.to(), &out, r, 1)
	return true
}
