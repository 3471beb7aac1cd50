package link

import "sync"

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
	mu   sync.Mutex
	idle []chan served // of each that waits; the last to come is the first to go, whose stack is warm
	over bool
}

// take returns who waits for a call, nil if nobody does.
func (w *crew) take() chan served {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	jobs := w.idle[n-1]
	w.idle = w.idle[:n-1]
	return jobs
}

// rest notes that the owner of jobs waits there; it reports false if it should not.
func (w *crew) rest(jobs chan served) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || len(w.idle) == maxIdleHandlers {
		return false
	}
	w.idle = append(w.idle, jobs)
	return true
}

// end sends home who waits, and who will.
func (w *crew) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, jobs := range w.idle {
		close(jobs)
	}
	w.idle = nil
}

func (c *Conn) serve(j served) {
	if c.o.Duplex {
		if jobs := c.crew.take(); jobs != nil {
			jobs <- j // there is room for it
			return
		}
	}
	go c.work(j)
}

func (c *Conn) work(j served) {
	var jobs chan served
	for ok := true; ok; j, ok = <-jobs {
		j.s.run(j.fn)
		j = served{} //nolint:wastedassign // what it holds must not live as long as the wait
		if !c.o.Duplex {
			return
		}
		if jobs == nil {
			jobs = make(chan served, 1)
		}
		if !c.crew.rest(jobs) {
			return
		}
	}
}
