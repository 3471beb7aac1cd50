package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/auth"
)

// The buckets. users: name to record; userIDs: id to name; sessions: id to record;
// userSessions: id of user and id of session, to nothing.
const (
	bucketStore        = "conduit-auth"
	bucketUsers        = "users"
	bucketUserIDs      = "user_ids"
	bucketSessions     = "sessions"
	bucketUserSessions = "user_sessions"

	keyFormat     = "format"
	keyID         = "id"
	keyGeneration = "generation"
	// keyMoves is whom the last moves of the generation were about, the last one last:
	// the generation that each led to, and the user's id.
	keyMoves = "moves"

	format = 1
)

// damage is what is found to be wrong inside of the file.
type damage struct{ error }

func (d damage) Unwrap() error { return d.error }

func initialise(tx *bbolt.Tx, id auth.StoreID) error {
	for _, name := range []string{bucketStore, bucketUsers, bucketUserIDs, bucketSessions, bucketUserSessions} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	b := tx.Bucket([]byte(bucketStore))
	return errors.Join(
		b.Put([]byte(keyFormat), binary.BigEndian.AppendUint64(nil, format)),
		b.Put([]byte(keyID), id[:]),
		b.Put([]byte(keyGeneration), make([]byte, 8)),
	)
}

// records is the file within a transaction.
type records struct {
	store, users, userIDs, sessions, userSessions *bbolt.Bucket

	id         auth.StoreID
	generation uint64
	file       fs.FileInfo
}

// open finds the buckets, or says why the file is no store.
func open(path string, tx *bbolt.Tx) (*records, error) {
	r := &records{store: tx.Bucket([]byte(bucketStore))}
	if r.store == nil {
		return nil, foreign(path, "it is another program's bbolt database")
	}
	number := func(key string) (uint64, bool) {
		b := r.store.Get([]byte(key))
		if len(b) != 8 {
			return 0, false
		}
		return binary.BigEndian.Uint64(b), true
	}
	version, ok := number(keyFormat)
	if ok && version != format {
		return nil, auth.ErrBadStore(nil, "the auth store %s is of format %d, and this version knows format %d; update the older program", path, version, format)
	}
	generation, ok2 := number(keyGeneration)
	r.generation = generation
	if !ok || !ok2 || copy(r.id[:], r.store.Get([]byte(keyID))) != len(r.id) {
		return nil, damage{errors.New("its own record is not whole")}
	}
	for _, b := range []struct {
		name string
		to   **bbolt.Bucket
	}{{bucketUsers, &r.users}, {bucketUserIDs, &r.userIDs}, {bucketSessions, &r.sessions}, {bucketUserSessions, &r.userSessions}} {
		if *b.to = tx.Bucket([]byte(b.name)); *b.to == nil {
			return nil, damage{fmt.Errorf("it has no %s", b.name)}
		}
	}
	return r, nil
}

// moveSize is the length of a move in keyMoves.
const moveSize = 8 + len(auth.UserID{})

// count moves the generation for a user.
func (r *records) count(user auth.UserID) error {
	r.generation++
	generation := binary.BigEndian.AppendUint64(nil, r.generation)
	moves := slices.Concat(r.store.Get([]byte(keyMoves)), generation, user[:])
	moves = moves[max(0, len(moves)-auth.MaxMoves*moveSize):]
	return errors.Join(r.store.Put([]byte(keyGeneration), generation), r.store.Put([]byte(keyMoves), moves))
}

// moved returns whom the moves since a generation were about. An older version counts
// without saying whom for, so each has its number.
func (r *records) moved(since uint64) auth.Moves {
	m := auth.Moves{Generation: r.generation}
	moves := r.store.Get([]byte(keyMoves))
	for g := r.generation; g != since; g-- {
		if g < since || len(moves) < moveSize {
			return auth.Moves{Generation: r.generation, Everyone: true}
		}
		last := moves[len(moves)-moveSize:]
		if binary.BigEndian.Uint64(last) != g {
			return auth.Moves{Generation: r.generation, Everyone: true}
		}
		m.Users = append(m.Users, auth.UserID(last[8:]))
		moves = moves[:len(moves)-moveSize]
	}
	return m
}

func (r *records) user(name string) (auth.User, error) {
	b := r.users.Get([]byte(name))
	if b == nil {
		return auth.User{}, auth.ErrUserNotFound(name)
	}
	u, err := decodeUser([]byte(name), b)
	if err != nil {
		return auth.User{}, damage{err}
	}
	return u, nil
}

