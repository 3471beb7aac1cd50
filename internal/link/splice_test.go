package link

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// spliceTo passes every call on to a link.
func spliceTo(back *Conn, owner Owner) Handler {
	var out frame.Invoke
	return handlerFunc(func(in *Incoming) {
		out = *in.Invoke
		in.Splice(back, &out, owner, in.ID())
	})
}

// A packet that ends in a fault still delivers what came before it, at once.
func TestWhatPrecedesAFaultIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back, plugin := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{})
		c, caller := rawLink(t, Options{Handler: spliceTo(back, &spliceOwner{ends: map[uint64]int{}})}, &conduitv1.Hello{})
		caller.send(invokeFrame(1, "M", whole("x", true)))
		plugin.take()
		plugin.sendBytes(append(packetOf(t, dataFrame(1, whole("answer", true))), 0xff))
		if b, last := data(caller.take(), 1); string(b) != "answer" || !last {
			t.Errorf("got %q", b)
		}
		if !c.Usable() {
			t.Error("the caller's link is gone")
		}
	})
}

// A caller's link that dies while its call is being decided: the plugin must not
// go on with it.
func TestLinkThatDiesInTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner := &spliceOwner{ends: map[uint64]int{}}
		back, plugin := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{})
		handled := 0
		splice := spliceTo(back, owner)
		_, caller := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) {
			handled++
			in.Conn().Close(CloseGoingAway, "")
			splice.Handle(in)
		})}, &conduitv1.Hello{})
		caller.send(invokeFrame(1, "M", nil), invokeFrame(3, "M", nil))
		invokes, cancels := 0, 0
		for _, f := range plugin.take() {
			if f.GetInvoke() != nil {
				invokes++
			}
			if f.GetCancel() != nil {
				cancels++
			}
		}
		if handled != 1 || invokes != cancels {
			t.Errorf("%d calls were handled, %d sent to the plugin, %d cancelled there", handled, invokes, cancels)
		}
		plugin.send(failureFrame(1, &conduitv1.Failure{Code: 1}))
		synctest.Wait()
		if owner.ends[1] != 1 {
			t.Errorf("ends %v", owner.ends)
		}
	})
}

// A plugin that goes on sending after Cancel gets its credit back, and its end
// becomes the caller's one Failure.
func TestPluginThatIgnoresCancel(t *testing.T) {
	for _, last := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			owner := &spliceOwner{ends: map[uint64]int{}}
			back, plugin := rawLink(t, Options{Dialer: true, Duplex: true}, &conduitv1.Hello{})
			c, caller := rawLink(t, Options{Handler: spliceTo(back, owner)}, &conduitv1.Hello{})
			f := invokeFrame(1, "M", whole("x", true))
			f.GetInvoke().ReplyCredit = 9000
			caller.send(f)
			window := 0
			for _, f := range plugin.take() {
				if in := f.GetInvoke(); in != nil {
					window = int(in.ReplyCredit)
				}
			}
			granted := func() (n int) {
				for _, f := range plugin.take() {
					if f.Call == 1 {
						n += int(f.GetCredit().GetBytes())
					}
				}
				return n
			}
			left := window
			send := func() {
				plugin.send(dataFrame(1, whole(string(make([]byte, 2000)), false)))
				left -= 2000 + dataCost
				left += granted()
			}
			for left > 2000+dataCost {
				send() // the caller gives no credit: the last of it is queued at the host
			}
			caller.send(cancelFrame(1, "canceled"))
			left += granted()
			for range 20 {
				if left < 2000+dataCost {
					t.Fatalf("%d of %d bytes are left: the rest is lost", left, window)
				}
				send()
			}
			caller.take()
			if last {
				plugin.send(dataFrame(1, whole("done", true)))
			} else {
				plugin.send(failureFrame(1, &conduitv1.Failure{Code: 5, Reason: "no"}))
			}
			got := caller.take()
			fail := failure(got, 1)
			if len(got) != 1 || fail == nil || last && fail.Code != conduitv1.Code_CODE_CANCELLED || !last && fail.Code != conduitv1.Code_CODE_NOT_FOUND {
				t.Errorf("got %v", got)
			}
			if _, in := c.Calls(); in != 0 || owner.ends[1] != 1 {
				t.Errorf("%d calls are left, ends %v", in, owner.ends)
			}
		})
	}
}

