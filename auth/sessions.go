package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
)

const (
	// pollEvery is how often the store's generation is asked for, and pollPatience
	// how long one answer may take. staleGrace is how long sessions of which one
	// may have been revoked go on while the store does not say which: the bound
	// on a revocation is about the sum of the three, and one poll when all is well.
	pollEvery = 250 * time.Millisecond
	// soon is how long a store that tells of a move is left alone, so that many moves
	// cost one question.
	soon         = 20 * time.Millisecond
	pollPatience = 500 * time.Millisecond
	staleGrace   = 500 * time.Millisecond
	expireEvery  = time.Second
	touchEvery   = time.Minute
	sweepEvery   = time.Hour
	// sweepAge is how long a session is kept after its end, so that who comes
	// with it hears "expired" rather than "unknown".
	sweepAge = 24 * time.Hour

	lookupPatience = 2 * time.Second
	maxLookups     = 64
	maxLinkLookups = 8

	// badFor is how long a secret that was refused is refused again without
	// asking the store.
	badFor     = 2 * time.Second
	shards     = 64
	badInShard = 64

	defaultMaxCached = 64 << 10
)

// SessionsOptions are what [NewSessions] needs. Store must be set.
type SessionsOptions struct {
	Store Store
	// Anonymous lets requests without a credential in (cluster.anonymous).
	Anonymous bool
	// Attempts limits bad secrets by address in Authenticate; nil = does not.
	Attempts *Attempts
	// From returns the address that a request comes from; nil = [From].
	From func(*http.Request) netip.Addr
	// MaxCached is how many sessions are remembered; 0 = 65536. More are valid
	// as well, and looked up again.
	MaxCached int
	// Now is the clock by which sessions expire; nil = time.Now.
	Now func() time.Time
	// Log takes when the store is lost and found; nil = nothing.
	Log *slog.Logger
}

// Grant is what a valid session, or its absence, gives. It is a value.
type Grant struct {
	Principal
	// Instance is the one instance that may use the session; zero = no instance.
	Instance address.InstanceID
	// Session is the session's id; zero for anonymous.
	Session SessionID
	// Expires is when it ends, if it is not used before; zero for anonymous.
	Expires time.Time

	key  secretKey
	user UserID
}

// ForInstance says whether the peer with this id may own a link with the grant:
// a session of an instance is of no use to anybody else. It is asked once the
// peer's Hello has said who it is.
func (g Grant) ForInstance(id address.InstanceID) *conduit.Error {
	switch {
	case g.Instance.IsZero() || g.Instance == id:
		return nil
	default:
		return denied("the session is bound to another instance")
	}
}

// Stats counts what a Sessions has done since it was made.
type Stats struct {
	// Cached and Refused are how many sessions, and refused secrets, are
	// remembered now.
	Cached, Refused int
	// Hits were answered from memory, Lookups by the store, and Overloaded by
	// nobody.
	Hits, Lookups, Overloaded uint64
	// OK, Denied and Failed are the checks of credentials that were asked for, by how
	// they ended: the credential is good, it is not (or there is none where one is
	// needed), or nobody could tell.
	OK, Denied, Failed uint64
	// Down says that the store could not be asked when it was tried last.
	Down bool
}

// secretKey is the SHA-256 of a secret: looking it up tells by its time nothing
// of the secrets that are there, and memory holds none.
type secretKey [sha256.Size]byte

// Sessions validates secrets for an instance, from memory where it can. What it
// remembers of a session holds until the session's end, or until the store's
// generation moves: then those whom the moves were about are compared with the store,
// at once, and all where it cannot tell. The generation is asked for four times a second,
// and at once when a [Teller] says that it has moved.
//
// A store that cannot be asked changes nothing for sessions that are remembered,
// until they end by their time; all else is refused as unavailable.
//
// All methods may be called concurrently.
type Sessions struct {
	o      SessionsOptions
	cancel context.CancelFunc
	ctx    context.Context //nolint:containedctx // lookups belong to the Sessions, not to the first who waits for one
	wg     sync.WaitGroup
	start  time.Time // of the monotonic clock

	// generation is the one that the sessions in shards are to be compared with;
	// epoch counts how often everything was forgotten.
	generation, epoch atomic.Uint64
	down              atomic.Bool
	perShard          int
	shards            [shards]shard

	mu      sync.Mutex
	closed  bool
	flights map[secretKey]*flight
	perLink map[string]int

	lookups, overloaded atomic.Uint64
	// Checks that were not answered by a hit, which its shard counts.
	found, denied, failed atomic.Uint64

	malformed *conduit.Error
	bound     *conduit.Error
}

