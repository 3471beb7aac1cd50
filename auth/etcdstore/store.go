package etcdstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

const (
	// DefaultPatience is how long an operation may take, with all that it tries again.
	DefaultPatience = 5 * time.Second
	// DefaultPrefix is where a store is that names no place.
	DefaultPrefix = "conduit"
)

// Options say which store to open. Endpoints must be set. Printed, they show no
// password.
type Options struct {
	// Endpoints are the servers of the cluster, as host:port. One that answers will do.
	Endpoints []string
	// Prefix is where in etcd the store is: "a/b" is below the key "/a/b/"; empty =
	// DefaultPrefix. Nothing else may be below it.
	Prefix string
	// TLS is how to speak to etcd; nil = in the clear.
	TLS *tls.Config
	// User and Password are those of etcd; no User = none.
	User     string
	Password auth.Sealed
	// Patience is how long an operation may take; 0 = DefaultPatience. The context of the
	// operation may end it earlier.
	Patience time.Duration
	// Keep is how long a session is kept after its end, if nobody sweeps it, and up to
	// twice that; 0 = 25 h, and up to two hours more. etcd takes no less than a second.
	Keep time.Duration
	// MustExist has Open fail if there is no store, rather than make one.
	MustExist bool
}

// String is the store as auth.store names it.
func (o Options) String() string {
	return "etcd://" + strings.Join(o.Endpoints, ",") + strings.TrimSuffix(o.root(), "/")
}

// Format implements fmt.Formatter: no verb shows more than String.
func (o Options) Format(f fmt.State, _ rune) { fmt.Fprint(f, o.String()) }

// root is the key that all keys begin with.
func (o Options) root() string {
	p := strings.Trim(o.Prefix, "/")
	if p == "" {
		p = DefaultPrefix
	}
	return "/" + p + "/"
}

// Store is an [auth.Store] in etcd. Any number of Stores, in any number of processes,
// may use the same one. Lost connections come back by themselves; operations are tried
// again meanwhile, within their patience, and each is done once or not at all.
type Store struct {
	o      Options
	root   string
	client *clientv3.Client
	record string // the store's own, as it stands in etcd
	id     auth.StoreID
	leases leases

	closed atomic.Bool
	close  sync.Once
}

var (
	_ auth.Store  = (*Store)(nil)
	_ auth.Teller = (*Store)(nil)
)

// The keys below the root.
const (
	keyStore      = "store"
	keyGeneration = "generation"
	keyUsers      = "users/"
	keyNames      = "names/"
	keySessions   = "sessions/"
	keyOf         = "of/"
)

// ErrNone is in the chain of the error of an Open that must find a store and finds none.
var ErrNone = errors.New("there is no auth store")

// Open returns the store at a prefix of etcd, which it makes, without users, if there
// is none; of many who open it at once, one makes it. A store of another format,
// another program's keys, and a user or a certificate that etcd does not accept are
// bad_store; an etcd that cannot be reached is store_unavailable.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.Keep <= 0 {
		o.Keep = defaultKeep
	}
	if len(o.Endpoints) == 0 {
		return nil, auth.ErrBadStore(nil, "no server of etcd is named")
	}
	client, err := dial(o)
	if err != nil {
		return nil, o.fault(err)
	}
	s := &Store{o: o, root: o.root(), client: client}
	if err := s.do(ctx, s.find); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// find finds the store's own record, or makes it.
func (s *Store) find(ctx context.Context, _ *attempt) error {
	key := s.key(keyStore)
	get := clientv3.OpGet(key)
	r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).Then(get).Commit()
	if err != nil {
		return err
	}
	if !r.Succeeded {
		if s.o.MustExist {
			return auth.ErrBadStore(ErrNone, "there is no auth store %s; an instance makes it when it starts, and so does `conduit-host user add`", s)
		}
		record := encode(storeRecord{Is: storeIs, Format: format, ID: auth.NewStoreID().String()})
		r, err = s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, record), clientv3.OpPut(s.key(keyGeneration), ""), get).
			Else(get).Commit()
		if err != nil {
			return err
		}
	}
	kvs := r.Responses[len(r.Responses)-1].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return errConflict // it was removed between the two
	}
	s.record = string(kvs[0].Value)
	s.id, err = decodeStore(kvs[0].Value)
	var other formatError
	switch {
	case errors.Is(err, errForeign):
		return auth.ErrBadStore(nil, "%s is not an auth store: the key %s is another program's; it is left alone. Name another prefix in auth.store", s, key)
	case errors.As(err, &other):
		return auth.ErrBadStore(nil, "the auth store %s is of format %d, and this version knows format %d; update the older program", s, other, format)
	}
	return err
}

// String is the store as auth.store names it.
func (s *Store) String() string { return s.o.String() }

func (s *Store) key(parts ...string) string { return s.root + strings.Join(parts, "") }

func (s *Store) userKey(id auth.UserID) string       { return s.key(keyUsers, id.String()) }
func (s *Store) nameKey(name string) string          { return s.key(keyNames, name) }
func (s *Store) sessionKey(id auth.SessionID) string { return s.key(keySessions, id.String()) }
func (s *Store) ofUser(id auth.UserID) string        { return s.key(keyOf, id.String(), "/") }
func (s *Store) ofKey(o auth.Session) string         { return s.ofUser(o.User) + o.ID.String() }

// count moves the generation for a user, of whom each version of the key tells.
func (s *Store) count(user auth.UserID) clientv3.Op {
	return clientv3.OpPut(s.key(keyGeneration), user.String())
}

// ID returns the id that the store was made with.
func (s *Store) ID() auth.StoreID { return s.id }

// Close ends the connections. Operations that are under way fail, as all later ones do.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		s.closed.Store(true)
		err = s.client.Close()
	})
	if errors.Is(err, context.Canceled) { // by which its watches ended
		err = nil
	}
	return err
}

// same holds that a key is as it was read; revision 0 = that it is not there.
func same(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// get reads up to maxOps keys at once, as they were at a revision; 0 = as they are. What
// is not there is nil.
func (s *Store) get(ctx context.Context, at int64, keys ...string) (kvs []*mvccpb.KeyValue, revision int64, err error) {
	ops := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		ops[i] = clientv3.OpGet(key, clientv3.WithRev(at))
	}
	r, err := s.run(ctx, nil, ops)
	if err != nil {
		return nil, 0, err
	}
	kvs = make([]*mvccpb.KeyValue, len(keys))
	for i, one := range r.Responses {
		if found := one.GetResponseRange().Kvs; len(found) > 0 {
			kvs[i] = found[0]
		}
	}
	if at == 0 {
		at = r.Header.Revision
	}
	return kvs, at, nil
}

// parallel is how many transactions one operation has under way.
const parallel = 8

// getMany is get for any number of keys, all as they were at one revision.
func (s *Store) getMany(ctx context.Context, at int64, keys []string) (kvs []*mvccpb.KeyValue, revision int64, err error) {
	n := min(len(keys), maxOps)
	if kvs, at, err = s.get(ctx, at, keys[:n]...); err != nil || n == len(keys) {
		return kvs, at, err
	}
	kvs = append(kvs, make([]*mvccpb.KeyValue, len(keys)-n)...)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	turns := make(chan struct{}, parallel)
	for from := n; from < len(keys); from += maxOps {
		to := min(from+maxOps, len(keys))
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			part, _, err := s.get(ctx, at, keys[from:to]...)
			if err != nil {
				cancel(err)
				return
			}
			copy(kvs[from:to], part)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	return kvs, at, nil
}

// list reads up to limit keys from behind a key of those that begin with a prefix.
func (s *Store) list(ctx context.Context, at int64, prefix, after string, limit int, keysOnly bool) (kvs []*mvccpb.KeyValue, revision int64, err error) {
	from := prefix
	if after != "" {
		from += after + "\x00"
	}
	opts := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit)), clientv3.WithRev(at)}
	if keysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	r, err := s.run(ctx, nil, []clientv3.Op{clientv3.OpGet(from, opts...)})
	if err != nil {
		return nil, 0, err
	}
	if at == 0 {
		at = r.Header.Revision
	}
	return r.Responses[0].GetResponseRange().Kvs, at, nil
}

