package store

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/elemental-conduit/conduit/address"
)

type mode int

const (
	modeRead mode = iota
	modeWrite
	modeExclusive
)

func (m mode) String() string {
	switch m {
	case modeRead:
		return "read"
	case modeWrite:
		return "write"
	case modeExclusive:
		return "exclusive"
	}
	return "none"
}

// ReadTx is a transaction that reads: of kind [Store.Read] a snapshot, and inside of a
// [WriteTx] the newest state with what the transaction has written.
//
// Its methods may be called concurrently; they take turns. Whoever opens one must end
// it with Close. After its end every method but Close fails with an error of KindState
// or, if it was open for too long, KindExpired. Every method may end with an error of
// KindCorrupt or KindFailed, too.
type ReadTx struct {
	s     *Store
	id    uint64
	mode  mode
	scope scope
	label string
	owner string
	since time.Time
	claim *claim
	timer *time.Timer

	mu    sync.Mutex
	ended *Error   // why it is over
	snap  *bolt.Tx // nil from its end on
	edits *edits   // nil if it only reads
}

// Read opens a snapshot of the store. It waits for exclusive transactions that were
// asked for before, and never keeps a writer waiting.
//
// The error is an [*Error] of KindArgument or KindNode for a bad scope, KindState if
// the store is closed, KindLimit with too many transactions; or the cause of ctx,
// which bounds the wait and not the transaction.
func (s *Store) Read(ctx context.Context, scope Scope) (*ReadTx, error) {
	return s.begin(ctx, modeRead, scope)
}

// Write opens a transaction that reads and writes. It waits until no other one that
// writes has an overlapping scope; errors are those of [Store.Read], and KindFailed
// after the file could not be written to any more.
func (s *Store) Write(ctx context.Context, scope Scope) (*WriteTx, error) {
	t, err := s.begin(ctx, modeWrite, scope)
	if err != nil {
		return nil, err
	}
	return &WriteTx{t}, nil
}

// Exclusive opens a transaction that has the store to itself. It waits for all that
// are open, readers too; those that come later wait behind it. Errors are those of
// [Store.Write].
func (s *Store) Exclusive(ctx context.Context, label string) (*ExclusiveTx, error) {
	t, err := s.begin(ctx, modeExclusive, Scope{Paths: []address.Path{{}}, Label: label})
	if err != nil {
		return nil, err
	}
	return &ExclusiveTx{&WriteTx{t}}, nil
}

// View runs fn in a snapshot and returns its error.
func (s *Store) View(ctx context.Context, scope Scope, fn func(*ReadTx) error) error {
	t, err := s.Read(ctx, scope)
	if err != nil {
		return err
	}
	defer t.Close()
	return fn(t)
}

// Update runs fn in a transaction that reads and writes, and commits it if fn returns
// nil; else it returns fn's error, and nothing has happened.
func (s *Store) Update(ctx context.Context, scope Scope, fn func(*WriteTx) error) error {
	t, err := s.Write(ctx, scope)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := fn(t); err != nil {
		return err
	}
	return t.Commit(ctx)
}

// parseScope checks a declaration.
func (s *Store) parseScope(declared Scope) (scope, error) {
	out := scope{ids: make(map[uuid]struct{}, len(declared.IDs))}
	if n := len(declared.Paths) + len(declared.IDs); n > s.opts.MaxScope {
		return scope{}, tooMuch("MaxScope", int64(s.opts.MaxScope), declared.Label, "a scope of %d paths and ids; declare a path above them", n)
	}
	for _, p := range declared.Paths {
		if err := s.checkNode(p); err != nil {
			return scope{}, err
		}
		g := newGlob(p)
		g.open = true
		out.globs = append(out.globs, g)
	}
	out.tree = treeOf(out.globs)
	for _, id := range declared.IDs {
		if err := s.checkID(id.Node(), id.String()); err != nil {
			return scope{}, err
		}
		out.ids[id.UUID()] = struct{}{}
	}
	if declared.Once != nil {
		key, err := declared.Once.check()
		if err != nil {
			return scope{}, err
		}
		out.once = key
	}
	return out, nil
}

// checkNode refuses a path of another node. A path without a context is this store's.
func (s *Store) checkNode(p address.Path) error {
	node, ok, err := p.NodeID()
	switch {
	case err != nil:
		return &Error{Kind: KindArgument, Subject: p.String(), Why: "the context of a path must be the store's node, or there must be none", Err: err}
	case ok:
		return s.checkID(node, p.String())
	}
	return nil
}

func (s *Store) checkID(node address.NodeID, subject string) error {
	if node != s.node {
		return fail(KindNode, subject, "node ids do not match (%s != %s)", node, s.node)
	}
	return nil
}

