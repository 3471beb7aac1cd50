package pluginlink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// DebugDir returns the directory that the sockets of this user's debug processes are in,
// and makes it: it is nobody else's (0700).
func DebugDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "conduit-debug-"+strconv.Itoa(os.Geteuid()))
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dir = filepath.Join(run, "conduit-debug")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("no directory for the socket could be made: %w; set XDG_RUNTIME_DIR to a directory of yours", err)
	}
	// Of what was there, not only of what was made: /tmp is everybody's.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s is not a directory of this user's alone (0700): remove it, or set XDG_RUNTIME_DIR to another directory of yours", dir)
	}
	return dir, nil
}

// Debug serves an element without a host's launch, to hosts that [Attach], one at a time
// and one after the other, until ctx ends: then no calls are taken any more, those under
// way finish for a while, and it returns. Each host gets a Plugin of its own, which is
// stopped when that host has gone. announce is told the socket, which then can be attached
// to; its path is the same for each process of that name, of which there can be one at a
// time.
//
// Nothing of the process is changed: its output, its signals and its parent are its own.
// Who may attach: processes of this user, who alone can enter the socket's directory; on
// Linux the kernel is asked as well who has connected.
func Debug(ctx context.Context, name string, element func() Plugin, announce func(socket string)) error {
	dir, err := DebugDir()
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, name+".sock")
	if n := len(socket); n >= maxSocketPath {
		return fmt.Errorf("the socket's path %s is too long: it has %d bytes, and the system takes fewer than %d; set XDG_RUNTIME_DIR to a shorter one", socket, n, maxSocketPath)
	}
	lock, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // it ends the lock, whatever it says
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process serves %s for debugging already (%s is locked): end that one first", name, lock.Name())
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // it is closed by then
	d := &debugServer{element: element, token: make([]byte, 32)}
	_, _ = rand.Read(d.token) // never fails
	defer os.Remove(debugRecord(socket))
	if err := writeDebugRecord(socket, d.token); err != nil {
		return err
	}
	s := &server{maxMessage: math.MaxInt32 - envelope, stderr: os.Stderr} // what a host takes, it says when it comes
	creds := grpc.Creds(userOnly{&takesSockets{insecure.NewCredentials(), d.serveSocket}})
	g := s.newServer([]grpc.ServerOption{creds, grpc.StatsHandler(d)})
	conduitv1.RegisterPluginServer(g, d)
	stop := context.AfterFunc(ctx, func() {
		d.drain()
		g.Stop()
	})
	defer stop()
	announce(socket)
	err = g.Serve(l)
	if ctx.Err() != nil {
		err = nil
	}
	g.Stop() // waits for its handlers
	d.sessions.Wait()
	return err
}

func writeDebugRecord(socket string, token []byte) error {
	text := fmt.Sprintf("1|%d|unix|%s|grpc\n%s\n", ProtocolVersion, socket, hex.EncodeToString(token))
	half := debugRecord(socket) + ".new"
	if err := os.WriteFile(half, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(half, debugRecord(socket))
}

// debugServer is the control service of a debug process: to each connection, which is
// that of one host, it is a server of its own.
type debugServer struct {
	conduitv1.UnimplementedPluginServer
	element  func() Plugin
	token    []byte
	sessions sync.WaitGroup // of hosts that have gone, until their elements are stopped

	mu     sync.Mutex
	active *debugSession // the one that has configured an element; nil = none
}

// debugSession is what one host has of a debug process.
type debugSession struct {
	*server
	stopped atomic.Bool
	gone    chan struct{}  // closed when its host has gone; with the debugServer's mu held
	sockets sync.WaitGroup // of links that have a connection of their own
}

func (d *debugServer) newSession() *debugSession {
	return &debugSession{gone: make(chan struct{}), server: &server{plugin: d.element(), token: d.token, maxMessage: link.DefaultMaxMessage, stderr: os.Stderr, debugged: true, socketLink: true}}
}

type sessionKey struct{}

// TagConn implements stats.Handler.
func (d *debugServer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, sessionKey{}, d.newSession())
}

