//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// This file is the table "what a fault costs" of docs/protocol.md: each row is a
// test, driven by a raw end.

type frames = []*conduitv1.Frame

// bubble runs a test in fake time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// alive fails unless the link still serves a call with this id.
func alive(t *testing.T, r *rawEnd, id uint64) {
	t.Helper()
	r.send(invokeFrame(id, "Echo", whole("alive", true)))
	if got, last := data(r.take(), id); string(got) != "alive" || !last {
		code, why := r.closed()
		t.Errorf("the link does not live on: %q, closed %d %s", got, code, why)
	}
}

func TestFaultsThatCostTheLink(t *testing.T) {
	wait := &conduitv1.Data{Last: true}
	for _, row := range []struct {
		name   string
		dialer bool // the end under test dialled, and has made call 1
		send   frames
		code   CloseCode
		why    string
	}{
		{name: "Data for a call never started", send: frames{dataFrame(7, whole("x", true))}, why: "call 7 was never started"},
		{name: "Credit for a call never started", send: frames{creditFrame(7, 1)}, why: "call 7"},
		{name: "Cancel for a call never started", send: frames{cancelFrame(7, "")}, why: "call 7"},
		{name: "Failure for a call never started", dialer: true, send: frames{failureFrame(7, &conduitv1.Failure{Code: 5})}, why: "call 7"},
		{name: "Data on call 0", send: frames{dataFrame(0, whole("x", true))}, why: "call 0"},
		{name: "Failure for one's own call", send: frames{invokeFrame(1, "Wait", wait), failureFrame(1, &conduitv1.Failure{Code: 5})}, why: "made itself"},
		{name: "Cancel for a call that one serves", dialer: true, send: frames{cancelFrame(1, "")}, why: "which the other end serves"},
		{name: "link credit overflow", send: frames{creditFrame(0, 1<<63)}, why: "link credit overflow"},
		{name: "link credit overflow by a sum", send: frames{creditFrame(0, 1<<39), creditFrame(0, 1<<39), creditFrame(0, 1<<39)}, why: "link credit overflow"},
		{name: "id used again", send: frames{invokeFrame(3, "Echo", whole("x", true)), invokeFrame(3, "Echo", whole("x", true))}, why: "does not grow"},
		{name: "id below the last", send: frames{invokeFrame(5, "Echo", whole("x", true)), invokeFrame(3, "Echo", whole("x", true))}, why: "does not grow"},
		{name: "id of the wrong parity", send: frames{invokeFrame(2, "Echo", whole("x", true))}, why: "parity"},
		{name: "id 0", send: frames{invokeFrame(0, "Echo", whole("x", true))}},
		{name: "Invoke from the acceptor", dialer: true, send: frames{invokeFrame(2, "Echo", whole("x", true))}, why: "may not call"},
		{name: "a second Hello", send: frames{helloFrame(&conduitv1.Hello{})}, why: "a second Hello"},
		{name: "GoAway that does not decode", send: frames{badBody(0, 8)}, why: "GoAway does not decode"},
		{name: "Failure that does not decode", dialer: true, send: frames{badBody(1, 5)}, why: "Failure of call 1 does not decode"},
	} {
		bubble(t, row.name, func(t *testing.T) {
			c, r := rawLink(t, Options{Dialer: row.dialer}, &conduitv1.Hello{})
			var x conduit.Exchange
			if row.dialer {
				x = c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
			}
			r.take()
			r.send(row.send...)
			code, why := r.closed()
			if row.code == 0 {
				row.code = CloseProtocol
			}
			if code != row.code || !strings.Contains(why, row.why) {
				t.Errorf("closed %d %q, want %d %q", code, why, row.code, row.why)
			}
			if x != nil {
				_, err := x.Recv(t.Context())
				if e := asError(t, err); e.Outcome != conduit.OutcomeUnknown || e.Reason != conduit.ReasonPeerLost {
					t.Errorf("the call under way ended with %v", e)
				}
			}
		})
	}
}