// What a peer makes this end say must fit the least packet that it takes.
func TestPacketsKeepToTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{MaxPacket: minPacket, LinkCredit: 1 << 20})
		c.mu.Lock()
		c.writing = true // as if a write were under way
		c.mu.Unlock()
		var many frames
		for id := uint64(1); id < 400; id += 2 { // answers for the packet that is begun
			many = append(many, invokeFrame(id, "Echo", whole(string(make([]byte, 100)), true)))
		}
		r.send(many...)
		synctest.Wait()
		many = nil
		for i := range uint64(10_000) { // and more control than fits beside them
			many = append(many, pingFrame(1<<60+i, false))
		}
		r.send(many...)
		many = nil
		for id := uint64(1001); id < 1400; id += 2 { // and bulk
			many = append(many, invokeFrame(id, "Echo", whole(string(make([]byte, 10_000)), true)))
			if len(many) == 10 {
				r.send(many...)
				many = nil
			}
		}
		synctest.Wait()
		c.mu.Lock()
		waits := len(c.wbuf) + len(c.ctrl)
		c.write(false)
		if waits < minPacket {
			t.Errorf("only %d bytes wait: the test tests nothing", waits)
		}
		acks := 0
		for _, f := range r.take() {
			if f.GetPing().GetAck() {
				acks++
			}
		}
		if acks < 1000 {
			t.Errorf("%d acks", acks)
		}
		if err := c.Err(); err != nil {
			t.Error(err)
		}
	})
}

// Calls that wait in a queue when the other end goes away were not sent.
func TestGoAwayWithAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		c.mu.Lock()
		c.writing = true // as if a write were under way
		c.mu.Unlock()
		small := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
		bulk := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Request: make([]byte, 100_000), HasRequest: true, Last: true})
		r.send(goAwayFrame(&conduitv1.GoAway{Reason: "draining"}))
		for _, x := range []conduit.Exchange{small, bulk} {
			_, err := x.Recv(t.Context())
			if e := asError(t, err); e.Outcome != conduit.NotSent || e.Reason != conduit.ReasonDraining || !e.Retryable {
				t.Errorf("got %v", err)
			}
		}
		c.mu.Lock()
		c.write(false)
		if got := r.take(); len(got) != 0 {
			t.Errorf("sent %v", got)
		}
	})
}

// A refusal that cannot be written must not keep the link open.
func TestRefusalOnAStuckCarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := newSimWire(1, nil, nil)
		c := New(b, Options{})
		synctest.Wait() // its Hello fills the wire, and nobody reads
		if err := a.WriteMessage(packetOf(t, helloFrame(&conduitv1.Hello{VersionMin: 9, VersionMax: 9}))); err != nil {
			t.Fatal(err)
		}
		checkOver(t, "the link", c)
	})
}

