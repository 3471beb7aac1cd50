package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// simpleHello is that of a plugin with the simple profile: it says nothing else.
func simpleHello() *conduitv1.Hello {
	return &conduitv1.Hello{Simple: true, MaxPacket: 64 << 20} // the latter for rawEnd's check
}

// simpleRig is a host between a caller, which is played by hand or by a link, and a
// plugin with the simple profile, played by hand.
type simpleRig struct {
	t      *testing.T
	back   *Conn
	plugin *rawEnd
	owner  *spliceOwner
	memory *Memory
}

func newSimpleRig(t *testing.T, memory int64) *simpleRig {
	t.Helper()
	r := &simpleRig{t: t, owner: &spliceOwner{ends: map[uint64]int{}}, memory: NewMemory(memory)}
	r.back, r.plugin = rawLink(t, Options{Dialer: true, Duplex: true, Simple: true, Memory: r.memory}, simpleHello())
	return r
}

// raw is a caller that is played by hand.
func (r *simpleRig) raw() *rawEnd {
	r.t.Helper()
	_, caller := rawLink(r.t, Options{Handler: spliceTo(r.back, r.owner), Memory: r.memory, ProbeInterval: -1}, &conduitv1.Hello{})
	return caller
}

// dial is a caller that is a link.
func (r *simpleRig) dial() *Conn {
	r.t.Helper()
	a, b := Pipe(4096)
	front := New(b, Options{Handler: spliceTo(r.back, r.owner), Memory: r.memory})
	caller := New(a, Options{Dialer: true})
	r.t.Cleanup(func() {
		for _, c := range []*Conn{caller, front} {
			c.Close(CloseDone, "test over")
			checkOver(r.t, "the caller's link", c)
		}
	})
	return caller
}

// got returns what came to the plugin, without what is not of calls, and fails the test if
// anything of it is not of the simple profile.
func (r *simpleRig) got() (frames []*conduitv1.Frame) {
	r.t.Helper()
	for _, f := range r.plugin.take() {
		d := f.GetData()
		if in := f.GetInvoke(); in != nil {
			d = in.Data
		}
		if f.GetCredit() != nil || d.GetMore() || d != nil && d.Total != nil && *d.Total != uint64(len(d.Bytes)) {
			r.t.Errorf("the plugin got %.100v", f)
		}
		if f.Call != 0 {
			frames = append(frames, f)
		}
	}
	return frames
}

func text100(n int) string { return strings.Repeat("0123456789", n/10+1)[:n] }

func TestSimpleProfileIsAgreedOn(t *testing.T) {
	for name, c := range map[string]struct {
		dialer, acceptor Options
		why              string
	}{
		"agreed":       {Options{Simple: true}, Options{Hello: Hello{Simple: true}}, ""},
		"not asked":    {Options{Simple: true}, Options{}, ""},
		"not served":   {Options{}, Options{Hello: Hello{Simple: true}}, "which this end serves to plugins only"},
		"none in turn": {Options{Hello: Hello{Simple: true}}, Options{}, "the other has not said that it serves that"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := Pipe(8)
				c.dialer.Dialer = true
				dialer, acceptor := New(a, c.dialer), New(b, c.acceptor)
				_ = dialer.Ready(t.Context())
				_ = acceptor.Ready(t.Context())
				synctest.Wait()
				switch simple := name == "agreed"; {
				case c.why == "" && (dialer.Err() != nil || dialer.simple != simple || acceptor.simple != simple || dialer.Theirs().Simple != simple || acceptor.Theirs().Simple != simple):
					t.Errorf("%v; %v and %v", dialer.Err(), dialer.simple, acceptor.simple)
				case c.why != "" && (dialer.Err() == nil || !strings.Contains(dialer.Err().Error(), c.why)):
					t.Errorf("%v", dialer.Err())
				}
				dialer.Close(CloseDone, "")
				acceptor.Close(CloseDone, "")
				<-dialer.Done()
				<-acceptor.Done()
			})
		})
	}
}

