package client

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/transport"
)

// echoing answers all calls with what they bring.
type echoing struct{ id address.InstanceID }

func (e echoing) Handle(in *link.Incoming) {
	who := string(in.Invoke.Method) == "WhoAreYou"
	in.Serve(func(ctx context.Context, s *link.ServerCall) error {
		m, err := s.Recv(ctx)
		if who {
			m.ContentType, m.Data, err = conduit.Encode(&conduitv1.InstanceInfo{Instance: e.id.String()})
		}
		s.Return(m)
		return err
	})
}

// BenchmarkCall is calls of 32 bytes to a server of the same process, 64 at once.
func BenchmarkCall(b *testing.B) {
	id := address.RandomInstanceID()
	server := transport.NewServer(transport.ServerOptions{
		Handler: echoing{id}, Link: link.Options{Hello: link.Hello{Instance: id.String()}},
		Authenticate: func(*http.Request) (link.Peer, error) { return link.Peer{User: "ada", Level: conduit.User}, nil },
	})
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	h := server.HTTPServer(server)
	go func() { _ = h.Serve(l) }()
	defer func() {
		_ = h.Close()
		_ = server.Close()
	}()
	c, err := Dial(b.Context(), Options{Peers: []string{"ws://" + l.Addr().String()}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // it never fails
	at, payload := c.At("*://echo/echo/test.Echo"), make([]byte, 32)
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := conduit.Call[[]byte](b.Context(), at, "Echo", payload); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}
