package authtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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

// Counted is a store that counts what is asked of it.
type Counted struct {
	auth.Store

	ops, compared atomic.Int64
}

// Operations returns how many operations the store was asked for, and Compared how many
// sessions were compared by Recheck, since it was made.
func (c *Counted) Operations() int { return int(c.ops.Load()) }

// Compared is described at Operations.
func (c *Counted) Compared() int { return int(c.compared.Load()) }

// Generation counts.
func (c *Counted) Generation(ctx context.Context) (uint64, error) {
	c.ops.Add(1)
	return c.Store.Generation(ctx)
}

// Moved counts.
func (c *Counted) Moved(ctx context.Context, since uint64) (auth.Moves, error) {
	c.ops.Add(1)
	return c.Store.Moved(ctx, since)
}

// Find counts.
func (c *Counted) Find(ctx context.Context, secret auth.Secret) (auth.Found, error) {
	c.ops.Add(1)
	return c.Store.Find(ctx, secret)
}

// Recheck counts.
func (c *Counted) Recheck(ctx context.Context, ids []auth.SessionID) ([]auth.Found, uint64, error) {
	c.ops.Add(1)
	c.compared.Add(int64(len(ids)))
	return c.Store.Recheck(ctx, ids)
}

// Touch counts.
func (c *Counted) Touch(ctx context.Context, now time.Time, moves []auth.Touch) error {
	c.ops.Add(1)
	return c.Store.Touch(ctx, now, moves)
}

// Sweep counts.
func (c *Counted) Sweep(ctx context.Context, before time.Time) (int, error) {
	c.ops.Add(1)
	return c.Store.Sweep(ctx, before)
}

// Tell passes on what the store says by itself, if it does.
func (c *Counted) Tell(ctx context.Context, moved func()) {
	if t, ok := c.Store.(auth.Teller); ok {
		t.Tell(ctx, moved)
	}
}

// Fill adds n users to a store, u0 and so on, each with a session that lasts for life
// from now on, and returns their secrets and the sessions' ids.
func Fill(tb testing.TB, s auth.Store, n int, life time.Duration) (secrets [][]byte, ids []auth.SessionID) {
	tb.Helper()
	secrets, ids = make([][]byte, n), make([]auth.SessionID, n)
	errs := make([]error, 16) // one a worker: a store may be quicker with many at once
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += len(errs) {
				u := newUser(fmt.Sprintf("u%d", i))
				one, secret := newSession(u, life)
				now := time.UnixMilli(time.Now().UnixMilli()).UTC()
				one.Created, one.Seen, one.Expires = now, now, now.Add(life)
				errs[w] = errors.Join(s.AddUser(tb.Context(), u), s.AddSession(tb.Context(), one, u.Stamp))
				secrets[i], ids[i] = []byte(secret.Reveal()), one.ID
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return secrets, ids
}

// BenchSteady measures what 10,000 users cost a store, of whom each calls once a second over
// one link, by sessions that last three minutes unless they are used: what an instance asks
// it for in a second, without a logout and with one each second. open returns another handle
// of the same, empty store each time; requests, if not nil, is how many requests have been
// made of what the store stands on, by everybody. Each iteration is a second: it takes 150 to
// see each session moved at least once.
func BenchSteady(b *testing.B, open func() auth.Store, requests func() int) {
	b.Helper()
	const users, life = 10_000, 3 * time.Minute
	if requests == nil {
		requests = func() int { return 0 }
	}
	command := open()
	secrets, ids := Fill(b, command, users, life)
	for name, logouts := range map[string]bool{"calls": false, "logouts": true} {
		b.Run(name, func(b *testing.B) {
			counted := &Counted{Store: open()}
			instance := auth.NewSessions(auth.SessionsOptions{Store: counted})
			defer instance.Close()
			use := func(secrets [][]byte) {
				for _, secret := range secrets {
					if _, bad := instance.Validate(b.Context(), secret, "link"); bad != nil {
						b.Fatal(bad)
					}
				}
			}
			use(secrets)
			var second, ops, most, compared, asked int
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for b.Loop() {
				before, past, made := counted.Operations(), counted.Compared(), requests()
				if logouts && len(secrets) > 1 {
					if err := command.RemoveSession(b.Context(), ids[0]); err != nil {
						b.Fatal(err)
					}
					secrets, ids = secrets[1:], ids[1:]
				}
				use(secrets)
				<-tick.C
				n := counted.Operations() - before
				second, ops, most, compared, asked = second+1, ops+n, max(most, n), compared+counted.Compared()-past, asked+requests()-made
			}
			b.ReportMetric(float64(ops)/float64(second), "ops/s")
			b.ReportMetric(float64(most), "most-ops/s")
			b.ReportMetric(float64(compared)/float64(second), "compared/s")
			b.ReportMetric(float64(asked)/float64(second), "requests/s")
		})
	}
}
