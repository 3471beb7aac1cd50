package registry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Peer is one instance, reached over one link. When the link is lost the Peer is
// over; a later link to the same instance makes another. All methods may be called
// concurrently.
type Peer struct {
	id    address.InstanceID
	epoch uint64
	url   string
	link  Link

	// off: it gets no new work, for ever; draining and cordoned are as they were
	// last heard.
	off      atomic.Bool
	draining atomic.Bool
	view     atomic.Pointer[view]    // the last Status; nil = none yet
	meta     atomic.Pointer[catalog] // the last answer; not nil once it is a candidate
	heard    atomic.Int64            // when it last said anything, in Unix nanoseconds

	// picked counts the units of all calls that this peer was picked for, and that
	// were not abandoned.
	picked atomic.Uint64

	wake chan struct{} // something is to be looked at by the target's goroutine
	room chan struct{} // the same for its room, which relief asks for at a pace of its own
	away chan string   // the reason of a GoAway
	gone chan struct{} // closed when the peer is over

	aliases map[string]struct{} // other URLs that lead to it; guarded by the registry's mu

	mu   sync.Mutex
	next chan struct{} // closed when the next refresh is over

	changed func() // the registry's: the peer's state is another
	release sync.Once
}

// view is a Status.
type view struct {
	at                                 time.Time // when it came
	available, total, judged, inFlight int64
	cordoned                           bool
	digest                             string
}

func newPeer(url string, changed func()) *Peer {
	return &Peer{
		url: url, wake: make(chan struct{}, 1), room: make(chan struct{}, 1), away: make(chan string, 1), gone: make(chan struct{}), next: make(chan struct{}),
		aliases: map[string]struct{}{}, changed: changed,
	}
}

// Instance returns the peer's InstanceID.
func (p *Peer) Instance() address.InstanceID { return p.id }

// Epoch returns the number that the peer's process chose at its start.
func (p *Peer) Epoch() uint64 { return p.epoch }

// URL returns the URL that its link was dialled at.
func (p *Peer) URL() string { return p.url }

// Link returns the peer's link, for those who pass calls on below [Link.Invoke].
func (p *Peer) Link() Link { return p.link }

// Name returns what the peer's operator named it.
func (p *Peer) Name() string {
	if c := p.meta.Load(); c != nil {
		return c.info.GetName()
	}
	return ""
}

// Refresh asks the peer anew, soon and without waiting: what it said about what it
// hosts has turned out to be outdated.
func (p *Peer) Refresh() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// refreshed is Refresh with a channel that is closed when the answer has come, or
// will not, and for those who see to it themselves that they do not ask too often.
func (p *Peer) refreshed() <-chan struct{} {
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default:
	}
	return next
}

// takeNext returns what is to be closed after the refresh that begins now.
func (p *Peer) takeNext() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.next
	p.next = make(chan struct{})
	return next
}

func (p *Peer) hooks() Hooks {
	return Hooks{Status: p.onStatus, GoAway: p.onGoAway}
}

func (p *Peer) onStatus(s *conduitv1.Status) {
	now := time.Now()
	v := &view{
		at:        now,
		available: units(s.GetAvailable()), total: units(s.GetTotal()), judged: units(s.GetJudged()), inFlight: units(s.GetInFlight()),
		cordoned: s.GetState() == conduitv1.InstanceState_INSTANCE_STATE_CORDONED,
		digest:   string(s.GetDigest()),
	}
	old := p.view.Swap(v)
	p.heard.Store(now.UnixNano())
	drains := s.GetState() == conduitv1.InstanceState_INSTANCE_STATE_DRAINING && !p.draining.Swap(true)
	if drains || (old != nil && old.cordoned) != v.cordoned {
		p.changed()
	}
	if c := p.meta.Load(); c != nil && v.digest != "" && v.digest != c.digest {
		p.Refresh()
	}
}

// units brings a number off the wire into the range in which sums cannot overflow.
func units(n uint64) int64 { return int64(min(n, 1<<60)) }

func (p *Peer) onGoAway(reason string) {
	p.off.Store(true)
	select {
	case p.away <- reason:
	default:
	}
}

// debit is what was sent and not judged yet, or more. v is the peer's view as it
// was loaded before.
func (p *Peer) debit(v *view) (sent, debit int64, picked uint64) {
	// In this order: picked grows with every pick and unsent only after, so no
	// unsent is taken off that picked does not have.
	unsent := p.link.Unsent()
	picked = p.picked.Load()
	sent = int64(picked - unsent)
	return sent, max(sent-v.judged, 0), picked
}

// effective is what may be counted on, at a certain picked.
func (p *Peer) effective(v *view) (effective int64, picked uint64) {
	_, debit, picked := p.debit(v)
	return v.available - debit, picked
}

// take counts n units as sent, if picked still is what it was.
func (p *Peer) take(n uint32, picked uint64) bool {
	return p.picked.CompareAndSwap(picked, picked+uint64(n))
}

// over ends the peer for good.
func (p *Peer) over() {
	p.off.Store(true)
	p.release.Do(func() {
		close(p.gone)
		p.link.Release()
	})
}
