package budget

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/elemental-conduit/conduit"
)

// check is the invariant that every test ends with.
func check(t *testing.T, b *Budget) Snapshot {
	t.Helper()
	s := b.Snapshot()
	if s.Available < 0 || s.Reserved < 0 || s.Claimed < 0 || s.Available+s.Reserved+s.Claimed != s.Total {
		t.Fatalf("the sums are wrong: %+v", s)
	}
	return s
}

func idle(t *testing.T, b *Budget) {
	t.Helper()
	if s := check(t, b); s.Available != s.Total || s.Reservations != 0 || s.Claims != 0 {
		t.Fatalf("something is still held: %+v", s)
	}
}

func want(t *testing.T, err *conduit.Error, code conduit.Code, reason string) {
	t.Helper()
	if err == nil || err.Code != code || err.Reason != reason || err.Outcome != conduit.Refused {
		t.Fatalf("%v, want %v %s, refused", err, code, reason)
	}
}

func TestReserveAllOrNothing(t *testing.T) {
	b := New(10)
	r, err := b.Reserve(7)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Reserve(4)
	want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	if !err.Retryable || err.Details["available"] != "3" || err.Details["total"] != "10" {
		t.Errorf("a refusal carries its headroom: %+v", err)
	}
	none, err := b.Reserve(0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Reserve(-1)
	want(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified)
	if s := check(t, b); s.Available != 3 || s.Reservations != 2 {
		t.Errorf("%+v", s)
	}
	r.Release()
	r.Release()
	none.Release()
	(*Reservation)(nil).Release()
	idle(t, b)
}

func TestClaimTakesOver(t *testing.T) {
	b := New(10)
	r, _ := b.Reserve(6)
	full, _ := b.Reserve(2)

	// More than reserved and available together: nothing moves.
	_, err := r.Claim(9)
	want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	if err.Message != "9 units were asked for, 2 of 10 are available beyond the 6 that the call has reserved" {
		t.Error(err.Message)
	}
	if r.Units() != 6 {
		t.Fatalf("a failed claim took %d units", 6-r.Units())
	}

	// What was reserved moves first, also when cordoned; the rest does not.
	b.Cordon(true)
	first, err := r.Claim(4)
	if err != nil || r.Units() != 2 {
		t.Fatalf("%v, %d left", err, r.Units())
	}
	_, err = r.Claim(3)
	want(t, err, conduit.Unavailable, conduit.ReasonCordoned)
	_, err = b.Claim(1)
	want(t, err, conduit.Unavailable, conduit.ReasonCordoned)
	_, err = b.Reserve(1)
	want(t, err, conduit.Unavailable, conduit.ReasonCordoned)
	if none, err := b.Reserve(0); err != nil {
		t.Errorf("a call without units on a cordoned instance: %v", err)
	} else {
		none.Release()
	}
	b.Cordon(false)
	second, err := r.Claim(3)
	if err != nil || r.Units() != 0 {
		t.Fatalf("%v, %d left", err, r.Units())
	}
	if s := check(t, b); s.Claimed != 7 || s.Claims != 2 || s.Reserved != 2 || s.Available != 1 {
		t.Fatalf("%+v", s)
	}

	// The claims outlive the call.
	r.Release()
	full.Release()
	if s := check(t, b); s.Claimed != 7 || s.Available != 3 {
		t.Fatalf("%+v", s)
	}
	third, err := r.Claim(3) // nothing is left to take over
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Claim{first, second, third, nil} {
		c.Release()
		c.Release()
	}
	idle(t, b)
}

// REG-03: closing twice gives back once, from whatever goroutine, and a panic in
// between loses nothing.
func TestReleaseTwice(t *testing.T) {
	b := New(10)
	c, err := b.Claim(3)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(c.Release)
	}
	wg.Wait()
	idle(t, b)

	func() {
		defer func() { _ = recover() }()
		c, err := b.Claim(3)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
		r, _ := b.Reserve(2)
		defer r.Release()
		r.Release()
		panic("in the plugin")
	}()
	idle(t, b)
}

// REG-05: two want two, one wants one, three are there.
func TestClaimsBesideEachOther(t *testing.T) {
	for range 1000 {
		b := New(3)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var held int64
		for _, n := range []int64{2, 2, 1} {
			wg.Go(func() {
				c, err := b.Claim(n)
				if err != nil {
					want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
					return
				}
				mu.Lock()
				held += c.Units()
				mu.Unlock()
			})
		}
		wg.Wait()
		if s := check(t, b); s.Claimed != held || held != 3 {
			t.Fatalf("%d units are held; 2+1 fit, and nothing else is full: %+v", held, s)
		}
	}
	b := New(3)
	for _, n := range []int64{0, -1, math.MinInt64} {
		_, err := b.Claim(n)
		want(t, err, conduit.InvalidArgument, conduit.ReasonUnspecified)
	}
	for _, n := range []int64{4, math.MaxInt64} {
		_, err := b.Claim(n)
		want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
		_, err = b.Reserve(n)
		want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	}
	r, _ := b.Reserve(1)
	_, err := r.Claim(math.MaxInt64)
	want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	r.Release()
	idle(t, b)
}

