package pluginlink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Defaults of a launch.
const (
	DefaultStartTimeout = 10 * time.Second
	DefaultNoFile       = 65536
)

// socketRoom is what go-plugin appends to the socket directory's path, at most;
// maxSocketPath is the longest path of a Unix socket that all systems take.
const (
	socketRoom    = 38
	maxSocketPath = 104
)

// LaunchConfig says how to run a plugin. It is read only while Launch runs, but
// for Log, which the process's output goes to until its end, and Carrier.
type LaunchConfig struct {
	// Name is for logs and errors, such as "echo/echo".
	Name string
	// Element is what the element called itself when it last ran; empty if that is not
	// known. Its output is logged under that name until it has told another.
	Element string
	// Path is the binary; it must not change while it runs. Args follow it.
	Path string
	Args []string
	// File, if set, is the opened binary: where the system can, it is what runs,
	// whatever Path has come to name. It must stay open until Launch returns.
	File *os.File
	// Source is the file that people know the binary by; empty = Path.
	Source string
	// Dir is the working directory, never the host's own.
	Dir string
	// Env is what the deployment declares, as NAME=value.
	Env []string
	// SocketDir takes the process's socket directory. It must be private to
	// this host (0700), since a socket's own mode is the umask's.
	SocketDir string
	// StartTimeout bounds the time from exec to handshake; 0 = 10 s.
	StartTimeout time.Duration
	// MaxMessage is the largest message of a call in bytes; 0 = 10 MiB.
	MaxMessage int64
	// NoFile bounds the process's open files; 0 = 65536, at most the host's own bound.
	// A Confinement sets limits itself.
	NoFile uint64
	// Limits are what it is held to beyond that; Files takes the place of NoFile.
	Limits Limits
	// Confine, if set, prepares the process's confinement; nil = it has none. file is the
	// opened binary, nil if what runs is the one that Path names; socketDir is the
	// directory that the process's socket has to be made in. An error of type *StartError
	// is that of the launch.
	Confine func(file *os.File, socketDir string) (Confinement, error)
	// Owner marks the process and all that it starts as this host's, for [Sweep]; empty
	// = no mark. It is no secret.
	Owner string
	// Spawner starts it.
	Spawner *Spawner
	// Log takes the process's output and what is to be said of it; nil = nothing.
	Log hclog.Logger
	// Output takes the same, of every level; nil = nobody does. It is called from several
	// goroutines until the process has ended and been killed, and must not block.
	Output func(OutputRecord)
	// GRPC has the link go over gRPC though the plugin takes it as a connection of its own.
	GRPC bool
	// Carrier, if set, stands between the link and its stream, for who watches or spoils
	// on purpose what is sent.
	Carrier func(link.Carrier) link.Carrier
}

// Confinement has one process confine itself before it becomes the plugin. Its methods
// may be called concurrently.
type Confinement interface {
	// Apply makes cmd, which would run the plugin, start the process that becomes it.
	Apply(cmd *exec.Cmd)
	// Started returns when process pid executes the plugin, or why it does not: as a
	// *StartError, or else as an error of exec. It is called once, if the process was
	// started; the end of ctx, or of the process, ends the wait.
	Started(ctx context.Context, pid int) error
	// Close lets go of what is held for the process, which has ended or was not started.
	Close()
}

// CheckSocketDir says whether sockets below dir have paths that the system can
// bind. An error gives the numbers and the mend.
func CheckSocketDir(dir string) error {
	if n := len(dir) + socketRoom; n > maxSocketPath {
		return fmt.Errorf("socket directory %s is too long: its %d bytes and the %d of a socket's name make %d, the system's limit is %d; choose a shorter run directory",
			dir, len(dir), socketRoom, n, maxSocketPath)
	}
	return nil
}

