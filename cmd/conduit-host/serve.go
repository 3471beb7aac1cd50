package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Runs an instance",
		Long: `Runs an instance: the plugins of the deployments directory, the cluster endpoint
/cluster/v1 that calls them, the ops listener with /livez and /readyz, and the
management socket, which the other commands find by themselves.

Where it listens is printed on standard error and logged. SIGTERM, Ctrl-C or
conduit-host drain drains: /readyz says 503, no new call is taken, those under way finish within
drain.timeout, then plugins and listeners stop. A second signal cuts that short.

Modes: worker serves the cluster endpoint. both is for one machine; in this
version, which has no gateway, it is the same as worker. external is not part of
this version.

Every key of the configuration is a flag, an environment variable and an entry of
the file; see docs/configuration.md, and conduit-host config explain.

Exit status: 0 drained; 1 something broke; 2 usage, configuration, or what it asks
of the machine; 130 a signal came before it was ready, or a second one.`,
		Example: "  conduit-host serve --mode worker --auth-mode disabled --host-deployments ./deployments\n" +
			"  conduit-host serve --config /etc/conduit.yaml --log-format json",
		Args: takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
	a.addKeyFlags(cmd, everyKey)
	return cmd
}

// serve runs an instance until a signal or a fault ends it.
func (a *app) serve(ctx context.Context) error {
	// Before all else: a signal must never find something to leave behind.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	i := newInstance(c, newLogger(c, a.stderr), a.stderr)
	defer i.close(ctx)

	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := make(chan error, 1)
	go func() { started <- i.start(starting) }()
	select {
	case s := <-signals:
		i.log.Warn("stopping: a signal came during the start", "signal", s.String())
		cancel(errInterrupted)
		if err := <-started; err != nil {
			i.log.Debug("the start was cut short", "error", err)
		}
		i.stopNow(ctx)
		return &interruptedError{errStartInterrupted()}
	case err := <-started:
		if err != nil {
			i.stopNow(ctx)
			return err
		}
	}

	drain := func() error {
		i.log.Info("draining", "timeout", c.Duration("drain.timeout").String(), "delay", c.Duration("drain.delay").String())
		return i.drainUntil(ctx, signals)
	}
	for ready, isReady := i.host.ready(), false; ; {
		select {
		case <-ready:
			i.log.Info("ready")
			ready, isReady = nil, true
		case s := <-signals:
			i.log.Info("a signal came", "signal", s.String())
			err := drain()
			if err == nil && !isReady {
				err = &interruptedError{errStartInterrupted()}
			}
			return err
		case <-i.drainAsked:
			return drain()
		case err := <-i.failed:
			i.log.Error("stopping: a part of the instance failed", "error", err)
			i.stopNow(ctx)
			return err
		}
	}
}
