package pluginlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/elemental-conduit/conduit/internal/link"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// controlTimeout bounds a control RPC whose context has no deadline: a stopped
// process answers nothing, ever.
const controlTimeout = 10 * time.Second

// Process is a running plugin. It must be ended with Kill, also after it has
// exited by itself, to free its connection and socket. All methods may be
// called concurrently.
type Process struct {
	cfg       *LaunchConfig
	token     []byte
	client    *plugin.Client
	rpc       conduitv1.PluginClient
	child     *child      // set once started
	attached  *attachment // nil = it was launched from here
	socketDir string
	printed   []*lineWriter // by what stands for os.Stdout and os.Stderr in it

	socketLink atomic.Bool // it has said so when it was configured

	linked atomic.Bool
	conn   atomic.Pointer[link.Conn]

	killOnce sync.Once
	released chan struct{} // closed when go-plugin has let go
}

// Describe asks what the element offers.
func (p *Process) Describe(ctx context.Context) (*conduitv1.Description, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	d, err := p.rpc.Describe(ctx, &conduitv1.DescribeRequest{})
	if err == nil {
		p.child.out.setElement(d.GetElement())
	}
	return d, p.rpcError("Describe", err)
}

// Of what an element says of itself so much is kept: it is shown in lists, which have
// to stay small enough to be sent.
const (
	maxText     = 2 << 10 // bytes of a text
	maxWarnings = 16
)

// Configure hands over what the element needs and starts it. Of its warnings the first
// few are kept, each cut.
func (p *Process) Configure(ctx context.Context, r *conduitv1.ConfigureRequest) (*conduitv1.ConfigureResponse, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	resp, err := p.rpc.Configure(ctx, r)
	if err == nil {
		p.socketLink.Store(resp.GetSocketLink())
		w := resp.GetWarnings()
		resp.Warnings = w[:min(len(w), maxWarnings)]
		for i, text := range resp.GetWarnings() {
			resp.Warnings[i] = Text(text, maxText)
		}
	}
	return resp, p.rpcError("Configure", err)
}

// Health asks the element how it is. Its text is cut.
func (p *Process) Health(ctx context.Context) (*conduitv1.HealthResponse, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	h, err := p.rpc.Health(ctx, &conduitv1.HealthRequest{})
	if err == nil {
		h.Text = Text(h.GetText(), maxText)
	}
	return h, p.rpcError("Health", err)
}

// Stop lets the element flush, for as long as ctx allows. The process still
// runs afterwards; Kill ends it.
func (p *Process) Stop(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	deadline, _ := ctx.Deadline()
	grace := max(time.Until(deadline), 0)
	_, err := p.rpc.Stop(ctx, &conduitv1.StopRequest{GraceMicros: uint64(grace.Microseconds())})
	return p.rpcError("Stop", err)
}

// OpenLink opens the one link of this process, once, and waits for its Hello.
// o.Dialer, o.Duplex, o.Simple, the token, and what o leaves out are set here.
func (p *Process) OpenLink(ctx context.Context, o link.Options) (*link.Conn, error) {
	if !p.linked.CompareAndSwap(false, true) {
		return nil, errors.New("the plugin's link was opened before: a process has one")
	}
	over, err := p.openCarrier(ctx)
	if err != nil {
		return nil, p.rpcError("Link", err)
	}
	o.Dialer, o.Duplex, o.Simple = true, true, true
	o.Hello.Token = p.token
	if o.Op == "" {
		o.Op = "plugin"
	}
	if o.LostReason == "" {
		o.LostReason = "plugin_lost"
	}
	if p.attached != nil {
		o.ProbeInterval = -1
	}
	if o.Peer.Name == "" {
		o.Peer.Name = p.cfg.Name
	}
	if p.cfg.Carrier != nil {
		over = p.cfg.Carrier(over)
	}
	conn := link.New(over, o)
	p.conn.Store(conn)
	if err := conn.Ready(ctx); err != nil {
		conn.Close(link.CloseGoingAway, "the link did not come up")
		return nil, fmt.Errorf("the plugin's link did not come up: %w", p.rpcError("Link", err))
	}
	return conn, nil
}

// openCarrier connects the link: by a connection of its own if the plugin takes one, and
// else by a stream of gRPC. ctx bounds the opening only.
func (p *Process) openCarrier(ctx context.Context) (link.Carrier, error) {
	if p.socketLink.Load() && !p.cfg.GRPC {
		c, err := p.dialSocket(ctx)
		if err == nil {
			return c, nil
		}
		// As when its descriptors are used up: gRPC's connection is there already.
		p.cfg.Log.Warn("the link of the plugin goes over gRPC: a connection of its own could not be made", "error", err.Error(), "pid", p.Pid())
	}
	streamCtx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	n := int(p.cfg.MaxMessage) + envelope
	stream, err := p.rpc.Link(streamCtx, grpc.CallContentSubtype(codecName), grpc.MaxCallRecvMsgSize(n), grpc.MaxCallSendMsgSize(n))
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	c := newCarrier(stream, cancel)
	c.process = p.child
	return c, nil
}

