package link

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
)

// inbox holds the messages of one local call that its application has not taken
// yet, and then the call's end. The reader puts, one goroutine takes.
type inbox struct {
	mu    sync.Mutex
	q     []inboxItem
	head  int
	over  bool
	err   *conduit.Error // nil after over = io.EOF
	wake  chan struct{}  // nil until somebody waits
	first [1]inboxItem
}

// inboxItem is a message with what taking it returns: call credit, and memory
// reserved for it.
type inboxItem struct {
	msg  conduit.Message
	cost int64
	res  *reservation
}

func (b *inbox) init() {
	b.q = b.first[:0]
}

// put adds a message, which may be the last; it reports false when the call has ended
// here.
func (b *inbox) put(it inboxItem) bool {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return false
	}
	if b.head > 0 && len(b.q) == cap(b.q) { // else a reader that is always one behind would make it grow for ever
		n := copy(b.q, b.q[b.head:])
		clear(b.q[n:])
		b.q, b.head = b.q[:n], 0
	}
	b.q = append(b.q, it)
	b.over = it.msg.Last
	wake := b.wake
	b.mu.Unlock()
	signal(wake)
	return true
}

// end closes the inbox; the first end counts.
func (b *inbox) end(err *conduit.Error) {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	b.over, b.err = true, err
	wake := b.wake
	b.mu.Unlock()
	signal(wake)
}

// drain drops what was not taken and returns the memory reserved for it, nil if
// there is none: a call has it for one message at most. If something was dropped, the
// call ends with err, as it is not whole any more.
func (b *inbox) drain(err *conduit.Error) (held *reservation) {
	b.mu.Lock()
	if b.head < len(b.q) && b.err == nil {
		b.err = err
	}
	for ; b.head < len(b.q); b.head++ {
		if v := b.q[b.head].res; v != nil {
			held = v
		}
		b.q[b.head] = inboxItem{}
	}
	b.mu.Unlock()
	return held
}

// cost is what taking all that is here will return, in bytes.
func (b *inbox) cost() (n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.q[b.head:] {
		n += it.cost
	}
	return n
}

// keeps reports whether the message of a reservation waits to be taken.
func (b *inbox) keeps(v *reservation) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.q[b.head:] {
		if it.res == v {
			return true
		}
	}
	return false
}

// takeTimer lends a timer that fires once after d.
func (c *Conn) takeTimer(d time.Duration) *time.Timer {
	c.mu.Lock()
	n := len(c.timers)
	if n == 0 {
		c.mu.Unlock()
		return time.NewTimer(d)
	}
	t := c.timers[n-1]
	c.timers = c.timers[:n-1]
	c.mu.Unlock()
	t.Reset(d)
	return t
}

func (c *Conn) giveTimer(t *time.Timer) {
	t.Stop() // nothing is received from it any more, so it can be set again
	c.mu.Lock()
	if len(c.timers) < maxFree {
		c.timers = append(c.timers, t)
	}
	c.mu.Unlock()
}

func signal(wake chan struct{}) {
	if wake == nil { // nobody waits yet, and who comes to wait looks first
		return
	}
	select {
	case wake <- struct{}{}:
	default:
	}
}

// poll takes the next message if there is one. done says that there will be none. If
// it is neither, wake is there to wait for.
func (b *inbox) poll() (it inboxItem, ok, done bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head < len(b.q) {
		it = b.q[b.head]
		b.q[b.head] = inboxItem{}
		b.head++
		if b.head == len(b.q) {
			b.q, b.head = b.q[:0], 0
		}
		return it, true, false, nil
	}
	if b.over {
		if b.err != nil {
			return it, false, true, b.err
		}
		return it, false, true, io.EOF
	}
	if b.wake == nil {
		b.wake = make(chan struct{}, 1)
	}
	return it, false, false, nil
}

// take waits for the next message, the end, ctx, or the deadline (zero = none).
// When ctx or the deadline is over first, expire is called and must end the
// inbox; without expire, the inbox stays as it is. c lends the timer.
func (b *inbox) take(ctx context.Context, c *Conn, deadline time.Time, expire func(*conduit.Error)) (inboxItem, error) {
	var timer <-chan time.Time
	for {
		it, ok, done, err := b.poll()
		if ok {
			return it, nil
		}
		if done {
			return it, err
		}
		if timer == nil && !deadline.IsZero() {
			t := c.takeTimer(time.Until(deadline))
			defer c.giveTimer(t)
			timer = t.C
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			if expire == nil {
				return it, conduit.FromContext(ctx, conduit.OutcomeUnknown)
			}
			expire(conduit.FromContext(ctx, conduit.OutcomeUnknown))
		case <-timer:
			expire(errDeadline)
		}
	}
}
