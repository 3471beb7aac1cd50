package main

import (
	"net/http"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// Package auth knows principals and no links; transport and host know links and
// no rules. These two are where they meet.

// The operators of an instance, at its management socket.
const (
	operatorPeer  = "operator" // Peer.Name, which no other link has
	operatorLevel = conduit.Superuser
)

// authenticate says who opens a link.
func authenticate(a auth.Disabled) func(*http.Request) (link.Peer, error) {
	return func(r *http.Request) (link.Peer, error) {
		p, err := a.Authenticate(r)
		if err != nil {
			return link.Peer{}, err
		}
		return link.Peer{Name: "client", User: p.User, Level: p.Level}, nil
	}
}

// authorize says as whom a call runs.
func authorize(a auth.Disabled) host.Authorize {
	return func(peer link.Peer, in *frame.Invoke) (host.Principal, *conduit.Error) {
		var as *frame.AsWhom
		if in.HasAs {
			as = &in.As
		}
		p, err := a.Resolve(peer.User, peer.Level, peer.System, as)
		if err != nil {
			return host.Principal{}, err
		}
		if peer.Name == operatorPeer && (as == nil || as.Kind == frame.AsUnset || as.Kind == frame.AsLink) {
			p.User = peer.User // also where everybody counts as anyone
		}
		return host.Principal{User: p.User, Level: p.Level}, nil
	}
}
