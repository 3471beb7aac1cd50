package pluginlink

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// AttachConfig says which debug process to attach to.
type AttachConfig struct {
	// Name is for logs and errors, such as "echo/echo".
	Name string
	// Socket is where the process listens: an absolute path.
	Socket string
	// MaxMessage is the largest message of a call in bytes; 0 = 10 MiB.
	MaxMessage int64
	// Log takes what is to be said of the process; nil = nothing. Its own output goes where
	// it was started.
	Log hclog.Logger
}

// Attach connects to a process that [Debug] serves, which somebody else has started and
// somebody else is going to end. The Process is like one of [Launch], but for this: its
// Kill closes the connection and leaves the process as it is, no signal is ever sent to
// it, its link has no liveness, so that it may stand still for as long as it likes, and
// Exited is closed by Kill alone. That it has gone is seen by the end of its link. An
// error is of type *StartError.
//
// Both the socket's directory and the socket must be this user's, and nobody else may
// enter the directory; where the system tells, so must the process be.
func Attach(ctx context.Context, config AttachConfig) (*Process, error) {
	cfg := LaunchConfig{Name: config.Name, Path: config.Socket, MaxMessage: config.MaxMessage, Log: config.Log}
	setDefaults(&cfg)
	if err := checkDebugSocket(config.Socket); err != nil {
		return nil, err
	}
	token, err := readDebugRecord(config.Socket)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	socket, err := d.DialContext(ctx, "unix", config.Socket)
	if err != nil {
		return nil, noDebugProcess(config.Socket, err)
	}
	pid, err := sameUser(socket)
	if err != nil {
		_ = socket.Close()
		return nil, &StartError{Kind: KindAddress, Path: config.Socket, Message: "it is not attached to: " + err.Error(), Err: err}
	}
	// gRPC would dial again: another process at the same path is another attachment.
	var once sync.Once
	rest, giveUp := context.WithCancel(context.Background())
	dial := func(ctx context.Context, _ string) (c net.Conn, err error) {
		once.Do(func() { c = socket })
		if c != nil {
			return c, nil
		}
		select {
		case <-rest.Done():
		case <-ctx.Done():
		}
		return nil, errors.New("the debug process has gone")
	}
	conn, err := grpc.NewClient("passthrough:///"+config.Socket, append(dialOptions(cfg.MaxMessage),
		grpc.WithContextDialer(dial), grpc.WithAuthority("localhost"), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		giveUp()
		_ = socket.Close()
		return nil, &StartError{Kind: KindUnreachable, Path: config.Socket, Message: "no connection could be made: " + firstLine(err.Error()), Err: err}
	}
	p := &Process{cfg: &cfg, token: token, released: make(chan struct{}), rpc: conduitv1.NewPluginClient(conn)}
	p.child = newChild(ctx, &cfg, nil, "", newOutput(cfg.Log, nil)) // it stands for the process, and starts none
	p.attached = &attachment{pid: pid, end: func() {
		giveUp()
		_ = conn.Close()
		_ = socket.Close() // if gRPC never asked for it
		close(p.child.ended)
		close(p.child.exited)
		close(p.released)
	}}
	return p, nil
}

// attachment is what a Process has that was not launched from here.
type attachment struct {
	pid  int // 0 if the system does not tell
	once sync.Once
	end  func()
}

// detach is Kill of a process that is not ours.
func (p *Process) detach() {
	p.attached.once.Do(func() {
		if c := p.conn.Load(); c != nil {
			c.Close(link.CloseDone, "the host lets go of the debug process")
		}
		p.attached.end()
	})
}

// checkDebugSocket looks at who could be at the other end of a socket.
func checkDebugSocket(socket string) error {
	bad := func(format string, args ...any) error {
		return &StartError{Kind: KindAddress, Path: socket, Message: fmt.Sprintf(format, args...)}
	}
	dir := filepath.Dir(socket)
	for _, path := range []string{dir, socket} {
		info, err := os.Lstat(path)
		if err != nil {
			return noDebugProcess(socket, err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case path == dir && !info.IsDir():
			return bad("%s is no directory, or a link to one: name the socket as the debug process has printed it", dir)
		case path == socket && info.Mode().Type() != fs.ModeSocket:
			return bad("it is no socket: name the one that `<binary> debug` has printed")
		case !ok || int(st.Uid) != os.Geteuid():
			return bad("%s belongs to user %d, and this host runs as user %d: start the debug process as the same user", path, uidOf(st), os.Geteuid())
		case path == dir && info.Mode().Perm()&0o077 != 0:
			return bad("others may enter its directory %s, which has the mode %04o: chmod 700 %s", dir, info.Mode().Perm(), dir)
		}
	}
	return nil
}

func uidOf(st *syscall.Stat_t) int {
	if st == nil {
		return -1
	}
	return int(st.Uid)
}

// noDebugProcess says that there is none, or why it cannot be reached.
func noDebugProcess(socket string, err error) error {
	e := &StartError{Kind: KindUnreachable, Path: socket, Err: err, Message: "the debug process cannot be reached: " + firstLine(err.Error())}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		e.Kind, e.Message = KindNotFound, "no debug process is there: start `<binary> debug`, in a debugger or without one"
	}
	return e
}

// debugRecord is the name of the file beside a debug process's socket that says what a
// launched one says by its handshake and is told by its environment: a line as go-plugin
// prints it, and one with the token of its link in hex. Whoever can read it is this user.
// Each process writes a new one, so that a host which has read an old one does not get a
// link by it.
func debugRecord(socket string) string { return socket + ".handshake" }

// maxDebugRecord is more than one has, in bytes.
const maxDebugRecord = 4 << 10

func readDebugRecord(socket string) (token []byte, err error) {
	text, err := os.ReadFile(debugRecord(socket))
	if err != nil {
		return nil, noDebugProcess(socket, err)
	}
	first, rest, _ := bytes.Cut(text[:min(len(text), maxDebugRecord)], []byte("\n"))
	a, ok := parseAnnouncement(string(first))
	if ok {
		if fault := a.check(socket, filepath.Dir(socket)); fault != nil {
			return nil, fault
		}
		token, err = hex.DecodeString(string(bytes.TrimSpace(rest)))
	}
	if !ok || err != nil || len(token) < 16 || a.addr != socket {
		return nil, &StartError{Kind: KindNotPlugin, Path: socket, Message: debugRecord(socket) + " does not say what a debug process of this release says; end that process, build it anew and start it again", Err: err}
	}
	return token, nil
}