func (s *Store) begin(ctx context.Context, m mode, declared Scope) (t *ReadTx, err error) {
	sc, err := s.parseScope(declared)
	if err != nil {
		return nil, err
	}
	if err := s.takePlace(m, declared.Owner); err != nil {
		return nil, err
	}
	t = &ReadTx{s: s, mode: m, scope: sc, label: declared.Label, owner: declared.Owner}
	taken := t // a return sets t to nil
	defer func() {
		if err != nil {
			s.givePlace(taken)
		}
	}()
	if m != modeRead {
		t.edits = newEdits()
	}
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	t.since = time.Now()
	t.mu.Lock() // until the timer is set, which may go off at once
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		t.drop()
		return nil, fail(KindState, "", "the store is closed")
	}
	s.lastID++
	t.id = s.lastID
	s.open[t] = struct{}{}
	t.timer = time.AfterFunc(s.opts.MaxAge, func() {
		e := fail(KindExpired, t.label, "the transaction was open for more than %s and was rolled back", s.opts.MaxAge)
		if t.end(e) {
			s.expired.Add(1)
			s.opts.Logger.Warn("a transaction was open for too long", "kind", m.String(), "label", t.label, "age", s.opts.MaxAge)
		}
	})
	return t, nil
}

// takePlace counts a transaction in.
func (s *Store) takePlace(m mode, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fail(KindState, "", "the store is closed")
	case m != modeRead && s.failed != nil:
		return &Error{Kind: KindFailed, Subject: s.opts.File, Why: "the store takes no more writes", Err: s.failed}
	case s.places >= s.opts.MaxOpen:
		s.refused.Add(1)
		return tooMuch("MaxOpen", int64(s.opts.MaxOpen), "", "%d transactions are open or wait, and no more may; end some, or raise MaxOpen", s.places)
	case owner != "" && s.owners[owner] >= s.opts.MaxOpenEach:
		s.refused.Add(1)
		return tooMuch("MaxOpenEach", int64(s.opts.MaxOpenEach), "", "%d transactions of one caller are open or wait, and no more may; end some, or raise MaxOpenEach", s.owners[owner])
	}
	s.places++
	if owner != "" {
		s.owners[owner]++
	}
	return nil
}

// givePlace counts a transaction out.
func (s *Store) givePlace(t *ReadTx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places--
	if t.owner != "" {
		if s.owners[t.owner]--; s.owners[t.owner] == 0 {
			delete(s.owners, t.owner)
		}
	}
	delete(s.open, t)
	if s.closed && s.places == 0 {
		close(s.idle)
	}
}

// lock gets the claim and opens the snapshot under it.
func (t *ReadTx) lock(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		c := &claim{mode: t.mode}
		if t.mode == modeWrite {
			c.globs, c.ids = t.scope.globs, t.scope.lockedIDs()
			if !c.everything() {
				exact, err := t.s.aliases(nil, t.scope)
				if err != nil {
					return err
				}
				if attempt > maxAttempt || len(exact) > maxExact {
					c.globs = []glob{{open: true}}
				} else {
					c.exact = exact
				}
			}
		}
		if err := t.s.locks.acquire(ctx, c); err != nil {
			return err
		}
		t.claim = c
		if err := t.openSnapshot(); err != nil {
			t.drop()
			return err
		}
		if t.mode != modeWrite || c.everything() {
			return nil
		}
		// What was not locked yet when the claim was made may have changed until it
		// was granted.
		now, err := t.s.aliases(t.snap, t.scope)
		if err != nil {
			t.drop()
			return err
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(now)), func(key string) bool { _, ok := c.exact[key]; return !ok }) {
			return nil
		}
		t.drop()
	}
}

func (t *ReadTx) openSnapshot() error {
	return t.s.guard(func() (err error) {
		t.snap, err = t.s.db.Begin(false)
		return storageError(t.s.opts.File, err)
	})
}

// drop gives up snapshot and locks.
func (t *ReadTx) drop() {
	t.closeSnapshot()
	if t.claim != nil {
		t.s.locks.release(t.claim)
		t.claim = nil
	}
}

func (t *ReadTx) closeSnapshot() {
	if t.snap != nil {
		_ = t.snap.Rollback() // of a snapshot, it only fails if it is closed
		t.snap = nil
	}
}

