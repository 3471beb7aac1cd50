package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
)

const matchesAddr = "*://matches/matches/conduit.example.Matches"

// buildMatches builds plugins/matches, once.
var buildMatches = sync.OnceValues(func() (string, error) { //nolint:gochecknoglobals // built once
	out := filepath.Join(built.dir, "matches")
	return out, goBuild("..", out, "./plugins/matches")
})

// aMatch is what the element says of one.
type aMatch struct {
	Match, Address string
	Size           int
	Players        []string
}

// gauge returns a series of /metrics that has no label.
func (i *instance) gauge(name string) string {
	i.t.Helper()
	resp, err := http.Get(i.ops + "/metrics")
	if err != nil {
		i.t.Fatal(err)
	}
	defer resp.Body.Close()
	for line := range strings.SplitSeq(readAll(i.t, resp.Body), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return value
		}
	}
	return ""
}

// units waits until so many units are available, and so many claims held.
func (i *instance) units(available, claims string) {
	i.t.Helper()
	i.until(available+" units to be available and "+claims+" claims held", func() bool {
		return i.gauge("conduit_budget_available_units") == available && i.gauge("conduit_budget_claims") == claims
	})
}

// Matches are spread over workers and fill them; what ends gives its room back; a hot
// swap ends none, and a crash gives back all that was held.
func TestMatches(t *testing.T) {
	t.Parallel()
	binary, err := buildMatches()
	if err != nil {
		t.Fatal(err)
	}
	var workers []*instance
	var peers []string
	for n := range 2 {
		w := prepare(t, []string{binary})
		w.name = fmt.Sprintf("w%d", n)
		// The limit of calls on a replaced process is none that this test gets to.
		w.launch("--budget-total", "10", "--drain-timeout", "10m")
		workers = append(workers, w)
	}
	for _, w := range workers {
		w.waitReady()
		peers = append(peers, w.url)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Peers: peers})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	create := func() (aMatch, error) {
		return conduit.Call[aMatch](ctx, c.At(matchesAddr), "Create", map[string]int{"size": 2}, conduit.WithUnits(2))
	}
	ask := func(m aMatch, method string, player ...string) aMatch {
		t.Helper()
		in := map[string]string{"match": m.Match}
		if len(player) > 0 {
			in["player"] = player[0]
		}
		out, err := conduit.Call[aMatch](ctx, c.At(m.Address), method, in)
		if err != nil {
			t.Fatalf("%s of %s: %v", method, m.Match, err)
		}
		return out
	}
	list := func(address string) []string {
		t.Helper()
		got, err := conduit.Call[struct{ Matches []aMatch }](ctx, c.At(address), "List", nil)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range got.Matches {
			ids = append(ids, m.Match)
		}
		return ids
	}

	// Dial is content with one; that the client has met both is seen by calling each.
	for _, w := range workers {
		id, _ := w.rows("ls", "instances")[0]["instance"].(string)
		w.until("the client to have met it", func() bool {
			_, err := conduit.Call[struct{}](ctx, c.At(id+strings.TrimPrefix(matchesAddr, "*")), "List", nil)
			return err == nil
		})
	}

	// They spread, and no room is left over.
	at := map[string][]aMatch{} // by address
	for n := range 10 {
		m, err := create()
		if err != nil {
			t.Fatalf("match %d: %v", n, err)
		}
		at[m.Address] = append(at[m.Address], m)
		if n == 3 && len(at) != 2 {
			t.Errorf("after four matches: %v", at)
		}
	}
	for address, all := range at {
		if len(all) != 5 {
			t.Errorf("%s has %d matches of 10", address, len(all))
		}
	}
	for _, w := range workers {
		w.units("0", "5")
	}
	_, err = create()
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonNoCapacity || e.Outcome != conduit.NotSent && e.Outcome != conduit.Refused {
		t.Errorf("the eleventh match: %v", err)
	}

	// What ends gives its room back.
	var first aMatch
	for _, all := range at {
		first = all[0]
		break
	}
	ask(first, "End")
	var again aMatch
	workers[0].until("the room to be known and taken", func() bool {
		again, err = create()
		return err == nil
	})
	if again.Address != first.Address {
		t.Errorf("%s has room, and %s was taken", first.Address, again.Address)
	}
	at[first.Address] = append(at[first.Address][1:], again)

	// Another version: the old process has its matches until they end, and whoever
	// plays goes on through the new one.
	all := at[first.Address]
	w := workers[0]
	if id, _ := w.rows("ls", "instances")[0]["instance"].(string); !strings.HasPrefix(first.Address, id+":") {
		w = workers[1]
	}
	before := w.plugins()
	ask(all[0], "Join", "ada")
	seen, begun := make(chan string, 1), make(chan struct{})
	go func() {
		var kinds []string
		for e, err := range conduit.Stream[struct{ Kind, Player string }](ctx, c.At(first.Address), "Watch", map[string]string{"match": all[0].Match}) {
			if err != nil {
				kinds = append(kinds, err.Error())
				break
			}
			if kinds = append(kinds, e.Kind+e.Player); len(kinds) == 1 {
				close(begun)
			}
		}
		seen <- strings.Join(kinds, " ")
	}()
	<-begun
	data, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(w.dir, "next")
	if err := os.WriteFile(next, append(data, "another version"...), 0o700); err != nil { //nolint:gosec // a plugin is executable
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(w.deployments, "matches")); err != nil {
		t.Fatal(err)
	}
	w.until("the new version to serve", func() bool {
		rows := w.rows("ls", "elements")
		pid, _ := rows[0]["pid"].(float64)
		return rows[0]["state"] == "ready" && pid != 0 && !slices.Contains(before, int(pid))
	})
	var ids []string
	for _, m := range all {
		ids = append(ids, m.Match)
	}
	if got := list(first.Address); !slices.Equal(got, ids) {
		t.Errorf("after the swap there are %q, before it there were %q", got, ids)
	}
	w.units("0", "5")
	if m := ask(all[0], "Join", "bob"); !slices.Equal(m.Players, []string{"ada", "bob"}) {
		t.Errorf("after the swap %q play", m.Players)
	}
	if n := len(w.plugins()); n != 2 {
		t.Errorf("%d processes of the element while the old one has matches", n)
	}
	for _, m := range all {
		ask(m, "End")
	}
	if got := <-seen; got != "present joinedbob ended" {
		t.Errorf("who watched across the swap saw %q", got)
	}
	w.until("the old process to end", func() bool { return len(w.plugins()) == 1 })
	w.units("10", "0")

	// A crash gives back what the process held.
	for range 3 {
		w.until("a match on "+w.name, func() bool {
			_, err := conduit.Call[aMatch](ctx, c.At(first.Address), "Create", map[string]int{"size": 3}, conduit.WithUnits(3))
			return err == nil
		})
	}
	w.units("1", "3")
	if err := syscall.Kill(w.plugins()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.units("10", "0")
	w.until("the element to serve again, without matches", func() bool {
		got, err := conduit.Call[struct{ Matches []aMatch }](ctx, c.At(first.Address), "List", nil)
		return err == nil && len(got.Matches) == 0
	})
}
