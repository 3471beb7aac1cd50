package store

import (
	"bytes"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/elemental-conduit/conduit/address"
)

// model is the store as a few maps. It knows what the operations mean and nothing of how they are kept.
type model struct {
	at  map[string]int // paths, as /x/y
	res map[int]*modelResource
}

type modelResource struct {
	paths    map[string]bool
	contents []byte // nil = none
	tasks    map[int]int64
}

func newModel() *model { return &model{map[string]int{}, map[int]*modelResource{}} }

func (m *model) clone() *model {
	out := &model{maps.Clone(m.at), map[int]*modelResource{}}
	for id, r := range m.res {
		out.res[id] = &modelResource{maps.Clone(r.paths), bytes.Clone(r.contents), maps.Clone(r.tasks)}
	}
	return out
}

func (m *model) create(id int, p string, contents []byte) {
	m.at[p] = id
	m.res[id] = &modelResource{map[string]bool{p: true}, contents, map[int]int64{}}
}

func (m *model) remove(id int) {
	for p := range m.res[id].paths {
		delete(m.at, p)
	}
	delete(m.res, id)
}

func (m *model) unlink(p string) {
	id := m.at[p]
	if len(m.res[id].paths) == 1 {
		m.remove(id)
		return
	}
	delete(m.at, p)
	delete(m.res[id].paths, p)
}

func (m *model) list(pattern string) (out []string) {
	g := address.MustParsePath(pattern)
	for p := range m.at {
		if g.Match(address.MustParsePath(p)) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return out
}

// modelTx is an open transaction beside what the model expects of it.
type modelTx struct {
	tx    *WriteTx // nil for a snapshot
	read  *ReadTx
	roots []string // the declared paths; "" is all
	locks []string // what nobody else has
	begun *model
	sees  *model
	seen  map[int]map[string]bool // paths that a resource ever had in it
	ops   []func(*model)          // to be done to what is committed
}

func under(root, p string) bool { return root == "" || p == root || strings.HasPrefix(p, root+"/") }

func (x *modelTx) covers(p string) bool {
	return slices.ContainsFunc(x.roots, func(r string) bool { return under(r, p) })
}

func (x *modelTx) coversID(id int) bool {
	if slices.Contains(x.roots, "") {
		return true
	}
	for _, m := range []*model{x.begun, x.sees} {
		if r := m.res[id]; r != nil {
			for p := range r.paths {
				if x.covers(p) {
					return true
				}
			}
		}
	}
	for p := range x.seen[id] {
		if x.covers(p) {
			return true
		}
	}
	return false
}

// existing is what an operation on an id must first be told.
func (x *modelTx) existing(id int) Kind {
	switch {
	case !x.coversID(id):
		return KindScope
	case x.sees.res[id] == nil:
		return KindNotFound
	}
	return ""
}

// do does an operation to what the transaction sees, and notes it for its commit.
func (x *modelTx) do(op func(*model)) {
	x.ops = append(x.ops, op)
	op(x.sees)
	for id, r := range x.sees.res {
		if x.seen[id] == nil {
			x.seen[id] = map[string]bool{}
		}
		maps.Copy(x.seen[id], r.paths)
	}
}

// TestModel runs random histories of all operations, in transactions that are open
// side by side, against the model: every result and error, what each snapshot sees, and
// the final state must agree, over closing and opening as well.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		h := &history{T: rt, ctx: t.Context(), file: filepath.Join(dir, strconv.Itoa(n)), committed: newModel()}
		h.open()
		defer func() { _ = h.s.Close() }()
		for i := range 16 {
			h.ids = append(h.ids, address.ResourceIDFromUUID(testNode, uuid{byte(i), 15: 1}))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write":       h.with(h.beginWrite),
			"read":        h.with(h.beginRead),
			"commit":      h.with(h.commit),
			"rollback":    h.with(h.rollback),
			"close read":  h.with(h.closeRead),
			"reopen":      h.with(h.reopen),
			"remove all":  h.with(h.removeAll),
			"save":        h.with(h.save),
			"save more":   h.with(h.save),
			"link new":    h.with(h.linkNew),
			"link":        h.with(h.link),
			"link more":   h.with(h.link),
			"unlink":      h.with(h.unlink),
			"remove":      h.with(h.remove),
			"matching":    h.with(h.removeMatching),
			"update":      h.with(h.update),
			"stream":      h.with(h.stream),
			"write at":    h.with(h.writeAt),
			"create task": h.with(h.createTask),
			"delete task": h.with(h.deleteTask),
			"lookup":      h.with(h.lookup),
			"look at":     h.with(h.lookAt),
			"list":        h.with(h.list),
			"":            h.with(h.check),
		})
		for len(h.writers) > 0 {
			h.commit()
		}
		h.reopen()
		h.check()
		if err := h.s.Check(t.Context()); err != nil {
			rt.Fatal(err)
		}
	})
}

