package main

import (
	"context"
	"slices"
	"time"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// Why a match ended.
const (
	endedAsked   = "asked"
	endedTime    = "time"
	endedEmpty   = "empty"
	endedDrained = "drained"
	endedStopped = "stopped"
)

// The kinds of events.
const (
	kindPresent = "present"
	kindJoined  = "joined"
	kindLeft    = "left"
	kindEnded   = "ended"
)

// The reasons of errors, for callers to tell causes apart.
const (
	reasonMatchNotFound  = "match_not_found"
	reasonMatchFull      = "match_full"
	reasonPlayerThere    = "player_is_there"
	reasonPlayerNotFound = "player_not_found"
	reasonNotYours       = "not_yours"
	reasonBehind         = "watcher_behind"
)

// keptEvents is how far a watcher may be behind.
const keptEvents = 256

// standing is a match as callers see it.
type standing struct {
	Match string `json:"match"`
	// Address is where the match is called: Create may have been called anywhere.
	Address string   `json:"address"`
	Owner   string   `json:"owner,omitempty"`
	Size    int      `json:"size"`
	Units   uint32   `json:"units"`
	Players []string `json:"players"`
	LeftMS  int64    `json:"left_ms"`
}

// event is what happens in a match, and how it stands then.
type event struct {
	Kind   string   `json:"kind"`
	Player string   `json:"player,omitempty"`
	Reason string   `json:"reason,omitempty"`
	Match  standing `json:"match"`
}

// match is one that goes on. Below claim all is guarded by hall.mu.
type match struct {
	id, address, owner string
	size               int
	ends               time.Time
	claim              *pluginapi.Claim

	players    []string
	emptySince time.Time
	life, idle *time.Timer
	over       bool
	events     []event       // the last ones
	past       int           // how many there were before those
	changed    chan struct{} // closed and made anew at each event
}

// standing returns how the match stands. hall.mu is held.
func (m *match) standing() standing {
	return standing{
		Match: m.id, Address: m.address, Owner: m.owner, Size: m.size, Units: m.claim.Units(),
		Players: append([]string{}, m.players...), LeftMS: max(0, time.Until(m.ends).Milliseconds()),
	}
}

// tell appends an event. hall.mu is held.
func (m *match) tell(kind, player, reason string) event {
	e := event{Kind: kind, Player: player, Reason: reason, Match: m.standing()}
	m.events = append(m.events, e)
	if len(m.events) > keptEvents {
		n := len(m.events) - keptEvents
		m.events = slices.Delete(m.events, 0, n)
		m.past += n
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return e
}

// open begins a match on units that are its own from now on.
func (h *hall) open(id, owner string, size int, lasts time.Duration, claim *pluginapi.Claim) event {
	now := time.Now()
	m := &match{
		id: id, address: h.address, owner: owner, size: size, ends: now.Add(lasts), claim: claim,
		emptySince: now, changed: make(chan struct{}),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.matches = append(h.matches, m)
	m.life = time.AfterFunc(lasts, func() { h.finish(m, endedTime) })
	m.idle = time.AfterFunc(h.empty, func() { h.finish(m, endedEmpty) })
	h.tasks.Go(func() {
		// What the host has taken away is somebody else's: the match must not go on.
		<-claim.Done()
		h.finish(m, endedDrained)
	})
	return event{Kind: kindPresent, Match: m.standing()}
}

// finish ends a match, if it has not ended, and gives its units back. It is the only
// place that does.
func (h *hall) finish(m *match, reason string) event {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.over || reason == endedEmpty && (len(m.players) > 0 || time.Since(m.emptySince) < h.empty) {
		return event{}
	}
	m.over = true
	m.life.Stop()
	m.idle.Stop()
	h.matches = slices.DeleteFunc(h.matches, func(other *match) bool { return other == m })
	m.claim.Release()
	return m.tell(kindEnded, "", reason)
}

// enter adds a player.
func (h *hall) enter(m *match, player string) (event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case m.over:
		return event{}, unknownMatch(m.id)
	case slices.Contains(m.players, player):
		return event{}, failure(pluginapi.AlreadyExists, reasonPlayerThere, "%q is in match %s already", player, m.id)
	case len(m.players) == m.size:
		return event{}, failure(pluginapi.ResourceExhausted, reasonMatchFull, "match %s has its %d players; create another", m.id, m.size)
	}
	m.players = append(m.players, player)
	m.idle.Stop()
	return m.tell(kindJoined, player, ""), nil
}

// quit takes a player out.
func (h *hall) quit(m *match, player string) (event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(m.players, player)
	switch {
	case m.over:
		return event{}, unknownMatch(m.id)
	case i < 0:
		return event{}, failure(pluginapi.NotFound, reasonPlayerNotFound, "%q is not in match %s", player, m.id)
	}
	m.players = slices.Delete(m.players, i, i+1)
	if len(m.players) == 0 {
		m.emptySince = time.Now()
		m.idle.Reset(h.empty)
	}
	return m.tell(kindLeft, player, ""), nil
}

// follow yields how a match stands and what happens in it from then on.
func (h *hall) follow(ctx context.Context, m *match, yield func(event) error) error {
	h.mu.Lock()
	next := m.past + len(m.events)
	if m.over { // it ended just now, which is what there is to tell
		next--
	}
	first := event{Kind: kindPresent, Match: m.standing()}
	h.mu.Unlock()
	if err := yield(first); err != nil {
		return err
	}
	for {
		h.mu.Lock()
		behind := next < m.past
		var news []event
		if !behind {
			news = slices.Clone(m.events[next-m.past:])
		}
		changed := m.changed
		h.mu.Unlock()
		if behind {
			return failure(pluginapi.Aborted, reasonBehind, "more than %d events of match %s were not taken in time; watch again", keptEvents, m.id)
		}
		for _, e := range news {
			if err := yield(e); err != nil {
				return err
			}
			if e.Kind == kindEnded {
				return nil
			}
		}
		next += len(news)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// failure is an error with a reason.
func failure(code pluginapi.Code, reason, format string, args ...any) *pluginapi.Error {
	err := pluginapi.Errorf(code, format, args...)
	err.Reason = reason
	return err
}

func unknownMatch(id string) *pluginapi.Error {
	return failure(pluginapi.NotFound, reasonMatchNotFound,
		"there is no match %q here: it has ended, or is on another instance; call it by the address that Create gave", id)
}
