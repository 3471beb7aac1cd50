// Command profiledecho is the raw echo of plugins/echo with a CPU profile: from
// SIGUSR1 to SIGUSR2, into its data directory. Plugins have no ops listener, so
// this is how `go run . -profile` sees into one.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"syscall"

	"github.com/elemental-conduit/conduit/pluginapi"
)

// profileFile is complete as soon as it has this name.
const profileFile = "echo-cpu.prof"

func main() {
	s := pluginapi.NewService("conduit.example.Echo")
	pluginapi.Handle(s, "Echo", func(_ context.Context, in []byte) ([]byte, error) { return in, nil },
		pluginapi.Remote(), pluginapi.MinLevel(pluginapi.Anonymous), pluginapi.Idempotent())
	pluginapi.Main(pluginapi.Element{
		Name: "echo", Version: "1.0.0",
		Services: []*pluginapi.Service{s},
		Start: func(_ context.Context, host pluginapi.Host) error {
			signals := make(chan os.Signal, 2)
			signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
			go func() {
				if err := profile(signals, host.DataDir()); err != nil {
					host.Logger().Error("no profile", "error", err)
				}
			}()
			return nil
		},
	})
}

func profile(signals <-chan os.Signal, dir string) error {
	<-signals
	f, err := os.CreateTemp(dir, "profile-")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	<-signals
	pprof.StopCPUProfile()
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, profileFile))
}
