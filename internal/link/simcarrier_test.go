package link

import (
	"io"
	"slices"
	"sync"
	"time"
)

// simWire is a pair of carriers whose messages take time, and which can lose
// its power at any message: it is cut (nothing passes any more, nobody is
// told), killed (both ends are told) or frozen (one end stops to read).
type simWire struct {
	mu     sync.Mutex
	change *sync.Cond
	dir    [2]simDirection // by the side that writes
	dead   bool            // killed
	closed [2]*CloseError  // by the side that closed
	passed int             // messages written on both sides
	// fault is called before message n of either direction with the lock held.
	fault func(w *simWire, side, n int)
	delay func() time.Duration
	room  int // bytes that a direction holds before its writer waits
	rate  int // bytes/s that a direction carries; 0 = without limit

	hole   bool    // cut
	frozen [2]bool // side stopped to read
}

type simDirection struct {
	q     []simMessage
	bytes int
	last  time.Time
	busy  time.Time // until when it carries what was written
}

type simMessage struct {
	p  []byte
	at time.Time
}

type simEnd struct {
	w    *simWire
	side int
}

func newSimWire(room int, delay func() time.Duration, fault func(w *simWire, side, n int)) (*simWire, Carrier, Carrier) {
	w := &simWire{room: room, delay: delay, fault: fault}
	w.change = sync.NewCond(&w.mu)
	return w, &simEnd{w, 0}, &simEnd{w, 1}
}

// kill ends the wire as a crash or a reset does. w.mu is held.
func (w *simWire) kill() {
	w.dead = true
	w.dir[0].q, w.dir[1].q = nil, nil
	w.change.Broadcast()
}

// over says why a side can do nothing more; nil = it can. w.mu is held.
func (w *simWire) over(side int) error {
	switch {
	case w.closed[side] != nil:
		return w.closed[side]
	case w.dead:
		return io.ErrUnexpectedEOF
	case w.closed[1-side] != nil && !w.hole:
		e := *w.closed[1-side]
		e.Remote = true
		return &e
	}
	return nil
}

func (e *simEnd) ReadMessage() ([]byte, error) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &w.dir[1-e.side]
	for {
		if err := w.over(e.side); err != nil && (len(d.q) == 0 || w.dead || w.closed[e.side] != nil) {
			return nil, err
		}
		if len(d.q) > 0 && !w.frozen[e.side] && !w.hole {
			if wait := time.Until(d.q[0].at); wait > 0 {
				w.mu.Unlock()
				time.Sleep(wait)
				w.mu.Lock()
				continue
			}
			m := d.q[0]
			d.q = slices.Delete(d.q, 0, 1)
			d.bytes -= len(m.p)
			w.change.Broadcast()
			return m.p, nil
		}
		w.change.Wait()
	}
}

func (e *simEnd) WriteMessage(p []byte) error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &w.dir[e.side]
	for w.over(e.side) == nil && d.bytes >= w.room {
		w.change.Wait()
	}
	if err := w.over(e.side); err != nil {
		return err
	}
	n := w.passed
	w.passed++
	if w.fault != nil {
		w.fault(w, e.side, n)
		if err := w.over(e.side); err != nil {
			return err
		}
	}
	now := time.Now()
	at := now
	if w.rate > 0 {
		if d.busy.Before(now) {
			d.busy = now
		}
		d.busy = d.busy.Add(time.Duration(len(p)) * time.Second / time.Duration(w.rate))
		at = d.busy
	}
	if w.delay != nil {
		at = at.Add(w.delay())
	}
	if at.Before(d.last) {
		at = d.last
	}
	d.last = at
	d.bytes += len(p)
	if !w.hole {
		d.q = append(d.q, simMessage{slices.Clone(p), at})
	}
	w.change.Broadcast()
	return nil
}

func (e *simEnd) Close(code CloseCode, reason string) error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed[e.side] == nil {
		w.closed[e.side] = &CloseError{Code: code, Reason: reason}
	}
	w.change.Broadcast()
	return nil
}

// tryingEnd is a simEnd that can write without waiting, and knows what has come.
type tryingEnd struct {
	*simEnd
	rest []byte
}

func (e *tryingEnd) TryWriteMessage(p []byte) (done bool, err error) {
	w := e.w
	w.mu.Lock()
	full := w.over(e.side) == nil && w.dir[e.side].bytes >= w.room
	w.mu.Unlock()
	if full {
		e.rest = p
		return false, nil
	}
	return true, e.WriteMessage(p)
}

func (e *tryingEnd) Finish() error {
	p := e.rest
	e.rest = nil
	return e.WriteMessage(p)
}

func (e *tryingEnd) Buffered() bool {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.dir[1-e.side].q
	return len(q) > 0 && !q[0].at.After(time.Now()) && !w.frozen[e.side] && !w.hole
}