// generationOf reads the generation from its key.
func generationOf(kv *mvccpb.KeyValue) (uint64, error) {
	if kv == nil || kv.Version < 1 {
		return 0, damage{errors.New("it has no generation")}
	}
	return uint64(kv.Version - 1), nil
}

// Generation returns the generation. It is one question to etcd, which answers with what
// holds now, not with what one of its servers believes.
func (s *Store) Generation(ctx context.Context) (g uint64, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		kvs, _, err := s.get(ctx, 0, s.key(keyGeneration))
		if err == nil {
			g, err = generationOf(kvs[0])
		}
		return err
	})
	return g, err
}

// movedFor returns whom a move of the generation was about; an older version does not say.
func movedFor(kv *mvccpb.KeyValue) (id auth.UserID, known bool) {
	id, err := auth.ParseUserID(string(kv.Value))
	return id, err == nil
}

// Moved returns whom the moves of the generation were about: it asks for the last
// version of its key, and for those before it one after another, since each says where the
// one before it ends.
func (s *Store) Moved(ctx context.Context, since uint64) (m auth.Moves, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		key := s.key(keyGeneration)
		kvs, _, err := s.get(ctx, 0, key)
		if err != nil {
			return err
		}
		last := kvs[0]
		g, err := generationOf(last)
		if err != nil {
			return err
		}
		m = auth.Moves{Generation: g, Everyone: true}
		if since > g || g-since > auth.MaxMoves {
			return nil
		}
		var users []auth.UserID
		for left := g - since; left > 0; left-- {
			user, known := movedFor(last)
			if !known {
				return nil
			}
			users = append(users, user)
			if left == 1 {
				break
			}
			kvs, _, err := s.get(ctx, last.ModRevision-1, key)
			switch {
			case errors.Is(err, rpctypes.ErrCompacted):
				return nil
			case err != nil:
				return err
			case kvs[0] == nil || kvs[0].Version != last.Version-1:
				return nil // it was removed, and made anew
			}
			last = kvs[0]
		}
		m = auth.Moves{Generation: g, Users: users}
		return nil
	})
	if err != nil {
		return auth.Moves{}, err
	}
	return m, nil
}

// Tell calls moved after each move of the generation that it hears of, until ctx ends or
// the store is closed. It may miss one while the connection is lost.
func (s *Store) Tell(ctx context.Context, moved func()) {
	for ctx.Err() == nil && !s.closed.Load() {
		// A server that is cut off from the others would say nothing for ever.
		watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for r := range s.client.Watch(watching, s.key(keyGeneration)) {
			if r.Err() != nil {
				break
			}
			if len(r.Events) > 0 {
				moved()
			}
		}
		cancel()
		sleep(ctx, maxPause)
	}
}

// newEpoch returns an epoch that no session has.
func newEpoch() string { return rand.Text()[:16] }

// readUser reads a user by name.
func (s *Store) readUser(ctx context.Context, name string) (u user, revision int64, err error) {
	kvs, at, err := s.get(ctx, 0, s.nameKey(name))
	if err != nil {
		return user{}, 0, err
	}
	if kvs[0] == nil {
		return user{}, at, auth.ErrUserNotFound(name)
	}
	id, err := auth.ParseUserID(string(kvs[0].Value))
	if err != nil {
		return user{}, 0, damage{fmt.Errorf("the user %.64q has no id", name)}
	}
	u, ok, _, err := s.readUserByID(ctx, at, id)
	if err == nil && !ok {
		err = damage{fmt.Errorf("the user %.64q is a name only", name)}
	}
	return u, at, err
}

func (s *Store) readUserByID(ctx context.Context, at int64, id auth.UserID) (u user, ok bool, revision int64, err error) {
	kvs, at, err := s.get(ctx, at, s.userKey(id))
	if err != nil || kvs[0] == nil {
		return user{}, false, at, err
	}
	u, err = decodeUser(kvs[0])
	return u, err == nil, at, err
}

