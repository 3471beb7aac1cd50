package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tooManyError(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*conduit.Error](err)
	if !ok || e.Code != conduit.ResourceExhausted || e.Reason != conduit.ReasonTooManyAttempts || e.Outcome != conduit.Refused || e.RetryAfter <= 0 {
		t.Errorf("%v, want too_many_attempts and when to try again", err)
	}
}

func TestAttemptsOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAttempts(AttemptsOptions{AddressBurst: 3, AddressEvery: time.Second, UserBurst: -1})
		for i := range 3 {
			if err := a.Login(addr("192.0.2.1"), fmt.Sprintf("u%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // what is refused costs nothing more
			tooManyError(t, a.Login(addr("192.0.2.1"), "u9"))
			tooManyError(t, a.Login(addr("::ffff:192.0.2.1"), "u9")) // the same, as another socket says it
			tooManyError(t, a.Allow(addr("192.0.2.1")))
		}
		if err := a.Login(addr("192.0.2.2"), "u9"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second + time.Millisecond)
		if err := a.Allow(addr("192.0.2.1")); err != nil {
			t.Error(err)
		}
		a.Bad(addr("192.0.2.1"))
		tooManyError(t, a.Login(addr("192.0.2.1"), "u9"))
		time.Sleep(time.Hour)
		for range 3 { // and no more than three, however long nobody tried
			if err := a.Login(addr("192.0.2.1"), ""); err != nil {
				t.Error(err)
			}
		}
		tooManyError(t, a.Login(addr("192.0.2.1"), ""))
	})
}

func TestAttemptsOfANetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAttempts(AttemptsOptions{AddressBurst: 2})
		for _, s := range []string{"2001:db8:1:2::1", "2001:db8:1:2:ffff::1"} {
			if err := a.Login(addr(s), ""); err != nil {
				t.Fatal(err)
			}
		}
		tooManyError(t, a.Login(addr("2001:db8:1:2:3:4:5:6"), ""))
		if err := a.Login(addr("2001:db8:1:3::1"), ""); err != nil {
			t.Error(err)
		}
	})
}

func TestAttemptsOfAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAttempts(AttemptsOptions{UserBurst: 4, UserEvery: 10 * time.Second})
		from := func(i int) netip.Addr { return addr(fmt.Sprintf("198.51.100.%d", i)) }
		for i := range 4 {
			if err := a.Login(from(i), "ada"); err != nil {
				t.Fatal(err)
			}
		}
		tooManyError(t, a.Login(from(9), "ada"))
		if err := a.Login(from(9), "bob"); err != nil {
			t.Error(err)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if err := a.Login(from(9), "ada"); err != nil {
			t.Error(err)
		}
		tooManyError(t, a.Login(from(9), "ada"))
	})
}

// TestAttemptsAreNotPushedOut: who asks with a million names still finds the limit
// of one of them as it was, and the memory too.
func TestAttemptsAreNotPushedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAttempts(AttemptsOptions{AddressBurst: -1, UserBurst: 2, UserEvery: time.Hour, Slots: 1024})
		for range 2 {
			if err := a.Login(addr("192.0.2.1"), "ada"); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100_000 {
			_ = a.Login(addr("192.0.2.1"), fmt.Sprintf("x%d", i))
		}
		tooManyError(t, a.Login(addr("192.0.2.1"), "ada"))
		if len(a.users.slots) != 1024 {
			t.Errorf("%d slots", len(a.users.slots))
		}
	})
}

func TestNoAttempts(t *testing.T) {
	var a *Attempts
	a.Bad(netip.Addr{})
	if err := errors.Join(a.Login(netip.Addr{}, "ada"), a.Allow(netip.Addr{})); err != nil {
		t.Error(err)
	}
	b := NewAttempts(AttemptsOptions{AddressBurst: 1})
	if err := b.Login(netip.Addr{}, ""); err != nil { // of a Unix socket
		t.Error(err)
	}
	tooManyError(t, b.Login(netip.Addr{}, ""))
}
