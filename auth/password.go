package auth

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
	"golang.org/x/text/unicode/norm"

	"github.com/elemental-conduit/conduit"
)

// The lengths of a password: in characters at least, in bytes at most.
const (
	MinPassword = 8
	MaxPassword = 1024
)

// PasswordCost says what one hash of a password (argon2id) costs whoever makes it.
// The zero value of a field is its default.
type PasswordCost struct {
	// MemoryKiB is the memory of one hash in KiB; default 19456 (19 MiB).
	MemoryKiB uint32
	// Passes is how often the memory is gone over; default 2.
	Passes uint32
	// Threads is how many of them may work on one hash; default 1.
	Threads uint8
}

// The defaults are the OWASP cheat sheet's for argon2id.
const (
	defaultMemoryKiB = 19 << 10
	defaultPasses    = 2
	defaultThreads   = 1
	saltSize         = 16
	keySize          = 32
)

// What the parameters of a stored hash may be at most: whoever can write into a
// store must not be able to bring the instances down.
const (
	maxMemoryKiB = 1 << 20
	maxPasses    = 64
	maxThreads   = 64
	maxEncoded   = 512
)

// maxHashQueue bounds who waits for a turn to hash.
const maxHashQueue = 64

// Hasher hashes passwords, few at a time: a hash costs megabytes on purpose.
// Its methods may be called concurrently.
type Hasher struct {
	cost  PasswordCost
	turns chan struct{}
	queue chan struct{}
	dummy Sealed
	// derive is argon2id; tests count what it is asked for.
	derive func(password, salt []byte, passes, memoryKiB uint32, threads uint8, size uint32) []byte
}

// NewHasher returns a Hasher. At most parallel passwords are hashed at once; 0 =
// one for each processor, four at most. It makes one hash itself, which takes as
// long as any.
func NewHasher(cost PasswordCost, parallel int) *Hasher {
	cost.MemoryKiB = min(orDefault(cost.MemoryKiB, defaultMemoryKiB), maxMemoryKiB)
	cost.Passes = min(orDefault(cost.Passes, defaultPasses), maxPasses)
	cost.Threads = min(orDefault(cost.Threads, defaultThreads), maxThreads)
	if parallel <= 0 {
		parallel = min(runtime.GOMAXPROCS(0), 4)
	}
	h := &Hasher{cost: cost, turns: make(chan struct{}, parallel), queue: make(chan struct{}, parallel+maxHashQueue), derive: argon2.IDKey}
	password := make([]byte, saltSize)
	fill(password)
	h.dummy = h.encode(password)
	return h
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Hash returns the hash of a new password in the PHC string format, which holds
// the parameters, so that they can change. It fails if the password may not be
// one (invalid_argument), if too many wait for a hash (resource_exhausted), and
// with ctx.
func (h *Hasher) Hash(ctx context.Context, password []byte) (Sealed, error) {
	clean, err := cleanPassword(password)
	if err != nil {
		return Sealed{}, err
	}
	release, err := h.enter(ctx)
	if err != nil {
		return Sealed{}, err
	}
	defer release()
	return h.encode(clean), nil
}

// Verify reports whether password is that of the hash, and whether the hash
// should be made anew, since its parameters are not the Hasher's. A zero hash is
// nobody's, and takes as long to compare as any. The errors are those of Hash,
// and failed_precondition for a hash that is none.
func (h *Hasher) Verify(ctx context.Context, hash Sealed, password []byte) (ok, stale bool, err error) {
	clean, bad := cleanPassword(password)
	if bad != nil {
		// No user has such a password. It costs the time of a wrong one, so
		// that the answer's time says nothing of the user.
		hash, clean = Sealed{}, nil
	}
	exists := !hash.IsZero()
	if !exists {
		hash = h.dummy
	}
	p, err := parsePHC(hash.view())
	if err != nil {
		return false, false, err
	}
	release, err := h.enter(ctx)
	if err != nil {
		return false, false, err
	}
	defer release()
	key := h.derive(clean, p.salt, p.cost.Passes, p.cost.MemoryKiB, p.cost.Threads, uint32(len(p.key)))
	same := subtle.ConstantTimeCompare(key, p.key) == 1
	stale = p.cost != h.cost || len(p.salt) != saltSize || len(p.key) != keySize
	return same && exists, same && exists && stale, nil
}

// enter waits for a turn.
func (h *Hasher) enter(ctx context.Context) (release func(), err error) {
	select {
	case h.queue <- struct{}{}:
	default:
		e := refusal(conduit.ResourceExhausted, conduit.ReasonOverloaded, "too many passwords wait to be checked; try again later")
		e.Retryable = true
		return nil, e
	}
	select {
	case h.turns <- struct{}{}:
		return func() { <-h.turns; <-h.queue }, nil
	case <-ctx.Done():
		<-h.queue
		return nil, conduit.FromContext(ctx, conduit.Refused)
	}
}

// encode hashes in the caller's turn.
func (h *Hasher) encode(password []byte) Sealed {
	salt := make([]byte, saltSize)
	fill(salt)
	c := h.cost
	key := h.derive(password, salt, c.Passes, c.MemoryKiB, c.Threads, keySize)
	b64 := base64.RawStdEncoding
	return Seal(fmt.Appendf(nil, "$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, c.MemoryKiB, c.Passes, c.Threads, b64.EncodeToString(salt), b64.EncodeToString(key)))
}

type phc struct {
	cost      PasswordCost
	salt, key []byte
}

// parsePHC reads what encode wrote, and what others' argon2id wrote.
func parsePHC(text []byte) (p phc, err error) {
	bad := func(why string) (phc, error) {
		return phc{}, refusal(conduit.FailedPrecondition, conduit.ReasonBadStore, "the store's hash of the password is not usable (%s); set the password anew", why)
	}
	if len(text) > maxEncoded {
		return bad("it is too long")
	}
	parts := strings.Split(string(text), "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" {
		return bad("it is not of the form $argon2id$...")
	}
	if parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return bad("it is of another version")
	}
	c := &p.cost
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &c.MemoryKiB, &c.Passes, &c.Threads); err != nil ||
		fmt.Sprintf("m=%d,t=%d,p=%d", c.MemoryKiB, c.Passes, c.Threads) != parts[3] {
		return bad("its parameters do not read")
	}
	if c.Passes == 0 || c.Passes > maxPasses || c.Threads == 0 || c.Threads > maxThreads || c.MemoryKiB > maxMemoryKiB || c.MemoryKiB < 8*uint32(c.Threads) {
		return bad("its parameters are out of range")
	}
	b64 := base64.RawStdEncoding.Strict()
	if p.salt, err = b64.DecodeString(parts[4]); err != nil || len(p.salt) < 8 {
		return bad("its salt does not read")
	}
	if p.key, err = b64.DecodeString(parts[5]); err != nil || len(p.key) < 16 {
		return bad("its key does not read")
	}
	return p, nil
}

// cleanPassword returns the one form of a password, in which it is hashed: what
// a Mac and a PC make of the same keys differs in bytes.
func cleanPassword(password []byte) ([]byte, error) {
	switch {
	case len(password) > MaxPassword:
		return nil, badUser("a password has at most %d bytes", MaxPassword)
	case !utf8.Valid(password):
		return nil, badUser("a password is text in UTF-8")
	case utf8.RuneCount(password) < MinPassword:
		return nil, badUser("a password has at least %d characters", MinPassword)
	}
	for _, c := range password {
		if c < ' ' || c == 0x7f {
			return nil, badUser("a password holds no control characters, such as the end of a line")
		}
	}
	return norm.NFC.Bytes(password), nil
}