// readUsers reads many users by their ids. Who is no more is left out.
func (s *Store) readUsers(ctx context.Context, at int64, ids []auth.UserID) (map[auth.UserID]user, error) {
	users := make(map[auth.UserID]user, len(ids))
	if len(ids) == 0 {
		return users, nil
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = s.userKey(id)
	}
	kvs, _, err := s.getMany(ctx, at, keys)
	if err != nil {
		return nil, err
	}
	for _, kv := range kvs {
		if kv == nil {
			continue
		}
		u, err := decodeUser(kv)
		if err != nil {
			return nil, err
		}
		users[u.ID] = u
	}
	return users, nil
}

// readSessions reads many sessions. What is no more has no id.
func (s *Store) readSessions(ctx context.Context, at int64, ids []auth.SessionID) (all []session, revision int64, err error) {
	if len(ids) == 0 {
		return nil, at, nil
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = s.sessionKey(id)
	}
	kvs, at, err := s.getMany(ctx, at, keys)
	if err != nil {
		return nil, 0, err
	}
	all = make([]session, len(ids))
	for i, kv := range kvs {
		if kv == nil {
			continue
		}
		if all[i], err = decodeSession(kv); err != nil {
			return nil, 0, err
		}
	}
	return all, at, nil
}

// owners reads the users whom sessions belong to.
func (s *Store) owners(ctx context.Context, at int64, sessions []session) (map[auth.UserID]user, error) {
	var ids []auth.UserID
	seen := map[auth.UserID]bool{}
	for _, one := range sessions {
		if !one.ID.IsZero() && !seen[one.User] {
			seen[one.User] = true
			ids = append(ids, one.User)
		}
	}
	return s.readUsers(ctx, at, ids)
}

// alive says that a session has not ended by what became of its user.
func alive(one session, users map[auth.UserID]user) bool {
	u, ok := users[one.User]
	return ok && !one.ID.IsZero() && one.epoch == u.epoch
}

// sessionsOf reads up to limit ids of a user's sessions; some of them may have ended.
func (s *Store) sessionsOf(ctx context.Context, at int64, id auth.UserID, after auth.SessionID, limit int) (ids []auth.SessionID, revision int64, err error) {
	from := ""
	if !after.IsZero() {
		from = after.String()
	}
	kvs, at, err := s.list(ctx, at, s.ofUser(id), from, limit, true)
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range kvs {
		one, err := auth.ParseSessionID(lastPart(kv.Key))
		if err != nil {
			return nil, 0, damage{fmt.Errorf("the record %.256q is not that of a session", kv.Key)}
		}
		ids = append(ids, one)
	}
	return ids, at, nil
}

// all is a limit for what is bounded otherwise; etcd takes 0 for none.
const all = 0

// AddUser adds a user.
func (s *Store) AddUser(ctx context.Context, u auth.User) error {
	epoch := newEpoch()
	return s.do(ctx, func(ctx context.Context, a *attempt) error {
		name, id := s.nameKey(u.Name), s.userKey(u.ID)
		err := s.write(ctx, a, []clientv3.Cmp{same(name, 0), same(id, 0)},
			clientv3.OpPut(name, u.ID.String()), clientv3.OpPut(id, encodeUser(u, epoch)))
		if !errors.Is(err, errConflict) {
			return err
		}
		kvs, _, err := s.get(ctx, 0, name, id)
		if err != nil {
			return err
		}
		if kvs[0] == nil && kvs[1] == nil {
			return errConflict // somebody had it, and has removed it since
		}
		var r userRecord
		if a.unsure && kvs[0] != nil && kvs[1] != nil && json.Unmarshal(kvs[1].Value, &r) == nil && r.Epoch == epoch {
			return nil // it was us
		}
		return auth.ErrUserExists(u.Name)
	})
}

// User returns a user.
func (s *Store) User(ctx context.Context, name string) (u auth.User, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		found, _, err := s.readUser(ctx, name)
		u = found.User
		return err
	})
	if err != nil {
		return auth.User{}, err
	}
	return u, nil
}

