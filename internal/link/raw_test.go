package link

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// rawEnd is the other end of a link, played by a test: what it sends is written
// by hand, and what it gets is read by the generated code.
type rawEnd struct {
	t   testing.TB
	c   Carrier
	max int // of a packet that it takes

	mu     sync.Mutex
	frames []*conduitv1.Frame
	err    error // why reading ended
}

// rawLink starts a Conn whose other end is played by the test. Hellos are
// exchanged unless mute is given. It must be called in a bubble.
func rawLink(tb testing.TB, o Options, hello *conduitv1.Hello) (*Conn, *rawEnd) {
	tb.Helper()
	a, b := Pipe(4096)
	r := &rawEnd{t: tb, c: a, max: DefaultMaxPacket}
	if hello.GetMaxPacket() != 0 {
		r.max = int(hello.GetMaxPacket())
	}
	if o.Handler == nil {
		o.Handler = handlerFunc(echoHandler)
	}
	if o.Memory == nil {
		o.Memory = NewMemory(0)
	}
	c := New(b, o)
	var reader sync.WaitGroup
	reader.Go(r.read)
	tb.Cleanup(func() {
		c.Close(CloseDone, "test over")
		checkOver(tb, "the link", c)
		checkMemory(tb, "the link", o.Memory)
		reader.Wait()
	})
	if hello != nil {
		r.send(helloFrame(hello))
		synctest.Wait()
		for _, f := range r.take() {
			if f.GetHello() == nil {
				tb.Fatalf("first frame: %v", f)
			}
		}
		if !c.Usable() || c.Theirs().VersionMax == 0 {
			tb.Fatalf("the link is not ready: %v", c.Err())
		}
	}
	return c, r
}

func (r *rawEnd) read() {
	for {
		p, err := r.c.ReadMessage()
		var packet conduitv1.Packet
		if err == nil && len(p) > r.max {
			r.t.Errorf("a packet of %d bytes", len(p))
		}
		if err == nil {
			err = proto.Unmarshal(p, &packet)
		}
		r.mu.Lock()
		r.frames = append(r.frames, packet.Frames...)
		if err != nil {
			r.err = err
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
	}
}

// send writes one packet of frames.
func (r *rawEnd) send(frames ...*conduitv1.Frame) {
	r.t.Helper()
	p, err := proto.Marshal(&conduitv1.Packet{Frames: frames})
	if err != nil {
		r.t.Fatal(err)
	}
	r.sendBytes(p)
}

func (r *rawEnd) sendBytes(p []byte) {
	if err := r.c.WriteMessage(p); err != nil {
		r.t.Logf("raw write: %v", err)
	}
}

// take returns what has come since the last take, once all is at rest, without the
// pings by which a link measures the line.
func (r *rawEnd) take() []*conduitv1.Frame {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	f := slices.DeleteFunc(r.frames, func(f *conduitv1.Frame) bool { return f.GetPing().GetNonce()>>62 == 1 })
	r.frames = nil
	return f
}

// closed returns the code that the link was closed with; 0 = it was not.
func (r *rawEnd) closed() (CloseCode, string) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := errors.AsType[*CloseError](r.err); ok {
		return e.Code, e.Reason
	}
	return 0, ""
}

// failure returns the Failure of a call among the frames.
func failure(frames []*conduitv1.Frame, call uint64) *conduitv1.Failure {
	for _, f := range frames {
		if f.Call == call && f.GetFailure() != nil {
			return f.GetFailure()
		}
	}
	return nil
}

// data returns the bytes of a call's Data among the frames, and whether it ended.
func data(frames []*conduitv1.Frame, call uint64) (all []byte, last bool) {
	for _, f := range frames {
		if d := f.GetData(); f.Call == call && d != nil {
			all = append(all, d.Bytes...)
			last = last || d.Last
		}
	}
	return all, last
}

func helloFrame(h *conduitv1.Hello) *conduitv1.Frame {
	return &conduitv1.Frame{Kind: &conduitv1.Frame_Hello{Hello: h}}
}

func invokeFrame(call uint64, method string, d *conduitv1.Data) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Invoke{Invoke: &conduitv1.Invoke{
		Instance: "*", Deployment: "d", Element: "e", Service: "s.S", Method: method, ReplyCredit: DefaultReplyCredit, Data: d,
	}}}
}

func dataFrame(call uint64, d *conduitv1.Data) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Data{Data: d}}
}

func failureFrame(call uint64, f *conduitv1.Failure) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Failure{Failure: f}}
}

func cancelFrame(call uint64, reason string) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Cancel{Cancel: &conduitv1.Cancel{Reason: reason}}}
}

func creditFrame(call, n uint64) *conduitv1.Frame {
	return &conduitv1.Frame{Call: call, Kind: &conduitv1.Frame_Credit{Credit: &conduitv1.Credit{Bytes: n}}}
}

func goAwayFrame(g *conduitv1.GoAway) *conduitv1.Frame {
	return &conduitv1.Frame{Kind: &conduitv1.Frame_GoAway{GoAway: g}}
}

func pingFrame(nonce uint64, ack bool) *conduitv1.Frame {
	return &conduitv1.Frame{Kind: &conduitv1.Frame_Ping{Ping: &conduitv1.Ping{Nonce: nonce, Ack: ack}}}
}

// whole is a message in one Data.
func whole(b string, last bool) *conduitv1.Data {
	return &conduitv1.Data{Total: new(uint64(len(b))), Bytes: []byte(b), Last: last}
}

// piece is the first of a message's several Data.
func piece(total int, b string) *conduitv1.Data {
	return &conduitv1.Data{Total: new(uint64(total)), Bytes: []byte(b), More: true}
}
