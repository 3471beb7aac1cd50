package main

import (
	"bytes"
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
	"github.com/elemental-conduit/conduit/internal/config"
)

// connection is what call needs of a client.
type connection interface {
	// At returns an Invoker of the address.
	At(addr string) conduit.Invoker
	// Close ends the client's links once what is queued on them is written.
	Close() error
}

// dialFunc makes a connection to any of the peers. It need not wait for a link.
type dialFunc func(ctx context.Context, peers []string, session string) (connection, error)

// callFlags are the flags of one call.
type callFlags struct {
	timeout     string
	units       uint32
	raw         bool
	parts       bool
	contentType string
}

func (a *app) callCommand() *cobra.Command {
	f := &callFlags{}
	cmd := &cobra.Command{
		Use:   "call ADDRESS METHOD [JSON | @FILE | -]",
		Short: "Calls a method and prints each result on a line",
		Long: `Calls a method and prints each result as it comes, on a line of its own.

ADDRESS is INSTANCE://DEPLOYMENT/ELEMENT/SERVICE; * stands for any instance or
deployment. The argument is JSON: as it stands, from a file, or from standard
input; one that begins with a dash goes behind --. Without it the method gets no
argument.

A method with one result ends with it, one with many when it has sent them all.
The call goes through the instance of this machine, or with --peer through the
first of the peers that can be reached.

There is no time limit but --timeout; Ctrl-C cancels the call. A result that is
bytes is printed as a JSON string in base64, or with --raw as it is.

Exit status: 0 done; 1 the element answered with an error; 2 usage; 3 not found,
unavailable, no capacity or draining; 4 not permitted; 5 the deadline passed;
130 interrupted.`,
		Example: "  conduit-host call '*://greeter/greeter/example.Greeter' Greet '{\"name\":\"Ada\"}'\n" +
			"  conduit-host call '*://greeter/greeter/example.Greeter' Count 3 --timeout 5s --peer ws://127.0.0.1:7400\n" +
			"  conduit-host call '*://store/store/example.Store' Put @photo.json --instance worker-1",
		Args: takes(2, 3, "ADDRESS METHOD [JSON | @FILE | -]"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.call(cmd.Context(), f, args) },
	}
	a.addTargetFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.timeout, "timeout", "", "deadline of the call, such as 5s (default none)")
	flags.Uint32Var(&f.units, "units", 0, "units of capacity that the call needs, if more than the method's own")
	flags.BoolVar(&f.raw, "raw", false, "print the bytes of results as they are, with nothing between them")
	flags.BoolVar(&f.parts, "part", false, "print the results of all parts, each line with its part's number (default: part 0, the return value, alone)")
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
	in, err := a.invocation(f, args[1:])
	if err != nil {
		return err
	}
	if f.parts && f.raw {
		return usagef("--raw puts nothing between results, so --part has no place; give one of them")
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	t, err := a.target(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	if f.timeout != "" {
		d, why := config.ParseDuration(f.timeout)
		if why != "" {
			return usagef("--timeout: %q %s", f.timeout, why)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return a.exchange(ctx, t, addr.String(), in, f)
}

// exchange sends the call and prints what comes back until its end.
func (a *app) exchange(ctx context.Context, t target, addr string, in *conduit.Invocation, f *callFlags) error {
	c, err := t.dial(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	out := &resultPrinter{w: a.stdout, format: a.output, raw: f.raw, parts: f.parts}
	x := c.At(addr).Invoke(ctx, in)
	err = receive(ctx, x, out)
	_ = c.Close() // the call is over; how its link ends changes nothing
	if out.skipped > 0 {
		a.warn("%d results of other parts are not shown; --part shows them", out.skipped)
	}
	return blame(ctx, err)
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
			x.Cancel(err)
			return err
		}
	}
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

// invocation reads the method and the argument.
func (a *app) invocation(f *callFlags, args []string) (*conduit.Invocation, error) {
	in := &conduit.Invocation{
		Method:      args[0],
		ContentType: f.contentType,
		Last:        true,
		Units:       f.units,
		// What shape the method has only its host knows. As a stream a call gets no
		// deadline that nobody asked for, and ends as soon as the method does.
		Streaming: true,
	}
	if !f.raw {
		in.Accept = conduit.ContentJSON
	}
	if in.Method == "" || strings.ContainsFunc(in.Method, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, usagef("%q is not the name of a method", in.Method)
	}
	if len(args) < 2 {
		return in, nil
	}
	data, where, err := a.argument(args[1])
	if err != nil {
		return nil, err
	}
	if f.contentType == conduit.ContentJSON {
		data = bytes.TrimSpace(data)
		if err := checkJSON(data, where); err != nil {
			return nil, err
		}
	}
	in.Request, in.HasRequest = data, true
	return in, nil
}

func (a *app) argument(arg string) (data []byte, where string, err error) {
	switch {
	case arg == "-" && a.session == "-":
		return nil, "", usagef("the argument and --session cannot both come from standard input")
	case arg == "-":
		data, err = io.ReadAll(a.stdin)
		if err != nil {
			return nil, "", usagef("the argument cannot be read from standard input: %v", err)
		}
		return data, "standard input", nil
	case strings.HasPrefix(arg, "@"):
		data, err = os.ReadFile(arg[1:])
		if err != nil {
			return nil, "", usagef("the argument cannot be read: %v", err)
		}
		return data, arg[1:], nil
	default:
		return []byte(arg), "the argument", nil
	}
}
