package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/builtin"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/metrics"
	"github.com/elemental-conduit/conduit/internal/ops"
	"github.com/elemental-conduit/conduit/transport"
)

// opsGrace is how long requests on the ops listener may take to end when the
// instance does.
const opsGrace = time.Second

// instance is one running `serve`: the parts and the order in which they start
// and stop. Its methods are for the one goroutine of serve, but for unready.
type instance struct {
	c      *config.Config
	log    hclog.Logger
	stderr io.Writer

	id     address.InstanceID
	epoch  uint64
	begun  time.Time
	lock   instanceLock
	door   *door
	memory *link.Memory
	access *access
	certs  certificates

	builtins *builtin.Services
	budget   *budget.Budget
	metrics  *metrics.Metrics
	linked   peerLinks
	nameless nameless

	host    hosting
	fabric  *fabric
	inner   *inner
	cluster *transport.Server // nil if the mode serves none
	http    *http.Server      // of cluster
	gateway *httpGateway      // nil if the mode has none
	ops     *ops.Server

	// failed gets what ends a part that should run for as long as the instance.
	failed chan error
	// drainAsked gets an operator's wish to drain.
	drainAsked chan struct{}
	// running are the goroutines of the parts; close waits for them.
	running sync.WaitGroup

	standing atomic.Pointer[standing]
	restated chan struct{} // the standing may be another
	// rereadCerts has the files of certificates read again now.
	rereadCerts chan struct{}

	// leaves is closed once the instance drains: streams that have no end of their own end
	// then.
	leaves     chan struct{}
	leavesOnce sync.Once

	started  atomic.Bool
	draining atomic.Bool
	closing  atomic.Bool // elements take no new calls
}

// newInstance makes an instance that does nothing yet.
func newInstance(c *config.Config, log hclog.Logger, stderr io.Writer) *instance {
	begun := time.Now()
	i := &instance{
		c: c, log: log, stderr: stderr, begun: begun, epoch: uint64(begun.UnixNano()),
		failed: make(chan error, 4), drainAsked: make(chan struct{}, 1),
		restated: make(chan struct{}, 1), rereadCerts: make(chan struct{}, 1), leaves: make(chan struct{}),
	}
	i.standing.Store(&standing{})
	return i
}

// start brings the parts up: first what can be refused at once (ports, directories, the
// lock), then the plugins, which cost time and processes. What has come up
// when it fails is stopNow's to take down.
func (i *instance) start(ctx context.Context) error {
	if i.c.String("auth.mode") == "disabled" {
		i.log.Warn("auth.mode is disabled: whoever reaches a listener is superuser; all of them are loopback")
	}
	dir := i.c.String("host.deployments")
	if dir != "" {
		if err := checkDeployments(dir); err != nil {
			return err
		}
		if _, err := instanceAttributes(i.c); err != nil {
			return err // before anybody is let in
		}
	} else if !i.c.IsSet("host.deployments") {
		i.log.Warn("no deployments directory: this instance hosts nothing; name one with --host-deployments, or make ./deployments")
	}
	// Before anything is written: a start that fails for a port leaves nothing behind.
	var err error
	if i.certs, err = openCerts(i.c); err != nil {
		return err
	}
	l, err := i.openListeners(ctx)
	if err != nil {
		return err
	}
	defer l.closeUnused()
	if err := i.identify(); err != nil {
		return err
	}
	if i.access, err = openAccess(ctx, i.c, i.id, i.log); err != nil {
		return err
	}
	i.run("session keeper", func() error { i.access.keep(); return nil })
	i.memory = link.NewMemory(i.c.Size("cluster.memory"))
	i.budget = budget.New(int64(i.c.Int("budget.total")))
	i.metrics = i.newMetrics()
	if err := i.joinCluster(); err != nil {
		return err
	}
	i.announce(l)
	i.serveOps(l.take("ops.listen"))
	if err := i.startHost(ctx, dir); err != nil {
		return err
	}
	i.openInner() //nolint:contextcheck // calls that come in live longer than the start
	i.findPeers(ctx)
	// The two lines in which the modes differ.
	if i.c.ServesCluster() {
		i.serveCluster(l.take("cluster.listen")) //nolint:contextcheck // as with openInner
	}
	if i.c.ServesGateway() {
		if err := i.serveGateway(l.take("gateway.listen")); err != nil {
			return err
		}
	}
	i.serveDoor() //nolint:contextcheck // calls that come in live longer than the start
	fmt.Fprintf(i.stderr, "management: %s\n", i.door.socket)
	i.log.Info("listening", "listener", "management", "address", i.door.socket)
	i.started.Store(true)
	i.log.Info("started", "instance", i.id.String(), "name", i.c.String("name"), "mode", i.c.String("mode"), "version", buildVersion(), "pid", os.Getpid())
	return nil
}

