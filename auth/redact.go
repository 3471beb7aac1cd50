package auth

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// hidden is what is shown in place of a secret.
const hidden = "[redacted]"

// redacted makes a type that embeds it show nothing, however it is printed,
// logged or encoded.
type redacted struct{}

// Format writes the same for every verb.
func (redacted) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

func (redacted) String() string               { return hidden }
func (redacted) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (redacted) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Sealed holds bytes that are not shown: the hash of a password, a stamp. They
// are no secrets that open a door, yet what a thief would want. The zero value
// holds none. It is immutable; see [Secret] for why there is a func in it.
type Sealed struct {
	redacted
	b func() []byte
}

// Seal returns a copy of b, sealed. No bytes make the zero value.
func Seal(b []byte) Sealed {
	if len(b) == 0 {
		return Sealed{}
	}
	b = bytes.Clone(b)
	return Sealed{b: func() []byte { return b }}
}

// Reveal returns a copy of the bytes, for a store to keep.
func (s Sealed) Reveal() []byte {
	if s.b == nil {
		return nil
	}
	return bytes.Clone(s.b())
}

// IsZero reports whether s holds no bytes.
func (s Sealed) IsZero() bool { return s.b == nil }

// Equal compares in a time that depends on the lengths alone.
func (s Sealed) Equal(t Sealed) bool { return subtle.ConstantTimeCompare(s.view(), t.view()) == 1 }

func (s Sealed) view() []byte {
	if s.b == nil {
		return nil
	}
	return s.b()
}