func (r *records) userByID(id auth.UserID) (u auth.User, ok bool, err error) {
	name := r.userIDs.Get(id[:])
	if name == nil {
		return auth.User{}, false, nil
	}
	b := r.users.Get(name)
	if b == nil {
		return auth.User{}, false, damage{fmt.Errorf("the user %.64q is an id only", name)}
	}
	if u, err = decodeUser(name, b); err == nil && u.ID != id {
		err = fmt.Errorf("the user %.64q has two ids", name)
	}
	if err != nil {
		return auth.User{}, false, damage{err}
	}
	return u, true, nil
}

func (r *records) putUser(u auth.User) error {
	b, err := encodeUser(u)
	if err != nil {
		return err
	}
	return r.users.Put([]byte(u.Name), b)
}

func (r *records) session(id auth.SessionID) (s auth.Session, ok bool, err error) {
	b := r.sessions.Get(id[:])
	if b == nil {
		return auth.Session{}, false, nil
	}
	if s, err = decodeSession(id[:], b); err != nil {
		return auth.Session{}, false, damage{err}
	}
	return s, true, nil
}

func (r *records) putSession(s auth.Session) error {
	b, err := encodeSession(s)
	if err != nil {
		return err
	}
	return errors.Join(r.sessions.Put(s.ID[:], b), r.userSessions.Put(indexKey(s), nil))
}

func (r *records) removeSession(s auth.Session) error {
	return errors.Join(r.sessions.Delete(s.ID[:]), r.userSessions.Delete(indexKey(s)))
}

func indexKey(s auth.Session) []byte { return slices.Concat(s.User[:], s.ID[:]) }

// sessionsOf returns the ids of a user's sessions from behind one of them.
func (r *records) sessionsOf(user auth.UserID, after auth.SessionID, limit int) (ids []auth.SessionID) {
	c := r.userSessions.Cursor()
	start := slices.Concat(user[:], after[:])
	var last []byte
	for k, _ := c.Seek(start); bytes.HasPrefix(k, user[:]) && len(ids) < limit; k, _ = c.Next() {
		last = ascending(last, k)
		var id auth.SessionID
		if copy(id[:], k[len(user):]) == len(id) && (after.IsZero() || id != after) {
			ids = append(ids, id)
		}
	}
	return ids
}

// ascending returns a key that must come after the last one, as all keys of a bucket
// do: pages of a damaged file may lead in a circle. It panics as bbolt does over
// damage, and as that it is told.
func ascending(last, key []byte) []byte {
	if last != nil && bytes.Compare(last, key) >= 0 {
		panic("the keys of a bucket are not in order")
	}
	return key
}

// endSessions removes all of a user's sessions.
func (r *records) endSessions(user auth.UserID) (int, error) {
	ids := r.sessionsOf(user, auth.SessionID{}, int(^uint(0)>>1))
	for _, id := range ids {
		if err := r.removeSession(auth.Session{ID: id, User: user}); err != nil {
			return 0, err
		}
	}
	return len(ids), nil
}

// verify reads everything once.
func (r *records) verify() error {
	users := 0
	err := r.users.ForEach(func(name, b []byte) error {
		users++
		u, err := decodeUser(name, b)
		if err == nil && !bytes.Equal(r.userIDs.Get(u.ID[:]), name) {
			err = fmt.Errorf("the user %.64q has no id", name)
		}
		return err
	})
	if err != nil {
		return damage{err}
	}
	sessions := 0
	err = r.sessions.ForEach(func(key, b []byte) error {
		sessions++
		s, err := decodeSession(key, b)
		if err == nil && (r.userIDs.Get(s.User[:]) == nil || !hasKey(r.userSessions, indexKey(s))) {
			err = fmt.Errorf("the session %s is nobody's", s.ID)
		}
		return err
	})
	if err != nil {
		return damage{err}
	}
	for _, c := range []struct {
		name string
		b    *bbolt.Bucket
		want int
	}{{bucketUserIDs, r.userIDs, users}, {bucketUserSessions, r.userSessions, sessions}} {
		n := 0
		if err := c.b.ForEach(func(_, _ []byte) error { n++; return nil }); err != nil || n != c.want {
			return damage{fmt.Errorf("%s has %d entries and should have %d", c.name, n, c.want)}
		}
	}
	return nil
}

// hasKey is for keys without a value, which Get cannot tell from no key.
func hasKey(b *bbolt.Bucket, key []byte) bool {
	k, _ := b.Cursor().Seek(key)
	return bytes.Equal(k, key)
}

// sweep returns up to MaxBatch sessions that were over before a time.
func (r *records) sweep(before time.Time) (over []auth.Session, err error) {
	c := r.sessions.Cursor()
	var last []byte
	for k, b := c.First(); k != nil && len(over) < auth.MaxBatch; k, b = c.Next() {
		last = ascending(last, k)
		s, err := decodeSession(k, b)
		if err != nil {
			return nil, damage{err}
		}
		if s.Expires.Before(before) {
			over = append(over, s)
		}
	}
	return over, nil
}
