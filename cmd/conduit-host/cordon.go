package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func (a *app) cordonCommand() *cobra.Command {
	return a.cordonsCommand(true, &cobra.Command{
		Use:   "cordon",
		Short: "Has an instance or a deployment take no new units",
		Long: `Has an instance, or one deployment of it, take no new units: calls that cost some are
refused (cordoned) and go to other instances, as far as there are any; an element may
still claim what its call has reserved. Calls that cost nothing, calls under way and
claims go on. It holds until uncordon, or until the instance ends.

INSTANCE is the name of one of this machine. With --instance, or --peer, the argument
is a deployment; without an argument the instance itself is meant.`,
		Example: "  conduit-host cordon\n" +
			"  conduit-host cordon worker-1\n" +
			"  conduit-host cordon greeter --instance worker-1",
	})
}

func (a *app) uncordonCommand() *cobra.Command {
	return a.cordonsCommand(false, &cobra.Command{
		Use:   "uncordon",
		Short: "Has an instance or a deployment take new units again",
		Long: `Takes a cordon back, of an instance or of one deployment of it; which is meant is said
as for cordon. An instance that drains stays as it is.`,
		Example: "  conduit-host uncordon\n" +
			"  conduit-host uncordon greeter --instance worker-1",
	})
}

func (a *app) cordonsCommand(on bool, cmd *cobra.Command) *cobra.Command {
	f := &changeFlags{}
	cmd.Use += " [INSTANCE|DEPLOYMENT]"
	cmd.Args = takes(0, 1, "[INSTANCE|DEPLOYMENT]")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		deployment, named := "", false
		if len(args) == 1 {
			deployment = args[0]
			if named = a.isInstance(deployment); named {
				a.instance = deployment
			}
		}
		return a.change(cmd.Context(), f, func(ctx context.Context, t target, c connection) error {
			if named {
				if err := notBoth(ctx, c, deployment); err != nil {
					return err
				}
				deployment = ""
			}
			return a.cordon(ctx, t, c, deployment, on)
		})
	}
	a.addChangeFlags(cmd, f)
	return cmd
}

// isInstance reports whether an argument is the name of an instance of this machine, where
// nothing else says which one is meant.
func (a *app) isInstance(name string) bool {
	if a.instance != "" || len(a.peers) > 0 {
		return false
	}
	c, err := a.loadConfig()
	if only(err, "data_dir", "run_dir") != nil {
		return false // the command is going to say so
	}
	names, err := instancesIn(c.String("run_dir"))
	return err == nil && slices.Contains(names, name)
}

// notBoth refuses the name of an instance that has a deployment of that name.
func notBoth(ctx context.Context, c connection, name string) error {
	info, err := hosted(ctx, c, "*")
	if err != nil {
		return err
	}
	if slices.ContainsFunc(info.GetDeployments(), func(d *conduitv1.DeploymentInfo) bool { return d.GetName() == name }) {
		return usagef("%s is an instance and has a deployment of that name; leave the argument out for the instance, or add --instance %s for the deployment", name, name)
	}
	return nil
}

func (a *app) cordon(ctx context.Context, t target, c connection, deployment string, on bool) error {
	v := struct {
		Instance   string `json:"instance"`
		Deployment string `json:"deployment,omitempty"`
		State      string `json:"state"`
		Unchanged  bool   `json:"unchanged,omitempty"`
	}{Instance: t.name, Deployment: deployment, State: "cordoned"}
	if on {
		r, err := conduit.Call[*conduitv1.CordonResponse](ctx, admin(c), "Cordon", &conduitv1.CordonRequest{Deployment: utf8Text(deployment)})
		if err != nil {
			return err
		}
		v.Unchanged = r.GetUnchanged()
	} else {
		r, err := conduit.Call[*conduitv1.UncordonResponse](ctx, admin(c), "Uncordon", &conduitv1.UncordonRequest{Deployment: utf8Text(deployment)})
		if err != nil {
			return err
		}
		v.State, v.Unchanged = "uncordoned", r.GetUnchanged()
	}
	return a.print(v, func(w io.Writer) {
		what := v.Instance
		if v.Deployment != "" {
			what = v.Deployment + " of " + v.Instance
		}
		already := ""
		if v.Unchanged {
			already = " (it was already)"
		}
		fmt.Fprintln(w, printable(what+": "+v.State+already))
	})
}
