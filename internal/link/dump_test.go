package link

import (
	"fmt"
	"strings"
)

// dump describes what is in flight on a link.
func dump(what string, c *Conn) string {
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: err %v, ready %v, writing %v, wbuf %d, ctrl %d, blocked %v, linkCredit %d, unreturned %d, owed %d, owing %d, windows %d, goneAway %v\n", what, c.err, c.ready, c.writing, len(c.wbuf), len(c.ctrl), c.blocked, c.linkCredit, c.unreturned, c.linkOwed, len(c.owing), c.windows, c.goneAway != nil)
	one := func(k *call) {
		fmt.Fprintf(&b, "   call %d ours %v queue %d listed %v sendCredit %d sendEnded %v | window %d recvLeft %d recvOwed %d owing %v recvDone %v cancelled %v fault %v",
			k.id, k.ours, k.pending(), k.list != nil, k.sendCredit, k.sendEnded, k.window, k.recvLeft, k.recvOwed, k.owing, k.recvDone, k.cancelled, k.fault)
		if k.pending() > 0 {
			fmt.Fprintf(&b, " front kind %d %d bytes", k.front().kind, len(k.front().data.Bytes))
		}
		if a := &k.open; a.active {
			fmt.Fprintf(&b, " open total %d have %d large %v memory asked %v given %v", a.total, len(a.buf), a.large, a.res != nil, a.hasMemory())
		}
		b.WriteString("\n")
	}
	for _, k := range c.calls {
		one(k)
	}
	for _, l := range []*callList{&c.small, &c.bulk} {
		for k := l.head; k != nil; k = k.next {
			if k.id == 0 {
				one(k)
			}
		}
	}
	w, h := c.memory.Usage()
	fmt.Fprintf(&b, "   memory: total %d windows %d held %d waiters %d\n", c.memory.total, w, h, c.memory.waiters.Len())
	return b.String()
}