func TestLedger(t *testing.T) {
	b := New(10)
	one, other := b.Ledger(), b.Ledger()
	r, err := one.Judge(3, 5) // the method costs more than the caller said
	if err != nil {
		t.Fatal(err)
	}
	_, err = one.Judge(7, 7)
	want(t, err, conduit.ResourceExhausted, conduit.ReasonNoCapacity)
	one.Refuse(2)
	one.Refuse(0)
	if s := one.Status(); s != (Status{Available: 5, Total: 10, Judged: 12}) {
		t.Errorf("%+v", s)
	}
	if s := other.Status(); s != (Status{Available: 5, Total: 10}) {
		t.Errorf("judged is a link's own: %+v", s)
	}
	b.Cordon(true)
	_, err = other.Judge(1, 1)
	want(t, err, conduit.Unavailable, conduit.ReasonCordoned)
	if s := other.Status(); s.Judged != 1 || !s.Cordoned {
		t.Errorf("%+v", s)
	}
	r.Release()
	idle(t, b)
}

// What a link reports is of one moment: available never lacks what judged says.
func TestLedgerIsOfOneMoment(t *testing.T) {
	b := New(1 << 40)
	l := b.Ledger()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10_000 {
			if _, err := l.Judge(3, 3); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		if s := l.Status(); s.Total-s.Available != s.Judged {
			t.Fatalf("%+v", s)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestSubscribe(t *testing.T) {
	b := New(10)
	changed, stop := b.Subscribe()
	heard := func(want bool) {
		t.Helper()
		select {
		case <-changed:
			if !want {
				t.Fatal("heard of a change that was none")
			}
		default:
			if want {
				t.Fatal("heard of no change")
			}
		}
	}
	heard(false)
	r, _ := b.Reserve(1)
	r2, _ := b.Reserve(1)
	heard(true)
	heard(false) // two changes are one
	r0, _ := b.Reserve(0)
	r0.Release()
	heard(false)
	c, _ := r.Claim(1) // what is available stays the same
	heard(false)
	c.Release()
	heard(true)
	c.Release()
	heard(false)
	b.Cordon(true)
	heard(true)
	b.Cordon(true)
	heard(false)
	b.Ledger().Refuse(1)
	heard(true)
	r2.Release()
	stop()
	stop()
	heard(false)
	r.Release()
	b.Cordon(false)
	heard(false)
	idle(t, b)
}

// TestRandom does whatever can be done, from several goroutines at once.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		const total = 50
		b := New(total)
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() { churn(t, b, rand.New(rand.NewPCG(seed, g))) })
		}
		wg.Wait()
		b.Cordon(false)
		idle(t, b)
		c, err := b.Claim(total)
		if err != nil {
			t.Fatalf("seed %d: all is given back, and %v", seed, err)
		}
		c.Release()
	}
}

func churn(t *testing.T, b *Budget, r *rand.Rand) {
	t.Helper()
	l := b.Ledger()
	var reservations []*Reservation
	var claims []*Claim
	var judged int64
	for range 500 {
		n := r.Int64N(20)
		switch op := r.IntN(12); {
		case op < 3:
			judged += n
			if got, err := l.Judge(n, n); err == nil {
				reservations = append(reservations, got)
			}
		case op < 4:
			judged += n
			l.Refuse(n)
		case op < 6:
			if got, err := b.Claim(n); err == nil {
				claims = append(claims, got)
			}
		case op < 8 && len(reservations) > 0:
			from := reservations[r.IntN(len(reservations))]
			before := from.Units()
			got, err := from.Claim(n)
			if after := from.Units(); err == nil && before-after != min(n, before) || err != nil && after != before {
				t.Errorf("a claim of %d (%v) left %d of %d reserved", n, err, after, before)
			}
			if err == nil {
				claims = append(claims, got)
			}
		case op < 10 && len(reservations) > 0:
			reservations[r.IntN(len(reservations))].Release() // perhaps again
		case op < 11 && len(claims) > 0:
			claims[r.IntN(len(claims))].Release()
		default:
			b.Cordon(r.IntN(4) == 0)
		}
		s := b.Snapshot()
		if s.Available < 0 || s.Available+s.Reserved+s.Claimed != s.Total {
			t.Errorf("the sums are wrong: %+v", s)
		}
		if got := l.Status().Judged; got != judged {
			t.Errorf("judged is %d, want %d", got, judged)
		}
	}
	for _, x := range reservations {
		x.Release()
	}
	for _, x := range claims {
		x.Release()
	}
}
