package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/gateway"
	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/frame"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/metrics"
	"github.com/elemental-conduit/conduit/internal/router"
)

const (
	// lookupPatience bounds the wait of a parked call for its session. The store's own
	// patience is shorter; this is for a call whose lookup was joined late.
	lookupPatience = 5 * time.Second
	// expelGrace is what calls under way on a link have to end once its session has,
	// and again to hear why they are cancelled.
	expelGrace = 500 * time.Millisecond
	// instanceLife is the least life of an instance's own session: one of less than
	// some minutes could end between two looks at it, and the links that it opened
	// with it.
	instanceLife = 10 * time.Minute
	// keepEvery is how often an instance looks at its session, at least; a session that
	// is looked at is in use, so that it does not expire.
	keepEvery = 30 * time.Second
	// leaveGrace bounds what an instance does for the store when it stops.
	leaveGrace = time.Second
)

// access is who may do what at the doors of an instance: its auth store, the
// sessions that it has seen, and its own. With auth.mode disabled it has neither,
// and everybody is superuser. All methods may be called concurrently.
type access struct {
	log      hclog.Logger
	audit    *audit
	store    auth.Store
	sessions *auth.Sessions // nil = auth.mode is disabled
	accounts *auth.Accounts
	// instances mints the sessions of instances.
	instances *auth.Accounts
	name      string
	id        address.InstanceID

	// own is this instance's session, which its links to others are opened with.
	own   atomic.Pointer[auth.Minted]
	ended chan struct{} // the session own may have ended

	tenants tenants

	ctx    context.Context //nolint:containedctx // lookups belong to no call
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // added to under mu while not closed
}

// openAccess opens the auth store, which it makes if there is none, and a session of
// this instance's own.
func openAccess(ctx context.Context, c *config.Config, id address.InstanceID, log hclog.Logger) (*access, error) {
	a := &access{log: log.Named("auth"), audit: newAudit(log), name: c.String("name"), id: id, ended: make(chan struct{}, 1)}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if c.String("auth.mode") == "disabled" {
		return a, nil
	}
	store, err := openStore(ctx, c, true)
	if err != nil {
		return nil, storeFault(err)
	}
	attempts := auth.NewAttempts(auth.AttemptsOptions{})
	o := auth.AccountsOptions{Store: store, Hasher: auth.NewHasher(auth.PasswordCost{}, 0), Life: c.Duration("auth.session_timeout"), Attempts: attempts}
	a.store, a.accounts = store, auth.NewAccounts(o)
	o.Life = max(o.Life, instanceLife)
	a.instances = auth.NewAccounts(o)
	if err := a.mint(ctx); err != nil {
		_ = store.Close()
		return nil, storeFault(err)
	}
	a.sessions = auth.NewSessions(auth.SessionsOptions{ //nolint:contextcheck // it lives longer than the start
		Store: store, Anonymous: c.Bool("cluster.anonymous"), Attempts: attempts, Log: slogTo(a.log),
	})
	return a, nil
}

// storeFault is the error of an instance that cannot start for its store.
func storeFault(err error) error {
	if e, ok := errors.AsType[*conduit.Error](err); ok && e.Reason == reasonConfig {
		return err
	}
	if e, ok := errors.AsType[*conduit.Error](err); ok && e.Reason == conduit.ReasonStoreUnavailable {
		return err // it may come: no fault of the configuration
	}
	return configf("auth.store: %s", errorMessage(conduit.AsError(err, conduit.NotSent)))
}

// close ends the instance's own session and all that waits for the store. What asks
// for a session from then on is told that there is no store.
func (a *access) close(ctx context.Context) {
	a.mu.Lock()
	was := a.closed
	a.closed = true
	a.mu.Unlock()
	if was {
		return
	}
	a.cancel()
	if a.sessions != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveGrace)
		defer cancel()
		if err := a.accounts.Revoke(ctx, a.own.Load().Session.ID); err != nil {
			a.log.Debug("this instance's session goes on until it expires", "error", err)
		}
		a.sessions.Close()
	}
	a.work.Wait()
	if a.store != nil {
		_ = a.store.Close()
	}
	a.audit.close()
}

