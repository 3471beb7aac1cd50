//go:build full && linux

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

// inProcess serves links at the first end of a wire, in this process, and returns what
// calls them from the second.
func inProcess(t *testing.T, w *wire, serve func(in *link.Incoming)) conduit.Invoker {
	t.Helper()
	s := transport.NewServer(transport.ServerOptions{
		Handler: handlerFunc(serve),
		Authenticate: func(*http.Request) (link.Peer, error) {
			return link.Peer{Name: "ada", User: "ada", Level: conduit.User}, nil
		},
	})
	l := w.at(1).listen()
	h := s.HTTPServer(s)
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		_ = h.Close()
		_ = s.Close()
	})
	c := transport.NewClient(transport.ClientOptions{Insecure: true, DialContext: w.at(2).dial, Link: link.Options{CallTimeout: -1}})
	t.Cleanup(func() { _ = c.Close() })
	return c.Peer("ws://" + l.Addr().String()).At(address.MustParse("*://echo/echo/test.Echo"))
}

type handlerFunc func(in *link.Incoming)

func (f handlerFunc) Handle(in *link.Incoming) { f(in) }

// TestFullNetworkBandwidth: a line of 50 ms there and back carries at least four fifths
// of what it carries for plain TCP, in messages of 8 MiB, and either way. Without growth
// of link credit it would be about half.
func TestFullNetworkBandwidth(t *testing.T) {
	const rate, size, many = 10e6, 8 << 20, 4
	w := newWire(t, 2, 25*time.Millisecond, rate)
	body := make([]byte, size)
	echo := inProcess(t, w, func(in *link.Incoming) {
		down := string(in.Invoke.Method) == "Down"
		in.Serve(func(ctx context.Context, s *link.ServerCall) error {
			if _, err := s.Recv(ctx); err != nil {
				return err
			}
			if down {
				s.Return(conduit.Message{ContentType: conduit.ContentBytes, Data: body})
			}
			return nil
		})
	})
	plain := w.at(1).listen()
	t.Cleanup(func() { _ = plain.Close() })
	go func() {
		for {
			conn, err := plain.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.Copy(io.Discard, conn); err == nil {
					_, _ = conn.Write([]byte{1}) // all of it is there
				}
			}()
		}
	}()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tcp := func() (took time.Duration) {
		begun := time.Now()
		conn, err := w.at(2).dial(ctx, "tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range many {
			if _, err := conn.Write(body); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // of a TCP listener
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return time.Since(begun)
	}
	calls := func(method string, request []byte) (took time.Duration) {
		begun := time.Now()
		var all sync.WaitGroup
		for range 2 { // side by side, as a second message is on its way while the first is taken
			all.Go(func() {
				for range many / 2 {
					x := echo.Invoke(ctx, &conduit.Invocation{Method: method, ContentType: conduit.ContentBytes, Request: request, HasRequest: true, Last: true})
					m, err := x.Recv(ctx)
					if method == "Up" && errors.Is(err, io.EOF) {
						continue
					}
					if err != nil || len(m.Data) != size {
						t.Errorf("%s: %d bytes, %v", method, len(m.Data), err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(begun)
	}
	// The machine may be busy in one round and idle in the next, so each is taken at its
	// best, and there is another round as long as that is too little.
	best := map[string]time.Duration{}
	enough := func(way string) bool { return float64(best["tcp"]) >= 0.8*float64(best[way]) }
	for round := 0; round < 6 && (round == 0 || !enough("up") || !enough("down")); round++ {
		for what, took := range map[string]time.Duration{"tcp": tcp(), "up": calls("Up", body), "down": calls("Down", []byte("x"))} {
			if best[what] == 0 || took < best[what] {
				best[what] = took
			}
		}
		if t.Failed() {
			return
		}
	}
	for _, way := range []string{"up", "down"} {
		share := float64(best["tcp"]) / float64(best[way])
		t.Logf("%s: %.1f MB/s, %.2f of plain TCP's %.1f MB/s", way, many*size/best[way].Seconds()/1e6, share, many*size/best["tcp"].Seconds()/1e6)
		if !enough(way) {
			t.Errorf("%s: the link carries %.2f of what plain TCP carries", way, share)
		}
	}
}

// TestFullNetworkSilence: when packets get lost without a word, whichever way, a call
// fails within 4.5 s by default, as lost and unknown, and the handler at the other end is
// told, too.
func TestFullNetworkSilence(t *testing.T) { //nolint:tparallel // no other test should keep the machine busy meanwhile
	for name, which := range map[string]func(from, to string) bool{
		"both ways": func(string, string) bool { return true },
		"there":     func(_, to string) bool { return to == "10.9.0.1" },
		"back":      func(from, _ string) bool { return from == "10.9.0.1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, 2, 0, 0)
			begun, ended := make(chan struct{}, 1), make(chan error, 10)
			echo := inProcess(t, w, func(in *link.Incoming) {
				in.Serve(func(ctx context.Context, _ *link.ServerCall) error {
					begun <- struct{}{}
					<-ctx.Done()
					ended <- context.Cause(ctx)
					return context.Cause(ctx)
				})
			})
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			// An observer that is late itself begins to count again, and this machine may
			// be busy: once in three is enough, and each time the error must be right.
			for try := range 3 {
				failed := make(chan error, 1)
				go func() {
					_, err := echo.Invoke(ctx, &conduit.Invocation{Method: "Wait", Last: true}).Recv(ctx)
					failed <- err
				}()
				receive(t, begun, "the call to begin")
				silent := time.Now()
				w.drop(which)
				err := receive(t, failed, "the call to fail")
				took := time.Since(silent)
				if e := conduit.AsError(err, 0); e.Reason != conduit.ReasonPeerLost || e.Outcome != conduit.OutcomeUnknown || e.Code != conduit.Unavailable {
					t.Fatalf("after %v: %v", took, err)
				}
				if cause := receive(t, ended, "the handler to be told"); cause == nil {
					t.Error("the handler was told of no cause")
				}
				t.Logf("it failed after %v, the handler knew after %v; %d packets were lost", took, time.Since(silent), w.dropped())
				w.drop(nil)
				if took <= 4500*time.Millisecond {
					return
				}
				if try == 2 {
					t.Errorf("three times it took more than 4.5 s, at last %v", took)
				}
			}
		})
	}
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("waited for %s in vain", what)
		panic("unreachable")
	}
}

// networked is two workers and an external instance, each in a namespace of its own: the
// workers are the ends 1 and 2, the external one is 3.
type networked struct {
	*cluster
	w     *wire
	store string
	urls  string
}

func newNetworked(t *testing.T) *networked {
	t.Helper()
	n := &networked{cluster: &cluster{t: t}, w: newWire(t, 3, 0, 0)}
	n.urls = "ws://10.9.0.1:7400,ws://10.9.0.2:7400"
	for k := range 2 {
		i := prepare(t, []string{built.echo})
		if n.store == "" {
			n.store = "bolt:" + filepath.Join(i.dir, "users.db")
		}
		n.launch(i, fmt.Sprintf("w%d", k+1), k+1)
		n.workers = append(n.workers, i)
	}
	n.front = prepare(t, nil)
	n.launch(n.front, "front", 3, "--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s")
	for _, i := range n.all() {
		i.waitReady()
	}
	n.front.until("both workers to be picked from", func() bool { return n.candidates() == 2 })
	return n
}

// launch starts an instance at an end of the wire.
func (n *networked) launch(i *instance, name string, k int, flags ...string) {
	e := n.w.at(k)
	i.name, i.inside = name, e.inside
	i.web = &http.Client{Transport: &http.Transport{DialContext: e.dial}}
	n.t.Cleanup(i.web.CloseIdleConnections)
	i.flags = append([]string{
		"--auth-mode", "required", "--auth-store", n.store, "--cluster-insecure", "--cluster-listen", e.address + ":7400", "--discovery-static", n.urls,
	}, flags...)
	i.launch(i.flags...)
}

// answering counts the processes that answer n calls by the gateway.
func (n *networked) answering(calls int) map[string]bool {
	n.t.Helper()
	seen := map[string]bool{}
	for range calls {
		r := n.front.ask("call", echoAddr, "Where", "{}")
		pid, err := pidIn(r.out)
		if err != nil {
			n.t.Fatal(err, r.err)
		}
		seen[pid] = true
	}
	return seen
}

// TestFullNetworkPartition: a worker that the others cannot reach any more, in either
// direction or both, is missed by nobody, and is called again once it can be reached.
func TestFullNetworkPartition(t *testing.T) { //nolint:tparallel // no other test should keep the machine busy meanwhile
	for name, which := range map[string]func(from, to string) bool{
		"both ways": func(from, to string) bool { return from == "10.9.0.1" || to == "10.9.0.1" },
		"to it":     func(_, to string) bool { return to == "10.9.0.1" },
		"from it":   func(from, _ string) bool { return from == "10.9.0.1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetworked(t)
			cutOff, other := n.workers[0].plugin(t), n.workers[1].plugin(t)
			load := n.front.load(4, "Where", `{"ms":1}`)
			load.reach(100)
			n.w.drop(which)
			n.front.until("the worker to be missed", func() bool { return n.candidates() == 1 })
			load.reach(int(load.ok.Load()) + 100)
			if seen := n.answering(5); len(seen) != 1 || !seen[other] {
				t.Errorf("%v have answered, and %s alone can be reached", seen, other)
			}
			if row := n.peers()["w1"]; row["state"] == "alive" || row["reason"] == "" {
				t.Errorf("ls instances: %v", row)
			}
			n.w.drop(nil)
			n.front.until("the worker to be back", func() bool { return n.candidates() == 2 })
			n.front.until("calls on it", func() bool { return n.answering(1)[cutOff] })
			if failed := load.stop(); len(failed) > 0 {
				t.Errorf("%d of %d idempotent calls failed; the first: %s", len(failed), load.ok.Load(), failed[0])
			}
		})
	}
}

// TestFullNetworkLoss: of what one end sends, every tenth packet is lost; calls take
// longer, and that is all.
func TestFullNetworkLoss(t *testing.T) {
	n := newNetworked(t)
	count := 0
	n.w.drop(func(from, _ string) bool {
		if from != "10.9.0.1" {
			return false
		}
		count++ // under the wire's lock
		return count%10 == 0
	})
	load := n.front.load(4, "Where", `{"ms":1}`)
	load.reach(500)
	if failed := load.stop(); len(failed) > 0 {
		t.Errorf("%d of %d calls failed; the first: %s", len(failed), load.ok.Load(), failed[0])
	}
	if n.w.dropped() == 0 {
		t.Error("no packet was lost")
	}
}

// TestFullNetworkAddressReused: another instance comes up where one was cut off and
// killed. It is taken for who it is: calls for the old one never reach it.
func TestFullNetworkAddressReused(t *testing.T) {
	n := newNetworked(t)
	old, _ := n.peers()["w1"]["instance"].(string)
	oldAddr := old + "://echo/echo/conduit.example.Echo"
	n.front.ask("call", oldAddr, "Upper", `"x"`).want(t, 0, "\"X\"\n")

	// No word of its end reaches anybody: no reset, no goodbye.
	n.w.drop(func(from, to string) bool { return from == "10.9.0.1" || to == "10.9.0.1" })
	n.workers[0].kill()
	another := prepare(t, []string{built.echo})
	n.launch(another, "another", 1)
	n.workers[0] = another
	another.waitReady()
	n.w.drop(nil)

	n.front.until("the new instance to be known", func() bool { return n.peers()["another"]["state"] == "alive" })
	if id, _ := n.peers()["another"]["instance"].(string); id == old || id == "" {
		t.Errorf("it has the id %q, the old one %q", id, old)
	}
	n.front.ask("call", oldAddr, "Upper", `"x"`).want(t, 3, "", "instance_not_found")
	pid := another.plugin(t)
	n.front.until("calls on it", func() bool { return n.answering(1)[pid] })
	if strings.Contains(n.front.output(), "conflict") {
		t.Errorf("it is taken for the old one:\n%s", n.front.output())
	}
}
