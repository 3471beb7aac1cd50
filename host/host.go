package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	"github.com/elemental-conduit/conduit/internal/pluginlog"
)

// Host runs the plugins of one instance and passes calls on to them. All methods may
// be called concurrently; Run once.
type Host struct {
	o         Options
	plain     settings // of an element whose deployment says nothing else
	log       hclog.Logger
	instance  string
	builtinID string
	memory    *link.Memory
	logs      *pluginlog.Logs // of the deployments

	table    atomic.Pointer[table]
	draining atomic.Bool
	unused   atomic.Bool   // copies of binaries may have come to be unused
	starts   chan struct{} // a token for each start under way
	looks    chan lookNow

	// Set by Run before anything is started.
	priv    *private
	store   *store
	record  *record
	owner   string // marks the processes that it starts
	spawner *pluginlink.Spawner

	ready     chan struct{}
	readyOnce sync.Once

	stopping chan struct{} // closed by Stop
	stopped  chan struct{} // closed when Run has returned

	mu       sync.Mutex
	running  bool
	scanned  bool // the first scan is done, and no file waits
	reattach bool // what Options.Reattach names was looked for
	elements map[string]*element
	// The attributes of the instance, and what the last scan has found.
	attributes Attributes
	found      map[string]finding
	events     events
	stopBy     time.Time // when the stop under way has to have drained

	operations // of operators

	drainCtx    context.Context //nolint:containedctx // ends when a stop must drain no longer
	cancelDrain context.CancelFunc
}

// New makes a host. Nothing is touched until Run.
func New(o Options) (*Host, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	h := &Host{
		o: o, plain: settings{Options: o, level: conduit.User}, log: o.Log.Named("host"), instance: o.Instance.String(),
		builtinID: address.UniqueDeploymentID(address.BuiltinDeployment).String(),
		memory:    o.Memory,
		starts:    make(chan struct{}, o.MaxStarts),
		looks:     make(chan lookNow),
		ready:     make(chan struct{}), stopping: make(chan struct{}), stopped: make(chan struct{}),
		elements: map[string]*element{}, attributes: maps.Clone(o.Attributes), operations: newOperations(),
	}
	if h.memory == nil {
		h.memory = link.NewMemory(256 << 20)
	}
	var err error
	if h.logs, err = newLogs(&h.o, h.log); err != nil {
		return nil, err
	}
	h.drainCtx, h.cancelDrain = context.WithCancel(context.Background())
	h.table.Store(newTable(nil))
	return h, nil
}

// Run starts the plugins that are in the deployments directory and follows the
// directory until ctx ends or Stop is called. It returns when no process is
// left: nil, or why it could not run.
func (h *Host) Run(ctx context.Context) (err error) {
	h.mu.Lock()
	if h.running {
		h.mu.Unlock()
		return errors.New("host: Run was called before")
	}
	h.running = true
	h.mu.Unlock()
	defer close(h.stopped)
	defer h.cancelDrain()
	scanner := newScanner(&h.o, newStore("", h.o.AllowUnsafe))
	if _, _, err := scanner.readDir(); err != nil {
		return err
	}
	if h.priv, err = openPrivate(h.o.Private, h.o.SocketDir, h.o.AllowUnsafe); err != nil {
		return err
	}
	defer h.priv.close()
	scanner.store.dir = filepath.Join(h.priv.dir, "bin")
	h.store = scanner.store
	if err := h.sweepProcesses(); err != nil {
		return err
	}
	if err := h.openOperations(); err != nil {
		return err
	}
	defer h.closeOperations()
	h.spawner = pluginlink.NewSpawner()
	defer h.spawner.Close()

	elementsCtx, stopElements := context.WithCancel(context.Background())
	defer stopElements()
	h.operate(elementsCtx)
	err = h.follow(ctx, elementsCtx, scanner)

	h.draining.Store(true)
	h.endEvents()
	h.mu.Lock()
	if h.stopBy.IsZero() {
		h.stopBy = time.Now().Add(h.drainTimeout())
		close(h.stopping)
	}
	elements := h.list()
	h.mu.Unlock()
	stopElements()
	for _, e := range elements {
		<-e.done
	}
	h.flushLogs()
	return err
}

