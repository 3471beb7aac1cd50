package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/client"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// connection is what call needs of a client.
type connection interface {
	// At returns an Invoker of the address.
	At(addr string) conduit.Invoker
	// Close ends the client's links once what is queued on them is written.
	Close() error
}

// dialFunc makes a connection to any of the peers that the options name. It need not
// wait for a link.
type dialFunc func(ctx context.Context, o client.Options) (connection, error)

// callFlags are the flags of one call.
type callFlags struct {
	timeout     string
	units       uint32
	raw         bool
	parts       bool
	all         bool
	items       bool
	contentType string
	asUser      string // a file with the secret of the session to call as
	// typed says that contentType was given: then the argument is not looked at.
	typed bool
}

func (a *app) callCommand() *cobra.Command {
	f := &callFlags{}
	cmd := &cobra.Command{
		Use:   "call ADDRESS METHOD [JSON | @FILE | -]",
		Short: "Calls a method and prints each result on a line",
		Long: `Calls a method and prints each result as it comes, on a line of its own.

ADDRESS is INSTANCE://DEPLOYMENT/ELEMENT/SERVICE; * stands for any instance or
deployment. The argument is JSON: as it stands, from a file, or from standard
input. Without it the method gets no argument. A method that takes bytes takes
them as results are printed, as a JSON string in base64; a file or standard input
it gets as it is. With --content-type the argument is sent unread. No more of it
is read than a message may have: cluster.max_payload, 10MiB unless configured.

With --items each line of the file or of standard input is a JSON value and a message
of its own, for methods that take many. They are sent as they are read, and results
are printed meanwhile; the end of the input is the last of them.

A method with one result ends with it, one with many when it has sent them all.
The call goes through the instance of this machine, or with --peer to one of the
peers that hosts the element and has room.

With --all the call goes to every node that has the element, full and draining
ones too, each line says which one it is of, and a report on standard error says
who answered. The exit status is 0 if all did.

With --as-user the call runs as the user whose session's secret is in the file, and
has the rights of that user alone, whoever is connected: an operator, or with --peer
the session of --session, or nobody.

There is no time limit but --timeout; Ctrl-C cancels the call. A result that is
bytes is printed as a JSON string in base64, or with --raw as it is.

Exit status: 0 done; 1 the element answered with an error; 2 usage; 3 not found,
unavailable, no capacity or draining; 4 not permitted; 5 the deadline passed;
130 interrupted.`,
		Example: "  conduit-host call '*://greeter/greeter/example.Greeter' Greet '{\"name\":\"Ada\"}'\n" +
			"  conduit-host call '*://greeter/greeter/example.Greeter' Count 3 --timeout 5s --peer ws://127.0.0.1:7400\n" +
			"  conduit-host call '*://greeter/greeter/example.Greeter' Counters --all -o json\n" +
			"  conduit-host call '*://greeter/greeter/example.Greeter' Sum @numbers.ndjson --items\n" +
			"  conduit-host call '*://store/store/example.Store' Put @photo.jpg --instance worker-1",
		Args: takes(2, 3, "ADDRESS METHOD [JSON | @FILE | -]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.typed = cmd.Flags().Changed("content-type")
			return a.call(cmd.Context(), f, args)
		},
	}
	a.addKeyFlags(cmd, func(k *config.Key) bool { return k.Name == "data_dir" || k.Name == argumentKey || isDialKey(k.Name) })
	flags := cmd.Flags()
	flags.Lookup("cluster-max-payload").Usage = "the largest argument, at most 1GiB; the peer's limit may be lower"
	flags.StringVar(&f.timeout, "timeout", "", "deadline of the call, such as 5s (default none)")
	flags.Uint32Var(&f.units, "units", 0, "units of capacity that the call needs, if more than the method's own")
	flags.BoolVar(&f.raw, "raw", false, "print the bytes of results as they are, with nothing between them")
	flags.BoolVar(&f.parts, "part", false, "print the results of all parts, each line with its part's number (default: part 0, the return value, alone)")
	flags.BoolVar(&f.all, "all", false, "call every node, and say which one each result is of")
	flags.BoolVar(&f.items, "items", false, "send each line of @FILE or standard input, a JSON value, as a message of its own")
	flags.StringVar(&f.asUser, "as-user", "", "call as the user whose session's secret is in @FILE")
	flags.StringVar(&f.contentType, "content-type", conduit.ContentJSON, "what the argument is; anything but JSON is sent unread")
	return cmd
}

