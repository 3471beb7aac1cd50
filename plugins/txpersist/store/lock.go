package store

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/elemental-conduit/conduit/address"
)

// claim is what a transaction locks, all at once: so there is no order in which to
// lock, and no deadlock between transactions.
type claim struct {
	mode  mode
	globs []glob          // each with all that lies below
	exact map[string]glob // single paths: keys to their components
	ids   map[uuid]struct{}
	ready chan struct{} // closed when granted

	all, none bool  // what everything and nothing say, once and for all
	tree      *tree // of the globs, if they are many
}

// everything is the claim of all paths and ids.
func (c *claim) everything() bool {
	return slices.ContainsFunc(c.globs, func(g glob) bool { return len(g.components) == 0 })
}

// nothing is the claim of a transaction that may touch nothing.
func (c *claim) nothing() bool { return len(c.globs) == 0 && len(c.exact) == 0 && len(c.ids) == 0 }

// conflicts reports whether c and d cannot be held at once. A snapshot claims nothing:
// it only keeps off, and is kept off by, who wants the store to itself.
func (c *claim) conflicts(d *claim) bool {
	if c.mode == modeExclusive || d.mode == modeExclusive {
		return true
	}
	if c.all || d.all { // also of ids that are at no path yet
		return !c.none && !d.none
	}
	if c.overlaps(d) {
		return true
	}
	// Most have none of these, and to begin to walk a map is not free.
	if len(d.exact) > 0 && c.hits(d) || len(c.exact) > 0 && d.hits(c) {
		return true
	}
	return len(c.exact) > 0 && len(d.exact) > 0 && meets(c.exact, d.exact) ||
		len(c.ids) > 0 && len(d.ids) > 0 && meets(c.ids, d.ids)
}

// overlaps reports whether a glob of c and one of d do.
func (c *claim) overlaps(d *claim) bool {
	if len(c.globs) > len(d.globs) {
		c, d = d, c
	}
	if d.tree != nil {
		return slices.ContainsFunc(c.globs, func(g glob) bool { return d.tree.overlaps(g.components) })
	}
	for _, g := range c.globs {
		if slices.ContainsFunc(d.globs, g.overlaps) {
			return true
		}
	}
	return false
}

// hits reports whether a glob of c covers a single path of d.
func (c *claim) hits(d *claim) bool {
	if c.tree != nil {
		for _, path := range d.exact {
			if c.tree.covers(path.components) {
				return true
			}
		}
		return false
	}
	for _, g := range c.globs {
		for _, path := range d.exact {
			if g.covers(path) {
				return true
			}
		}
	}
	return false
}

func meets[K comparable, V any](a, b map[K]V) bool {
	if len(b) < len(a) {
		a, b = b, a
	}
	for k := range a {
		if _, ok := b[k]; ok {
			return true
		}
	}
	return false
}

// lockTable grants claims in the order in which they were made, save that one that
// conflicts with nobody in front of it need not wait: so neither the exclusive nor
// the others starve. All methods are safe for concurrent use. The zero value is
// ready.
type lockTable struct {
	mu      sync.Mutex
	granted map[*claim]struct{}
	waiting []*claim
}

// acquire waits until the claim is granted, or returns why ctx ended.
func (t *lockTable) acquire(ctx context.Context, c *claim) error {
	if len(c.globs) > maxGlobs || countWild(c.globs) > maxWild {
		c.globs = []glob{{open: true}}
	}
	c.all, c.none, c.tree = c.everything(), c.nothing(), treeOf(c.globs)
	t.mu.Lock()
	if t.granted == nil {
		t.granted = map[*claim]struct{}{}
	}
	if t.free(c, t.waiting) {
		t.granted[c] = struct{}{}
		t.mu.Unlock()
		return nil
	}
	c.ready = make(chan struct{})
	t.waiting = append(t.waiting, c)
	t.mu.Unlock()
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, c); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else { // it was granted at the same moment
		delete(t.granted, c)
	}
	t.wake()
	return context.Cause(ctx)
}

func (t *lockTable) release(c *claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.granted, c)
	t.wake()
}

// free reports whether c conflicts with nothing granted and nothing in front.
func (t *lockTable) free(c *claim, front []*claim) bool {
	for d := range t.granted {
		if c.conflicts(d) {
			return false
		}
	}
	return !slices.ContainsFunc(front, c.conflicts)
}

