package locator

import (
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// DefaultAttempts is how often a call is tried, at most.
const DefaultAttempts = 3

// Options say how a Locator finds its way. The zero value of a number is its
// default.
type Options struct {
	// Registry knows the peers; nil = there are none.
	Registry *registry.Registry
	// Local is what this instance hosts; nil = nothing.
	Local Local
	// Self is this instance; zero for a client, which is none.
	Self address.InstanceID
	// PreferLocal: what this instance hosts is called here, as long as it is ready
	// and has room. Otherwise it is called here only if no peer takes the call.
	PreferLocal bool
	// Attempts is how often a call is tried on its whole way, at most.
	Attempts int
	// CallTimeout bounds all attempts of a unary call whose context has no deadline;
	// 0 = 30 s, negative = none.
	CallTimeout time.Duration
	// RetryRatio is how many attempts beyond the first all calls together may make
	// for each call, in the long run; 0 = 0.1. RetryFloor is what they always may
	// make each second; 0 = 10.
	RetryRatio, RetryFloor float64
}

// Local is an instance's own elements, as its locator sees them. All methods may be
// called concurrently, and none waits.
type Local interface {
	// At returns what calls an address here, and here only; whatever is wrong with
	// it surfaces at the call.
	At(a address.Address) conduit.Invoker
	// Look says how this instance stands to a call. It is asked at each call.
	Look(a address.Address, method string, units uint32) Standing
	// Nodes returns the deployments here that declare the element of an address, by
	// their ids as text.
	Nodes(a address.Address) []string
	// FindService returns the address of an element here that exports a service in a
	// deployment (an id, a name, or "*"), for any instance.
	FindService(deployment string, service address.ServiceKey) (a address.Address, ok bool)
}

// Standing is how an instance stands to a call.
type Standing struct {
	// Hosted: it declares the element. Deployed: it has the deployment that the address
	// names, with that element or without. Ready: the element takes calls. Room: the
	// call's units, the larger of those asked and the method's, are available.
	Hosted, Deployed, Ready, Room bool
	// Cordoned: a cordon is why there is no room.
	Cordoned bool
	// Idempotent: the method's author declared it so.
	Idempotent bool
}

// Locator finds who to call. All methods may be called concurrently.
type Locator struct {
	o      Options
	budget *retryBudget
}

// New returns a Locator.
func New(o Options) *Locator {
	if o.Attempts <= 0 {
		o.Attempts = DefaultAttempts
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = conduit.DefaultCallTimeout
	}
	if o.RetryRatio <= 0 {
		o.RetryRatio = defaultRatio
	}
	if o.RetryFloor <= 0 {
		o.RetryFloor = defaultFloor
	}
	return &Locator{o: o, budget: newRetryBudget(o.RetryRatio, o.RetryFloor)}
}

// At returns what calls the service at an address, such as
// "*://greeter/greeter/example.Greeter". Whatever is wrong with the address
// surfaces at the call.
func (l *Locator) At(addr string) conduit.Invoker {
	a, err := address.Parse(addr)
	if err != nil {
		return failing{badAddress(err)}
	}
	return l.Target(a)
}

// Target returns what calls the service at an address. It is worth keeping.
func (l *Locator) Target(a address.Address) *Target {
	t := &Target{l: l, a: a}
	id, anyInstance := a.Instance()
	t.mine = !anyInstance && id == l.o.Self && !l.o.Self.IsZero()
	if l.o.Local != nil && (anyInstance || t.mine) {
		t.local = l.o.Local.At(a)
	}
	if l.o.Registry != nil && !t.mine {
		t.place = l.o.Registry.Place(a)
	}
	return t
}

// FindRemote returns what calls a service wherever it is found in a deployment (an
// id, a name, or "*"), without naming the element that exports it. It is found anew
// at each call; that it is not there surfaces at the call.
func (l *Locator) FindRemote(deployment, serviceKey string) conduit.Invoker {
	key, err := address.ParseServiceKey(serviceKey)
	if err != nil {
		return failing{badAddress(err)}
	}
	return &finder{l: l, deployment: deployment, service: key}
}

// badAddress is the error of what cannot be addressed.
func badAddress(err error) *conduit.Error {
	return &conduit.Error{
		Code: conduit.InvalidArgument, Reason: conduit.ReasonBadAddress, Outcome: conduit.NotSent, Op: "locator.at", Message: err.Error(), Err: err,
	}
}
