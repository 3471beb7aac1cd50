package locator

import (
	"context"
	"sync/atomic"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/registry"
)

// Target calls the service at one address. It is safe for concurrent use.
type Target struct {
	l     *Locator
	a     address.Address
	mine  bool            // the address names this instance
	local conduit.Invoker // nil if it cannot be here
	place *registry.Place // nil if it cannot be elsewhere
}

// Address implements conduit.Target.
func (t *Target) Address() address.Address { return t.a }

// Invoke implements conduit.Invoker. It waits only as [registry.Registry.Pick]
// does. The Exchange of a call that may be tried again makes the attempts in its
// Recv.
func (t *Target) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	x := &exchange{ctx: ctx, in: *in, plan: t.Plan(in)}
	step, err := x.plan.Next(ctx)
	if err != nil {
		return conduit.FailedExchange(t.name(err, in))
	}
	if !in.Last {
		// What goes up is not all here, so it cannot go up again.
		return step.Invoke(ctx, in)
	}
	x.begin(t.l.o.CallTimeout)
	x.current = step.Invoke(ctx, &x.in)
	return x
}

// name fills in what was called.
func (t *Target) name(err *conduit.Error, in *conduit.Invocation) *conduit.Error {
	e := *err
	e.Address, e.Method = t.a.String(), in.Method
	return &e
}

// failing is an Invoker whose every call fails.
type failing struct{ err *conduit.Error }

func (f failing) Invoke(_ context.Context, in *conduit.Invocation) conduit.Exchange {
	e := *f.err
	e.Method = in.Method
	return conduit.FailedExchange(&e)
}

// finder calls a service by its key alone.
type finder struct {
	l          *Locator
	deployment string
	service    address.ServiceKey

	last atomic.Pointer[Target] // where it was last
}

// Invoke implements conduit.Invoker.
func (f *finder) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	a, err := f.find(ctx)
	if err != nil {
		e := *err
		e.Method = in.Method
		return conduit.FailedExchange(&e)
	}
	t := f.last.Load()
	if t == nil || !t.a.Equal(a) {
		t = f.l.Target(a)
		f.last.Store(t)
	}
	return t.Invoke(ctx, in)
}

func (f *finder) find(ctx context.Context) (address.Address, *conduit.Error) {
	o := &f.l.o
	if o.Local != nil && o.PreferLocal {
		if a, ok := o.Local.FindService(f.deployment, f.service); ok {
			return a, nil
		}
	}
	failed := conduit.Errorf(conduit.NotFound, conduit.ReasonServiceNotFound, conduit.NotSent,
		"no instance exports service %s in deployment %s", f.service, f.deployment)
	if o.Registry != nil {
		a, err := o.Registry.FindService(f.deployment, f.service)
		if err != nil && err.Code == conduit.NotFound {
			o.Registry.WaitSettled(ctx) // the first answers may have been still to come
			a, err = o.Registry.FindService(f.deployment, f.service)
		}
		if err == nil {
			return a, nil
		}
		failed = err
	}
	if o.Local != nil {
		if a, ok := o.Local.FindService(f.deployment, f.service); ok {
			return a, nil
		}
	}
	failed.Op = "locator.find"
	return address.Address{}, failed
}
