package authtest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// Memory is an [auth.Store] in memory, for tests: it can be made to fail and
// counts what it is asked. The zero value is not one; see [NewMemory].
type Memory struct {
	id auth.StoreID

	mu         sync.Mutex
	generation uint64
	moves      []auth.UserID // whom the last moves were about, MaxMoves at most
	users      map[string]auth.User
	names      map[auth.UserID]string
	sessions   map[auth.SessionID]auth.Session
	held       map[auth.UserID]int // how many sessions a user has
	fault      func(op string) error
	counts     map[string]int
	closed     bool
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{id: auth.NewStoreID(), users: map[string]auth.User{}, names: map[auth.UserID]string{}, sessions: map[auth.SessionID]auth.Session{}, held: map[auth.UserID]int{}, counts: map[string]int{}}
}

// Fail has fault asked before each operation, by its method's name: it may
// return an error, or wait. Nil lets all of them through.
func (m *Memory) Fail(fault func(op string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Gone makes the store fail as one that cannot be reached, or ends that.
func (m *Memory) Gone(gone bool) {
	if !gone {
		m.Fail(nil)
		return
	}
	m.Fail(func(string) error { return auth.ErrStoreUnavailable(nil, "the store is gone") })
}

// Counts returns how often each method was called, ID and Close apart.
func (m *Memory) Counts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

// SetGeneration sets the generation, also backwards, as a copy of an older store
// in its place would.
func (m *Memory) SetGeneration(g uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.generation = g
	m.moves = nil
}

// count moves the generation for a user.
func (m *Memory) count(user auth.UserID) {
	m.generation++
	m.moves = append(m.moves, user)
	m.moves = m.moves[max(0, len(m.moves)-auth.MaxMoves):]
}

// enter counts an operation and locks the store, unless it fails.
func (m *Memory) enter(ctx context.Context, op string) (leave func(), err error) {
	m.mu.Lock()
	m.counts[op]++
	fault := m.fault
	m.mu.Unlock()
	if fault != nil {
		if err := fault(op); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, conduit.FromContext(ctx, conduit.Refused)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, auth.ErrStoreUnavailable(nil, "the store is closed")
	}
	return m.mu.Unlock, nil
}

// ID returns the store's id.
func (m *Memory) ID() auth.StoreID { return m.id }

// Close makes every method fail.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Generation returns the generation.
func (m *Memory) Generation(ctx context.Context) (uint64, error) {
	leave, err := m.enter(ctx, "Generation")
	if err != nil {
		return 0, err
	}
	defer leave()
	return m.generation, nil
}

// Moved returns whom the moves of the generation were about.
func (m *Memory) Moved(ctx context.Context, since uint64) (auth.Moves, error) {
	leave, err := m.enter(ctx, "Moved")
	if err != nil {
		return auth.Moves{}, err
	}
	defer leave()
	if since > m.generation || m.generation-since > uint64(len(m.moves)) {
		return auth.Moves{Generation: m.generation, Everyone: true}, nil
	}
	return auth.Moves{Generation: m.generation, Users: slices.Clone(m.moves[len(m.moves)-int(m.generation-since):])}, nil //nolint:gosec // at most MaxMoves
}

// AddUser adds a user.
func (m *Memory) AddUser(ctx context.Context, u auth.User) error {
	leave, err := m.enter(ctx, "AddUser")
	if err != nil {
		return err
	}
	defer leave()
	_, named := m.users[u.Name]
	if _, known := m.names[u.ID]; named || known {
		return auth.ErrUserExists(u.Name)
	}
	m.users[u.Name], m.names[u.ID] = u, u.Name
	return nil
}

// User returns a user.
func (m *Memory) User(ctx context.Context, name string) (auth.User, error) {
	leave, err := m.enter(ctx, "User")
	if err != nil {
		return auth.User{}, err
	}
	defer leave()
	u, ok := m.users[name]
	if !ok {
		return auth.User{}, auth.ErrUserNotFound(name)
	}
	return u, nil
}

// Users returns a page of users.
func (m *Memory) Users(ctx context.Context, after string, limit int) ([]auth.User, error) {
	leave, err := m.enter(ctx, "Users")
	if err != nil {
		return nil, err
	}
	defer leave()
	var page []auth.User
	for _, name := range slices.Sorted(maps.Keys(m.users)) {
		if name > after && len(page) < auth.Page(limit) {
			page = append(page, m.users[name])
		}
	}
	return page, nil
}

// ChangeUser changes a user.
func (m *Memory) ChangeUser(ctx context.Context, name string, change func(*auth.User) error) (auth.User, error) {
	leave, err := m.enter(ctx, "ChangeUser")
	if err != nil {
		return auth.User{}, err
	}
	defer leave()
	before, ok := m.users[name]
	if !ok {
		return auth.User{}, auth.ErrUserNotFound(name)
	}
	after := before
	if err := change(&after); err != nil {
		return auth.User{}, err
	}
	after.ID, after.Name, after.Created = before.ID, before.Name, before.Created
	effect := auth.EffectOf(before, after)
	m.users[name] = after
	if effect.Ends {
		m.end(before.ID)
	}
	if effect.Counts {
		m.count(before.ID)
	}
	return after, nil
}

// RemoveUser removes a user.
func (m *Memory) RemoveUser(ctx context.Context, name string) error {
	leave, err := m.enter(ctx, "RemoveUser")
	if err != nil {
		return err
	}
	defer leave()
	u, ok := m.users[name]
	if !ok {
		return auth.ErrUserNotFound(name)
	}
	delete(m.users, name)
	delete(m.names, u.ID)
	m.end(u.ID)
	m.count(u.ID)
	return nil
}

// end removes a user's sessions.
func (m *Memory) end(user auth.UserID) int {
	maps.DeleteFunc(m.sessions, func(_ auth.SessionID, s auth.Session) bool { return s.User == user })
	n := m.held[user]
	delete(m.held, user)
	return n
}

func (m *Memory) remove(s auth.Session) {
	delete(m.sessions, s.ID)
	m.held[s.User]--
}

// byID returns the user with an id.
func (m *Memory) byID(id auth.UserID) (auth.User, bool) {
	name, ok := m.names[id]
	return m.users[name], ok
}

// AddSession adds a session.
func (m *Memory) AddSession(ctx context.Context, s auth.Session, stamp auth.Sealed) error {
	leave, err := m.enter(ctx, "AddSession")
	if err != nil {
		return err
	}
	defer leave()
	u, ok := m.byID(s.User)
	if !ok || u.Disabled || !u.Stamp.Equal(stamp) {
		return auth.ErrUserChanged()
	}
	if m.held[s.User] >= auth.MaxSessions {
		first := auth.Session{}
		for _, other := range m.sessions {
			if other.User == s.User && (first.ID.IsZero() || other.Expires.Before(first.Expires)) {
				first = other
			}
		}
		m.remove(first)
		m.count(s.User)
	}
	m.sessions[s.ID] = s
	m.held[s.User]++
	return nil
}

// Find finds a session.
func (m *Memory) Find(ctx context.Context, secret auth.Secret) (auth.Found, error) {
	leave, err := m.enter(ctx, "Find")
	if err != nil {
		return auth.Found{}, err
	}
	defer leave()
	u, ok := m.byID(secret.User())
	if !ok {
		return auth.Found{}, auth.ErrSessionNotFound()
	}
	s, ok := m.sessions[auth.SessionIDOf(u.Stamp.Reveal(), secret)]
	if !ok || s.User != u.ID {
		return auth.Found{}, auth.ErrSessionNotFound()
	}
	return auth.Found{User: u, Session: s, Generation: m.generation}, nil
}

// Recheck finds many sessions.
func (m *Memory) Recheck(ctx context.Context, ids []auth.SessionID) ([]auth.Found, uint64, error) {
	leave, err := m.enter(ctx, "Recheck")
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	found := make([]auth.Found, len(ids))
	for i, id := range ids {
		if s, ok := m.sessions[id]; ok {
			found[i] = auth.Found{User: m.users[m.names[s.User]], Session: s, Generation: m.generation}
		}
	}
	return found, m.generation, nil
}

// Sessions returns a page of sessions.
func (m *Memory) Sessions(ctx context.Context, of auth.SessionsOf) ([]auth.Session, error) {
	leave, err := m.enter(ctx, "Sessions")
	if err != nil {
		return nil, err
	}
	defer leave()
	var all []auth.Session
	for _, s := range m.sessions {
		if (of.User.IsZero() || s.User == of.User) && (of.After.IsZero() || bytes.Compare(s.ID[:], of.After[:]) > 0) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b auth.Session) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return all[:min(len(all), auth.Page(of.Limit))], nil
}

// RemoveSession ends a session.
func (m *Memory) RemoveSession(ctx context.Context, id auth.SessionID) error {
	leave, err := m.enter(ctx, "RemoveSession")
	if err != nil {
		return err
	}
	defer leave()
	s, ok := m.sessions[id]
	if !ok {
		return auth.ErrSessionNotFound()
	}
	m.remove(s)
	m.count(s.User)
	return nil
}

// RemoveSessions ends a user's sessions.
func (m *Memory) RemoveSessions(ctx context.Context, name string) (int, error) {
	leave, err := m.enter(ctx, "RemoveSessions")
	if err != nil {
		return 0, err
	}
	defer leave()
	u, ok := m.users[name]
	if !ok {
		return 0, auth.ErrUserNotFound(name)
	}
	n := m.end(u.ID)
	if n > 0 {
		m.count(u.ID)
	}
	return n, nil
}

// Touch moves expiries.
func (m *Memory) Touch(ctx context.Context, now time.Time, moves []auth.Touch) error {
	leave, err := m.enter(ctx, "Touch")
	if err != nil {
		return err
	}
	defer leave()
	for _, t := range moves {
		if s, ok := m.sessions[t.ID]; ok && !s.ExpiredAt(now) && t.Expires.After(s.Expires) {
			s.Expires, s.Seen = t.Expires, t.Seen
			m.sessions[t.ID] = s
		}
	}
	return nil
}

// Sweep forgets sessions.
func (m *Memory) Sweep(ctx context.Context, before time.Time) (int, error) {
	leave, err := m.enter(ctx, "Sweep")
	if err != nil {
		return 0, err
	}
	defer leave()
	n := 0
	for _, s := range m.sessions {
		if n < auth.MaxBatch && s.Expires.Before(before) {
			n++
			m.remove(s)
		}
	}
	return n, nil
}