// call does one call. Everything that can be wrong with it is found before a
// peer is troubled.
func (a *app) call(ctx context.Context, f *callFlags, args []string) error {
	addr, err := address.Parse(args[0])
	if err != nil {
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)
	}
	var from *items
	if f.items {
		var done func()
		if from, done, err = a.openItems(f, args); err != nil {
			return err
		}
		defer done()
		args = args[:2]
	}
	in, arg, err := a.invocation(f, args[1:])
	if err != nil {
		return err
	}
	if in.As, err = a.asUser(f.asUser); err != nil {
		return err
	}
	if f.parts && f.raw {
		return usagef("--raw puts nothing between results, so --part has no place; give one of them")
	}
	limit, err := f.limit()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if from != nil {
		return blame(ctx, a.callItems(ctx, addr, in, from, f))
	}
	if f.all {
		return blame(ctx, a.callAll(ctx, addr, in, arg, f))
	}
	return blame(ctx, a.callOne(ctx, addr, in, arg, f))
}

// asUser is --as-user: as whom a call runs.
func (a *app) asUser(source string) (conduit.AsWhom, error) {
	if source == "" {
		return conduit.AsWhom{}, nil
	}
	if !strings.HasPrefix(source, "@") {
		return conduit.AsWhom{}, usagef("--as-user takes @FILE, a file with the secret of a user's session, as `conduit-host session mint` prints it; on a command line everybody on the machine sees a secret")
	}
	text, err := a.readSession(source, "--as-user")
	if err != nil {
		return conduit.AsWhom{}, err
	}
	if _, err := auth.ParseSecret([]byte(text)); err != nil {
		return conduit.AsWhom{}, usagef("--as-user: %s", conduit.AsError(err, conduit.NotSent).Message)
	}
	return conduit.AsWhom{Kind: conduit.AsSession, Session: text}, nil
}

// limit is --timeout; 0 if it was not given.
func (f *callFlags) limit() (time.Duration, error) {
	if f.timeout == "" {
		return 0, nil
	}
	d, why := config.ParseDuration(f.timeout)
	if why != "" {
		return 0, usagef("--timeout: %q %s", f.timeout, why)
	}
	return max(d, 1), nil
}

// callOne sends the call and prints what comes back until its end.
func (a *app) callOne(ctx context.Context, addr address.Address, in *conduit.Invocation, arg argument, f *callFlags) error {
	t, err := a.target(ctx)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx)
	if err != nil {
		if arg.notJSON != nil {
			return arg.notJSON // that it might be bytes is not known, and this one can be mended at once
		}
		return err
	}
	defer c.Close() //nolint:errcheck // the call is over; how its link ends changes nothing
	err = arg.fill(in, func() bool { return a.takesBytes(ctx, c, addr, in.Method) })
	if err != nil {
		return err
	}
	out := &resultPrinter{w: a.stdout, format: a.output, raw: f.raw, parts: f.parts}
	err = receive(ctx, c.At(addr.String()).Invoke(ctx, in), out)
	a.tellSkipped(out)
	return adviseCall(err, addr, in.Method, func() []*conduitv1.InstanceInfo { return a.infosFor(ctx, c, addr) })
}

func (a *app) tellSkipped(out *resultPrinter) {
	if out.skipped > 0 {
		a.warn("%d results of other parts are not shown; --part shows them", out.skipped)
	}
}

func receive(ctx context.Context, x conduit.Exchange, out *resultPrinter) error {
	for {
		m, err := x.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := out.print(m); err != nil {
			return unprinted(ctx, x, err)
		}
	}
}

// unprintedGrace is how long a call whose result could not be printed may take to
// say that this was all: then it was not cut short.
const unprintedGrace = 200 * time.Millisecond

// unprinted ends a call whose result could not be printed, and says truly what
// became of it.
func unprinted(ctx context.Context, x conduit.Exchange, err error) error {
	if _, ok := errors.AsType[*conduit.Error](err); ok || isClosedPipe(err) {
		x.Cancel(err)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, unprintedGrace)
	defer cancel()
	_, end := x.Recv(ctx)
	x.Cancel(err)
	if errors.Is(end, io.EOF) {
		return outputError(err, conduit.Executed, "; the call was made: to repeat it does its work again")
	}
	return outputError(err, conduit.OutcomeUnknown, "; the call was under way and is cancelled: what it has done stays done")
}

// errInterrupted is why a signal cancels the context of a command.
var errInterrupted = errors.New("interrupted by a signal")

// interruptible returns a context that ends with the first SIGINT or SIGTERM; a
// second one ends the process.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			signal.Stop(signals)
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-done
	}
}

// blame marks an error that a signal or the command's own deadline brought about.
func blame(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return &interruptedError{err}
	}
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) && errors.Is(err, context.DeadlineExceeded) {
		return &deadlineError{err}
	}
	return err
}
