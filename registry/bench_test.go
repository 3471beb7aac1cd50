package registry

import (
	"strconv"
	"testing"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// crowd is a registry of n peers with room, without its goroutines.
func crowd(tb testing.TB, n int, policy Policy) *Registry {
	tb.Helper()
	w := &world{t: nil, at: map[string]*instance{}, dials: map[string]int{}}
	r := New(Options{Dialer: w, Policy: policy})
	var peers []*Peer
	for i := range n {
		name := "n" + strconv.Itoa(i)
		p := newPeer(url(name), func() {})
		p.id, p.link = address.UniqueInstanceID(name), idleLink{}
		info := &conduitv1.InstanceInfo{Name: name, Digest: []byte("1")}
		for _, d := range []string{"app", "other", "third"} {
			info.Deployments = append(info.Deployments, deploymentOf(d, elementOf(d, "ready")))
		}
		p.meta.Store(newCatalog(info, &r.shapes))
		p.onStatus(&conduitv1.Status{Available: 1 << 50, Total: 1 << 50, Digest: []byte("1")})
		peers = append(peers, p)
	}
	r.index.Store(newIndex(1, peers))
	return r
}

// idleLink is a link that costs nothing.
type idleLink struct{ Link }

func (idleLink) Usable() bool     { return true }
func (idleLink) Unsent() uint64   { return 0 }
func (idleLink) Outstanding() int { return 0 }

func benchmarkPick(b *testing.B, policy Policy, q Query) {
	b.Helper()
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := crowd(b, n, policy)
			pl := r.Place(address.MustParse(in("app")))
			b.ReportAllocs()
			for b.Loop() {
				c, err := r.TryPick(pl, q)
				if err != nil {
					b.Fatal(err)
				}
				c.Handed()
			}
		})
	}
}

// BenchmarkPick is p2c for a call with units: what `make bench-pick` runs.
func BenchmarkPick(b *testing.B) { benchmarkPick(b, P2C, Query{Method: "Costs", Units: 1}) }

func BenchmarkPickNoUnits(b *testing.B) { benchmarkPick(b, P2C, Query{Method: "Call"}) }

func BenchmarkPickHeadroom(b *testing.B) {
	benchmarkPick(b, Headroom, Query{Method: "Costs", Units: 1})
}

func BenchmarkPickParallel(b *testing.B) {
	r := crowd(b, 100, P2C)
	pl := r.Place(address.MustParse(in("app")))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := r.TryPick(pl, Query{Method: "Costs"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPickInstance(b *testing.B) {
	r := crowd(b, 1000, P2C)
	pl := r.Place(address.MustParse(address.UniqueInstanceID("n500").String() + "://app/app/S"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.TryPick(pl, Query{Method: "Costs"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndex(b *testing.B) {
	r := crowd(b, 10_000, P2C)
	for b.Loop() {
		newIndex(1, r.index.Load().peers)
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	for _, policy := range []Policy{P2C, Headroom} {
		r := crowd(t, 100, policy)
		for _, addr := range []string{in("app"), "*://*/app/S", address.UniqueInstanceID("n5").String() + "://app/app/S"} {
			pl := r.Place(address.MustParse(addr))
			tried := []address.InstanceID{address.UniqueInstanceID("n7")}
			if n := testing.AllocsPerRun(100, func() {
				c, err := r.TryPick(pl, Query{Method: "Costs", Tried: tried})
				if err != nil {
					t.Fatal(err)
				}
				c.Abandon()
			}); n != 0 {
				t.Errorf("%s, %s: %v allocations", policy, addr, n)
			}
		}
	}
}
