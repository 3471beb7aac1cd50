package registry

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Calls that a peer spoke of are shown for 2 s, those of this instance always.
func TestInFlightAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		w.list("a")
		l := a.link()
		shows := func(when string, want int64) {
			t.Helper()
			if got := w.r.Peers()[0].InFlight; got != want {
				t.Errorf("%s: %d calls are shown, want %d", when, got, want)
			}
		}
		l.hooks.Status(&conduitv1.Status{InFlight: 5, Digest: []byte("1")})
		l.busy(3)
		shows("just said", 5)
		l.busy(7)
		shows("more are one's own", 7)
		l.busy(3)
		time.Sleep(inFlightAge - time.Nanosecond)
		shows("young", 5)
		time.Sleep(time.Nanosecond)
		shows("old", 3)
		l.busy(0)
		shows("all are over", 0)
	})
}

// hearing is a link that knows when a packet came.
type hearing struct {
	Link
	at time.Time
}

func (h *hearing) Heard() time.Time { return h.at }

// Whatever comes on the link is heard.
func TestHeardOnTheLink(t *testing.T) {
	p := newPeer(url("a"), func() {})
	l := &hearing{Link: idleLink{}}
	p.link = l
	tg := &target{url: p.url, peer: p}
	said := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		said       int64
		link, want time.Time
	}{
		{0, time.Time{}, time.Time{}},
		{0, said, said},
		{said.UnixNano(), said.Add(-time.Second), said},
		{said.UnixNano(), said.Add(time.Second), said.Add(time.Second)},
	} {
		p.heard.Store(test.said)
		l.at = test.link
		if got := tg.status().Heard; !got.Equal(test.want) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// What is as it should be is no warning, and the end of an instance has a name.
func TestWordsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer // written under the registry's mu
		log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))
		w := newWorld(t, Options{Self: address.UniqueInstanceID("me"), Log: log})
		w.host("me", 10, "app")
		w.host("a", 10, "app")
		slow := w.host("slow", 10, "app")
		w.list("me", "a", "slow", "gone")
		slow.mu.Lock()
		slow.mute = true // it is being asked when all ends
		slow.mu.Unlock()
		slow.change(func(*conduitv1.InstanceInfo) {})
		slow.link().status()
		synctest.Wait()
		w.stop()
		var self, gone, warned int
		for line := range strings.Lines(b.String()) {
			switch {
			case strings.Contains(line, "state=self"):
				self++
				if !strings.Contains(line, "level=DEBUG") {
					t.Error(line)
				}
			case strings.Contains(line, "peer is gone"):
				gone++
				if !strings.Contains(line, `reason="this instance is stopping"`) {
					t.Error(line)
				}
			case strings.Contains(line, "state=unreachable") && strings.Contains(line, "level=WARN"):
				warned++
			}
			if strings.Contains(line, context.Canceled.Error()) {
				t.Error(line)
			}
		}
		if self != 1 || gone != 2 || warned != 1 {
			t.Errorf("%d lines of itself, %d of peers that are gone, %d of one that is not there:\n%s", self, gone, warned, b.String())
		}
	})
}
