package host

import (
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// simWire is a pair of carriers whose messages take time and which fail in each way that
// a connection can. It reads along: whatever passes is held to the protocol, so that
// both ends are judged by a third that believes neither.
type simWire struct {
	w    *simWorld
	name string
	into *simInstance // whose end side 1 is; side 0's for a plugin's wire
	kind simKind

	mu     sync.Mutex
	change *sync.Cond
	dir    [2]simDirection         // by the side that writes
	dead   bool                    // both ends are told
	closed [2]*link.CloseError     // by the side that closed
	passed int                     // messages written
	fate   func(w *simWire, n int) // called before message n is written, with the lock held
	delay  func() time.Duration
	hole   [2]bool // what that side writes is lost, and nobody is told
	frozen [2]bool // that side has stopped to read
	faulty bool    // it has been made to fail

	said  [2]*conduitv1.Hello // delivered, by who said it
	used  [2]int64            // bytes of link credit
	given [2]int64            // of link credit, as delivered to the side that may use it
	last  [2]uint64           // the highest id of an Invoke, by who wrote it
	away  [2]int64            // last_call of a GoAway, by who wrote it; -1 = none
	calls map[uint64]*simSeen
}

type simKind int

const (
	simDoor simKind = iota
	simCluster
	simPlugin
)

// simSeen is a call as the wire saw it.
type simSeen struct {
	op        string
	by        int      // the side that calls
	used      [2]int64 // bytes of call credit, by who sends
	given     [2]int64
	ended     bool // its answer has an end
	cancelled bool // a Cancel was written
}

type simDirection struct {
	q     []simPacket
	bytes int
	last  time.Time
}

type simPacket struct {
	p  []byte
	at time.Time
}

// simRoom is how many bytes a direction holds before its writer waits.
const simRoom = 150 << 10

func newSimWire(w *simWorld, name string, kind simKind, into *simInstance) (*simWire, link.Carrier, link.Carrier) {
	x := &simWire{w: w, name: name, kind: kind, into: into, calls: map[uint64]*simSeen{}, away: [2]int64{-1, -1}}
	x.change = sync.NewCond(&x.mu)
	return x, &simEnd{x, 0}, &simEnd{x, 1}
}

// kill ends the wire as a crash or a reset does. x.mu is held.
func (x *simWire) kill() {
	x.dead, x.faulty = true, true
	x.dir[0].q, x.dir[1].q = nil, nil
	x.change.Broadcast()
}

func (x *simWire) cut() {
	x.mu.Lock()
	x.kill()
	x.mu.Unlock()
}

// thaw lets both sides read.
func (x *simWire) thaw() {
	x.mu.Lock()
	x.frozen = [2]bool{}
	x.change.Broadcast()
	x.mu.Unlock()
}

// over says why a side can do nothing more; nil = it can. x.mu is held.
func (x *simWire) over(side int) error {
	switch {
	case x.closed[side] != nil:
		return x.closed[side]
	case x.dead:
		return io.ErrUnexpectedEOF
	case x.closed[1-side] != nil && !x.hole[1-side]:
		e := *x.closed[1-side]
		e.Remote = true
		return &e
	}
	return nil
}

type simEnd struct {
	x    *simWire
	side int
}

// ReadMessage implements link.Carrier.
func (e *simEnd) ReadMessage() ([]byte, error) {
	x := e.x
	x.mu.Lock()
	defer x.mu.Unlock()
	d := &x.dir[1-e.side]
	for {
		if err := x.over(e.side); err != nil && (len(d.q) == 0 || x.dead || x.closed[e.side] != nil) {
			return nil, err
		}
		if len(d.q) == 0 || x.frozen[e.side] {
			x.change.Wait()
			continue
		}
		if wait := time.Until(d.q[0].at); wait > 0 {
			x.mu.Unlock()
			time.Sleep(wait)
			x.mu.Lock()
			continue
		}
		m := d.q[0]
		d.q = slices.Delete(d.q, 0, 1)
		d.bytes -= len(m.p)
		x.change.Broadcast()
		x.look(1-e.side, m.p, x.delivered)
		return m.p, nil
	}
}

// WriteMessage implements link.Carrier.
func (e *simEnd) WriteMessage(p []byte) error {
	x := e.x
	x.mu.Lock()
	defer x.mu.Unlock()
	d := &x.dir[e.side]
	for x.over(e.side) == nil && d.bytes >= simRoom {
		x.change.Wait()
	}
	if err := x.over(e.side); err != nil {
		return err
	}
	n := x.passed
	x.passed++
	if x.fate != nil {
		x.fate(x, n)
		if err := x.over(e.side); err != nil {
			return err
		}
	}
	x.look(e.side, p, x.written)
	at := time.Now().Add(x.delay())
	if at.Before(d.last) {
		at = d.last
	}
	d.last = at
	d.bytes += len(p)
	if !x.hole[e.side] {
		d.q = append(d.q, simPacket{slices.Clone(p), at})
	}
	x.change.Broadcast()
	return nil
}

// Close implements link.Carrier.
func (e *simEnd) Close(code link.CloseCode, reason string) error {
	x := e.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed[e.side] == nil {
		x.closed[e.side] = &link.CloseError{Code: code, Reason: reason}
	}
	x.change.Broadcast()
	return nil
}

func (x *simWire) bad(format string, args ...any) { x.w.bad(x.name+": "+format, args...) }

// look hands each frame of a packet that side s has written to see. x.mu is held.
func (x *simWire) look(s int, p []byte, see func(s int, f *frame.Frame)) {
	var r frame.Parser
	var f frame.Frame
	r.Reset(p)
	for {
		ok, err := r.Next(&f)
		if err != nil {
			x.bad("side %d wrote what is no packet: %v", s, err)
			return
		}
		if !ok {
			return
		}
		see(s, &f)
	}
}

// The defaults of what a Hello leaves out.
func orDefault[T uint32 | uint64](n, d T) int64 {
	if n == 0 {
		n = d
	}
	return int64(n)
}

// simCost is what a Data costs of call credit beside its bytes.
const simCost = 32

// written judges a frame that side s writes.
func (x *simWire) written(s int, f *frame.Frame) {
	k := x.calls[f.Call]
	switch f.Kind { //nolint:exhaustive // the others are judged where they arrive, or not at all
	case frame.KindInvoke:
		if k != nil || f.Call <= x.last[s] {
			x.bad("side %d: the id %d comes after %d", s, f.Call, x.last[s])
		}
		x.last[s] = f.Call
		k = &simSeen{op: string(f.Invoke.TraceState), by: s}
		k.given[s] = orDefault(x.said[1-s].GetCallCredit(), link.DefaultRequestCredit)
		k.given[1-s] = int64(f.Invoke.ReplyCredit)
		x.calls[f.Call] = k
		x.spend(s, f.Size)
		if f.Invoke.HasData {
			x.spendCall(s, k, f.Call, len(f.Invoke.Data.Bytes))
		}
	case frame.KindData:
		x.spend(s, f.Size)
		if k == nil {
			x.bad("side %d: Data for the id %d, which never was", s, f.Call)
			return
		}
		if k.by != s && k.ended {
			x.bad("side %d: Data of call %d (%s) after its end", s, f.Call, k.op)
		}
		x.spendCall(s, k, f.Call, len(f.Data.Bytes))
		k.ended = k.ended || k.by != s && f.Data.Last
	case frame.KindFailure:
		x.spend(s, f.Size)
		if k == nil || k.by == s || k.ended {
			x.bad("side %d: a Failure for the id %d (%+v)", s, f.Call, k)
			return
		}
		k.ended = true
	case frame.KindCancel:
		if k == nil || k.by != s {
			x.bad("side %d: a Cancel for the id %d (%+v)", s, f.Call, k)
			return
		}
		k.cancelled = true
	case frame.KindGoAway:
		var m conduitv1.GoAway
		if err := proto.Unmarshal(f.Body, &m); err != nil {
			x.bad("side %d: GoAway: %v", s, err)
		}
		if x.away[s] >= 0 && int64(m.GetLastCall()) > x.away[s] {
			x.bad("side %d: last_call was %d and is %d", s, x.away[s], m.GetLastCall())
		}
		x.away[s] = int64(m.GetLastCall())
	}
}

// delivered notes what the side that side s writes to knows from now on.
func (x *simWire) delivered(s int, f *frame.Frame) {
	k := x.calls[f.Call]
	switch f.Kind { //nolint:exhaustive // the others change nothing that is known
	case frame.KindHello:
		m := &conduitv1.Hello{}
		if err := proto.Unmarshal(f.Body, m); err != nil {
			x.bad("side %d: Hello: %v", s, err)
		}
		x.said[s] = m
	case frame.KindInvoke:
		x.w.arrived(x, f.Call, k.op)
	case frame.KindCredit:
		if f.Call == 0 {
			x.given[1-s] += int64(f.Credit)
		} else if k != nil {
			k.given[1-s] += int64(f.Credit)
		}
	case frame.KindFailure, frame.KindData:
		if k != nil && k.by != s && k.cancelled && (f.Kind == frame.KindFailure || f.Data.Last) {
			x.w.acknowledged(x, k, f)
		}
	}
}

// spend counts a frame against the link's credit.
func (x *simWire) spend(s, size int) {
	x.used[s] += int64(size)
	if has := orDefault(x.said[1-s].GetLinkCredit(), link.DefaultLinkCredit) + x.given[s]; x.used[s] > has {
		x.bad("side %d: %d bytes of link credit are used, of %d", s, x.used[s], has)
	}
}

func (x *simWire) spendCall(s int, k *simSeen, id uint64, n int) {
	if k.used[s] += int64(n) + simCost; k.used[s] > k.given[s] {
		x.bad("side %d: call %d (%s) used %d bytes of credit, of %d", s, id, k.op, k.used[s], k.given[s])
	}
}

// rest judges a wire on which nothing happens any more: whatever was sent has been
// credited, but for what need not be returned yet; and each call has its end.
func (x *simWire) rest() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.faulty || x.dead || x.closed != [2]*link.CloseError{} {
		return
	}
	for s := range 2 {
		if least := min(32<<10, orDefault(x.said[1-s].GetLinkCredit(), link.DefaultLinkCredit)/4); x.used[s]-x.given[s] > least {
			x.bad("side %d: %d bytes of link credit never came back", s, x.used[s]-x.given[s])
		}
	}
	for id, k := range x.calls {
		if k.op != "" && !k.ended && (x.away[1-k.by] < 0 || int64(id) <= x.away[1-k.by]) {
			x.bad("call %d never had an end: %+v", id, *k)
		}
	}
}
