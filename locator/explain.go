package locator

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// Explanation says where a call would go at this moment, and why.
type Explanation struct {
	// Local says that it would go to this instance; Chosen is Self then.
	Local bool
	// Here is how this instance stands to the call.
	Here Standing
	// The rest is the registry's, though Local may overrule what it chose.
	registry.Explanation
}

// Explain says where a call would go, and changes nothing. The error is an address
// that does not parse.
func (l *Locator) Explain(addr, method string, units uint32) (Explanation, *conduit.Error) {
	a, err := address.Parse(addr)
	if err != nil {
		return Explanation{}, badAddress(err)
	}
	t := l.Target(a)
	var e Explanation
	if t.local != nil {
		e.Here = l.o.Local.Look(a, method, units)
	}
	if t.place != nil {
		e.Explanation = l.o.Registry.Explain(t.place, registry.Query{Method: method, Units: units})
	}
	var why string
	switch {
	case t.mine && t.local != nil:
		why = "the address names this instance"
	case l.o.PreferLocal && e.Here.Hosted && e.Here.Ready && e.Here.Room:
		why = "this instance hosts it, is ready and has room"
	case e.Here.Hosted && (t.place == nil || e.Err != nil):
		why = "this instance hosts it, and no other can be picked"
	case t.place == nil:
		e.Err = t.nowhere()
		e.Reason = e.Err.Message
		return e, nil
	default:
		return e, nil
	}
	e.Local, e.Chosen, e.Reason, e.Err = true, l.o.Self, why, nil
	for i := range e.Candidates {
		if e.Candidates[i].Verdict == registry.Chosen {
			e.Candidates[i].Verdict = registry.Candidate
		}
	}
	return e, nil
}
