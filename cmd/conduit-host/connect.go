package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

// doorTimeout is how long an instance of this machine may take to let the command
// line in.
const doorTimeout = 5 * time.Second

// target is an instance, or several of which any will do, that a command asks.
type target struct {
	// name is for messages; of one of --peer it is the URL.
	name string
	dial func(ctx context.Context) (connection, error)
	// peer: it is one of --peer.
	peer bool
}

// addTargetFlags gives a command what it needs, beside the global flags, to find
// the instance that serve runs with the same configuration.
func (a *app) addTargetFlags(cmd *cobra.Command) {
	a.addKeyFlags(cmd, func(k *config.Key) bool { return k.Name == "data_dir" || isDialKey(k.Name) })
}

// isDialKey picks the keys that say how a peer is dialled.
func isDialKey(name string) bool { return slices.Contains(dialKeys(), name) }

func dialKeys() []string { return []string{"cluster.tls.ca", "cluster.tls.cert", "cluster.tls.key"} }

// target says whom a command asks: any of --peer, else the instance of this
// machine. Nobody is troubled before it is used, but for the question which
// instances are alive.
func (a *app) target(ctx context.Context) (target, error) {
	if len(a.peers) == 0 {
		return a.localTarget(ctx)
	}
	o, err := a.checkPeers()
	if err != nil {
		return target{}, err
	}
	return target{strings.Join(a.peers, ", "), func(ctx context.Context) (connection, error) { return a.dial(ctx, o) }, true}, nil
}

// targets is target for commands that ask each of --peer.
func (a *app) targets(ctx context.Context) ([]target, error) {
	if len(a.peers) == 0 {
		t, err := a.localTarget(ctx)
		return []target{t}, err
	}
	o, err := a.checkPeers()
	if err != nil {
		return nil, err
	}
	var list []target
	for _, p := range a.peers {
		o := o
		o.Peers = []string{p}
		list = append(list, target{p, func(ctx context.Context) (connection, error) { return a.dial(ctx, o) }, true})
	}
	return list, nil
}

// checkPeers brings --peer into its normal form and finds what to dial them with: the
// session's secret, and whom to trust.
func (a *app) checkPeers() (o client.Options, err error) {
	if a.instance != "" {
		return o, usagef("--instance names an instance of this machine, and --peer one by its URL; give one of them")
	}
	if a.peers, err = discovery.ParseStatic(a.peers, false); err != nil {
		return o, usagef("--peer: %v", err)
	}
	o.Peers = a.peers
	if o.TLS, err = a.dialTLS(); err != nil {
		return o, err
	}
	o.Session, err = a.sessionSecret()
	return o, err
}

// localTarget finds the management socket of this machine's instance.
func (a *app) localTarget(ctx context.Context) (target, error) {
	if a.session != "" {
		return target{}, usagef("--session goes with --peer: on the management socket of this machine's instance you are its operator")
	}
	c, err := a.loadConfig()
	if err := only(err, "data_dir", "run_dir"); err != nil {
		return target{}, err
	}
	runDir := c.String("run_dir")
	name, err := findInstance(ctx, runDir, a.instance)
	if err != nil {
		return target{}, err
	}
	socket := filepath.Join(runDir, name+socketSuffix)
	return target{name, func(ctx context.Context) (connection, error) { return dialDoor(ctx, socket) }, false}, nil
}

// findInstance picks the instance that is meant among those of a run directory.
func findInstance(ctx context.Context, runDir, wanted string) (string, error) {
	names, err := instancesIn(runDir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
	case errors.Is(err, fs.ErrPermission):
		return "", conduit.Errorf(conduit.PermissionDenied, reasonPermission, conduit.NotSent,
			"%s, where the sockets of instances are, is not open to this user; run as the user of the instance, or use --peer", runDir)
	default:
		return "", configf("run_dir: %v", err)
	}
	if wanted != "" {
		if slices.Contains(names, wanted) {
			return wanted, nil
		}
		return "", noInstance("no instance named %s runs here (in %s)%s", wanted, runDir, listed(names, wanted))
	}
	if len(names) > 1 { // perhaps one of them was killed, and left its socket
		names = slices.DeleteFunc(names, func(name string) bool { return isDead(ctx, filepath.Join(runDir, name+socketSuffix)) })
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", noInstance("no instance runs here (there is no socket of one in %s); start one with `%s`, say where it is with --run-dir or --data-dir as for serve, or call a cluster endpoint with --peer URL", runDir, startOne)
	default:
		return "", usagef("several instances run here: %s; say which one with --instance NAME", strings.Join(names, ", "))
	}
}

