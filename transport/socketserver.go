package transport

import (
	"crypto/subtle"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// acceptPause is how long accepting rests when the process has no descriptor
// left: links that end free some.
const acceptPause = 50 * time.Millisecond

// acceptTold is how often the log is told of it.
const acceptTold = time.Second

// ServeSocket makes links of the connections to a Unix socket, until the
// listener is closed; then it returns nil. Who may connect at all is the
// business of the socket's mode; who connects must say ServerOptions.SocketToken
// in its Hello, and is ServerOptions.SocketPeer.
//
// The links are the Server's as those over WebSocket are: they count for
// MaxLinks, and Drain and Close end them. The listener is its caller's, who
// closes it before Close: a Server that is closed hangs up on who comes.
// ServeSocket may be called for several listeners, concurrently with all else.
func (s *Server) ServeSocket(l net.Listener) error {
	if len(s.o.SocketToken) == 0 {
		return errors.New("transport: ServeSocket without ServerOptions.SocketToken would let in everybody")
	}
	var told time.Time
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			s.openSocket(conn)
		case errors.Is(err, net.ErrClosed):
			return nil
		case isPassing(err):
			if now := time.Now(); now.Sub(told) >= acceptTold {
				s.log.Warn("no connection can be accepted for now; raise the limit of open files, or lower cluster.max_links", "error", err)
				told = now
			}
			pause := time.NewTimer(acceptPause)
			<-pause.C
		default:
			return err
		}
	}
}

// isPassing reports whether accepting may do better a little later.
func isPassing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// openSocket makes a connection a link, or hangs up. One that comes at a bad
// time becomes a link that is told why and ends.
func (s *Server) openSocket(conn net.Conn) {
	reason, ok := s.admitSocket()
	if !ok {
		_ = conn.Close() // nobody has said anything yet
		return
	}
	c := newSocketCarrier(conn, s.o.Link.Hello.MaxPacket, s.o.WriteTimeout)
	c.reading.Lock() // so that nothing is answered before a refusal is said
	s.establish(c, opened{peer: s.o.SocketPeer, remote: "unix", socket: true, check: s.checkToken}, reason)
	c.reading.Unlock()
}

// admitSocket counts a connection in. With a reason the link is to be refused by
// it; ok is false if it is not even that.
func (s *Server) admitSocket() (reason string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.links) + s.upgrading; {
	case s.state == closed, n >= s.o.MaxLinks+s.o.MaxUpgrades:
		return "", false
	case s.state != serving:
		reason = conduit.ReasonDraining
	case n >= s.o.MaxLinks:
		reason = conduit.ReasonOverloaded
	}
	s.upgrading++
	return reason, true
}

// checkToken is the link.Options.Check of a socket's links. Its errors go to the
// other end.
func (s *Server) checkToken(theirs link.Hello) error {
	switch {
	case len(theirs.Token) == 0:
		return errors.New("this is a management socket, and the Hello holds no token: it is in the file beside the socket")
	case subtle.ConstantTimeCompare(theirs.Token, s.o.SocketToken) != 1:
		return errors.New("the token is not this instance's: the file beside the socket holds the present one, which is new at each start")
	case s.o.Link.Check != nil:
		return s.o.Link.Check(theirs)
	}
	return nil
}
