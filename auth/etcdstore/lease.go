package etcdstore

import (
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// defaultKeep is how long a session is kept beyond its end: for the day that
	// auth.Sessions answers "expired", and an hour.
	defaultKeep = 25 * time.Hour
	// maxSlack is how much longer than it must a lease may last, so that the sessions of
	// that time share one: a lease for each would cost etcd more than the sessions do.
	maxSlack = 2 * time.Hour
	// maxLeases bounds those that are remembered. What is not remembered lasts all the same.
	maxLeases = 64
)

// leases are those that this Store has been granted lately.
type leases struct {
	mu  sync.Mutex
	all []lease
}

// lease ends at a time of the monotonic clock, which nobody sets.
type lease struct {
	id   clientv3.LeaseID
	ends time.Time
}

// lease returns a lease for a session that expires at a time: one that lasts until it
// need not be known any more. It is no part of what says whether a session is valid, so
// clocks that disagree do no harm.
func (s *Store) lease(ctx context.Context, expires time.Time) (clientv3.LeaseID, error) {
	now := time.Now()
	need := max(expires.Sub(now.Round(0)), 0) + s.o.Keep
	slack := min(maxSlack, s.o.Keep)
	l := &s.leases
	l.mu.Lock()
	l.all = slices.DeleteFunc(l.all, func(l lease) bool { return !l.ends.After(now) })
	for _, one := range l.all {
		if left := one.ends.Sub(now); left >= need && left <= need+slack {
			l.mu.Unlock()
			return one.id, nil
		}
	}
	l.mu.Unlock()
	// Whoever comes meanwhile makes another, which is as good.
	r, err := s.client.Grant(ctx, int64((need+slack+time.Second-1)/time.Second))
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= maxLeases {
		l.all = l.all[1:]
	}
	l.all = append(l.all, lease{r.ID, now.Add(time.Duration(r.TTL) * time.Second)})
	return r.ID, nil
}

// forget has all be made anew: somebody has revoked one.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}
