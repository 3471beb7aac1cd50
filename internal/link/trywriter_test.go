package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

// TestNobodyWaitsToWrite: over a carrier that can write without waiting, a caller gets
// away though the other end reads nothing and there is no room, and so does the reader
// that has to answer; what they have written goes out once there is room.
func TestNobodyWaitsToWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a, b := newSimWire(1, nil, nil) // one message fills it
		c := New(&tryingEnd{simEnd: a.(*simEnd)}, Options{Dialer: true, ProbeInterval: -1})
		s := New(&tryingEnd{simEnd: b.(*simEnd)}, Options{ProbeInterval: -1, Handler: handlerFunc(func(in *Incoming) {
			in.Serve(func(ctx context.Context, s *ServerCall) error {
				m, err := s.Recv(ctx)
				s.Return(m)
				return err
			})
		})})
		defer func() {
			c.Close(CloseDone, "")
			s.Close(CloseDone, "")
			checkOver(t, "dialer", c)
			checkOver(t, "acceptor", s)
		}()
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.freeze(1)
		const many = 40 // of 4 KiB: more than is unreturned when a goroutine of its own writes
		began := time.Now()
		var calls []conduit.Exchange
		for range many {
			calls = append(calls, c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Echo", Request: make([]byte, 4<<10), HasRequest: true, Last: true}))
		}
		if d := time.Since(began); d != 0 { // nothing but waiting takes time here
			t.Errorf("the callers waited for %v", d)
		}
		synctest.Wait()
		w.mu.Lock()
		held := w.dir[0].bytes
		w.mu.Unlock()
		if held == 0 || held > packetTarget+smallFrame {
			t.Errorf("the wire holds %d bytes: the test tests nothing", held)
		}
		w.thaw()
		for _, x := range calls {
			if _, err := x.Recv(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestReadAheadSharesPackets: what answers several packets that have come leaves with one.
func TestReadAheadSharesPackets(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, a, b := newSimWire(1<<20, nil, nil)
			c := New(a, Options{Dialer: true, ProbeInterval: -1})
			end := b
			if ahead {
				end = &tryingEnd{simEnd: b.(*simEnd)}
			}
			s := New(end, Options{ProbeInterval: -1, Handler: handlerFunc(func(in *Incoming) {
				in.Refuse(conduit.Errorf(conduit.NotFound, conduit.ReasonMethodNotFound, conduit.Refused, "none"))
			})})
			defer func() {
				c.Close(CloseDone, "")
				s.Close(CloseDone, "")
				checkOver(t, "dialer", c)
				checkOver(t, "acceptor", s)
			}()
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			w.freeze(1)
			const many = 5
			var calls []conduit.Exchange
			for range many { // a packet each
				calls = append(calls, c.Invoke(t.Context(), testRoute, &conduit.Invocation{Method: "Echo", Last: true}))
				synctest.Wait()
			}
			before := s.Stats().PacketsOut
			w.thaw()
			for _, x := range calls {
				if _, err := x.Recv(t.Context()); conduit.AsError(err, conduit.OutcomeUnknown).Code != conduit.NotFound {
					t.Errorf("it ended with %v", err)
				}
			}
			want := uint64(many)
			if ahead {
				want = 1
			}
			if n := s.Stats().PacketsOut - before; n != want {
				t.Errorf("read ahead %v: %d packets answered %d, want %d", ahead, n, many, want)
			}
		})
	}
}