// badBody is a frame whose sub-message does not parse: its first field is a
// string that is not UTF-8.
func badBody(call uint64, field int) *conduitv1.Frame {
	f := &conduitv1.Frame{Call: call}
	raw := []byte{byte(field<<3 | 2), 4, 2<<3 | 2, 2, 0xff, 0xfe} // field 2, a string in both
	f.ProtoReflect().SetUnknown(raw)
	return f
}

func asError(tb testing.TB, err error) *conduit.Error {
	tb.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok {
		tb.Fatalf("got %v, no *conduit.Error", err)
	}
	return e
}

func TestBytesThatCostTheLink(t *testing.T) {
	good, err := proto.Marshal(&conduitv1.Packet{Frames: frames{invokeFrame(1, "Echo", whole("before", true))}})
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, "malformed", func(t *testing.T) {
		_, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.sendBytes(append(append([]byte{}, good...), 0x0a, 0x7f, 1))
		if code, why := r.closed(); code != CloseProtocol || !strings.Contains(why, "malformed packet") {
			t.Errorf("closed %d %s", code, why)
		}
	})
	bubble(t, "too big", func(t *testing.T) {
		_, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.sendBytes(make([]byte, DefaultMaxPacket+1))
		if code, why := r.closed(); code != CloseTooBig || !strings.Contains(why, "262145") {
			t.Errorf("closed %d %s", code, why)
		}
	})
	bubble(t, "just not too big", func(t *testing.T) {
		_, r := rawLink(t, Options{}, &conduitv1.Hello{})
		p := append([]byte{}, good...)
		pad := DefaultMaxPacket - len(p) - 4
		p = append(p, 0x7a, byte(pad|0x80), byte(pad>>7|0x80), byte(pad>>14)) // an unknown field of the packet
		r.sendBytes(append(p, make([]byte, pad)...))
		if got, last := data(r.take(), 1); string(got) != "before" || !last {
			t.Errorf("got %q", got)
		}
	})
}

func TestBeforeHello(t *testing.T) {
	for name, f := range map[string]*conduitv1.Frame{
		"invoke": invokeFrame(1, "Echo", whole("x", true)), "data": dataFrame(1, whole("x", true)),
		"failure": failureFrame(1, &conduitv1.Failure{Code: 5}), "cancel": cancelFrame(1, ""), "credit": creditFrame(0, 1), "ping": pingFrame(1, false),
	} {
		bubble(t, name, func(t *testing.T) {
			_, r := rawLink(t, Options{}, nil)
			r.send(f)
			if code, why := r.closed(); code != CloseProtocol || !strings.Contains(why, name+" before Hello") {
				t.Errorf("closed %d %s", code, why)
			}
		})
	}
	bubble(t, "unknown kinds are skipped", func(t *testing.T) {
		_, r := rawLink(t, Options{}, nil)
		r.send(unknownFrame(0))
		r.send(helloFrame(&conduitv1.Hello{}))
		alive(t, r, 1)
	})
	bubble(t, "a Hello on a call", func(t *testing.T) {
		_, r := rawLink(t, Options{}, nil)
		f := helloFrame(&conduitv1.Hello{})
		f.Call = 1
		r.send(f)
		if code, _ := r.closed(); code != CloseProtocol {
			t.Errorf("closed %d", code)
		}
	})
	bubble(t, "a Hello that does not decode", func(t *testing.T) {
		_, r := rawLink(t, Options{}, nil)
		f := &conduitv1.Frame{}
		f.ProtoReflect().SetUnknown([]byte{2<<3 | 2, 3, 5<<3 | 2, 1, 0xff})
		r.send(f)
		if code, why := r.closed(); code != CloseProtocol || !strings.Contains(why, "Hello does not decode") {
			t.Errorf("closed %d %s", code, why)
		}
	})
	for _, dialer := range []bool{false, true} {
		bubble(t, fmt.Sprintf("no Hello in time, dialer %v", dialer), func(t *testing.T) {
			c, r := rawLink(t, Options{Dialer: dialer}, nil)
			start := time.Now()
			var x conduit.Exchange
			if dialer { // a call that waits must not change the time
				x = c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true})
			}
			<-c.Done()
			if d := time.Since(start); d != DefaultHelloTimeout {
				t.Errorf("closed after %v", d)
			}
			if code, why := r.closed(); code != CloseProtocol || !strings.Contains(why, "no Hello within 5s") {
				t.Errorf("closed %d %s", code, why)
			}
			if x != nil {
				_, err := x.Recv(t.Context())
				if e := asError(t, err); e.Outcome != conduit.NotSent {
					t.Errorf("the call ended with %v", e)
				}
			}
		})
	}
}

