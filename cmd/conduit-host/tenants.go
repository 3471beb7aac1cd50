package main

import (
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
)

// tenants are the sessions that calls run as, on links that other sessions opened, or
// that instances or operators did. What is kept of a session, and its watch, live while
// calls of it are under way on a link, so that they are never more than those calls are.
// The zero value has none. All methods may be called concurrently.
type tenants struct {
	// By the first bits of the session's id: calls of different users do not wait for
	// each other.
	shards [16]tenantShard
}

type tenantShard struct {
	mu   sync.Mutex
	open map[tenancy]*tenant
}

func (t *tenants) of(s auth.SessionID) *tenantShard { return &t.shards[int(s[0])%len(t.shards)] }

// tenancy is a session on a link.
type tenancy struct {
	session auth.SessionID
	conn    *link.Conn
}

// tenant is a link.Guest: a session whose calls are under way on a link.
type tenant struct {
	tenancy
	shard *tenantShard
	// Guarded by the shard's lock.
	calls int
	over  bool // the session has ended: calls that come now are another tenant's
	stop  func()
}

// tenanted is a call that is not decided about yet.
type tenanted interface {
	Conn() *link.Conn
	SetGuest(g link.Guest)
}

// lodge has a call that runs as a session ended when that session ends. It does so
// before the call is decided about.
func (a *access) lodge(c tenanted, inv *frame.Invoke, g auth.Grant) {
	if !inv.HasAs || inv.As.Kind != frame.AsSession || g.Session.IsZero() {
		return // the link's own session is watched for as long as the link
	}
	key := tenancy{g.Session, c.Conn()}
	sh := a.tenants.of(g.Session)
	sh.mu.Lock()
	t := sh.open[key]
	if t == nil || t.over {
		if sh.open == nil {
			sh.open = map[tenancy]*tenant{}
		}
		t = &tenant{tenancy: key, shard: sh}
		sh.open[key] = t
		t.stop = a.sessions.Watch(g, func(why *conduit.Error) {
			// Not on this goroutine: it is that of all sessions, or holds the lock.
			if !a.spawn(func() { a.evict(t, why) }) {
				go t.conn.CancelIncomingOf(t, why)
			}
		})
	}
	t.calls++
	sh.mu.Unlock()
	c.SetGuest(t)
}

// evict ends the calls of a session that has ended. Its new calls are refused already;
// those under way have a moment to finish, as on a link whose session has ended.
func (a *access) evict(t *tenant, why *conduit.Error) {
	t.shard.mu.Lock()
	t.over = true
	t.shard.mu.Unlock()
	grace := time.NewTimer(expelGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
	case <-t.conn.Done():
	case <-a.ctx.Done():
	}
	t.conn.CancelIncomingOf(t, why)
}

// CallLeft implements link.Guest.
func (t *tenant) CallLeft() {
	sh := t.shard
	sh.mu.Lock()
	t.calls--
	gone := t.calls == 0
	if gone && sh.open[t.tenancy] == t {
		delete(sh.open, t.tenancy)
	}
	sh.mu.Unlock()
	if gone {
		t.stop()
	}
}
