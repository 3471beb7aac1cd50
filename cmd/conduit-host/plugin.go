package main

import "github.com/spf13/cobra"

func (a *app) pluginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Makes, looks at, checks and develops plugins",
		Long: `For authors of plugins: a new one that builds and has its tests, what a binary is,
whether a host would take it, and a loop that builds and serves what is saved. None
of it needs an instance.`,
		Example: "  conduit-host plugin new greeter\n  conduit-host plugin dev ./greeter",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.pluginNew(), a.pluginInspect(), a.pluginVerify(), a.pluginDev())
	return cmd
}
