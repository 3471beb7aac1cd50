package auth

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit"
)

const (
	goldenUser   = "507f1f77bcf86cd799439011"
	goldenSecret = "ba65c6c5000102030405060708090a0b0c0d0e0f507f1f77bcf86cd799439011"
	goldenID     = "7d89196cdb551e488f8ac49200f6a6a58cb2eb47351b04160676995fd7524d37"
)

func unhexed(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden holds the format to the original's, byte for byte.
func TestGolden(t *testing.T) {
	user, err := ParseUserID(goldenUser)
	if err != nil || user.String() != goldenUser {
		t.Fatal(user, err)
	}
	var b [secretSize]byte
	for i := range b[secretRandomAt:secretUserAt] {
		b[secretRandomAt+i] = byte(i)
	}
	if s := newSecret(b, user); s.Reveal() != goldenSecret {
		t.Errorf("made %s, want %s", s.Reveal(), goldenSecret)
	}
	for _, text := range []string{goldenSecret, strings.ToUpper(goldenSecret)} {
		s, err := ParseSecret([]byte(text))
		if err != nil || s.User() != user || s.Reveal() != goldenSecret {
			t.Fatalf("%s, %v", s.User(), err)
		}
		id := SessionIDOf(unhexed(t, "aabbccddeeff001122334455"), s)
		if id.String() != goldenID {
			t.Errorf("id %s, want %s", id, goldenID)
		}
		if parsed, err := ParseSessionID(strings.ToUpper(id.String())); err != nil || parsed != id {
			t.Errorf("%s, %v", parsed, err)
		}
	}
}

func TestNewSecret(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		user := NewUserID()
		s := NewSecret(user)
		text := s.Reveal()
		if len(text) != SecretLen || seen[text] || s.User() != user || s.IsZero() {
			t.Fatal("not a new secret of the user")
		}
		seen[text] = true
		back, err := ParseSecret([]byte(text))
		if err != nil || SessionIDOf(nil, back) != SessionIDOf(nil, s) {
			t.Fatal(err)
		}
		if SessionIDOf([]byte("a"), s) == SessionIDOf([]byte("b"), s) {
			t.Fatal("the id does not depend on the hash")
		}
	}
}

// TestSecretRefused: each change of one digit, each length, and bytes of all
// kinds.
func TestSecretRefused(t *testing.T) {
	refused := func(text string) {
		t.Helper()
		s, err := ParseSecret([]byte(text))
		if err == nil || !s.IsZero() {
			t.Errorf("%q was taken for a secret", text)
			return
		}
		if e := conduit.AsError(err, conduit.Executed); e.Code != conduit.Unauthenticated || e.Reason != conduit.ReasonUnauthenticated || e.Outcome != conduit.Refused {
			t.Errorf("%v", err)
		}
		if len(text) > 8 && strings.Contains(err.Error(), text[:8]) {
			t.Errorf("the error quotes the secret: %v", err)
		}
	}
	for i := range goldenSecret {
		for _, c := range "0123456789abcdefg GZ/:@`\x00\xff-" {
			changed := goldenSecret[:i] + string(c) + goldenSecret[i+1:]
			if !strings.EqualFold(changed, goldenSecret) {
				refused(changed)
			}
		}
		refused(goldenSecret[:i])
		refused(goldenSecret[:i] + goldenSecret[i+1:])
		if i > 0 {
			refused(goldenSecret[i:])
		}
	}
	for _, text := range []string{
		goldenSecret + "0", goldenSecret + "00", goldenSecret + "\n", " " + goldenSecret, goldenSecret + " u1", "0x" + goldenSecret, goldenSecret + goldenSecret,
		strings.Repeat("0", SecretLen), strings.Repeat("f", SecretLen), strings.Repeat("z", SecretLen), strings.Repeat("\xff", SecretLen), strings.Repeat("a", 1<<20),
		"c5c665ba" + goldenSecret[8:], // the CRC in the other order of bytes
	} {
		refused(text)
	}
}

func TestIDsRefused(t *testing.T) {
	for _, s := range []string{"", "x", goldenUser[1:], goldenUser + "0", strings.Repeat("g", 24), goldenSecret + "0", strings.Repeat("x", 64), strings.Repeat("-", 32)} {
		if id, err := ParseUserID(s); err == nil {
			t.Errorf("%q is %s", s, id)
		}
		if id, err := ParseSessionID(s); err == nil {
			t.Errorf("%q is %s", s, id)
		}
		if id, err := ParseStoreID(s); err == nil {
			t.Errorf("%q is %s", s, id)
		}
	}
	id := NewStoreID()
	if got, err := ParseStoreID(strings.ToUpper(id.String())); err != nil || got != id {
		t.Error(got, err)
	}
}

