//go:build full

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/client"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

// TestFullStoreIsKilled kills the element txpersist and its host, in turns, at random
// moments while four callers commit batches of two resources: after each what was
// acknowledged is there, of no batch one half, the file opens without help and no lock is
// held. CONDUIT_STORE_ROUNDS says how often.
func TestFullStoreIsKilled(t *testing.T) {
	rounds := 30
	if s := os.Getenv("CONDUIT_STORE_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := buildTxpersist()
	if err != nil {
		t.Fatal(err)
	}
	i := start(t, []string{binary})
	s := &killedStore{i: i}
	for round := range rounds {
		s.round(t, round%2 == 1)
		if t.Failed() {
			t.Fatalf("round %d of %d", round+1, rounds)
		}
	}
	t.Logf("%d kills, %d commits", rounds, s.commits)
	if s.commits < rounds {
		t.Errorf("only %d commits in %d rounds: the load is none", s.commits, rounds)
	}
}

const killedWriters = 4

type killedStore struct {
	i            *instance
	acknowledged [killedWriters]int
	commits      int
}

func (s *killedStore) invoker(t *testing.T) (context.Context, conduit.Invoker, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c, err := client.Dial(ctx, client.Options{Peers: []string{s.i.url}})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return ctx, c.At("*://txpersist/txpersist/conduit.persist.ResourceStore"), func() {
		cancel()
		_ = c.Close() // its peer may be dead
	}
}

func killedPath(w int, half string) string { return fmt.Sprintf("/k/%d/%s", w, half) }

func (s *killedStore) round(t *testing.T, host bool) {
	t.Helper()
	ctx, inv, done := s.invoker(t)
	pids := s.i.plugins()
	if len(pids) != 1 {
		t.Fatalf("there are %d processes of the store", len(pids))
	}
	var writers sync.WaitGroup
	begun, killed := make(chan struct{}, killedWriters), make(chan struct{})
	for w := range killedWriters {
		writers.Go(func() {
			for first := true; ; first = false {
				n := s.acknowledged[w] + 1
				batch := &persistpb.Batch{Scope: &persistpb.Scope{Paths: []string{fmt.Sprintf("/k/%d", w)}}}
				for _, half := range []string{"a", "b"} {
					batch.Operations = append(batch.Operations, &persistpb.Operation{Op: "put", Path: new(killedPath(w, half)), Data: []byte(strconv.Itoa(n))})
				}
				if _, err := conduit.Call[*persistpb.BatchReply](ctx, inv, "Transact", batch); err != nil {
					if first {
						begun <- struct{}{}
					}
					return
				}
				s.acknowledged[w] = n
				if first {
					begun <- struct{}{}
				}
				select {
				case <-killed: // a call that came when there was no process was held for the next one
					return
				default:
				}
			}
		})
	}
	for range killedWriters {
		<-begun
	}
	moment := time.NewTimer(time.Duration(rand.IntN(100)) * time.Millisecond)
	<-moment.C
	if host {
		s.i.signal(syscall.SIGKILL)
	} else if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	close(killed)
	writers.Wait()
	done()
	if host {
		s.i.wait()
		s.i.noneLeft()
		s.i.launch()
		s.i.waitReady()
	}
	s.verify(t)
}

// verify waits for the store to serve again and compares what it has.
func (s *killedStore) verify(t *testing.T) {
	t.Helper()
	ctx, inv, done := s.invoker(t)
	defer done()
	load := func(path string) (string, error) {
		r, err := conduit.Call[*persistpb.Result](ctx, inv, "Load", &persistpb.Operation{Path: &path})
		return string(r.GetData()), err
	}
	s.i.until("the store to serve", func() bool {
		_, err := load("/k/0/a")
		return err == nil
	})
	for w := range killedWriters {
		first, err := load(killedPath(w, "a"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := load(killedPath(w, "b"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(first)
		if err != nil || first != second {
			t.Errorf("writer %d has half of a commit: %q and %q", w, first, second)
		}
		// The last one may have been committed before anybody could be told.
		if n != s.acknowledged[w] && n != s.acknowledged[w]+1 {
			t.Errorf("writer %d is at %d, and %d was acknowledged", w, n, s.acknowledged[w])
		}
		s.acknowledged[w] = n
		// Its locks are gone: a transaction of the same scope begins.
		lock := &persistpb.Batch{Scope: &persistpb.Scope{Paths: []string{killedPath(w, "a")}}}
		if _, err := conduit.Call[*persistpb.BatchReply](ctx, inv, "Transact", lock); err != nil {
			t.Error(err)
		}
	}
	s.commits = 0
	for _, n := range s.acknowledged {
		s.commits += n
	}
}
