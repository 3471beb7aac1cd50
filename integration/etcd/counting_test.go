package etcd

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/auth/etcdstore"
)

// counting counts what validating asks a store.
type counting struct {
	*etcdstore.Store

	mu     sync.Mutex
	counts map[string]int
}

func (c *counting) add(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[op]++
}

func (c *counting) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = nil
}

func (c *counting) count(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[op]
}

// others names what was asked beside an operation.
func (c *counting) others(but string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ops := slices.Sorted(maps.Keys(c.counts))
	return strings.Join(slices.DeleteFunc(ops, func(op string) bool { return op == but }), ", ")
}

func (c *counting) Generation(ctx context.Context) (uint64, error) {
	c.add("Generation")
	return c.Store.Generation(ctx)
}

func (c *counting) Find(ctx context.Context, s auth.Secret) (auth.Found, error) {
	c.add("Find")
	return c.Store.Find(ctx, s)
}

func (c *counting) Recheck(ctx context.Context, ids []auth.SessionID) ([]auth.Found, uint64, error) {
	c.add("Recheck")
	return c.Store.Recheck(ctx, ids)
}
