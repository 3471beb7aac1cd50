package host

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/tracecontext"
)

// maxChain is the most elements that a call may come through.
const maxChain = 16

// Pending is a call that is to be decided: a *link.Incoming, or a link.Parked.
type Pending interface {
	// Conn is the link that it came on.
	Conn() *link.Conn
	Splice(to *link.Conn, out *frame.Invoke, owner link.Owner, tag uint64)
}

// Take passes a call on to an element of this host, as on behalf of an origin, or
// says why it may not; then the call is as it was, and its holder's to decide. inv is
// the call as it is to be looked at. It is for who has asked elsewhere where a call
// is to go; it does not block.
func (h *Host) Take(from Origin, c Pending, inv *frame.Invoke) *conduit.Error {
	if len(from.Chain) == 0 {
		return h.dispatch(c, inv, from.Principal, from.Peer, nil, "")
	}
	n := len(from.Chain) - 1
	chain := make([][]byte, 0, n)
	for _, name := range from.Chain[:n] {
		chain = append(chain, []byte(name))
	}
	return h.dispatch(c, inv, from.Principal, from.Peer, chain, from.Chain[n])
}

// builtin passes calls to the instance's own services on, and reports whether
// this was one.
func (h *Host) builtin(in *link.Incoming) bool {
	if h.o.Builtin == nil || !h.isBuiltin(in.Invoke.Deployment) {
		return false
	}
	if !h.isHere(in.Invoke.Instance) {
		in.Refuse(h.notHere(in.Invoke))
		return true
	}
	h.o.Builtin.Handle(in)
	return true
}

func (h *Host) isBuiltin(deployment []byte) bool {
	return string(deployment) == address.BuiltinDeployment || string(deployment) == h.builtinID
}

// isHere reports whether an address names this instance, or any.
func (h *Host) isHere(instance []byte) bool {
	if isAny(instance) || string(instance) == h.instance {
		return true
	}
	id, err := address.ParseInstanceID(string(instance)) // another spelling
	return err == nil && id == h.o.Instance
}

// dispatch finds the element that a call is for, checks that principal may call
// it, and splices. chain and last are the elements that the call came through. An
// error leaves the call as it was.
func (h *Host) dispatch(c Pending, inv *frame.Invoke, principal Principal, peer string, chain [][]byte, last string) *conduit.Error {
	return h.dispatchUntil(c, inv, principal, peer, chain, last, time.Time{})
}

// dispatchUntil is dispatch for a call that may be held until then; the zero time is the
// longest.
func (h *Host) dispatchUntil(c Pending, inv *frame.Invoke, principal Principal, peer string, chain [][]byte, last string, until time.Time) *conduit.Error {
	g, m, err := h.admit(inv, principal, len(chain), last)
	for try := 0; err == nil && g == nil; try++ {
		// Its element has no generation now, and will have one soon.
		var taken bool
		if taken, err = h.holdCall(c, inv, principal, peer, chain, last, until); taken {
			return nil
		}
		if err == nil {
			if g, m, err = h.admit(inv, principal, len(chain), last); try == tries {
				err = heldInVain(inv)
			}
		}
	}
	if err != nil {
		h.observeRefusal(inv, principal, peer, err)
		return err
	}
	var units *budget.Reservation
	if err = h.share(g, c, inv); err == nil {
		if units, err = h.judgeFor(g.el, c, inv, int64(max(m.units, inv.Units))); err != nil {
			g.callers.part(c.Conn())
		}
	}
	if err != nil {
		g.el.inflight.Add(-1)
		g.leave()
		h.observeRefusal(inv, principal, peer, err)
		return named(err, inv)
	}
	tag := g.callers.add(c.Conn(), principal, peer, chain, last, units, m.observer)
	if h.o.Calls != nil {
		g.callers.note(tag, &underWay{CallRecord: recordOf(inv, principal, peer), begun: time.Now()})
	}
	out, ok := outgoings.Get().(*outgoing)
	if !ok {
		out = new(outgoing)
	}
	out.inv = *inv
	o := &out.inv
	// What the plugin learns is who calls; what only the way here needed ends here.
	o.Instance, o.Deployment = nil, nil
	o.HasOrdinal, o.Ordinal = false, 0
	o.HasAs, o.As = false, frame.AsWhom{}
	o.Parent, o.Chain = 0, nil
	if len(o.TraceParent) > 0 && tracecontext.ID(o.TraceParent) == "" { // whoever calls may have written anything
		o.TraceParent, o.TraceState = nil, nil
	}
	out.user = append(out.user[:0], principal.User...)
	out.peer = append(out.peer[:0], peer...)
	out.chain = append(out.chain[:0], chain...)
	if last != "" {
		out.chain = append(out.chain, []byte(last))
	}
	o.HasCaller = true
	o.Caller = frame.Caller{User: out.user, Level: uint8(principal.Level), Chain: out.chain, Peer: out.peer, Attempt: inv.Attempt}
	c.Splice(g.conn, o, g, tag)
	out.inv = frame.Invoke{} // it pointed into the reader's buffer
	clear(out.chain)
	outgoings.Put(out)
	return nil
}

