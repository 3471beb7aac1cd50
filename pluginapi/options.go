package pluginapi

import (
	"time"

	"github.com/elemental-conduit/conduit"
)

// Level is how much a caller may do.
type Level = conduit.Level

// The levels, lowest first. System is for instances alone.
const (
	Anonymous = conduit.Anonymous
	User      = conduit.User
	Superuser = conduit.Superuser
	System    = conduit.System
)

// MethodOption says something of a method: see [Remote], [MinLevel], [Units],
// [Idempotent], [Deprecated] and [Timeout].
type MethodOption func(*method)

// Remote makes the method callable from other processes. Without it every call
// is refused, not_remote.
func Remote() MethodOption { return func(m *method) { m.remote = true } }

// MinLevel sets the lowest level of callers, instead of [User].
func MinLevel(l Level) MethodOption {
	return func(m *method) {
		if l > System {
			m.mistake("MinLevel(%d) is none of Anonymous, User, Superuser, System", uint8(l))
		}
		m.level = l
	}
}

// Units sets what a call costs in units of capacity, reserved before the handler
// starts and given back when it returns.
func Units(n uint32) MethodOption { return func(m *method) { m.units = n } }

// Idempotent says that a call may safely run twice, so that one whose end was lost
// may be tried again elsewhere.
func Idempotent() MethodOption { return func(m *method) { m.idempotent = true } }

// Deprecated marks the method; text says what to use instead.
func Deprecated(text string) MethodOption {
	return func(m *method) {
		if text == "" {
			m.mistake("Deprecated needs a text that says what to use instead")
		}
		m.deprecated = text
	}
}

// Timeout ends a handler's context after d, or at the caller's deadline if that
// comes first.
func Timeout(d time.Duration) MethodOption {
	return func(m *method) {
		if d <= 0 {
			m.mistake("Timeout(%v) is not positive; leave it out for none", d)
		}
		m.timeout = d
	}
}