// A request that comes in pieces goes on as one, in memory of its own if it is above the
// window, and its caller is told by credit alone.
func TestPiecesAreJoinedForASimplePlugin(t *testing.T) {
	for _, size := range []int{0, 10, 40_000, 65_000, 200_000, 5 << 20} {
		synctest.Test(t, func(t *testing.T) {
			r := newSimpleRig(t, 64<<20)
			caller := r.dial()
			ctx := testCtx(t)
			request := []byte(text100(size))
			x := caller.Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Request: request, HasRequest: true, Last: true})
			frames := r.got()
			var whole []byte
			for _, f := range frames {
				whole = append(append(whole, f.GetInvoke().GetData().GetBytes()...), f.GetData().GetBytes()...)
			}
			if !bytes.Equal(whole, request) || frames[0].GetInvoke() == nil || len(frames) > 2 {
				t.Fatalf("%d bytes came in %d frames", len(whole), len(frames))
			}
			r.plugin.send(dataFrame(frames[0].Call, &conduitv1.Data{Total: new(uint64(size)), Bytes: request, Last: true}))
			m, err := x.Recv(ctx)
			if err != nil || !bytes.Equal(m.Data, request) {
				t.Errorf("%d bytes came back, %v", len(m.Data), err)
			}
			if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
				t.Errorf("then %v", err)
			}
			synctest.Wait()
			if r.owner.ends[1] != 1 {
				t.Errorf("ends %v", r.owner.ends)
			}
			checkMemory(t, "the host", r.memory, caller)
		})
	}
}

// What is wrong with pieces is noticed where they are joined, and costs that call.
func TestJoinedPiecesMustAddUp(t *testing.T) {
	for name, frames := range map[string][]*conduitv1.Frame{
		"too long":  {invokeFrame(1, "M", piece(5, "abc")), dataFrame(1, &conduitv1.Data{Bytes: []byte("defg")})},
		"too short": {invokeFrame(1, "M", piece(5, "abc")), dataFrame(1, &conduitv1.Data{Bytes: []byte("d"), Last: true})},
		"another":   {invokeFrame(1, "M", nil), dataFrame(1, piece(5, "abc")), dataFrame(1, whole("x", true))},
		"at once":   {invokeFrame(1, "M", &conduitv1.Data{Total: new(uint64(9)), Bytes: []byte("abc")})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSimpleRig(t, 0)
				caller := r.raw()
				caller.send(frames...)
				f := failure(caller.take(), 1)
				if f.GetReason() != conduit.ReasonProtocol {
					t.Errorf("the caller got %v", f)
				}
				invoked, canceled := false, false
				for _, f := range r.got() {
					invoked, canceled = invoked || f.GetInvoke() != nil, canceled || f.GetCancel() != nil
					if f.GetData() != nil {
						t.Errorf("the plugin got %v", f)
					}
				}
				if invoked != canceled {
					t.Errorf("invoked %v, canceled %v", invoked, canceled)
				}
				if invoked {
					r.plugin.send(failureFrame(1, &conduitv1.Failure{Code: 1}))
				}
				synctest.Wait()
				if r.owner.ends[1] != 1 {
					t.Errorf("ends %v", r.owner.ends)
				}
			})
		})
	}
}

