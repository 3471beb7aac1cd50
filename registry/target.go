package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

// The pauses between dials to a URL that has no peer. They depend on nothing but
// time: how many calls want the peer does not make it dialled more often.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// longLife is the life of a link after which the pauses begin anew: a peer that
	// accepts links and drops them is not dialled without end.
	longLife = 5 * time.Second
	// A peer that says again and again that it hosts something else is asked so many
	// times at once, and then once in each pause.
	askBurst = 20
	askPause = 500 * time.Millisecond
)

// target is a URL that discovery names, and the goroutine that dials it.
type target struct {
	r      *Registry
	url    string
	cancel context.CancelCauseFunc

	// Guarded by r.mu.
	state     State
	reason    string
	tried     bool // it has answered once, or has failed to
	withdrawn bool // discovery names it no more
	peer      *Peer
	alias     *Peer     // whose link serves this URL, too
	next      time.Time // of the next dial
	// Of the last link, also when there is none now.
	id    address.InstanceID
	epoch uint64
	last  *catalog
	// goodbye: the process of that id and epoch said that it goes away.
	goodbye bool
}

// verdict is what is to be done after an attempt.
type verdict struct {
	err   error         // why the link is not, or no more, of use
	until chan struct{} // dial again when it is closed, if not nil
	after time.Duration // dial again after it; 0 = by the pauses
	never bool          // do not dial again
	lived time.Duration // of the link
}

// run dials and watches until ctx ends.
func (t *target) run(ctx context.Context) {
	pause := backoff.ExponentialBackOff{InitialInterval: firstPause, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: mostPause}
	pause.Reset()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if t.r.leaves() && !t.missed() {
			<-ctx.Done()
			return
		}
		v := t.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		// Who says goodbye is gone for good: what comes next at the URL is another
		// process, and may come soon. The same one is not linked to again (identify).
		if v.lived >= longLife || errors.Is(v.err, errGoodbye) {
			pause.Reset()
		}
		wait := v.after
		if wait == 0 {
			wait = pause.NextBackOff()
		}
		t.idle(v, wait)
		timer.Reset(wait)
		fire := timer.C
		if v.never || v.until != nil && v.after == 0 {
			fire = nil
		}
		select {
		case <-fire:
		case <-v.until:
		case <-ctx.Done():
			return
		}
	}
}

// missed reports whether there was a peer that did not leave by itself. If not, t is
// noted as one that is dialled no more.
func (t *target) missed() bool {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.last != nil && !t.goodbye {
		return true
	}
	t.tried, t.next = true, time.Time{}
	t.r.touch()
	return false
}

// idle notes when the next dial will be.
func (t *target) idle(v verdict, wait time.Duration) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.next = time.Time{}
	if !v.never && (v.until == nil || v.after > 0) {
		t.next = time.Now().Add(wait)
	}
	t.r.touch()
}

// attempt connects, finds out who is there, and watches the peer until it is over.
func (t *target) attempt(ctx context.Context) verdict {
	r := t.r
	p := newPeer(t.url, nil)
	p.changed = func() { t.changed(p) }
	dial, cancel := context.WithTimeout(ctx, r.o.DialTimeout)
	link, err := r.o.Dialer.Connect(dial, t.url, p.hooks())
	cancel()
	if err != nil && ctx.Err() != nil {
		return verdict{never: true}
	}
	if err != nil {
		t.set(StateUnreachable, reasonOf(err, t.url))
		return verdict{err: err}
	}
	p.link, p.epoch = link, link.Epoch()
	defer p.over()
	began := time.Now()
	if p.id, err = address.ParseInstanceID(link.Instance()); err != nil {
		err = fmt.Errorf("who answers says no InstanceID: %w", err)
		t.set(StateUnreachable, reasonOf(err, t.url))
		return verdict{err: err}
	}
	if v, ok := t.identify(p); !ok {
		return v
	}
	if err := t.ask(ctx, p); err != nil {
		if ctx.Err() != nil {
			return verdict{never: true}
		}
		t.set(StateUnreachable, "it does not say who it is: "+reasonOf(err, t.url))
		return verdict{err: err}
	}
	if v, ok := t.admit(p); !ok {
		return v
	}
	err = t.watch(ctx, p)
	lived := time.Since(began)
	t.remove(p, err)
	if errors.Is(err, errRotated) && lived >= longLife {
		return verdict{err: err, after: time.Millisecond, lived: lived}
	}
	return verdict{err: err, lived: lived}
}