// A Failure goes on as it came, with what the far end's instance is if nobody said,
// and as refused where it says that the call was not sent.
func TestFailureThatIsPassedOn(t *testing.T) {
	unknown := func(f *conduitv1.Failure) *conduitv1.Failure { // a field from a later version goes along
		f.ProtoReflect().SetUnknown(protoreflect.RawFields{0xf8, 0x07, 0x01})
		return f
	}
	for _, row := range []struct {
		name, instance string
		came, goes     *conduitv1.Failure
	}{
		{"plugin", "", &conduitv1.Failure{Code: 5, Reason: "no", Outcome: 3}, &conduitv1.Failure{Code: 5, Reason: "no", Outcome: 3}},
		{"plugin that says not sent", "", unknown(&conduitv1.Failure{Code: 5, Outcome: 1, Retryable: true}), unknown(&conduitv1.Failure{Code: 5, Outcome: 2, Retryable: true})},
		{"instance", "i-1", unknown(&conduitv1.Failure{Code: 5, Outcome: 3}), unknown(&conduitv1.Failure{Code: 5, Outcome: 3, Peer: "i-1"})},
		{"instance that says not sent", "i-1", &conduitv1.Failure{Outcome: 1}, &conduitv1.Failure{Outcome: 2, Peer: "i-1"}},
		{"instance that names another", "i-1", &conduitv1.Failure{Code: 5, Peer: "i-2", Op: "plugin"}, &conduitv1.Failure{Code: 5, Peer: "i-2", Op: "plugin"}},
	} {
		for _, held := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, held %v", row.name, held), func(t *testing.T) {
				t.Helper()
				back, plugin := rawLink(t, Options{Dialer: true, Duplex: true, Peer: Peer{Name: "somebody"}}, &conduitv1.Hello{Instance: row.instance})
				router := &testRouter{failed: func(Parked, *conduit.Error) bool { return false }}
				_, caller := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) {
					out := *in.Invoke
					if held {
						in.SpliceHeld(back, &out, router, 1)
					} else {
						in.Splice(back, &out, router, 1)
					}
				})}, &conduitv1.Hello{})
				caller.send(invokeFrame(1, "M", whole("x", true)))
				plugin.take()
				plugin.send(failureFrame(1, row.came))
				if got := failure(caller.take(), 1); !proto.Equal(got, row.goes) {
					t.Errorf("%v goes on as %v", row.came, got)
				}
			})
		}
	}
	bubble(t, "to its own caller", func(t *testing.T) {
		t.Helper()
		c, r := rawLink(t, Options{Dialer: true, Peer: Peer{Name: "where"}}, &conduitv1.Hello{Instance: "i-1"})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
		r.take()
		r.send(failureFrame(1, &conduitv1.Failure{Code: 5, Outcome: 1}))
		_, err := x.Recv(t.Context())
		if e := asError(t, err); e.Outcome != conduit.Refused || e.Peer != "i-1" {
			t.Errorf("got %v of %q", e, e.Peer)
		}
	})
}

// EndPassedOn ends what was passed on, for the callers at once and for the owner when the
// plugin is done; the plugin's own calls go on.
func TestEndPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner := &spliceOwner{ends: map[uint64]int{}}
		served := make(chan struct{}, 1)
		back, plugin := rawLink(t, Options{Dialer: true, Duplex: true, Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				select {
				case <-served:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})}, &conduitv1.Hello{})
		_, caller := rawLink(t, Options{Handler: spliceTo(back, owner)}, &conduitv1.Hello{})
		caller.send(invokeFrame(1, "M", whole("x", true)), invokeFrame(3, "M", whole("y", true)))
		synctest.Wait() // the plugin has got both before it answers
		plugin.send(invokeFrame(2, "Claim", whole("z", true)))
		plugin.send(dataFrame(3, whole("part", false)))
		plugin.take()
		caller.take()
		back.EndPassedOn(&conduit.Error{Code: conduit.Unavailable, Reason: conduit.ReasonReloaded, Outcome: conduit.OutcomeUnknown})
		failures := 0
		for _, f := range caller.take() {
			if b := f.GetFailure(); b != nil {
				failures++
				if b.GetReason() != conduit.ReasonReloaded || b.GetOutcome() != conduitv1.Outcome(conduit.OutcomeUnknown) {
					t.Errorf("a caller is told %v", b)
				}
			}
		}
		cancels := 0
		for _, f := range plugin.take() {
			if f.GetCancel() != nil {
				cancels++
			}
		}
		if failures != 2 || cancels != 2 || len(owner.ends) != 0 {
			t.Errorf("%d callers heard, %d cancels, ends %v", failures, cancels, owner.ends)
		}
		plugin.send(failureFrame(1, &conduitv1.Failure{Code: 1}), failureFrame(3, &conduitv1.Failure{Code: 1}))
		synctest.Wait()
		if owner.ends[1] != 1 || owner.ends[3] != 1 || !back.Usable() {
			t.Errorf("ends %v, usable: %t", owner.ends, back.Usable())
		}
		served <- struct{}{}
		if _, last := data(plugin.take(), 2); !last {
			t.Error("the plugin's own call did not go on")
		}
	})
}