// What a simple plugin must not send costs the call, or the link if nothing else helps.
func TestSimplePluginThatBreaksTheProfile(t *testing.T) {
	big := string(make([]byte, DefaultMaxMessage+1))
	for name, c := range map[string]struct {
		data   *conduitv1.Data
		reason string
	}{
		"a piece":   {piece(5, "ab"), conduit.ReasonProtocol},
		"no total":  {&conduitv1.Data{Bytes: []byte("x"), Last: true}, conduit.ReasonProtocol},
		"wrong":     {&conduitv1.Data{Total: new(uint64(7)), Bytes: []byte("x"), Last: true}, conduit.ReasonProtocol},
		"too large": {whole(big, true), conduit.ReasonPayloadTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSimpleRig(t, 0)
				caller := r.raw()
				caller.send(invokeFrame(1, "M", whole("x", true)), invokeFrame(3, "M", whole("x", true)))
				r.got()
				r.plugin.send(dataFrame(1, c.data))
				if f := failure(caller.take(), 1); f.GetReason() != c.reason {
					t.Errorf("the caller got %v", f)
				}
				if !c.data.Last {
					r.plugin.send(failureFrame(1, &conduitv1.Failure{Code: 1}))
				}
				// Credit means nothing; it is no fault.
				r.plugin.send(creditFrame(0, 1<<50), creditFrame(3, 7), dataFrame(3, whole("fine", true)))
				if b, last := data(caller.take(), 3); string(b) != "fine" || !last {
					t.Errorf("another call got %q", b)
				}
				if r.owner.ends[1] != 1 || r.owner.ends[3] != 1 {
					t.Errorf("ends %v", r.owner.ends)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newSimpleRig(t, 0)
		r.plugin.send(dataFrame(1, whole(string(make([]byte, DefaultMaxMessage+packetRoom)), true)))
		if code, why := r.plugin.closed(); code != CloseTooBig {
			t.Errorf("closed with %d %s", code, why)
		}
	})
}

// A caller that takes nothing keeps a lone plugin from sending, for as long as it likes.
func TestSlowCallerOfASimplePluginAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSimpleRig(t, 0)
		ctx := t.Context()
		x := r.dial().Invoke(ctx, testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true})
		const n = 100
		r.got()
		for range n {
			r.plugin.send(dataFrame(1, whole(text100(100_000), false)))
		}
		r.plugin.send(dataFrame(1, &conduitv1.Data{Last: true}))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		r.back.mu.Lock()
		held, stalled := r.back.stat.BytesIn, r.back.stalled
		r.back.mu.Unlock()
		// Two windows, the caller's and the host's, and one in the reader's hands.
		if !stalled || held > 800_000 {
			t.Errorf("the host has read %d bytes, stalled %v, %v", held, stalled, r.back.Err())
		}
		for i := range n {
			if m, err := x.Recv(ctx); err != nil || len(m.Data) != 100_000 {
				t.Fatalf("message %d: %d bytes, %v", i, len(m.Data), err)
			}
		}
		if _, err := x.Recv(ctx); !errors.Is(err, io.EOF) {
			t.Errorf("then %v", err)
		}
	})
}

// Beside others it is ended after a second, and they get their answers.
func TestSlowCallerOfASimplePluginCostsASecond(t *testing.T) {
	for _, size := range []int{1000, 600_000} {
		synctest.Test(t, func(t *testing.T) {
			r := newSimpleRig(t, 0)
			slow, other := r.raw(), r.raw()
			slow.send(invokeFrame(1, "M", whole("x", true)), creditFrame(0, 10_000)) // so that link credit is no matter
			r.got()
			for range 3 << 20 / size { // of which the slow one has credit for a twelfth
				r.plugin.send(dataFrame(1, whole(text100(size), false)))
			}
			time.Sleep(time.Minute)
			if f := failure(slow.take(), 1); f != nil {
				t.Fatalf("alone: %v", f)
			}
			other.send(invokeFrame(1, "M", whole("y", true)))
			r.got()
			r.plugin.send(dataFrame(3, whole("answer", true)))
			time.Sleep(stallMost - time.Millisecond)
			if f := failure(slow.take(), 1); f != nil {
				t.Fatalf("too early: %v", f)
			}
			time.Sleep(2 * time.Millisecond)
			if f := failure(slow.take(), 1); f.GetReason() != conduit.ReasonOverloaded || f.GetOutcome() != conduitv1.Outcome_OUTCOME_UNKNOWN {
				t.Errorf("the slow one got %v", f)
			}
			if b, last := data(other.take(), 1); string(b) != "answer" || !last {
				t.Errorf("the other got %q", b)
			}
			canceled := false
			for _, f := range r.got() {
				canceled = canceled || f.GetCancel() != nil && f.Call == 1
			}
			if !canceled {
				t.Error("the plugin was not told")
			}
			r.plugin.send(failureFrame(1, &conduitv1.Failure{Code: 1}))
			synctest.Wait()
			if r.owner.ends[1] != 2 { // one call of each
				t.Errorf("ends %v", r.owner.ends)
			}
			if _, held := r.memory.Usage(); held != 0 {
				t.Errorf("%d bytes are held", held)
			}
		})
	}
}

