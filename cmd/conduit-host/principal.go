package main

import (
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Package auth knows principals and no links; transport and host know links and
// no rules. Here, and in access.go, is where they meet.

// The operators of an instance, at its management socket.
const (
	operatorPeer  = "operator" // Peer.Name, which no other link has
	operatorLevel = conduit.Superuser
)

// elementUser begins the users of the links of elements, and of no others: the name
// of a user has no colon.
const elementUser = "element:"

// guest is what an instance keeps of the other end of a link that a session opened.
type guest struct {
	grant auth.Grant
	// secret opens the session, and text is what it is as it travels. They are funcs
	// or pointers to such, so that nothing that prints a guest prints them.
	secret *auth.Secret
	text   func() []byte
}

// lookup says whose a session is. known is false if that is not to be had without
// waiting.
type lookup func(secret []byte) (p auth.Principal, err *conduit.Error, known bool)

// decide says as whom a call runs that came on a link with the given peer, or why it
// may not; known is false if look does not know its session.
func (a *access) decide(peer link.Peer, in *frame.Invoke, look lookup) (who host.Principal, err *conduit.Error, known bool) {
	var as *frame.AsWhom
	kind := frame.AsUnset
	if in.HasAs {
		as, kind = &in.As, in.As.Kind
	}
	asLink := kind == frame.AsUnset || kind == frame.AsLink
	if a.sessions == nil {
		p, err := auth.Disabled{}.Resolve(peer.User, peer.Level, peer.System, as)
		if peer.Name == operatorPeer && asLink {
			p.User = peer.User // also where everybody counts as anyone
		}
		return host.Principal{User: p.User, Level: p.Level}, err, true
	}
	if strings.HasPrefix(peer.User, elementUser) && (kind == frame.AsCaller || kind == frame.AsSelf) {
		// To the instance's own services, the only ones that ask by this link's peer,
		// an element is itself; what it calls elsewhere, the host has decided.
		as = nil
	}
	g, _ := peer.Guest.(*guest)
	known = true
	var secret []byte
	find := func(s []byte) (p auth.Principal, err *conduit.Error) {
		p, err, known = look(s)
		secret = s
		return p, err
	}
	var p auth.Principal
	if asLink && g != nil && !peer.System {
		// Asked anew for each call: the user's level may have changed since the link was
		// opened, and a session that calls is in use.
		p, err = find(g.text())
	} else {
		p, err = auth.ResolveAs(auth.Principal{User: peer.User, Level: peer.Level}, peer.System, in.Deployment, as, find)
	}
	if !known || err != nil {
		return host.Principal{}, err, known
	}
	who = host.Principal{User: p.User, Level: p.Level}
	switch {
	case secret == nil:
	case asLink:
		who.Session = g.secret
	default:
		if s, err := auth.ParseSecret(secret); err == nil { // it was found, so it is one
			who.Session = &s
		}
	}
	return who, nil, true
}
