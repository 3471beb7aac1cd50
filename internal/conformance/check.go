package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// Patience bounds one check: generous, since a busy machine is no fault of a plugin's.
const Patience = time.Minute

// Options say what is checked.
type Options struct {
	// Path is the plugin's binary.
	Path string
	// Attributes are handed to the element, for one that does not start without some.
	Attributes map[string]string
	// Patience bounds the check; 0 = [Patience].
	Patience time.Duration
	// Log gets each line that the plugin writes; nil = nobody does.
	Log func(line string)
}

// Check is one thing that a host relies on.
type Check struct {
	// Name is lower case, words joined by dashes.
	Name string
	// Says is what the plugin must do.
	Says string
	// Service tells that the check calls the service of [ServiceName], without which it
	// fails.
	Service bool

	run func(ctx context.Context, t *trial) error
}

// Checks returns all checks, in the order in which a failure explains those behind it.
func Checks() []Check {
	return []Check{
		{Name: "describe", Says: "`BINARY describe` prints what it offers as JSON and exits 0, without a host", run: describes},
		{Name: "by-hand", Says: "run without a host it explains itself and exits by itself: with 64 if pluginapi was used, else not with 0", run: explainsItself},
		{Name: "handshake", Says: "it starts under a host, and says there of itself what `describe` prints", run: handshakes},
		{Name: "noise", Says: "text on stdout before the handshake does no harm", run: toleratesNoise},
		{Name: "health", Says: "Health answers, again and again, and does not say unhealthy", run: isHealthy},
		{Name: "unknown", Says: "a call of a service or a method that it has not ends not_found and refused; the next call is served", run: refusesUnknown},
		{Name: "token", Says: "a link without the host's token is not served", run: wantsToken},
		{Name: "garbage", Says: "what is no packet ends the link, and not the process", run: survivesGarbage},
		{Name: "future", Says: "a frame of a kind that it does not know is skipped", run: skipsUnknownFrames},
		{Name: "crowd", Says: "of 200 calls at once each has its own end", run: answersCrowd},
		{Name: "stop", Says: "asked to Stop and then to leave, it ends by itself with status 0", run: stops},
		{Name: "sigterm", Says: "on SIGTERM it exits with status 0", run: exitsOnTerm},

		{Name: "echo", Says: "Echo gives back the bytes that it takes, none included", Service: true, run: echoes},
		{Name: "large", Says: "10 MiB go up and down", Service: true, run: carriesLarge},
		{Name: "too-large", Says: "a message above the cap is payload_too_large for its call alone, either way", Service: true, run: refusesTooLarge},
		{Name: "not-remote", Says: "a method that is not remote is refused with not_remote", Service: true, run: refusesHidden},
		{Name: "error", Says: "the code, the reason and the message of an error arrive, with outcome executed", Service: true, run: carriesErrors},
		{Name: "crash", Says: "an exception or panic of a handler ends its own call alone, as executed", Service: true, run: survivesCrash},
		{Name: "stream", Says: "the items of a stream arrive in order", Service: true, run: streams},
		{Name: "leave", Says: "a caller that leaves a stream ends its handler", Service: true, run: leavesStream},
		{Name: "upload", Says: "a handler gets each item of an upload", Service: true, run: uploads},
		{Name: "cancel", Says: "a cancelled call ends its handler", Service: true, run: cancels},
		{Name: "deadline", Says: "a deadline that passes ends the call with deadline_exceeded, and its handler", Service: true, run: meetsDeadline},
		{Name: "parallel", Says: "64 handlers run at once, and other calls are served meanwhile", Service: true, run: runsParallel},
		{Name: "drain", Says: "on SIGTERM a call under way is finished, a new one is not begun, and the process exits with status 0", Service: true, run: drains},
		{Name: "stop-busy", Says: "a process that is stopped with calls under way ends, and each call ends once", Service: true, run: stopsBusy},
		{Name: "log", Says: "what is logged on stderr keeps its level and its text", Service: true, run: logsRecords},
	}
}

// ErrNoService says that a plugin does not export what a check needs.
var ErrNoService = errors.New("the plugin does not export the service " + ServiceName + ", which this check calls: export it for the time of the test as docs/plugins.md says (in Go: conformance.Service() of pluginapi/conformance), or ask for the generic checks alone")

// Run runs the check on a process of its own, and returns what the plugin does not
// do, nil if it does all. It ends with ctx, and within o.Patience otherwise.
func (c Check) Run(ctx context.Context, o Options) (err error) {
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return err
	}
	o.Path = path
	if err := checkFile(path); err != nil {
		return err
	}
	if o.Patience == 0 {
		o.Patience = Patience
	}
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	t := &trial{o: o, sink: newSink(o.Log)}
	defer func() { //nolint:contextcheck // what was started is ended also when ctx is over
		if left := t.close(); left != nil && err == nil {
			err = left
		}
	}()
	if c.Service {
		d, err := Describe(ctx, path)
		if err != nil {
			return err
		}
		if !Exports(d) {
			return ErrNoService
		}
	}
	if err := c.run(ctx, t); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w (given up after %v)", err, o.Patience)
		}
		return err
	}
	return nil
}

// Exports reports whether a plugin has the service that not the generic checks call.
func Exports(d *conduitv1.Description) bool {
	for _, s := range d.GetServices() {
		if s.GetName() == ServiceName {
			return true
		}
	}
	return false
}

// trial is one run of a check: what it started.
type trial struct {
	o       Options
	sink    *sink
	running *Running
	front   *front
}

// start brings the plugin up, with a link and a client of it.
func (t *trial) start(ctx context.Context) (*front, error) {
	if err := t.launch(ctx, nil); err != nil {
		return nil, err
	}
	f, err := newFront(ctx, t.running)
	t.front = f
	return f, err
}

// launch brings the plugin up, without its link.
func (t *trial) launch(ctx context.Context, change func(*LaunchOptions)) error {
	lo := LaunchOptions{Path: t.o.Path, Attributes: t.o.Attributes, Log: t.sink.logger()}
	if change != nil {
		change(&lo)
	}
	r, err := Launch(ctx, lo)
	t.running = r
	return err
}

// endGrace is how long a process has to leave by itself at the end of a check that is
// not about that.
const endGrace = 2 * time.Second

func (t *trial) close() error {
	if t.front != nil {
		t.front.close()
	}
	if t.running != nil {
		return t.running.Close(endGrace)
	}
	return nil
}

// alive says what became of a process that should run on and answer.
func (t *trial) alive(ctx context.Context) error {
	if _, err := t.running.Health(ctx); err != nil {
		return fmt.Errorf("afterwards Health does not answer: %w", err)
	}
	return nil
}

// exit waits until the process has ended, and wants status 0.
func (t *trial) exit(ctx context.Context, what string) error {
	select {
	case <-t.running.Exited():
	case <-ctx.Done():
		return fmt.Errorf("it runs on after %s: %w", what, ctx.Err())
	}
	if e := t.running.Exit(); e.Code != 0 {
		return fmt.Errorf("after %s it %s, and should exit with status 0%s", what, e, saying(lastOf(t.running.Process)))
	}
	return nil
}

func lastOf(p *pluginlink.Process) string {
	if tail := p.Stderr(); len(tail) > 0 {
		return tail[len(tail)-1]
	}
	return ""
}
