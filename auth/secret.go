package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"

	"github.com/elemental-conduit/conduit"
)

// The layout of a secret, which the original fixed: a CRC-32 (IEEE, little-endian)
// of the whole with the CRC's own bytes zero, random bytes, the user's id.
const (
	secretSize = secretUserAt + userIDSize
	// SecretLen is the length of a secret's text: two hex digits for each byte.
	SecretLen = 2 * secretSize

	secretRandomAt = 4
	secretUserAt   = secretRandomAt + 16
	userIDSize     = 12
)

// UserID names a user for good: a user who is removed and added again has
// another one. It is a value.
type UserID [userIDSize]byte

// NewUserID returns a random id.
func NewUserID() (id UserID) {
	fill(id[:])
	return id
}

// ParseUserID reads 24 hex digits.
func ParseUserID(s string) (id UserID, err error) {
	if len(s) != 2*len(id) || !unhex(id[:], []byte(s)) {
		return UserID{}, refusal(conduit.InvalidArgument, conduit.ReasonBadUser, "an id of a user has %d hex digits", 2*len(id))
	}
	return id, nil
}

// IsZero reports whether id is that of nobody.
func (id UserID) IsZero() bool { return id == UserID{} }

// String returns 24 lower-case hex digits.
func (id UserID) String() string { return hex.EncodeToString(id[:]) }

// SessionID names a session. It is a hash, so it may be shown: nobody gets from
// it to the secret. It is a value.
type SessionID [sha256.Size]byte

// SessionIDOf returns the id of the session that secret opens: the SHA-256 of
// passwordHash and secret. passwordHash is what the user's record has for this,
// its Stamp: it is another after each change of the password, so that no earlier
// secret finds anything.
func SessionIDOf(passwordHash []byte, secret Secret) SessionID {
	h := sha256.New()
	h.Write(passwordHash)
	h.Write(secret.bytes())
	var id SessionID
	h.Sum(id[:0])
	return id
}

// ParseSessionID reads 64 hex digits. Whoever gives a secret instead of an id
// will mostly learn that there is no such session: the two look alike.
func ParseSessionID(s string) (id SessionID, err error) {
	if len(s) != 2*len(id) || !unhex(id[:], []byte(s)) {
		return SessionID{}, refusal(conduit.InvalidArgument, conduit.ReasonSessionNotFound, "an id of a session has %d hex digits; \"session ls\" shows them", 2*len(id))
	}
	return id, nil
}

// IsZero reports whether id is that of no session.
func (id SessionID) IsZero() bool { return id == SessionID{} }

// String returns 64 lower-case hex digits.
func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// Secret proves whose a session is. It is kept nowhere but with who holds it:
// stores keep the [SessionID] that is made from it. However it is printed, it
// shows nothing; [Secret.Reveal] alone does. The zero value is no secret.
//
// It is a func within, since package fmt prints the fields of other types, and
// what their pointers lead to, without asking methods. Hence it does not compare.
type Secret struct {
	redacted
	b func() *[secretSize]byte
}

func secretOf(b [secretSize]byte) Secret {
	return Secret{b: func() *[secretSize]byte { return &b }}
}

// NewSecret returns a new secret of a user.
func NewSecret(user UserID) Secret {
	var b [secretSize]byte
	fill(b[secretRandomAt:secretUserAt])
	return newSecret(b, user)
}

// newSecret completes a secret whose random bytes are in b.
func newSecret(b [secretSize]byte, user UserID) Secret {
	copy(b[secretUserAt:], user[:])
	binary.LittleEndian.PutUint32(b[:], secretSum(&b))
	return secretOf(b)
}

// ParseSecret reads the text of a secret, in either case of its hex digits. The
// error, of code unauthenticated, quotes nothing of it.
func ParseSecret(text []byte) (Secret, error) {
	var b [secretSize]byte
	if !decodeSecret(&b, text) {
		return Secret{}, malformedSecret()
	}
	return secretOf(b), nil
}

func malformedSecret() *conduit.Error {
	return denied("the session's secret is malformed: it has %d hex digits, the first of which check the others", SecretLen)
}

// decodeSecret reads a secret's text without allocating. What is in b after it
// returned false is of no meaning.
func decodeSecret(b *[secretSize]byte, text []byte) bool {
	return len(text) == SecretLen && unhex(b[:], text) && checks(b)
}

// checks says whether the CRC of a secret is right.
func checks(b *[secretSize]byte) bool { return binary.LittleEndian.Uint32(b[:]) == secretSum(b) }

// afterZeros is what a CRC-32 is at inside after four bytes of zero.
const afterZeros uint32 = 0xdebb20e3

// secretSum is the CRC that b should have, as crc32.ChecksumIEEE of b with its
// first four bytes zero has it. That one takes no array without moving it to the
// heap, and a reader calls this for each call.
func secretSum(b *[secretSize]byte) uint32 {
	sum := afterZeros
	for _, c := range b[secretRandomAt:] {
		sum = crc32.IEEETable[byte(sum)^c] ^ sum>>8
	}
	return ^sum
}

// User returns the id of the user that the secret says it is of. Whether that
// is so, only a store can say.
func (s Secret) User() (id UserID) {
	copy(id[:], s.bytes()[secretUserAt:])
	return id
}

// IsZero reports whether s is no secret.
func (s Secret) IsZero() bool { return s.b == nil }

// Reveal returns the text, to be given to whom the session is for and to nobody
// else. It is "" for the zero value.
func (s Secret) Reveal() string {
	if s.b == nil {
		return ""
	}
	return hex.EncodeToString(s.b()[:])
}

func (s Secret) bytes() []byte {
	if s.b == nil {
		return make([]byte, secretSize) // its CRC is wrong: no store has a session for it
	}
	return s.b()[:]
}

// unhex is hex.Decode for exactly len(dst) bytes, without an error to allocate.
func unhex(dst, src []byte) bool {
	var bad byte
	for i := range dst {
		high, low := digits[src[2*i]], digits[src[2*i+1]]
		bad |= high | low
		dst[i] = high<<4 | low&0xf
	}
	return bad&0xf0 == 0
}

// digits has the value of each byte as a hex digit, 0xff for all others.
const digits = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\xff\xff\xff\xff\xff\xff" +
	"\xff\x0a\x0b\x0c\x0d\x0e\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\x0a\x0b\x0c\x0d\x0e\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"

// fill fills b with random bytes; crypto/rand never fails to, it ends the program
// rather than return an error.
func fill(b []byte) { _, _ = rand.Read(b) }