// reasonOf is an error as the reason of a target's state, for people: without what is said
// beside it anyway, which is the URL and that nothing was sent there.
func reasonOf(err error, url string) string {
	e, ok := errors.AsType[*conduit.Error](err)
	switch {
	case !ok:
		return err.Error()
	case e.Message != "":
		return strings.TrimPrefix(e.Message, url+": ")
	case e.Err != nil:
		return e.Err.Error()
	default:
		return e.Code.String()
	}
}

// set changes the state of a target that has no peer.
func (t *target) set(s State, reason string) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.setLocked(s, reason)
}

func (t *target) setLocked(s State, reason string) {
	changed := t.state != s || t.reason != reason || !t.tried
	level := t.r.log.Debug
	if t.state != s && s != StateSelf { // that one is in the list oneself is as it should be
		level = t.r.log.Warn
	}
	t.state, t.reason, t.tried = s, reason, true
	if changed && t.r.targets[t.url] == t {
		level("peer is not in use", "url", t.url, "state", s.String(), "reason", reason)
		t.r.note(EventChanged, t)
	}
}

// identify says who answered, and whether it can be a peer: it is not if it is this
// instance, or one that another URL leads to, or said goodbye.
func (t *target) identify(p *Peer) (verdict, bool) {
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.alias != nil { // it was one until now
		delete(t.alias.aliases, t.url)
		t.alias = nil
	}
	if t.goodbye && t.id == p.id && t.epoch == p.epoch {
		t.setLocked(StateDraining, "it has said goodbye")
		return verdict{}, false
	}
	if t.id != p.id {
		t.last = nil // it was another's
	}
	t.id, t.epoch, t.goodbye = p.id, p.epoch, false
	if p.id == r.o.Self && !r.o.Self.IsZero() {
		if r.o.SelfEpoch == 0 || p.epoch == r.o.SelfEpoch {
			t.setLocked(StateSelf, "")
			return verdict{never: true}, false
		}
		t.setLocked(StateConflict, fmt.Sprintf("it has the id of this instance, %s, and is another process: %s", p.id, howToMend))
		return verdict{after: jitter(r.o.Refresh)}, false
	}
	return t.claim(p)
}

const howToMend = "if its data directory was copied, give the copy an id of its own with: conduit-host id reset"

// claim makes sure that no other URL leads to the instance already. r.mu is held.
func (t *target) claim(p *Peer) (verdict, bool) {
	first := t.r.byID[p.id]
	switch {
	case first == nil || first == p:
		return verdict{}, true
	case first.epoch == p.epoch:
		t.alias = first
		first.aliases[t.url] = struct{}{}
		t.setLocked(stateAlias, "it is the instance of "+first.url)
		return verdict{until: first.gone}, false
	}
	t.setLocked(StateConflict, fmt.Sprintf("%s and %s both are instance %s; the first one is used. %s", first.url, t.url, p.id, howToMend))
	return verdict{until: first.gone, after: jitter(t.r.o.Refresh)}, false
}

// admit makes a peer of who answered, unless another URL was faster.
func (t *target) admit(p *Peer) (verdict, bool) {
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targets[t.url] != t { // withdrawn meanwhile
		return verdict{never: true}, false
	}
	if v, ok := t.claim(p); !ok {
		return v, false
	}
	r.byID[p.id] = p
	r.regroup = true
	r.warnOfName(p)
	t.peer, t.state, t.reason, t.tried, t.last = p, StateAlive, "", true, p.meta.Load()
	r.note(EventAdded, t)
	r.log.Info("peer is alive", "url", t.url, "instance", p.id.String(), "name", t.last.info.GetName())
	return verdict{}, true
}

// warnOfName warns of a peer that has the name of another one. r.mu is held.
func (r *Registry) warnOfName(p *Peer) {
	name := p.Name()
	for _, other := range r.byID {
		if name == "" || other == p || other.Name() != name || other.draining.Load() || other.off.Load() {
			continue
		}
		r.log.Warn("two instances have one name: neither people nor logs can tell them apart; start one of them with another --name",
			"name", name, "url", p.url, "instance", p.id.String(), "other_url", other.url, "other_instance", other.id.String())
		return
	}
}