// Launch starts a plugin and returns when it has answered the handshake, with
// an error of type *StartError when it does not. ctx bounds the start only; if
// it ends, the process is killed. On error nothing is left: no process, no
// file, no goroutine.
func Launch(ctx context.Context, config LaunchConfig) (*Process, error) {
	cfg := config
	setDefaults(&cfg)
	misconfigured := func(err error) (*Process, error) {
		return nil, &StartError{Kind: KindConfig, Path: cfg.Source, Message: err.Error(), Err: err}
	}
	if cfg.Spawner == nil {
		return misconfigured(errors.New("no Spawner was given"))
	}
	if err := CheckSocketDir(cfg.SocketDir); err != nil {
		return misconfigured(err)
	}
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	protocol := []string{
		envToken + "=" + hex.EncodeToString(token),
		envHostPID + "=" + strconv.Itoa(os.Getpid()),
		envMaxMessage + "=" + strconv.FormatInt(cfg.MaxMessage, 10),
		envLogLevel + "=" + cfg.Log.GetLevel().String(),
	}
	if cfg.Owner != "" {
		protocol = append(protocol, envOwner+"="+cfg.Owner)
	}
	cfg.Env = append(cfg.Limits.env(), cfg.Env...)
	if _, err := pluginEnv(nil, cfg.Env, nil); err != nil {
		return misconfigured(err)
	}

	ctx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	p := &Process{cfg: &cfg, token: token, released: make(chan struct{})}
	out := newOutput(cfg.Log, cfg.Output)
	p.printed = []*lineWriter{{out: out, source: sourceStdout}, {out: out, source: sourceStderr}}
	out.setElement(cfg.Element)
	// A go-plugin client cannot start twice and writes into its config: both
	// are made anew for each launch.
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  handshakeConfig(),
		VersionedPlugins: versions(clientPlugin{}),
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
			p.socketDir = socketDir
			env, err := pluginEnv(os.Environ(), cfg.Env, append(cmd.Env, protocol...))
			if err != nil {
				return nil, err
			}
			p.child = newChild(ctx, &cfg, env, socketDir, out)
			return p.child, nil
		},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		SkipHostEnv:      true,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: cfg.SocketDir},
		// Ours ends first, and knows why.
		StartTimeout: cfg.StartTimeout + 5*time.Second,
		// What go-plugin would say (a normal exit is an error to it), we say.
		Logger:          hclog.NewNullLogger(),
		SyncStdout:      p.printed[0],
		SyncStderr:      p.printed[1],
		Managed:         false, // its list never shrinks
		GRPCDialOptions: dialOptions(cfg.MaxMessage),
	})
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

func setDefaults(cfg *LaunchConfig) {
	if cfg.StartTimeout <= 0 {
		cfg.StartTimeout = DefaultStartTimeout
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = link.DefaultMaxMessage
	}
	if cfg.Limits.Files != 0 {
		cfg.NoFile = cfg.Limits.Files
	}
	if cfg.NoFile == 0 {
		cfg.NoFile = DefaultNoFile
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Source == "" {
		cfg.Source = cfg.Path
	}
	if cfg.Name == "" {
		cfg.Name = filepath.Base(cfg.Path)
	}
}

// dialOptions caps what a plugin may send, which go-plugin does not, and gives
// the connection the windows and buffers that the link was measured with.
func dialOptions(maxMessage int64) []grpc.DialOption {
	n := int(maxMessage) + envelope
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(n), grpc.MaxCallSendMsgSize(n)),
		grpc.WithInitialWindowSize(grpcWindow),
		grpc.WithInitialConnWindowSize(grpcWindow),
		grpc.WithReadBufferSize(grpcBuffer),
		grpc.WithWriteBufferSize(grpcBuffer),
		grpc.WithDisableRetry(), // a call is never sent twice behind its caller's back
	}
}

// clientPlugin is the host's entry in go-plugin's set. Nothing is dispensed:
// the client of our own service is made on go-plugin's connection.
type clientPlugin struct {
	plugin.NetRPCUnsupportedPlugin
}

func (clientPlugin) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("the host serves nothing")
}

func (clientPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("nothing to dispense")
}