type history struct {
	*rapid.T
	ctx       context.Context //nolint:containedctx // the test's own
	file      string
	s         *Store
	committed *model
	writers   []*modelTx
	readers   []*modelTx
	ids       []address.ResourceID
}

// with makes an action's own T that of the history, as rapid wants it.
func (h *history) with(action func()) func(*rapid.T) {
	return func(rt *rapid.T) {
		h.T = rt
		action()
	}
}

func (h *history) must(err error) {
	if err != nil {
		h.Fatal(err)
	}
}

func (h *history) want(err error, kind Kind) bool {
	if KindOf(err) != kind || err != nil && kind == "" {
		h.Fatalf("the error is %v, want one of kind %q", err, kind)
	}
	return err == nil
}

func (h *history) open() {
	s, err := Open(h.ctx, Options{File: h.file, Node: testNode, noSync: true, stage: chunkSize})
	h.must(err)
	h.s = s
}

func (h *history) reopen() {
	h.must(h.s.Close())
	h.writers, h.readers = nil, nil
	h.open()
}

func (h *history) id() int { return rapid.IntRange(0, len(h.ids)-1).Draw(h.T, "id") }

func (h *history) path() string {
	p := []string{"", rapid.SampledFrom([]string{"0", "1", "2"}).Draw(h.T, "root")}
	for range rapid.IntRange(0, 2).Draw(h.T, "depth") {
		p = append(p, rapid.SampledFrom([]string{"a", "ab", "b"}).Draw(h.T, "component"))
	}
	return strings.Join(p, "/")
}

func (h *history) writer() *modelTx {
	if len(h.writers) == 0 {
		h.beginWrite()
	}
	return rapid.SampledFrom(h.writers).Draw(h.T, "writer")
}

func (h *history) anyone() *modelTx {
	all := slices.Concat(h.writers, h.readers)
	if len(all) == 0 {
		return h.writer()
	}
	return rapid.SampledFrom(all).Draw(h.T, "transaction")
}

// roots is a scope, more often than not one that others leave room beside.
func (h *history) roots() []string {
	return rapid.SampledFrom([][]string{{""}, {"/0"}, {"/1"}, {"/2"}, {"/0", "/1"}, {"/1", "/2"}, {"/2/a"}}).Draw(h.T, "scope")
}

func scopeOf(roots []string) Scope {
	var sc Scope
	for _, r := range roots {
		sc.Paths = append(sc.Paths, address.MustParsePath(r))
	}
	return sc
}