// aliases are the paths that a writer must lock beside its scope, so that nobody else
// gets at the scope's resources: all paths of declared ids, and of resources that have
// one path inside and others. With no snapshot given it takes the newest.
func (s *Store) aliases(snap *bolt.Tx, sc scope) (paths map[string]glob, err error) {
	paths = map[string]glob{}
	err = s.guard(func() error {
		if snap == nil {
			tx, err := s.db.Begin(false)
			if err != nil {
				return storageError(s.opts.File, err)
			}
			defer func() { _ = tx.Rollback() }()
			snap = tx
		}
		b := base{snap}
		add := func(u uuid) error {
			keys, err := b.paths(u)
			for _, key := range keys {
				paths[key] = exactGlob(key)
			}
			return err
		}
		for u := range sc.ids {
			if err := add(u); err != nil {
				return err
			}
		}
		for _, g := range sc.globs {
			c := snap.Bucket([]byte(bucketAliases)).Cursor()
			for k, v := c.Seek([]byte(g.start())); k != nil; {
				ok, next := g.match(string(k))
				switch {
				case ok:
					u, err := unsealUUID(bucketAliases, k, v)
					if err != nil {
						return err
					}
					if err := add(u); err != nil {
						return err
					}
					if len(paths) > maxExact {
						return nil // all will be locked
					}
					k, v = c.Next()
				case next == "":
					k = nil
				default:
					k, v = c.Seek([]byte(next))
				}
			}
		}
		return nil
	})
	return paths, err
}

// end ends the transaction by rollback, for the given reason, and reports whether it
// was open.
func (t *ReadTx) end(why *Error) bool {
	t.mu.Lock()
	if t.ended != nil {
		t.mu.Unlock()
		return false
	}
	t.ended = why
	var staged []uint64
	if t.edits != nil {
		staged = t.edits.staged
	}
	t.edits = nil
	t.mu.Unlock()
	t.s.sweeper.add(staged)
	t.finish()
	return true
}

// finish frees what an ended transaction holds; whoever set t.ended calls it, once.
func (t *ReadTx) finish() {
	t.timer.Stop()
	t.mu.Lock()
	t.drop()
	t.mu.Unlock()
	t.s.givePlace(t)
}

// Close ends the transaction; what it has written and not committed is gone. Further
// calls do nothing.
func (t *ReadTx) Close() { t.end(fail(KindState, t.label, "the transaction is closed")) }

// do runs an operation.
func (t *ReadTx) do(fn func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil {
		return t.ended
	}
	return t.s.guard(fn)
}

// Node returns the node of the transaction. It does not fail after the end.
func (t *ReadTx) Node() address.NodeID { return t.s.node }

// base reads what is committed. All its methods copy what they return.
type base struct{ tx *bolt.Tx }

// base is what lies below the edits; nothing does if they began with removing all.
func (t *ReadTx) base() base {
	if t.edits != nil && t.edits.wiped {
		return base{}
	}
	return base{t.snap}
}

func (b base) bucket(name string) *bolt.Bucket { return b.tx.Bucket([]byte(name)) }

// get returns the value of a key, or nil; it is not copied.
func (b base) get(bucket string, key []byte) ([]byte, error) {
	if b.tx == nil {
		return nil, nil
	}
	value := b.bucket(bucket).Get(key)
	if value == nil {
		return nil, nil
	}
	return unseal(bucket, key, value)
}

// lookup finds the resource at a path.
func (b base) lookup(key string) (u uuid, ok bool, err error) {
	payload, err := b.get(bucketPaths, []byte(key))
	if err != nil || payload == nil {
		return u, false, err
	}
	if len(payload) != len(u) {
		return u, false, corrupt("path %q has %d bytes for an id", key, len(payload))
	}
	return uuid(payload), true, nil
}

// record finds a resource.
func (b base) record(u uuid) (r record, ok bool, err error) {
	payload, err := b.get(bucketResources, u[:])
	if err != nil || payload == nil {
		return r, false, err
	}
	r, err = decodeRecord(u[:], payload)
	r.inline = bytes.Clone(r.inline)
	return r, err == nil, err
}

// paths lists the keys of a resource's paths, in order.
func (b base) paths(u uuid) (keys []string, err error) {
	if b.tx == nil {
		return nil, nil
	}
	c := b.bucket(bucketReverse).Cursor()
	for k, v := c.Seek(u[:]); bytes.HasPrefix(k, u[:]); k, v = c.Next() {
		if _, err := unseal(bucketReverse, k, v); err != nil {
			return nil, err
		}
		keys = append(keys, string(k[len(u):]))
	}
	return keys, nil
}

// chunk reads one chunk.
func (b base) chunk(id uint64, index uint32) ([]byte, error) {
	key := chunkKey(id, index)
	payload, err := b.get(bucketChunks, key)
	if err == nil && payload == nil {
		err = corrupt("chunk %d of contents %d is missing", index, id)
	}
	return bytes.Clone(payload), err
}

// find looks a path up in what the transaction sees.
func (t *ReadTx) find(key string) (uuid, bool, error) {
	if t.edits != nil {
		if u, ok := t.edits.paths[key]; ok {
			if u == nil {
				return uuid{}, false, nil
			}
			return *u, true, nil
		}
	}
	return t.base().lookup(key)
}

