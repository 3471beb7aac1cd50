package auth

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/elemental-conduit/conduit"
)

// MaxSessions is how many sessions a user has at most. One more ends the one that
// would expire first.
const MaxSessions = 256

// MaxBatch is how many sessions [Store.Recheck] and [Store.Touch] take at once,
// and how many users or sessions a page of a list holds at most.
const MaxBatch = 4096

// StoreID names a store: instances that have the same one know the same users.
// It is made at random with the store. It is a value.
type StoreID [16]byte

// NewStoreID returns a random id.
func NewStoreID() (id StoreID) {
	fill(id[:])
	return id
}

// ParseStoreID reads 32 hex digits.
func ParseStoreID(s string) (id StoreID, err error) {
	if len(s) != 2*len(id) || !unhex(id[:], []byte(s)) {
		return StoreID{}, refusal(conduit.InvalidArgument, conduit.ReasonBadStore, "an id of an auth store has %d hex digits", 2*len(id))
	}
	return id, nil
}

// String returns 32 lower-case hex digits.
func (id StoreID) String() string { return hex.EncodeToString(id[:]) }

// Found is a session and whose it is, as they were at one moment.
type Found struct {
	User    User
	Session Session
	// Generation is the store's at that moment.
	Generation uint64
}

// Touch moves a session's expiry.
type Touch struct {
	ID            SessionID
	Seen, Expires time.Time
}

// MaxMoves is how many moves of its generation a store can tell apart: see
// [Store.Moved].
const MaxMoves = 32

// Moves says whom moves of the generation were about.
type Moves struct {
	// Generation is the store's; what follows is of the moves up to it.
	Generation uint64
	// Users are those whose sessions or level have changed, each once for each move,
	// in no order. Some may be no more.
	Users []UserID
	// Everyone says that it may have been anybody: there were too many moves, or some
	// were made by a version that did not write whom they were about. Users is nil then.
	Everyone bool
}

// SessionsOf says which sessions to list.
type SessionsOf struct {
	// User restricts the list to one user's; zero = all.
	User UserID
	// After is the last session of the page before; zero = from the start.
	After SessionID
	// Limit is the length of the page; 0 and anything above are [MaxBatch].
	Limit int
}

// Store keeps users and sessions. It keeps records and decides nothing about
// them: [Accounts] and [Sessions] do, which are what to call. The one exception
// is what must happen at once: that a user's sessions end with the change that
// ends them, which [EffectOf] tells.
//
// Each method sees, and leaves, the store as one consistent whole, and may be
// called concurrently, also by other processes on the same store. Errors are
// [*conduit.Error]: what each method says, store_unavailable if the store cannot
// be reached, bad_store if it is damaged, and what ctx ended with. No error holds
// a secret or a hash.
//
// The generation is a number that grows with each revocation and each change of
// a user that counts, and with nothing else: neither new sessions nor moved
// expiries. So a validation holds as long as the generation does.
type Store interface {
	// ID returns the store's id, which never changes.
	ID() StoreID
	// Generation returns the generation. It is asked four times a second, so it
	// must be cheap.
	Generation(ctx context.Context) (uint64, error)
	// Moved returns whom the moves were about that came after the generation since. Up
	// to MaxMoves of them are told apart; of more, of moves that nobody has noted, and
	// of a generation that is not reached yet, it is everyone.
	Moved(ctx context.Context, since uint64) (Moves, error)

	// AddUser adds a user. It fails with user_exists if the name or the id is
	// taken. It does not count.
	AddUser(ctx context.Context, u User) error
	// User returns a user by name, or user_not_found.
	User(ctx context.Context, name string) (User, error)
	// Users returns up to limit users in the order of their names, from behind
	// after; 0 and anything above MaxBatch are MaxBatch.
	Users(ctx context.Context, after string, limit int) ([]User, error)
	// ChangeUser changes a user as change says, and returns what it is then. ID,
	// Name and Created stay. change may be called more than once, must not call
	// the store, and leaves everything as it is with an error, which is returned.
	ChangeUser(ctx context.Context, name string, change func(*User) error) (User, error)
	// RemoveUser removes a user and its sessions, or returns user_not_found.
	RemoveUser(ctx context.Context, name string) error

	// AddSession adds a session of a user who has the given stamp and is not
	// disabled; else it returns unauthenticated. If the user has MaxSessions
	// already, those that expire first end.
	AddSession(ctx context.Context, s Session, stamp Sealed) error
	// Find returns the session that a secret opens, expired or not, or
	// session_not_found.
	Find(ctx context.Context, secret Secret) (Found, error)
	// Recheck returns what has become of up to MaxBatch sessions, all at the
	// generation that it returns: one Found each, the zero Found for one that is
	// no more.
	Recheck(ctx context.Context, ids []SessionID) ([]Found, uint64, error)
	// Sessions returns a page of sessions, in the order of their ids.
	Sessions(ctx context.Context, of SessionsOf) ([]Session, error)
	// RemoveSession ends a session, or returns session_not_found.
	RemoveSession(ctx context.Context, id SessionID) error
	// RemoveSessions ends all sessions of a user and returns how many there
	// were, or user_not_found. None do not count.
	RemoveSessions(ctx context.Context, name string) (int, error)
	// Touch moves the expiries of up to MaxBatch sessions. It moves none that is
	// over at now, none backwards, and skips what is no more.
	Touch(ctx context.Context, now time.Time, moves []Touch) error
	// Sweep forgets sessions that were over before a time, MaxBatch at most, and
	// returns how many. It does not count: they were over.
	Sweep(ctx context.Context, before time.Time) (int, error)

	// Close ends what the store has running. The methods fail afterwards.
	Close() error
}

