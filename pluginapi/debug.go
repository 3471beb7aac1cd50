package pluginapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// serveDebug serves to hosts that attach, until SIGINT or SIGTERM: then calls under way
// finish; a second signal ends the process at once. The one line on stdout is a command
// to paste; all else, logs as text included, is on stderr.
func serveDebug(e Element, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // what comes then has its usual effect
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	slog.SetDefault(log)
	err := pluginlink.Debug(ctx, e.Name, func() pluginlink.Plugin { return newServer(e, log) }, func(socket string) {
		_, _ = fmt.Fprintf(stderr, "Element %s waits for a host. What stands before the '=' is the name of its deployment there.\n", e.Name)
		_, _ = fmt.Fprintf(stdout, "conduit-host serve --mode both --auth-mode disabled --host-reattach '%s=%s'\n", e.Name, socket)
	})
	if err != nil {
		log.Error("the element could not be served for debugging", slog.Any("error", err))
		return 1
	}
	return 0
}
