package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Calls that come while an element is being replaced by a successor that cannot run
// beside it are held: at most so many of one element, for at most so long.
const (
	maxHeld = 1024
	maxHold = 2 * time.Second
	// heldRetry is when whoever was held in vain may try again.
	heldRetry = time.Second
)

// holding are the calls that wait for an element's next generation. All methods may be
// called concurrently.
type holding struct {
	h *Host

	mu    sync.Mutex
	n     int
	calls []*heldCall
	over  bool
}

// heldCall is what dispatch has to know once more when the call goes on.
type heldCall struct {
	p         link.Parked
	principal Principal
	peer      string
	chain     [][]byte
	last      string
	attempt   uint32
	until     time.Time
	timer     *time.Timer
	decided   atomic.Bool
}

// add takes a call over. ok is false if the wait is over by now: the element is to be
// looked for again. An error leaves the call as it was.
func (w *holding) add(c Pending, inv *frame.Invoke, k *heldCall) (ok bool, _ *conduit.Error) {
	left := time.Until(k.until)
	w.mu.Lock()
	switch {
	case w.over:
		w.mu.Unlock()
		return false, nil
	case w.n == maxHeld || left <= 0:
		w.mu.Unlock()
		return false, heldInVain(inv)
	}
	w.n++
	w.mu.Unlock()
	switch c := c.(type) {
	case *link.Incoming:
		k.p = c.Park()
	case link.Parked:
		k.p = c
	default:
		return false, heldInVain(inv)
	}
	w.mu.Lock()
	over := w.over
	if !over {
		w.calls = append(w.calls, k)
		k.timer = time.AfterFunc(left, func() { w.expire(k) })
	}
	w.mu.Unlock()
	if over {
		w.h.goOn(k)
	}
	return true, nil
}

// expire refuses a call that has waited long enough.
func (w *holding) expire(k *heldCall) {
	if !k.decided.CompareAndSwap(false, true) {
		return
	}
	w.mu.Lock()
	w.n--
	w.mu.Unlock()
	inv := k.p.Invoke()
	err := heldInVain(inv)
	w.h.observeRefusal(inv, k.principal, k.peer, err)
	k.p.Refuse(err)
}

// release has all calls go on, in the order in which they came.
func (w *holding) release() {
	w.mu.Lock()
	w.over = true
	calls := w.calls
	w.calls = nil
	w.mu.Unlock()
	for _, k := range calls {
		k.timer.Stop()
		if k.decided.CompareAndSwap(false, true) {
			w.h.goOn(k)
		}
	}
}

// goOn dispatches a call that was held.
func (h *Host) goOn(k *heldCall) {
	inv := *k.p.Invoke()
	inv.Attempt = k.attempt
	if err := h.dispatchUntil(k.p, &inv, k.principal, k.peer, k.chain, k.last, k.until); err != nil {
		k.p.Refuse(err)
	}
}

func heldInVain(inv *frame.Invoke) *conduit.Error {
	err := refuse(inv, conduit.Unavailable, conduit.ReasonPluginStarting, true, "element %s is being replaced, and cannot run beside its successor", inv.Element)
	err.RetryAfter = heldRetry
	return err
}

// beginHold has calls wait that find no generation of the element, from now on.
func (e *element) beginHold() {
	e.mu.Lock()
	begin := e.hold == nil
	if begin {
		e.hold = &holding{h: e.h}
	}
	e.mu.Unlock()
	if begin {
		e.h.rebuild()
	}
}

// endHold has the calls that wait go on to whatever there is.
func (e *element) endHold() {
	e.mu.Lock()
	w := e.hold
	e.hold = nil
	e.mu.Unlock()
	if w != nil {
		e.h.rebuild()
		w.release()
	}
}
