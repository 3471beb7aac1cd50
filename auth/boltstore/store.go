package boltstore

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// DefaultLockTimeout is how long an operation waits for other processes.
const DefaultLockTimeout = 5 * time.Second

// Options say how a file is opened. The zero value makes it if it is not there.
type Options struct {
	// LockTimeout is how long an operation waits for other processes to let go
	// of the file; 0 = DefaultLockTimeout. The context of the operation may end
	// it earlier.
	LockTimeout time.Duration
	// MustExist has Open fail if there is no file, rather than make one.
	MustExist bool
}

// Store is an [auth.Store] in a file. Any number of Stores, in any number of
// processes of the machine, may use the same file. Nothing is held between two
// operations, so there is nothing to lose if a process dies; an operation that is
// cut short by that has happened or has not.
type Store struct {
	path string
	o    Options
	id   auth.StoreID

	// turn is held by the one operation of this Store that is under way: they
	// would only wait for each other's lock, with pauses.
	turn   chan struct{}
	closed bool // with the turn
	bad    known
	file   fs.FileInfo // what Moved has read last; with the turn

	mu sync.Mutex
	// last is the file when generation was read from it.
	last       *snapshot
	generation uint64
}

var _ auth.Store = (*Store)(nil)

// Open returns the store in a file, which it makes, with mode 0600 and without
// users, if there is none. The directory must exist. It reads the whole file once:
// a damaged one, one of another format, another program's, or one that others may
// read is bad_store, with the file's name and what to do, and stays as it is.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if o.LockTimeout <= 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, unreachable(path, err)
	}
	if !o.MustExist {
		if err := create(path, auth.NewStoreID()); err != nil {
			return nil, err
		}
	}
	s := &Store{path: path, o: o, turn: make(chan struct{}, 1)}
	err = s.do(ctx, false, func(r *records) error {
		s.id, s.file = r.id, r.file
		return r.verify()
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ID returns the id that the store was made with.
func (s *Store) ID() auth.StoreID { return s.id }

// Path returns the file's absolute path.
func (s *Store) Path() string { return s.path }

// Close makes all methods fail. Nothing is open.
func (s *Store) Close() error {
	s.turn <- struct{}{}
	s.closed = true
	<-s.turn
	return nil
}

// do runs one operation on the file.
func (s *Store) do(ctx context.Context, write bool, fn func(*records) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.LockTimeout, errLocked)
	defer cancel()
	if ctx.Err() != nil {
		return lockLost(ctx, s.path)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return lockLost(ctx, s.path)
	}
	if s.closed {
		return auth.ErrStoreUnavailable(nil, "the auth store is closed")
	}
	return withDB(ctx, s.path, write, &s.bad, func(db *bbolt.DB, now *snapshot) error {
		in := func(tx *bbolt.Tx) error {
			r, err := open(s.path, tx)
			if err != nil {
				return err
			}
			if s.id != (auth.StoreID{}) && r.id != s.id {
				return auth.ErrStoreReplaced("the auth store %s was replaced by another one; restart what uses it", s.path)
			}
			r.file = now.info
			return fn(r)
		}
		run := db.View
		if write {
			run = db.Update
		}
		err := run(in)
		if err == nil {
			return nil
		}
		if d, ok := errors.AsType[damage](err); ok {
			return damaged(s.path, d)
		}
		if _, ok := errors.AsType[*conduit.Error](err); ok {
			return err
		}
		return auth.ErrStoreUnavailable(err, "the auth store %s cannot be written: %v", s.path, err)
	})
}

// Generation returns the generation. If no process has written to the file since
// it was asked last, that takes no lock.
func (s *Store) Generation(ctx context.Context) (uint64, error) {
	now, err := s.look()
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	last, generation := s.last, s.generation
	s.mu.Unlock()
	if last.same(now) {
		return generation, nil
	}
	// now was taken before the generation is read, so that a commit between the
	// two shows at the next look.
	err = s.do(ctx, false, func(r *records) error {
		generation = r.generation
		return nil
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.last, s.generation = now, generation
	s.mu.Unlock()
	return generation, nil
}

// Moved returns whom the moves of the generation were about. Of a copy that was put in the
// place of the file nothing is known before: its moves may be others with the same numbers.
func (s *Store) Moved(ctx context.Context, since uint64) (m auth.Moves, err error) {
	err = s.do(ctx, false, func(r *records) error {
		m = r.moved(since)
		if !os.SameFile(s.file, r.file) {
			m = auth.Moves{Generation: r.generation, Everyone: true}
		}
		s.file = r.file
		return nil
	})
	return m, err
}

// look takes a snapshot without a lock.
func (s *Store) look() (*snapshot, error) {
	f, err := openChecked(s.path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	now, err := takeSnapshot(f)
	if err != nil {
		return nil, unreachable(s.path, err)
	}
	return now, nil
}

// AddUser adds a user.
func (s *Store) AddUser(ctx context.Context, u auth.User) error {
	return s.do(ctx, true, func(r *records) error {
		if r.users.Get([]byte(u.Name)) != nil || r.userIDs.Get(u.ID[:]) != nil {
			return auth.ErrUserExists(u.Name)
		}
		return errors.Join(r.putUser(u), r.userIDs.Put(u.ID[:], []byte(u.Name)))
	})
}

// User returns a user.
func (s *Store) User(ctx context.Context, name string) (u auth.User, err error) {
	err = s.do(ctx, false, func(r *records) error {
		var err error
		u, err = r.user(name)
		return err
	})
	return u, err
}

// Users returns a page of users.
func (s *Store) Users(ctx context.Context, after string, limit int) (page []auth.User, err error) {
	err = s.do(ctx, false, func(r *records) error {
		c := r.users.Cursor()
		var last []byte
		for k, b := c.Seek([]byte(after)); k != nil && len(page) < auth.Page(limit); k, b = c.Next() {
			last = ascending(last, k)
			if string(k) == after {
				continue
			}
			u, err := decodeUser(k, b)
			if err != nil {
				return damage{err}
			}
			page = append(page, u)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// ChangeUser changes a user.
func (s *Store) ChangeUser(ctx context.Context, name string, change func(*auth.User) error) (after auth.User, err error) {
	err = s.do(ctx, true, func(r *records) error {
		before, err := r.user(name)
		if err != nil {
			return err
		}
		after = before
		if err := change(&after); err != nil {
			return err
		}
		after.ID, after.Name, after.Created = before.ID, before.Name, before.Created
		effect := auth.EffectOf(before, after)
		if effect.Ends {
			if _, err := r.endSessions(before.ID); err != nil {
				return err
			}
		}
		if effect.Counts {
			if err := r.count(before.ID); err != nil {
				return err
			}
		}
		return r.putUser(after)
	})
	if err != nil {
		return auth.User{}, err
	}
	return after, nil
}

// RemoveUser removes a user.
func (s *Store) RemoveUser(ctx context.Context, name string) error {
	return s.do(ctx, true, func(r *records) error {
		u, err := r.user(name)
		if err != nil {
			return err
		}
		_, err = r.endSessions(u.ID)
		return errors.Join(err, r.users.Delete([]byte(name)), r.userIDs.Delete(u.ID[:]), r.count(u.ID))
	})
}

// AddSession adds a session.
func (s *Store) AddSession(ctx context.Context, session auth.Session, stamp auth.Sealed) error {
	return s.do(ctx, true, func(r *records) error {
		u, ok, err := r.userByID(session.User)
		if err != nil {
			return err
		}
		if !ok || u.Disabled || !u.Stamp.Equal(stamp) {
			return auth.ErrUserChanged()
		}
		ids := r.sessionsOf(u.ID, auth.SessionID{}, int(^uint(0)>>1))
		if len(ids) >= auth.MaxSessions {
			if err := r.makeRoom(ids); err != nil {
				return err
			}
		}
		return r.putSession(session)
	})
}

// makeRoom ends those of a user's sessions that expire first.
func (r *records) makeRoom(ids []auth.SessionID) error {
	of := make([]auth.Session, 0, len(ids))
	for _, id := range ids {
		s, ok, err := r.session(id)
		if err != nil {
			return err
		}
		if ok {
			of = append(of, s)
		}
	}
	slices.SortFunc(of, func(a, b auth.Session) int { return a.Expires.Compare(b.Expires) })
	for _, old := range of[:max(0, len(of)+1-auth.MaxSessions)] {
		if err := errors.Join(r.removeSession(old), r.count(old.User)); err != nil {
			return err
		}
	}
	return nil
}

// Find finds a session.
func (s *Store) Find(ctx context.Context, secret auth.Secret) (f auth.Found, err error) {
	err = s.do(ctx, false, func(r *records) error {
		u, ok, err := r.userByID(secret.User())
		if err != nil {
			return err
		}
		if !ok {
			return auth.ErrSessionNotFound()
		}
		session, ok, err := r.session(auth.SessionIDOf(u.Stamp.Reveal(), secret))
		if err != nil {
			return err
		}
		if !ok || session.User != u.ID {
			return auth.ErrSessionNotFound()
		}
		f = auth.Found{User: u, Session: session, Generation: r.generation}
		return nil
	})
	return f, err
}

// Recheck finds many sessions.
func (s *Store) Recheck(ctx context.Context, ids []auth.SessionID) (found []auth.Found, generation uint64, err error) {
	err = s.do(ctx, false, func(r *records) error {
		found, generation = make([]auth.Found, len(ids)), r.generation
		users := map[auth.UserID]auth.User{} // most have a few sessions each
		for i, id := range ids {
			session, ok, err := r.session(id)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			u, known := users[session.User]
			if !known {
				if u, ok, err = r.userByID(session.User); err != nil {
					return err
				}
				if !ok {
					continue
				}
				users[u.ID] = u
			}
			found[i] = auth.Found{User: u, Session: session, Generation: generation}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return found, generation, nil
}

// Sessions returns a page of sessions.
func (s *Store) Sessions(ctx context.Context, of auth.SessionsOf) (page []auth.Session, err error) {
	err = s.do(ctx, false, func(r *records) error {
		limit := auth.Page(of.Limit)
		if !of.User.IsZero() {
			for _, id := range r.sessionsOf(of.User, of.After, limit) {
				session, ok, err := r.session(id)
				if err != nil {
					return err
				}
				if ok {
					page = append(page, session)
				}
			}
			return nil
		}
		c := r.sessions.Cursor()
		var last []byte
		for k, b := c.Seek(of.After[:]); k != nil && len(page) < limit; k, b = c.Next() {
			last = ascending(last, k)
			if !of.After.IsZero() && string(k) == string(of.After[:]) {
				continue
			}
			session, err := decodeSession(k, b)
			if err != nil {
				return damage{err}
			}
			page = append(page, session)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// RemoveSession ends a session.
func (s *Store) RemoveSession(ctx context.Context, id auth.SessionID) error {
	return s.do(ctx, true, func(r *records) error {
		session, ok, err := r.session(id)
		if err != nil {
			return err
		}
		if !ok {
			return auth.ErrSessionNotFound()
		}
		return errors.Join(r.removeSession(session), r.count(session.User))
	})
}

// RemoveSessions ends a user's sessions.
func (s *Store) RemoveSessions(ctx context.Context, name string) (n int, err error) {
	err = s.do(ctx, true, func(r *records) error {
		u, err := r.user(name)
		if err != nil {
			return err
		}
		if n, err = r.endSessions(u.ID); err != nil || n == 0 {
			return err
		}
		return r.count(u.ID)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Touch moves expiries, all in one write.
func (s *Store) Touch(ctx context.Context, now time.Time, moves []auth.Touch) error {
	if len(moves) == 0 {
		return nil
	}
	return s.do(ctx, true, func(r *records) error {
		// In the order of the file, so that each of its pages is come to once.
		for _, t := range slices.SortedFunc(slices.Values(moves), func(a, b auth.Touch) int { return cmp.Compare(string(a.ID[:]), string(b.ID[:])) }) {
			session, ok, err := r.session(t.ID)
			if err != nil {
				return err
			}
			if !ok || session.ExpiredAt(now) || !t.Expires.After(session.Expires) {
				continue
			}
			session.Seen, session.Expires = t.Seen, t.Expires
			if err := r.putSession(session); err != nil {
				return err
			}
		}
		return nil
	})
}

// Sweep forgets sessions that were over before a time.
func (s *Store) Sweep(ctx context.Context, before time.Time) (n int, err error) {
	var over []auth.Session
	find := func(r *records) error {
		var err error
		over, err = r.sweep(before)
		return err
	}
	// Mostly there is nothing, and then nothing is written.
	if err := s.do(ctx, false, find); err != nil || len(over) == 0 {
		return 0, err
	}
	err = s.do(ctx, true, func(r *records) error {
		if err := find(r); err != nil {
			return err
		}
		for _, session := range over {
			if err := r.removeSession(session); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(over), nil
}