// startOne is the command that starts an instance on a machine that has none.
const startOne = "conduit-host serve --mode worker"

func listed(names []string, wanted string) string {
	if len(names) == 0 {
		return fmt.Sprintf(", nor any other; start it with `%s --name %s`", startOne, wanted)
	}
	return "; there is " + strings.Join(names, ", ")
}

func noInstance(format string, args ...any) error {
	return conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerUnreachable, conduit.NotSent, format, args...)
}

// isDead reports whether nobody listens at a socket any more.
func isDead(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
	}
	_ = conn.Close()
	return false
}

// reasonPermission is the reason of what the system does not permit this user.
const reasonPermission = "permission_denied"

// readToken reads the token of the instance with that socket. No message of it
// says what the token is.
func readToken(socket string) ([]byte, error) {
	path := tokenFile(socket)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close() //nolint:errcheck // nothing was written
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(f, maxSession)); err == nil {
			if token := strings.TrimSpace(string(text)); token != "" {
				return []byte(token), nil
			}
			err = errors.New("it is empty")
		}
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, conduit.Errorf(conduit.PermissionDenied, reasonPermission, conduit.NotSent,
			"%s, the token of the instance, is not readable by this user; it is for the user that runs the instance", path)
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("it does not exist")
	}
	return nil, conduit.Errorf(conduit.Unauthenticated, conduit.ReasonUnauthenticated, conduit.NotSent,
		"%s, the token of the instance, cannot be read: %v; the instance makes it when it starts", path, err)
}

// dialDoor connects to the management socket of an instance.
func dialDoor(ctx context.Context, socket string) (connection, error) {
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
	defer cancel()
	token, err := readToken(socket)
	if err != nil {
		if isDead(ctx, socket) { // then that is what is to be said
			token = []byte("-")
		} else {
			return nil, err
		}
	}
	l, err := transport.DialSocket(ctx, socket, token, link.Options{})
	if err != nil {
		return nil, err
	}
	return &doorConnection{l}, nil
}

// doorConnection is a connection to an instance's management socket.
type doorConnection struct{ l *link.Conn }

// At implements connection.
func (d *doorConnection) At(addr string) conduit.Invoker { return doorInvoker{d.l, addr} }

// Close implements connection.
func (d *doorConnection) Close() error {
	d.l.Close(link.CloseDone, "")
	<-d.l.Done()
	return nil
}

// wait waits for the instance to end the link, and returns nil if it did so in
// order: then it is gone.
func (d *doorConnection) wait(ctx context.Context) error {
	select {
	case <-d.l.Done():
	case <-ctx.Done():
		return conduit.FromContext(ctx, conduit.OutcomeUnknown)
	}
	if e, ok := errors.AsType[*link.CloseError](d.l.Err()); ok && e.Remote {
		return nil
	}
	return conduit.Errorf(conduit.Unavailable, conduit.ReasonPeerLost, conduit.OutcomeUnknown, "the instance ended before it had drained: %v", d.l.Err())
}

type doorInvoker struct {
	l    *link.Conn
	addr string
}

// Invoke implements conduit.Invoker.
func (d doorInvoker) Invoke(ctx context.Context, in *conduit.Invocation) conduit.Exchange {
	a, err := address.Parse(d.addr)
	if err != nil {
		return conduit.FailedExchange(conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err))
	}
	return d.l.Invoke(ctx, link.NewRoute(a), in)
}