// unknownFrame is of a kind that a later version may have.
func unknownFrame(call uint64) *conduitv1.Frame {
	f := &conduitv1.Frame{Call: call}
	f.ProtoReflect().SetUnknown([]byte{15<<3 | 2, 3, 1, 2, 3})
	return f
}

func TestHelloRefusals(t *testing.T) {
	for _, row := range []struct {
		name  string
		mine  Hello
		check error
		hello *conduitv1.Hello
		why   string
	}{
		{name: "newer version", hello: &conduitv1.Hello{VersionMin: 2, VersionMax: 5}, why: "no common protocol version: this end speaks 1 to 1, the other 2 to 5"},
		{name: "required feature", hello: &conduitv1.Hello{Required: []string{"warp"}}, why: `requires the feature "warp"`},
		{name: "feature that it lacks", mine: Hello{Required: []string{"warp"}, Supported: []string{"warp"}}, hello: &conduitv1.Hello{}, why: `this end requires the feature "warp"`},
		{name: "simple profile", hello: &conduitv1.Hello{Simple: true}, why: "simple profile"},
		{name: "packets too small", hello: &conduitv1.Hello{MaxPacket: minPacket - 1}, why: "too small"},
		{name: "link credit too small", hello: &conduitv1.Hello{LinkCredit: minLinkCredit - 1}, why: "too small"},
		{name: "call credit too small", hello: &conduitv1.Hello{CallCredit: minCallCredit - 1}, why: "too small"},
		{name: "the owner's check", check: errors.New("not one of ours"), hello: &conduitv1.Hello{}, why: "not one of ours"},
	} {
		for _, dialer := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, dialer %v", row.name, dialer), func(t *testing.T) {
				c, r := rawLink(t, Options{Dialer: dialer, Hello: row.mine, Check: func(Hello) error { return row.check }}, nil)
				r.send(helloFrame(row.hello))
				got := r.take()
				if len(got) == 0 || got[len(got)-1].GetGoAway() == nil {
					t.Fatalf("no GoAway: %v", got)
				}
				if g := got[len(got)-1].GetGoAway(); !strings.Contains(g.Message, row.why) || g.Reason != conduit.ReasonProtocol {
					t.Errorf("GoAway %v", g)
				}
				if code, why := r.closed(); code != CloseProtocol || !strings.Contains(why, row.why[:8]) {
					t.Errorf("closed %d %s", code, why)
				}
				if err := c.Ready(t.Context()); asError(t, err).Outcome != conduit.NotSent {
					t.Errorf("Ready: %v", err)
				}
			})
			bubble(t, fmt.Sprintf("a GoAway instead of a Hello, dialer %v", dialer), func(t *testing.T) {
				c, r := rawLink(t, Options{Dialer: dialer}, nil)
				r.send(goAwayFrame(&conduitv1.GoAway{Reason: "protocol", Message: "I speak 3, you speak 1"}))
				synctest.Wait()
				if err := r.c.Close(CloseProtocol, ""); err != nil {
					t.Error(err)
				}
				err := c.Ready(t.Context())
				if e := asError(t, err); !strings.Contains(e.Message, "I speak 3") || e.Code != conduit.FailedPrecondition || e.Retryable {
					t.Errorf("Ready: %v", err)
				}
			})
		}
	}
}

func TestFramesThatAreDroppedOrSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		alive(t, r, 1)
		late := frames{dataFrame(1, whole("late", true)), creditFrame(1, 1<<63), cancelFrame(1, "late")}
		for i, f := range late {
			r.send(f)
			synctest.Wait()
			if n := c.Stats().Dropped; n != uint64(i+1) {
				t.Errorf("%v: %d dropped", f, n)
			}
		}
		r.send(unknownFrame(1), unknownFrame(0), unknownFrame(99))
		later := invokeFrame(3, "Echo", whole("still", true))
		later.GetInvoke().ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 1, 9}) // field 1023
		r.send(later)
		if got, _ := data(r.take(), 3); string(got) != "still" {
			t.Errorf("got %q", got)
		}
		// Data behind last, of a call that lives.
		r.send(invokeFrame(5, "Wait", whole("", true)), dataFrame(5, whole("more", false)))
		synctest.Wait()
		if n := c.Stats().Dropped; n != 4 {
			t.Errorf("%d dropped", n)
		}
		alive(t, r, 7)
	})
	bubble(t, "what comes for a refused call", func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Echo", &conduitv1.Data{Total: proto.Uint64(DefaultMaxMessage + 1), More: true, Bytes: []byte("x")}),
			dataFrame(1, &conduitv1.Data{Bytes: []byte("y"), More: true}), cancelFrame(1, ""))
		if f := failure(r.take(), 1); f == nil || f.Reason != conduit.ReasonPayloadTooLarge || f.Outcome != conduitv1.Outcome_OUTCOME_REFUSED {
			t.Errorf("got %v", f)
		}
		if c.Stats().Dropped == 0 {
			t.Error("nothing was dropped")
		}
		alive(t, r, 3)
	})
}

func TestFaultsThatCostTheCall(t *testing.T) {
	open := func(method string, d *conduitv1.Data) *conduitv1.Frame { return invokeFrame(1, method, d) }
	big := strings.Repeat("x", 40_000)
	for _, row := range []struct {
		name    string
		send    frames
		reason  string
		outcome conduitv1.Outcome
		retry   bool
	}{
		{name: "call credit overflow", send: frames{open("Wait", whole("", false)), creditFrame(1, 1<<62)}},
		{name: "call credit overflow by a sum", send: frames{open("Wait", whole("", false)), creditFrame(1, 1<<39), creditFrame(1, 1<<39), creditFrame(1, 1<<39)}},
		{name: "more than the call credit", send: frames{open("Wait", nil), dataFrame(1, piece(100_000, big)), dataFrame(1, &conduitv1.Data{Bytes: []byte(big), More: true}), dataFrame(1, &conduitv1.Data{Bytes: []byte(big), More: true}), dataFrame(1, &conduitv1.Data{Bytes: []byte(big), More: true})}},
		{name: "another part within a message", send: frames{open("Sum", piece(10, "12345")), dataFrame(1, &conduitv1.Data{Part: 1, Bytes: []byte("67890")})}},
		{name: "bytes without a total", send: frames{open("Sum", nil), dataFrame(1, &conduitv1.Data{Bytes: []byte("x")})}},
		{name: "more without a total", send: frames{open("Sum", nil), dataFrame(1, &conduitv1.Data{More: true})}},
		{name: "bytes without a total in the Invoke", send: frames{open("Sum", &conduitv1.Data{Bytes: []byte("x")})}, outcome: conduitv1.Outcome_OUTCOME_REFUSED},
		{name: "less than the total", send: frames{open("Sum", piece(10, "12345")), dataFrame(1, &conduitv1.Data{Bytes: []byte("6789")})}},
		{name: "less than the total at once", send: frames{open("Sum", nil), dataFrame(1, &conduitv1.Data{Total: proto.Uint64(5), Bytes: []byte("1234")})}},
		{name: "more than the total", send: frames{open("Sum", piece(10, "12345")), dataFrame(1, &conduitv1.Data{Bytes: []byte("67890+")})}},
		{name: "more than the total though it goes on", send: frames{open("Sum", piece(10, "12345")), dataFrame(1, &conduitv1.Data{Bytes: []byte("67890+"), More: true})}},
		{name: "more than the total at once", send: frames{open("Sum", nil), dataFrame(1, piece(3, "1234"))}},
		{name: "a message within a message", send: frames{open("Sum", piece(10, "12345")), dataFrame(1, whole("x", false))}},
		{name: "last within a message", send: frames{open("Sum", nil), dataFrame(1, &conduitv1.Data{Total: proto.Uint64(10), Bytes: []byte("12345"), More: true, Last: true})}},
		{name: "a content type without end", send: frames{open("Sum", nil), dataFrame(1, &conduitv1.Data{Total: proto.Uint64(1), Bytes: []byte("1"), ContentType: strings.Repeat("x", maxName+1)})}},
		{name: "a message above the cap", send: frames{open("Sum", nil), dataFrame(1, piece(DefaultMaxMessage+1, "x"))}, reason: conduit.ReasonPayloadTooLarge},
		{name: "a message above the cap in the Invoke", send: frames{open("Sum", piece(DefaultMaxMessage+1, "x"))}, reason: conduit.ReasonPayloadTooLarge, outcome: conduitv1.Outcome_OUTCOME_REFUSED},
		{name: "a message of 2^64-1 bytes", send: frames{open("Sum", &conduitv1.Data{Total: proto.Uint64(1<<64 - 1), More: true})}, reason: conduit.ReasonPayloadTooLarge, outcome: conduitv1.Outcome_OUTCOME_REFUSED},
		{name: "an Invoke's payload above the call credit", send: frames{open("Sum", whole(strings.Repeat("x", DefaultRequestCredit-dataCost+1), true))}, outcome: conduitv1.Outcome_OUTCOME_REFUSED},
		{name: "an Invoke's header without end", send: frames{open(strings.Repeat("m", maxInvoke+1), whole("x", true))}, reason: conduit.ReasonPayloadTooLarge, outcome: conduitv1.Outcome_OUTCOME_REFUSED},
	} {
		bubble(t, row.name, func(t *testing.T) {
			_, r := rawLink(t, Options{}, &conduitv1.Hello{})
			r.send(row.send...)
			if row.reason == "" {
				row.reason = conduit.ReasonProtocol
			}
			f := failure(r.take(), 1)
			if f == nil || f.Reason != row.reason || f.Outcome != row.outcome || f.Retryable != row.retry {
				t.Errorf("got %v, want %s, %s", f, row.reason, row.outcome)
			}
			alive(t, r, 3)
		})
	}
}

