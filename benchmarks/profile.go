package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	profileTime = 6 * time.Second
	profileTop  = "25"
	// pluginProfile is what profiledecho writes, somewhere below its data directory.
	pluginProfile = "echo-cpu.prof"
)

// profile takes CPU profiles of caller, host and plugin while 64 calls of 32 B are
// under way, and prints where the time goes.
func profile(ctx context.Context, o options, stdout, stderr io.Writer) error {
	l, err := newLab(o.procs)
	if err != nil {
		return err
	}
	defer l.close()
	if l.echo, err = l.build(ctx, ".", "./profiledecho"); err != nil {
		return err
	}
	o.systems, o.sizes, o.inFlight = []string{"conduit"}, []int{32}, []int{64}
	r, err := startAll(ctx, l, o, stderr)
	if err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	e := r.entries[0]
	binaries := map[string]string{"caller": l.self, "host": filepath.Join(l.bins, filepath.Base(hostPackage)), "plugin": l.echo}
	files := map[string]string{}
	for who := range binaries {
		files[who] = filepath.Join(here, who+".prof")
	}
	fmt.Fprintf(stderr, "profiling for %v\n", profileTime)
	s, err := e.profiled(ctx, files)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "32 B, 64 in flight, while profiled: %s calls/s, p50 %v, p99 %v, CPU per call %v\n", thousands(s.rate()), s.P50, s.P99, s.cpu())
	for _, who := range []string{"caller", "host", "plugin"} {
		for _, order := range []string{"-flat", "-cum"} {
			fmt.Fprintf(stdout, "\n== %s, by %s (%s.prof)\n", who, order[1:], who)
			cmd := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount="+profileTop, order, binaries[who], files[who])
			cmd.Stdout, cmd.Stderr = stdout, stderr
			if err := cmd.Run(); err != nil {
				return err
			}
		}
	}
	return nil
}

// profiled runs one long window with all three profiles taken meanwhile.
func (e *entry) profiled(ctx context.Context, files map[string]string) (sample, error) {
	const settle = time.Second
	hostDone := make(chan error, 1)
	go func() {
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			hostDone <- ctx.Err()
			return
		}
		for _, pid := range e.pids[1:] {
			if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
				hostDone <- err
				return
			}
		}
		seconds := int((profileTime - settle).Seconds())
		hostDone <- download(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", e.ops, seconds), files["host"])
	}()
	s, err := e.window(ctx, request{Size: 32, InFlight: 64, Warm: settle, Window: profileTime, Profile: files["caller"]})
	if err == nil && s.Error != "" {
		err = errors.New(s.Error)
	}
	if err = errors.Join(err, <-hostDone); err != nil {
		return s, err
	}
	for _, pid := range e.pids[1:] {
		if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
			return s, err
		}
	}
	return s, e.fetchPluginProfile(ctx, files["plugin"])
}

// fetchPluginProfile waits for the plugin's profile and copies it.
func (e *entry) fetchPluginProfile(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, errors.New("the plugin has not written its profile"))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		var found string
		err := filepath.WalkDir(e.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == pluginProfile {
				found = path
			}
			return nil // what cannot be read is not what is looked for
		})
		if err != nil {
			return err
		}
		if found != "" {
			text, err := os.ReadFile(found)
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o600)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
