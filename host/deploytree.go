package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/manifest"
)

// DeployTree takes a directory, as Deploy takes a binary. All of it is read to its end,
// written beside the deployments and examined as a scan examines a directory: its manifest,
// and whether what that names is there and may run. Each of its programs that does not
// serve already is started, without being configured, to say what it is. Only then the
// whole directory takes its name, in exchange for the one that had it: at every moment that
// has the old one or the new, whole, also after a crash. What is deployed serves as after
// any other change of a directory: only what has changed is swapped.
//
// DeployTree returns when all elements serve, or the deployment is disabled, or when it
// holds the same files already and they serve. The errors are those of Deploy. The sums of
// the Change are those of listings: of the files' SHA-256, modes and paths.
func (h *Host) DeployTree(ctx context.Context, t Tree) (Change, error) {
	if err := h.operable(); err != nil {
		return Change{}, err
	}
	if err := t.check(); err != nil {
		return Change{}, err
	}
	if err := h.mayTake(t.Name, t.Transient, t.Replace); err != nil { // before all of it is read
		return Change{}, err
	}
	place, err := h.placeOfTree(t)
	if err != nil {
		return Change{}, err
	}
	kept := &pins{h: h}
	defer kept.release()
	content, err := h.receiveTree(ctx, t, kept)
	if err != nil {
		return Change{}, err
	}
	if err := h.stage(place, content); err != nil {
		return Change{}, err
	}
	defer h.unstage(place)
	found, err := h.examineTree(place)
	if err != nil {
		return Change{}, err
	}
	if err := h.probeAll(ctx, place, found); err != nil {
		return Change{}, err
	}
	unlock, err := h.turns.take(ctx, t.Name)
	if err != nil {
		return Change{}, err
	}
	p, err := h.putTree(ctx, t, place, content, found, kept)
	unlock() // who comes after may have it otherwise, however long this one takes
	if err != nil {
		return Change{}, err
	}
	return h.awaitTree(ctx, place, content, p)
}

// site is where a directory is going to be.
type site struct {
	name      string // of the deployment
	parent    string
	path      string // its own, in parent; empty until a transient one has an id
	staged    string // where it is written, beside it
	transient bool
}

// placeOfTree says where a directory is going to be.
func (h *Host) placeOfTree(t Tree) (site, error) {
	s := site{name: t.Name, transient: t.Transient}
	var err error
	if t.Transient {
		if h.o.Verify == VerifyRequired {
			return s, refusedUpload(t.Name, &cause{refusedNoChecksum, fmt.Sprintf("host.verify is %s, and %s names no transient deployment: deploy it without --transient", h.o.Verify, sumsName)})
		}
		s.parent = filepath.Join(h.priv.dir, "transient")
		if err := os.MkdirAll(s.parent, 0o700); err != nil {
			return s, refusedUpload(t.Name, err)
		}
	} else {
		if s.parent, err = h.directory(); err != nil {
			return s, whoCannotWrite(h.o.Dir, err)
		}
		s.path = filepath.Join(s.parent, t.Name)
		if err := noFile(s.path); err != nil {
			return s, err
		}
	}
	s.staged = filepath.Join(s.parent, h.halfDeployed(rand.Text()))
	return s, nil
}

// noFile returns an error if a deployment is a file, or a link, whose place no directory
// may take.
func noFile(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		return badDeployment("%s is no directory: undeploy it before one takes its name", path)
	}
	return nil
}

// isTree reports whether a deployment is a directory.
func (h *Host) isTree(name string) bool {
	dir, err := h.directory()
	if err != nil {
		return false
	}
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.IsDir()
}

// stage writes a directory beside its place.
func (h *Host) stage(s site, t tree) error {
	at := h.placing
	if at == nil || s.transient {
		at = func(string) {}
	}
	err := h.writeTree(s.staged, t, at)
	if d, ok := errors.AsType[*damaged](err); ok {
		return operatorError(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "%s was not deployed: %v", s.name, d)
	}
	if err != nil {
		return whoCannotWrite(s.parent, err)
	}
	return nil
}