func TestReplyCredit(t *testing.T) {
	call := func(credit uint32, text string) *conduitv1.Frame {
		f := invokeFrame(1, "Echo", whole(text, true))
		f.GetInvoke().ReplyCredit = credit
		return f
	}
	for _, n := range []uint32{0, dataCost} {
		bubble(t, fmt.Sprintf("%d is refused", n), func(t *testing.T) {
			_, r := rawLink(t, Options{}, &conduitv1.Hello{})
			r.send(call(n, "hello"))
			if f := failure(r.take(), 1); f == nil || f.Reason != conduit.ReasonProtocol || f.Outcome != conduitv1.Outcome_OUTCOME_REFUSED {
				t.Errorf("got %v", f)
			}
			alive(t, r, 3)
		})
	}
	bubble(t, "33 is a byte at a time", func(t *testing.T) {
		_, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.send(call(dataCost+1, "hello"))
		var all []byte
		for i := range 5 {
			got := r.take()
			b, last := data(got, 1)
			if len(b) != 1 || last != (i == 4) {
				t.Fatalf("byte %d: %v", i, got)
			}
			all = append(all, b...)
			if i < 4 { // half of it is not enough for one byte
				r.send(creditFrame(1, 20))
				if got := r.take(); len(got) != 0 {
					t.Fatalf("came without credit: %v", got)
				}
				r.send(creditFrame(1, 13))
			}
		}
		if string(all) != "hello" {
			t.Errorf("got %q", all)
		}
	})
}

func TestOverMaxCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{Hello: Hello{MaxCalls: 4}}, &conduitv1.Hello{})
		for id := uint64(1); id <= 13; id += 2 {
			r.send(invokeFrame(id, "Wait", &conduitv1.Data{Last: true}))
		}
		got := r.take()
		for id := uint64(1); id <= 13; id += 2 {
			f := failure(got, id)
			if refused := id > 7; refused != (f != nil) {
				t.Errorf("call %d: %v", id, f)
			} else if refused && (f.Reason != conduit.ReasonOverloaded || f.Code != conduitv1.Code_CODE_RESOURCE_EXHAUSTED || !f.Retryable || f.Outcome != conduitv1.Outcome_OUTCOME_REFUSED) {
				t.Errorf("call %d: %v", id, f)
			}
		}
		if _, in := c.Calls(); in != 4 {
			t.Errorf("%d calls", in)
		}
		r.send(cancelFrame(3, ""))
		synctest.Wait()
		r.send(invokeFrame(15, "Echo", whole("room", true)))
		if b, _ := data(r.take(), 15); string(b) != "room" {
			t.Errorf("got %q", b)
		}
	})
}

func TestFloods(t *testing.T) {
	bubble(t, "pings", func(t *testing.T) {
		c, r := rawLink(t, Options{}, &conduitv1.Hello{})
		var many frames
		for i := range 5000 {
			many = append(many, pingFrame(uint64(i), false))
		}
		for range 20 {
			r.send(many...)
		}
		acks := 0
		for _, f := range r.take() {
			if f.GetPing().GetAck() {
				acks++
			}
		}
		if acks == 0 {
			t.Error("no ping was answered")
		}
		c.mu.Lock()
		held := cap(c.ctrl) + cap(c.wbuf) + cap(c.spare)
		c.mu.Unlock()
		if held > 1<<20 {
			t.Errorf("the link holds %d bytes for it", held)
		}
		alive(t, r, 1)
	})
	bubble(t, "refused calls whose end nobody reads", func(t *testing.T) {
		wire, a, b := newSimWire(100<<10, nil, nil)
		c := New(b, Options{Hello: Hello{MaxCalls: 10}})
		if err := a.WriteMessage(packetOf(t, helloFrame(&conduitv1.Hello{}))); err != nil {
			t.Fatal(err)
		}
		// The raw end never reads: the Failures fill the link's credit and then wait.
		var err error
		n := 0
		for id := uint64(1); err == nil && n < 100_000; {
			var many frames
			for range 25 {
				many = append(many, invokeFrame(id, "M", whole("x", true)))
				id, n = id+2, n+1
			}
			err = a.WriteMessage(packetOf(t, many...))
			synctest.Wait()
		}
		<-c.Done()
		var e *CloseError
		if !errors.As(c.Err(), &e) || e.Code != CloseTryLater {
			t.Errorf("after %d calls: %v", n, c.Err())
		}
		checkOver(t, "the link", c)
		wire.mu.Lock()
		wire.kill()
		wire.mu.Unlock()
	})
}

func packetOf(tb testing.TB, f ...*conduitv1.Frame) []byte {
	tb.Helper()
	p, err := proto.Marshal(&conduitv1.Packet{Frames: f})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestAnswerAboveTheCallersCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, r := rawLink(t, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, s *ServerCall) error {
				if string(s.Invoke().Method) == "Send" {
					return s.Send(ctx, conduit.Message{Data: make([]byte, 101)})
				}
				s.Return(conduit.Message{Data: make([]byte, 101)})
				return nil
			})
		})}, &conduitv1.Hello{MaxMessage: 100})
		for i, m := range []string{"Send", "Return"} {
			r.send(invokeFrame(uint64(2*i+1), m, whole("x", true)))
			f := failure(r.take(), uint64(2*i+1))
			if f == nil || f.Reason != conduit.ReasonPayloadTooLarge || f.Outcome != conduitv1.Outcome_OUTCOME_EXECUTED || f.Details["limit"] != "100" || f.Details["size"] != "101" {
				t.Errorf("%s: %v", m, f)
			}
		}
	})
}

