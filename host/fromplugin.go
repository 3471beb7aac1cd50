package host

import (
	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
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
	if string(in.Invoke.Service) == pluginlink.HostService && c.h.isBuiltin(in.Invoke.Deployment) && c.h.isHere(in.Invoke.Instance) {
		c.ask(in)
		return
	}
	// A built-in service of another instance is for who knows of others.
	if (c.h.o.FromPlugin == nil || c.h.isHere(in.Invoke.Instance)) && c.h.builtin(in) {
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
	if err := c.h.Take(origin, in, in.Invoke); err != nil {
		in.Refuse(err)
	}
}

// ToPeer returns the Invoke with which a call that an element makes goes on to
// another instance, for [link.Incoming.Splice]: as whom the element acts, and the
// elements that the call came through. A user is told by the session that the call
// runs as, for no instance takes another's word for users; others, elements and
// operators, on this instance's word. What only the element's link knows stays
// behind: the parent, and whom the element asked to be. attempt is that of this way of the call; Units, which a caller may have
// to raise to the method's, are those of the element. The Invoke aliases in.
//
// The error is call_loop.
func (from Origin) ToPeer(in *frame.Invoke, attempt uint32) (frame.Invoke, *conduit.Error) {
	if len(from.Chain) > maxChain {
		return frame.Invoke{}, callLoop(in, len(from.Chain))
	}
	out := *in
	out.Attempt, out.Parent = attempt, 0
	out.HasCaller, out.Caller = false, frame.Caller{}
	out.HasAs, out.As = true, frame.AsWhom{Kind: frame.AsAnonymous}
	switch p := from.Principal; {
	case p.Session != nil:
		out.As = frame.AsWhom{Kind: frame.AsSession, Session: []byte(p.Session.Reveal())}
	case p.User != "" || p.Level > conduit.Anonymous:
		out.As = frame.AsWhom{Kind: frame.AsVouched, Name: []byte(p.User), Level: uint8(min(p.Level, conduit.Superuser))}
	}
	out.Chain = make([][]byte, 0, len(from.Chain))
	for _, name := range from.Chain {
		out.Chain = append(out.Chain, []byte(name))
	}
	return out, nil
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
		o.Principal = Principal{User: "element:" + el.deployment, Level: el.o().level}
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
