package transport

import (
	"context"
	"sync"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// invokeAlone makes a call over a link of its own.
func (t *target) invokeAlone(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	ctx, free := t.p.c.Within(ctx, in)
	defer free()
	pl, err := t.p.connectAlone(ctx)
	if err != nil {
		return t.failed(err, in)
	}
	return &lone{Exchange: pl.conn.Invoke(ctx, t.route, in), conn: pl.conn}
}

// connectAlone dials for one call. It keeps to the pauses of the peer, and its
// outcome counts for them.
func (p *Peer) connectAlone(ctx context.Context) (*pooled, *conduit.Error) {
	if p.bad != nil {
		return nil, p.bad
	}
	p.mu.Lock()
	held := p.held()
	p.mu.Unlock()
	if held != nil {
		return nil, held
	}
	type result struct {
		pl  *pooled
		err *conduit.Error
	}
	// On a goroutine of the Client's, so that Close knows of it.
	dialled := make(chan result, 1)
	dialCtx, cancel := context.WithTimeout(ctx, p.c.o.DialTimeout)
	defer cancel()
	stop := context.AfterFunc(p.c.life, cancel)
	defer stop()
	if !p.c.spawn(func() {
		pl, err := p.connect(dialCtx)
		dialled <- result{pl, err}
	}) {
		return nil, errClientClosed()
	}
	r := <-dialled
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.err == nil {
		p.failures = 0
		p.hello = r.pl.conn.Theirs()
		return r.pl, nil
	}
	if ctx.Err() != nil { // the caller's doing, not the peer's
		return nil, conduit.FromContext(ctx, conduit.NotSent)
	}
	p.fail(r.err)
	return nil, r.err
}

// lone is the only call of a link, which ends with it.
type lone struct {
	conduit.Exchange

	conn *link.Conn
	once sync.Once
}

// Recv implements conduit.Exchange.
func (l *lone) Recv(ctx context.Context) (conduit.Message, error) {
	m, err := l.Exchange.Recv(ctx)
	if err != nil || m.Last {
		l.end()
	}
	return m, err
}

// Cancel implements conduit.Exchange.
func (l *lone) Cancel(cause error) {
	l.Exchange.Cancel(cause)
	l.end()
}

func (l *lone) end() {
	l.once.Do(func() { l.conn.Close(link.CloseDone, "the call has ended") })
}