// sweepProcesses ends what plugins of a host before this one have left running. The
// lock is held, so that host is no more.
func (h *Host) sweepProcesses() (err error) {
	if h.owner, err = h.priv.owner(); err != nil {
		return fmt.Errorf("private directory: %w", err)
	}
	ended, err := pluginlink.Sweep(h.owner)
	if len(ended) > 0 {
		h.log.Warn("processes were ended that plugins had started and a host before this one left behind", "pids", ended)
	}
	if err != nil {
		h.log.Warn("not all that a host before this one left behind could be ended", "error", err)
	}
	return nil
}

// follow scans until it is time to stop. The error says that what was found is not what
// the options name.
func (h *Host) follow(ctx, elementsCtx context.Context, s *scanner) error {
	s.halt = func() bool {
		select {
		case <-h.stopping:
			return true
		default:
			return ctx.Err() != nil
		}
	}
	hints := newHints(h.log)
	defer hints.close()
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	failing := ""
	var asked []lookNow
	for n := 1; ; n++ {
		// Before it is read: what happens from now on gives a hint.
		watched := hints.watch(append(s.inside(), s.resolved())...)
		s.placed = placedOf(asked)
		found, waiting, err := s.scan(time.Now())
		switch {
		case err == nil:
			failing = ""
			h.apply(elementsCtx, found)
			h.sweepCopies()
			// A file that keeps changing does not keep the host from being ready.
			if err := h.checkReattached(found, waiting); err != nil {
				return err
			}
			if waiting == 0 || n > 2 {
				h.firstScanDone(s)
			}
		case err.Error() != failing:
			failing = err.Error()
			h.log.Error("the deployments directory cannot be scanned; what runs goes on", "error", err)
		}
		for _, l := range asked {
			l.waits <- err == nil && s.waits(l.name)
			if l.scanned != nil {
				l.scanned <- err
			}
		}
		asked = asked[:0]
		switch {
		case err != nil, waiting > 0, s.grown:
			next.Reset(s.rest) // of a file that comes to rest there is no event
		case !watched:
			next.Reset(min(h.o.ScanInterval, unwatched))
		default:
			next.Reset(min(h.o.ScanInterval, s.soonest()))
		}
		select {
		case <-next.C:
		case <-hints.c:
		case l := <-h.looks:
			asked = append(asked, l)
			for more := true; more; { // one scan serves all that wait for one
				select {
				case l := <-h.looks:
					asked = append(asked, l)
				default:
					more = false
				}
			}
		case <-ctx.Done():
			return nil
		case <-h.stopping:
			return nil
		}
	}
}

// lookNow asks for a scan at once.
type lookNow struct {
	name  string
	waits chan bool // has room for the answer: the name's file still changes
	// scanned has room for how the scan ended, and says that the file was put there
	// whole; nil = nobody asks.
	scanned chan error
}

// look has the directory scanned now, and reports whether the file of a deployment is
// there and still changes. It returns at once when the host stops.
func (h *Host) look(ctx context.Context, name string) (waits bool) {
	l := lookNow{name: name, waits: make(chan bool, 1)}
	select {
	case h.looks <- l:
	case <-h.stopping:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case waits = <-l.waits:
	case <-h.stopping:
	case <-ctx.Done():
	}
	return waits
}

func (h *Host) firstScanDone(s *scanner) {
	h.mu.Lock()
	first := !h.scanned
	h.scanned = true
	h.mu.Unlock()
	if !first {
		return
	}
	keep := h.startable()
	for _, f := range s.found {
		if f.binary != nil {
			keep[f.binary.sum] = true
		}
	}
	h.sweepStore(keep)
	h.checkReady()
}