// spawn runs something that close waits for, unless it has been called.
func (a *access) spawn(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.work.Go(f)
	return true
}

// storeID is the store's, for Hello; empty where there is none.
func (a *access) storeID() string {
	if a.sessions == nil {
		return ""
	}
	return a.sessions.StoreID().String()
}

// mint makes a session of this instance's own, in place of the one that it has.
func (a *access) mint(ctx context.Context) error {
	m, err := a.instances.MintInstance(ctx, a.name, a.id)
	if err != nil {
		return err
	}
	a.own.Store(&m)
	return nil
}

// secret returns the secret that links to other instances are opened with.
func (a *access) secret() string {
	if m := a.own.Load(); m != nil {
		return m.Secret.Reveal()
	}
	return ""
}

// keep keeps this instance's session alive until close: by using it, so that its
// expiry moves and the links that it opened go on, and by another one if it has
// ended all the same.
func (a *access) keep() {
	if a.sessions == nil {
		return
	}
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		m := a.own.Load()
		stop := func() {}
		g, err := a.sessions.Validate(a.ctx, []byte(m.Secret.Reveal()), "self")
		switch {
		case err == nil && time.Until(g.Expires) > m.Session.Life/4:
			stop = a.sessions.Watch(g, func(*conduit.Error) {
				select {
				case a.ended <- struct{}{}:
				default:
				}
			})
		case err != nil && err.Code != conduit.Unauthenticated:
			// The store cannot be asked: the session may well be good.
		default:
			if err := a.mint(a.ctx); err != nil {
				a.log.Warn("this instance has no session, and other instances may refuse it", "error", err)
			} else {
				a.log.Info("this instance has a new session", "user", a.own.Load().User.Name)
				continue // and watch it
			}
		}
		select {
		case <-a.ctx.Done():
		case <-tick.C:
		case <-a.ended:
		}
		stop()
		if a.ctx.Err() != nil {
			return
		}
	}
}

// checks counts the checks of credentials; with auth.mode disabled there are none.
func (a *access) checks() metrics.AuthChecks {
	if a.sessions == nil {
		return metrics.AuthChecks{}
	}
	st := a.sessions.Stats()
	return metrics.AuthChecks{OK: st.OK, Denied: st.Denied, Failed: st.Failed}
}

// authenticate says who opens a link.
func (a *access) authenticate(r *http.Request) (link.Peer, error) {
	if a.sessions == nil {
		p, err := auth.Disabled{}.Authenticate(r)
		return link.Peer{Name: "client", User: p.User, Level: p.Level, From: addressOf(r)}, err
	}
	g, err := a.sessions.Authenticate(r)
	if err == nil {
		err = certified(r, g)
	}
	if err != nil {
		a.audit.record(auditRecord{what: "link", who: g.User, door: "cluster", from: addressOf(r), result: auditResult(err)})
		return link.Peer{}, err
	}
	peer := link.Peer{Name: "client", User: g.User, Level: g.Level, From: addressOf(r)}
	if g.Session.IsZero() {
		return peer, nil
	}
	text, err := auth.Credential(r.Header)
	if err != nil {
		return link.Peer{}, err
	}
	secret, err := auth.ParseSecret([]byte(text))
	if err != nil {
		return link.Peer{}, err
	}
	raw := []byte(text)
	peer.Guest = &guest{grant: g, secret: &secret, text: func() []byte { return raw }}
	if !g.Instance.IsZero() {
		peer.Name, peer.System = g.Instance.String(), true
	}
	return peer, nil
}

// addressOf is the address that a request comes from, for the audit.
func addressOf(r *http.Request) string {
	if from := auth.From(r); from.IsValid() {
		return from.String()
	}
	return ""
}

// check judges what the other end of a link says of itself: a session of an instance
// opens links of that instance alone.
func (a *access) check(peer link.Peer, theirs link.Hello) error {
	err := a.suits(peer, theirs)
	if err != nil {
		a.audit.record(auditRecord{what: "link", who: peer.User, door: doorOf(peer), from: peer.From, result: "bad_hello"})
	}
	return err
}

