package registry

import (
	"context"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Route is an address as links take it, made once for many calls. It is immutable.
type Route interface {
	Address() address.Address
}

// Dialer makes links to peers. All methods may be called concurrently.
type Dialer interface {
	// Route makes what Invoke of this Dialer's links takes.
	Route(a address.Address) Route
	// Connect returns a new link to the instance at a URL once its Hello has come;
	// ctx bounds just that. The hooks may be called before Connect returns. It
	// should not pause between attempts of its own: the registry does.
	Connect(ctx context.Context, url string, h Hooks) (Link, error)
}

// Hooks are told what a link hears beside answers. They are called on its reader,
// one at a time, and return at once.
type Hooks struct {
	// Status is called with each Status of the peer, which it may keep.
	Status func(*conduitv1.Status)
	// GoAway is called when the peer takes no new calls on this link; Usable says
	// false by then.
	GoAway func(reason string)
}

// Link is one connection to one instance: once it is lost, calls on it fail, and
// it never becomes one to somebody else. All methods may be called concurrently;
// none but WhoAreYou waits for the peer. A Link that has Heard() time.Time too, when a
// packet came last, has that shown (see [PeerStatus]).
type Link interface {
	// Instance and Epoch are what the peer's Hello said.
	Instance() string
	Epoch() uint64
	// WhoAreYou asks the peer, with the digest of its last answer or none. A Status
	// that has changed comes before the answer, or in the same packet.
	WhoAreYou(ctx context.Context, digest []byte) (*conduitv1.InstanceInfo, error)
	// Invoke starts a call, as conduit.Invoker's does. in.Units is what the peer
	// will judge.
	Invoke(ctx context.Context, r Route, in *conduit.Invocation) conduit.Exchange
	// Usable reports whether new calls can go on the link. It is asked at each pick.
	Usable() bool
	// Unsent returns the units of all calls that the link was handed and that the
	// peer will never judge: those that were cancelled or failed before their Invoke
	// was written, and those above the last call of a GoAway. It never falls. It is
	// asked at each pick for units.
	Unsent() uint64
	// Outstanding returns the number of calls under way, watches excepted. It is
	// asked at each pick without units.
	Outstanding() int
	// Done is closed when the link has ended.
	Done() <-chan struct{}
	// Release is called once, when the registry sends nothing more: calls under way
	// go on, and the link may be closed when they have ended.
	Release()
}
