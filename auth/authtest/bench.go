package authtest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// BenchRevoked measures the time from the return of a revocation by one handle of a store
// until an instance on another refuses the session, and reports its percentiles. open
// returns another handle of the same store each time. Each iteration is one revocation, at
// a moment that has nothing to do with when the instance asks.
func BenchRevoked(b *testing.B, open func() auth.Store) {
	b.Helper()
	instance := auth.NewSessions(auth.SessionsOptions{Store: open()})
	defer instance.Close()
	command := auth.NewAccounts(auth.AccountsOptions{Store: open(), Hasher: auth.NewHasher(Cheap, 1)})
	if _, err := command.AddUser(b.Context(), "ada", conduit.User, nil); err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		m, err := command.Mint(b.Context(), "ada", auth.MintOptions{})
		if err != nil {
			b.Fatal(err)
		}
		g, bad := instance.Validate(b.Context(), []byte(m.Secret.Reveal()), "link")
		if bad != nil {
			b.Fatal(bad)
		}
		ended := make(chan struct{})
		stop := instance.Watch(g, func(*conduit.Error) { close(ended) })
		<-time.After(rand.N(250 * time.Millisecond)) // else it would follow upon a question, each time
		if err := command.Revoke(b.Context(), m.Session.ID); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		select {
		case <-ended:
			took = append(took, time.Since(start))
		case <-time.After(patience):
			b.Fatal("it is never noticed")
		}
		stop()
		if _, bad := instance.Validate(b.Context(), []byte(m.Secret.Reveal()), "link"); bad == nil {
			b.Fatal("it is still valid")
		}
	}
	slices.Sort(took)
	at := func(p int) float64 { return float64(took[(len(took)-1)*p/100]) / float64(time.Millisecond) }
	b.ReportMetric(at(50), "p50-ms")
	b.ReportMetric(at(99), "p99-ms")
	b.ReportMetric(at(100), "max-ms")
}
