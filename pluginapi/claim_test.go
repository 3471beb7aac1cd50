package pluginapi_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/pluginapi"
	"github.com/elemental-conduit/conduit/pluginapi/plugintest"
)

// claimer runs an element whose method Take costs 5 units and claims as many as it is
// told; the claims come on the channel.
func claimer(t *testing.T, total int64) (*plugintest.Client, conduit.Invoker, <-chan *pluginapi.Claim) {
	t.Helper()
	claims := make(chan *pluginapi.Claim, 10)
	s := pluginapi.NewService("test.S")
	take := func(ctx context.Context, n uint32) (uint32, error) {
		claim, err := pluginapi.HostFrom(ctx).Claim(ctx, n)
		if err != nil {
			return 0, err
		}
		claims <- claim
		return claim.Units(), nil
	}
	pluginapi.Handle(s, "Take", take, pluginapi.Remote(), pluginapi.Units(5))
	pluginapi.Handle(s, "TakeFree", take, pluginapi.Remote())
	pluginapi.Handle(s, "Cordoned", func(ctx context.Context, n uint32) (uint32, error) {
		cordon <- true
		<-cordon
		return take(ctx, n)
	}, pluginapi.Remote(), pluginapi.Units(5))
	c := plugintest.Start(t, pluginapi.Element{Name: "e", Services: []*pluginapi.Service{s}}, plugintest.Budget(total))
	return c, c.Service("test.S"), claims
}

var cordon = make(chan bool)

func wantBudget(t *testing.T, c *plugintest.Client, available, reserved, claimed int64) {
	t.Helper()
	if s := c.Budget(); s.Available != available || s.Reserved != reserved || s.Claimed != claimed {
		t.Errorf("the budget is %+v; want %d available, %d reserved, %d claimed", s, available, reserved, claimed)
	}
}

func TestClaimOutlivesItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, claims := claimer(t, 20)
		// Its caller's deadline is not the claim's.
		n, err := conduit.Call[int](t.Context(), s, "Take", 8, conduit.WithTimeout(time.Minute))
		if err != nil || n != 8 {
			t.Fatalf("%d, %v", n, err)
		}
		time.Sleep(time.Hour)
		claim := <-claims
		wantBudget(t, c, 12, 0, 8)
		if claim.Units() != 8 {
			t.Errorf("it holds %d units", claim.Units())
		}
		select {
		case <-claim.Done():
			t.Error("it is over")
		default:
		}
		claim.Release()
		claim.Release()
		<-claim.Done()
		synctest.Wait()
		wantBudget(t, c, 20, 0, 0)
	})
}

func TestClaimIsRefused(t *testing.T) {
	c, s, claims := claimer(t, 12)
	_, err := conduit.Call[int](t.Context(), s, "Take", 13)
	e := wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Executed)
	if e.Details["available"] != "7" || e.Details["total"] != "12" {
		t.Errorf("got %+v", e)
	}
	_, err = conduit.Call[int](t.Context(), s, "Take", 0)
	wantError(t, err, conduit.InvalidArgument, conduit.ReasonBadContent, conduit.Executed)
	if _, err := conduit.Call[int](t.Context(), s, "TakeFree", 12); err != nil {
		t.Errorf("all that there is: %v", err)
	}
	wantBudget(t, c, 0, 0, 12)
	_, err = conduit.Call[int](t.Context(), s, "Take", 1)
	wantError(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity, conduit.Refused)
	(<-claims).Release()
}

// On a cordoned instance a claim gets what its call has reserved, and no more.
func TestClaimOnCordonedInstance(t *testing.T) {
	c, s, claims := claimer(t, 20)
	for _, n := range []int{6, 5} {
		done := make(chan error, 1)
		go func() {
			_, err := conduit.Call[int](t.Context(), s, "Cordoned", n)
			done <- err
		}()
		<-cordon
		c.Cordon(true)
		cordon <- true
		err := <-done
		if n == 6 {
			wantError(t, err, conduit.Unavailable, conduit.ReasonCordoned, conduit.Executed)
		} else if err != nil {
			t.Errorf("as much as was reserved: %v", err)
		}
		c.Cordon(false)
	}
	(<-claims).Release()
}

// Claims outside of a call, and after its end, take from what is available; one whose
// context is over is not made.
func TestClaimOutsideOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var host pluginapi.Host
		s := pluginapi.NewService("test.S")
		pluginapi.Handle(s, "Nothing", func(context.Context, none) (none, error) { return none{}, nil }, pluginapi.Remote())
		c := plugintest.Start(t, pluginapi.Element{
			Name: "e", Services: []*pluginapi.Service{s},
			Start: func(_ context.Context, h pluginapi.Host) error { host = h; return nil },
		}, plugintest.Budget(10))
		claim, err := host.Claim(t.Context(), 7)
		if err != nil {
			t.Fatal(err)
		}
		wantBudget(t, c, 3, 0, 7)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := host.Claim(over, 1); !errors.Is(err, context.Canceled) && !errors.Is(err, &conduit.Error{Code: conduit.Canceled}) {
			t.Errorf("with a context that is over: %v", err)
		}
		synctest.Wait()
		wantBudget(t, c, 3, 0, 7)
		if s := c.Budget(); s.Total != 10 || budget.DefaultTotal == 10 {
			t.Errorf("the total is %d", s.Total)
		}
		claim.Release()
	})
}

// A claim that is held to the end is taken by the host's end, and says so.
func TestClaimIsTakenAway(t *testing.T) {
	var held *pluginapi.Claim
	t.Run("held to the end", func(t *testing.T) {
		_, s, claims := claimer(t, 10)
		if _, err := conduit.Call[int](t.Context(), s, "TakeFree", 3); err != nil {
			t.Fatal(err)
		}
		held = <-claims
	})
	select {
	case <-held.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the claim does not say that it is over")
	}
	held.Release()
}

// REG-03: what a handler has claimed is given back once, by a deferred Release as well,
// and also when it panics in between.
func TestClaimOfAHandlerThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pluginapi.NewService("test.S")
		pluginapi.Handle(s, "Panic", func(ctx context.Context, explicitly bool) (none, error) {
			claim, err := pluginapi.HostFrom(ctx).Claim(ctx, 3)
			if err != nil {
				return none{}, err
			}
			defer claim.Release()
			if explicitly {
				claim.Release()
			}
			panic("between the two")
		}, pluginapi.Remote(), pluginapi.Units(2))
		c := plugintest.Start(t, pluginapi.Element{Name: "e", Services: []*pluginapi.Service{s}}, plugintest.Budget(10))
		for _, explicitly := range []bool{true, false} {
			for range 3 {
				_, err := conduit.Call[none](t.Context(), c.Service("test.S"), "Panic", explicitly)
				wantError(t, err, conduit.Internal, conduit.ReasonPanic, conduit.Executed)
				synctest.Wait()
				wantBudget(t, c, 10, 0, 0)
			}
		}
	})
}
