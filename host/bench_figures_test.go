package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// quantile returns the q-quantile of times, which it sorts.
func quantile(times []time.Duration, q float64) time.Duration {
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

// BenchmarkKilled kills the process of an element with SIGKILL, and measures until a call
// to it succeeds again. For the figure:
//
//	go test -run '^$' -bench Killed -benchtime 50x ./host
func BenchmarkKilled(b *testing.B) {
	r := newRigWith(b, func(o *Options) { o.StableAfter = time.Nanosecond }, "echo") // each kill is the first
	r.ready()
	times := make([]time.Duration, 0, b.N)
	for range b.N {
		was := r.elements()["echo"]
		begun := time.Now()
		if err := syscall.Kill(was.Pid, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		for {
			_, err := r.call(echo, "Echo", "")
			if err == nil && r.elements()["echo"].Generation > was.Generation {
				break
			}
			if r.ctx.Err() != nil {
				b.Fatal(err)
			}
			runtime.Gosched()
		}
		times = append(times, time.Since(begun))
		r.untilState("echo", Ready)
	}
	b.ReportMetric(float64(quantile(times, 0.5).Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(quantile(times, 0.99).Microseconds())/1000, "p99-ms")
}

// BenchmarkStartMany starts a host with 100 deployments of the echo plugin, and measures
// until it is ready, and what the idle processes hold of memory: resident, and resident
// with shared pages shared out. For the figures:
//
//	go test -run '^$' -bench StartMany -benchtime 3x ./host
func BenchmarkStartMany(b *testing.B) {
	const many = 100
	plugin := filepath.Join(b.TempDir(), "echo")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", plugin, "../plugins/echo").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(plugin, past, past); err != nil {
		b.Fatal(err)
	}
	var resident, shared int64
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		dir := b.TempDir()
		for n := range many {
			if err := os.Link(plugin, filepath.Join(dir, fmt.Sprintf("echo-%d", n))); err != nil {
				b.Fatal(err)
			}
		}
		h, err := New(Options{Dir: dir, Private: b.TempDir(), Instance: testInstance, StartTimeout: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		b.StartTimer()
		go func() { done <- h.Run(context.Background()) }()
		select {
		case <-h.Ready():
		case err := <-done:
			b.Fatal(err)
		}
		b.StopTimer()
		for _, d := range h.Snapshot() {
			if s := d.Elements[0]; s.State != Ready {
				b.Fatalf("%s is %s: %s", d.Name, s.State, s.Reason)
			}
			resident += rollup(b, d.Elements[0].Pid, "Rss:")
			shared += rollup(b, d.Elements[0].Pid, "Pss:")
		}
		if err := h.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "all-ready-ms")
	b.ReportMetric(float64(resident)/float64(b.N)/many/1024, "MiB-rss/plugin")
	b.ReportMetric(float64(shared)/float64(b.N)/many/1024, "MiB-pss/plugin")
}

// rollup returns one of the sums of a process's memory, in KiB.
func rollup(b *testing.B, pid int, name string) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Skipf("no figures of memory here: %v", err)
	}
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == name {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Skip("no figures of memory here")
	return 0
}

// BenchmarkNeighbours calls an element that is alone on its host, and in turns one that
// shares its host with three bad ones: one that prints no handshake, one that dies at once,
// again and again, and one that stands still with calls under way. The figure is the ratio
// of the calls' p99:
//
//	go test -run '^$' -bench Neighbours -benchtime 20000x ./host
func BenchmarkNeighbours(b *testing.B) {
	alone := newRig(b, "echo")
	beside := newRigWith(b, func(o *Options) {
		o.StartTimeout, o.HealthTimeout, o.RestartMin, o.RestartMax = 5*time.Second, time.Minute, 500*time.Millisecond, time.Minute // as in a host
	}, "echo", "other", "hangs", "dies")
	alone.ready()
	beside.untilState("echo", Ready)
	beside.untilState("other", Ready)
	if err := syscall.Kill(beside.elements()["other"].Pid, syscall.SIGSTOP); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for range 100 {
		invoke(ctx, beside.client, "*://other/other/test.Fixture", "Echo", "")
	}
	rigs := [2]*rig{alone, beside}
	var times [2][]time.Duration
	b.ResetTimer()
	for range b.N {
		for i, r := range rigs {
			begun := time.Now()
			if _, err := invoke(ctx, r.client, echo, "Echo", "").Recv(ctx); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(begun))
		}
	}
	b.StopTimer()
	p99 := [2]time.Duration{quantile(times[0], 0.99), quantile(times[1], 0.99)}
	b.ReportMetric(float64(p99[0].Nanoseconds())/1000, "p99-alone-µs")
	b.ReportMetric(float64(p99[1].Nanoseconds())/1000, "p99-beside-µs")
	b.ReportMetric(float64(p99[1])/float64(p99[0]), "ratio")
}

// crashCyclesVar says how many crashes TestManyCrashes has; without it there are few.
const crashCyclesVar = "HOST_CRASH_CYCLES"

// TestManyCrashes: what a host holds is the same after many crashes of an element as after
// a few: descriptors, goroutines, sockets, directories.
//
//	HOST_CRASH_CYCLES=200 go test -run ManyCrashes -v ./host
func TestManyCrashes(t *testing.T) {
	cycles := 15
	if text := os.Getenv(crashCyclesVar); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q is no count", crashCyclesVar, text)
		}
		cycles = n
	}
	r := newRigWith(t, func(o *Options) { o.StableAfter = time.Nanosecond }, "echo")
	r.ready()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(cycles)*2*time.Second)
	defer cancel()
	r.ctx = ctx
	crash := func(n int) {
		t.Helper()
		for range n {
			s := r.untilState("echo", Ready)
			if _, err := r.call(echo, "Exit", ""); err == nil {
				t.Fatal("it lives")
			}
			r.until("the next process", func(m map[string]ElementStatus) bool {
				return m["echo"].State == Ready && m["echo"].Generation == s.Generation+1
			})
		}
	}
	held := func() [4]int {
		fds, _ := os.ReadDir("/proc/self/fd")
		sockets, _ := filepath.Glob(filepath.Join(r.h.priv.sockets, "*"))
		files := 0
		for _, dir := range []string{"work", "data", "bin"} {
			_ = filepath.WalkDir(filepath.Join(r.h.priv.dir, dir), func(string, os.DirEntry, error) error { files++; return nil })
		}
		return [4]int{len(fds), runtime.NumGoroutine(), len(sockets), files}
	}
	crash(3)
	before := held()
	crash(cycles)
	// What is going away needs its moment; what leaks does not go away.
	var after [4]int
	for {
		flat := true
		after = held()
		for i := range after {
			flat = flat && after[i] < before[i]+max(3, cycles/4)
		}
		if flat && after[2] == before[2] && after[3] == before[3] {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("after %d crashes there are %v descriptors, goroutines, sockets and files, before %v", cycles, after, before)
		}
	}
	t.Logf("descriptors, goroutines, sockets, files: %v before, %v after %d crashes", before, after, cycles)
}
