package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func (a *app) drainCommand() *cobra.Command {
	var wait bool
	var reason string
	cmd := &cobra.Command{
		Use:   "drain [INSTANCE]",
		Short: "Ends an instance in order",
		Long: `Ends an instance as SIGTERM does: it takes no new calls, those under way finish
within its drain.timeout, then it stops. INSTANCE is the name of one of this
machine, as --instance is.

With --wait the command returns when the instance is gone and its name is free.
With --peer it needs host.remote_admin there.`,
		Example: "  conduit-host drain\n" +
			"  conduit-host drain worker-1 --wait --reason 'kernel update'",
		Args: takes(0, 1, "[INSTANCE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if a.instance != "" && a.instance != args[0] {
					return usagef("--instance %s and %s are two instances; name one", a.instance, args[0])
				}
				a.instance = args[0]
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return blame(ctx, a.drain(ctx, wait, reason))
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "return when the instance is gone")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the instance's log")
	a.addTargetFlags(cmd)
	return cmd
}

// waiting is a connection that tells how the other end ended it.
type waiting interface {
	wait(ctx context.Context) error
}

func (a *app) drain(ctx context.Context, wait bool, reason string) error {
	if wait && len(a.peers) > 0 {
		return usagef("--wait needs the management socket: run it on the machine of the instance, without --peer")
	}
	if len(a.peers) > 1 {
		return usagef("drain ends one instance; give one --peer")
	}
	t, err := a.target(ctx)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // what was asked for is under way
	if _, err := ask[*conduitv1.DrainResponse](ctx, c, "*", adminService, "Drain", &conduitv1.DrainRequest{Reason: utf8Text(reason)}); err != nil {
		return err
	}
	v := struct {
		Instance string `json:"instance"`
		State    string `json:"state"`
	}{t.name, "draining"}
	if w, ok := c.(waiting); ok && wait {
		if err := w.wait(ctx); err != nil {
			return err
		}
		v.State = "drained"
	}
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", printable(v.Instance), v.State) })
}