// holdCall has a call wait for the next generation of its element. ok is false if that
// is there by now.
func (h *Host) holdCall(c Pending, inv *frame.Invoke, principal Principal, peer string, chain [][]byte, last string, until time.Time) (ok bool, _ *conduit.Error) {
	route, err := h.table.Load().find(inv)
	if err != nil || route.hold == nil {
		return false, err
	}
	if until.IsZero() {
		until = time.Now().Add(maxHold)
	}
	k := &heldCall{principal: principal, peer: peer, last: last, attempt: inv.Attempt, until: until}
	for _, link := range chain {
		k.chain = append(k.chain, bytes.Clone(link)) // it points into the reader's buffer
	}
	return route.hold.add(c, inv, k)
}

func (h *Host) observeRefusal(inv *frame.Invoke, p Principal, peer string, err *conduit.Error) {
	if h.o.Calls != nil {
		r := recordOf(inv, p, peer)
		r.Code, r.Reason, r.Outcome = err.Code, err.Reason, err.Outcome
		h.o.Calls(r)
	}
	if h.o.Observer != nil {
		h.o.Observer.Refused(string(inv.Deployment), string(inv.Service), string(inv.Method), err.Code, err.Outcome)
	}
}

// tries is how often an element is looked for whose generation goes meanwhile.
const tries = 3

// admit decides about a call: it returns a generation that the call has entered and
// the method that it is for, or why it may not; or neither, if the call is to be held
// until its element has a generation.
func (h *Host) admit(inv *frame.Invoke, principal Principal, depth int, last string) (*generation, *method, *conduit.Error) {
	if h.draining.Load() {
		return nil, nil, refuse(inv, conduit.Unavailable, conduit.ReasonDraining, true, "this instance is draining; call another")
	}
	if !h.isHere(inv.Instance) {
		return nil, nil, h.notHere(inv)
	}
	if last != "" {
		depth++
	}
	if depth > maxChain {
		return nil, nil, callLoop(inv, depth)
	}
	// A generation that begins to drain between the look and the entering is
	// looked for again: the table has its successor, or says that there is none.
	for range tries {
		route, err := h.table.Load().find(inv)
		if err != nil {
			return nil, nil, err
		}
		g := route.gen
		if g == nil {
			return nil, nil, nil
		}
		m, err := g.permits(inv, principal)
		if err != nil {
			return nil, nil, err
		}
		if !g.enter() {
			if route.hold != nil {
				return nil, nil, nil
			}
			continue
		}
		if n := g.el.inflight.Add(1); n > int64(g.el.o().Concurrency) {
			g.el.inflight.Add(-1)
			g.leave()
			return nil, nil, refuse(inv, conduit.ResourceExhausted, conduit.ReasonOverloaded, true, "element %s serves %d calls, as many as it may (host.concurrency, or concurrency of its deployment)", route.name, g.el.o().Concurrency)
		}
		return g, m, nil
	}
	return nil, nil, refuse(inv, conduit.Unavailable, conduit.ReasonDraining, true, "element %s is being replaced", inv.Element)
}

