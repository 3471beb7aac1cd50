//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// upload is a large message that a test sends by hand.
type upload struct {
	r    *rawEnd
	id   uint64
	left int
	free int // of call credit
	end  *conduitv1.Failure
	last bool
}

// startUpload announces a message of total bytes and sends all but a little of what
// the window takes.
func startUpload(r *rawEnd, id uint64, total int, edit func(*conduitv1.Invoke)) *upload {
	const first = 60_000
	f := invokeFrame(id, "Sum", piece(total, string(make([]byte, first))))
	if edit != nil {
		edit(f.GetInvoke())
	}
	r.send(f)
	return &upload{r: r, id: id, left: total - first, free: DefaultRequestCredit - first - dataCost}
}

// note takes what came for the uploads.
func note(frames []*conduitv1.Frame, all ...*upload) {
	for _, f := range frames {
		for _, u := range all {
			switch {
			case f.Call != u.id:
			case f.GetCredit() != nil:
				u.free += int(f.GetCredit().Bytes)
			case f.GetFailure() != nil:
				u.end = f.GetFailure()
			case f.GetData().GetLast():
				u.last = true
			}
		}
	}
}

// more sends n bytes more, or what is left, in pieces.
func (u *upload) more(n int) {
	for n = min(n, u.left); n > 0; {
		one := min(n, chunk)
		n, u.left = n-one, u.left-one
		u.r.send(dataFrame(u.id, &conduitv1.Data{Bytes: make([]byte, one), More: u.left > 0, Last: u.left == 0}))
		u.free -= one + dataCost
	}
}

func (u *upload) lapsed() bool {
	return u.end != nil && u.end.Reason == conduit.ReasonOverloaded && u.end.Retryable && u.end.Outcome == conduitv1.Outcome_OUTCOME_UNKNOWN
}

// Uploads that hold memory and do not come on give way to others that wait, and no
// more of them than it takes; one that is slow and comes on does not.
func TestIdleUploadsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(4 << 20) // 2 MiB for messages
		_, r := rawLink(t, Options{Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{})
		slow := startUpload(r, 1, 700_000, nil)
		var idle []*upload
		for id := uint64(3); id <= 5; id += 2 {
			idle = append(idle, startUpload(r, id, 650_000, nil))
		}
		all := append([]*upload{slow}, idle...)
		second := func() {
			time.Sleep(time.Second)
			slow.more(18_000)
			r.send(pingFrame(1, false)) // signs of life do not count
			note(r.take(), all...)
		}
		for range 20 {
			second()
		}
		for _, u := range all {
			if u.free < u.left || u.end != nil {
				t.Fatalf("call %d: %d bytes of credit for %d, %v", u.id, u.free, u.left, u.end)
			}
		}
		honest := startUpload(r, 7, 400_000, nil)
		all = append(all, honest)
		n := 0
		for ; honest.free < honest.left && n < 60; n++ {
			second()
		}
		if n == 0 || n > 8 {
			t.Errorf("memory was there after %d s", n)
		}
		honest.more(400_000)
		for slow.left > 0 && n < 100 {
			second()
			n++
		}
		second()
		if !honest.last || !slow.last {
			t.Errorf("did not come through: %v, %v", honest.end, slow.end)
		}
		if a, b := idle[0].lapsed(), idle[1].end != nil; !a || b {
			t.Errorf("gave way: %v and %v", idle[0].end, idle[1].end)
		}
		if m := idle[0].end.GetMessage(); !strings.Contains(m, "650000 bytes") {
			t.Errorf("message %q", m)
		}
		alive(t, r, 99)
	})
}

// Nobody waits: an upload that does not come on is let be.
func TestIdleUploadAloneIsLetBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(2 << 20)
		_, r := rawLink(t, Options{Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{})
		u := startUpload(r, 1, 900_000, nil)
		time.Sleep(time.Hour)
		note(r.take(), u)
		u.more(900_000)
		if note(r.take(), u); !u.last {
			t.Errorf("ended with %v", u.end)
		}
	})
}

// Who waits is told when no memory becomes free, though all that hold it come on.
func TestWaitersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(4 << 20)
		_, r := rawLink(t, Options{Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{})
		big := startUpload(r, 1, 2_000_000, nil)
		waits := startUpload(r, 3, 300_000, nil)
		late := startUpload(r, 5, 300_000, nil)
		n := 0
		for ; waits.end == nil && n < 100; n++ {
			time.Sleep(time.Second)
			big.more(20_000)
			note(r.take(), big, waits, late)
			if n == 10 {
				r.send(cancelFrame(5, ""))
				late = startUpload(r, 7, 300_000, nil)
			}
		}
		if n < 28 || n > 34 || !waits.lapsed() {
			t.Errorf("after %d s: %v", n, waits.end)
		}
		if late.end != nil {
			t.Errorf("one that has waited for less: %v", late.end)
		}
		big.more(2_000_000) // what becomes free goes to who waits still
		for note(r.take(), big, late); late.left > 0 && n < 200; n++ {
			late.more(late.free - 2*dataCost)
			note(r.take(), late)
		}
		if !big.last || !late.last {
			t.Errorf("ended with %v and %v", big.end, late.end)
		}
	})
}

