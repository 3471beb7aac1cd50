package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// Explanation says where a call would go at this moment, and why.
type Explanation struct {
	// Chosen is the instance that a pick fell on when it was asked for; zero if
	// there is none. With p2c, the next pick may fall on another.
	Chosen address.InstanceID
	// Reason is the rule that chose, or why there is none.
	Reason string
	// Err is what the call would fail with; nil if it would go.
	Err *conduit.Error
	// Candidates are all instances that the registry knows, those that could take
	// the call first, and of these the ones with more room.
	Candidates []CandidateInfo
}

// CandidateInfo is one instance in an [Explanation], with the numbers that the pick
// saw.
type CandidateInfo struct {
	Instance address.InstanceID // zero if it was never heard
	Name     string
	URL      string
	Verdict  Verdict
	// Why says more than the verdict, for people; may be empty.
	Why string
	// In units. Units is what the call would cost there.
	Units                              uint32
	Effective, Available, Sent, Judged int64
	// Untold says that what room it has is not known: the numbers above say nothing.
	Untold      bool
	Outstanding int
	Method      Method
}

// Explain says where a call would go, and changes nothing.
func (r *Registry) Explain(pl *Place, q Query) Explanation {
	ix := r.index.Load()
	ms := ix.members(pl)
	m, reason := r.chooseAndSay(ms, &q, pl)
	if m == nil {
		e := r.why(ix, pl, &q)
		if e.Reason == conduit.ReasonMethodNotFound {
			open := q
			open.Method = ""
			m, _ = r.chooseAndSay(ms, &open, pl)
			if !pl.pinned {
				reason = "no instance lists the method; one that has the service is asked"
			}
		}
		if m == nil {
			return Explanation{Reason: e.Message, Err: e, Candidates: ix.explain(pl, ms, &q, nil)}
		}
	}
	return Explanation{Chosen: m.p.id, Reason: reason, Candidates: ix.explain(pl, ms, &q, m)}
}

// chooseAndSay is choose, and says how the choice was made. m is nil if none is a
// candidate.
func (r *Registry) chooseAndSay(ms []member, q *Query, pl *Place) (m *member, reason string) {
	n := 0
	for i := range ms {
		var w weight
		if ms[i].weigh(q, &w) {
			n++
		}
	}
	if r.o.Policy == Headroom {
		m, reason = sayHeadroom(ms, q, n)
	} else {
		m, reason = sayP2C(ms, q, n)
	}
	switch {
	case pl.pinned:
		reason = "the address names the instance"
	case n == 1:
		reason = "it is the only candidate"
	}
	return m, reason
}

func sayHeadroom(ms []member, q *Query, n int) (*member, string) {
	best, w, ok := mostHeadroom(ms, q)
	if !ok {
		return nil, ""
	}
	equal := 0
	for i := range ms {
		var one weight
		if ms[i].headroom(q, &one) && one.effective == w.effective {
			equal++
		}
	}
	if equal > 1 {
		return best, fmt.Sprintf("headroom: %d of %d candidates have the most effective headroom, all the same; it is one of them at random", equal, n)
	}
	return best, fmt.Sprintf("headroom: it has the most effective headroom of %d candidates", n)
}

func sayP2C(ms []member, q *Query, n int) (*member, string) {
	var w, wr weight
	m, rival := draw(ms, q, &w, &wr)
	if rival == nil {
		return m, "it is the only candidate"
	}
	if !betterThan(m, &w, rival, &wr) {
		m, rival, w, wr = rival, m, wr, w
	}
	drawn := fmt.Sprintf("p2c: of %d candidates two were drawn at random; ", n)
	switch {
	case w.units > 0 && wr.units > 0 && w.effective == wr.effective:
		return m, drawn + "they have the same effective headroom, and chance decided"
	case w.units > 0 && wr.units > 0:
		return m, drawn + "it is the one with more effective headroom"
	case m.p.link.Outstanding() == rival.p.link.Outstanding():
		return m, drawn + "they have the same number of calls under way, and chance decided"
	default:
		return m, drawn + "it is the one with fewer calls under way"
	}
}

func (ix *index) explain(pl *Place, ms []member, q *Query, chosen *member) []CandidateInfo {
	var all []CandidateInfo
	in := map[*Peer]bool{}
	for i := range ms {
		m := &ms[i]
		in[m.p] = true
		v, w := m.judge(q)
		if m == chosen {
			v = Chosen
		}
		c := m.p.candidate(v)
		c.Units, c.Method = w.units, w.method.value()
		switch v {
		case Full:
			c.Why = fmt.Sprintf("%d of %d units are effective, the call costs %d", c.Effective, c.Available, w.units)
		case Starting:
			c.Why = "element " + m.o.element + " is " + m.o.state
			if m.o.reason != "" {
				c.Why += ": " + m.o.reason
			}
		default:
		}
		all = append(all, c)
	}
	for _, p := range ix.peers {
		if in[p] {
			continue
		}
		v := AnotherInstance
		if !pl.pinned || p.id == pl.instance {
			v, _ = p.meta.Load().lacks(pl.key)
		}
		all = append(all, p.candidate(v))
	}
	for i := range ix.others {
		o := &ix.others[i]
		v := Unreachable
		switch o.state {
		case StateSelf:
			v = Self
		case StateConflict:
			v = Conflicting
		case StateDraining:
			v = Draining
		default:
		}
		all = append(all, CandidateInfo{Instance: o.id, Name: o.name, URL: o.url, Verdict: v, Why: o.reason, Untold: true})
	}
	slices.SortStableFunc(all, func(a, b CandidateInfo) int {
		return cmp.Or(cmp.Compare(rank(a.Verdict), rank(b.Verdict)), cmp.Compare(b.Effective, a.Effective), cmp.Compare(a.URL, b.URL))
	})
	return all
}

// rank orders verdicts for people.
func rank(v Verdict) int {
	switch v {
	case Chosen:
		return 0
	case Candidate:
		return 1
	case Full, Unheard, Cordoned:
		return 2
	case NoMethod, Starting, Draining, Tried:
		return 3
	case Unreachable, Conflicting, Self:
		return 4
	default:
		return 5
	}
}

// candidate is a peer with its numbers.
func (p *Peer) candidate(v Verdict) CandidateInfo {
	c := CandidateInfo{Instance: p.id, Name: p.Name(), URL: p.url, Verdict: v, Outstanding: p.link.Outstanding()}
	s := p.view.Load()
	if s == nil {
		c.Untold = true
		if p.meta.Load().opaque {
			c.Why = "what it has, and what room, is not told to anonymous callers"
		}
		return c
	}
	sent, debit, _ := p.debit(s)
	c.Available, c.Judged, c.Sent, c.Effective = s.available, s.judged, sent, s.available-debit
	return c
}
