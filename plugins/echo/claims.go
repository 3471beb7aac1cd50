package main

import (
	"context"
	"sync"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// claims are those that the element holds, by the numbers that it gave them.
type claims struct {
	mu   sync.Mutex
	last int
	held map[int]*pluginapi.Claim
}

type claimRequest struct {
	Units uint32 `json:"units"`
}

type claimReply struct {
	ID    int    `json:"id"`
	Units uint32 `json:"units"`
}

// take claims units, and holds them beyond the call.
func (c *claims) take(ctx context.Context, in claimRequest) (claimReply, error) {
	claim, err := pluginapi.HostFrom(ctx).Claim(ctx, in.Units)
	if err != nil {
		return claimReply{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[int]*pluginapi.Claim{}
	}
	c.last++
	c.held[c.last] = claim
	return claimReply{ID: c.last, Units: claim.Units()}, nil
}

// release gives one claim back, or all.
func (c *claims) release(_ context.Context, id int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for held, claim := range c.held {
		if id == 0 || id == held {
			claim.Release()
			delete(c.held, held)
			n++
		}
	}
	if n == 0 && id != 0 {
		return 0, pluginapi.Errorf(pluginapi.NotFound, "no claim %d is held", id)
	}
	return n, nil
}