// Users returns a page of users.
func (s *Store) Users(ctx context.Context, after string, limit int) (page []auth.User, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		page = nil
		names, at, err := s.list(ctx, 0, s.key(keyNames), after, auth.Page(limit), false)
		if err != nil {
			return err
		}
		ids := make([]auth.UserID, len(names))
		for i, kv := range names {
			if ids[i], err = auth.ParseUserID(string(kv.Value)); err != nil {
				return damage{fmt.Errorf("the user %.64q has no id", lastPart(kv.Key))}
			}
		}
		users, err := s.readUsers(ctx, at, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			u, ok := users[id]
			if !ok || u.Name != lastPart(names[i].Key) {
				return damage{fmt.Errorf("the user %.64q is a name only", lastPart(names[i].Key))}
			}
			page = append(page, u.User)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// ChangeUser changes a user.
func (s *Store) ChangeUser(ctx context.Context, name string, change func(*auth.User) error) (after auth.User, err error) {
	var ended bool
	err = s.do(ctx, func(ctx context.Context, a *attempt) error {
		before, _, err := s.readUser(ctx, name)
		if err != nil {
			return err
		}
		after = before.User
		if err := change(&after); err != nil {
			return final{err}
		}
		after.ID, after.Name, after.Created = before.ID, before.Name, before.Created
		effect := auth.EffectOf(before.User, after)
		epoch := before.epoch
		if effect.Ends {
			epoch, ended = newEpoch(), true
		}
		then := []clientv3.Op{clientv3.OpPut(s.userKey(after.ID), encodeUser(after, epoch))}
		if effect.Counts {
			then = append(then, s.count(after.ID))
		}
		return s.write(ctx, a, []clientv3.Cmp{same(s.userKey(after.ID), before.revision)}, then...)
	})
	if err != nil {
		return auth.User{}, err
	}
	if ended {
		s.tidy(ctx, after.ID)
	}
	return after, nil
}

// final is an error of who called, to be returned as it is.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// RemoveUser removes a user.
func (s *Store) RemoveUser(ctx context.Context, name string) error {
	var id auth.UserID
	err := s.do(ctx, func(ctx context.Context, a *attempt) error {
		u, _, err := s.readUser(ctx, name)
		if a.unsure && isUserNotFound(err) {
			return nil // it was us
		}
		if err != nil {
			return err
		}
		id = u.ID
		return s.write(ctx, a, []clientv3.Cmp{same(s.userKey(u.ID), u.revision)},
			clientv3.OpDelete(s.userKey(u.ID)), clientv3.OpDelete(s.nameKey(name)), s.count(u.ID))
	})
	if err == nil {
		s.tidy(ctx, id)
	}
	return err
}

func isUserNotFound(err error) bool {
	e, ok := errors.AsType[*conduit.Error](err)
	return ok && e.Reason == conduit.ReasonUserNotFound
}

// tidy removes what is left of sessions that have ended with what became of their user.
// If it fails, their leases do.
func (s *Store) tidy(ctx context.Context, id auth.UserID) {
	_ = s.do(ctx, func(ctx context.Context, a *attempt) error {
		ids, at, err := s.sessionsOf(ctx, 0, id, auth.SessionID{}, all)
		if err != nil || len(ids) == 0 {
			return err
		}
		sessions, at, err := s.readSessions(ctx, at, ids)
		if err != nil {
			return err
		}
		users, err := s.readUsers(ctx, at, []auth.UserID{id})
		if err != nil {
			return err
		}
		var ops []clientv3.Op
		for i, one := range sessions {
			if !alive(one, users) {
				ops = append(ops, s.remove(auth.Session{ID: ids[i], User: id})...)
			}
		}
		for part := range slices.Chunk(ops, maxOps) {
			if err := s.write(ctx, a, nil, part...); err != nil {
				return err
			}
		}
		return nil
	})
}

// remove removes a session, whose id is never used again.
func (s *Store) remove(one auth.Session) []clientv3.Op {
	return []clientv3.Op{clientv3.OpDelete(s.sessionKey(one.ID)), clientv3.OpDelete(s.ofKey(one))}
}

// put writes a session, as it is to be until its lease ends.
func (s *Store) put(one auth.Session, epoch string, until clientv3.LeaseID) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpPut(s.sessionKey(one.ID), encodeSession(one, epoch), clientv3.WithLease(until)),
		clientv3.OpPut(s.ofKey(one), "", clientv3.WithLease(until)),
	}
}

