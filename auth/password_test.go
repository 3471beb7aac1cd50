package auth

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

var cheap = PasswordCost{MemoryKiB: 64, Passes: 1, Threads: 1}

func TestPassword(t *testing.T) {
	h := NewHasher(cheap, 2)
	ctx := t.Context()
	const password = "correct horse battery staple"
	a, err := h.Hash(ctx, []byte(password))
	b, err2 := h.Hash(ctx, []byte(password))
	if err := errors.Join(err, err2); err != nil || a.Equal(b) {
		t.Fatalf("%v: two hashes of one password are the same", err)
	}
	if text := string(a.Reveal()); !strings.HasPrefix(text, "$argon2id$v=19$m=64,t=1,p=1$") || strings.Contains(text, "=$") || strings.HasSuffix(text, "=") {
		t.Errorf("%s is not of the PHC form", text)
	}
	for _, c := range []struct {
		hash     Sealed
		password string
		want     bool
	}{
		{a, password, true},
		{b, password, true},
		{a, password + "x", false},
		{a, "x" + password, false},
		{a, password[1:], false},
		{a, strings.ToUpper(password), false},
		{a, "", false},
		{a, "short", false},
		{a, strings.Repeat("x", MaxPassword), false},
		{a, strings.Repeat("x", 10*MaxPassword), false},
		{a, password + "\x00", false},
		{Sealed{}, password, false},
		{Sealed{}, "", false},
	} {
		ok, stale, err := h.Verify(ctx, c.hash, []byte(c.password))
		if ok != c.want || stale || err != nil {
			t.Errorf("%.40q: %v, %v, %v", c.password, ok, stale, err)
		}
	}
}

// TestPasswordOfOthers reads a hash that the reference program argon2 wrote:
// echo -n password | argon2 somesalt -id -t 2 -m 16 -p 1 (from its test suite).
func TestPasswordOfOthers(t *testing.T) {
	h := NewHasher(cheap, 1)
	hash := Seal([]byte("$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"))
	ok, stale, err := h.Verify(t.Context(), hash, []byte("password"))
	if !ok || !stale || err != nil {
		t.Errorf("%v, %v, %v; want it right, and to be made anew", ok, stale, err)
	}
	ok, stale, err = h.Verify(t.Context(), hash, []byte("passwore"))
	if ok || stale || err != nil {
		t.Errorf("wrong: %v, %v, %v", ok, stale, err)
	}
}

func TestStale(t *testing.T) {
	const password = "correct horse battery staple"
	old, err := NewHasher(cheap, 1).Hash(t.Context(), []byte(password))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []PasswordCost{{MemoryKiB: 128, Passes: 1, Threads: 1}, {MemoryKiB: 64, Passes: 2, Threads: 1}, {MemoryKiB: 64, Passes: 1, Threads: 2}, {MemoryKiB: 32, Passes: 1, Threads: 1}} {
		h := NewHasher(c, 1)
		if ok, stale, err := h.Verify(t.Context(), old, []byte(password)); !ok || !stale || err != nil {
			t.Errorf("%+v: %v, %v, %v", c, ok, stale, err)
		}
		// Whether a hash is old is nothing for who has not the password.
		if ok, stale, err := h.Verify(t.Context(), old, []byte(password+"x")); ok || stale || err != nil {
			t.Errorf("%+v, wrong: %v, %v, %v", c, ok, stale, err)
		}
	}
}

func TestDefaultCost(t *testing.T) {
	h := NewHasher(PasswordCost{}, 0)
	if h.cost != (PasswordCost{19456, 2, 1}) || cap(h.turns) < 1 || cap(h.turns) > 4 {
		t.Errorf("%+v, %d at once", h.cost, cap(h.turns))
	}
	p, err := parsePHC(h.dummy.view())
	if err != nil || p.cost != h.cost || len(p.salt) != saltSize || len(p.key) != keySize {
		t.Errorf("%+v, %v", p.cost, err)
	}
}

