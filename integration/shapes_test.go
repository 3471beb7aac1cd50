package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

// TestShapesThroughEveryHop makes calls of each shape from an instance's management
// socket, which that instance passes on to a worker, whose host passes them on to the
// plugin: all side by side, with either kind of link between the two instances.
func TestShapesThroughEveryHop(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"multiplexed", "per-call"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, "--cluster-link", mode)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			echo := onDoor{c.front.managed(ctx), link.NewRoute(address.MustParse(echoAddr))}

			var all sync.WaitGroup
			for range 4 {
				for _, shape := range []func(*testing.T, context.Context, conduit.Invoker){
					unaryShape, streamShape, uploadShape, duplexShape, partsShape, failingShape, lateShape, leftShape,
				} {
					all.Go(func() { shape(t, ctx, echo) })
				}
			}
			all.Wait()
			c.front.until("no call to be under way", func() bool { return c.front.callsUnderWay() == 0 && c.workers[0].callsUnderWay() == 0 })
		})
	}
}

// managed opens the management socket of the instance, as its operator.
func (i *instance) managed(ctx context.Context) *link.Conn {
	i.t.Helper()
	token, err := os.ReadFile(filepath.Join(i.dir, "run", i.name+".token"))
	if err != nil {
		i.t.Fatal(err)
	}
	door, err := transport.DialSocket(ctx, filepath.Join(i.dir, "run", i.name+".sock"), []byte(strings.TrimSpace(string(token))), link.Options{})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { door.Close(link.CloseDone, ""); <-door.Done() })
	return door
}

func unaryShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	if got, err := conduit.Call[string](ctx, echo, "Upper", "ada"); err != nil || got != "ADA" {
		t.Errorf("unary: %q, %v", got, err)
	}
}

func streamShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	next := 0
	for n, err := range conduit.Stream[int](ctx, echo, "Count", 200) {
		if err != nil || n != next {
			t.Errorf("stream: item %d is %d, %v", next, n, err)
			return
		}
		next++
	}
	if next != 200 {
		t.Errorf("stream: %d items", next)
	}
}

func uploadShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	if got, err := conduit.Upload[int](ctx, echo, "Sum", func(yield func(int) bool) {
		for n := range 200 {
			if !yield(n) {
				return
			}
		}
	}); err != nil || got != 199*100 {
		t.Errorf("upload: %d, %v", got, err)
	}
}

// duplexShape is a conversation: each message up waits for the answer to the last one,
// so that neither direction can be passed on as a whole.
func duplexShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	d := conduit.Duplex[string, string](ctx, echo, "Chat")
	defer d.Close()
	for _, long := range []int{1, 40_000, 10, 200_000, 1} { // also above the window of a request
		said := strings.Repeat("x", long)
		if err := d.Send(said); err != nil {
			t.Errorf("duplex: %v", err)
			return
		}
		if heard, err := d.Recv(); err != nil || heard != said {
			t.Errorf("duplex: %d bytes came back of %d: %v", len(heard), len(said), err)
			return
		}
	}
	if err := d.CloseSend(); err != nil {
		t.Errorf("duplex: %v", err)
	}
	for rest, err := range d.All() {
		t.Errorf("duplex: behind the end: %q, %v", rest, err)
	}
}

// partsShape has further results, two by two, before its own.
func partsShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	var order []partItem
	note := func(m conduit.Message) { order = append(order, decode(m)) }
	got, err := conduit.Call[int](ctx, echo, "Parts", 20, conduit.OnPart(1, note), conduit.OnPart(2, note))
	if err != nil || got != 20 || len(order) != 40 {
		t.Errorf("parts: %d, %d of them, %v", got, len(order), err)
		return
	}
	for k, item := range order {
		if item != (partItem{Part: k%2 + 1, I: k / 2}) {
			t.Errorf("parts: %d is %+v", k, item)
		}
	}
}

func failingShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	_, err := conduit.Call[string](ctx, echo, "Fail", map[string]string{"code": "failed_precondition", "reason": "lobby_full", "message": "full"})
	if e := conduit.AsError(err, 0); e.Code != conduit.FailedPrecondition || e.Reason != "lobby_full" || e.Outcome != conduit.Executed {
		t.Errorf("typed error: %v", err)
	}
}

// lateShape has a deadline before the answer.
func lateShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err := conduit.Call[struct{}](ctx, echo, "Delay", map[string]int{"ms": 600_000})
	if e := conduit.AsError(err, 0); e.Code != conduit.DeadlineExceeded {
		t.Errorf("deadline: %v", err)
	}
}

// leftShape leaves a stream early: the caller's end of the call is the handler's, or it
// would be seen under way for ten minutes.
func leftShape(t *testing.T, ctx context.Context, echo conduit.Invoker) { //nolint:revive // as the others
	t.Helper()
	for n, err := range conduit.Stream[int](ctx, echo, "CountSlow", map[string]int{"n": 1000, "interval_ms": 600_000}) {
		if err != nil || n != 0 {
			t.Errorf("a stream that is left: %d, %v", n, err)
		}
		return
	}
	t.Error("a stream that is left: no item")
}
