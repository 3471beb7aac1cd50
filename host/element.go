package host

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// element is one plugin of a deployment. One goroutine (run) owns what happens
// to it; the rest of the host tells that goroutine what is wanted, and reads its
// status.
type element struct {
	h            *Host
	deployment   string
	deploymentID address.DeploymentID
	slot         string // which of the elements of a directory; empty = the deployment is one file
	log          hclog.Logger

	transient string // its id, if it goes with the process
	base      string // has its working and data directories

	place    atomic.Int64             // in the order in which ordinals count
	opts     atomic.Pointer[settings] // nil = the host's own
	cordoned atomic.Bool              // it takes no new units
	inflight atomic.Int64             // calls on all its generations
	claims   atomic.Int64             // held by all its generations
	done     chan struct{}            // closed when run has returned and the host has let go
	changed  chan struct{}            // holds one token when want was changed
	freed    chan struct{}            // holds one token when an old generation has ended
	leaving  chan struct{}            // closed when the element goes or is turned off: old generations finish in the drain's time. Of the element's goroutine
	retiring sync.WaitGroup

	// Of the element's goroutine.
	next *coming    // starts beside what serves
	repl *replacing // what is wanted and does not serve
	left bool       // leaving is closed

	mu        sync.Mutex
	want      finding
	gone      bool               // it is to be stopped for good
	off       bool               // an operator has turned it off
	rounds    uint64             // the fresh starts that operators asked for
	tried     attempt            // the last start of what is wanted that failed
	interrupt context.CancelFunc // ends a start under way
	status    ElementStatus
	gen       *generation
	old       []*generation       // that finish, oldest first
	good      *binary             // what has served last; only the element's goroutine sets it
	hold      *holding            // calls that wait for the next generation; nil if none are to
	proc      *pluginlink.Process // the last one
	settled   bool                // it was ready, or failed, once
	notes     [notes]string       // what the host has to say of it while it serves; empty = nothing
}

func newElement(h *Host, f finding) *element {
	e := &element{
		h: h, deployment: f.name, deploymentID: address.UniqueDeploymentID(f.name), slot: f.slot,
		log:  h.log.With("deployment", f.name),
		done: make(chan struct{}), changed: make(chan struct{}, 1), freed: make(chan struct{}, 1), leaving: make(chan struct{}),
		want: f,
	}
	if f.slot != "" {
		e.log = e.log.With("program", f.slot)
	}
	if h.priv != nil {
		e.base = h.priv.dir
	}
	e.place.Store(int64(f.place))
	e.opts.Store(f.set)
	e.status = ElementStatus{Name: f.named, State: Discovered, Since: time.Now(), Path: f.path}
	return e
}

// o returns what the host does with this element.
func (e *element) o() *settings {
	if s := e.opts.Load(); s != nil {
		return s
	}
	return &e.h.plain
}

// key is what the element is known by among all of the host's.
func (e *element) key() string { return keyOf(e.deployment, e.slot) }

// deploymentText returns the id of the element's deployment as text, of a transient one
// too.
func (e *element) deploymentText() string { return cmp.Or(e.transient, e.deploymentID.String()) }

// deploymentKey is what the element's deployment is known by among all of the host's: its
// name, which a transient one may share.
func (e *element) deploymentKey() string { return cmp.Or(e.transient, e.deployment) }

// keyOf makes a key; a slot has no slash in it, nor has a deployment's name.
func keyOf(deployment, slot string) string {
	if slot == "" {
		return deployment
	}
	return deployment + "/" + slot
}

// The notes of an element: of each kind the last one, until it no longer holds.
const (
	noteFile   = iota // the new file is refused
	noteReload        // the new file failed
	noteWaits         // the new file waits
	notes
)

// note says something of an element that serves, or takes it back with "".
func (e *element) note(kind int, what string) {
	what = pluginlink.Text(what, maxReason)
	e.mu.Lock()
	was := e.notes[kind]
	e.notes[kind] = what
	e.mu.Unlock()
	if was == what {
		return
	}
	if what != "" {
		e.tell(hclog.Warn, what)
	}
	e.h.rebuild()
}

// servesNothing takes back what was said of a binary that goes on beside another.
func (e *element) servesNothing() {
	for kind := range notes {
		e.note(kind, "")
	}
}

