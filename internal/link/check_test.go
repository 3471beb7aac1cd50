package link

import (
	"reflect"
	"testing"

	"github.com/elemental-conduit/conduit/internal/frame"
)

// checkOver says what a link that is over still holds: it must be nothing.
func checkOver(tb testing.TB, what string, c *Conn) {
	tb.Helper()
	<-c.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) != 0 || c.out != 0 || c.inc != 0 || c.outBackground != 0 {
		tb.Errorf("%s: calls are left: %d in the table, %d out (%d in the background), %d in", what, len(c.calls), c.out, c.outBackground, c.inc)
	}
	if c.windows != 0 {
		tb.Errorf("%s: %d bytes of windows are left", what, c.windows)
	}
	if !c.small.empty() || !c.bulk.empty() {
		tb.Errorf("%s: calls are left in the writer's lists", what)
	}
	if c.writing {
		tb.Errorf("%s: a write is under way", what)
	}
	if len(c.effects) != 0 {
		tb.Errorf("%s: %d effects are left", what, len(c.effects))
	}
	seen := map[*call]bool{}
	for _, k := range c.free {
		state := k.callState
		state.q = nil
		if seen[k] || !reflect.DeepEqual(state, callState{}) || len(k.q) != 0 {
			tb.Errorf("%s: a free call is in use, or twice in the list", what)
		}
		seen[k] = true
		for _, it := range k.q[:cap(k.q)] {
			if it.buf != nil || it.inv != nil || it.wait != nil || it.from.k != nil || it.held != nil {
				tb.Errorf("%s: a free call's queue holds on to an item", what)
			}
		}
	}
}

// checkHolds says what a link that is over still holds of calls that were parked or
// passed on, once all who had to decide have.
func checkHolds(tb testing.TB, what string, c *Conn) {
	tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds != 0 {
		tb.Errorf("%s: %d holds are left", what, c.holds)
	}
	for _, h := range c.freeHolds {
		state := h.heldCall
		state.chunks, state.pieces, state.inv = nil, nil, frame.Invoke{}
		if !reflect.DeepEqual(state, heldCall{}) || len(h.chunks) != 0 || len(h.pieces) != 0 || h.inv.Data.Bytes != nil {
			tb.Errorf("%s: a free hold is in use: %+v", what, state)
		}
	}
}

// checkMemory says what is still promised or held of a Memory, beside what links that
// live have given as link credit.
func checkMemory(tb testing.TB, what string, m *Memory, living ...*Conn) {
	tb.Helper()
	given := int64(0)
	for _, c := range living {
		c.mu.Lock()
		given += c.grow.extra
		c.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.windows != given || m.held != 0 || m.waiters.Len() != 0 || m.holders.Len() != 0 || len(m.heldBy) != 0 || m.timer != nil {
		tb.Errorf("%s: memory is left: %d promised, %d held, %d waiting", what, m.windows, m.held, m.waiters.Len())
	}
}

// checkCredit says whether two living ends at rest agree on each other's credit.
func checkCredit(tb testing.TB, a, b *Conn) {
	tb.Helper()
	type view struct {
		credit, unreturned, owed, window, hello int64
		calls                                   map[uint64][3]int64 // send, recvLeft, what is queued
	}
	look := func(c *Conn) view {
		c.mu.Lock()
		defer c.mu.Unlock()
		v := view{c.linkCredit, c.unreturned, c.linkOwed, c.grow.limit, int64(c.o.Hello.LinkCredit), map[uint64][3]int64{}}
		for id, k := range c.calls {
			done := int64(0)
			if k.recvDone || k.sendEnded || k.cancelled {
				done = 1
			}
			v.calls[id] = [3]int64{k.sendCredit, k.recvLeft, done}
		}
		return v
	}
	if a.simple && b.simple {
		for _, c := range []*Conn{a, b} {
			if v := look(c); v.unreturned != 0 || v.owed != 0 || v.credit != noCredit {
				tb.Errorf("credit is kept on a link of the simple profile: %+v", v)
			}
		}
		return
	}
	va, vb := look(a), look(b)
	for _, p := range [][2]view{{va, vb}, {vb, va}} {
		if p[0].credit+p[1].owed != p[1].window || p[0].unreturned > p[1].owed || p[0].unreturned != p[1].owed && p[1].window == p[1].hello {
			tb.Errorf("link credit is lost: sender has %d (%d unreturned), the other owes %d of %d", p[0].credit, p[0].unreturned, p[1].owed, p[1].window)
		}
		for id, mine := range p[0].calls {
			if other, ok := p[1].calls[id]; ok && mine[2]+other[2] == 0 && mine[0] != other[1] {
				tb.Errorf("call %d: the sender has credit %d, the receiver thinks %d", id, mine[0], other[1])
			}
		}
	}
}
