package link

import "sync/atomic"

// maxIdleHandlers bounds the goroutines that a link keeps for the next call.
const maxIdleHandlers = 64

// served is a call whose handler is to run.
type served struct {
	s  *ServerCall
	fn ServeFunc
}

// crew runs handlers. On a plugin's link it keeps their goroutines for the next
// call, since a fresh one grows its stack anew each time (5 to 8 % of a busy
// plugin's time, measured); other links serve few calls of their own, and keep
// none. The goroutines end with the link.
type crew struct {
	jobs chan served
	idle atomic.Int32
}

func (c *Conn) serve(j served) {
	if c.o.Duplex {
		select {
		case c.crew.jobs <- j:
			return
		default:
		}
	}
	go c.work(j)
}

func (c *Conn) work(j served) {
	for {
		j.s.run(j.fn)
		j = served{} //nolint:wastedassign // what it holds must not live as long as the wait
		if !c.o.Duplex || c.crew.idle.Add(1) > maxIdleHandlers {
			if c.o.Duplex {
				c.crew.idle.Add(-1)
			}
			return
		}
		select {
		case j = <-c.crew.jobs:
			c.crew.idle.Add(-1)
		case <-c.readEnd:
			return
		}
	}
}
