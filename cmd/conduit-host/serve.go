package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Runs an instance",
		Long: `Runs an instance: it hosts the plugins of the deployments directory, finds the
other instances that discovery.static or DNS names, and calls for its plugins, its
operators and its clients whichever of them has room.

Modes:
  worker    serves /cluster/v1 to the other instances; keeps its InstanceID
  external  serves no /cluster/v1, so that nobody calls what it hosts but itself;
            has the HTTP gateway; takes a new InstanceID at each start
  both      a worker with a gateway, for one machine

Every mode has the management socket, which the other commands find by
themselves, and the ops listener with /livez, /readyz and /metrics. Where it listens is
printed on standard error and logged.

SIGTERM, Ctrl-C or conduit-host drain drains: /readyz says 503, no new call is
taken, those under way finish within drain.timeout, then plugins and listeners stop.
A second signal cuts that short. When the configuration file has changed, and on
SIGHUP, the configuration is read again, and what may change while it runs is taken
over: discovery.static, host.attributes, host.attributes_file, log.level and the
contents of certificates.

Every key of the configuration is a flag, an environment variable and an entry of
the file; see docs/configuration.md, and conduit-host config explain.

Exit status: 0 drained; 1 something broke; 2 usage, configuration, or what it asks
of the machine; 130 a signal came before it was ready, or a second one.`,
		Example: "  conduit-host serve --mode worker --host-deployments ./deployments\n" +
			"  conduit-host serve --mode external --name front --host-deployments '' --discovery-static 127.0.0.1:7400\n" +
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
	signals, reloads := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(signals)
	defer signal.Stop(reloads)

	files, blank := a.watchConfig(), isBlank(a.configFile)
	c, err := a.loadConfig()
	if err != nil {
		return err
	}
	files.add(c.String("host.attributes_file"))
	i := newInstance(c, newLogger(c, a.stderr, a.coloured(a.stderr)), a.stderr)
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
		tellManager(i.log, daemon.SdNotifyStopping)
		i.log.Info("draining", "timeout", c.Duration("drain.timeout").String(), "delay", c.Duration("drain.delay").String())
		return i.drainUntil(ctx, signals)
	}
	watching, unwatch := context.WithCancel(ctx)
	changed := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { files.run(watching, changed) })
	defer watch.Wait()
	defer unwatch()
	for ready, isReady := i.host.ready(), false; ; {
		select {
		case <-ready:
			i.log.Info("ready")
			tellManager(i.log, daemon.SdNotifyReady)
			ready, isReady = nil, true
		case s := <-signals:
			i.log.Info("a signal came", "signal", s.String())
			err := drain()
			if err == nil && !isReady {
				err = &interruptedError{errStartInterrupted()}
			}
			return err
		case <-reloads:
			files.took() // before it is read: what is written meanwhile is a change
			a.reread(i, "SIGHUP", blank)
		case <-changed:
			a.reread(i, "a file of the configuration has changed", blank)
		case <-i.drainAsked:
			return drain()
		case err := <-i.failed:
			i.log.Error("stopping: a part of the instance failed", "error", err)
			i.stopNow(ctx)
			return err
		}
	}
}
