package discovery_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/discovery/discoverytest"
)

func TestStaticConforms(t *testing.T) {
	discoverytest.Run(t, func(t *testing.T, peers ...string) discoverytest.Subject {
		t.Helper()
		s := static(t, peers...)
		return discoverytest.Subject{Source: s, Set: reload(t, s)}
	})
}

// Two sources that overlap conform as one does.
func TestMergeConforms(t *testing.T) {
	discoverytest.Run(t, func(t *testing.T, peers ...string) discoverytest.Subject {
		t.Helper()
		half := func(peers []string) (left, right []string) {
			n := (len(peers) + 2) / 2
			return peers[:min(n, len(peers))], peers[len(peers)/2:]
		}
		l, r := half(peers)
		left, right := static(t, l...), static(t, r...)
		return discoverytest.Subject{Source: discovery.Merge(left, right), Set: func(peers ...string) {
			l, r := half(peers)
			reload(t, left)(l...)
			reload(t, right)(r...)
		}}
	})
	discoverytest.Run(t, func(t *testing.T, peers ...string) discoverytest.Subject {
		t.Helper()
		s := static(t, peers...)
		return discoverytest.Subject{Source: discovery.Merge(s), Set: reload(t, s)}
	})
}

func static(t *testing.T, peers ...string) *discovery.Static {
	t.Helper()
	s, err := discovery.NewStatic(peers, true)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reload(t *testing.T, s *discovery.Static) func(peers ...string) {
	t.Helper()
	return func(peers ...string) {
		t.Helper()
		if err := s.Reload(peers); err != nil {
			t.Fatal(err)
		}
	}
}

// A bad list does not cost the good one, and the same list in other words is no
// change.
func TestReload(t *testing.T) {
	if _, err := discovery.NewStatic([]string{"nonsense"}, false); err == nil {
		t.Error("a bad list is taken")
	}
	synctest.Test(t, func(t *testing.T) {
		s := static(t, "B:7400", "a:7400,b.:7400")
		ctx, cancel := context.WithCancel(t.Context())
		var got [][]string
		done := make(chan error)
		go func() {
			done <- s.Run(ctx, func(s discovery.Snapshot) { got = append(got, s.Peers) })
		}()
		synctest.Wait()
		if err := s.Reload([]string{"c:7400", "host"}); err == nil {
			t.Error("a bad list is taken")
		} else if _, ok := errors.AsType[*discovery.EntryError](err); !ok {
			t.Errorf("%T", err)
		}
		synctest.Wait()
		reload(t, s)("ws://a:7400/cluster/v1", "ws://b:7400")
		synctest.Wait()
		reload(t, s)()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := [][]string{{"ws://a:7400/cluster/v1", "ws://b:7400/cluster/v1"}, {}}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

type broken struct{ err error }

func (b broken) Run(context.Context, func(discovery.Snapshot)) error { return b.err }

func TestMergeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("no such resolver")
		if err := discovery.Merge(broken{bad}, broken{errors.New("other")}).Run(t.Context(), func(discovery.Snapshot) {}); err == nil {
			t.Error("all have failed, and it returned nil")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var last discovery.Snapshot
		done := make(chan error)
		go func() {
			done <- discovery.Merge(broken{bad}, static(t, "a:1")).Run(ctx, func(s discovery.Snapshot) { last = s })
		}()
		synctest.Wait()
		if len(last.Peers) != 1 || len(last.Problems) != 1 || !errors.Is(last.Problems[0].Err, bad) {
			t.Errorf("%+v", last)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- discovery.Merge().Run(ctx, func(s discovery.Snapshot) { last = s }) }()
		synctest.Wait()
		if len(last.Peers) != 0 {
			t.Errorf("%+v", last)
		}
		cancel()
		<-done
	})
}
