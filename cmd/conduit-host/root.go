package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elemental-conduit/conduit/discovery"
	"github.com/elemental-conduit/conduit/internal/config"
)

// app is one run of the program: what it reads and writes, and the flags that
// every command has.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	// dial connects to instances; a test puts its own here.
	dial dialFunc

	keys       config.Flags
	configFile string
	instance   string
	peers      []string
	session    string
	output     string
	// unshow takes away the line that waits shows; nil: there is none.
	unshow func()
	// parsed says that the command line was understood, and output with it.
	parsed bool
}

// run is main without the process: it returns the exit status.
func (a *app) run(args []string) int {
	// By default a write to a closed pipe kills the process, without a word and
	// without an end for what it has under way. Told of it instead, the command
	// stops by itself. (Ignoring the signal would hand that down to plugins.)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	root := a.rootCommand()
	root.SetArgs(negativesLast(root, args))
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(context.Background())
	switch {
	case err == nil:
		return exitDone
	case isClosedPipe(err):
		return exitDone // whoever was reading has what they wanted
	}
	if _, ok := errors.AsType[*quietError](err); ok {
		return exitStatus(err)
	}
	format := a.output
	if !a.parsed {
		format = formatIn(args)
	}
	writeError(a.stderr, format, advise(err))
	return exitStatus(err)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "conduit-host",
		Short: "Runs plugins and calls them across a cluster",
		Long: "conduit-host is an instance of Elemental Conduit: it runs the plugins of a directory, and lets any\n" +
			"client and any other instance call them. It is also the command line for calling them.",
		Example: "  conduit-host serve --mode worker --host-deployments ./deployments\n" +
			"  conduit-host call '*://greeter/greeter/example.Greeter' Greet '{\"name\":\"Ada\"}'\n" +
			"  conduit-host ls elements",
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.ArbitraryArgs,
		RunE:              group,
		PersistentPreRunE: func(*cobra.Command, []string) error { return errors.Join(a.checkOutput(), a.checkGlobals()) },
	}
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "configuration file (YAML)")
	flags.StringVar(&a.instance, "instance", "", "which instance of this machine is meant, if there are several")
	flags.StringSliceVar(&a.peers, "peer", nil, "cluster endpoint to call, such as ws://127.0.0.1:7400 (repeatable)")
	flags.StringVar(&a.session, "session", "", "session secret: SECRET, @FILE or - for standard input (better: "+config.SessionEnv+")")
	flags.StringVarP(&a.output, "output", "o", formatTable, "how data is printed: "+strings.Join(formats(), ", "))
	a.keys.AddFlags(flags, isGlobal)
	root.AddCommand(a.serveCommand(), a.callCommand(), a.lsCommand(), a.describeCommand(), a.explainCommand(), a.logsCommand(), a.drainCommand(), a.benchCommand(),
		a.deployCommand(), a.undeployCommand(), a.enableCommand(), a.disableCommand(), a.restartCommand(), a.rollbackCommand(), a.cordonCommand(), a.uncordonCommand(),
		a.idCommand(), a.configCommand(), a.doctorCommand(), a.persistCommand(), a.pluginCommand(), a.sessionCommand(), a.userCommand(), a.tlsCommand(), a.versionCommand(), a.manCommand())
	root.InitDefaultHelpCmd()
	helpOfCommands(root)
	root.InitDefaultCompletionCmd()
	completionGroup(root)
	return root
}

// helpOfCommands makes cobra's own command fail for a command that there is none of: it
// would say so, show the help of all and call that a success.
func helpOfCommands(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		show := cmd.Run
		cmd.Run, cmd.RunE = nil, func(cmd *cobra.Command, args []string) error {
			if found, rest, err := root.Find(args); err != nil {
				return err
			} else if found.HasSubCommands() && len(rest) > 0 {
				return group(found, rest)
			}
			show(cmd, args)
			return nil
		}
	}
}

// completionGroup makes cobra's own command behave as ours do: it would explain
// itself to whoever asks for a shell that it does not know, and call that a success.
func completionGroup(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Args, cmd.RunE, cmd.ValidArgsFunction = cobra.ArbitraryArgs, group, nil
		cmd.Example = "  conduit-host completion bash"
		for _, shell := range cmd.Commands() {
			shell.Args = takes(0, 0, "")
			shell.Example = "  conduit-host completion " + shell.Name()
		}
	}
}

// isGlobal picks the keys whose flags every command has.
func isGlobal(k *config.Key) bool { return k.Name == "run_dir" || k.Name == "log.level" }

// addKeyFlags gives a command the flags of the keys that want accepts.
func (a *app) addKeyFlags(cmd *cobra.Command, want func(*config.Key) bool) {
	a.keys.AddFlags(cmd.Flags(), func(k *config.Key) bool { return !isGlobal(k) && want(k) })
	cmd.Flags().SortFlags = false // the table's order keeps together what belongs together
}

