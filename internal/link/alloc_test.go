package link

import (
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// discard is a carrier whose other end says nothing and reads everything.
type discard struct {
	wrote int
	over  chan struct{}
}

func (d *discard) ReadMessage() ([]byte, error) {
	<-d.over
	return nil, &CloseError{Code: CloseDone}
}

func (d *discard) WriteMessage(p []byte) error { d.wrote += len(p); return nil }

func (d *discard) Close(CloseCode, string) error {
	select {
	case <-d.over:
	default:
		close(d.over)
	}
	return nil
}

type countingOwner int

func (o *countingOwner) CallEnded(uint64, conduit.Code, conduit.Outcome) { *o++ }

// driven is a Conn whose packets a test hands over itself.
type driven struct {
	*Conn
	carrier *discard
	p       frame.Parser
	f       frame.Frame
	buf     []byte
}

func drive(tb testing.TB, o Options) *driven {
	tb.Helper()
	d := &driven{carrier: &discard{over: make(chan struct{})}}
	d.Conn = New(d.carrier, o)
	tb.Cleanup(func() {
		d.Close(CloseDone, "")
		checkOver(tb, "link", d.Conn)
	})
	d.take(tb, frame.AppendBody(nil, 0, frame.KindHello, Hello{}.withDefaults().encode()))
	return d
}

func (d *driven) take(tb testing.TB, packet []byte) {
	tb.Helper()
	if err := d.takePacket(&d.p, &d.f, packet); err != nil {
		tb.Fatal(err)
	}
}

// A call that is passed on costs the host no allocation, there and back, small
// or in pieces, though each packet has a Status before it.
func TestSpliceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	back := drive(t, Options{Dialer: true, Duplex: true})
	var out frame.Invoke
	var owner countingOwner
	var tag uint64
	units := newLedger()
	units.refused = make([]int64, 0, 10_000)
	front := drive(t, Options{Reporter: units, Handler: handlerFunc(func(in *Incoming) {
		tag++
		out = *in.Invoke
		in.Splice(back.Conn, &out, &owner, tag)
	})})
	for _, d := range []*driven{back, front} {
		// The Hello of a test on a busy machine takes as long as one from far away, and
		// what goes far away is written by a goroutine of its own.
		d.mu.Lock()
		d.grow.floor = 1
		d.mu.Unlock()
	}
	for _, size := range []int{32, 20_000} {
		id, replies := front.lastID+1, back.nextID
		if id%2 == 0 {
			id++
		}
		payload := make([]byte, size)
		invoke := frame.Invoke{
			Instance: []byte("*"), Deployment: []byte("d"), Element: []byte("e"), Service: []byte("s.S"), Method: []byte("M"), ContentType: []byte("application/json"),
			TimeoutMicros: 30_000_000, Units: 1, ReplyCredit: DefaultReplyCredit, HasData: true,
			Data: frame.Data{Total: uint64(size), HasTotal: true, Bytes: payload, Last: true},
		}
		part := frame.Data{Part: 1, Total: uint64(size), HasTotal: true, Bytes: payload}
		reply := frame.Data{Total: uint64(size), HasTotal: true, Bytes: payload, Last: true}
		round := func() {
			// Each end's credit comes back with the packet, as a reader gives it.
			front.buf = frame.AppendInvoke(frame.AppendCredit(front.buf[:0], 0, uint64(front.unreturned)), id, &invoke)
			front.take(t, front.buf)
			b := frame.AppendCredit(back.buf[:0], 0, uint64(back.unreturned))
			b = frame.AppendData(b, replies, &part)
			back.buf = frame.AppendData(b, replies, &reply)
			back.take(t, back.buf)
			id, replies = id+2, replies+2
		}
		for range 100 {
			round()
		}
		before, ends, judged := front.carrier.wrote, owner, front.report.sent.Judged
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Errorf("%d bytes: %v allocations a call", size, n)
		}
		if wrote := front.carrier.wrote - before; wrote < 201*2*size || owner-ends != 201 || front.report.sent.Judged-judged != 201 {
			t.Errorf("%d bytes: the test tests nothing: %d bytes written, %d ends, %d judged", size, wrote, owner-ends, front.report.sent.Judged-judged)
		}
	}
}