// beginWrite opens a writer if the model says that it need not wait.
func (h *history) beginWrite() {
	x := &modelTx{roots: h.roots(), begun: h.committed.clone(), sees: h.committed.clone(), seen: map[int]map[string]bool{}}
	x.locks = slices.Clone(x.roots)
	for _, r := range h.committed.res {
		if slices.ContainsFunc(slices.Collect(maps.Keys(r.paths)), x.covers) {
			x.locks = slices.AppendSeq(x.locks, maps.Keys(r.paths))
		}
	}
	for _, other := range h.writers {
		for _, a := range x.locks {
			for _, b := range other.locks {
				if under(a, b) || under(b, a) {
					h.Skip("it would wait")
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
	defer cancel()
	tx, err := h.s.Write(ctx, scopeOf(x.roots))
	h.must(err)
	x.tx, x.read = tx, tx.ReadTx
	h.writers = append(h.writers, x)
}

func (h *history) beginRead() {
	x := &modelTx{roots: h.roots(), begun: h.committed.clone(), sees: h.committed.clone()}
	tx, err := h.s.Read(h.ctx, scopeOf(x.roots))
	h.must(err)
	x.read = tx
	h.readers = append(h.readers, x)
}

func (h *history) commit() {
	x := h.writer()
	h.writers = slices.DeleteFunc(h.writers, func(y *modelTx) bool { return x == y })
	var kind Kind
	for id := range x.sees.res { // an id that another one took meanwhile
		if x.begun.res[id] == nil && h.committed.res[id] != nil {
			kind = KindDuplicate
		}
	}
	if h.want(x.tx.Commit(h.ctx), kind) {
		for _, op := range x.ops {
			op(h.committed)
		}
	}
}

func (h *history) rollback() {
	x := h.writer()
	h.writers = slices.DeleteFunc(h.writers, func(y *modelTx) bool { return x == y })
	if rapid.Bool().Draw(h.T, "close") {
		x.tx.Close()
	} else {
		h.must(x.tx.Rollback())
	}
}

func (h *history) closeRead() {
	if len(h.readers) == 0 {
		h.Skip("nobody reads")
	}
	h.readers[0].read.Close()
	h.readers = h.readers[1:]
}

func (h *history) removeAll() {
	if len(h.writers)+len(h.readers) > 0 || rapid.IntRange(0, 3).Draw(h.T, "seldom") > 0 {
		h.Skip("it would wait")
	}
	tx, err := h.s.Exclusive(h.ctx, "")
	h.must(err)
	h.must(tx.RemoveAll(testNode))
	if rapid.Bool().Draw(h.T, "commit") {
		h.must(tx.Commit(h.ctx))
		h.committed = newModel()
	}
	tx.Close()
}

// creating is what a new resource must first be told.
func (x *modelTx) creating(id int, p string) Kind {
	_, taken := x.sees.at[p]
	switch {
	case !x.covers(p):
		return KindScope
	case x.sees.res[id] != nil || taken:
		return KindDuplicate
	}
	return ""
}

func (h *history) save() {
	x, id, p := h.writer(), h.id(), h.path()
	data := h.data()
	if h.want(x.tx.Save(address.MustParsePath(p), h.ids[id], data), x.creating(id, p)) {
		x.do(func(m *model) { m.create(id, p, bytes.Clone(data)) })
	}
}

// data is of a few bytes, or around one of the borders inside.
func (h *history) data() []byte {
	size := rapid.SampledFrom([]int{0, 1, 5, inlineMax, inlineMax + 1, chunkSize, chunkSize + 3, 2*chunkSize + 1}).Draw(h.T, "size")
	return bytes.Repeat([]byte{rapid.Byte().Draw(h.T, "byte")}, size)
}

func (h *history) linkNew() {
	x, id, p := h.writer(), h.id(), h.path()
	if h.want(x.tx.LinkNew(h.ids[id], address.MustParsePath(p)), x.creating(id, p)) {
		x.do(func(m *model) { m.create(id, p, nil) })
	}
}

func (h *history) link() {
	x, id, p := h.writer(), h.id(), h.path()
	kind := x.existing(id)
	if _, taken := x.sees.at[p]; kind == "" && taken {
		kind = KindDuplicate
	}
	if !x.covers(p) {
		kind = KindScope
	}
	if h.want(x.tx.Link(h.ids[id], address.MustParsePath(p)), kind) {
		x.do(func(m *model) {
			m.at[p] = id
			m.res[id].paths[p] = true
		})
	}
}

func (h *history) unlink() {
	x, p := h.writer(), h.path()
	var kind Kind
	id, there := x.sees.at[p]
	switch {
	case !x.covers(p):
		kind = KindScope
	case !there:
		kind = KindNotFound
	}
	got, err := x.tx.Unlink(address.MustParsePath(p))
	if !h.want(err, kind) {
		return
	}
	if want := (Unlinked{h.ids[id], len(x.sees.res[id].paths) == 1}); got != want {
		h.Fatalf("unlink of %s: %v, want %v", p, got, want)
	}
	x.do(func(m *model) { m.unlink(p) })
}

func (h *history) remove() {
	x, id := h.writer(), h.id()
	if h.want(x.tx.Remove(h.ids[id]), x.existing(id)) {
		x.do(func(m *model) { m.remove(id) })
	}
}

func (h *history) removeMatching() {
	x := h.writer()
	root := rapid.SampledFrom(x.roots).Draw(h.T, "of")
	pattern := root + rapid.SampledFrom([]string{"/**", "/*", "/*/b"}).Draw(h.T, "pattern")
	limit := rapid.IntRange(0, 3).Draw(h.T, "limit")
	got, err := x.tx.RemoveMatching(address.MustParsePath(pattern), limit)
	h.must(err)
	var want []int
	for _, p := range x.sees.list(pattern) {
		if id := x.sees.at[p]; len(want) < limit && !slices.Contains(want, id) {
			want = append(want, id)
		}
	}
	if len(got) != len(want) {
		h.Fatalf("%s removes %v, want %v", pattern, got, want)
	}
	for i, id := range want {
		if got[i] != h.ids[id] {
			h.Fatalf("%s removes %v, want %v", pattern, got, want)
		}
		x.do(func(m *model) { m.remove(id) })
	}
}

func (h *history) update() {
	x, id, data := h.writer(), h.id(), h.data()
	if h.want(x.tx.Update(h.ids[id], data), x.existing(id)) {
		x.do(func(m *model) { m.res[id].contents = append([]byte{}, data...) })
	}
}

// stream writes contents piece by piece, so that some of them are in the file before their
// commit: those of a new resource or, if there is one, in the place of others.
func (h *history) stream() {
	x, id, p := h.writer(), h.id(), h.path()
	var w *Writer
	var err error
	create := x.sees.res[id] == nil
	if create {
		w, err = x.tx.Create(address.MustParsePath(p), h.ids[id])
		create = h.want(err, x.creating(id, p))
	} else {
		w, err = x.tx.Replace(h.ids[id])
		if !h.want(err, x.existing(id)) {
			return
		}
	}
	if err != nil {
		return
	}
	var data []byte
	for range rapid.IntRange(1, 4).Draw(h.T, "pieces") {
		piece := h.data()
		_, err := w.Write(piece)
		h.must(err)
		data = append(data, piece...)
	}
	x.do(func(m *model) {
		if create {
			m.create(id, p, nil)
		}
		m.res[id].contents = append([]byte{}, data...)
	})
}

func (h *history) writeAt() {
	x, id, data := h.writer(), h.id(), h.data()
	kind := x.existing(id)
	at := 0
	if kind == "" {
		if n := len(x.sees.res[id].contents); n > 8*chunkSize {
			h.Skip("large enough")
		} else {
			at = rapid.IntRange(0, n+1).Draw(h.T, "at")
			if at > n {
				kind = KindArgument
			}
		}
	}
	if !h.want(x.tx.WriteAt(h.ids[id], data, int64(at)), kind) {
		return
	}
	x.do(func(m *model) {
		old := m.res[id].contents
		// Not nil, which Concat makes of nothing: contents of no bytes are contents.
		m.res[id].contents = append([]byte{}, slices.Concat(old[:at], data, old[min(at+len(data), len(old)):])...)
	})
}

func (h *history) task(id int) (int, address.TaskID) {
	n := rapid.IntRange(0, 2).Draw(h.T, "task")
	return n, address.TaskIDFromUUID(h.ids[id], uuid{byte(n)})
}

func (h *history) createTask() {
	x, id := h.writer(), h.id()
	n, task := h.task(id)
	due := rapid.Int64Range(-2, 5).Draw(h.T, "due")
	if h.want(x.tx.CreateTask(task, time.UnixMilli(due)), x.existing(id)) {
		x.do(func(m *model) { m.res[id].tasks[n] = due })
	}
}

func (h *history) deleteTask() {
	x, id := h.writer(), h.id()
	n, task := h.task(id)
	kind := x.existing(id)
	if kind == "" {
		if _, ok := x.sees.res[id].tasks[n]; !ok {
			kind = KindNoTask
		}
	}
	if h.want(x.tx.DeleteTask(task), kind) {
		x.do(func(m *model) { delete(m.res[id].tasks, n) })
	}
}

func (h *history) lookup() {
	x, p := h.anyone(), h.path()
	id, there := x.sees.at[p]
	var kind Kind
	switch {
	case !x.covers(p):
		kind = KindScope
	case !there:
		kind = KindNotFound
	}
	if got, err := x.read.Lookup(address.MustParsePath(p)); h.want(err, kind) && got != h.ids[id] {
		h.Fatalf("%s has %s, want %s", p, got, h.ids[id])
	}
}

// lookAt compares all that a resource has.
func (h *history) lookAt() { h.compare(h.anyone(), h.id()) }

func (h *history) compare(x *modelTx, id int) {
	rid := h.ids[id]
	kind := x.existing(id)
	ok, err := x.read.Exists(rid)
	if kind == KindScope {
		h.want(err, KindScope)
		return
	}
	if h.must(err); ok != (kind == "") {
		h.Fatalf("exists of %d is %t", id, ok)
	}
	got, err := x.read.Paths(rid)
	if !h.want(err, kind) {
		return
	}
	r := x.sees.res[id]
	if len(got) != len(r.paths) {
		h.Fatalf("resource %d has paths %v, want %v", id, got, r.paths)
	}
	for _, p := range got {
		if !r.paths[p.WithoutContext().String()] {
			h.Fatalf("resource %d has path %s, want one of %v", id, p, r.paths)
		}
	}
	kind = ""
	if r.contents == nil {
		kind = KindNoContents
	}
	data, err := x.read.Load(rid)
	if h.want(err, kind) && !bytes.Equal(data, r.contents) {
		h.Fatalf("resource %d has %d bytes %q, want %d %q", id, len(data), brief(data), len(r.contents), brief(r.contents))
	}
	tasks, err := x.read.Tasks(rid)
	h.must(err)
	if len(tasks) != len(r.tasks) {
		h.Fatalf("resource %d has tasks %v, want %v", id, tasks, r.tasks)
	}
	for _, task := range tasks {
		if due, ok := r.tasks[int(task.ID.UUID()[0])]; !ok || due != task.Due.UnixMilli() {
			h.Fatalf("resource %d has task %v, want %v", id, task, r.tasks)
		}
	}
}

func (h *history) list() {
	x := h.anyone()
	root := rapid.SampledFrom(x.roots).Draw(h.T, "of")
	pattern := root + rapid.SampledFrom([]string{"/**", "/*", "/*/b", "/a/*", "/*/*/**", "/a"}).Draw(h.T, "pattern")
	var got []string
	if limit := rapid.IntRange(0, 3).Draw(h.T, "page"); limit > 0 {
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := x.read.Page(address.MustParsePath(pattern), cursor, limit)
			h.must(err)
			for _, l := range page.Listings {
				got = append(got, l.Path.WithoutContext().String())
			}
			cursor = page.Next
		}
	} else {
		for l, err := range x.read.List(address.MustParsePath(pattern)) {
			h.must(err)
			got = append(got, l.Path.WithoutContext().String())
		}
	}
	if want := x.sees.list(pattern); !slices.Equal(got, want) {
		h.Fatalf("%s has %v, want %v", pattern, got, want)
	}
}

// check compares what is committed, and what is due.
func (h *history) check() {
	tx, err := h.s.Read(h.ctx, scopeOf([]string{""}))
	h.must(err)
	defer tx.Close()
	x := &modelTx{roots: []string{""}, read: tx, begun: h.committed, sees: h.committed}
	for id := range h.ids {
		h.compare(x, id)
	}
	due, err := h.s.Due(h.ctx, time.UnixMilli(3), 1000)
	h.must(err)
	want := 0
	for _, r := range h.committed.res {
		for _, at := range r.tasks {
			if at <= 3 {
				want++
			}
		}
	}
	if len(due) != want || !slices.IsSortedFunc(due, func(a, b Task) int { return a.Due.Compare(b.Due) }) {
		h.Fatalf("due are %v, want %d", due, want)
	}
}