// sweepCopies removes the copies of binaries that nobody may start any more. It runs
// between two scans, so that what a scan has copied is wanted by now.
func (h *Host) sweepCopies() {
	if h.unused.Swap(false) {
		h.sweepStore(h.startable())
	}
}

// startable returns the binaries that elements run, or may start.
func (h *Host) startable() map[string]bool {
	keep := map[string]bool{}
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	for _, e := range list {
		for _, sum := range e.sums() {
			keep[sum] = true
		}
	}
	return keep
}

// apply makes what runs follow what was found.
func (h *Host) apply(ctx context.Context, found []finding) {
	h.mu.Lock()
	present := map[string]bool{}
	h.found = map[string]finding{}
	// What joins a deployment that is cordoned is so, too.
	cordoned := map[string]bool{}
	for _, e := range h.elements {
		if _, gone := e.wanted(); !gone && e.cordoned.Load() {
			cordoned[e.deployment] = true
		}
	}
	var added []*element
	moved := false
	for _, f := range found {
		key := keyOf(f.name, f.slot)
		present[key], h.found[key] = true, f
		f = h.withAttributes(f)
		if e := h.elements[key]; e != nil {
			e.update(f) // one that is leaving takes no notice; a later scan finds its name free
			moved = e.place.Swap(int64(f.place)) != int64(f.place) || moved
			continue
		}
		e := newElement(h, f)
		e.off = h.record.of(f.name).Disabled
		e.cordoned.Store(cordoned[f.name])
		h.elements[key] = e
		added = append(added, e)
	}
	for key, e := range h.elements {
		if !present[key] {
			moved = e.place.Swap(math.MaxInt64) != math.MaxInt64 || moved // no ordinal counts it before those that stay
			if e.remove() {
				h.log.Info("deployment removed", "deployment", key)
			}
		}
	}
	h.mu.Unlock()
	for _, e := range added {
		h.log.Info("deployment found", "deployment", e.deployment, "path", e.want.path)
		go func() {
			e.run(ctx)
			h.forget(e)
		}()
	}
	if len(added) > 0 || moved {
		h.rebuild()
	}
}

// forget takes an element that has left for good off the list. While the host
// stops they stay on it, to be seen.
func (h *Host) forget(e *element) {
	if _, gone := e.wanted(); gone {
		h.mu.Lock()
		if h.elements[e.key()] == e {
			delete(h.elements, e.key())
		}
		if key := keyOf(e.transient, e.slot); h.transients[key] == e {
			delete(h.transients, key)
		}
		if h.transientNamed(e.deployment) == nil {
			delete(h.trees, e.transient)
		}
		h.mu.Unlock()
		h.forgotten(e)
		h.rebuild()
	}
	close(e.done)
}

// list returns the elements in the order of their deployments' names, those of one in
// the order in which ordinals count. h.mu is held.
func (h *Host) list() []*element {
	list := make([]*element, 0, len(h.elements))
	for _, e := range h.elements {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *element) int {
		return cmp.Or(strings.Compare(a.deployment, b.deployment), cmp.Compare(a.place.Load(), b.place.Load()), strings.Compare(a.slot, b.slot))
	})
	return append(list, h.listTransients()...)
}

// InFlight returns the number of calls under way on all elements. It takes no lock.
func (h *Host) InFlight() int64 {
	n := int64(0)
	for _, d := range h.table.Load().order {
		for i := range d.elements {
			n += d.elements[i].el.inflight.Load()
		}
	}
	return n
}

// reroute makes the table anew from what is there now: an element changes its state a
// moment before its rebuild.
func (h *Host) reroute() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.table.Store(newTable(h.list()))
}

// rebuild makes the table anew. It is called after each change of state.
func (h *Host) rebuild() {
	h.mu.Lock()
	list := h.list()
	h.table.Store(newTable(list))
	h.events.see(list)
	h.mu.Unlock()
	h.news.tell()
	if h.o.OnChange != nil {
		h.o.OnChange()
	}
}