// AddSession adds a session.
func (s *Store) AddSession(ctx context.Context, one auth.Session, stamp auth.Sealed) error {
	return s.do(ctx, func(ctx context.Context, a *attempt) error {
		u, ok, at, err := s.readUserByID(ctx, 0, one.User)
		if err != nil {
			return err
		}
		if !ok || u.Disabled || !u.Stamp.Equal(stamp) {
			return auth.ErrUserChanged()
		}
		ids, _, err := s.sessionsOf(ctx, at, u.ID, auth.SessionID{}, all)
		if err != nil {
			return err
		}
		if a.unsure && slices.Contains(ids, one.ID) {
			return nil // it was us
		}
		var then []clientv3.Op
		if len(ids) >= auth.MaxSessions {
			if then, err = s.makeRoom(ctx, at, u, ids); err != nil {
				return err
			}
		}
		until, err := s.lease(ctx, one.Expires)
		if err != nil {
			return err
		}
		// Neither the user may have changed since, nor a session have come.
		unchanged := []clientv3.Cmp{
			same(s.userKey(u.ID), u.revision),
			clientv3.Compare(clientv3.ModRevision(s.ofUser(u.ID)).WithPrefix(), "<", at+1),
		}
		return s.write(ctx, a, unchanged, append(then, s.put(one, u.epoch, until)...)...)
	})
}

// makeRoom ends those of a user's sessions that expire first.
func (s *Store) makeRoom(ctx context.Context, at int64, u user, ids []auth.SessionID) ([]clientv3.Op, error) {
	sessions, _, err := s.readSessions(ctx, at, ids)
	if err != nil {
		return nil, err
	}
	users := map[auth.UserID]user{u.ID: u}
	sessions = slices.DeleteFunc(sessions, func(one session) bool { return !alive(one, users) })
	slices.SortFunc(sessions, func(a, b session) int { return a.Expires.Compare(b.Expires) })
	over := sessions[:max(0, len(sessions)+1-auth.MaxSessions)]
	if len(over) == 0 {
		return nil, nil
	}
	ops := []clientv3.Op{s.count(u.ID)}
	for _, one := range over[:min(len(over), (maxOps-3)/2)] {
		ops = append(ops, s.remove(one.Session)...)
	}
	return ops, nil
}

// Find finds a session.
func (s *Store) Find(ctx context.Context, secret auth.Secret) (f auth.Found, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		before, ok, _, err := s.readUserByID(ctx, 0, secret.User())
		if err != nil {
			return err
		}
		if !ok {
			return auth.ErrSessionNotFound()
		}
		id := auth.SessionIDOf(before.Stamp.Reveal(), secret)
		kvs, _, err := s.get(ctx, 0, s.userKey(before.ID), s.sessionKey(id), s.key(keyGeneration))
		switch {
		case err != nil:
			return err
		case kvs[0] == nil || kvs[1] == nil:
			return auth.ErrSessionNotFound()
		}
		u, err := decodeUser(kvs[0])
		if err != nil {
			return err
		}
		if !u.Stamp.Equal(before.Stamp) {
			return errConflict
		}
		one, err := decodeSession(kvs[1])
		if err != nil {
			return err
		}
		if one.User != u.ID || one.epoch != u.epoch {
			return auth.ErrSessionNotFound()
		}
		f = auth.Found{User: u.User, Session: one.Session}
		f.Generation, err = generationOf(kvs[2])
		return err
	})
	if err != nil {
		return auth.Found{}, err
	}
	return f, nil
}

