package registry

import (
	"fmt"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// Verdict says how an instance stands to a call. Explanations show it as text.
type Verdict string

// The verdicts, from the most to the least that can be done about them.
const (
	Chosen          Verdict = "chosen"            // a pick would fall here
	Candidate       Verdict = "candidate"         // it could as well be here
	Full            Verdict = "full"              // effective headroom is less than the units asked for
	Unheard         Verdict = "unheard"           // it has not said yet what room it has
	Cordoned        Verdict = "cordoned"          // it takes no new units
	NoMethod        Verdict = "method_not_found"  // what it lists of the service has no such method
	Starting        Verdict = "plugin_starting"   // the element is there, and not ready
	Draining        Verdict = "draining"          // it goes away
	Unreachable     Verdict = "unreachable"       // there is no link to it
	Conflicting     Verdict = "conflict"          // another instance with the same id came first
	Self            Verdict = "self"              // this instance, which is not called through the registry
	Tried           Verdict = "tried"             // the call has been there
	NoService       Verdict = "service_not_found" // the element has no such service
	NoElement       Verdict = "element_not_found"
	NoDeployment    Verdict = "deployment_not_found"
	AnotherInstance Verdict = "instance_not_found" // the address names another
)

// judge says how a member stands to a call.
func (m *member) judge(q *Query) (Verdict, weight) {
	var w weight
	if m.weigh(q, &w) {
		return Candidate, w
	}
	p := m.p
	switch {
	case slices.Contains(q.Tried, p.id):
		return Tried, w
	case p.draining.Load():
		return Draining, w
	case p.off.Load() || !p.link.Usable():
		return Unreachable, w
	case !m.o.ready:
		return Starting, w
	}
	if !m.o.open && q.Method != "" {
		if _, ok := m.o.methods[q.Method]; !ok {
			return NoMethod, w
		}
	}
	v := p.view.Load()
	switch {
	case v == nil:
		return Unheard, w
	case v.cordoned:
		return Cordoned, w
	}
	return Full, w
}

// lacks says what of a place a catalog does not have.
func (c *catalog) lacks(k key) (Verdict, *offer) {
	k.service = address.ServiceKey{}
	if o := c.offers[k]; o != nil {
		if !o.ready {
			return Starting, o // what it will export is not known yet
		}
		return NoService, o
	}
	if k.any || c.deployments[k.deployment] {
		return NoElement, nil
	}
	return NoDeployment, nil
}

// why makes the error of a pick that found nobody: of all instances, the one that
// could most nearly have been picked gives the reason.
func (r *Registry) why(ix *index, pl *Place, q *Query) *conduit.Error {
	counts := map[Verdict]int{}
	var most int64
	var starting *offer
	for _, m := range ix.members(pl) {
		v, w := m.judge(q)
		if v == Full && (counts[Full] == 0 || w.effective > most) {
			most = w.effective
		}
		if v == Starting {
			starting = m.o
		}
		counts[v]++
	}
	if len(counts) == 0 {
		for _, p := range ix.peers {
			if pl.pinned && p.id != pl.instance {
				continue
			}
			v, o := p.meta.Load().lacks(pl.key)
			if o != nil {
				starting = o
			}
			counts[v]++
		}
	}
	next := time.Time{}
	for i := range ix.others {
		o := &ix.others[i]
		if o.state == StateSelf || pl.pinned && o.id != pl.instance {
			continue
		}
		if o.last == nil || o.last.at(pl.key) == nil {
			continue
		}
		v := Unreachable
		if o.state == StateDraining {
			v = Draining
		}
		if !o.next.IsZero() && (next.IsZero() || o.next.Before(next)) {
			next = o.next
		}
		counts[v]++
	}

	e := r.reason(ix, pl, q, counts, most, starting)
	e.Outcome, e.Op, e.Method, e.Address = conduit.NotSent, "registry.pick", q.Method, pl.addr.String()
	if e.Reason == conduit.ReasonPeerUnreachable && !next.IsZero() {
		e.RetryAfter = max(time.Until(next), time.Millisecond)
	}
	return e
}

// reason chooses among what the instances lack.
func (r *Registry) reason(ix *index, pl *Place, q *Query, n map[Verdict]int, most int64, starting *offer) *conduit.Error {
	failed := func(code conduit.Code, reason, format string, args ...any) *conduit.Error {
		return &conduit.Error{Code: code, Reason: reason, Retryable: true, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.stopped.Load():
		e := failed(conduit.Unavailable, conduit.ReasonAborted, "this instance is stopping; call again when it is back")
		if r.o.Self.IsZero() { // it is none
			e.Message = "the client is closed"
		}
		e.Retryable = false
		return e
	case n[Candidate] > 0: // there was none, and now is: the next look finds it
		return failed(conduit.ResourceExhausted, conduit.ReasonNoCapacity, "the peers were full a moment ago")
	case n[Full] > 0:
		return failed(conduit.ResourceExhausted, conduit.ReasonNoCapacity,
			"none of %d instances has room for the call's units; the most that one has is %d", n[Full]+n[Unheard]+n[Cordoned], max(most, 0))
	case n[Unheard] > 0:
		return failed(conduit.ResourceExhausted, conduit.ReasonNoCapacity, "%d instances host it, and none has said yet what room it has", n[Unheard])
	case n[Cordoned] > 0:
		return failed(conduit.Unavailable, conduit.ReasonCordoned, "all %d instances that could take the call are cordoned: they take no new units", n[Cordoned])
	case n[NoMethod] > 0:
		return failed(conduit.NotFound, conduit.ReasonMethodNotFound, "none of %d instances lists a method %q of service %s", n[NoMethod], q.Method, pl.key.service)
	case n[Starting] > 0:
		message := fmt.Sprintf("element %s is %s on %d instances and ready on none", starting.element, starting.state, n[Starting])
		if starting.reason != "" {
			message += ": " + starting.reason
		}
		return failed(conduit.Unavailable, conduit.ReasonPluginStarting, "%s", message)
	case n[Tried] > 0:
		return failed(conduit.Unavailable, conduit.ReasonPeerUnreachable, "all %d instances that could take the call were tried", n[Tried])
	case n[Draining] > 0:
		return failed(conduit.Unavailable, conduit.ReasonDraining, "all %d instances that host it are draining", n[Draining]+n[Unreachable])
	case n[Unreachable] > 0:
		return failed(conduit.Unavailable, conduit.ReasonPeerUnreachable, "none of %d instances that host it can be reached", n[Unreachable])
	case pl.pinned && ix.byID[pl.instance] != nil: // what the others have, or do not say yet, changes nothing
		who := ix.byID[pl.instance].title()
		switch {
		case n[NoService] > 0:
			return failed(conduit.NotFound, conduit.ReasonServiceNotFound, "element %s of instance %s exports no service %s", pl.key.element, who, pl.key.service)
		case n[NoElement] > 0:
			return failed(conduit.NotFound, conduit.ReasonElementNotFound, "instance %s has no element %s", who, pl.addr.String())
		}
		return failed(conduit.NotFound, conduit.ReasonDeploymentNotFound, "instance %s has no deployment %s", who, pl.addr.DeploymentText())
	case ix.asking > 0:
		return failed(conduit.Unavailable, conduit.ReasonPeerUnreachable, "%d peers have not answered for the first time yet, none of %d others hosts it", ix.asking, len(ix.peers))
	case len(ix.peers) == 0 && ix.hasUnreachable():
		return failed(conduit.Unavailable, conduit.ReasonPeerUnreachable, "none of %d peers can be reached%s", len(ix.others), ix.firstReason())
	case ix.nobody():
		// An instance that has it would not have looked for another one.
		reason, who := conduit.ReasonDeploymentNotFound, "this instance does not have it and"
		if pl.pinned {
			reason, who = conduit.ReasonInstanceNotFound, "this instance"
		}
		if r.o.Self.IsZero() {
			who = "the client"
		}
		return failed(conduit.NotFound, reason, "%s knows no peers: discovery names none%s", who, ix.problem())
	case n[NoService] > 0:
		return failed(conduit.NotFound, conduit.ReasonServiceNotFound, "no instance's element %s exports service %s", pl.key.element, pl.key.service)
	case pl.pinned && ix.byID[pl.instance] == nil:
		return failed(conduit.NotFound, conduit.ReasonInstanceNotFound, "none of %d instances is %s%s", len(ix.peers), pl.instance, ix.unasked())
	case n[NoElement] > 0:
		return failed(conduit.NotFound, conduit.ReasonElementNotFound, "no instance has element %s%s", pl.addr.String(), ix.unasked())
	default:
		return failed(conduit.NotFound, conduit.ReasonDeploymentNotFound, "none of %d instances has deployment %s%s", len(ix.peers), pl.addr.DeploymentText(), ix.unasked())
	}
}

// title is the peer as errors name it: by its name, if it has one, and its id.
func (p *Peer) title() string {
	if name := p.Name(); name != "" {
		return name + " (" + p.id.String() + ")"
	}
	return p.id.String()
}

// nobody reports whether there is no peer, and no URL that may lead to one: this
// instance's own is none.
func (ix *index) nobody() bool {
	for i := range ix.others {
		if ix.others[i].state != StateSelf {
			return false
		}
	}
	return len(ix.peers) == 0
}

func (ix *index) hasUnreachable() bool {
	for i := range ix.others {
		if ix.others[i].state == StateUnreachable {
			return true
		}
	}
	return false
}

// firstReason says of one peer why it cannot be reached.
func (ix *index) firstReason() string {
	for i := range ix.others {
		if o := &ix.others[i]; o.state == StateUnreachable && o.reason != "" {
			return ": " + o.url + ": " + o.reason
		}
	}
	return ""
}

// problem says what discovery could make no use of, and how many more such things there
// are.
func (ix *index) problem() string {
	if len(ix.problems) == 0 {
		return ""
	}
	s := fmt.Sprintf(": %s: %v", ix.problems[0].Entry, ix.problems[0].Err)
	if n := len(ix.problems) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// unasked says how many peers could not be asked, for the end of a message.
func (ix *index) unasked() string {
	n := 0
	for i := range ix.others {
		if ix.others[i].state == StateUnreachable {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d peers could not be asked", n)
}