// unstage removes what was staged, or what it has replaced.
func (h *Host) unstage(s site) {
	if err := os.RemoveAll(s.staged); err != nil {
		h.log.Warn("what a deploy has left cannot be removed; the next start tries again", "path", s.staged, "error", err)
	}
}

// examineTree looks at a directory that was staged, as a scan would at its place, and
// returns what it declares, as it is going to be found there. The error says what of it is
// refused.
func (h *Host) examineTree(s site) ([]finding, error) {
	as := cmp.Or(s.path, s.name)
	refuse := func(kind, reason string) error {
		return refusedUpload(s.name, &cause{kind, strings.ReplaceAll(reason, s.staged, as)})
	}
	if _, err := os.Lstat(filepath.Join(s.staged, manifest.Name)); err == nil {
		if wrong := manifest.CheckDir(s.staged, h.o.AllowUnsafe); len(wrong) > 0 {
			return nil, refuse(refusedManifest, (&manifest.Error{Problems: wrong}).Error())
		}
	}
	look := newScanner(&h.o, h.store)
	look.log = hclog.NewNullLogger() // the scan that takes it says it once more
	look.now, look.placed = time.Now(), map[string]bool{s.name: true}
	if s.transient {
		look.verify = VerifyOff // no list names it
	} else if h.o.Verify != VerifyOff {
		look.sums = readSums(s.parent, h.o.AllowUnsafe)
	}
	found, waiting := look.scanDirectory(s.parent, s.name, s.staged, map[string]bool{})
	switch {
	case waiting > 0:
		return nil, operatorError(conduit.Aborted, conduit.ReasonSuperseded, conduit.Refused, "%s is not deployed: what was written at %s changed while it was looked at", s.name, s.staged)
	case len(found) == 0:
		return nil, badDeployment("%s is not deployed: it holds neither a %s nor a program", s.name, manifest.Name)
	}
	for i := range found {
		if f := &found[i]; f.refused != nil {
			return nil, refuse(f.refused.kind, f.refused.reason)
		}
	}
	return found, nil
}

// moved returns what was found of a staged directory as it is found at its place.
func (s site) moved(found []finding) []finding {
	found = slices.Clone(found)
	for i := range found {
		f := &found[i]
		f.home, f.path = s.path, strings.Replace(f.path, s.staged, s.path, 1)
		if f.binary != nil {
			b := *f.binary
			b.source, b.namedAt = strings.Replace(b.source, s.staged, s.path, 1), strings.Replace(b.namedAt, s.staged, s.path, 1)
			f.binary = &b
		}
	}
	return found
}

// probeAll asks each program that is not known to serve what it is.
func (h *Host) probeAll(ctx context.Context, s site, found []finding) error {
	for _, f := range found {
		if f.binary == nil || h.serves(f) {
			continue
		}
		if err := h.probe(ctx, f); err != nil {
			e := *conduit.AsError(err, conduit.Refused)
			e.Message = strings.ReplaceAll(e.Message, s.staged, cmp.Or(s.path, s.name))
			if f.slot != f.name {
				e.Message += " (element " + f.slot + ")"
			}
			return &e
		}
	}
	return nil
}

// serves reports whether the binary of an element serves, given the same.
func (h *Host) serves(f finding) bool {
	h.mu.Lock()
	e := h.elements[keyOf(f.name, f.slot)]
	h.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gen != nil && e.gen.sum == f.binary.sum && e.gen.binary.key == f.binary.key && e.gen.binary.named == f.binary.named
}

// placed is a directory that was put into its place.
type placed struct {
	all  []begun
	was  string // what was there; empty = nothing, or nobody knows
	same bool
	note string
}

// putTree gives a staged directory its place, has the host look at it, and returns what its
// elements are to run. It holds the deployment's turn.
func (h *Host) putTree(ctx context.Context, t Tree, s site, content tree, found []finding, kept *pins) (p placed, err error) {
	if !t.Transient {
		if err := h.rescan(ctx, ""); err != nil {
			return p, err
		}
	}
	if err := h.mayTake(t.Name, t.Transient, t.Replace); err != nil { // it may have changed while it came
		return p, err
	}
	if t.Transient {
		return h.putTransientTree(s, content, found)
	}
	if err := noFile(s.path); err != nil {
		return p, err
	}
	if h.o.Verify != VerifyOff {
		if found, err = h.examineTree(s); err != nil { // the list may be another by now
			return p, err
		}
	}
	if p.was, p.note, err = h.keepCurrent(ctx, s, kept); err != nil {
		return p, err
	}
	if p.was == content.sum {
		if p.all, p.same = begunOf(h.living(t.Name), true); len(p.all) > 0 {
			return p, nil
		}
	}
	h.log.Info("deployed by an operator", "deployment", t.Name, "tree", content.sum, "was", p.was)
	p.all, err = h.replaceTree(ctx, s, content, found)
	return p, err
}

// keepCurrent copies what is at a directory's place to the store, and remembers it if it
// serves. The note says why it cannot be rolled back to.
func (h *Host) keepCurrent(ctx context.Context, s site, kept *pins) (sum, note string, err error) {
	switch _, err := os.Lstat(s.path); {
	case errors.Is(err, os.ErrNotExist):
		return "", "", nil
	case err != nil:
		return "", "", whoCannotWrite(s.parent, err)
	}
	serves := h.servesWhole(ctx, s.name)
	now, err := h.keepTree(s.path, kept)
	if err != nil {
		note = "what it has replaced is not kept to roll back to: " + rootCause(err).Error()
	}
	err = h.record.change(s.name, func(r *recorded) {
		switch {
		case note != "": // what served before that is not what a rollback is for
			r.Placed, r.GoodTree, r.BeforeTree = "", "", ""
			return
		case serves:
			servesTree(r, now.sum)
		}
		r.Placed = now.sum // it is what is there, whoever has put it there
	})
	if err != nil {
		return "", "", errNotWritable("%v", err)
	}
	return now.sum, note, nil
}

// servesWhole reports whether all that a directory declares serves, as it is now.
func (h *Host) servesWhole(ctx context.Context, name string) bool {
	if h.look(ctx, name) {
		return false
	}
	list := h.living(name)
	for _, e := range list {
		if f, _ := e.wanted(); f.stale != "" || f.binary == nil || f.binary.id() != e.servedID() {
			return false
		}
	}
	return len(list) > 0
}

// living returns the elements of a deployment that is in the deployments directory, in
// order, without those that are leaving.
func (h *Host) living(name string) []*element {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(h.list(), func(e *element) bool {
		_, gone := e.wanted()
		return gone || e.transient != "" || e.deployment != name
	})
}

// begunOf returns what elements are to run. With anew, those that do not serve it are
// started once more; same says that there is none.
func begunOf(list []*element, anew bool) (all []begun, same bool) {
	same = true
	for _, e := range list {
		f, _ := e.wanted()
		if anew && f.binary != nil && f.binary.id() != e.servedID() && !e.isOff() {
			e.startAnew()
			same = false
		}
		b := begun{e: e, round: e.round(), rests: f.disabled}
		if f.binary != nil {
			b.sum, b.id = f.binary.sum, f.binary.id()
		}
		all = append(all, b)
	}
	return all, same
}

// replaceTree gives a staged directory its name, and has the host take it over. What had
// the name is where it was staged.
func (h *Host) replaceTree(ctx context.Context, s site, content tree, found []finding) ([]begun, error) {
	if err := moveTree(s.staged, s.path); err != nil {
		return nil, whoCannotWrite(s.parent, err)
	}
	if h.placing != nil {
		h.placing(stepRenamed)
	}
	if err := syncDir(s.parent); err != nil {
		return nil, whoCannotWrite(s.parent, err)
	}
	if err := h.record.change(s.name, func(r *recorded) { r.Placed = content.sum }); err != nil {
		h.log.Warn("what is remembered of a deployment is not up to date", "deployment", s.name, "error", err)
	}
	for n := 0; ; n++ {
		if err := h.rescan(ctx, s.name); err != nil {
			return nil, err
		}
		if list := h.living(s.name); tookAll(list, found) {
			all, _ := begunOf(list, false)
			return all, nil
		}
		if n == takenLooks {
			return nil, operatorError(conduit.Unavailable, conduit.ReasonDeployFailed, conduit.Executed,
				"%s is in its place, and the host has not taken all of it over yet: an element of an earlier deploy may still finish its calls, its disk may be full, or another program writes there; it tries again by itself, and its log says more", s.path)
		}
		select {
		case <-time.After(restOf(&h.o)):
		case <-ctx.Done():
			return nil, conduit.FromContext(ctx, conduit.OutcomeUnknown)
		}
	}
}

// tookAll reports whether elements are what was found of a directory, or are refused.
func tookAll(list []*element, found []finding) bool {
	if len(list) != len(found) {
		return false
	}
	bySlot := map[string]finding{}
	for _, f := range found {
		bySlot[f.slot] = f
	}
	for _, e := range list {
		is, _ := e.wanted()
		f, ok := bySlot[e.slot]
		switch {
		case is.refused != nil: // the wait tells for what
		case !ok || is.disabled != f.disabled, (is.binary == nil) != (f.binary == nil):
			return false
		case is.binary != nil && (is.binary.sum != f.binary.sum || is.binary.key != f.binary.key):
			return false
		}
	}
	return true
}

// awaitTree waits until all elements of a directory serve, and remembers that they do.
func (h *Host) awaitTree(ctx context.Context, s site, content tree, p placed) (Change, error) {
	c, err := h.awaitAll(ctx, p.all)
	c.Sum, c.Was = content.sum, p.was
	if err != nil {
		return c, err
	}
	if p.same && c.Result == ResultReady {
		c.Result, c.Note = ResultUnchanged, "it has these files already; nothing was started"
	}
	if p.note != "" {
		c.Note = strings.TrimPrefix(c.Note+"; "+p.note, "; ")
	}
	if c.Result != ResultReady || s.transient {
		return c, nil
	}
	err = h.record.change(s.name, func(r *recorded) {
		if r.Placed == content.sum { // else another one has taken its place meanwhile
			servesTree(r, content.sum)
		}
	})
	if err != nil {
		h.log.Warn("a rollback may not find what served before", "deployment", s.name, "error", err)
	}
	h.unused.Store(true)
	return c, nil
}

// putTransientTree is putTree for what goes with the process.
func (h *Host) putTransientTree(s site, content tree, found []finding) (p placed, err error) {
	h.mu.Lock()
	old := h.transientNamed(s.name)
	var id, base string
	switch {
	case !h.stopBy.IsZero():
		h.mu.Unlock()
		return p, errHostStops()
	case old == nil:
		id, base = h.newTransient()
	case old.slot == "":
		h.mu.Unlock()
		return p, badDeployment("%s is one file: undeploy it before a directory takes its name", s.name)
	default:
		id, base = old.transient, old.base
	}
	p.was = h.trees[id]
	for _, f := range found {
		e := h.transients[keyOf(id, f.slot)]
		if e == nil {
			continue
		}
		if _, gone := e.wanted(); gone {
			h.mu.Unlock()
			return p, operatorError(conduit.Aborted, conduit.ReasonSuperseded, conduit.Refused, "%s is not deployed: element %s, which an earlier deploy has removed, still finishes its calls; deploy it again when they have ended", s.name, f.slot)
		}
	}
	h.mu.Unlock()
	s.path = filepath.Join(base, "tree")
	if p.was != content.sum {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return p, refusedUpload(s.name, err)
		}
		if err := moveTree(s.staged, s.path); err != nil {
			return p, whoCannotWrite(base, err)
		}
		h.log.Info("transient deployment", "deployment", s.name, "transient", id, "tree", content.sum, "was", p.was)
	}
	list := h.applyTransient(id, base, s.moved(found))
	h.mu.Lock()
	h.trees[id] = content.sum
	h.mu.Unlock()
	h.rebuild()
	p.all, p.same = begunOf(list, p.was == content.sum)
	p.same = p.same && p.was == content.sum
	return p, nil
}