type shard struct {
	mu      sync.RWMutex
	entries map[secretKey]*entry
	bad     map[secretKey]refused
	// watchers are of sessions that have an entry.
	watchers map[secretKey]map[*watch]struct{}
	hits     atomic.Uint64
}

// entry is a session that is remembered. What becomes of the session is another entry, so
// a hit takes no second pointer.
type entry struct {
	seen atomic.Int64 // when it was last used, in ns of Unix time
	validity
}

// validity is immutable.
type validity struct {
	until      int64 // Grant.Expires in ns of Unix time
	grant      Grant
	life       time.Duration
	generation uint64
}

func newEntry(v *validity, seen int64) *entry {
	e := &entry{validity: *v}
	e.seen.Store(seen)
	return e
}

type watch struct{ ended func(*conduit.Error) }

// refused is a secret that was refused, until a moment of the monotonic clock:
// the other one may jump back.
type refused struct {
	err   *conduit.Error
	until time.Duration
	// ended keeps a lookup that had read the session before its end from
	// remembering it.
	ended bool
}

// flight is a lookup that is under way; grant and err are set when done is closed.
type flight struct {
	done  chan struct{}
	grant Grant
	err   *conduit.Error
}

// NewSessions starts validating; Close ends it. A store that cannot be asked is
// no error: it may come.
func NewSessions(o SessionsOptions) *Sessions {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.From == nil {
		o.From = From
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sessions{
		o: o, start: time.Now(), flights: map[secretKey]*flight{}, perLink: map[string]int{},
		perShard:  max(orDefault(max(o.MaxCached, 0), defaultMaxCached)/shards, 1),
		malformed: malformedSecret(),
		bound:     denied("the session is an instance's: it opens links, and no call runs as it"),
	}
	for i := range s.shards {
		s.shards[i].entries, s.shards[i].bad = map[secretKey]*entry{}, map[secretKey]refused{}
		s.shards[i].watchers = map[secretKey]map[*watch]struct{}{}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	p := &poller{s: s, moved: make(chan struct{}, 1)}
	p.poll()
	s.wg.Go(p.run)
	if t, ok := o.Store.(Teller); ok {
		s.wg.Go(func() { t.Tell(s.ctx, p.tell) })
	}
	return s
}

// Close ends what runs in the background and waits for it. Lookups that are
// under way fail. It does not close the store.
func (s *Sessions) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// StoreID returns the id of the store, for Hello and the header Conduit-Auth-Store.
func (s *Sessions) StoreID() StoreID { return s.o.Store.ID() }

// Stats returns the counts.
func (s *Sessions) Stats() Stats {
	st := Stats{Lookups: s.lookups.Load(), Overloaded: s.overloaded.Load(), Down: s.down.Load()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.RLock()
		st.Cached, st.Refused = st.Cached+len(sh.entries), st.Refused+len(sh.bad)
		sh.mu.RUnlock()
		st.Hits += sh.hits.Load()
	}
	st.OK, st.Denied, st.Failed = st.Hits+s.found.Load(), s.denied.Load(), s.failed.Load()
	return st
}

// Cached returns what is remembered of a secret, without asking anybody and
// without allocating, so that a link's reader may call it. If known is false,
// only [Sessions.Validate] can tell. The secret is not kept.
func (s *Sessions) Cached(secret []byte) (g Grant, err *conduit.Error, known bool) {
	v, err, known := s.find(secret)
	if v == nil {
		return Grant{}, s.tell(err), known
	}
	return v.grant, nil, true
}

// CachedAs is Cached for a call that wants to run as a session: see [SessionFunc].
func (s *Sessions) CachedAs(secret []byte) (p Principal, err *conduit.Error, known bool) {
	v, err, known := s.find(secret)
	switch {
	case v == nil:
		return Principal{}, s.tell(err), known
	case !v.grant.Instance.IsZero():
		return Principal{}, s.bound, true
	}
	return v.grant.Principal, nil, true
}

// tell counts a check that ended with an error, and returns it; nil is none.
func (s *Sessions) tell(err *conduit.Error) *conduit.Error {
	switch {
	case err == nil:
	case err.Code == conduit.Unauthenticated || err.Code == conduit.PermissionDenied:
		s.denied.Add(1)
	default:
		s.failed.Add(1)
	}
	return err
}

// find returns what is remembered of a secret: a validity, an error, or neither.
func (s *Sessions) find(secret []byte) (v *validity, err *conduit.Error, known bool) {
	var raw [secretSize]byte
	if len(secret) != SecretLen || !unhex(raw[:], secret) {
		return nil, s.malformed, true
	}
	// What is remembered passed the check of its CRC once.
	if v, err, known = s.cached(sha256.Sum256(raw[:])); !known && !checks(&raw) {
		return nil, s.malformed, true
	}
	return v, err, known
}

func (s *Sessions) cached(key secretKey) (*validity, *conduit.Error, bool) {
	sh := s.shard(key)
	sh.mu.RLock()
	e := sh.entries[key]
	if e == nil {
		bad, ok := sh.bad[key]
		sh.mu.RUnlock()
		if ok && time.Since(s.start) < bad.until {
			return nil, bad.err, true
		}
		return nil, nil, false
	}
	sh.mu.RUnlock()
	now := s.o.Now().UnixNano()
	if now >= e.until {
		return nil, nil, false // another instance may have moved its expiry
	}
	// All readers would fight for this word if each of them wrote it.
	if age := now - e.seen.Load(); age > int64(time.Second) || age < 0 {
		e.seen.Store(now)
	}
	sh.hits.Add(1)
	return &e.validity, nil, true
}

func (s *Sessions) shard(key secretKey) *shard { return &s.shards[key[0]%shards] }

// As returns the SessionFunc of a link, which waits for the store until ctx ends.
func (s *Sessions) As(ctx context.Context, link string) SessionFunc {
	return func(secret []byte) (Principal, *conduit.Error) {
		g, err := s.Validate(ctx, secret, link)
		if err == nil && !g.Instance.IsZero() {
			return Principal{}, s.bound
		}
		return g.Principal, err
	}
}

// Validate returns what a secret grants, and asks the store if it must: once for
// all who ask for the same secret at the same time, for at most 64 secrets at
// once, and for eight of one link. Link is any name of what the secret came on.
//
// The reasons of its errors are unauthenticated, session_expired, overloaded (too
// many lookups), store_unavailable, and those of ctx. The outcome is Refused, and
// the error holds nothing of the secret, which is not kept.
func (s *Sessions) Validate(ctx context.Context, secret []byte, link string) (Grant, *conduit.Error) {
	var raw [secretSize]byte
	if !decodeSecret(&raw, secret) {
		return Grant{}, s.tell(s.malformed)
	}
	key := secretKey(sha256.Sum256(raw[:]))
	switch v, err, known := s.cached(key); {
	case v != nil:
		return v.grant, nil
	case known:
		return Grant{}, s.tell(err)
	}
	f, err := s.fly(key, secretOf(raw), link) //nolint:contextcheck // a lookup outlives who began it: others wait for it
	if err != nil {
		return Grant{}, s.tell(err)
	}
	select {
	case <-f.done:
		if f.err == nil {
			s.found.Add(1)
		}
		return f.grant, s.tell(f.err)
	case <-ctx.Done():
		return Grant{}, s.tell(conduit.FromContext(ctx, conduit.Refused))
	}
}

// fly joins the lookup of a secret, or begins it.
func (s *Sessions) fly(key secretKey, secret Secret, link string) (*flight, *conduit.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[key]; f != nil {
		return f, nil
	}
	switch {
	case s.closed || s.down.Load():
		return nil, callerError(ErrStoreUnavailable(nil, "the auth store is not there"))
	case len(s.flights) >= maxLookups || s.perLink[link] >= maxLinkLookups:
		s.overloaded.Add(1)
		e := refusal(conduit.ResourceExhausted, conduit.ReasonOverloaded, "too many sessions are being looked up; try again")
		e.Retryable, e.RetryAfter = true, 100*time.Millisecond
		return nil, e
	}
	f := &flight{done: make(chan struct{})}
	s.flights[key] = f
	s.perLink[link]++
	s.wg.Go(func() {
		f.grant, f.err = s.lookup(key, secret)
		s.mu.Lock()
		delete(s.flights, key)
		if s.perLink[link]--; s.perLink[link] == 0 {
			delete(s.perLink, link)
		}
		s.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// lookup asks the store, and remembers what it says.
func (s *Sessions) lookup(key secretKey, secret Secret) (Grant, *conduit.Error) {
	ctx, cancel := context.WithTimeout(s.ctx, lookupPatience)
	defer cancel()
	for range 5 {
		epoch := s.epoch.Load()
		s.lookups.Add(1)
		f, err := s.o.Store.Find(ctx, secret)
		if isReason(err, conduit.ReasonSessionNotFound) || isReason(err, conduit.ReasonUserNotFound) {
			return Grant{}, s.refuse(key, denied("there is no such session"))
		}
		if err != nil {
			if ctx.Err() != nil {
				err = ErrStoreUnavailable(err, "the auth store does not answer")
			}
			return Grant{}, callerError(err)
		}
		if id := SessionIDOf(f.User.Stamp.view(), secret); subtle.ConstantTimeCompare(id[:], f.Session.ID[:]) == 0 {
			return Grant{}, s.refuse(key, denied("there is no such session"))
		}
		v, bad := judge(key, f, s.o.Now())
		if bad != nil {
			return Grant{}, s.refuse(key, bad)
		}
		if s.remember(key, v, epoch) {
			return v.grant, nil
		}
		// Revocations came between: what was found may be revoked by now.
	}
	return Grant{}, callerError(ErrStoreUnavailable(nil, "the auth store keeps changing"))
}

// judge says whether what a store has found is a right to call.
func judge(key secretKey, f Found, now time.Time) (*validity, *conduit.Error) {
	u, session := f.User, f.Session
	switch {
	case u.Disabled || session.User != u.ID || session.ID.IsZero():
		return nil, denied("there is no such session")
	case checkLevel(u.Name, u.Level) != nil || (u.Level == conduit.System) == session.Instance.IsZero():
		// What nobody could have made here: whoever wrote it gets nothing for it.
		return nil, denied("the session is not valid")
	case session.ExpiredAt(now):
		return nil, expired()
	}
	return &validity{
		grant: Grant{Principal: u.Principal(), Session: session.ID, Instance: session.Instance, Expires: session.Expires, key: key, user: u.ID},
		until: session.Expires.UnixNano(), life: session.Life, generation: f.Generation,
	}, nil
}

func expired() *conduit.Error {
	return refusal(conduit.Unauthenticated, conduit.ReasonSessionExpired, "the session has expired; log in again")
}

func revoked() *conduit.Error {
	return refusal(conduit.Unauthenticated, conduit.ReasonSessionExpired, "the session has been ended; log in again")
}

// remember keeps a validity, unless it is of before a change of which is known.
func (s *Sessions) remember(key secretKey, v *validity, epoch uint64) bool {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if epoch != s.epoch.Load() || v.generation < s.generation.Load() {
		return false
	}
	if bad := sh.bad[key]; bad.ended && time.Since(s.start) < bad.until {
		return false
	}
	delete(sh.bad, key)
	if sh.entries[key] == nil {
		sh.makeRoom(s.perShard)
	}
	sh.entries[key] = newEntry(v, s.o.Now().UnixNano())
	return true
}

// makeRoom forgets some session that nobody watches; the order of a map is as
// good as any, and no caller can choose it.
func (sh *shard) makeRoom(most int) {
	if len(sh.entries) < most {
		return
	}
	for key := range sh.entries {
		if len(sh.watchers[key]) == 0 {
			delete(sh.entries, key)
			return
		}
	}
}

// refuse remembers that a secret was refused.
func (s *Sessions) refuse(key secretKey, err *conduit.Error) *conduit.Error {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.refuse(key, refused{err: err, until: time.Since(s.start) + badFor})
	return err
}

// refuse is called with the shard's lock held.
func (sh *shard) refuse(key secretKey, r refused) {
	if len(sh.bad) >= badInShard {
		for k := range sh.bad {
			delete(sh.bad, k)
			break
		}
	}
	sh.bad[key] = r
}

// forget forgets a session, and returns who watches it. It is called with the shard's lock
// held.
func (sh *shard) forget(key secretKey) map[*watch]struct{} {
	watchers := sh.watchers[key]
	delete(sh.entries, key)
	delete(sh.watchers, key)
	return watchers
}

// Ended forgets the session of a grant, and tells who watches it: for whoever has
// just revoked it in the store, and would otherwise see it go on here until the
// store is polled. It must have been revoked. An anonymous grant is none.
func (s *Sessions) Ended(g Grant) {
	if g.Session.IsZero() {
		return
	}
	sh := s.shard(g.key)
	sh.mu.Lock()
	sh.refuse(g.key, refused{err: denied("there is no such session"), until: time.Since(s.start) + badFor, ended: true})
	watchers := sh.forget(g.key)
	sh.mu.Unlock()
	for w := range watchers {
		w.ended(revoked())
	}
}

// Watch has ended called once when the grant's session ends: at its time, or
// within about a second of being revoked. A link or a stream that stays open
// without calling learns of it in no other way. ended must not block; it is
// called by the Sessions' own goroutine, by who calls [Sessions.Ended], or by Watch
// before it returns if the session has ended already. stop ends the watching, and does not wait for an
// ended that is under way. Watching is no use of the session. An anonymous grant
// never ends.
func (s *Sessions) Watch(g Grant, ended func(*conduit.Error)) (stop func()) {
	if g.Session.IsZero() {
		return func() {}
	}
	w := &watch{ended}
	sh := s.shard(g.key)
	sh.mu.Lock()
	if sh.entries[g.key] == nil {
		// Forgotten, for want of room or because it ended: it is compared with
		// the store at the next look at expiries, and validates nobody until then.
		sh.makeRoom(s.perShard)
		sh.entries[g.key] = newEntry(&validity{grant: g}, 0)
	}
	if sh.watchers[g.key] == nil {
		sh.watchers[g.key] = map[*watch]struct{}{}
	}
	sh.watchers[g.key][w] = struct{}{}
	sh.mu.Unlock()
	return func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		delete(sh.watchers[g.key], w) // of none, if the session has ended
		if len(sh.watchers[g.key]) == 0 {
			delete(sh.watchers, g.key)
		}
	}
}

// Authenticate returns what a request's credential grants: see [Credential]. A
// request without one is anonymous, if that is allowed. The errors are those of
// Credential and [Sessions.Validate], and too_many_attempts.
func (s *Sessions) Authenticate(r *http.Request) (Grant, error) {
	secret, err := Credential(r.Header)
	from := s.o.From(r)
	if err != nil {
		s.o.Attempts.Bad(from)
		s.denied.Add(1)
		return Grant{}, err
	}
	if secret == "" {
		if !s.o.Anonymous {
			return Grant{}, s.tell(denied("a session's secret is needed: send Authorization: Bearer SECRET"))
		}
		return Grant{Principal: Principal{Level: conduit.Anonymous}}, nil
	}
	if v, _, _ := s.find([]byte(secret)); v != nil {
		return v.grant, nil
	}
	if err := s.o.Attempts.Allow(from); err != nil {
		s.denied.Add(1)
		return Grant{}, err
	}
	g, bad := s.Validate(r.Context(), []byte(secret), from.String())
	if bad != nil {
		// One whose session has ended is no intruder.
		if bad.Code == conduit.Unauthenticated && bad.Reason != conduit.ReasonSessionExpired {
			s.o.Attempts.Bad(from)
		}
		return Grant{}, bad
	}
	return g, nil
}

// connectionAddress is the address of a request's connection.
func connectionAddress(r *http.Request) netip.Addr {
	p, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // a Unix socket, or a test
	}
	return p.Addr()
}

// poller is the Sessions' goroutine and what it alone knows.
type poller struct {
	s *Sessions
	// moved has an element if the store has told of a move.
	moved chan struct{}
	// stale is when it was noticed that the generation moved, until what is
	// remembered has been compared; zero = it has been.
	stale time.Time
	// compared is the generation up to which it has been.
	compared uint64
	// lost is that the store could not be asked since: what is back may be a copy of
	// before, with other moves of the same numbers.
	lost bool
}

func (p *poller) run() {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	expire := time.NewTicker(expireEvery)
	defer expire.Stop()
	touch := time.NewTicker(touchEvery)
	defer touch.Stop()
	sweep := time.NewTimer(rand.N(sweepEvery)) // instances that started together need not sweep together
	defer sweep.Stop()
	var early <-chan time.Time // nil unless the store has told of a move
	for {
		select {
		case <-p.s.ctx.Done():
			return
		case <-poll.C:
			p.poll()
		case <-p.moved:
			if early == nil {
				early = time.After(soon)
			}
		case <-early:
			early = nil
			p.poll()
		case <-expire.C:
			p.expire()
		case <-touch.C:
			p.touch()
		case <-sweep.C:
			p.sweep()
			sweep.Reset(sweepEvery)
		}
	}
}

// tell has the store polled soon. It does not block.
func (p *poller) tell() {
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

// poll asks for the generation, and compares what is remembered of those whom it has
// moved for.
func (p *poller) poll() {
	s := p.s
	ctx, cancel := context.WithTimeout(s.ctx, pollPatience)
	g, err := s.o.Store.Generation(ctx)
	cancel()
	p.note(err)
	switch known := s.generation.Load(); {
	case err != nil && !isReplaced(err):
		p.lost = true
	case err != nil || g < known:
		// Another store, or an older copy of it, was put in its place: nothing
		// that is remembered is worth anything.
		s.epoch.Add(1)
		s.generation.Store(g)
		p.drop(func(*validity) bool { return true })
		p.done(g)
	case g > known:
		s.generation.Store(g)
		if p.stale.IsZero() {
			p.stale = time.Now()
		}
	}
	if p.stale.IsZero() {
		return
	}
	g = s.generation.Load()
	outdated := func(v *validity) bool { return v.generation < g }
	if !p.any(outdated) {
		p.done(g)
		return
	}
	moved, ok := p.moves()
	if ok && !moved.Everyone {
		users := map[UserID]bool{}
		for _, id := range moved.Users {
			users[id] = true
		}
		outdated = func(v *validity) bool { return v.generation < g && users[v.grant.user] }
	}
	switch {
	case ok && p.compare(outdated):
		p.done(g)
	case time.Since(p.stale) >= staleGrace:
		p.drop(outdated)
		p.done(g)
	}
}

// done notes that what is remembered holds at a generation.
func (p *poller) done(g uint64) { p.stale, p.compared, p.lost = time.Time{}, g, false }

// moves asks whom the generation has moved for. It returns false if the store did not say,
// or says so of an earlier one than is known.
func (p *poller) moves() (Moves, bool) {
	if p.lost {
		return Moves{Everyone: true}, true
	}
	ctx, cancel := context.WithTimeout(p.s.ctx, pollPatience)
	defer cancel()
	m, err := p.s.o.Store.Moved(ctx, p.compared)
	return m, err == nil && m.Generation >= p.s.generation.Load()
}

// note keeps and logs whether the store is there.
func (p *poller) note(err error) {
	s := p.s
	if err == nil {
		if s.down.Swap(false) {
			s.o.Log.InfoContext(s.ctx, "the auth store is back")
		}
		return
	}
	if s.ctx.Err() == nil && !s.down.Swap(true) {
		s.o.Log.WarnContext(s.ctx, "the auth store cannot be asked: sessions that are known go on until they expire, others are refused", slog.Any("error", err))
	}
}

// expire forgets sessions that are over, and ends those that are watched, unless
// another instance has moved their expiry.
func (p *poller) expire() {
	now := p.s.o.Now().UnixNano()
	over := func(v *validity) bool { return now >= v.until }
	watched := false
	for i := range p.s.shards {
		sh := &p.s.shards[i]
		sh.mu.Lock()
		for key, e := range sh.entries {
			switch {
			case !over(&e.validity):
			case len(sh.watchers[key]) == 0:
				delete(sh.entries, key)
			default:
				watched = true
			}
		}
		for key, bad := range sh.bad {
			if time.Since(p.s.start) >= bad.until {
				delete(sh.bad, key)
			}
		}
		sh.mu.Unlock()
	}
	if watched && !p.compare(over) {
		p.drop(over)
	}
}

// remembered is a session as it was when it was collected.
type remembered struct {
	key secretKey
	*entry
}

// collect returns what is remembered and fits.
func (p *poller) collect(fits func(*entry) bool) (all []remembered) {
	for i := range p.s.shards {
		sh := &p.s.shards[i]
		sh.mu.RLock()
		for key, e := range sh.entries {
			if fits(e) {
				all = append(all, remembered{key, e})
			}
		}
		sh.mu.RUnlock()
	}
	return all
}

// any says whether something that is remembered fits.
func (p *poller) any(fits func(*validity) bool) bool {
	for i := range p.s.shards {
		sh := &p.s.shards[i]
		sh.mu.RLock()
		for _, e := range sh.entries {
			if fits(&e.validity) {
				sh.mu.RUnlock()
				return true
			}
		}
		sh.mu.RUnlock()
	}
	return false
}

// compare asks the store about every session that fits and applies what it says.
// It returns false if the store did not answer for all of them.
func (p *poller) compare(fits func(*validity) bool) bool {
	s := p.s
	all := p.collect(func(e *entry) bool { return fits(&e.validity) })
	for len(all) > 0 {
		n := min(len(all), MaxBatch)
		ids := make([]SessionID, n)
		for i, r := range all[:n] {
			ids[i] = r.grant.Session
		}
		ctx, cancel := context.WithTimeout(s.ctx, pollPatience)
		found, generation, err := s.o.Store.Recheck(ctx, ids)
		cancel()
		if err != nil || len(found) != n || generation < s.generation.Load() {
			return false
		}
		now := s.o.Now()
		for i, r := range all[:n] {
			found[i].Generation = generation
			v, bad := judge(r.key, found[i], now)
			switch {
			case bad == nil && v.grant.Session == r.grant.Session:
				p.replace(r, v)
			case bad != nil && bad.Reason == conduit.ReasonSessionExpired:
				p.end(r, bad)
			default:
				p.end(r, revoked())
			}
		}
		all = all[n:]
	}
	return true
}

// drop forgets what fits without asking the store, and ends it if it is watched.
func (p *poller) drop(fits func(*validity) bool) {
	now := p.s.o.Now().UnixNano()
	for _, r := range p.collect(func(e *entry) bool { return fits(&e.validity) }) {
		err := revoked()
		if now >= r.until {
			err = expired()
		}
		p.end(r, err)
	}
}

// end forgets a session and tells who watches it, unless it was found valid again
// since it was collected.
func (p *poller) end(r remembered, err *conduit.Error) {
	sh := p.s.shard(r.key)
	sh.mu.Lock()
	if sh.entries[r.key] != r.entry {
		sh.mu.Unlock()
		return
	}
	watchers := sh.forget(r.key)
	sh.mu.Unlock()
	for w := range watchers {
		w.ended(err)
	}
}

// replace has a session remembered as it has become, unless that was done, or it was
// forgotten, since it was collected.
func (p *poller) replace(r remembered, v *validity) {
	sh := p.s.shard(r.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.entries[r.key] == r.entry {
		sh.entries[r.key] = newEntry(v, r.seen.Load())
	}
}

// touch moves the expiries of sessions that were used and have less than half of
// their life left.
func (p *poller) touch() {
	s, now := p.s, p.s.o.Now()
	moved := func(e *entry) time.Time { return milli(time.Unix(0, e.seen.Load()).Add(e.life)) }
	all := p.collect(func(e *entry) bool {
		left := time.Duration(e.until - now.UnixNano())
		return e.life > 0 && left > 0 && left < e.life/2 && moved(e).UnixNano() > e.until
	})
	for len(all) > 0 {
		n := min(len(all), MaxBatch)
		batch := make([]Touch, n)
		for i, r := range all[:n] {
			batch[i] = Touch{ID: r.grant.Session, Seen: milli(time.Unix(0, r.seen.Load())), Expires: moved(r.entry)}
		}
		ctx, cancel := context.WithTimeout(s.ctx, lookupPatience)
		err := s.o.Store.Touch(ctx, now, batch)
		cancel()
		if err != nil {
			return // in a minute again; half a life is left
		}
		for i, r := range all[:n] {
			v := r.validity
			v.grant.Expires, v.until = batch[i].Expires, batch[i].Expires.UnixNano()
			p.replace(r, &v)
		}
		all = all[n:]
	}
}

// sweep has the store forget what was over long ago.
func (p *poller) sweep() {
	for range 16 {
		ctx, cancel := context.WithTimeout(p.s.ctx, lookupPatience)
		n, err := p.s.o.Store.Sweep(ctx, p.s.o.Now().Add(-sweepAge))
		cancel()
		if err != nil || n < MaxBatch {
			return
		}
	}
}
