package integration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/registry"
)

// TestEndToEnd is the original's JeroMQEndToEndIntegrationTest, with all of its
// tests on: two workers with one element, one client, and each way to get an
// answer. A future is a goroutine's here, a result handler a part, an
// IllegalArgumentException an invalid_argument of the element's.
//
// Each test runs at whichever worker is picked, and at each of the two by its id.
func TestEndToEnd(t *testing.T) {
	t.Parallel()
	workers := []*instance{start(t, []string{built.echo}), start(t, []string{built.echo})}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel) // no defer: the tests run on when this function has returned
	c, err := client.Dial(ctx, client.Options{Peers: []string{workers[0].url, workers[1].url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.WaitPeers(ctx)
	addresses := map[string]string{"any": echoAddr}
	for i, p := range c.Peers() {
		if p.State != registry.StateAlive {
			t.Fatalf("%s is %v: %s", p.URLs[0], p.State, p.Reason)
		}
		addresses[fmt.Sprint("worker ", i)] = address.MustParse(echoAddr).WithInstance(p.Instance).String()
	}
	if len(addresses) != 3 {
		t.Fatalf("%v", addresses)
	}
	for name, at := range addresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			(&endToEnd{c.At(at)}).run(t)
		})
	}
	both := map[string]bool{}
	for r := range conduit.Gather[string](ctx, c.All(echoAddr), "Upper", "who").All() {
		if r.Err != nil || r.Value != "WHO" {
			t.Errorf("%v: %q, %v", r.Node, r.Value, r.Err)
		}
		both[r.Node.Instance] = true
	}
	if len(both) != 2 {
		t.Errorf("%v have answered", both)
	}
}

type endToEnd struct{ echo conduit.Invoker }

