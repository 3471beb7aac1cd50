//go:build full

package etcd

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/etcdstore"
)

// freePorts reserves ports, which the members of a cluster must know of each other before
// they listen.
func freePorts(t *testing.T, n int) (urls []url.URL) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, url.URL{Scheme: "http", Host: l.Addr().String()})
	}
	return urls
}

// trio starts a cluster of three.
func trio(t *testing.T) [3]*server {
	t.Helper()
	peers := freePorts(t, 3)
	var members [3]*server
	var names []string
	for i := range members {
		names = append(names, fmt.Sprintf("m%d=%s", i, &peers[i]))
	}
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i := range members {
		c := embedded(t.TempDir(), fmt.Sprint("m", i), "http")
		c.ListenPeerUrls, c.AdvertisePeerUrls = peers[i:i+1], peers[i:i+1]
		c.InitialCluster = strings.Join(names, ",")
		wg.Go(func() { members[i], errs[i] = start(c) })
	}
	wg.Wait()
	for _, m := range members {
		if m != nil {
			t.Cleanup(m.Close)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return members
}

// TestFullOneOfThree: of a cluster of three one is killed, the leader, while sessions are
// made, validated and revoked. Nothing is lost, nothing is done twice, and a revocation
// holds; with two killed all is refused, and nobody gets in.
func TestFullOneOfThree(t *testing.T) {
	members := trio(t)
	var ends []string
	for _, m := range members {
		ends = append(ends, end(m))
	}
	o := etcdstore.Options{Endpoints: ends, Prefix: "trio", Patience: 30 * time.Second}
	a := accounts(opened(t, o))
	s := auth.NewSessions(auth.SessionsOptions{Store: opened(t, o)})
	defer s.Close()
	if _, err := a.AddUser(t.Context(), "ada", conduit.User, nil); err != nil {
		t.Fatal(err)
	}
	const rounds = 60
	leader := 0
	for i, m := range members {
		if m.Server.Leader() == m.Server.MemberID() {
			leader = i
		}
	}
	killed := make(chan struct{})
	var kept, revoked []auth.Minted
	for i := range rounds {
		if i == rounds/3 {
			go func() { defer close(killed); members[leader].Close() }()
		}
		m, err := a.Mint(t.Context(), "ada", auth.MintOptions{})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if i%2 == 0 {
			kept = append(kept, m)
			continue
		}
		if err := a.Revoke(t.Context(), m.Session.ID); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		revoked = append(revoked, m)
	}
	<-killed
	for _, m := range kept {
		until(t, "a session to be known", func() bool { _, bad := validates(t, s, m); return bad == nil })
	}
	for _, m := range revoked {
		if _, bad := validates(t, s, m); bad == nil {
			t.Error("a session that was revoked is good")
		}
	}
	if all, err := a.Sessions(t.Context(), "ada"); err != nil || len(all) != len(kept) {
		t.Errorf("%d sessions, %v; want %d", len(all), err, len(kept))
	}
	if err := a.Revoke(t.Context(), kept[0].Session.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "a revocation to hold", func() bool {
		_, bad := validates(t, s, kept[0])
		return bad != nil && bad.Code == conduit.Unauthenticated
	})

	fresh := mint(t, a, "ada")
	members[(leader+1)%3].Close()
	until(t, "the loss to be noticed", func() bool { return s.Stats().Down })
	if _, bad := validates(t, s, fresh); bad == nil || bad.Reason != conduit.ReasonStoreUnavailable {
		t.Errorf("without a majority: %v", bad)
	}
	if _, bad := validates(t, s, kept[1]); bad != nil {
		t.Errorf("a session that is known: %v", bad)
	}
}
