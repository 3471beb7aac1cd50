package pluginlink

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Plugin is what Serve serves: an element, as its host sees it. Describe may be
// called at any time, Configure once and before the rest; all may be called
// concurrently.
type Plugin interface {
	Describe() *conduitv1.Description
	Configure(ctx context.Context, r *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error)
	Health(ctx context.Context) *conduitv1.HealthResponse
	// Stop lets the element flush; ctx says for how long.
	Stop(ctx context.Context) error
	// Handler decides the calls that the host passes on.
	Handler() link.Handler
	// Linked is told the host's link, once, before its first call is handled. It
	// must not block.
	Linked(c *link.Conn)
}

// ErrNotLaunched says that no host started this process.
var ErrNotLaunched = errors.New("this is an element of Elemental Conduit: it runs inside of conduit-host. Copy the file into the host's deployments directory")

// Serve serves p to the host that started this process, until the host ends it.
// It takes the process over: stdout, SIGINT, SIGTERM. It must be called once, as
// early as possible; what is printed to stdout before is skipped and logged by
// the host, what is printed after comes up in its log.
func Serve(p Plugin) error {
	if !Launched() {
		return ErrNotLaunched
	}
	s := &server{
		plugin: p, maxMessage: link.DefaultMaxMessage,
		stderr: os.Stderr, // go-plugin is going to put a pipe in its place
	}
	if err := s.readEnv(); err != nil {
		return err
	}
	if err := s.guardStdout(); err != nil {
		return fmt.Errorf("stdout could not be set aside for the handshake: %w", err)
	}
	signal.Ignore(unix.SIGINT) // Ctrl-C at the host's terminal is the host's to handle
	quit := make(chan struct{})
	defer close(quit)
	go s.watchParent(quit)
	go s.drainOnTerm(quit)

	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshakeConfig(),
		VersionedPlugins: versions(serverPlugin{s: s}),
		GRPCServer:       s.newServer,
		Logger: hclog.New(&hclog.LoggerOptions{
			Name: "go-plugin", Level: hclog.Warn, Output: s.stderr, JSONFormat: true,
		}),
	})
	if !s.up.Load() {
		// go-plugin has logged why and tells its caller nothing.
		return errors.New("the plugin could not listen on its socket: see the log line before")
	}
	return nil
}

// guardStdout keeps the real stdout for the handshake, and has everything that
// writes to file descriptor 1 by other ways (C code, the runtime, a child) write
// to stderr until the handshake is over.
func (s *server) guardStdout() error {
	saved, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	if err := redirect(2, 1); err != nil {
		_ = unix.Close(saved)
		return err
	}
	s.stdout = os.NewFile(uintptr(saved), "stdout")
	os.Stdout = s.stdout // go-plugin prints its line here
	return nil
}

// freeStdio undoes what go-plugin has done to os.Stdout and os.Stderr after its
// handshake: it sends both through a pipe and a gRPC stream, where the last words
// of a process that ends are lost. The host reads the real ones for ever.
func (s *server) freeStdio() {
	if s.stdout == nil {
		return // they were left alone
	}
	s.stdio.Do(func() {
		os.Stdout, os.Stderr = s.stdout, s.stderr
		_ = redirect(int(s.stdout.Fd()), 1)
	})
}

// server is the plugin's end of the control service.
type server struct {
	conduitv1.UnimplementedPluginServer
	plugin     Plugin
	token      []byte
	hostPID    int
	maxMessage int64
	stdout     *os.File // the real ones
	stderr     *os.File
	stdio      sync.Once
	debugged   bool // a debugger may hold the process or its host at any time
	socketLink bool // the host may connect to the socket for its link

	up         atomic.Bool // go-plugin came as far as to make its server
	configured atomic.Pointer[conduitv1.ConfigureRequest]
	linked     atomic.Bool // a link with the right token came
	tell       sync.Once   // the plugin, of the link
	conn       atomic.Pointer[link.Conn]
}

// readEnv takes what the host said; children of the plugin are not to inherit it.
func (s *server) readEnv() (err error) {
	if s.token, err = hex.DecodeString(os.Getenv(envToken)); err != nil || len(s.token) < 16 {
		return fmt.Errorf("%s is not set as a host sets it: let conduit-host start this plugin", envToken)
	}
	s.hostPID, _ = strconv.Atoi(os.Getenv(envHostPID))
	if n, err := strconv.ParseInt(os.Getenv(envMaxMessage), 10, 64); err == nil && n > 0 {
		s.maxMessage = n
	}
	return errors.Join(os.Unsetenv(envToken), os.Unsetenv(envHostPID))
}

// newServer makes the gRPC server. go-plugin's default keeps gRPC's receive cap
// of 4 MiB, which would show through.
func (s *server) newServer(opts []grpc.ServerOption) *grpc.Server {
	s.up.Store(true)
	n := int(min(s.maxMessage, math.MaxInt32-envelope)) + envelope
	if len(opts) == 0 { // go-plugin's own are those of TLS, which knows the host by its certificate
		s.socketLink = true
		opts = []grpc.ServerOption{grpc.Creds(hostOnly(&takesSockets{insecure.NewCredentials(), s.serveSocket}, s.hostPID))}
	}
	return grpc.NewServer(append(opts,
		grpc.MaxRecvMsgSize(n), grpc.MaxSendMsgSize(n),
		grpc.InitialWindowSize(grpcWindow), grpc.InitialConnWindowSize(grpcWindow),
		grpc.ReadBufferSize(grpcBuffer), grpc.WriteBufferSize(grpcBuffer),
		grpc.ChainUnaryInterceptor(s.recoverUnary), grpc.ChainStreamInterceptor(s.recoverStream),
	)...)
}