func (a *access) suits(peer link.Peer, theirs link.Hello) error {
	if err := a.sameStore(theirs); err != nil {
		return err
	}
	g, ok := peer.Guest.(*guest)
	if !ok || g.grant.Instance.IsZero() {
		return nil
	}
	id, err := address.ParseInstanceID(theirs.Instance)
	if err != nil {
		return errors.New("the session is an instance's, and the Hello does not say which instance this is")
	}
	if bad := g.grant.ForInstance(id); bad != nil {
		return errors.New(bad.Message)
	}
	return nil
}

// sameStore refuses who knows other users.
func (a *access) sameStore(theirs link.Hello) error {
	if ours := a.storeID(); ours != "" && theirs.AuthStore != "" && theirs.AuthStore != ours {
		return fmt.Errorf("two auth stores: %s here, and %.64q there: instances that call each other share one; give both the same auth.store (--auth-store, or --data-dir)", ours, theirs.AuthStore)
	}
	return nil
}

// opened watches the session of a link.
func (a *access) opened(peer link.Peer, l *link.Conn) (ended func()) {
	g, ok := peer.Guest.(*guest)
	if !ok {
		return func() {}
	}
	return a.sessions.Watch(g.grant, func(why *conduit.Error) {
		if !a.spawn(func() { expel(a.ctx, l, why) }) {
			l.Close(link.CloseAuth, why.Reason)
		}
	})
}

// expel ends a link whose session has ended. Its new calls are refused already; calls
// under way have a moment to finish, and what is still there then, streams mostly, is
// cancelled.
func expel(ctx context.Context, l *link.Conn, why *conduit.Error) {
	served := func() bool {
		ctx, cancel := context.WithTimeout(ctx, expelGrace)
		defer cancel()
		return l.WaitServed(ctx) == nil
	}
	if !served() {
		l.CancelIncoming(why)
		served()
	}
	l.Close(link.CloseAuth, why.Reason)
}

// pending is a call that is to be decided: a *link.Incoming, or a link.Parked.
type pending interface {
	router.Call
	tenanted
	Serve(fn link.ServeFunc)
	Peer() link.Peer
}

// door decides as whom the calls run that come in at one of an instance's doors, and
// hands them on to next. A call whose session is remembered is decided on the link's
// reader; any other is parked until the store has been asked.
func (a *access) door(next func(c pending, inv *frame.Invoke, who host.Principal)) link.Handler {
	return handlerFunc(func(in *link.Incoming) {
		var g auth.Grant
		who, err, known := a.decide(in.Peer(), in.Invoke, func(secret []byte) (p auth.Principal, err *conduit.Error, known bool) {
			g, err, known = a.sessions.Cached(secret)
			return callsAs(g, err, known)
		})
		switch {
		case !known:
			a.wait(in.Park(), next)
		case err != nil:
			a.audit.refusedCall(in.Peer(), in.Invoke, in.Peer().User, err)
			in.Refuse(err)
		default:
			a.lodge(in, in.Invoke, g)
			next(in, in.Invoke, who)
		}
	})
}

func (a *access) cached(secret []byte) (auth.Principal, *conduit.Error, bool) {
	return callsAs(a.sessions.Cached(secret))
}

// callsAs is a lookup's answer for a session that a call wants to run as: not as that
// of an instance.
func callsAs(g auth.Grant, err *conduit.Error, known bool) (auth.Principal, *conduit.Error, bool) {
	if err == nil && !g.Instance.IsZero() {
		return auth.Principal{}, errInstanceSession(), known
	}
	return g.Principal, err, known
}

// wait decides a parked call once its session is known. Calls that wait for the same
// session wait for one question to the store.
func (a *access) wait(p link.Parked, next func(c pending, inv *frame.Invoke, who host.Principal)) {
	ok := a.spawn(func() {
		ctx, cancel := context.WithTimeout(a.ctx, lookupPatience)
		defer cancel()
		var g auth.Grant
		who, err, _ := a.decide(p.Peer(), p.Invoke(), func(secret []byte) (user auth.Principal, err *conduit.Error, known bool) {
			g, err = a.sessions.Validate(ctx, secret, fmt.Sprintf("%p", p.Conn()))
			return callsAs(g, err, true)
		})
		if err != nil {
			a.audit.refusedCall(p.Peer(), p.Invoke(), p.Peer().User, err)
			p.Refuse(err)
			return
		}
		a.lodge(p, p.Invoke(), g)
		next(p, p.Invoke(), who)
	})
	if !ok {
		p.Refuse(errDraining())
	}
}

