// Command profiledecho is the raw echo of plugins/echo with a CPU profile: from
// SIGUSR1 to SIGUSR2, into its data directory. Plugins have no ops listener, so
// this is how `go run . -profile` sees into one.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// profileFile is complete as soon as it has this name, and heapFile before that:
// what was allocated, in the words of /debug/pprof/heap?debug=1.
const (
	profileFile = "echo-cpu.prof"
	heapFile    = "echo-heap.txt"
)

func main() {
	s := pluginapi.NewService("conduit.example.Echo")
	pluginapi.Handle(s, "Echo", func(_ context.Context, in []byte) ([]byte, error) { return in, nil },
		pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous), pluginapi.Idempotent())
	pluginapi.Main(pluginapi.Element{
		Name: "echo", Version: "1.0.0",
		Services: []*pluginapi.Service{s},
		Start: func(ctx context.Context, host pluginapi.Host) error {
			signals := make(chan os.Signal, 2)
			signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
			go func() {
				if err := profile(signals, host.DataDir()); err != nil {
					host.Logger().ErrorContext(ctx, "no profile", "error", err)
				}
			}()
			return nil
		},
	})
}

func profile(signals <-chan os.Signal, dir string) error {
	<-signals
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := os.CreateTemp(dir, "profile-")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	<-signals
	pprof.StopCPUProfile()
	runtime.ReadMemStats(&after)
	heap := fmt.Sprintf("# Mallocs = %d\n# TotalAlloc = %d\n# NumGC = %d\n",
		after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc, after.NumGC-before.NumGC)
	if err := os.WriteFile(filepath.Join(dir, heapFile), []byte(heap), 0o600); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, profileFile))
}