// Teller is a Store that says by itself that its generation has moved, so that nobody
// need wait for the next time that it is asked.
type Teller interface {
	Store
	// Tell calls moved, which must not block, after each move of the generation that
	// it hears of, until ctx ends or the store is closed. It may miss some and may
	// call for none: who needs to know all asks for the generation as well.
	Tell(ctx context.Context, moved func())
}

// Errors that all stores return alike.

// ErrUserExists is what AddUser returns for a name that is taken.
func ErrUserExists(name string) error {
	return refusal(conduit.AlreadyExists, conduit.ReasonUserExists, "there is a user %s already; take another name, or give that one another password (user passwd)", quote(name))
}

// ErrUserNotFound is what a Store returns for a user that it has not.
func ErrUserNotFound(name string) error {
	return refusal(conduit.NotFound, conduit.ReasonUserNotFound, "there is no user %s; \"user ls\" shows them", quote(name))
}

// ErrSessionNotFound is what a Store returns for a session that it has not.
func ErrSessionNotFound() error {
	return refusal(conduit.NotFound, conduit.ReasonSessionNotFound, "there is no such session; \"session ls\" shows them")
}

// ErrUserChanged is what AddSession returns for a user who may not have one, or
// is another than the session was made for.
func ErrUserChanged() error {
	return denied("the user is disabled, or was changed just now")
}

// ErrStoreUnavailable is what a Store returns while it cannot do what it should.
func ErrStoreUnavailable(cause error, format string, args ...any) error {
	e := refusal(conduit.Unavailable, conduit.ReasonStoreUnavailable, format, args...)
	e.Retryable, e.Err = true, cause
	return e
}

// ErrBadStore is what a Store returns for data that it cannot use. format says
// what is wrong, where, and what to do.
func ErrBadStore(cause error, format string, args ...any) error {
	e := refusal(conduit.FailedPrecondition, conduit.ReasonBadStore, format, args...)
	e.Err = cause
	return e
}

// ErrStoreReplaced is what a Store returns once it finds another store in its
// place. Whatever was remembered of it is worth nothing then.
func ErrStoreReplaced(format string, args ...any) error {
	e := refusal(conduit.FailedPrecondition, conduit.ReasonBadStore, format, args...)
	e.Details = map[string]string{detailReplaced: "yes"}
	return e
}

const detailReplaced = "replaced"

func isReplaced(err error) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	return ok && e.Details[detailReplaced] != ""
}

// Page returns the length of a page that was asked for with limit.
func Page(limit int) int {
	if limit <= 0 || limit > MaxBatch {
		return MaxBatch
	}
	return limit
}
