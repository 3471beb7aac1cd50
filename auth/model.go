package auth

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// User is somebody who may call. It is a value.
type User struct {
	ID UserID
	// Name is in the form that [CleanName] returns. It never changes.
	Name  string
	Level conduit.Level
	// Disabled users have no sessions and get none.
	Disabled bool
	// Password is the hash of the password, as a [Hasher] made it; zero for a
	// user who cannot log in, and has the sessions that are minted for it.
	Password Sealed
	// Stamp takes the place of the password's hash in [SessionIDOf]. It is made
	// anew, at random, whenever a password is set. It is not the hash itself,
	// since a hash is replaced by a better one of the same password at a login,
	// which must not end the user's sessions.
	Stamp Sealed
	// Created is when the user was added, to the millisecond, UTC.
	Created time.Time
}

// Principal returns as whom the user's calls run.
func (u User) Principal() Principal { return Principal{User: u.Name, Level: u.Level} }

// Session is a right to call as a user for some time. It is a value, and holds
// no secret.
type Session struct {
	ID   SessionID
	User UserID
	// UserName is the name of User.
	UserName string
	// Instance binds the session to an instance; zero = to none. A bound one
	// opens links of that instance, and nothing else.
	Instance address.InstanceID
	// Created, Seen and Expires are to the millisecond, UTC. Seen is moved with
	// Expires only, so it may lie behind by half of Life.
	Created, Seen, Expires time.Time
	// Life is how long the session lasts beyond its last use; 0 = until Expires,
	// whether it is used or not.
	Life time.Duration
}

// ExpiredAt reports whether the session has ended by its time.
func (s Session) ExpiredAt(now time.Time) bool { return !s.Expires.After(now) }

// InstancePrefix precedes the names of the users that instances have.
const InstancePrefix = "instance:"

// nameForm has no colon, so that no user is taken for an element, an operator or
// an instance, and no letter beyond ASCII, so that no two names look the same.
//
//nolint:gochecknoglobals // compiled once, never changed
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._@+-]{0,63}$`)

// instanceNameForm is that of instance.name.
//
//nolint:gochecknoglobals // compiled once, never changed
var instanceNameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CleanName returns the one form of a user's name: letters in lower case. The
// name of an instance's user, behind [InstancePrefix], stays as it is. The error
// is of code invalid_argument.
func CleanName(name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, InstancePrefix); ok {
		if !instanceNameForm.MatchString(rest) {
			return "", badUser("%s is the name of no instance's user: behind %q it takes 1 to 64 letters, digits, '.', '_' or '-' and begins with a letter or a digit", quote(name), InstancePrefix)
		}
		return name, nil
	}
	// strings.ToLower would turn the Kelvin sign into a k.
	clean := strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, name[:min(len(name), 2*maxName)])
	if len(name) > 2*maxName || !nameForm.MatchString(clean) {
		return "", badUser("%s is not a user's name: it takes 1 to %d ASCII letters, digits, '.', '_', '@', '+' or '-' and begins with a letter or a digit", quote(name), maxName)
	}
	return clean, nil
}

const maxName = 64

// quote quotes the beginning of a name that may hold anything.
func quote(name string) string {
	if len(name) > maxName {
		return fmt.Sprintf("%.64q... (%d bytes)", name, len(name))
	}
	return fmt.Sprintf("%q", name)
}

// checkLevel says whether a user of this name may have this level: the system's
// is for instances, and theirs is no other.
func checkLevel(name string, level conduit.Level) error {
	instance := strings.HasPrefix(name, InstancePrefix)
	switch {
	case level > conduit.System || level == conduit.Anonymous:
		return badUser("a user has the level user or superuser, not %s", level)
	case level == conduit.System && !instance:
		return badUser("the level system is for instances alone; superuser is the highest of a user")
	case level != conduit.System && instance:
		return badUser("the user of an instance has the level system, not %s", level)
	}
	return nil
}

// Effect is what a change of a user means for others.
type Effect struct {
	// Counts says that the store's generation must move.
	Counts bool
	// Ends says that every session of the user ends.
	Ends bool
}

// EffectOf compares a user before and after a change. Stores call it in
// ChangeUser, so that all of them judge alike.
func EffectOf(before, after User) Effect {
	ends := !before.Stamp.Equal(after.Stamp) || after.Disabled && !before.Disabled
	return Effect{Ends: ends, Counts: ends || before.Level != after.Level || before.Disabled != after.Disabled}
}

// milli cuts a time to what stores keep.
func milli(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }
