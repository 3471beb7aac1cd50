package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// operations is what a host keeps for the commands of operators.
type operations struct {
	news *broadcast

	// begin runs a new element; nil until the host is up. Guarded by Host.mu, as are
	// the transient deployments.
	begin      func(*element)
	transients map[string]*element // by the id, and behind it the slot of one of a directory
	trees      map[string]string   // what the directories of transient deployments hold, by the id
	counted    uint64              // transient deployments so far

	// One operator at a time changes a deployment.
	turns *turns

	// placing hears of each step of writing into the deployments directory; nil = nobody
	// does.
	placing func(step string)

	// pinned are the copies of binaries that a deploy under way wants. A sweep holds
	// the lock: what is pinned before it gets its name is never swept.
	pinMu  sync.Mutex
	pinned map[string]int
}

func newOperations() operations {
	return operations{news: newBroadcast(), transients: map[string]*element{}, trees: map[string]string{}, turns: &turns{waiting: map[string]*turn{}}, pinned: map[string]int{}}
}

// openOperations reads what was remembered, and removes what a host that was killed has
// left half done.
func (h *Host) openOperations() (err error) {
	if h.record, err = openRecord(filepath.Join(h.priv.dir, recordName)); err != nil {
		return err
	}
	h.closeOperations()
	left, _ := filepath.Glob(filepath.Join(h.priv.dir, halfCopy+"*"))
	if dir, err := h.directory(); err == nil {
		halves, _ := filepath.Glob(filepath.Join(dir, h.halfDeployed("*")))
		left = append(left, halves...)
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			h.log.Warn("what a deploy was doing when the host was killed cannot be removed", "path", path, "error", err)
		}
	}
	return nil
}

// closeOperations removes what goes with the process.
func (h *Host) closeOperations() {
	if err := os.RemoveAll(filepath.Join(h.priv.dir, "transient")); err != nil {
		h.log.Warn("transient deployments could not be removed", "error", err)
	}
}

// operate lets operators in; the elements that they add run until ctx ends.
func (h *Host) operate(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin = func(e *element) {
		go func() {
			e.run(ctx)
			h.forget(e)
		}()
	}
}

// operable returns an error unless the host is up and is going to stay.
func (h *Host) operable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.stopBy.IsZero():
		return operatorError(conduit.Unavailable, conduit.ReasonDraining, conduit.Refused, "this instance is draining")
	case h.begin == nil:
		e := operatorError(conduit.Unavailable, conduit.ReasonPluginStarting, conduit.Refused, "this instance is starting; try again in a moment")
		e.Retryable = true
		return e
	}
	return nil
}

// halfDeployed is how what is being written into the deployments directory is called; it
// says whose it is, since instances may share the directory. Scans pass over it.
func (h *Host) halfDeployed(random string) string {
	return ".deploy-" + h.owner[:16] + "-" + random
}

// directory returns the deployments directory as scans read it.
func (h *Host) directory() (string, error) {
	dir, err := filepath.Abs(h.o.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return dir, err
}

// find returns the elements of the deployment of a name, in order, or those of the
// transient one of a name or an id: one at least, unless there is an error.
func (h *Host) find(name string) ([]*element, error) {
	if err := h.operable(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var found, passing []*element
	for _, e := range h.list() {
		switch {
		case e.transient == "" && e.deployment == name:
			found = append(found, e)
		case e.transient != "" && (e.deployment == name || e.transient == name):
			passing = append(passing, e)
		}
	}
	if len(found) == 0 {
		found = passing
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, operatorError(conduit.NotFound, conduit.ReasonDeploymentNotFound, conduit.Refused, "there is no deployment %q here; conduit-host ls deployments lists all", pluginlink.Text(name, maxMethodName))
}

// findAsItIs is find of what is in the directory now: a list of checksums, or a file, may
// have changed a moment ago, and nothing is started of what was there before. What still
// changes is given some time.
func (h *Host) findAsItIs(ctx context.Context, name string) ([]*element, error) {
	list, err := h.find(name)
	if err != nil || list[0].transient != "" {
		return list, err
	}
	for n := 1; h.look(ctx, list[0].deployment) && n < settleLooks; n++ {
		select {
		case <-time.After(restOf(&h.o)):
		case <-h.stopping:
		case <-ctx.Done():
		}
	}
	return h.find(name)
}

// lockDeployment finds a deployment and has others wait that want to change it.
func (h *Host) lockDeployment(ctx context.Context, name string) ([]*element, func(), error) {
	list, err := h.find(name)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := h.turns.take(ctx, list[0].deployment)
	if err != nil {
		return nil, nil, err
	}
	if list, err = h.find(name); err != nil { // whoever was first may have removed it
		unlock()
		return nil, nil, err
	}
	return list, unlock, nil
}

// begun is what an element was told to do: to run the binary sum, of a fresh start of that
// round or a later one.
type begun struct {
	e     *element
	sum   string // empty = whatever it has
	round uint64
	id    string // with what the process is given; empty = whatever that is
	rests bool   // its manifest has it run nothing
}

// awaitAll is await of each element of a deployment. It returns what became of it, or of
// the first that failed.
func (h *Host) awaitAll(ctx context.Context, all []begun) (Change, error) {
	var whole Change
	for _, b := range all {
		c, err := h.await(ctx, b)
		if err != nil {
			return c, err
		}
		whole = c
	}
	return ofSeveral(whole, len(all)), nil
}

// ofSeveral takes out of what there is to tell of an element what is not its whole
// deployment's, which has n.
func ofSeveral(c Change, n int) Change {
	if n > 1 {
		c.Sum, c.Was, c.Generation, c.Pid = "", "", 0, 0
		c.Note = fmt.Sprintf("all of its %d elements", n)
	}
	return c
}

// listTransients returns the transient deployments in the order of their ids. h.mu is
// held.
func (h *Host) listTransients() []*element {
	return slices.SortedFunc(maps.Values(h.transients), func(a, b *element) int {
		return cmp.Or(cmp.Compare(a.transient, b.transient), cmp.Compare(a.place.Load(), b.place.Load()), cmp.Compare(a.slot, b.slot))
	})
}

// forgotten is told that a deployment has left: what can be rolled back to goes with it.
// That it is turned off stays, so that a file that is removed and put there again does
// not run for that; an undeploy ends that, too.
func (h *Host) forgotten(e *element) {
	if e.transient != "" {
		return
	}
	h.unused.Store(true)
	if e.slot != "" {
		h.forgottenTree(e.deployment)
		return // what else is remembered may be of the file that has taken its directory's name
	}
	if err := h.record.change(e.deployment, func(r *recorded) { r.Good, r.Before = "", "" }); err != nil {
		h.log.Warn("what is remembered of a deployment is not up to date", "deployment", e.deployment, "error", err)
	}
}

// nowServes is told which binary of a deployment serves. What is remembered to go back to
// is that of a deployment that is one file.
func (h *Host) nowServes(e *element, b *binary) {
	dir, err := h.directory()
	if err != nil || e.transient != "" || b.source != filepath.Join(dir, e.deployment) {
		return
	}
	sum := b.sum
	err = h.record.change(e.deployment, func(r *recorded) {
		if r.Good != sum {
			r.Good, r.Before = sum, r.Good
		}
	})
	if err != nil {
		e.log.Warn("a rollback may not find what served before", "error", err)
	}
}

// operated fills in what operators have done to a deployment.
func (h *Host) operated(d *DeploymentStatus, e *element) {
	d.Cordoned, d.Transient = e.cordoned.Load(), e.transient
	d.Disabled = e.isOff() || offInManifest([]*element{e}) != ""
	switch {
	case e.transient != "" || h.record == nil:
	case e.slot != "":
		r := h.record.of(e.deployment)
		d.Previous = r.treeBehind(r.Placed)
	default:
		d.Previous = h.record.of(e.deployment).back(e.wantedSum())
	}
}

// wantedSum returns the binary that is wanted, "" if it is refused.
func (e *element) wantedSum() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.want.binary == nil {
		return ""
	}
	return e.want.binary.sum
}

// servedSum returns the binary that serves, "" if none does.
func (e *element) servedSum() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gen == nil {
		return ""
	}
	return e.gen.sum
}

// servedID returns the id of the binary that serves, "" if none does.
func (e *element) servedID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gen == nil {
		return ""
	}
	return e.gen.binary.id()
}

// pin keeps a copy until unpin.
func (h *Host) pin(sum string) {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	h.pinned[sum]++
}

func (h *Host) unpin(sum string) {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	if h.pinned[sum]--; h.pinned[sum] <= 0 {
		delete(h.pinned, sum)
		h.unused.Store(true)
	}
}

// sweepStore removes the copies that are neither in keep, nor wanted by an operator, nor
// kept to go back to.
func (h *Host) sweepStore(keep map[string]bool) {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	for sum := range h.pinned {
		keep[sum] = true
	}
	for _, sum := range h.record.sums() {
		keep[sum] = true
	}
	for _, sum := range h.record.trees() {
		keep[sum] = true
		leaves, err := h.store.tree(sum)
		if err != nil {
			h.log.Warn("what a deployment could be rolled back to is damaged", "tree", sum, "error", err)
		}
		for _, l := range leaves {
			keep[l.sum] = true
		}
	}
	if err := h.store.sweep(keep); err != nil {
		h.log.Warn("old copies of binaries could not be removed", "error", err)
	}
}

// rescan has the directory read now, with the file of a deployment taken for whole.
func (h *Host) rescan(ctx context.Context, name string) error {
	l := lookNow{name: name, waits: make(chan bool, 1), scanned: make(chan error, 1)}
	select {
	case h.looks <- l:
	case <-h.stopping:
		return errHostStops()
	case <-ctx.Done():
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	select {
	case err := <-l.scanned:
		if err != nil {
			return operatorError(conduit.FailedPrecondition, conduit.ReasonDeployFailed, conduit.Executed, "the deployments directory cannot be read: %v", err)
		}
		return nil
	case <-h.stopping:
		return errHostStops()
	case <-ctx.Done():
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
}

func errHostStops() *conduit.Error {
	return operatorError(conduit.Unavailable, conduit.ReasonDraining, conduit.OutcomeUnknown, "this instance began to stop meanwhile; what becomes of the deployment shows at its next start")
}

// placedOf are the files that were put there whole, among those that a scan was asked for.
func placedOf(asked []lookNow) map[string]bool {
	placed := map[string]bool{}
	for _, l := range asked {
		if l.scanned != nil {
			placed[l.name] = true
		}
	}
	return placed
}

// attempt is a start that failed, of the binary sum in that round.
type attempt struct {
	sum, id      string
	round        uint64
	kind, reason string
	settled      bool // what comes of it is there: the one before serves, or nothing does
}

// attempted notes that what is wanted has failed to start, and that nothing serves.
func (e *element) attempted(f finding, err error) {
	kind, reason, _, _ := explain(err)
	e.mu.Lock()
	e.tried = attempt{sum: f.binary.sum, id: f.binary.id(), round: f.round, kind: kind, reason: reason, settled: true}
	e.mu.Unlock()
	e.h.news.tell()
}

// settleAttempt notes that what is there after a failed start is going to stay.
func (e *element) settleAttempt() {
	e.mu.Lock()
	e.tried.settled = true
	e.mu.Unlock()
	e.h.news.tell()
}

// The results of a change.
const (
	ResultReady     = "ready"     // it serves
	ResultUnchanged = "unchanged" // it was so already
	ResultDisabled  = "disabled"  // it is turned off, and nothing of it runs
	ResultRemoved   = "removed"
)

// Change is what became of a deployment that an operator has changed.
type Change struct {
	Name string
	// ID is that of the deployment as text, of a transient one too.
	ID     string
	Result string
	// Sum is the SHA-256 of what is deployed now, Was of what was before; empty if
	// nothing is, or was. Where the deployment has several elements, these and the two
	// below are empty.
	Sum, Was   string
	Generation uint64
	Pid        int
	// Note is what is to be said besides, for people.
	Note string
}

// changeOf returns what there is to tell of a deployment of these elements.
func changeOf(list []*element) Change {
	e := list[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	return ofSeveral(e.changeLocked(), len(list))
}

func (e *element) changeLocked() Change {
	c := Change{Name: e.deployment, ID: e.deploymentText(), Generation: e.status.Generation, Pid: e.status.Pid}
	if e.want.binary != nil {
		c.Sum = e.want.binary.sum
	}
	return c
}

// awaitMargin is how long before its context's deadline a wait ends.
const awaitMargin = time.Second

// await waits until an element serves what was begun, or has failed to; one that is off,
// until nothing of it runs. What is to run is as it is now: the error says so if another
// operator, or the directory, has changed it.
func (h *Host) await(ctx context.Context, b begun) (Change, error) {
	e := b.e
	// A little before whoever asked gives up, so that they hear for what it waits.
	if at, ok := ctx.Deadline(); ok {
		early, cancel := context.WithDeadline(ctx, at.Add(-min(awaitMargin, time.Until(at)/4)))
		defer cancel()
		ctx = early
	}
	for {
		news := h.news.next()
		c, waits, err := b.outcome()
		if waits == "" {
			h.reroute() // whoever calls after this finds what it says
			return c, err
		}
		select {
		case <-news:
		case <-e.done:
			return c, superseded(e.deployment, "removed")
		case <-h.stopping:
			return c, errHostStops()
		case <-ctx.Done():
			err := conduit.FromContext(ctx, conduit.OutcomeUnknown)
			err.Message += "; the change goes on, and " + waits
			return c, err
		}
	}
}

// is reports whether a binary, with what its process is given, is what was begun.
func (b *begun) is(sum, id string) bool {
	return (b.sum == "" || b.sum == sum) && (b.id == "" || b.id == id)
}

// outcome says what has become of it; waits says for what it waits, and is empty when that
// is known.
func (b *begun) outcome() (c Change, waits string, _ error) {
	e, round := b.e, b.round
	e.mu.Lock()
	defer e.mu.Unlock()
	c = e.changeLocked()
	state := e.status.State
	switch {
	case e.gone:
		return c, "", superseded(e.deployment, "removed")
	case e.off && state == Disabled:
		c.Result = ResultDisabled
		return c, "", nil
	case e.off:
		return c, "element " + orUnknown(e.status.Name) + " is " + string(state), nil
	case e.want.disabled && b.rests && state == Disabled:
		c.Result = ResultDisabled
		return c, "", nil
	case e.want.disabled && !b.rests:
		return c, "", superseded(e.deployment, "disabled")
	case e.want.disabled:
		return c, "element " + orUnknown(e.status.Name) + " is " + string(state), nil
	case e.want.refused != nil:
		return c, "", e.failedTo(e.want.refused.kind, e.want.refused.reason)
	case e.want.binary == nil && (b.sum != "" || b.rests), e.want.binary != nil && !b.is(e.want.binary.sum, e.want.binary.id()):
		return c, "", superseded(e.deployment, "changed")
	case e.gen != nil && b.is(e.gen.sum, e.gen.binary.id()) && e.gen.round >= round:
		c.Result = ResultReady
		c.Sum, c.Pid = e.gen.sum, e.gen.process.Pid()
		return c, "", nil
	case b.is(e.tried.sum, e.tried.id) && e.tried.reason != "" && e.tried.round >= round && e.tried.settled:
		return c, "", e.failedTo(e.tried.kind, e.tried.reason)
	}
	if e.notes[noteWaits] != "" {
		return c, e.notes[noteWaits], nil
	}
	return c, "element " + orUnknown(e.status.Name) + " is " + string(state), nil
}

// failedTo is the error of a start that did not come up. e.mu is held.
func (e *element) failedTo(kind, reason string) error {
	what, serves := "deployment "+e.deployment, "nothing of it serves now"
	if e.slot != "" {
		what = "element " + cmp.Or(e.status.Name, e.slot) + " of " + what
	}
	details := map[string]string{"kind": kind}
	if e.gen != nil {
		serves = fmt.Sprintf("the process before goes on (generation %d, pid %d)", e.gen.number, e.gen.process.Pid())
		details["serves"] = e.gen.sum
	}
	err := operatorError(conduit.FailedPrecondition, conduit.ReasonDeployFailed, conduit.Executed, "%s did not come up, and %s: %s", what, serves, reason)
	err.Details = details
	return err
}

func superseded(name, how string) error {
	return operatorError(conduit.Aborted, conduit.ReasonSuperseded, conduit.Executed, "deployment %s was %s again meanwhile, by another operator or in its directory; see what is there with conduit-host ls deployments", name, how)
}

// Restart starts a deployment anew, as a hot swap, from the bytes that it has when the
// directory has been looked at once more, and returns when the new process serves. One that was given up is tried again at once. The
// errors are deployment_not_found, disabled, deploy_failed (then the process before goes
// on), superseded, and those of ctx, whose end ends the wait and not the restart.
func (h *Host) Restart(ctx context.Context, name string) (Change, error) {
	list, err := h.findAsItIs(ctx, name)
	if err != nil {
		return Change{}, err
	}
	for _, e := range list {
		if e.isOff() {
			return Change{}, errDisabled(e.deployment)
		}
	}
	if why := offInManifest(list); why != "" {
		return Change{}, errOffInManifest(list[0].deployment, why)
	}
	var all []begun
	for _, e := range list {
		e.log.Info("restart asked for by an operator")
		sum, round := e.startAnew()
		all = append(all, begun{e: e, sum: sum, round: round})
	}
	return h.awaitAll(ctx, all)
}

// startAnew asks for a fresh start of what is wanted.
func (e *element) startAnew() (sum string, round uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.want.binary == nil {
		return "", 0 // it is refused, and await says why
	}
	e.rounds++
	e.want.round = e.rounds
	e.tried = attempt{}
	e.settled = e.gen != nil
	e.poke()
	return e.want.binary.sum, e.want.round
}

// broadcast wakes everybody who waits. All methods may be called concurrently.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{c: make(chan struct{})} }

// next returns what is closed at the next tell.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.c)
	b.c = make(chan struct{})
}

// turns has those who want to change one deployment go one after another. All methods
// may be called concurrently.
type turns struct {
	mu      sync.Mutex
	waiting map[string]*turn
}

type turn struct {
	n    int           // that have it or wait for it
	free chan struct{} // holds a token when nobody has it
}

// take waits for one's turn with a name. The error is that of ctx.
func (t *turns) take(ctx context.Context, name string) (done func(), err error) {
	t.mu.Lock()
	w := t.waiting[name]
	if w == nil {
		w = &turn{free: make(chan struct{}, 1)}
		w.free <- struct{}{}
		t.waiting[name] = w
	}
	w.n++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if w.n--; w.n == 0 {
			delete(t.waiting, name)
		}
	}
	select {
	case <-w.free:
		return func() { w.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, conduit.FromContext(ctx, conduit.Refused)
	}
}

// whoCannotWrite says of a failed write to a directory what is to be done about it.
func whoCannotWrite(dir string, err error) *conduit.Error {
	return errNotWritable("%s cannot be written: %v; give the host's user the right and the room to write it, or deploy with --transient", dir, rootCause(err))
}

// isTransientID reports whether a name reads as the id of a transient deployment.
func isTransientID(name string) bool {
	return len(name) == 13 && name[0] == 'T' && strings.Trim(name[1:], "0123456789ABCDEF") == ""
}
