//go:build full

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

// The cluster of TestFullCapacity.
const (
	fullHosts   = 10
	fullCallers = 10
	fullPlaces  = 100 // matches of two on each instance
	// fullSpare is the room, of all places, with which no_capacity is false for sure, and
	// with which a load is not refused anything.
	fullSpare = fullHosts * fullPlaces / 10
)

// matchLoad is a number of loops that create a match, hold it for a while and end it.
type matchLoad struct {
	t       *testing.T
	clients []*client.Client

	// wanted counts matches that may be there: from before their Create is sent until
	// their End has answered. It is never less than what is held, whatever is under way.
	wanted atomic.Int64

	mu      sync.Mutex
	created int
	refused map[conduit.Outcome]int // with no_capacity
	falsely int                     // of these, while there was room for sure
	held    map[string]int          // matches that are there for sure, by address
	most    int                     // that were there at once on one instance
}

// run has loops make so many calls of Create, all together.
func (l *matchLoad) run(ctx context.Context, loops, calls int) {
	var left atomic.Int64
	left.Store(int64(calls))
	var all sync.WaitGroup
	for n := range loops {
		c := l.clients[n%len(l.clients)]
		all.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				l.one(ctx, c)
			}
		})
	}
	all.Wait()
}

func (l *matchLoad) one(ctx context.Context, c *client.Client) {
	most := l.wanted.Add(1)
	m, err := conduit.Call[aMatch](ctx, c.At(matchesAddr), "Create", map[string]int{"size": 2}, conduit.WithUnits(2))
	if err != nil {
		// What was wanted before the call and what is after it; in between it may have been more.
		most = max(most, l.wanted.Add(-1)+1)
		l.refusal(err, most)
		hold(ctx, time.Duration(500+rand.IntN(1000))*time.Millisecond)
		return
	}
	l.count(m.Address, 1)
	hold(ctx, time.Duration(1500+rand.IntN(3000))*time.Millisecond)
	l.count(m.Address, -1)
	if _, err := conduit.Call[aMatch](ctx, c.At(m.Address), "End", map[string]string{"match": m.Match}); err != nil {
		l.t.Errorf("End of %s: %v", m.Match, err)
	}
	l.wanted.Add(-1)
}

func (l *matchLoad) refusal(err error, wanted int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Reason != conduit.ReasonNoCapacity || e.Outcome != conduit.NotSent && e.Outcome != conduit.Refused {
		l.t.Errorf("Create: %v", err)
		return
	}
	l.refused[e.Outcome]++
	if wanted <= fullHosts*fullPlaces-fullSpare {
		l.falsely++
		l.t.Logf("Create is refused while %d matches of %d are wanted: %v", wanted, fullHosts*fullPlaces, err)
	}
}

// count notes that a match is there for sure, or may be gone.
func (l *matchLoad) count(address string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 {
		l.created++
	}
	l.held[address] += n
	l.most = max(l.most, l.held[address])
}

// hold is how long a match goes on.
func hold(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// TestFullCapacity is `make sim-capacity` with real processes: ten instances that host
// matches, ten callers that know nothing of each other. As long as a tenth of all places is
// free at most one call in a thousand is refused; beyond, no instance holds more than it
// has, and what ends is given back to the last unit.
func TestFullCapacity(t *testing.T) {
	binary, err := buildMatches()
	if err != nil {
		t.Fatal(err)
	}
	var workers []*instance
	var peers []string
	for n := range fullHosts {
		w := prepare(t, []string{binary})
		w.name = fmt.Sprintf("w%d", n)
		w.launch("--budget-total", strconv.Itoa(2*fullPlaces))
		workers = append(workers, w)
	}
	for _, w := range workers {
		w.waitReady()
		peers = append(peers, w.url)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := &matchLoad{t: t, refused: map[conduit.Outcome]int{}, held: map[string]int{}}
	for range fullCallers {
		c, err := client.Dial(ctx, client.Options{Peers: peers})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l.clients = append(l.clients, c)
	}
	for _, w := range workers { // Dial is content with one
		id, _ := w.rows("ls", "instances")[0]["instance"].(string)
		for _, c := range l.clients {
			w.until("a caller to have met it", func() bool {
				_, err := conduit.Call[struct{}](ctx, c.At(id+strings.TrimPrefix(matchesAddr, "*")), "List", nil)
				return err == nil
			})
		}
	}
	free := strconv.Itoa(2 * fullPlaces)

	const calls = 3000
	l.run(ctx, fullHosts*fullPlaces-fullSpare, calls)
	t.Logf("90 %%: %d created, refused %v, at most %d of %d on one instance", l.created, l.refused, l.most, fullPlaces)
	// Three instances in a row may each have been filled by others since they were heard.
	if l.falsely > calls/1000 {
		t.Errorf("%d of %d calls were refused though a tenth of all places was free", l.falsely, calls)
	}
	falsely := l.falsely
	for _, w := range workers {
		w.units(free, "0")
	}

	l.run(ctx, fullHosts*fullPlaces*13/10, calls)
	t.Logf("130 %%: %d created in all, refused %v, at most %d of %d on one instance", l.created, l.refused, l.most, fullPlaces)
	if l.refused[conduit.NotSent]+l.refused[conduit.Refused] == 0 {
		t.Error("nobody is refused, so it was no overload")
	}
	if n := l.falsely - falsely; n > calls/1000 {
		t.Errorf("%d of %d calls were refused though a tenth of all places was free", n, calls)
	}
	if l.most > fullPlaces {
		t.Errorf("an instance held %d matches at once, and has room for %d", l.most, fullPlaces)
	}
	if l.most < fullPlaces*9/10 {
		t.Errorf("no instance ever held more than %d of %d matches", l.most, fullPlaces)
	}
	if ctx.Err() != nil {
		t.Fatal("it took too long")
	}

	// Also of matches that nobody ends.
	for range fullHosts {
		if _, err := conduit.Call[aMatch](ctx, l.clients[0].At(matchesAddr), "Create", map[string]int{"size": 2, "lasts_ms": 200}, conduit.WithUnits(2)); err != nil {
			t.Error(err)
		}
	}
	for _, w := range workers {
		w.units(free, "0")
	}
}
