package auth

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// The lives that a session may have.
const (
	DefaultLife = 48 * time.Hour
	MaxLife     = 10 * 365 * 24 * time.Hour
)

// AccountsOptions are what [NewAccounts] needs. Store and Hasher must be set.
type AccountsOptions struct {
	Store  Store
	Hasher *Hasher
	// Life is auth.session_timeout: how long a session lasts beyond its last
	// use, if nobody says otherwise; 0 = 48 h.
	Life time.Duration
	// Attempts limits logins; nil = does not.
	Attempts *Attempts
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Accounts is what is done with users and sessions: by the commands user and
// session, by whoever logs in, and by an instance for itself. It keeps nothing
// but what it was made of. Its methods may be called concurrently; their errors
// are [*conduit.Error] with the reasons bad_user, user_exists, user_not_found,
// session_not_found, and a [Store]'s. None holds a secret.
type Accounts struct{ o AccountsOptions }

// NewAccounts returns the Accounts of a store.
func NewAccounts(o AccountsOptions) *Accounts {
	o.Life = orDefault(max(o.Life, 0), DefaultLife)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Accounts{o}
}

// Minted is a new session, with the secret that opens it: there is no other way
// to get at it. Printed, it shows no secret.
type Minted struct {
	Secret  Secret
	Session Session
	User    User
}

// AddUser adds a user of level user or superuser. A nil password is none: such a
// user cannot log in, and calls with sessions that are minted.
func (a *Accounts) AddUser(ctx context.Context, name string, level conduit.Level, password []byte) (User, error) {
	name, err := CleanName(name)
	if err != nil {
		return User{}, err
	}
	if err := checkLevel(name, level); err != nil {
		return User{}, err
	}
	if level == conduit.System {
		return User{}, badUser("the users of instances come by themselves when the instances start")
	}
	hash, err := a.hash(ctx, password)
	if err != nil {
		return User{}, err
	}
	return a.add(ctx, name, level, hash)
}

func (a *Accounts) add(ctx context.Context, name string, level conduit.Level, hash Sealed) (User, error) {
	u := User{ID: NewUserID(), Name: name, Level: level, Password: hash, Stamp: newStamp(), Created: milli(a.o.Now())}
	if err := a.o.Store.AddUser(ctx, u); err != nil {
		return User{}, err
	}
	return u, nil
}

// hash hashes a password that may be none.
func (a *Accounts) hash(ctx context.Context, password []byte) (Sealed, error) {
	if password == nil {
		return Sealed{}, nil
	}
	return a.o.Hasher.Hash(ctx, password)
}

func newStamp() Sealed {
	b := make([]byte, keySize)
	fill(b)
	return Seal(b)
}

// SetPassword gives a user another password, or none (nil), and ends all of the
// user's sessions.
func (a *Accounts) SetPassword(ctx context.Context, name string, password []byte) error {
	name, err := humanName(name)
	if err != nil {
		return err
	}
	hash, err := a.hash(ctx, password)
	if err != nil {
		return err
	}
	stamp := newStamp()
	_, err = a.o.Store.ChangeUser(ctx, name, func(u *User) error {
		u.Password, u.Stamp = hash, stamp
		return nil
	})
	return err
}

// SetLevel changes a user's level, for the sessions that there are as well.
func (a *Accounts) SetLevel(ctx context.Context, name string, level conduit.Level) error {
	name, err := humanName(name)
	if err != nil {
		return err
	}
	if err := checkLevel(name, level); err != nil {
		return err
	}
	_, err = a.o.Store.ChangeUser(ctx, name, func(u *User) error { u.Level = level; return nil })
	return err
}

// SetDisabled keeps a user out and ends all of the user's sessions, or lets the
// user in again.
func (a *Accounts) SetDisabled(ctx context.Context, name string, disabled bool) error {
	name, err := CleanName(name)
	if err != nil {
		return err
	}
	_, err = a.o.Store.ChangeUser(ctx, name, func(u *User) error { u.Disabled = disabled; return nil })
	return err
}

// RemoveUser removes a user and ends all of the user's sessions.
func (a *Accounts) RemoveUser(ctx context.Context, name string) error {
	name, err := CleanName(name)
	if err != nil {
		return err
	}
	return a.o.Store.RemoveUser(ctx, name)
}

// Users returns all users, in the order of their names.
func (a *Accounts) Users(ctx context.Context) ([]User, error) {
	var all []User
	for after := ""; ; {
		page, err := a.o.Store.Users(ctx, after, MaxBatch)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < MaxBatch {
			return all, nil
		}
		after = page[len(page)-1].Name
	}
}

// humanName cleans the name of a user who is no instance's.
func humanName(name string) (string, error) {
	name, err := CleanName(name)
	if err == nil && isInstanceUser(name) {
		return "", badUser("%s is the user of an instance: it has no password and keeps its level", quote(name))
	}
	return name, err
}

func isInstanceUser(name string) bool {
	return len(name) > len(InstancePrefix) && name[:len(InstancePrefix)] == InstancePrefix
}

// Login makes a session for whoever knows a user's name and password. from is
// the address that asks, for the limit on attempts; the zero address counts as
// one. Every refusal of a name and password is the same unauthenticated and
// takes the same time, whether the user exists, is disabled, or has another
// password.
func (a *Accounts) Login(ctx context.Context, from netip.Addr, name string, password []byte) (Minted, error) {
	clean, badName := CleanName(name)
	if badName != nil {
		clean = ""
	}
	if err := a.o.Attempts.Login(from, clean); err != nil {
		return Minted{}, err
	}
	var u User
	if badName == nil && !isInstanceUser(clean) {
		var err error
		if u, err = a.o.Store.User(ctx, clean); err != nil && !isReason(err, conduit.ReasonUserNotFound) {
			return Minted{}, forCaller(err)
		}
	}
	ok, stale, err := a.o.Hasher.Verify(ctx, u.Password, password)
	switch {
	case err != nil:
		return Minted{}, forCaller(err)
	case !ok || u.Disabled:
		return Minted{}, denied("the name or the password is wrong")
	}
	if stale {
		a.rehash(ctx, u, password)
	}
	m, err := a.mint(ctx, u, MintOptions{})
	if err != nil {
		return Minted{}, forCaller(err)
	}
	return m, nil
}

// rehash makes the hash of a password anew, by today's parameters. That it fails
// is no reason to refuse the login: the next one tries again.
func (a *Accounts) rehash(ctx context.Context, u User, password []byte) {
	hash, err := a.o.Hasher.Hash(ctx, password)
	if err != nil {
		return
	}
	_, _ = a.o.Store.ChangeUser(ctx, u.Name, func(now *User) error {
		if now.ID != u.ID || !now.Password.Equal(u.Password) {
			return ErrUserChanged()
		}
		now.Password = hash
		return nil
	})
}

// MintOptions say what session to make.
type MintOptions struct {
	// Life is how long it lasts; 0 = the Accounts' own. At most MaxLife.
	Life time.Duration
	// Fixed ends the session after Life even if it is used.
	Fixed bool
	// Instance binds it to an instance.
	Instance address.InstanceID
}

// Mint makes a session for a user without asking for the password: it is for
// whoever may read the store.
func (a *Accounts) Mint(ctx context.Context, name string, o MintOptions) (Minted, error) {
	name, err := CleanName(name)
	if err != nil {
		return Minted{}, err
	}
	if isInstanceUser(name) && o.Instance.IsZero() {
		return Minted{}, badUser("%s is the user of an instance, which mints its sessions itself", quote(name))
	}
	u, err := a.o.Store.User(ctx, name)
	if err != nil {
		return Minted{}, err
	}
	if u.Disabled {
		return Minted{}, refusal(conduit.FailedPrecondition, conduit.ReasonBadUser, "the user %s is disabled", quote(name))
	}
	return a.mint(ctx, u, o)
}

func (a *Accounts) mint(ctx context.Context, u User, o MintOptions) (Minted, error) {
	life := orDefault(o.Life, a.o.Life).Truncate(time.Millisecond)
	if life <= 0 || life > MaxLife {
		return Minted{}, badUser("a session lasts from 1ms to %s, not %s", MaxLife, life)
	}
	secret, now := NewSecret(u.ID), milli(a.o.Now())
	s := Session{
		ID: SessionIDOf(u.Stamp.view(), secret), User: u.ID, UserName: u.Name, Instance: o.Instance,
		Created: now, Seen: now, Expires: now.Add(life), Life: life,
	}
	if o.Fixed {
		s.Life = 0
	}
	if err := a.o.Store.AddSession(ctx, s, u.Stamp); err != nil {
		return Minted{}, err
	}
	return Minted{Secret: secret, Session: s, User: u}, nil
}

// MintInstance makes a session for an instance, bound to its id, and the user of
// that name if there is none. Any number of instances may do so at once, those
// of one name too. It is to be called again before the session ends: a session
// that opens links is not in use otherwise.
func (a *Accounts) MintInstance(ctx context.Context, name string, id address.InstanceID) (Minted, error) {
	user, err := CleanName(InstancePrefix + name)
	if err != nil {
		return Minted{}, err
	}
	if id.IsZero() {
		return Minted{}, badUser("an instance without an id has no session")
	}
	for range 3 { // the user may come or go between two steps
		u, err := a.o.Store.User(ctx, user)
		if isReason(err, conduit.ReasonUserNotFound) {
			u, err = a.add(ctx, user, conduit.System, Sealed{})
		}
		if isReason(err, conduit.ReasonUserExists) {
			continue
		}
		if err != nil {
			return Minted{}, err
		}
		if u.Disabled {
			return Minted{}, refusal(conduit.FailedPrecondition, conduit.ReasonBadUser, "the user %s is disabled: this instance is kept out of the cluster", quote(user))
		}
		m, err := a.mint(ctx, u, MintOptions{Instance: id})
		if isReason(err, conduit.ReasonUnauthenticated) {
			continue
		}
		return m, err
	}
	return Minted{}, ErrStoreUnavailable(nil, "the user %s keeps being changed", quote(user))
}

// Sessions returns all sessions, or with a name those of one user.
func (a *Accounts) Sessions(ctx context.Context, name string) ([]Session, error) {
	var of SessionsOf
	if name != "" {
		name, err := CleanName(name)
		if err != nil {
			return nil, err
		}
		u, err := a.o.Store.User(ctx, name)
		if err != nil {
			return nil, err
		}
		of.User = u.ID
	}
	var all []Session
	for {
		page, err := a.o.Store.Sessions(ctx, of)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < MaxBatch {
			return all, nil
		}
		of.After = page[len(page)-1].ID
	}
}

// Revoke ends a session.
func (a *Accounts) Revoke(ctx context.Context, id SessionID) error {
	return a.o.Store.RemoveSession(ctx, id)
}

// RevokeSecret ends the session that a secret opens, and returns its id.
func (a *Accounts) RevokeSecret(ctx context.Context, s Secret) (SessionID, error) {
	f, err := a.o.Store.Find(ctx, s)
	if err != nil {
		return SessionID{}, err
	}
	return f.Session.ID, a.o.Store.RemoveSession(ctx, f.Session.ID)
}

// RevokeUser ends all sessions of a user and returns how many there were.
func (a *Accounts) RevokeUser(ctx context.Context, name string) (int, error) {
	name, err := CleanName(name)
	if err != nil {
		return 0, err
	}
	return a.o.Store.RemoveSessions(ctx, name)
}

// isReason reports whether err is an error of this reason.
func isReason(err error, reason string) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	return ok && e.Reason == reason
}

// forCaller makes of a store's error what a caller may know: that the store
// cannot be asked, and not which file is damaged where. The whole of it stays in
// the chain, for the log.
func forCaller(err error) error {
	if err == nil {
		return nil
	}
	return callerError(err)
}

func callerError(err error) *conduit.Error {
	e := conduit.AsError(err, conduit.Refused)
	switch e.Code {
	case conduit.Unauthenticated, conduit.ResourceExhausted, conduit.Canceled, conduit.DeadlineExceeded, conduit.InvalidArgument:
		return e
	default:
		down := refusal(conduit.Unavailable, conduit.ReasonStoreUnavailable, "this instance cannot ask its auth store just now")
		down.Retryable, down.Err = true, err
		return down
	}
}