// exists says whether the transaction sees a resource.
func (t *ReadTx) exists(u uuid) (bool, error) {
	if t.edits != nil {
		if r, ok := t.edits.resources[u]; ok {
			return r.exists, nil
		}
	}
	_, ok, err := t.base().record(u)
	return ok, err
}

// pathKeys lists the paths of a resource as the transaction sees them, in order.
func (t *ReadTx) pathKeys(u uuid) ([]string, error) {
	if t.edits != nil {
		if r, ok := t.edits.resources[u]; ok {
			return slices.Sorted(maps.Keys(r.paths)), nil
		}
	}
	return t.base().paths(u)
}

// covers reports whether the scope covers a resource: by its id, by one of its paths,
// or by one that it had before the transaction took it away.
func (t *ReadTx) covers(u uuid) (bool, error) {
	if t.scope.everything() || t.scope.hasID(u) {
		return true, nil
	}
	keys, err := t.pathKeys(u)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(keys, t.scope.coversKey) {
		return true, nil
	}
	if t.edits != nil {
		if r, ok := t.edits.resources[u]; ok {
			return slices.ContainsFunc(r.seen, t.scope.coversKey), nil
		}
	}
	return false, nil
}

// resource checks an id: its node, then the scope. It does not ask whether the
// resource exists.
func (t *ReadTx) resource(id address.ResourceID) (uuid, error) {
	if err := t.s.checkID(id.Node(), id.String()); err != nil {
		return uuid{}, err
	}
	u := id.UUID()
	ok, err := t.covers(u)
	if err == nil && !ok {
		err = fail(KindScope, id.String(), "the transaction declared neither this resource nor a path of it")
	}
	return u, err
}

// path checks a path that names one place: its node, its form, then the scope.
func (t *ReadTx) path(p address.Path) (string, error) {
	if err := t.s.checkNode(p); err != nil {
		return "", err
	}
	key := pathKey(p)
	switch {
	case p.IsRoot():
		return "", fail(KindArgument, p.String(), "a resource has at least one component in its path")
	case p.IsWildcard() || p.IsWildcardRecursive():
		return "", fail(KindArgument, p.String(), "a path with wildcards names no single place")
	case len(key) > t.s.opts.MaxPath:
		return "", tooMuch("MaxPath", int64(t.s.opts.MaxPath), "", "a path of %d bytes is longer than %d", len(key), t.s.opts.MaxPath)
	case !t.scope.coversKey(key):
		return "", fail(KindScope, p.String(), "the transaction did not declare this path, nor one above it")
	}
	return key, nil
}

func (t *ReadTx) toID(u uuid) address.ResourceID { return address.ResourceIDFromUUID(t.s.node, u) }

func notFound(subject string) *Error { return fail(KindNotFound, subject, "") }

// Exists reports whether there is such a resource, with or without contents. Errors:
// KindNode, KindScope.
func (t *ReadTx) Exists(id address.ResourceID) (ok bool, err error) {
	err = t.do(func() error {
		u, err := t.resource(id)
		if err != nil {
			return err
		}
		ok, err = t.exists(u)
		return err
	})
	return ok, err
}

// Lookup returns the resource at exactly this path. Errors: KindNode, KindArgument for
// wildcards and the root, KindScope, KindNotFound.
func (t *ReadTx) Lookup(p address.Path) (id address.ResourceID, err error) {
	err = t.do(func() error {
		key, err := t.path(p)
		if err != nil {
			return err
		}
		u, ok, err := t.find(key)
		if err == nil && !ok {
			err = notFound(p.String())
		}
		id = t.toID(u)
		return err
	})
	if err != nil {
		return address.ResourceID{}, err
	}
	return id, nil
}

// Paths lists all paths of a resource, in order, with the store's node as context;
// also those outside of the scope. Errors: KindNode, KindScope, KindNotFound.
func (t *ReadTx) Paths(id address.ResourceID) (paths []address.Path, err error) {
	err = t.do(func() error {
		u, err := t.existing(id)
		if err != nil {
			return err
		}
		keys, err := t.pathKeys(u)
		if err != nil {
			return err
		}
		for _, key := range keys {
			p, err := keyPath(t.s.context, key)
			if err != nil {
				return err
			}
			paths = append(paths, p)
		}
		return nil
	})
	return paths, err
}

// existing is resource for one that must exist.
func (t *ReadTx) existing(id address.ResourceID) (uuid, error) {
	u, err := t.resource(id)
	if err != nil {
		return u, err
	}
	ok, err := t.exists(u)
	if err == nil && !ok {
		err = notFound(id.String())
	}
	return u, err
}