// HandleConn implements stats.Handler: a host that has gone leaves the element to be
// stopped, if it has not done so itself, before the next one comes.
func (d *debugServer) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, over := s.(*stats.ConnEnd); !over {
		return
	}
	session, _ := ctx.Value(sessionKey{}).(*debugSession)
	d.mu.Lock()
	defer d.mu.Unlock()
	if session == nil || d.active != session {
		return
	}
	close(session.gone)
	d.sessions.Go(func() {
		session.sockets.Wait()
		if !session.stopped.Swap(true) {
			stop, cancel := context.WithTimeout(context.Background(), termGrace)
			defer cancel()
			_ = session.plugin.Stop(stop)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.active = nil
	})
}

// TagRPC implements stats.Handler.
func (d *debugServer) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (d *debugServer) HandleRPC(context.Context, stats.RPCStats) {}

var errNoSession = status.Error(codes.Internal, "the call has come over no connection")

// Describe implements conduitv1.PluginServer.
func (d *debugServer) Describe(ctx context.Context, r *conduitv1.DescribeRequest) (*conduitv1.Description, error) {
	if s, ok := ctx.Value(sessionKey{}).(*debugSession); ok {
		return s.Describe(ctx, r)
	}
	return nil, errNoSession
}

// Configure implements conduitv1.PluginServer. The element is one host's until that has
// gone.
func (d *debugServer) Configure(ctx context.Context, r *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	s, ok := ctx.Value(sessionKey{}).(*debugSession)
	if !ok {
		return nil, errNoSession
	}
	d.mu.Lock()
	if d.active != nil && d.active != s {
		d.mu.Unlock()
		return nil, status.Error(codes.FailedPrecondition, "another host is attached to this debug process, or was until a moment ago: a process serves one")
	}
	d.active = s
	d.mu.Unlock()
	return s.Configure(ctx, r)
}

// Health implements conduitv1.PluginServer.
func (d *debugServer) Health(ctx context.Context, r *conduitv1.HealthRequest) (*conduitv1.HealthResponse, error) {
	if s, ok := ctx.Value(sessionKey{}).(*debugSession); ok {
		return s.Health(ctx, r)
	}
	return nil, errNoSession
}

// Stop implements conduitv1.PluginServer: it stops the element and not the process.
func (d *debugServer) Stop(ctx context.Context, r *conduitv1.StopRequest) (*conduitv1.StopResponse, error) {
	s, ok := ctx.Value(sessionKey{}).(*debugSession)
	if !ok {
		return nil, errNoSession
	}
	s.stopped.Store(true)
	return s.Stop(ctx, r)
}

// Link implements conduitv1.PluginServer.
func (d *debugServer) Link(stream grpc.BidiStreamingServer[conduitv1.Packet, conduitv1.Packet]) error {
	if s, ok := stream.Context().Value(sessionKey{}).(*debugSession); ok {
		return s.Link(stream)
	}
	return errNoSession
}

// serveSocket is Link over a connection of its own, for the host that has configured an
// element: whose connection it is says the token. It ends with the session.
func (d *debugServer) serveSocket(u *net.UnixConn) {
	d.mu.Lock()
	s := d.active
	if s != nil {
		select {
		case <-s.gone:
			s = nil
		default:
			s.sockets.Add(1)
		}
	}
	d.mu.Unlock()
	if s == nil {
		_ = u.Close()
		return
	}
	defer s.sockets.Done()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-s.gone:
			_ = u.Close()
		case <-over:
		}
	}()
	s.serveSocket(u)
}

// drain lets the calls of the host that is attached finish, and stops its element.
func (d *debugServer) drain() {
	d.mu.Lock()
	s := d.active
	d.mu.Unlock()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), termGrace)
	defer cancel()
	s.stopped.Store(true)
	s.drain(ctx)
}

// userOnly is the plain connection, with a look at who has made it.
type userOnly struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c userOnly) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, err := sameUser(conn); err != nil {
		return nil, nil, err
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

// Clone implements credentials.TransportCredentials.
func (c userOnly) Clone() credentials.TransportCredentials {
	return userOnly{c.TransportCredentials.Clone()}
}