// A message that came, and that its application does not take, gives way too: of a
// request and of a reply, of a call under way and of one that is over.
func TestUntakenMessagesGiveWay(t *testing.T) {
	bubble(t, "request", func(t *testing.T) {
		mem := NewMemory(2 << 20)
		var handled error
		_, r := rawLink(t, Options{Memory: mem, ProbeInterval: -1, Handler: handlerFunc(func(in *Incoming) {
			if string(in.Invoke.Method) == "Sum" && in.ID() > 1 {
				echoHandler(in)
				return
			}
			in.Serve(func(ctx context.Context, s *ServerCall) error {
				<-ctx.Done()
				_, handled = s.Recv(context.Background())
				return handled
			})
		})}, &conduitv1.Hello{})
		untaken := startUpload(r, 1, 900_000, nil)
		note(r.take(), untaken)
		untaken.more(900_000)
		time.Sleep(time.Minute)
		waits := startUpload(r, 3, 900_000, nil)
		for n := 0; waits.free < waits.left && n < 20; n++ {
			time.Sleep(time.Second)
			note(r.take(), untaken, waits)
		}
		waits.more(900_000)
		note(r.take(), waits)
		if !untaken.lapsed() || !waits.last {
			t.Errorf("%v, %v", untaken.end, waits.end)
		}
		if e := asError(t, handled); e.Reason != conduit.ReasonOverloaded {
			t.Errorf("the handler saw %v", handled)
		}
	})
	for _, over := range []bool{false, true} {
		name := "reply"
		if over {
			name = "reply of a call that is over"
		}
		bubble(t, name, func(t *testing.T) {
			mem := NewMemory(2 << 20)
			c, r := rawLink(t, Options{Dialer: true, Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{LinkCredit: 64 << 20})
			start := func() conduit.Exchange {
				return c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "M", Last: true, Streaming: true})
			}
			send := func(id uint64, size int, last bool) {
				r.send(dataFrame(id, piece(size, string(make([]byte, 10_000)))))
				r.take()
				for left := size - 10_000; left > 0; left -= 50_000 {
					r.send(dataFrame(id, &conduitv1.Data{Bytes: make([]byte, min(left, 50_000)), More: left > 50_000, Last: last && left <= 50_000}))
				}
			}
			untaken, other := start(), start()
			r.take()
			send(1, 900_000, over)
			r.send(dataFrame(3, piece(900_000, string(make([]byte, 10_000)))))
			granted, cancelled := time.Duration(0), false
			for began := time.Now(); granted == 0 && time.Since(began) < time.Hour; {
				time.Sleep(time.Second)
				for _, f := range r.take() {
					cancelled = cancelled || f.Call == 1 && f.GetCancel() != nil
					if f.Call == 3 && f.GetCredit().GetBytes() > 500_000 {
						granted = time.Since(began)
					}
				}
			}
			if granted < takeWithin || granted > takeWithin+3*time.Second || cancelled == over {
				t.Errorf("granted after %v, cancelled %v", granted, cancelled)
			}
			_, err := untaken.Recv(t.Context())
			if e := asError(t, err); e.Reason != conduit.ReasonOverloaded || e.Outcome != conduit.OutcomeUnknown {
				t.Errorf("got %v", err)
			}
			other.Cancel(nil)
		})
	}
}

// A process that was stopped does not hold it against those whose bytes it has not
// read.
func TestLateWatchStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(2 << 20)
		_, r := rawLink(t, Options{Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{})
		holds, waits := startUpload(r, 1, 900_000, nil), startUpload(r, 3, 900_000, nil)
		for range 5 { // with each watch late, nothing ever lapses
			time.Sleep(turnTick - time.Millisecond)
			mem.mu.Lock()
			mem.due = mem.due.Add(-turnTick)
			mem.mu.Unlock()
			mem.watch()
		}
		if note(r.take(), holds, waits); holds.end != nil || waits.end != nil {
			t.Fatalf("ended with %v and %v", holds.end, waits.end)
		}
		time.Sleep(yieldAfter + turnTick)
		if note(r.take(), holds, waits); !holds.lapsed() || waits.free < waits.left {
			t.Errorf("ended with %v and %v", holds.end, waits.end)
		}
		r.send(cancelFrame(3, ""))
	})
}

// On a plugin's link, which carries everybody's calls, one caller's messages do not
// stand before another's, however many they are.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(2 << 20)
		_, r := rawLink(t, Options{Duplex: true, Memory: mem, ProbeInterval: -1}, &conduitv1.Hello{})
		of := func(user string) func(*conduitv1.Invoke) {
			return func(in *conduitv1.Invoke) { in.Caller = &conduitv1.Caller{User: user} }
		}
		var many []*upload
		for id := uint64(1); id <= 21; id += 2 {
			many = append(many, startUpload(r, id, 500_000, of("many")))
		}
		one := startUpload(r, 23, 500_000, of("one"))
		all := append([]*upload{one}, many...)
		note(r.take(), all...)
		if many[0].free < many[0].left || many[1].free < many[1].left || one.free >= one.left {
			t.Fatal("the first two have no memory, or the last has")
		}
		r.send(cancelFrame(1, ""))
		if note(r.take(), all...); one.free < one.left || many[2].free >= many[2].left {
			t.Errorf("it was not the other caller's turn: %d of %d", one.free, one.left)
		}
		r.send(cancelFrame(3, "")) // then theirs again, in their order
		if note(r.take(), all...); many[2].free < many[2].left || many[3].free >= many[3].left {
			t.Errorf("it was not the third's turn: %d of %d", many[2].free, many[2].left)
		}
		for _, u := range all {
			r.send(cancelFrame(u.id, ""))
		}
	})
}
