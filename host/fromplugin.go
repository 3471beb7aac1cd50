package host

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// elementCalls handles the calls that one process makes. It implements
// link.Handler on the host's end of the process's link.
type elementCalls struct {
	h *Host
	g *generation
}

// splices is what tells the caller of a call that was passed on to a plugin.
type splices interface {
	// Spliced returns the tag of the call with this id that was spliced onto the
	// link, as long as it is under way.
	Spliced(id uint64) (tag uint64, ok bool)
}

// Handle implements link.Handler.
func (c elementCalls) Handle(in *link.Incoming) {
	if c.h.builtin(in) {
		return
	}
	origin, err := c.origin(in)
	if err != nil {
		in.Refuse(err)
		return
	}
	if c.h.o.FromPlugin != nil {
		c.h.o.FromPlugin(origin, in)
		return
	}
	last := origin.Chain[len(origin.Chain)-1]
	chain := make([][]byte, 0, len(origin.Chain))
	for _, link := range origin.Chain[:len(origin.Chain)-1] {
		chain = append(chain, []byte(link))
	}
	c.h.dispatch(in, origin.Principal, origin.Peer, chain, last)
}

// origin says on whose behalf an element calls. An element has no right of its
// own choice: it acts as the caller of the call that it is in, as long as that
// lives, or as itself, or as nobody.
func (c elementCalls) origin(in *link.Incoming) (Origin, *conduit.Error) {
	inv := in.Invoke
	el := c.g.el
	o := Origin{Deployment: el.deployment, Element: c.g.desc.GetElement()}
	parent, living := c.parent(in)
	kind := frame.AsUnset
	if inv.HasAs {
		kind = inv.As.Kind
	}
	switch kind {
	case frame.AsUnset, frame.AsCaller:
		if living {
			o.Principal = parent.Principal
		}
	case frame.AsSelf:
		o.Principal = Principal{User: "element:" + el.deployment, Level: conduit.User}
	case frame.AsAnonymous:
	default:
		return o, refuse(inv, conduit.Unauthenticated, conduit.ReasonUnauthenticated, false, "an element calls as its caller, as itself, or as nobody")
	}
	if living {
		// What it came through is known here, whatever the element says.
		o.Chain, o.Peer = parent.chain, parent.peer
	} else {
		for _, link := range inv.Chain {
			o.Chain = append(o.Chain, string(link))
		}
	}
	o.Chain = append(o.Chain, el.deployment+"/"+o.Element)
	return o, nil
}

func (c elementCalls) parent(in *link.Incoming) (caller, bool) {
	s, ok := any(in.Conn()).(splices)
	if !ok || in.Invoke.Parent == 0 {
		return caller{}, false
	}
	tag, ok := s.Spliced(in.Invoke.Parent)
	if !ok {
		return caller{}, false
	}
	return c.g.callers.find(tag)
}
