package peerlink

import (
	"context"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// Alone dials a link for one call to the peer, which costs units that this Link was
// picked for; background is that of the call. It waits within ctx and the Client's
// DialTimeout, and the error is that of [transport.Client.DialLink].
//
// The caller makes the call on it, and closes it when the call has ended. Whoever
// answers may be another instance than the registry's link leads to, where something
// on the way balances by connection: that one judges the call.
//
// The units count as sent until the other end says, on the new link, that it has judged
// them, or the link ends: on the registry's link nothing is ever heard of them.
func (l *Link) Alone(ctx context.Context, units uint32, background bool) (*link.Conn, *conduit.Error) {
	if !background {
		l.alone.Add(1)
	}
	settle := sync.OnceFunc(func() { l.settled.Add(uint64(units)) })
	over := func() {
		settle()
		if !background {
			l.alone.Add(-1)
		}
	}
	conn, err := l.d.dial(ctx, l.url, registry.Hooks{Status: func(s *conduitv1.Status) {
		if s.GetJudged() >= uint64(units) {
			settle()
		}
	}})
	if err != nil {
		over()
		return nil, conduit.AsError(err, conduit.NotSent)
	}
	l.d.o.Alone(conn, l.url, conn.Theirs().Instance)
	go func() { // Close of the Client ends it with the link
		<-conn.Done()
		over()
	}()
	return conn, nil
}

// lone is a call that ends its link.
type lone struct {
	conduit.Exchange

	conn *link.Conn
}

// Recv implements conduit.Exchange.
func (l *lone) Recv(ctx context.Context) (conduit.Message, error) {
	m, err := l.Exchange.Recv(ctx)
	if err != nil {
		l.conn.Close(link.CloseDone, "the call has ended")
	}
	return m, err
}

// Cancel implements conduit.Exchange.
func (l *lone) Cancel(cause error) {
	l.Exchange.Cancel(cause)
	l.conn.Close(link.CloseDone, "the call has ended")
}