// remove ends a peer; err says why.
func (t *target) remove(p *Peer, err error) {
	p.off.Store(true)
	defer p.over() // what waits for it dials now
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[p.id] == p {
		delete(r.byID, p.id)
		r.regroup = true
	}
	for url := range p.aliases {
		// They will look for themselves; until then they are not in use.
		if other := r.targets[url]; other != nil && other.alias == p {
			other.alias, other.state, other.reason, other.last = nil, StateUnreachable, reasonOf(err, t.url), t.last
		}
	}
	t.peer = nil
	t.goodbye = t.goodbye || p.draining.Load()
	t.state, t.reason = StateUnreachable, reasonOf(err, t.url)
	if t.goodbye {
		t.state = StateDraining
	}
	if r.targets[t.url] == t {
		r.log.Info("peer is gone", "url", t.url, "instance", p.id.String(), "reason", t.reason)
		r.note(EventRemoved, t)
		if t.withdrawn {
			r.dropWithdrawn()
		}
	}
	r.touch()
}

// changed tells subscribers that a peer has said something of its state.
func (t *target) changed(p *Peer) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.peer == p {
		t.r.note(EventChanged, t)
	}
}

var (
	errLinkLost = errors.New("the link was lost")
	errGoodbye  = errors.New("it has said goodbye")
	// errRotated: the peer wants a new link, but does not go away.
	errRotated = errors.New("it asked for a new link")
)

// stopped says why a target's ctx has ended, for people: whoever ends Run's gives no
// reason that says more.
func stopped(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errWithdrawn) {
		return cause
	}
	return errStopping
}

// watch asks a peer from time to time until it is over, and says why it is.
//
// Questions that follow from what the peer says come after a pause, once there have
// been many: what it says may be another thing each time.
func (t *target) watch(ctx context.Context, p *Peer) error {
	timer := time.NewTimer(jitter(t.r.o.Refresh))
	defer timer.Stop()
	questions := rate.NewLimiter(rate.Every(askPause), askBurst)
	wake := p.wake // nil while a question waits for its pause
	for {
		select {
		case <-ctx.Done():
			return stopped(ctx)
		case <-p.link.Done():
			return errLinkLost
		case reason := <-p.away:
			return t.farewell(ctx, p, reason)
		case <-timer.C:
			wake = p.wake
		case <-p.room:
		case <-wake:
			if rest := questions.Reserve().Delay(); rest > 0 {
				wake = nil
				timer.Reset(rest)
				continue
			}
		}
		if err := t.ask(ctx, p); err != nil {
			select {
			case <-p.link.Done():
				return errLinkLost
			case <-ctx.Done():
				return stopped(ctx)
			default:
			}
			return fmt.Errorf("it did not answer: %w", err)
		}
		if wake != nil { // else it is set for the end of the pause
			timer.Reset(jitter(t.r.o.Refresh))
		}
	}
}

// farewell keeps a peer that goes away in sight, without new work, until its link
// ends: calls under way go on there.
func (t *target) farewell(ctx context.Context, p *Peer, reason string) error {
	if reason != conduit.ReasonDraining {
		return errRotated
	}
	p.draining.Store(true)
	t.r.mu.Lock()
	t.goodbye = true
	t.reason = errGoodbye.Error()
	if t.peer == p {
		t.r.note(EventChanged, t)
	}
	t.r.mu.Unlock()
	select {
	case <-ctx.Done():
		return stopped(ctx)
	case <-p.link.Done():
		return errGoodbye
	}
}

// ask asks a peer who it is.
func (t *target) ask(ctx context.Context, p *Peer) error {
	answered := p.takeNext()
	defer close(answered)
	ctx, cancel := context.WithTimeout(ctx, t.r.o.RefreshTimeout)
	defer cancel()
	had := p.meta.Load()
	if had == nil {
		t.r.mu.Lock()
		had = t.last // of an earlier link to the same instance
		t.r.mu.Unlock()
	}
	var digest []byte
	if had != nil {
		digest = []byte(had.digest)
	}
	info, err := p.link.WhoAreYou(ctx, digest)
	if err != nil {
		return err
	}
	if got := info.GetInstance(); got != "" && got != p.link.Instance() {
		return fmt.Errorf("its Hello said %s, and now it says that it is %s", p.link.Instance(), got)
	}
	p.heard.Store(time.Now().UnixNano())
	if err := checkInfo(info); err != nil {
		return err
	}
	switch {
	case !info.GetUnchanged():
		had = newCatalog(info, &t.r.shapes)
	case had == nil:
		return errors.New("it says that nothing has changed, and nothing was known")
	case string(info.GetDigest()) != had.digest:
		return errors.New("it says that nothing has changed, with another digest")
	}
	if p.meta.Swap(had) == had {
		return nil
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.last = had
	if t.peer == p {
		t.r.regroup = true
		t.r.note(EventChanged, t)
	}
	return nil
}

// jitter returns d, up to a fifth longer or shorter.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5+1)
}