// linkShare is how many times as many calls as an element has places left one link may have
// on it. Alone it may so take seven of eight; several that take all they can leave some, and
// have the same; and there is always a place for a link that has none.
const linkShare = 7

// share counts a call to its link, which may not take all of an element.
func (h *Host) share(g *generation, c Pending, inv *frame.Invoke) *conduit.Error {
	limit := int64(g.el.o().Concurrency)
	free := limit - g.el.inflight.Load() + 1 // this call is counted in
	n, ok := g.callers.join(c.Conn(), linkShare*free)
	if ok {
		return nil
	}
	return refuse(inv, conduit.ResourceExhausted, conduit.ReasonOverloaded, true, "element %s serves %d calls of this link, and what it may serve besides is left to others (of %d in all, host.concurrency, or concurrency of its deployment)", inv.Element, n, limit)
}

// permits finds the method and checks it: that it is there, that its author marked it as
// remotely callable, and the caller's level.
func (g *generation) permits(inv *frame.Invoke, p Principal) (*method, *conduit.Error) {
	service, ok := g.methods[string(inv.Service)]
	if !ok {
		return nil, notFound(inv, conduit.ReasonServiceNotFound, "element %s exports no service %q; its binary's describe lists what it has", inv.Element, inv.Service)
	}
	m, ok := service[string(inv.Method)]
	switch {
	case !ok:
		return nil, refuse(inv, conduit.NotFound, conduit.ReasonMethodNotFound, false, "service %s has no method %q; its binary's describe lists them, and upper and lower case matter", inv.Service, inv.Method)
	case !m.remote:
		return nil, refuse(inv, conduit.PermissionDenied, conduit.ReasonNotRemote, false, "method %s is not marked as remotely callable; its author would do that with pluginapi.Remote()", inv.Method)
	case p.Level < m.level:
		return nil, refuse(inv, conduit.PermissionDenied, conduit.ReasonLevelTooLow, false, "method %s is for level %s and above, the caller is %s", inv.Method, m.level, p.Level)
	}
	return m, nil
}

func (h *Host) notHere(inv *frame.Invoke) *conduit.Error {
	return notFound(inv, conduit.ReasonInstanceNotFound, "this is instance %s, not %s; call that one, or write * for any: conduit-host ls instances lists those that are known", h.instance, inv.Instance)
}

func callLoop(inv *frame.Invoke, depth int) *conduit.Error {
	return refuse(inv, conduit.FailedPrecondition, conduit.ReasonCallLoop, false, "the call came through %d elements, at most %d may call one another; they probably call in a circle", depth, maxChain)
}

// notFound may be an answer to a stale picture of who hosts what: another peer,
// or a fresh look, may do better.
func notFound(inv *frame.Invoke, reason, format string, args ...any) *conduit.Error {
	return refuse(inv, conduit.NotFound, reason, true, format, args...)
}

// refuse makes the error of a call that was not started.
func refuse(inv *frame.Invoke, code conduit.Code, reason string, retryable bool, format string, args ...any) *conduit.Error {
	return &conduit.Error{
		Code: code, Reason: reason, Outcome: conduit.Refused, Retryable: retryable, Op: "host.dispatch",
		Message: fmt.Sprintf(format, args...), Address: addressOf(inv), Method: string(inv.Method),
	}
}

// addressOf writes an Invoke's address as it was called.
func addressOf(inv *frame.Invoke) string {
	part := func(b []byte) string {
		if isAny(b) {
			return "*"
		}
		return string(b)
	}
	element := string(inv.Element)
	if inv.HasOrdinal {
		element += "[" + strconv.FormatUint(uint64(inv.Ordinal), 10) + "]"
	}
	return part(inv.Instance) + "://" + part(inv.Deployment) + "/" + element + "/" + string(inv.Service)
}