// start runs go-plugin's Start and Client, which know no context and hold a lock all
// the while: the child, which knows it, ends itself with it, and they return.
func (p *Process) start(ctx context.Context) error {
	protocol, err := p.client.Client() // starts it, too
	if p.child != nil && !p.child.outlives() && err == nil {
		err = ctx.Err() // it came up, and is being killed
	}
	if err == nil {
		if g, ok := protocol.(*plugin.GRPCClient); ok {
			p.rpc = conduitv1.NewPluginClient(g.Conn)
			return nil
		}
		err = fmt.Errorf("go-plugin made a %T where a gRPC client was asked for", protocol)
	}
	why := p.startError(ctx, err)
	_ = p.Kill(0)
	return why
}

// foreignPlugin is what go-plugin prints when the cookie is not its own.
const foreignPlugin = "not meant to be executed directly"

// startError says why the start failed: from what the runner saw, not from
// go-plugin's text, which is one for all causes.
func (p *Process) startError(ctx context.Context, err error) *StartError {
	e := &StartError{Path: p.cfg.Source, Err: err}
	c := p.child
	if c == nil {
		e.Kind, e.Message = KindSystem, noDescriptors
		if !noDescriptor(err) {
			e.Message = fmt.Sprintf("the start could not be prepared: %v; is the socket directory %s there and writable?", err, p.cfg.SocketDir)
		}
		return e
	}
	if c.started() {
		// It has ended by itself, or been killed by go-plugin or for the end of ctx; but
		// go-plugin leaves it alone when it gets no connection.
		select {
		case <-c.exited:
		case <-time.After(exitNotice):
			_ = c.Kill(context.Background())
		}
		e.Stderr, e.Ended = c.out.Tail(), c.out.endedWith()
	}
	fault, killed := c.verdict() // once it has ended: until then it may be killed yet
	if fault != nil {
		fault.Stderr, fault.Ended = e.Stderr, e.Ended
		return fault
	}
	exited := false
	select {
	case <-c.exited:
		exited = !killed || c.exit.Signal != syscall.SIGKILL.String() // else it had ended before our signal came
	default:
	}
	switch {
	case exited:
		e.Exit = c.exit
		p.explainExit(e)
	case errors.Is(context.Cause(ctx), context.Canceled):
		e.Kind, e.Message = KindCanceled, "the start was given up"
	case noDescriptor(err):
		e.Kind, e.Message = KindSystem, noDescriptors
	case ctx.Err() != nil:
		e.Kind, e.Message = KindTimeout, fmt.Sprintf("it printed no handshake within %s; if it needs longer to load, raise host.start_timeout, and let pluginapi.Main come first in main", p.cfg.StartTimeout)
	default:
		e.Kind, e.Message = KindUnreachable, "the handshake failed: "+firstLine(err.Error())
	}
	return e
}

func (p *Process) explainExit(e *StartError) {
	all := strings.Join(e.Stderr, "\n")
	switch {
	case e.Exit.Signal != "":
		e.Kind, e.Message = KindSignalled, "it "+e.Exit.String()+" before the handshake"
	case strings.Contains(all, foreignPlugin):
		e.Kind, e.Message = KindCookie, "it is a plugin of another program: its cookie differs; build it with pluginapi"
	case e.Exit.Code == 0:
		e.Kind, e.Message = KindExited, "it exited with status 0 before the handshake, as a program does that is no plugin; call pluginapi.Main in main"
	case len(e.Stderr) == 0:
		e.Kind, e.Message = KindExited, "it "+e.Exit.String()+" before the handshake, and wrote nothing to stderr; if it is a plugin, run it by hand to see why"
	default:
		e.Kind, e.Message = KindExited, "it "+e.Exit.String()+" before the handshake; its stderr says why"
	}
	for _, line := range e.Stderr {
		if startsPanic([]byte(line)) {
			e.Message += "; " + line
			break
		}
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return Text(s, maxText)
}