// wake grants what has become free; t.mu is held.
func (t *lockTable) wake() {
	still := t.waiting[:0]
	for _, c := range t.waiting {
		if t.free(c, still) {
			t.granted[c] = struct{}{}
			close(c.ready)
		} else {
			still = append(still, c)
		}
	}
	clear(t.waiting[len(still):])
	t.waiting = still
}

// tree has many globs, all open, so that it costs little to find one of them.
type tree struct {
	ends bool // a glob does: what is below is its
	kids map[string]*tree
	any  *tree // of "*"
}

// treeOf makes a tree of so many globs that it is worth it; nil of fewer.
func treeOf(globs []glob) *tree {
	if len(globs) < minTree {
		return nil
	}
	root := &tree{}
	for _, g := range globs {
		root.add(g.components)
	}
	return root
}

func (n *tree) add(components []string) {
	for _, c := range components {
		if n.ends {
			return
		}
		kid := n.any
		if c != address.Wildcard {
			kid = n.kids[c]
		}
		if kid == nil {
			kid = &tree{}
			switch {
			case c == address.Wildcard:
				n.any = kid
			case n.kids == nil:
				n.kids = map[string]*tree{c: kid}
			default:
				n.kids[c] = kid
			}
		}
		n = kid
	}
	n.ends, n.kids, n.any = true, nil, nil
}

// overlaps is glob.overlaps with one of the tree's.
func (n *tree) overlaps(components []string) bool {
	switch {
	case n == nil:
		return false
	case n.ends || len(components) == 0:
		return true
	case components[0] != address.Wildcard:
		return n.kids[components[0]].overlaps(components[1:]) || n.any.overlaps(components[1:])
	case n.any.overlaps(components[1:]):
		return true
	}
	for _, kid := range n.kids {
		if kid.overlaps(components[1:]) {
			return true
		}
	}
	return false
}

// covers is glob.covers by one of the tree's.
func (n *tree) covers(components []string) bool {
	switch {
	case n == nil:
		return false
	case n.ends:
		return true
	case len(components) == 0:
		return false
	case components[0] != address.Wildcard && n.kids[components[0]].covers(components[1:]):
		return true
	}
	return n.any.covers(components[1:])
}

// countWild counts globs that have a wildcard.
func countWild(globs []glob) (n int) {
	for _, g := range globs {
		if slices.Contains(g.components, address.Wildcard) {
			n++
		}
	}
	return n
}

// exactGlob is the glob of one path's key.
func exactGlob(key string) glob {
	components, _ := keyComponents(key)
	return glob{components: components}
}

// Scope is what a transaction may touch. It covers the declared paths and all that
// lies below them, the declared ids, and every resource that has at least one path
// that is covered. A path may hold wildcards: "*" is any one component, at any depth;
// a trailing "**" adds the path in front of it. The root, "/", covers everything.
type Scope struct {
	Paths []address.Path
	IDs   []address.ResourceID
	// Label names the transaction in Stats and in the log; it may be empty.
	Label string
	// Owner is for whom it is, as Options.MaxOpenEach counts and Stats tells; it may be
	// empty.
	Owner string
	// Once names what a transaction that writes does, so that it is done once however
	// often it is asked for; see [WriteTx.Recall]. nil = it has no name.
	Once *Once
}

// scope is a Scope that was checked.
type scope struct {
	globs []glob // all open
	ids   map[uuid]struct{}
	tree  *tree    // of the globs, if they are many
	once  *keyEdit // without an answer; nil if it has none
}

// lockedIDs are the ids that a transaction locks: those of its scope, and one that
// stands for what it does once, so that of two that do the same one waits.
func (s scope) lockedIDs() map[uuid]struct{} {
	if s.once == nil {
		return s.ids
	}
	ids := maps.Clone(s.ids)
	ids[uuid(s.once.key[:16])] = struct{}{}
	return ids
}

func (s scope) everything() bool {
	return slices.ContainsFunc(s.globs, func(g glob) bool { return len(g.components) == 0 })
}

func (s scope) coversKey(key string) bool {
	if s.tree != nil {
		components, ok := keyComponents(key)
		return ok && s.tree.covers(components)
	}
	return slices.ContainsFunc(s.globs, func(g glob) bool { ok, _ := g.match(key); return ok })
}

func (s scope) coversGlob(g glob) bool {
	if s.tree != nil {
		return s.tree.covers(g.components)
	}
	return slices.ContainsFunc(s.globs, func(d glob) bool { return d.covers(g) })
}

func (s scope) hasID(u uuid) bool {
	_, ok := s.ids[u]
	return ok
}
