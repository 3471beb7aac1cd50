package metrics

import (
	"errors"
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// links is a source of links that a test changes.
type links map[int]*Link

func (ls links) list() []Link {
	var all []Link
	for _, l := range ls {
		all = append(all, *l)
	}
	return all
}

// One of two links of a peer ends: what it has carried stays in the peer's sums.
func TestOneOfTwoLinksEnds(t *testing.T) {
	ls := links{
		1: {ID: 1, Peer: "worker-1", BytesIn: 100, BytesOut: 10, PacketsIn: 4, PacketsOut: 2, RTT: 2 * time.Millisecond, Queued: 1},
		2: {ID: 2, Peer: "worker-1", BytesIn: 1000, BytesOut: 50, PacketsIn: 7, PacketsOut: 3, RTT: 5 * time.Millisecond, Queued: 2},
		3: {ID: 3, Peer: "client", BytesIn: 5},
	}
	m := New(Options{Links: ls.list})
	const in, out = "conduit_link_bytes_total{direction=in,peer=worker-1}", "conduit_link_bytes_total{direction=out,peer=worker-1}"
	scrape(t, m).want(t, "conduit_link", page{
		in: 1100, out: 60,
		"conduit_link_packets_total{direction=in,peer=worker-1}":  11,
		"conduit_link_packets_total{direction=out,peer=worker-1}": 5,
		"conduit_link_open{peer=worker-1}":                        2,
		"conduit_link_queued_calls{peer=worker-1}":                3,
		"conduit_link_rtt_seconds{peer=worker-1}":                 0.005,
		"conduit_link_bytes_total{direction=in,peer=client}":      5,
		"conduit_link_bytes_total{direction=out,peer=client}":     0,
		"conduit_link_packets_total{direction=in,peer=client}":    0,
		"conduit_link_packets_total{direction=out,peer=client}":   0,
		"conduit_link_open{peer=client}":                          1,
		"conduit_link_queued_calls{peer=client}":                  0,
	})

	last := *ls[2]
	delete(ls, 2)
	if p := scrape(t, m); p[in] != 1100 || p[out] != 60 || p["conduit_link_open{peer=worker-1}"] != 1 {
		t.Errorf("after the end of a link: %v", p.of("conduit_link"))
	}
	last.BytesIn += 23 // since the last scrape
	m.LinkEnded(last)
	ls[1].BytesIn++
	for range 4 {
		if p := scrape(t, m); p[in] != 1124 || p[out] != 60 {
			t.Errorf("with the link's last numbers: %v", p.of("conduit_link_bytes"))
		}
	}

	// The last link ends: its series go, and begin anew with the next.
	delete(ls, 1)
	if p := scrape(t, m); len(p.of(in)) != 0 {
		t.Errorf("a peer without a link has series: %v", p.of("conduit_link"))
	}
	ls[4] = &Link{ID: 4, Peer: "worker-1", BytesIn: 3}
	if p := scrape(t, m); p[in] != 3 {
		t.Errorf("after its return: %v", p.of(in))
	}
}

// A link that came and went between two scrapes is counted, as long as its peer
// has another.
func TestLinkThatNoScrapeSaw(t *testing.T) {
	ls := links{1: {ID: 1, Peer: "client", BytesIn: 1}}
	m := New(Options{Links: ls.list})
	const in = "conduit_link_bytes_total{direction=in,peer=client}"
	m.LinkEnded(Link{ID: 2, Peer: "client", BytesIn: 10})
	if p := scrape(t, m); p[in] != 11 {
		t.Errorf("%v", p.of(in))
	}
	m.LinkEnded(Link{ID: 3, Peer: "client", BytesIn: 100})
	if p := scrape(t, m); p[in] != 111 {
		t.Errorf("%v", p.of(in))
	}
	if n := len(m.scrapes.links.groups["client"].sources); n != 1 {
		t.Errorf("%d links are remembered one by one, and one is open", n)
	}
}

// However links come, count, go and are scraped: while a peer has one, its sums do
// not fall, and with the last numbers of every link they are exact.
func TestSumsNeverFall(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l ledger[string, int]
		open := map[int]totals{}
		unreported := map[int]totals{} // gone, and the last word still to come
		next, looks := 0, 0
		goneAt := map[int]int{}
		var truth totals // of all links ever, since one is always open
		open[next] = totals{}
		last := totals{}
		for range 300 {
			switch r.IntN(5) {
			case 0:
				next++
				open[next] = totals{}
			case 1:
				if len(open) > 1 {
					for id, n := range open {
						delete(open, id)
						unreported[id], goneAt[id] = n, looks
						break
					}
				}
			case 2:
				for id, n := range open {
					add := totals{float64(r.IntN(1000)), float64(r.IntN(10)), 1, float64(r.IntN(2))}
					n.add(add)
					truth.add(add)
					open[id] = n
					break
				}
			case 3:
				l.begin()
				for id, n := range open {
					l.feed("p", id, n)
				}
				sum := l.finish()["p"]
				for i := range sum {
					if sum[i] < last[i] {
						t.Fatalf("seed %d: a sum fell from %v to %v", seed, last, sum)
					}
				}
				last = sum
				looks++
			}
			for id, n := range unreported { // soon: at the latest when one look has missed it
				if r.IntN(2) == 0 || looks > goneAt[id] {
					l.end("p", id, n)
					delete(unreported, id)
				}
			}
		}
		for id, n := range unreported {
			l.end("p", id, n)
		}
		l.begin()
		for id, n := range open {
			l.feed("p", id, n)
		}
		if sum := l.finish()["p"]; sum != truth {
			t.Fatalf("seed %d: the sum is %v, the links have counted %v", seed, sum, truth)
		}
	}
}