// identify takes the name's lock and finds the InstanceID.
func (i *instance) identify() error {
	if err := os.MkdirAll(i.c.String("data_dir"), 0o750); err != nil {
		return configf("data_dir: it cannot be made: %v; name another directory with --data-dir", err)
	}
	lock, err := lockInstance(i.c)
	if err != nil {
		return err
	}
	i.lock = lock
	i.id = address.RandomInstanceID()
	if i.c.KeepsID() {
		if i.id, err = address.LoadOrCreateInstanceID(i.c.IDFile()); err != nil {
			return configf("instance.id_file: %v", err)
		}
	}
	if i.door, err = openDoor(i.c); err != nil {
		return err
	}
	i.builtins, err = i.newBuiltins()
	return err
}

// listeners are those that were opened and that nobody serves yet, by key.
type listeners map[string]net.Listener

// take hands a listener over to who serves it.
func (ls listeners) take(key string) net.Listener {
	l := ls[key]
	delete(ls, key)
	return l
}

func (ls listeners) closeUnused() {
	for _, l := range ls {
		_ = l.Close()
	}
}

// listenerOf is a listener that the mode of an instance has, and its URL's beginning and
// end.
type listenerOf struct{ what, scheme, path string }

func (i *instance) listenersOf() (list []listenerOf) {
	if i.c.ServesCluster() {
		list = append(list, listenerOf{"cluster", "ws", transport.Path})
	}
	if i.c.ServesGateway() {
		list = append(list, listenerOf{"gateway", "http", ""})
	}
	return append(list, listenerOf{"ops", "http", ""})
}

// openListeners opens all that the mode has, before anything that costs more than
// a port.
func (i *instance) openListeners(ctx context.Context) (listeners, error) {
	ls := listeners{}
	for _, door := range i.listenersOf() {
		key := door.what + ".listen"
		l, err := listen(ctx, i.c, key)
		if err != nil {
			ls.closeUnused()
			return nil, i.whoListens(err)
		}
		ls[key] = l
	}
	return ls, nil
}

// whoListens is why a listener could not be opened: that an instance of this name runs, if
// one does, which is not found out by making files.
func (i *instance) whoListens(err error) error {
	if _, statErr := os.Stat(filepath.Join(i.c.String("run_dir"), i.c.String("name")+".lock")); statErr != nil {
		return err
	}
	lock, lockErr := lockInstance(i.c)
	if lockErr != nil {
		return lockErr
	}
	lock.release()
	return err
}

// announce says where the listeners are, and has those speak TLS that are to.
func (i *instance) announce(ls listeners) {
	for _, door := range i.listenersOf() {
		key := door.what + ".listen"
		l, secure := i.certs.wrap(door.what, ls[key])
		if ls[key] = l; secure {
			door.scheme += "s"
		}
		url := door.scheme + "://" + l.Addr().String() + door.path
		fmt.Fprintf(i.stderr, "%s: %s\n", door.what, url)
		i.log.Info("listening", "listener", door.what, "address", l.Addr().String(), "url", url)
	}
}

func (i *instance) serveOps(l net.Listener) {
	i.ops = ops.New(ops.Options{Unready: i.unready, Notes: i.notes, Metrics: i.metrics.Handler(), Log: slogTo(i.log.Named("ops"))})
	i.run("ops listener", func() error { return i.ops.Serve(l) })
}