// Describe implements conduitv1.PluginServer.
func (s *server) Describe(context.Context, *conduitv1.DescribeRequest) (*conduitv1.Description, error) {
	s.freeStdio() // the first RPC of a host, before any code of the element's own
	d := s.plugin.Describe()
	if !s.debugged {
		nameProcess(d.GetElement())
	}
	return d, nil
}

// Configure implements conduitv1.PluginServer.
func (s *server) Configure(ctx context.Context, r *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	s.freeStdio()
	if !s.configured.CompareAndSwap(nil, r) {
		return nil, status.Error(codes.FailedPrecondition, "the element was configured before: start a new process for a new configuration")
	}
	resp, err := s.plugin.Configure(ctx, r)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	// Not the element's own, which may be the same each time.
	return &conduitv1.ConfigureResponse{Warnings: resp.GetWarnings(), SocketLink: s.socketLink}, nil
}

// Health implements conduitv1.PluginServer.
func (s *server) Health(ctx context.Context, _ *conduitv1.HealthRequest) (*conduitv1.HealthResponse, error) {
	if h := s.plugin.Health(ctx); h != nil {
		return h, nil
	}
	return &conduitv1.HealthResponse{State: conduitv1.HealthResponse_STATE_HEALTHY}, nil
}

// Stop implements conduitv1.PluginServer.
func (s *server) Stop(ctx context.Context, r *conduitv1.StopRequest) (*conduitv1.StopResponse, error) {
	if g := r.GetGraceMicros(); g > 0 && g < math.MaxInt64/1000 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(g)*time.Microsecond)
		defer cancel()
	}
	if err := s.plugin.Stop(ctx); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &conduitv1.StopResponse{}, nil
}

// Link implements conduitv1.PluginServer: it carries the host's link until it
// ends.
func (s *server) Link(stream grpc.BidiStreamingServer[conduitv1.Packet, conduitv1.Packet]) error {
	r := s.configured.Load()
	if r == nil {
		return status.Error(codes.FailedPrecondition, "the element is not configured yet: Configure comes before Link")
	}
	over := make(chan struct{})
	c := newCarrier(stream, func() { close(over) })
	conn := link.New(c, s.linkOptions(r))
	// Only the return of this func ends the stream here, and with it a read that
	// is under way: so it must not wait for the link when the link was closed.
	if err := conn.Ready(stream.Context()); err != nil {
		conn.Close(link.CloseAuth, "no link without the host's token")
		select {
		case <-over: // why is written
		case <-stream.Context().Done():
		}
		return nil
	}
	s.tellLinked(conn)
	select {
	case <-conn.Done():
	case <-over:
	}
	return nil
}

// serveSocket carries the host's link, as Link does, over a connection of its own until
// that ends.
func (s *server) serveSocket(u *net.UnixConn) {
	r := s.configured.Load()
	if r == nil {
		_ = u.Close()
		return
	}
	c, err := newSocketCarrier(u, nil, int(min(s.maxMessage, math.MaxInt32-envelope))+envelope)
	if err != nil {
		_, _ = fmt.Fprintln(s.stderr, "[WARN] a connection for the host's link cannot be used:", err)
		_ = u.Close()
		return
	}
	conn := link.New(c, s.linkOptions(r))
	if err := conn.Ready(context.Background()); err != nil { // within the time that a Hello has
		conn.Close(link.CloseAuth, "no link without the host's token")
	} else {
		s.tellLinked(conn)
	}
	<-conn.Done()
}

// tellLinked tells the plugin of its host's link.
func (s *server) tellLinked(conn *link.Conn) {
	s.tell.Do(func() {
		s.conn.Store(conn)
		s.plugin.Linked(conn)
	})
}

// linkedFirst is the plugin's handler, behind the news of the link: a call may
// come before Link has seen that the link is ready.
type linkedFirst struct {
	s    *server
	next link.Handler
}

// Handle implements link.Handler.
func (h linkedFirst) Handle(in *link.Incoming) {
	h.s.tellLinked(in.Conn())
	h.next.Handle(in)
}

var errToken = errors.New("the token is not the one that this plugin was started with")

func (s *server) linkOptions(r *conduitv1.ConfigureRequest) link.Options {
	o := link.Options{
		Duplex:  true,
		Handler: linkedFirst{s: s, next: s.plugin.Handler()},
		Peer:    link.Peer{Name: r.GetInstance(), User: "host", Level: conduit.System, System: true},
		Hello: link.Hello{
			MaxMessage: int64(r.GetMaxMessage()),
			MaxCalls:   r.GetMaxCalls(),
		},
		LinkMemory: int64(r.GetLinkMemory()),
		DeadAfter:  pluginDeadAfter,
		Op:         "plugin",
		Check: func(theirs link.Hello) error {
			if subtle.ConstantTimeCompare(theirs.Token, s.token) != 1 {
				return errToken
			}
			if !s.linked.CompareAndSwap(false, true) {
				return errors.New("this plugin has its host's link already")
			}
			return nil
		},
	}
	if o.Hello.MaxMessage == 0 {
		o.Hello.MaxMessage = s.maxMessage
	}
	if s.debugged {
		o.ProbeInterval = -1
	}
	if m := r.GetMemory(); m > 0 {
		o.Memory = link.NewMemory(int64(m))
	}
	return o
}

// pluginDeadAfter is how long a plugin's link may be silent when something is
// awaited on it.
const pluginDeadAfter = 10 * time.Second

// serverPlugin registers the server with go-plugin.
type serverPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	s *server
}

func (p serverPlugin) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	conduitv1.RegisterPluginServer(g, p.s)
	return nil
}

func (serverPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin calls through its link")
}
