//nolint:thelper // what is given to bubble is a test, no helper
package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// TestKillAtEveryMessage plays one scenario again and again, and kills the link,
// or cuts it in silence, before message k for every k there is: whatever the
// point, each call has one true outcome and nothing is left.
func TestKillAtEveryMessage(t *testing.T) {
	for _, how := range []string{"kill", "cut"} {
		for k := 0; ; k++ {
			over := false
			ok := t.Run(fmt.Sprintf("%s/%d", how, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { over = killAt(t, how, k) })
			})
			if !ok || over {
				break
			}
			if k > 300 {
				t.Fatal("the scenario does not end")
			}
		}
	}
}

// killAt plays the scenario; over says that it came to its end before message k.
func killAt(t *testing.T, how string, k int) (over bool) {
	hit := false
	wire, a, b := newSimWire(128<<10, func() time.Duration { return time.Millisecond }, func(w *simWire, _, n int) {
		if n == k {
			hit = true
			if how == "kill" {
				w.kill()
			} else {
				w.hole = true
			}
		}
	})
	var mu sync.Mutex
	ran := map[string]int{}
	mem := [2]*Memory{NewMemory(0), NewMemory(0)}
	s := New(b, Options{Memory: mem[1], Handler: handlerFunc(func(in *Incoming) {
		mu.Lock()
		ran[string(in.Invoke.Element)]++
		mu.Unlock()
		echoHandler(in)
	})})
	c := New(a, Options{Dialer: true, Memory: mem[0]})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type result struct {
		n   int
		err error
	}
	results := map[string]result{}
	call := func(name, method string, up [][]byte, down int) {
		r := *testRoute
		r.element = []byte(name)
		x := c.Invoke(ctx, &r, &conduit.Invocation{Method: method, Request: up[0], HasRequest: true, Last: len(up) == 1, Streaming: true})
		for _, m := range up[1:] {
			if x.Send(ctx, m) != nil {
				break
			}
		}
		_ = x.CloseSend()
		n := 0
		var err error
		for err == nil {
			if _, err = x.Recv(ctx); err == nil {
				n++
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
			if n != down {
				t.Errorf("message %d: %s succeeded with %d results of %d", k, name, n, down)
			}
		}
		if ctx.Err() != nil {
			t.Errorf("message %d: %s was stuck", k, name)
		}
		mu.Lock()
		results[name] = result{n, err}
		mu.Unlock()
	}
	big := bytes.Repeat([]byte("x"), 90_000)
	var wg sync.WaitGroup
	wg.Go(func() { call("unary", "Echo", [][]byte{[]byte("hello")}, 1) })
	wg.Go(func() { call("large", "Echo", [][]byte{big}, 1) })
	wg.Go(func() { call("stream", "Count", [][]byte{[]byte("20")}, 20) })
	wg.Go(func() { call("upload", "Sum", [][]byte{big, big, []byte("y")}, 1) })
	wg.Go(func() { call("chat", "Chat", [][]byte{[]byte("a"), []byte("b"), []byte("c")}, 3) })
	wg.Wait()
	wire.mu.Lock()
	over = !hit
	wire.mu.Unlock()
	for name, r := range results {
		if r.err == nil {
			continue
		}
		e := asError(t, r.err)
		if over {
			t.Errorf("%s failed though nothing was cut: %v", name, e)
		}
		if e.Outcome == conduit.NotSent && ran[name] != 0 || e.Outcome == conduit.Executed || ran[name] > 1 {
			t.Errorf("message %d: %s ended as %v and ran %d times", k, name, e, ran[name])
		}
	}
	c.Close(CloseDone, "")
	s.Close(CloseDone, "")
	checkOver(t, "caller", c)
	checkOver(t, "server", s)
	synctest.Wait()
	checkMemory(t, "caller", mem[0])
	checkMemory(t, "server", mem[1])
	return over
}