func (i *instance) serveCluster(l net.Listener) {
	log := slogTo(i.log.Named("cluster"))
	i.cluster = transport.NewServer(transport.ServerOptions{
		Handler:      i.access.door(i.served(builtin.Cluster)),
		Authenticate: i.access.authenticate,
		Check:        i.access.check,
		Opened:       i.access.opened,
		Origins:      i.c.List("cluster.origins"),
		MaxLinks:     i.c.Int("cluster.max_links"),
		Reporter:     i.reporter,
		Ended:        i.clientGone,
		Link:         i.linkOptions("cluster"),
		Log:          log,
	})
	i.http = i.cluster.HTTPServer(i.cluster)
	i.http.Addr = l.Addr().String() // for who asks where it is
	i.run("cluster listener", func() error {
		if err := i.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
}

// linkOptions is the template of the links of one kind.
func (i *instance) linkOptions(op string) link.Options {
	return link.Options{
		Hello: link.Hello{
			Instance:   i.id.String(),
			Epoch:      i.epoch,
			MaxMessage: i.c.Size("cluster.max_payload"),
			MaxCalls:   uint32(i.c.Int("cluster.max_calls")),
			AuthStore:  i.access.storeID(),
			Build:      buildVersion(),
		},
		Memory:        i.memory,
		LinkMemory:    i.c.Size("cluster.link_memory"),
		PingInterval:  i.c.Duration("cluster.ping_interval"),
		ProbeInterval: i.c.Duration("cluster.probe_interval"),
		DeadAfter:     i.c.Duration("cluster.dead_after"),
		Op:            op,
		Log:           slogTo(i.log.Named(op)),
	}
}

// run runs a part that is expected to go on until it is told to stop.
func (i *instance) run(what string, part func() error) {
	i.running.Go(func() {
		if err := part(); err != nil {
			i.fail(what, err)
		}
	})
}

// fail tells serve that a part ended that should not.
func (i *instance) fail(what string, err error) {
	select {
	case i.failed <- fmt.Errorf("the %s failed: %w", what, err):
	default: // one failure is enough to stop for
	}
}

// unready says why the instance should get no work. Requests of /readyz call it
// at any time.
func (i *instance) unready() []string {
	switch {
	case i.draining.Load():
		return []string{"draining"}
	case !i.started.Load():
		return []string{"starting"}
	default:
		return i.host.unready()
	}
}

// notes says what is to be known beside unready, which see.
func (i *instance) notes() []string {
	if !i.started.Load() {
		return nil // host may not be there yet
	}
	return i.host.notes()
}

// drainUntil ends the instance in order, or at once when a second signal comes.
func (i *instance) drainUntil(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.drain(ctx) }()
	select {
	case err := <-done:
		return err
	case s := <-signals:
		i.log.Warn("second signal: stopping at once, calls under way are cancelled", "signal", s.String())
		fmt.Fprintln(i.stderr, "second signal: stopping at once")
		cancel()
		if err := <-done; err != nil {
			i.log.Debug("the drain was cut short", "error", err)
		}
		return &interruptedError{conduit.Errorf(conduit.Aborted, reasonInterrupted, conduit.OutcomeUnknown, "a second signal ended the drain; calls under way were cancelled")}
	}
}

// drain ends the instance: first nobody is sent here any more, then nothing new is
// taken, then what is under way ends, and only then the things that it needs. When
// ctx ends it hurries, in the same order.
func (i *instance) drain(ctx context.Context) error {
	i.draining.Store(true)
	i.budget.Cordon(true) // who is told late, or of another way, gets no units either
	i.changed()           // peers send nothing new from now on, well before they must not
	select {
	case <-time.After(i.c.Duration("drain.delay")):
	case <-ctx.Done():
	}
	i.closing.Store(true)
	i.fabric.registry.Leave()
	limited, cancel := context.WithTimeout(ctx, max(i.c.Duration("drain.timeout"), i.host.drainTimeout()))
	defer cancel()
	i.drainDoors(limited)
	i.host.stop(limited)
	i.stopNow(ctx)
	i.log.Info("stopped")
	return nil
}

// leave ends the streams that have no end of their own. It may be called again.
func (i *instance) leave() { i.leavesOnce.Do(func() { close(i.leaves) }) }

// drainDoors ends, side by side, what comes in from outside.
func (i *instance) drainDoors(ctx context.Context) {
	i.leave()
	var doors sync.WaitGroup
	if i.gateway != nil {
		doors.Go(func() {
			if err := i.gateway.drain(ctx); err != nil {
				i.log.Warn("not all requests to the gateway ended in time", "error", err)
			}
		})
	}
	if i.cluster != nil {
		doors.Go(func() {
			if err := i.cluster.Drain(ctx); err != nil {
				i.log.Warn("not all calls ended in time", "error", err)
			}
		})
	}
	doors.Wait()
}

// stopNow takes down whatever is up, without waiting for calls. It may be called
// after any part of start, and again; that ctx has ended does not hinder it.
func (i *instance) stopNow(ctx context.Context) {
	i.draining.Store(true)
	i.closing.Store(true)
	i.leave()
	ctx = context.WithoutCancel(ctx)
	if i.gateway != nil {
		_ = i.gateway.server.Close()
	}
	if i.cluster != nil {
		_ = i.cluster.Close()
	}
	if i.host != nil {
		hurry, cancel := context.WithCancel(ctx)
		cancel()
		i.host.stop(hurry)
	}
	if i.inner != nil {
		i.inner.close()
	}
	if i.fabric != nil {
		i.fabric.leave()
	}
	if i.http != nil {
		_ = i.http.Close()
	}
	if i.access != nil {
		i.access.close(ctx)
	}
	if i.ops != nil {
		ctx, cancel := context.WithTimeout(ctx, opsGrace)
		defer cancel()
		_ = i.ops.Close(ctx)
	}
	i.running.Wait()
}

// close gives back what outlives the parts. The links of the door end last:
// whoever waits on one for the end of the instance finds its name free then.
func (i *instance) close(ctx context.Context) {
	if i.door != nil {
		i.door.shut()
	}
	i.lock.release()
	if i.door != nil {
		i.door.close(ctx)
	}
}

func errStartInterrupted() error {
	return conduit.Errorf(conduit.Aborted, reasonInterrupted, conduit.NotSent, "a signal came during the start; nothing is left running")
}
