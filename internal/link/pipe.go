package link

import (
	"slices"
	"sync"
)

// Pipe returns two carriers joined in memory, each of which holds up to depth
// messages that the other has not read; a write beyond that waits. It is for
// tests and for plugins that run inside their test's process.
func Pipe(depth int) (Carrier, Carrier) {
	s := &pipeState{done: make(chan struct{})}
	ab, ba := make(chan []byte, depth), make(chan []byte, depth)
	return &pipeEnd{s: s, in: ba, out: ab, side: 0}, &pipeEnd{s: s, in: ab, out: ba, side: 1}
}

// pipeState is what both ends share: who closed, and how.
type pipeState struct {
	once sync.Once
	done chan struct{}
	side int
	err  CloseError
}

type pipeEnd struct {
	s       *pipeState
	in, out chan []byte
	side    int
}

func (p *pipeEnd) ReadMessage() ([]byte, error) {
	// What was written before the close is still read, as on a socket.
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	select {
	case m := <-p.in:
		return m, nil
	case <-p.s.done:
		select {
		case m := <-p.in:
			return m, nil
		default:
		}
		return nil, p.closed()
	}
}

func (p *pipeEnd) WriteMessage(m []byte) error {
	select {
	case <-p.s.done:
		return p.closed()
	default:
	}
	select {
	case p.out <- slices.Clone(m):
		return nil
	case <-p.s.done:
		return p.closed()
	}
}

func (p *pipeEnd) Close(code CloseCode, reason string) error {
	p.s.once.Do(func() {
		p.s.side, p.s.err = p.side, CloseError{Code: code, Reason: reason}
		close(p.s.done)
	})
	return nil
}

func (p *pipeEnd) closed() error {
	e := p.s.err
	e.Remote = p.s.side != p.side
	return &e
}