func TestFaultsOfAReply(t *testing.T) {
	for name, reply := range map[string]frames{
		"above the cap":         {dataFrame(1, piece(DefaultMaxMessage+1, "x"))},
		"bad total":             {dataFrame(1, &conduitv1.Data{Total: proto.Uint64(3), Bytes: []byte("x"), Last: true})},
		"part within a message": {dataFrame(1, piece(3, "x")), dataFrame(1, &conduitv1.Data{Part: 2, Bytes: []byte("yz")})},
		"credit overflow":       {creditFrame(1, 1<<62)},
	} {
		bubble(t, name, func(t *testing.T) {
			c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
			x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Streaming: true})
			r.take()
			r.send(reply...)
			_, err := x.Recv(t.Context())
			if e := asError(t, err); e.Outcome != conduit.OutcomeUnknown || e.Reason != conduit.ReasonProtocol && e.Reason != conduit.ReasonPayloadTooLarge {
				t.Errorf("got %v", e)
			}
			told := false
			for _, f := range r.take() {
				told = told || f.GetCancel() != nil && f.Call == 1
			}
			if !told {
				t.Error("the server was not told to stop")
			}
			if !c.Usable() {
				t.Error("the link is gone")
			}
		})
	}
}

func TestTextThatIsNotUTF8(t *testing.T) {
	bad := "caf\xe9"
	for name, in := range map[string]conduit.Invocation{
		"method":       {Method: bad},
		"content type": {ContentType: bad},
		"accept":       {Accept: bad},
		"session":      {As: conduit.AsWhom{Kind: conduit.AsSession, Session: bad}},
		"name":         {As: conduit.AsWhom{Kind: conduit.AsVouched, Name: bad}},
		"chain":        {Chain: []string{"ok", bad}},
		"traceparent":  {TraceParent: bad},
		"tracestate":   {TraceParent: "ok", TraceState: bad},
		"long":         {Method: strings.Repeat("x", maxHeader)},
		"long chain":   {Chain: make([]string, 65)},
	} {
		bubble(t, name, func(t *testing.T) {
			c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
			in.Last = true
			_, err := c.Invoke(t.Context(), testRoute, &in).Recv(t.Context())
			if e := asError(t, err); e.Code != conduit.InvalidArgument && e.Reason != conduit.ReasonPayloadTooLarge || e.Outcome != conduit.NotSent {
				t.Errorf("got %v", e)
			}
			if got := r.take(); len(got) != 0 {
				t.Errorf("sent %v", got)
			}
		})
	}
	bubble(t, "an error", func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(context.Context, *ServerCall) error {
				return &conduit.Error{
					Code: conduit.NotFound, Reason: bad, Message: bad + strings.Repeat("y", 100_000), Op: bad, Peer: bad, Address: bad, Method: bad,
					Details: map[string]string{bad: bad, "long": strings.Repeat("z", 100_000)},
				}
			})
		})})
		_, err := unary(t.Context(), c, "M", nil)
		if e := asError(t, err); e.Code != conduit.NotFound || e.Reason != "caf?" || e.Outcome != conduit.Executed {
			t.Errorf("got %v", e)
		}
		if !c.Usable() {
			t.Errorf("the link is gone: %v", c.Err())
		}
	})
	bubble(t, "content types of results", func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, s *ServerCall) error {
				if string(s.Invoke().Method) == "Send" {
					return s.Send(ctx, conduit.Message{ContentType: bad})
				}
				s.Return(conduit.Message{ContentType: bad})
				return nil
			})
		})})
		for _, m := range []string{"Send", "Return"} {
			_, err := unary(t.Context(), c, m, nil)
			if e := asError(t, err); e.Reason != conduit.ReasonInternal || e.Outcome != conduit.Executed {
				t.Errorf("%s: %v", m, e)
			}
		}
	})
	bubble(t, "why a call is cancelled", func(t *testing.T) {
		causes := make(chan error, 1)
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, _ *ServerCall) error {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return nil
			})
		})})
		for _, reason := range []string{bad, strings.Repeat("x", 70_000)} {
			x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Streaming: true})
			synctest.Wait()
			x.Cancel(&conduit.Error{Code: conduit.Aborted, Reason: reason})
			if err := <-causes; !errors.Is(err, context.Canceled) {
				t.Errorf("the handler saw %v", err)
			}
		}
		if !c.Usable() {
			t.Errorf("the link is gone: %v", c.Err())
		}
	})
}

func TestHandlerThatDoesNotDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pair(t, Options{}, Options{Handler: handlerFunc(func(*Incoming) {})})
		_, err := unary(t.Context(), c, "M", nil)
		if e := asError(t, err); e.Code != conduit.Internal || e.Outcome != conduit.Refused {
			t.Errorf("got %v", e)
		}
	})
}

// Flags cost call credit, and must give it back though there is nothing to take.
func TestDataThatIsFlagsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, r := rawLink(t, Options{}, &conduitv1.Hello{})
		r.send(invokeFrame(1, "Sum", nil))
		left, sent := DefaultRequestCredit, 0
		for sent < 10_000 {
			for left >= dataCost {
				r.send(dataFrame(1, &conduitv1.Data{}))
				left -= dataCost
				sent++
			}
			before := left
			for _, f := range r.take() {
				if f.Call == 1 {
					left += int(f.GetCredit().GetBytes())
				}
			}
			if left == before {
				t.Fatalf("stalled after %d frames", sent)
			}
		}
		r.send(dataFrame(1, &conduitv1.Data{Last: true}))
		if b, last := data(r.take(), 1); string(b) != "0" || !last {
			t.Errorf("sum %q", b)
		}
	})
}

// A message in pieces of one byte costs 33 times its length; the window must not
// run dry of it, at any length around the quarters of the window.
func TestTinyPieces(t *testing.T) {
	const window = minCallCredit
	for _, total := range []int{1, 100, window/4 - 1, window / 4, window/4 + 1, window/2 - 1, window / 2, window/2 + 1, window - 32, window - 1, window, window + 1, 2 * window} {
		bubble(t, strconv.Itoa(total), func(t *testing.T) {
			_, r := rawLink(t, Options{Hello: Hello{CallCredit: window}}, &conduitv1.Hello{})
			left := window
			r.send(invokeFrame(1, "Sum", nil))
			sum := 0
			for message := range 3 {
				for i := 0; i < total; {
					n := 1
					if message%2 == 1 {
						n = min(total-i, left-dataCost)
					}
					if left < n+dataCost || n <= 0 {
						before := left
						for _, f := range r.take() {
							if f.Call == 1 && f.GetCredit() != nil {
								left += int(f.GetCredit().Bytes)
							}
						}
						if left == before {
							t.Fatalf("stalled at byte %d of %d of message %d with %d credit", i, total, message, left)
						}
						continue
					}
					d := &conduitv1.Data{Bytes: make([]byte, n), More: i+n < total}
					if i == 0 {
						d.Total = new(uint64(total))
					}
					r.send(dataFrame(1, d))
					left -= n + dataCost
					i += n
				}
				sum += total
			}
			for left < dataCost {
				for _, f := range r.take() {
					left += int(f.GetCredit().GetBytes())
				}
			}
			r.send(dataFrame(1, &conduitv1.Data{Last: true}))
			var got []byte
			for range 10 {
				b, last := data(r.take(), 1)
				if got = append(got, b...); last {
					break
				}
			}
			if string(got) != strconv.Itoa(sum) {
				t.Errorf("sum %q, want %d", got, sum)
			}
		})
	}
}

func TestRecvAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := rawLink(t, Options{Dialer: true}, &conduitv1.Hello{})
		x := c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Streaming: true})
		r.take()
		r.send(dataFrame(1, whole("a", false)), dataFrame(1, whole("b", false)), dataFrame(1, whole("c", true)))
		synctest.Wait()
		if m, err := x.Recv(t.Context()); err != nil || string(m.Data) != "a" {
			t.Fatalf("%q, %v", m.Data, err)
		}
		// Whoever leaves early must not be told that this was all.
		x.Cancel(nil)
		_, err := x.Recv(t.Context())
		if errors.Is(err, io.EOF) || err == nil {
			t.Errorf("after Cancel with messages unread: %v", err)
		}
		for range 3 {
			if _, again := x.Recv(t.Context()); !errors.Is(again, context.Canceled) {
				t.Errorf("again: %v", again)
			}
		}
	})
}