// Recheck finds many sessions.
func (s *Store) Recheck(ctx context.Context, ids []auth.SessionID) (found []auth.Found, generation uint64, err error) {
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		kvs, at, err := s.get(ctx, 0, s.key(keyGeneration))
		if err != nil {
			return err
		}
		if generation, err = generationOf(kvs[0]); err != nil {
			return err
		}
		sessions, _, err := s.readSessions(ctx, at, ids)
		if err != nil {
			return err
		}
		users, err := s.owners(ctx, at, sessions)
		if err != nil {
			return err
		}
		found = make([]auth.Found, len(ids))
		for i, one := range sessions {
			if alive(one, users) {
				found[i] = auth.Found{User: users[one.User].User, Session: one.Session, Generation: generation}
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return found, generation, nil
}

// Sessions returns a page of sessions.
func (s *Store) Sessions(ctx context.Context, of auth.SessionsOf) (page []auth.Session, err error) {
	limit := auth.Page(of.Limit)
	err = s.do(ctx, func(ctx context.Context, _ *attempt) error {
		page = nil
		after, at := of.After, int64(0)
		for len(page) < limit {
			var some []session
			var err error
			if some, at, err = s.someSessions(ctx, at, of.User, after, limit); err != nil || len(some) == 0 {
				return err
			}
			users, err := s.owners(ctx, at, some)
			if err != nil {
				return err
			}
			for _, one := range some {
				after = one.ID
				if alive(one, users) && len(page) < limit {
					page = append(page, one.Session)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// someSessions reads up to limit sessions from behind one, ended ones among them; none =
// there are no more.
func (s *Store) someSessions(ctx context.Context, at int64, of auth.UserID, after auth.SessionID, limit int) (some []session, revision int64, err error) {
	if !of.IsZero() {
		ids, at, err := s.sessionsOf(ctx, at, of, after, limit)
		if err != nil {
			return nil, 0, err
		}
		some, at, err = s.readSessions(ctx, at, ids)
		for i := range some { // so that who goes on behind the last knows which it was
			some[i].ID, some[i].User = ids[i], of
		}
		return some, at, err
	}
	from := ""
	if !after.IsZero() {
		from = after.String()
	}
	kvs, at, err := s.list(ctx, at, s.key(keySessions), from, limit, false)
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range kvs {
		one, err := decodeSession(kv)
		if err != nil {
			return nil, 0, err
		}
		some = append(some, one)
	}
	return some, at, nil
}

// RemoveSession ends a session.
func (s *Store) RemoveSession(ctx context.Context, id auth.SessionID) error {
	return s.do(ctx, func(ctx context.Context, a *attempt) error {
		sessions, at, err := s.readSessions(ctx, 0, []auth.SessionID{id})
		if err != nil {
			return err
		}
		users, err := s.owners(ctx, at, sessions)
		if err != nil {
			return err
		}
		one := sessions[0]
		if !alive(one, users) {
			if a.unsure {
				return nil // it was us
			}
			return auth.ErrSessionNotFound()
		}
		return s.write(ctx, a, []clientv3.Cmp{same(s.sessionKey(id), one.revision)}, append(s.remove(one.Session), s.count(one.User))...)
	})
}

// RemoveSessions ends a user's sessions.
func (s *Store) RemoveSessions(ctx context.Context, name string) (n int, err error) {
	var id auth.UserID
	err = s.do(ctx, func(ctx context.Context, a *attempt) error {
		u, at, err := s.readUser(ctx, name)
		if err != nil {
			return err
		}
		id = u.ID
		ids, _, err := s.sessionsOf(ctx, at, u.ID, auth.SessionID{}, all)
		if err != nil {
			return err
		}
		sessions, _, err := s.readSessions(ctx, at, ids)
		if err != nil {
			return err
		}
		users := map[auth.UserID]user{u.ID: u}
		live := 0
		for _, one := range sessions {
			if alive(one, users) {
				live++
			}
		}
		if live == 0 {
			return nil // n is what an attempt of ours has ended, if one has
		}
		n = live
		unchanged := []clientv3.Cmp{
			same(s.userKey(u.ID), u.revision),
			clientv3.Compare(clientv3.ModRevision(s.ofUser(u.ID)).WithPrefix(), "<", at+1),
		}
		err = s.write(ctx, a, unchanged, clientv3.OpPut(s.userKey(u.ID), encodeUser(u.User, newEpoch())), s.count(u.ID))
		if errors.Is(err, errConflict) && !a.unsure {
			n = 0
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if n > 0 {
		s.tidy(ctx, id)
	}
	return n, nil
}

// perWrite is how many sessions one transaction writes: two keys each, and one
// comparison beside that of the store.
const perWrite = maxOps/2 - 1

// Touch moves expiries, some in each transaction: of an operation that fails, those of
// the first may have been moved.
func (s *Store) Touch(ctx context.Context, now time.Time, moves []auth.Touch) error {
	// The second of two moves of one session goes by what the first one made of it.
	for len(moves) > 0 {
		seen := map[auth.SessionID]bool{}
		n := 0
		for n < min(len(moves), perWrite) && !seen[moves[n].ID] {
			seen[moves[n].ID] = true
			n++
		}
		if err := s.do(ctx, func(ctx context.Context, a *attempt) error { return s.touchSome(ctx, a, now, moves[:n]) }); err != nil {
			return err
		}
		moves = moves[n:]
	}
	return nil
}

func (s *Store) touchSome(ctx context.Context, a *attempt, now time.Time, moves []auth.Touch) error {
	ids := make([]auth.SessionID, len(moves))
	for i, t := range moves {
		ids[i] = t.ID
	}
	sessions, _, err := s.readSessions(ctx, 0, ids)
	if err != nil {
		return err
	}
	var when []clientv3.Cmp
	var then []clientv3.Op
	for i, one := range sessions {
		t := moves[i]
		if one.ID.IsZero() || one.ExpiredAt(now) || !t.Expires.After(one.Expires) {
			continue
		}
		one.Seen, one.Expires = t.Seen, t.Expires
		until, err := s.lease(ctx, one.Expires)
		if err != nil {
			return err
		}
		when = append(when, same(s.sessionKey(one.ID), one.revision))
		then = append(then, s.put(one.Session, one.epoch, until)...)
	}
	if len(then) == 0 {
		return nil
	}
	return s.write(ctx, a, when, then...)
}

// Sweep forgets sessions that were over before a time.
func (s *Store) Sweep(ctx context.Context, before time.Time) (n int, err error) {
	const page = 1024
	after := ""
	for n < auth.MaxBatch {
		var kvs []*mvccpb.KeyValue
		var over []session
		err := s.do(ctx, func(ctx context.Context, _ *attempt) error {
			over = over[:0]
			var err error
			if kvs, _, err = s.list(ctx, 0, s.key(keySessions), after, page, false); err != nil {
				return err
			}
			for _, kv := range kvs {
				one, err := decodeSession(kv)
				if err != nil {
					return err
				}
				if one.Expires.Before(before) && n+len(over) < auth.MaxBatch {
					over = append(over, one)
				}
			}
			return nil
		})
		if err != nil || len(kvs) == 0 {
			return n, err
		}
		after = lastPart(kvs[len(kvs)-1].Key)
		for some := range slices.Chunk(over, perWrite) {
			k, err := s.sweepSome(ctx, before, some)
			n += k
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// sweepSome forgets sessions that are over, unless that is no longer so.
func (s *Store) sweepSome(ctx context.Context, before time.Time, some []session) (n int, err error) {
	ids := make([]auth.SessionID, len(some))
	for i, one := range some {
		ids[i] = one.ID
	}
	err = s.do(ctx, func(ctx context.Context, a *attempt) error {
		sessions, _, err := s.readSessions(ctx, 0, ids)
		if err != nil {
			return err
		}
		var when []clientv3.Cmp
		var then []clientv3.Op
		for _, one := range sessions {
			if !one.ID.IsZero() && one.Expires.Before(before) {
				when = append(when, same(s.sessionKey(one.ID), one.revision))
				then = append(then, s.remove(one.Session)...)
			}
		}
		if len(then) == 0 {
			return nil
		}
		n = len(when)
		return s.write(ctx, a, when, then...)
	})
	return n, err
}