// TestBadHash: a store that was tampered with brings nobody down.
func TestBadHash(t *testing.T) {
	h := NewHasher(cheap, 1)
	const salt, key = "c29tZXNhbHQ", "CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	for _, text := range []string{
		"x", "$", "$$$$$", "plain password", "$argon2i$v=19$m=64,t=1,p=1$" + salt + "$" + key, "$argon2id$v=16$m=64,t=1,p=1$" + salt + "$" + key, "$2a$10$N9qo8uLOickgx2ZMRZoMye",
		"$argon2id$v=19$m=4294967295,t=1,p=1$" + salt + "$" + key, "$argon2id$v=19$m=99999999999,t=1,p=1$" + salt + "$" + key, "$argon2id$v=19$m=64,t=4294967295,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=64,t=1,p=255$" + salt + "$" + key, "$argon2id$v=19$m=64,t=0,p=1$" + salt + "$" + key, "$argon2id$v=19$m=64,t=1,p=0$" + salt + "$" + key, "$argon2id$v=19$m=0,t=1,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=-1,t=1,p=1$" + salt + "$" + key, "$argon2id$v=19$m=64,t=1$" + salt + "$" + key, "$argon2id$v=19$m=64,t=1,p=1,x=1$" + salt + "$" + key, "$argon2id$v=19$t=1,m=64,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=064,t=1,p=1$" + salt + "$" + key, "$argon2id$v=19$m=64,t=1,p=1$$" + key, "$argon2id$v=19$m=64,t=1,p=1$!!!!!!!!$" + key, "$argon2id$v=19$m=64,t=1,p=1$" + salt + "$", "$argon2id$v=19$m=64,t=1,p=1$" + salt + "$AAAA",
		"$argon2id$v=19$m=64,t=1,p=1$" + salt + "$" + key + "$", "$argon2id$v=19$m=64,t=1,p=1$" + salt + "$" + strings.Repeat("A", 1<<20), "$argon2id$v=19$m=8,t=1,p=4$" + salt + "$" + key,
	} {
		ok, stale, err := h.Verify(t.Context(), Seal([]byte(text)), []byte("correct horse"))
		e, isError := errors.AsType[*conduit.Error](err)
		if ok || stale || !isError || e.Reason != conduit.ReasonBadStore {
			t.Errorf("%.80s: %v, %v, %v", text, ok, stale, err)
		}
	}
}

// TestHashingIsBounded: as many hashes at once as there may be, as many waiters as
// there may be, and an answer at once for the rest.
func TestHashingIsBounded(t *testing.T) {
	h := NewHasher(cheap, 2)
	for range cap(h.turns) {
		h.turns <- struct{}{} // hashes that take long
	}
	for range cap(h.turns) {
		h.queue <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	results := make(chan error, maxHashQueue)
	for range maxHashQueue {
		wg.Go(func() {
			_, _, err := h.Verify(ctx, Sealed{}, []byte("correct horse"))
			results <- err
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); len(h.queue) < cap(h.queue); {
		select {
		case <-tick.C: // a channel has no event for how many are in it
		case <-late:
			t.Fatal("they do not wait")
		}
	}
	_, err := h.Hash(ctx, []byte("correct horse"))
	if e, ok := errors.AsType[*conduit.Error](err); !ok || e.Reason != conduit.ReasonOverloaded || !e.Retryable {
		t.Errorf("one too many: %v", err)
	}
	// One of them gives up: its place is free again.
	<-h.queue
	<-h.turns
	if err := <-results; err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	for range maxHashQueue - 1 {
		if err := <-results; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if len(h.queue) != 1 || len(h.turns) != 1 {
		t.Errorf("%d wait, %d hash", len(h.queue), len(h.turns))
	}
}

// TestUnknownUserCostsAsMuch: whoever asks for a user that is not there, or with what
// is no password, makes the same hash computed as one with a wrong password, so that
// the time of the answer tells nothing.
func TestUnknownUserCostsAsMuch(t *testing.T) {
	h := NewHasher(cheap, 1)
	hash, err := h.Hash(t.Context(), []byte("correct horse"))
	if err != nil {
		t.Fatal(err)
	}
	type work struct {
		passes, memory, size uint32
		threads              uint8
		salt                 int
	}
	var did []work
	derive := h.derive
	h.derive = func(password, salt []byte, passes, memory uint32, threads uint8, size uint32) []byte {
		did = append(did, work{passes, memory, size, threads, len(salt)})
		return derive(password, salt, passes, memory, threads, size)
	}
	verify := func(hash Sealed, password string) []work {
		did = nil
		if ok, _, err := h.Verify(t.Context(), hash, []byte(password)); ok || err != nil {
			t.Fatal(ok, err)
		}
		return did
	}
	wrong := verify(hash, "wrong horse")
	if len(wrong) != 1 {
		t.Fatalf("a wrong password costs %v", wrong)
	}
	for name, got := range map[string][]work{
		"an unknown user": verify(Sealed{}, "wrong horse"), "the right password of nobody": verify(Sealed{}, "correct horse"),
		"an impossible password": verify(hash, "x"), "a huge password": verify(hash, strings.Repeat("x", 1<<16)),
	} {
		if !slices.Equal(got, wrong) {
			t.Errorf("%s costs %v, a wrong password %v", name, got, wrong)
		}
	}
}