// run is the original's table, by its names.
func (e *endToEnd) run(t *testing.T) {
	t.Helper()
	t.Run("testRemoteInvokeSync", func(t *testing.T) {
		ctx := e.begin(t)
		if _, err := conduit.Call[struct{}](ctx, e.echo, "Nothing", nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("testRemoteInvokeSyncException", func(t *testing.T) {
		ctx := e.begin(t)
		_, err := conduit.Call[struct{}](ctx, e.echo, "Fail", illegal("not Hello"))
		isIllegal(t, err, "not Hello")
	})
	t.Run("testRemoteInvokeSyncReturn", func(t *testing.T) {
		ctx := e.begin(t)
		if got, err := conduit.Call[float64](ctx, e.echo, "EchoJSON", 40.42); err != nil || got != 40.42 {
			t.Errorf("%v, %v", got, err)
		}
	})
	t.Run("testRemoteInvokeSyncReturnException", func(t *testing.T) {
		ctx := e.begin(t)
		got, err := conduit.Call[float64](ctx, e.echo, "Fail", illegal("not Hello"))
		isIllegal(t, err, "not Hello")
		if got != 0 {
			t.Errorf("%v beside an error", got)
		}
	})
	t.Run("testAsyncReturnVoid", func(t *testing.T) {
		ctx := e.begin(t)
		var got []partItem
		err := <-async(func() error {
			_, err := conduit.Call[int](ctx, e.echo, "Parts", 1, conduit.OnPart(1, func(m conduit.Message) { got = append(got, decode(m)) }))
			return err
		})
		if err != nil || len(got) != 1 || got[0] != (partItem{Part: 1}) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("testAsyncReturnVoidException", func(t *testing.T) {
		ctx := e.begin(t)
		err := <-async(func() error {
			_, err := conduit.Call[struct{}](ctx, e.echo, "Fail", illegal("not Hello"), notCalled(t, 1), notCalled(t, 2))
			return err
		})
		isIllegal(t, err, "not Hello")
	})
	t.Run("testAsyncReturnFuture", func(t *testing.T) {
		ctx := e.begin(t)
		var got int
		err := <-async(func() (err error) {
			got, err = conduit.Call[int](ctx, e.echo, "EchoJSON", 42)
			return err
		})
		if err != nil || got != 42 {
			t.Errorf("%d, %v", got, err)
		}
	})
	t.Run("testAsyncReturnFutureException", func(t *testing.T) {
		ctx := e.begin(t)
		err := <-async(func() error {
			_, err := conduit.Call[int](ctx, e.echo, "Fail", illegal("not Hello"))
			return fmt.Errorf("the future: %w", err)
		})
		isIllegal(t, err, "not Hello")
	})
	t.Run("testAsyncReturnFutureWithConsumers", func(t *testing.T) {
		ctx := e.begin(t)
		var got int
		var first, second []partItem
		err := <-async(func() (err error) {
			got, err = conduit.Call[int](ctx, e.echo, "Parts", 42,
				conduit.OnPart(1, func(m conduit.Message) { first = append(first, decode(m)) }),
				conduit.OnPart(2, func(m conduit.Message) { second = append(second, decode(m)) }))
			return err
		})
		if err != nil || got != 42 || len(first) != 42 || len(second) != 42 {
			t.Fatalf("%d, %d and %d in parts, %v", got, len(first), len(second), err)
		}
		for i := range 42 {
			if first[i] != (partItem{1, i}) || second[i] != (partItem{2, i}) {
				t.Errorf("item %d: %+v, %+v", i, first[i], second[i])
			}
		}
	})
	t.Run("testAsyncReturnFutureWithConsumersException", func(t *testing.T) {
		ctx := e.begin(t)
		var handled error // what the original's error handler is given
		err := <-async(func() error {
			_, handled = conduit.Call[int](ctx, e.echo, "Fail", illegal("not Hello"), notCalled(t, 1), notCalled(t, 2))
			return handled
		})
		isIllegal(t, err, "not Hello")
		isIllegal(t, handled, "not Hello")
	})
	t.Run("testAsyncReturnFutureWithCustomConsumers", func(t *testing.T) {
		ctx := e.begin(t)
		var got int
		h := &handler{}
		err := <-async(func() (err error) {
			got, err = conduit.Call[int](ctx, e.echo, "Parts", 3, typed(1, h.take), typed(2, h.take))
			return err
		})
		if err != nil || got != 3 || h.err != nil || h.n != 6 {
			t.Errorf("%d, %+v, %v", got, h, err)
		}
	})
	t.Run("testAsyncReturnFutureWithCustomConsumersException", func(t *testing.T) {
		ctx := e.begin(t)
		h := &handler{}
		err := <-async(func() error {
			_, err := conduit.Call[int](ctx, e.echo, "Fail", illegal("not Hello"), typed(1, h.take), typed(2, h.take))
			return err
		})
		isIllegal(t, err, "not Hello")
		if h.n != 0 {
			t.Errorf("%+v", h)
		}
	})
	t.Run("testEcho", func(t *testing.T) {
		ctx := e.begin(t)
		id := newUUID()
		if got, err := conduit.Call[string](ctx, e.echo, "EchoJSON", id); err != nil || got != id {
			t.Errorf("%q, %v; want %q", got, err, id)
		}
	})
	t.Run("testEchoWithSomeErrors", func(t *testing.T) {
		ctx := e.begin(t)
		// Many side by side, so that one's error cannot be another's.
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				id := newUUID()
				if i%3 > 0 {
					_, err := conduit.Call[string](ctx, e.echo, "Fail", illegal(id))
					isIllegal(t, err, id)
					return
				}
				if got, err := conduit.Call[string](ctx, e.echo, "EchoJSON", id); err != nil || got != id {
					t.Errorf("%q, %v; want %q", got, err, id)
				}
			})
		}
		all.Wait()
	})
}

// begin begins one of the tests, whose time counts from when it is its turn.
func (e *endToEnd) begin(t *testing.T) context.Context {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	// The original's service sleeps so before it answers.
	if _, err := conduit.Call[struct{}](ctx, e.echo, "Delay", map[string]int{"ms": mathrand.IntN(100)}); err != nil {
		t.Error(err)
	}
	return ctx
}

// partItem is what Parts sends to a result handler.
type partItem struct {
	Part int `json:"part"`
	I    int `json:"i"`
}

func decode(m conduit.Message) partItem {
	v, err := conduit.Decode[partItem](m)
	if err != nil {
		panic(err)
	}
	return v
}

// handler is a result handler of the test's own type.
type handler struct {
	n   int
	err error
}

func (h *handler) take(part uint32, v partItem, err error) {
	if err == nil && (v.Part != int(part) || v.I != h.n/2) {
		err = fmt.Errorf("%+v came to part %d as number %d", v, part, h.n)
	}
	h.n++
	h.err = errors.Join(h.err, err)
}

// typed makes a part's handler of a function of another form.
func typed(part uint32, take func(part uint32, v partItem, err error)) conduit.CallOption {
	return conduit.OnPart(part, func(m conduit.Message) {
		v, err := conduit.Decode[partItem](m)
		take(part, v, err)
	})
}

// notCalled is the result handler of a call that fails.
func notCalled(t *testing.T, part uint32) conduit.CallOption {
	t.Helper()
	return conduit.OnPart(part, func(m conduit.Message) { t.Errorf("part %d: %s", part, m.Data) })
}

// async runs a call on a goroutine of its own.
func async(call func() error) <-chan error {
	over := make(chan error, 1)
	go func() { over <- call() }()
	return over
}

// illegal is what makes Fail fail as the original does with an
// IllegalArgumentException.
func illegal(message string) map[string]string {
	return map[string]string{"code": conduit.InvalidArgument.String(), "message": message}
}

func isIllegal(t *testing.T, err error, message string) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != conduit.InvalidArgument || e.Outcome != conduit.Executed || e.Message != message {
		t.Errorf("%v, want invalid_argument %q of the element's", err, message)
	}
}

// newUUID returns a random UUID as text.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
