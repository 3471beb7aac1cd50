package integration

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
)

// at is the address of echo on a worker.
func (c *cluster) at(w *instance) string {
	id, _ := c.peers()[w.name]["instance"].(string)
	return id + "://echo/echo/conduit.example.Echo"
}

// quiet waits until no instance has a call under way.
func (c *cluster) quiet() {
	c.t.Helper()
	for _, i := range c.all() {
		i.until("no call to be under way", func() bool { return i.callsUnderWay() == 0 })
	}
}

// The end of a call reaches what was called on its behalf: from a management socket
// through an instance to an element, which has called another on another worker. And a
// handler that does not listen is shown as overdue, until it ends.
func TestEndsReachInnerCalls(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	door := c.front.managed(ctx)
	first := onDoor{door, link.NewRoute(address.MustParse(c.at(c.workers[0])))}
	second := c.at(c.workers[1])
	inner := map[string]any{"address": second, "method": "Delay", "request": map[string]any{"ms": 600_000}}

	// Cancelled.
	calling, leave := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := conduit.Call[json.RawMessage](calling, first, "Chain", inner)
		ended <- err
	}()
	c.workers[1].until("the inner call to run", func() bool { return c.workers[1].callsUnderWay() >= 2 }) // on its link, and on the plugin's
	leave()
	if e := conduit.AsError(<-ended, 0); e.Code != conduit.Canceled {
		t.Errorf("cancelled: %v", e)
	}
	c.quiet()

	// Late: what is left of the time is the inner call's, too, so that it ends by itself.
	_, err := conduit.Call[json.RawMessage](ctx, first, "Chain", inner, conduit.WithTimeout(500*time.Millisecond))
	if e := conduit.AsError(err, 0); e.Code != conduit.DeadlineExceeded {
		t.Errorf("late: %v", err)
	}
	c.quiet()

	// Deaf.
	_, err = conduit.Call[json.RawMessage](ctx, first, "Delay", map[string]any{"ms": 3000, "ignore_context": true}, conduit.WithTimeout(200*time.Millisecond))
	if e := conduit.AsError(err, 0); e.Code != conduit.DeadlineExceeded {
		t.Errorf("deaf: %v", err)
	}
	c.workers[0].until("the handler to be shown as overdue", func() bool { return c.workers[0].overdue() > 0 })
	c.workers[0].until("it to end", func() bool { return c.workers[0].overdue() == 0 })
	c.quiet()
}

// overdue counts the calls of plugins that their callers have given up.
func (i *instance) overdue() (n float64) {
	for _, row := range i.rows("ls", "links") {
		if late, ok := row["overdue"].(float64); ok && row["kind"] == "plugin" {
			n += late
		}
	}
	return n
}

// A drain is seen from everywhere: /readyz, the instance's own word, and that of its
// peers, by which it gets no new calls. What is under way goes on meanwhile, and what it
// calls goes out. A second signal ends it at once.
func TestDrainIsSeen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--drain-timeout", "10m")
	leaving, other := c.workers[0], c.at(c.workers[1])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	door := c.front.managed(ctx)
	there := onDoor{door, link.NewRoute(address.MustParse(c.at(leaving)))}

	talk := conduit.Duplex[string, string](ctx, there, "Chat")
	defer talk.Close()
	say := func(word string) {
		t.Helper()
		if err := talk.Send(word); err != nil {
			t.Fatal(err)
		}
		if heard, err := talk.Recv(); err != nil || heard != word {
			t.Fatalf("%q came back, %v", heard, err)
		}
	}
	say("before the drain")
	late := make(chan string, 1)
	go func() {
		got, err := conduit.Call[string](ctx, there, "Chain", map[string]any{
			"address": other, "method": "Upper", "request": "called while it drains", "after_ms": 2000,
		})
		if err != nil {
			got = err.Error()
		}
		late <- got
	}()
	leaving.until("the handler to run", func() bool { return leaving.callsUnderWay() >= 4 }) // two calls, on two links each
	leaving.signal(syscall.SIGTERM)

	leaving.until("/readyz to say why not", func() bool {
		resp, err := http.Get(leaving.ops + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), "draining")
	})
	leaving.until("its own word", func() bool {
		for _, row := range leaving.rows("ls", "instances") {
			if row["name"] == leaving.name {
				return row["state"] == "draining"
			}
		}
		return false
	})
	c.front.until("its peers' word", func() bool { return c.peers()[leaving.name]["state"] == "draining" })
	if n := c.candidates(); n != 1 {
		t.Errorf("%d workers are picked from", n)
	}
	for range 10 {
		c.front.ask("call", echoAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")
	}
	say("while it drains")
	if got := <-late; got != "CALLED WHILE IT DRAINS" {
		t.Errorf("what a running handler calls: %s", got)
	}

	leaving.signal(syscall.SIGTERM)
	if code := leaving.wait(); code != 130 {
		t.Errorf("exit %d", code)
	}
	if _, err := talk.Recv(); conduit.AsError(err, 0).Code != conduit.Unavailable {
		t.Errorf("the call that was under way: %v", err)
	}
	leaving.noneLeft()
	leaving.launch(leaving.flags...)
	leaving.waitReady()
	c.front.until("the worker to be back", func() bool { return c.candidates() == 2 })
}