// FuzzParseSecret compares with a plain reading of the rule.
func FuzzParseSecret(f *testing.F) {
	f.Add([]byte(goldenSecret))
	f.Add([]byte(strings.ToUpper(goldenSecret)))
	f.Add([]byte(strings.Repeat("0", SecretLen)))
	f.Add([]byte("Bearer " + goldenSecret))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		want := false
		b, err := hex.DecodeString(string(text))
		if err == nil && len(b) == 32 {
			sum := binary.LittleEndian.Uint32(b)
			clear(b[:4])
			want = sum == crc32.ChecksumIEEE(b)
		}
		s, err := ParseSecret(text)
		if (err == nil) != want {
			t.Fatalf("%q: %v, want valid = %v", text, err, want)
		}
		if want && s.Reveal() != strings.ToLower(string(text)) {
			t.Fatalf("%q reads as %q", text, s.Reveal())
		}
		if err != nil && len(text) > 3 && strings.Contains(err.Error(), string(text)) && !strings.Contains(malformedSecret().Error(), string(text)) {
			t.Fatalf("the error quotes it: %v", err)
		}
	})
}

// TestNothingShows prints, logs and encodes everything that holds a secret, a hash
// or a stamp, also from fields that package fmt cannot call methods of.
func TestNothingShows(t *testing.T) {
	secret, err := ParseSecret([]byte(goldenSecret))
	if err != nil {
		t.Fatal(err)
	}
	const canary = "s3cr3t-CANARY-91"
	user := User{ID: secret.User(), Name: "ada", Password: Seal([]byte("$argon2id$" + canary)), Stamp: Seal([]byte(canary))}
	minted := Minted{Secret: secret, User: user}
	type outer struct {
		secret Secret
		user   User
		sealed Sealed
		minted *Minted
		list   []Secret
		table  map[string]Sealed
	}
	inner := outer{secret, user, user.Stamp, &minted, []Secret{secret}, map[string]Sealed{"x": user.Password}}
	raw := unhexed(t, goldenSecret)
	forms := []string{
		canary, goldenSecret, strings.ToUpper(goldenSecret), goldenSecret[8:40], string(raw), hex.EncodeToString([]byte(canary)),
		fmt.Sprintf("%d", raw[:8])[1:16], fmt.Sprintf("%d", []byte(canary)[:8])[1:16], fmt.Sprintf("%#v", raw[:6])[7:30], "czNjcjN0", // the beginning in base64
	}
	check := func(how, text string) {
		t.Helper()
		for _, f := range forms {
			if strings.Contains(text, f) {
				t.Errorf("%s shows %q: %s", how, f, text)
			}
		}
	}
	var log strings.Builder
	text := slog.New(slog.NewTextHandler(&log, nil))
	jsonLog := slog.New(slog.NewJSONHandler(&log, nil))
	for _, v := range []any{secret, &secret, user, &user, user.Stamp, &user.Password, minted, &minted, inner, &inner, []any{secret, minted}, Found{User: user}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p", "%t", "%T", "%o", "%c", "% x", "%#x", "%08d", "%z"} {
			check(fmt.Sprintf("%T by %s", v, verb), fmt.Sprintf(verb, v))
		}
		check("Sprint", fmt.Sprint(v)+fmt.Sprintln(v))
		check("Errorf", fmt.Errorf("failed with %v", v).Error())
		b, err := json.Marshal(v)
		check(fmt.Sprintf("%T as JSON (%v)", v, err), string(b))
		text.Info("x", "v", v)
		jsonLog.Info("x", "v", v)
	}
	check("the log", log.String())
	if !strings.Contains(log.String(), hidden) {
		t.Error("nothing was logged: the test must be wrong")
	}
	if got := fmt.Sprint(Secret{}, Sealed{}); got != hidden+" "+hidden {
		t.Errorf("no secret prints as %q, which tells", got)
	}
}

func TestSealed(t *testing.T) {
	b := []byte("abc")
	s := Seal(b)
	b[0] = 'x'
	out := s.Reveal()
	if string(out) != "abc" {
		t.Errorf("%q", out)
	}
	out[0] = 'y'
	if string(s.Reveal()) != "abc" {
		t.Error("it is not immutable")
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"", "", true}, {"abc", "abc", true}, {"abc", "abd", false}, {"abc", "ab", false}, {"abc", "abcd", false}, {"", "a", false}, {"xbc", "abc", false}} {
		if got := Seal([]byte(c.a)).Equal(Seal([]byte(c.b))); got != c.want {
			t.Errorf("%q and %q: %v", c.a, c.b, got)
		}
	}
	if !Seal(nil).IsZero() || s.IsZero() || Seal(nil).Reveal() != nil {
		t.Error("IsZero")
	}
	var none Secret
	if none.Reveal() != "" || !none.User().IsZero() {
		t.Error("no secret is one")
	}
}
