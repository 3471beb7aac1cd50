package store

import (
	"slices"
	"strings"
)

// edits are what a transaction has written and not committed.
type edits struct {
	paths     map[string]*uuid // what is at a path; nil = nothing any more
	resources map[uuid]*resourceEdit
	wiped     bool // all that was committed goes first
	bytes     int64
	once      *keyEdit // what is remembered of it; nil = nothing
	staged    []uint64 // contents that are in the file already

	part  *stagedPart // of a transaction that goes on; nothing else is in these edits then
	sweep *sweepEdit  // what a rollback has left; likewise
}

func newEdits() *edits {
	return &edits{paths: map[string]*uuid{}, resources: map[uuid]*resourceEdit{}}
}

func (e *edits) empty() bool {
	return len(e.paths) == 0 && len(e.resources) == 0 && !e.wiped && e.once == nil
}

// has reports whether the edits say what is at a path; a nil e says nothing.
func (e *edits) has(key string) bool {
	if e == nil {
		return false
	}
	_, ok := e.paths[key]
	return ok
}

// scan returns all entries of the edits that g matches behind the key last.
func (e *edits) scan(g glob, last string) (out []entry) {
	for key, u := range e.paths {
		if u == nil || key <= last {
			continue
		}
		if ok, _ := g.match(key); ok {
			out = append(out, entry{key, *u})
		}
	}
	return out
}

// resourceEdit is a resource as the transaction left it, beside how it was.
type resourceEdit struct {
	was      bool // it is committed
	stored   record
	oldPaths []string

	exists   bool
	paths    map[string]struct{}
	seen     []string // all paths that it ever had, for the scope
	contents *contents
	tasks    map[uuid]*int64 // changed ones; nil = deleted
	forget   bool            // the committed contents and tasks are not its own: it was removed meanwhile
}

// edit returns the edit of a resource, which becomes one with this.
func (t *ReadTx) edit(u uuid) (*resourceEdit, error) {
	if r, ok := t.edits.resources[u]; ok {
		return r, nil
	}
	r := &resourceEdit{paths: map[string]struct{}{}, tasks: map[uuid]*int64{}}
	var err error
	b := t.base()
	if r.stored, r.was, err = b.record(u); err != nil {
		return nil, err
	}
	r.exists = r.was
	if r.oldPaths, err = b.paths(u); err != nil {
		return nil, err
	}
	r.seen = slices.Clone(r.oldPaths)
	for _, key := range r.oldPaths {
		r.paths[key] = struct{}{}
	}
	if err := t.spend(editCost); err != nil {
		return nil, err
	}
	t.edits.resources[u] = r
	return r, nil
}

// spend counts what the transaction keeps in memory.
func (t *ReadTx) spend(n int64) error {
	if limit := t.s.opts.MaxWrites; t.edits.bytes+n > limit {
		return tooMuch("MaxWrites", limit, t.label, "the transaction writes more than %d bytes; make it smaller, or raise MaxWrites", limit)
	}
	t.edits.bytes += n
	return nil
}

// addPath puts a resource at a free path.
func (t *ReadTx) addPath(r *resourceEdit, u uuid, key string) error {
	if err := t.spend(editCost + int64(len(key))); err != nil {
		return err
	}
	key = strings.Clone(key)
	r.paths[key] = struct{}{}
	r.seen = append(r.seen, key)
	t.edits.paths[key] = &u
	return nil
}

// removePath frees a path.
func (t *ReadTx) removePath(r *resourceEdit, key string) {
	delete(r.paths, key)
	t.edits.paths[key] = nil
}

// remove makes a resource go with all that it has. It needs no memory that was not
// counted, so that what takes away always works.
func (t *ReadTx) remove(r *resourceEdit) {
	for key := range r.paths {
		t.removePath(r, key)
	}
	if r.contents != nil {
		t.edits.bytes -= r.contents.held()
	}
	r.exists, r.contents, r.forget = false, nil, true
	clear(r.tasks)
}