// A plugin that calls may be held up by its own calls only for so long.
func TestSimplePluginWhoseUploadIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan struct{})
		back, plugin := rawLink(t, Options{Dialer: true, Duplex: true, Simple: true, Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, c *ServerCall) error {
				if string(c.Invoke().Method) != "Slow" {
					return nil
				}
				<-ctx.Done()
				close(taken)
				return context.Cause(ctx)
			})
		})}, simpleHello())
		up := invokeFrame(2, "Slow", whole(text100(300_000), false))
		up.GetInvoke().ReplyCredit = 0 // there is none
		plugin.send(up)
		for range 3 {
			plugin.send(dataFrame(2, whole(text100(60_000), false)))
		}
		plugin.send(invokeFrame(4, "Fast", nil))
		time.Sleep(stallMost + time.Millisecond)
		frames := plugin.take()
		if f := failure(frames, 2); f.GetReason() != conduit.ReasonOverloaded {
			t.Errorf("the slow one got %v", f)
		}
		if _, last := data(frames, 4); !last {
			t.Error("the other got no answer")
		}
		<-taken
		if back.Err() != nil {
			t.Error(back.Err())
		}
	})
}

// Two large messages for which there is no memory at once take turns.
func TestSimplePluginsMessagesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSimpleRig(t, 2<<20) // of which messages may take half
		a, b := r.raw(), r.raw()
		a.send(invokeFrame(1, "M", whole("x", true)))
		r.got()
		b.send(invokeFrame(1, "M", whole("x", true)))
		r.got()
		r.plugin.send(dataFrame(1, whole(text100(900_000), true)))
		r.plugin.send(dataFrame(3, whole(text100(800_000), true)))
		takes := func(e *rawEnd, size int) {
			t.Helper()
			all, last := data(e.take(), 1)
			for !last {
				e.send(creditFrame(1, 100_000), creditFrame(0, 100_000))
				more, over := data(e.take(), 1)
				if len(more) == 0 && !over {
					t.Fatalf("nothing comes after %d bytes", len(all))
				}
				all, last = append(all, more...), over
			}
			if string(all) != text100(size) {
				t.Errorf("%d bytes came", len(all))
			}
		}
		if got, _ := data(b.take(), 1); len(got) > 0 {
			t.Errorf("the second has come on by %d bytes", len(got))
		}
		takes(a, 900_000)
		takes(b, 800_000)
		checkMemory(t, "the host", r.memory, r.back)
	})
}

// A whole answer that its caller does not take gives way when others wait for memory.
func TestSimplePluginsUntakenAnswerGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSimpleRig(t, 2<<20)
		idle := r.raw()
		idle.send(invokeFrame(1, "M", whole("x", true)), creditFrame(0, 10_000)) // so that link credit is no matter
		r.got()
		r.plugin.send(dataFrame(1, whole(text100(900_000), true)))
		synctest.Wait()
		if r.owner.ends[1] != 1 {
			t.Fatal("the call is not over for its owner")
		}
		_, other := rawLink(t, Options{Memory: r.memory, ProbeInterval: -1}, &conduitv1.Hello{})
		up := startUpload(other, 1, 800_000, nil)
		time.Sleep(slowAfter + 2*turnTick)
		if f := failure(idle.take(), 1); f.GetReason() != conduit.ReasonOverloaded {
			t.Errorf("the idle one got %v", f)
		}
		note(other.take(), up)
		up.more(60_000)
		if note(other.take(), up); up.lapsed() {
			t.Error("the other one was given up")
		}
		other.send(cancelFrame(1, "over"))
		synctest.Wait()
	})
}
