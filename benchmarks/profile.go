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
	"text/tabwriter"
	"time"
)

const (
	profileTime = 6 * time.Second
	profileTop  = "25"
	// pluginProfile is what profiledecho writes, somewhere below its data directory.
	pluginProfile = "echo-cpu.prof"
	pluginHeap    = "echo-heap.txt"
)

// profile takes CPU profiles of caller, host and plugin in one cell, and prints
// where the time goes and what each process asked of the kernel.
func profile(ctx context.Context, o options, stdout, stderr io.Writer) error {
	l, err := newLab(o.procs)
	if err != nil {
		return err
	}
	defer l.close()
	if l.echo, err = l.build(ctx, ".", "./profiledecho"); err != nil {
		return err
	}
	c := cell{o.sizes[0], o.inFlight[len(o.inFlight)-1]}
	o.systems = []string{"conduit"}
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
	s, heaps, err := e.profiled(ctx, c, files)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%v, while profiled: %s calls/s, p50 %v, p99 %v, CPU per call %v\n", c, thousands(s.rate()), s.P50, s.P99, s.cpu())
	if err := usageTable(stdout, s, heaps); err != nil {
		return err
	}
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

// usageTable prints what each process used for a call.
func usageTable(w io.Writer, s sample, heaps []heap) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "per call\tCPU µs\treads\twrites\tswitches\tallocations\tbytes\tGCs a second\t")
	for i, who := range []string{"caller", "host", "plugin"} {
		if i >= len(s.Usage) || i >= len(heaps) {
			break
		}
		per := func(n int64) string { return short(float64(n) / float64(s.Calls)) }
		u, h := s.Usage[i], heaps[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", who, micros(float64(u.CPU)/float64(s.Calls)),
			per(u.Reads), per(u.Writes), per(u.Switches), per(h.Mallocs), per(h.Bytes), short(float64(h.GCs)/s.Elapsed.Seconds()))
	}
	return t.Flush()
}

// profiled runs one long window with all three profiles taken meanwhile, and says
// what caller, host and plugin allocated in it.
func (e *entry) profiled(ctx context.Context, c cell, files map[string]string) (sample, []heap, error) {
	const settle = time.Second
	before, err := e.hostHeap(ctx)
	if err != nil {
		return sample{}, nil, err
	}
	started := make(chan error, 1)
	go func() {
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			started <- ctx.Err()
			return
		}
		if err := e.signalPlugin(syscall.SIGUSR1); err != nil {
			started <- err
			return
		}
		seconds := int((profileTime - settle).Seconds())
		started <- download(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", e.ops, seconds), files["host"])
	}()
	s, err := e.window(ctx, request{Size: c.size, InFlight: c.inFlight, Warm: settle, Window: profileTime, Profile: files["caller"]})
	if err == nil && s.Error != "" {
		err = errors.New(s.Error)
	}
	if err = errors.Join(err, <-started); err != nil {
		return s, nil, err
	}
	after, err := e.hostHeap(ctx)
	if err != nil {
		return s, nil, err
	}
	if err := e.signalPlugin(syscall.SIGUSR2); err != nil {
		return s, nil, err
	}
	text, err := e.fetchPluginProfile(ctx, files["plugin"])
	if err != nil {
		return s, nil, err
	}
	// The host's is from before the warm-up, and so covers more calls than were counted.
	host := after.less(before)
	share := profileTime.Seconds() / (profileTime + settle).Seconds()
	host.Mallocs, host.Bytes, host.GCs = int64(float64(host.Mallocs)*share), int64(float64(host.Bytes)*share), int64(float64(host.GCs)*share)
	return s, []heap{s.Heap, host, heapFrom(text)}, nil
}

func (e *entry) hostHeap(ctx context.Context) (heap, error) {
	file := filepath.Join(e.dir, "heap.txt")
	if err := download(ctx, e.ops+"/debug/pprof/heap?debug=1", file); err != nil {
		return heap{}, err
	}
	text, err := os.ReadFile(file)
	return heapFrom(string(text)), err
}

func (e *entry) signalPlugin(s syscall.Signal) error {
	for _, pid := range e.pids[1:] {
		if err := syscall.Kill(pid, s); err != nil {
			return err
		}
	}
	return nil
}

// fetchPluginProfile waits for the plugin's profile and copies it; it returns what
// the plugin says of its heap.
func (e *entry) fetchPluginProfile(ctx context.Context, to string) (heapText string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, errors.New("the plugin has not written its profile"))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if found := fileBelow(e.dir, pluginProfile); found != "" {
			text, err := os.ReadFile(found)
			if err != nil {
				return "", err
			}
			heap, err := os.ReadFile(filepath.Join(filepath.Dir(found), pluginHeap))
			return string(heap), errors.Join(err, os.WriteFile(to, text, 0o600))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// fileBelow finds a file by its name; what cannot be read is not what is looked for.
func fileBelow(dir, name string) (found string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			found = path
		}
		return nil
	})
	return found
}