func everyKey(*config.Key) bool { return true }

// loadConfig reads the configuration and passes its warnings on.
func (a *app) loadConfig() (*config.Config, error) {
	c, err := config.Load(config.Sources{
		File: a.configFile, Environ: a.environ, Flags: &a.keys, Machine: config.ThisMachine(isTerminal(a.stderr)),
	})
	for _, w := range c.Warnings {
		a.warn("%s", w)
	}
	return c, err
}

// warn tells a person something that keeps nothing from going on.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stderr, "warning: %s\n", printable(fmt.Sprintf(format, args...)))
}

func (a *app) checkOutput() error {
	a.parsed = true
	if slices.Contains(formats(), a.output) {
		return nil
	}
	return usagef("-o %s is none of %s", a.output, strings.Join(formats(), ", "))
}

// checkGlobals refuses global flags that cannot be meant, whether or not the
// command has a use for them. What else is wrong with the configuration is for the
// commands that need it.
func (a *app) checkGlobals() error {
	_, err := config.Load(config.Sources{File: a.configFile, Flags: &a.keys, Machine: config.ThisMachine(false)})
	e, ok := errors.AsType[*config.Error](err)
	if ok {
		var bad []config.Problem
		for _, p := range e.Problems {
			key := slices.IndexFunc(config.Keys(), func(k config.Key) bool { return k.Name == p.Key && isGlobal(&k) && p.Where == "--"+k.Flag() })
			if key >= 0 || p.Key == "" && p.Where != "" && a.configFile != "" { // the file itself
				bad = append(bad, p)
			}
		}
		if bad != nil {
			return &config.Error{Problems: bad}
		}
	}
	if _, err := discovery.ParseStatic(a.peers, false); err != nil {
		return usagef("--peer: %v", err)
	}
	return nil
}

// negativesLast puts the arguments of call that are negative numbers behind --, so
// that they are arguments and not flags.
func negativesLast(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != "call" || slices.Contains(args, "--") {
		return args
	}
	var rest, numbers []string
	for i, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && arg[1] >= '0' && arg[1] <= '9' && (i == 0 || !wantsValue(cmd, args[i-1])) {
			numbers = append(numbers, arg)
		} else {
			rest = append(rest, arg)
		}
	}
	if numbers == nil {
		return args
	}
	return append(append(rest, "--"), numbers...)
}

// wantsValue reports whether an argument is a flag whose value is the next one.
func wantsValue(cmd *cobra.Command, arg string) bool {
	var f *pflag.Flag
	name, long := strings.CutPrefix(arg, "--")
	switch {
	case long && !strings.Contains(name, "="):
		if f = cmd.Flags().Lookup(name); f == nil {
			f = cmd.InheritedFlags().Lookup(name)
		}
	case len(arg) == 2 && arg[0] == '-':
		if f = cmd.Flags().ShorthandLookup(arg[1:]); f == nil {
			f = cmd.InheritedFlags().ShorthandLookup(arg[1:])
		}
	}
	return f != nil && f.NoOptDefVal == ""
}

// group runs a command that only has others: it explains itself, and says what a
// mistyped one was meant to be.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usagef("%q is not a command of %s%s", args[0], cmd.CommandPath(), orHelp(config.Nearest(args[0], names), cmd))
}

// flagError says which flag was meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usagef("%s; see %s --help", err, cmd.CommandPath())
	}
	var names []string
	visit := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	}
	cmd.Flags().VisitAll(visit)
	cmd.InheritedFlags().VisitAll(visit)
	name := unknown.GetSpecifiedName()
	dashes := "--"
	if unknown.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	if dashes == "-" && name != "" && name[0] >= '0' && name[0] <= '9' {
		return usagef("-%s is taken for a flag; write an argument that begins with a dash behind --, as in: %s ... -- -%s", name, cmd.CommandPath(), name)
	}
	near := config.Nearest(name, names)
	if near != "" {
		near = "--" + near
	}
	return usagef("%s%s is not a flag of %s%s", dashes, name, cmd.CommandPath(), orHelp(near, cmd))
}

func orHelp(near string, cmd *cobra.Command) string {
	if near != "" {
		return "; did you mean " + near + "?"
	}
	return "; see " + cmd.CommandPath() + " --help"
}

// takes says how many arguments a command has, with their names for the message.
func takes(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > most && most == 0:
			return usagef("%s takes no arguments, and got %q", cmd.CommandPath(), args[0])
		case len(args) > most:
			return usagef("%s takes %s, and got %q besides; quote what belongs together", cmd.CommandPath(), names, args[most])
		case len(args) < least:
			return usagef("%s takes %s; for example:%s", cmd.CommandPath(), names, firstLine(cmd.Example))
		}
		return nil
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return " " + strings.TrimSpace(line)
}