// Ready is closed when the first scan is done and each element is ready or has
// failed once.
func (h *Host) Ready() <-chan struct{} { return h.ready }

func (h *Host) checkReady() {
	h.mu.Lock()
	ready := h.scanned
	for _, e := range h.elements {
		ready = ready && e.isSettled()
	}
	h.events.see(h.list()) // of a deployment is told when its elements are settled
	h.mu.Unlock()
	if ready {
		h.readyOnce.Do(func() { close(h.ready) })
	}
}

// Snapshot returns what is deployed, in the order of names.
func (h *Host) Snapshot() []DeploymentStatus {
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	all := make([]DeploymentStatus, 0, len(list))
	for _, e := range list {
		if n := len(all); n == 0 || all[n-1].Name != e.deployment || all[n-1].Transient != e.transient {
			d := DeploymentStatus{ID: e.deploymentID, Name: e.deployment, Path: e.home()}
			h.operated(&d, e)
			all = append(all, d)
		}
		d := &all[len(all)-1]
		d.Elements = append(d.Elements, e.snapshot())
	}
	for i := range all {
		all[i].Status = deploymentStatus(all[i].Elements)
	}
	// An element changes first, and then the table: who has read here that something is
	// ready, or replaced, is to find with its next call what it has read of.
	h.mu.Lock()
	h.table.Store(newTable(h.list()))
	h.mu.Unlock()
	return all
}

// Drain refuses new calls and gives no new units from now on, and waits until no call
// is under way and no claim held, or ctx ends. The plugins run on.
func (h *Host) Drain(ctx context.Context) error {
	h.draining.Store(true)
	h.endEvents()
	h.Cordon(true)
	h.mu.Lock()
	list := h.list()
	h.mu.Unlock()
	for _, e := range list {
		for _, g := range e.generations() {
			g.drain()
		}
	}
	for _, e := range list {
		for _, g := range e.generations() {
			select {
			case <-g.idle:
			case <-ctx.Done():
				return fmt.Errorf("%d calls to %s are still under way, and it holds %d claims: %w", e.inflight.Load(), e.key(), e.claims.Load(), ctx.Err())
			}
		}
	}
	return nil
}

// Stop ends the host: no new calls, those under way finish and claims are given back
// until ctx ends, what is left of them is ended, each element stops, no process is
// left. It returns when Run has returned. It may be called again with a shorter ctx,
// to drain no longer.
func (h *Host) Stop(ctx context.Context) error {
	h.draining.Store(true)
	h.endEvents()
	h.Cordon(true)
	h.mu.Lock()
	running := h.running
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(h.drainTimeout())
	}
	if h.stopBy.IsZero() {
		h.stopBy = deadline
		close(h.stopping)
	}
	h.mu.Unlock()
	if !running {
		return nil // and Run is going to return at once
	}
	defer context.AfterFunc(ctx, h.cancelDrain)()
	<-h.stopped
	return nil
}

// stopContext bounds the drain of one element: by the host's stop if it is under
// way, else by the drain's time; a stop of the host that comes meanwhile can end
// it.
func (e *element) stopContext() (context.Context, context.CancelFunc) {
	e.h.mu.Lock()
	by := e.h.stopBy
	e.h.mu.Unlock()
	if by.IsZero() {
		by = time.Now().Add(e.o().DrainTimeout)
	}
	return context.WithDeadline(e.h.drainCtx, by)
}

// stopBudget is how long an element may take for its own Stop: what is left of
// the drain, and at least StopTimeout.
func (e *element) stopBudget(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return max(time.Until(deadline), e.o().StopTimeout)
}

// DrainTimeout returns how long a drain of the host may take: the larger of its own time
// and those of the deployments that are there.
func (h *Host) DrainTimeout() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drainTimeout()
}

// drainTimeout is DrainTimeout with h.mu held.
func (h *Host) drainTimeout() time.Duration {
	d := h.o.DrainTimeout
	for _, e := range h.elements {
		d = max(d, e.o().DrainTimeout)
	}
	return d
}