// Ended is closed when the process has ended; the rest of its output may still be
// read.
func (p *Process) Ended() <-chan struct{} { return p.child.ended }

// Exited is closed when the process has ended and its output was read.
func (p *Process) Exited() <-chan struct{} { return p.child.exited }

// Exit says how the process ended; it is zero before Ended is closed.
func (p *Process) Exit() ExitStatus {
	select {
	case <-p.child.ended:
		return p.child.exit
	default:
		return ExitStatus{}
	}
}

// Pid returns the process's id.
func (p *Process) Pid() int {
	if p.attached != nil {
		return p.attached.pid
	}
	return p.child.Pid()
}

// LastWords returns the line of stderr that says most of why it has ended: the first of a
// panic's text, if that is what came last, else the last one; "" if it wrote nothing.
func (p *Process) LastWords() string { return p.child.out.LastWords() }

// Stderr returns the last lines that it wrote to stderr, oldest first.
func (p *Process) Stderr() []string { return p.child.out.Tail() }

// Redact has text go over each line that the process writes from now on, before it is
// logged or kept: it takes out what must not be shown. It may be called concurrently.
func (p *Process) Redact(text func(string) string) { p.child.out.redact.Store(&text) }

// LostLines returns how many lines of its log were dropped for being too many.
func (p *Process) LostLines() uint64 { return p.child.out.Lost() }

// Log logs something of which the process has chosen the text: like a line of its own
// output, within the rate that it has for them.
func (p *Process) Log(level hclog.Level, message string, args ...any) {
	p.child.out.write(sourceHost, 0, 0, func() record { return record{level, message, args} })
}

// Terminate sends SIGTERM to the process's group: a plugin of ours then drains
// and exits.
func (p *Process) Terminate() { p.child.signal(unix.SIGTERM) }

// Kill ends the process: it closes the link, asks the process to leave, kills
// it and its children after grace, and frees what was held for it. It is
// idempotent and returns within grace plus some seconds whatever the process
// does; the error says that something was left.
func (p *Process) Kill(grace time.Duration) error {
	if p.attached != nil {
		p.detach()
		return nil
	}
	p.killOnce.Do(func() {
		if c := p.conn.Load(); c != nil {
			c.Close(link.CloseDone, "the plugin is being stopped")
		}
		if grace <= 0 {
			p.killChild()
		}
		// go-plugin's Kill sends a Shutdown without a deadline and waits without
		// a bound: it is unblocked by the death of the process.
		go func() {
			defer close(p.released)
			p.client.Kill()
		}()
	})
	if p.child != nil && p.child.started() {
		timer := time.NewTimer(max(grace, 0))
		select {
		case <-p.child.exited:
		case <-timer.C:
		}
		timer.Stop()
		if err := p.child.Kill(context.Background()); err != nil {
			return err
		}
	}
	var err error
	select {
	case <-p.released:
	case <-time.After(killWait):
		err = errors.New("go-plugin did not let go of a process that has ended")
	}
	for _, w := range p.printed {
		w.flush()
	}
	if p.child != nil {
		p.child.out.tellDropped()
	}
	// To remove what is known by name takes no descriptor, of which there may be none left.
	if p.child != nil {
		if socket := p.child.socketPath(); socket != "" {
			_ = os.Remove(socket)
		}
	}
	if p.socketDir != "" && os.Remove(p.socketDir) != nil {
		err = errors.Join(err, os.RemoveAll(p.socketDir))
	}
	return err
}

func (p *Process) killChild() {
	if p.child != nil {
		p.child.signal(unix.SIGKILL)
	}
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, controlTimeout)
}

// exitNotice is how long an RPC that failed waits to learn whether the process
// has ended: the connection's end is seen first.
const exitNotice = 500 * time.Millisecond

// rpcError says what a failed control RPC means.
func (p *Process) rpcError(rpc string, err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unavailable, codes.Unknown:
		select {
		case <-p.child.exited:
			why := fmt.Sprintf("the plugin %s during %s", p.child.exit, rpc)
			if last := p.child.out.endedWith(); last != "" {
				why += "; stderr ended with: " + last
			}
			return errors.New(why)
		case <-time.After(exitNotice):
		}
	case codes.DeadlineExceeded:
		return fmt.Errorf("the plugin did not answer %s in time: it hangs or was stopped: %w", rpc, context.DeadlineExceeded)
	case codes.Canceled:
		return fmt.Errorf("%s was given up: %w", rpc, context.Canceled)
	case codes.Unimplemented:
		return fmt.Errorf("the plugin has no %s: build it with the pluginapi of this release", rpc)
	}
	return fmt.Errorf("%s: %w", rpc, &ElementError{Message: Text(s.Message(), maxText)})
}

// ElementError is what a plugin itself answered to a control RPC.
type ElementError struct{ Message string }

// Error returns the plugin's text.
func (e *ElementError) Error() string { return e.Message }