// caller says as whom a request to the gateway calls.
func (a *access) caller(r *http.Request) (conduit.AsWhom, error) {
	if a.sessions == nil {
		return conduit.AsWhom{}, nil
	}
	g, err := a.sessions.Authenticate(r)
	if err == nil && !g.Instance.IsZero() {
		err = errInstanceSession()
	}
	switch {
	case err != nil:
		a.audit.record(auditRecord{what: "request", who: g.User, door: "gateway", from: addressOf(r), result: auditResult(err)})
		return conduit.AsWhom{}, err
	case g.Session.IsZero():
		return conduit.AsWhom{Kind: conduit.AsAnonymous}, nil
	}
	secret, err := auth.Credential(r.Header)
	return conduit.AsWhom{Kind: conduit.AsSession, Session: secret}, err
}

// levelOf is the level of whoever a request of the gateway was let in as.
func (a *access) levelOf(ctx context.Context, as conduit.AsWhom) (conduit.Level, error) {
	switch {
	case a.sessions == nil:
		return conduit.Superuser, nil
	case as.Kind != conduit.AsSession:
		return conduit.Anonymous, nil
	}
	g, err := a.sessions.Validate(ctx, []byte(as.Session), "gateway")
	if err != nil {
		return conduit.Anonymous, err
	}
	return g.Level, nil
}

func errInstanceSession() *conduit.Error {
	return conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent, "the session is an instance's: it opens links, and no call runs as it")
}

// watch has ended called once the session that a request of the gateway calls with
// has ended.
func (a *access) watch(as conduit.AsWhom, ended func(*conduit.Error)) (stop func()) {
	if a.sessions == nil || as.Kind != conduit.AsSession {
		return func() {}
	}
	g, err := a.sessions.Validate(a.ctx, []byte(as.Session), "gateway")
	if err != nil {
		ended(err)
		return func() {}
	}
	return a.sessions.Watch(g, ended)
}

// logins is a gateway.Sessions.
type logins struct{ a *access }

// Login implements gateway.Sessions.
func (l logins) Login(ctx context.Context, r *http.Request, user string, password []byte) (gateway.Session, error) {
	from := auth.From(r)
	m, err := l.a.accounts.Login(ctx, from, user, password)
	if err != nil {
		// A name that was typed may be a password: it is not written.
		l.a.audit.record(auditRecord{what: "login", door: "gateway", from: addressOf(r), result: auditResult(err)})
		return gateway.Session{}, err
	}
	l.a.audit.record(auditRecord{what: "login", who: m.User.Name, door: "gateway", from: addressOf(r), session: m.Session.ID.String(), result: auditOK})
	return gateway.Session{Secret: m.Secret.Reveal(), User: m.User.Name, Level: m.User.Level, Expires: m.Session.Expires}, nil
}

// Logout implements gateway.Sessions.
func (l logins) Logout(ctx context.Context, r *http.Request) error {
	g, err := l.a.sessions.Authenticate(r)
	switch {
	case err != nil:
		return err
	case g.Session.IsZero():
		return conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.Refused, "the request carries no session that could end")
	case !g.Instance.IsZero():
		return errInstanceSession()
	}
	if err := l.a.accounts.Revoke(ctx, g.Session); err != nil {
		if e := conduit.AsError(err, conduit.Refused); e.Reason != conduit.ReasonSessionNotFound { // it has ended meanwhile
			return conduit.Errorf(conduit.Unavailable, conduit.ReasonStoreUnavailable, conduit.OutcomeUnknown, "this instance cannot ask its auth store just now")
		}
	}
	l.a.sessions.Ended(g) // who has logged out here is out, and not in a quarter of a second
	l.a.audit.record(auditRecord{what: "logout", who: g.User, door: "gateway", from: addressOf(r), session: g.Session.String(), result: auditOK})
	return nil
}

var _ gateway.Sessions = logins{}
