package transport

import (
	"slices"
	"strings"

	"github.com/elemental-conduit/conduit/internal/link"
)

// OpenLink is a link that a Server has.
type OpenLink struct {
	Conn *link.Conn
	// Peer is who is at the other end.
	Peer link.Peer
	// Remote is the other end's network address, "unix" for a socket.
	Remote string
}

// opened is what a Server knows of a link.
type opened struct {
	peer      link.Peer
	remote    string
	anonymous bool
	// socket: the link is one of ServeSocket.
	socket bool
	// check judges the other end's Hello; nil = that of the template.
	check func(link.Hello) error
	// ended is called once the link has; nil = nobody wants to know, or it has.
	ended func()
}

// OpenLinks returns the links that are open, in the order of their remotes.
func (s *Server) OpenLinks() []OpenLink {
	s.mu.Lock()
	list := make([]OpenLink, 0, len(s.links))
	for l, o := range s.links {
		list = append(list, OpenLink{Conn: l, Peer: o.peer, Remote: o.remote})
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b OpenLink) int { return strings.Compare(a.Remote, b.Remote) })
	return list
}
