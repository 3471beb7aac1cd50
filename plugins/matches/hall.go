package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/pluginapi"
)

// hall is the running element: the matches of this process.
type hall struct {
	// Set by configure, before the first call.
	perPlayer           uint32
	longest, empty      time.Duration
	deployment, address string

	// process begins the ids of all matches of this process: of an id that begins so
	// nobody else need be asked.
	process string
	kin     kin
	tasks   sync.WaitGroup

	mu      sync.Mutex
	matches []*match // the oldest first
	last    int      // number of the match that was created last
}

func newHall() *hall {
	h := &hall{process: strings.ToLower(rand.Text()[:10])}
	h.kin.init()
	return h
}

func (h *hall) all() []*match {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.matches)
}

type createRequest struct {
	Size    int   `json:"size"`
	LastsMS int64 `json:"lasts_ms,omitempty"`
}

// create claims units for a match and opens it.
func (h *hall) create(ctx context.Context, in createRequest) (standing, error) {
	lasts := time.Duration(in.LastsMS) * time.Millisecond
	switch {
	case in.Size < minSize || in.Size > maxSize:
		return standing{}, pluginapi.Errorf(pluginapi.InvalidArgument, "size must be between %d and %d players, not %d", minSize, maxSize, in.Size)
	case in.LastsMS < 0 || in.LastsMS > h.longest.Milliseconds():
		return standing{}, pluginapi.Errorf(pluginapi.InvalidArgument, "lasts_ms must be between 1 and %d, or be left out for that; it is %d", h.longest.Milliseconds(), in.LastsMS)
	case lasts == 0:
		lasts = h.longest
	}
	claim, err := pluginapi.HostFrom(ctx).Claim(ctx, uint32(in.Size)*h.perPlayer) //nolint:gosec // both are bounded
	if e, ok := errors.AsType[*pluginapi.Error](err); ok && e.Retryable {
		// Nothing was done, and another instance may have room: the call goes on to it.
		return standing{}, pluginapi.Refuse(e.Reason)
	}
	if err != nil {
		return standing{}, err
	}
	h.mu.Lock()
	h.last++
	id := fmt.Sprintf("%s-%d", h.process, h.last)
	h.mu.Unlock()
	return h.open(id, pluginapi.CallerFrom(ctx).User, in.Size, lasts, claim).Match, nil
}

type playerRequest struct {
	Match  string `json:"match"`
	Player string `json:"player"`
}

func (h *hall) join(ctx context.Context, in playerRequest) (standing, error) {
	return h.single(ctx, question{Op: opJoin, Match: in.Match, Player: in.Player})
}

func (h *hall) leave(ctx context.Context, in playerRequest) (standing, error) {
	return h.single(ctx, question{Op: opLeave, Match: in.Match, Player: in.Player})
}

type matchRequest struct {
	Match string `json:"match"`
}

func (h *hall) end(ctx context.Context, in matchRequest) (standing, error) {
	c := pluginapi.CallerFrom(ctx)
	return h.single(ctx, question{Op: opEnd, Match: in.Match, User: c.User, Level: c.Level})
}

func (h *hall) watch(ctx context.Context, in matchRequest, send pluginapi.Sender[event]) error {
	return h.do(ctx, question{Op: opWatch, Match: in.Match}, send)
}

type listReply struct {
	Matches []standing `json:"matches"`
}

// list gathers from all processes of the element that there are: those that finish
// their matches first, since these are older.
func (h *hall) list(ctx context.Context, _ struct{}) (listReply, error) {
	out := listReply{Matches: []standing{}}
	take := func(e event) error {
		out.Matches = append(out.Matches, e.Match)
		return nil
	}
	if err := h.kin.settle(ctx); err != nil {
		return listReply{}, err
	}
	for _, k := range h.kin.elders() {
		err := k.ask(ctx, question{Op: opList}, take)
		if err != nil && !errors.Is(err, errGone) && !hasReason(err, conduit.ReasonPluginLost) {
			return listReply{}, err
		}
	}
	return out, h.here(ctx, question{Op: opList}, take)
}

// The operations of a question.
const (
	opJoin  = "join"
	opLeave = "leave"
	opWatch = "watch"
	opEnd   = "end"
	opList  = "list"
)

// question is what is asked of a match, or, with opList, of a process.
type question struct {
	Op     string `json:"op"`
	Match  string `json:"match,omitempty"`
	Player string `json:"player,omitempty"`
	// Of who asks, for opEnd.
	User  string          `json:"user,omitempty"`
	Level pluginapi.Level `json:"level,omitempty"`
}

// single asks for one answer.
func (h *hall) single(ctx context.Context, q question) (standing, error) {
	var out standing
	err := h.do(ctx, q, func(e event) error {
		out = e.Match
		return nil
	})
	return out, err
}

// do asks whoever has the match: this process, or one that it has replaced.
func (h *hall) do(ctx context.Context, q question, yield func(event) error) error {
	if q.Op != opWatch && q.Op != opEnd && (q.Player == "" || len(q.Player) > maxName) {
		return pluginapi.Errorf(pluginapi.InvalidArgument, "player must be a name of 1 to %d bytes", maxName)
	}
	err := h.here(ctx, q, yield)
	if !isUnknownMatch(err) || strings.HasPrefix(q.Match, h.process+"-") {
		return err
	}
	asked := map[*elder]bool{}
	for {
		more := h.kin.changes()
		for _, k := range h.kin.elders() {
			if asked[k] {
				continue
			}
			asked[k] = true
			if e := k.ask(ctx, q, yield); !isUnknownMatch(e) && !errors.Is(e, errGone) {
				return e
			}
		}
		// A process that was replaced just now may not have said so yet.
		select {
		case <-more:
		case <-h.kin.settled:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// here asks this process.
func (h *hall) here(ctx context.Context, q question, yield func(event) error) error {
	if q.Op == opList {
		return h.yieldAll(yield)
	}
	var m *match
	h.mu.Lock()
	if i := slices.IndexFunc(h.matches, func(m *match) bool { return m.id == q.Match }); i >= 0 {
		m = h.matches[i]
	}
	h.mu.Unlock()
	if m == nil {
		return unknownMatch(q.Match)
	}
	var e event
	var err error
	switch q.Op {
	case opJoin:
		e, err = h.enter(m, q.Player)
	case opLeave:
		e, err = h.quit(m, q.Player)
	case opWatch:
		return h.follow(ctx, m, yield)
	case opEnd:
		if q.User != m.owner && q.Level < pluginapi.Superuser {
			return failure(pluginapi.PermissionDenied, reasonNotYours, "match %s was created by another user", m.id)
		}
		if e = h.finish(m, endedAsked); e.Kind == "" {
			err = unknownMatch(m.id)
		}
	default:
		err = pluginapi.Errorf(pluginapi.Unimplemented, "this generation of the element does not know %q", q.Op)
	}
	if err != nil {
		return err
	}
	return yield(e)
}

func (h *hall) yieldAll(yield func(event) error) error {
	h.mu.Lock()
	var all []event
	for _, m := range h.matches {
		all = append(all, event{Kind: kindPresent, Match: m.standing()})
	}
	h.mu.Unlock()
	for _, e := range all {
		if err := yield(e); err != nil {
			return err
		}
	}
	return nil
}

func isUnknownMatch(err error) bool { return hasReason(err, reasonMatchNotFound) }

func hasReason(err error, reason string) bool {
	e, ok := errors.AsType[*pluginapi.Error](err)
	return ok && e.Reason == reason
}