// What links did is not forgotten between two of them: not that of clients, and not
// that of an instance that is known as a peer, alive or not.
func TestLinksThatAllHaveEnded(t *testing.T) {
	ls := links{}
	peers := []Peer{{Name: "worker-1"}, {Name: "worker-9"}}
	m := New(Options{Links: ls.list, Peers: func() []Peer { return peers }})
	scrape(t, m).want(t, "conduit_link", page{}) // nobody has had a link
	m.LinkEnded(Link{ID: 1, Peer: Clients, BytesIn: 10})
	m.LinkEnded(Link{ID: 2, Peer: "worker-1", BytesIn: 20})
	m.LinkEnded(Link{ID: 3, Peer: "stranger", BytesIn: 30})
	for range 3 {
		p := scrape(t, m)
		p.want(t, "conduit_link_open", page{"conduit_link_open{peer=client}": 0, "conduit_link_open{peer=worker-1}": 0})
		if c, w := p["conduit_link_bytes_total{direction=in,peer=client}"], p["conduit_link_bytes_total{direction=in,peer=worker-1}"]; c != 10 || w != 20 {
			t.Errorf("clients: %v, worker-1: %v", c, w)
		}
	}
	ls[4] = &Link{ID: 4, Peer: "worker-1", BytesIn: 3}
	if got := scrape(t, m)["conduit_link_bytes_total{direction=in,peer=worker-1}"]; got != 23 {
		t.Errorf("with the next link: %v", got)
	}
	delete(ls, 4)
	peers = nil
	if got := scrape(t, m).of("conduit_link_open{peer=worker-1"); len(got) != 0 {
		t.Errorf("who is no peer any more is shown: %v", got)
	}
}

func TestDials(t *testing.T) {
	ls := links{1: {ID: 1, Peer: "worker-1"}}
	peers := []Peer{{Name: "worker-2"}}
	m := New(Options{Links: ls.list, Peers: func() []Peer { return peers }})
	broken := errors.New("dial tcp 192.0.2.7:7400: connection refused")
	m.Dialled("worker-1", nil)
	m.Dialled("worker-2", broken)
	m.Dialled("worker-2", broken)
	m.Dialled("worker-3", nil) // not listed yet
	m.Dialled("", broken)
	dials := func(peer string, ok, failed float64) page {
		return page{
			"conduit_link_dials_total{peer=" + peer + ",result=ok}":    ok,
			"conduit_link_dials_total{peer=" + peer + ",result=error}": failed,
		}
	}
	all := func(ps ...page) page {
		sum := page{}
		for _, p := range ps {
			maps.Copy(sum, p)
		}
		return sum
	}
	scrape(t, m).want(t, "conduit_link_dials", all(dials("worker-1", 1, 0), dials("worker-2", 0, 2), dials("worker-3", 1, 0), dials("unknown", 0, 1)))
	ls[3] = &Link{ID: 3, Peer: "worker-3"}
	peers = nil
	scrape(t, m)
	scrape(t, m).want(t, "conduit_link_dials", all(dials("worker-1", 1, 0), dials("worker-3", 1, 0), dials("unknown", 0, 1)))
}