// applyTransient makes the elements of a transient deployment those that were found, and
// returns them.
func (h *Host) applyTransient(id, base string, found []finding) (list []*element) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := map[string]bool{}
	cordoned := false
	for _, e := range h.transients {
		cordoned = cordoned || e.transient == id && e.cordoned.Load()
	}
	for _, f := range found {
		key := keyOf(id, f.slot)
		kept[key] = true
		f = h.withAttributes(f)
		e := h.transients[key]
		if e != nil {
			e.update(f)
			e.place.Store(int64(f.place))
		} else {
			e = newElement(h, f)
			e.transient, e.base, e.deploymentID = id, base, address.DeploymentID{}
			e.log = e.log.With("transient", id)
			e.cordoned.Store(cordoned)
			h.transients[key] = e
			h.begin(e)
		}
		list = append(list, e)
	}
	for key, e := range h.transients {
		if e.transient == id && !kept[key] {
			e.remove()
		}
	}
	return list
}

// rollbackTree is Rollback of a deployment that is a directory. It gives the turn back.
func (h *Host) rollbackTree(ctx context.Context, name string, unlock func()) (Change, error) {
	kept := &pins{h: h}
	defer kept.release()
	s, content, p, err := h.putBackTree(ctx, name, kept)
	unlock()
	if err != nil {
		return Change{}, err
	}
	return h.awaitTree(ctx, s, content, p)
}

func (h *Host) putBackTree(ctx context.Context, name string, kept *pins) (s site, content tree, p placed, err error) {
	if s, err = h.placeOfTree(Tree{Name: name}); err != nil {
		return s, content, p, err
	}
	if err := h.rescan(ctx, ""); err != nil {
		return s, content, p, err
	}
	if p.was, p.note, err = h.keepCurrent(ctx, s, kept); err != nil {
		return s, content, p, err
	}
	content.sum = h.record.of(name).treeBehind(p.was)
	if content.sum == "" {
		return s, content, p, errNoPrevious("deployment %s has nothing to go back to: no other directory of that name has served that an operator's deploy has replaced; deploy it from its source", name)
	}
	kept.add(content.sum)
	if content.leaves, err = h.store.tree(content.sum); err == nil {
		for _, l := range content.leaves {
			kept.add(l.sum)
		}
		err = h.stage(s, content)
	}
	if err != nil {
		if e, ok := errors.AsType[*conduit.Error](err); ok && e.Reason == conduit.ReasonNotWritable {
			return s, content, p, e
		}
		return s, content, p, errNoPrevious("what deployment %s could go back to is not usable: %v (%s); deploy it from its source", name, err, content.sum)
	}
	defer h.unstage(s)
	found, err := h.examineTree(s)
	if err != nil {
		return s, content, p, err
	}
	h.log.Info("rolled back by an operator", "deployment", name, "tree", content.sum, "was", p.was)
	p.all, err = h.replaceTree(ctx, s, content, found)
	return s, content, p, err
}

// forgottenTree is told that an element of a directory has left. With the last one goes
// what its deployment could be rolled back to.
func (h *Host) forgottenTree(name string) {
	h.mu.Lock()
	for _, f := range h.found {
		if f.name == name && f.slot != "" {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	err := h.record.change(name, func(r *recorded) { r.Placed, r.GoodTree, r.BeforeTree = "", "", "" })
	if err != nil {
		h.log.Warn("what is remembered of a deployment is not up to date", "deployment", name, "error", err)
	}
}