// update tells what the scan has found now. A start of another file is given up.
func (e *element) update(f finding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	e.opts.Store(f.set)
	f.round = e.want.round
	same := sameFinding(e.want, f)
	if !same && e.gen != nil && f.binary != nil && e.gen.binary.id() == f.binary.id() && (e.want.binary == nil || e.want.binary.id() != f.binary.id()) {
		f.round = e.gen.round // back to what serves: a fresh start was asked of another
	}
	e.want = f
	if same {
		return
	}
	e.tried = attempt{}
	e.settled = e.gen != nil
	e.poke()
}

// remove tells that the deployment is gone; it reports whether that is news.
func (e *element) remove() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return false
	}
	e.gone = true
	e.poke()
	return true
}

// poke wakes run. e.mu is held.
func (e *element) poke() {
	if e.interrupt != nil {
		e.interrupt()
	}
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// sameFinding reports whether nothing that matters has changed: a file that was
// only touched has the same sum.
func sameFinding(a, b finding) bool {
	switch {
	case a.disabled || b.disabled:
		return a.disabled == b.disabled
	case a.stale != b.stale, a.round != b.round:
		return false
	case a.binary != nil && b.binary != nil:
		return a.binary.id() == b.binary.id()
	case a.refused != nil && b.refused != nil:
		return *a.refused == *b.refused
	}
	return a.waits() && b.waits()
}

// home returns what the element's deployment is: a file or a directory.
func (e *element) home() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.want.home != "" {
		return e.want.home
	}
	return e.status.Path
}

// wanted returns what is to run now.
func (e *element) wanted() (f finding, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.want, e.gone
}

// set changes the state, and with it what calls find.
func (e *element) set(s State, kind, reason string) {
	e.mu.Lock()
	e.setLocked(s, kind, reason)
	e.mu.Unlock()
	e.h.rebuild()
}

func (e *element) setLocked(s State, kind, reason string) {
	if e.status.State != s {
		e.status.Since = time.Now()
	}
	e.status.State, e.status.Kind, e.status.Reason = s, kind, pluginlink.Text(reason, maxReason)
}

// settle notes that the element's first start is over, for better or worse.
func (e *element) settle() {
	e.mu.Lock()
	e.settled = true
	e.mu.Unlock()
	e.h.checkReady()
}

func (e *element) isSettled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settled
}

// route returns what the table holds of the element.
func (e *element) route() elementRoute {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := elementRoute{el: e, name: e.status.Name, state: e.status.State, desc: e.status.Description, hold: e.hold}
	if e.status.State.Serving() {
		r.gen = e.gen
	}
	return r
}

// snapshot returns the element's status.
func (e *element) snapshot() ElementStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.status
	s.Calls, s.Claims = e.inflight.Load(), e.claims.Load()
	for _, g := range e.old {
		s.Old = append(s.Old, OldGeneration{Generation: g.number, Pid: g.process.Pid(), Calls: g.calls(), Claims: g.claims(), Sum: g.sum})
	}
	s.Warnings = nil
	for _, what := range e.notes {
		if what != "" {
			s.Warnings = append(s.Warnings, what)
		}
	}
	s.Warnings = append(s.Warnings, e.status.Warnings...)
	if e.proc != nil {
		s.Stderr = e.proc.Stderr()
	}
	return s
}

// takeProcess notes the process that is coming up.
func (e *element) takeProcess(p *pluginlink.Process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.proc = p
	e.status.Pid = p.Pid()
	e.status.Stderr = nil
}

// describe notes what the element says of itself.
func (e *element) describe(d *conduitv1.Description) {
	e.mu.Lock()
	e.status.Name, e.status.Description = d.GetElement(), d
	e.mu.Unlock()
	e.h.rebuild()
}

// generations returns all that have calls or claims, the one that serves last.
func (e *element) generations() []*generation {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := slices.Clone(e.old)
	if e.gen != nil {
		list = append(list, e.gen)
	}
	return list
}

// sums returns the binaries that may be started, or are running.
func (e *element) sums() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []string
	if e.want.binary != nil {
		list = append(list, e.want.binary.sum)
	}
	if e.good != nil {
		list = append(list, e.good.sum)
	}
	for _, g := range e.old {
		list = append(list, g.sum)
	}
	return list
}

// held reports whether calls wait for the next generation.
func (e *element) held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hold != nil
}

// swap makes g the generation that calls go to, nil for none.
func (e *element) swap(g *generation, s State) {
	e.mu.Lock()
	e.gen = g
	e.setLocked(s, "", "")
	e.mu.Unlock()
	e.h.rebuild()
}
