package locator

import (
	"context"
	"io"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/discovery"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

// instant is a dialer, a link and the calls on it that cost nothing: what is left
// is the locator and the registry.
type instant struct{ id address.InstanceID }

func (i instant) Address() address.Address                    { return address.Address{} }
func (i instant) Route(address.Address) registry.Route        { return i }
func (i instant) Instance() string                            { return i.id.String() }
func (instant) Epoch() uint64                                 { return 1 }
func (instant) Usable() bool                                  { return true }
func (instant) Unsent() uint64                                { return 0 }
func (instant) Outstanding() int                              { return 0 }
func (instant) Done() <-chan struct{}                         { return nil }
func (instant) Release()                                      {}
func (instant) Send(context.Context, []byte) error            { return nil }
func (instant) CloseSend() error                              { return nil }
func (instant) Cancel(error)                                  {}
func (instant) Recv(context.Context) (conduit.Message, error) { return conduit.Message{}, io.EOF }
func (i instant) Connect(context.Context, string, registry.Hooks) (registry.Link, error) {
	return i, nil
}

func (i instant) Invoke(context.Context, registry.Route, *conduit.Invocation) conduit.Exchange {
	return nothing
}

func (i instant) WhoAreYou(context.Context, []byte) (*conduitv1.InstanceInfo, error) {
	return &conduitv1.InstanceInfo{Instance: i.id.String()}, nil
}

var nothing conduit.Exchange = instant{}

// BenchmarkFirstAttempt is what a call costs above its link when nothing goes wrong.
func BenchmarkFirstAttempt(b *testing.B) {
	source, err := discovery.NewStatic([]string{"ws://127.0.0.1:1"}, true)
	if err != nil {
		b.Fatal(err)
	}
	r := registry.New(registry.Options{Source: source, Dialer: instant{address.RandomInstanceID()}})
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	defer func() {
		cancel()
		<-over
	}()
	r.WaitSettled(ctx)
	target := New(Options{Registry: r}).At("*://echo/echo/test.Echo")
	in := &conduit.Invocation{Method: "Echo", Last: true}
	b.ReportAllocs()
	for b.Loop() {
		x := target.Invoke(ctx, in)
		if _, err := x.Recv(ctx); err != io.EOF {
			b.Fatal(err)
		}
	}
}
