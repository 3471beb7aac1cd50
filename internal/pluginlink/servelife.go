package pluginlink

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	parentPoll = time.Second
	// termGrace is how long a plugin that got SIGTERM by itself lets its calls
	// go on; below the 30 s that service managers and hosts give.
	termGrace = 25 * time.Second
)

// watchParent ends the process when its host is gone. On Linux the kernel does
// that at once; this covers the moment before it was asked to, and other
// systems.
func (s *server) watchParent(quit <-chan struct{}) {
	parent := os.Getppid()
	t := time.NewTicker(parentPoll)
	defer t.Stop()
	for {
		// A parent in another pid namespace is 0, and is no news.
		if now := os.Getppid(); now != parent || now == 1 && s.hostPID > 1 {
			_, _ = fmt.Fprintln(s.stderr, "[ERROR] the host is gone: the plugin ends")
			os.Exit(1) //nolint:gocritic // the process ends: nothing deferred matters any more
		}
		select {
		case <-t.C:
		case <-quit:
			return
		}
	}
}

// drainOnTerm answers SIGTERM, as a service manager sends it to a whole group:
// no new calls, those under way finish, then exit 0. A second one ends at once.
func (s *server) drainOnTerm(quit <-chan struct{}) {
	term := make(chan os.Signal, 2)
	signal.Notify(term, unix.SIGTERM)
	defer signal.Stop(term)
	select {
	case <-term:
	case <-quit:
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), termGrace)
		defer cancel()
		s.drain(ctx)
		os.Exit(0)
	}()
	select {
	case <-term:
		os.Exit(1) //nolint:gocritic // as asked twice: at once
	case <-quit:
	}
}

// drain refuses new calls, waits for those under way, and stops the element.
func (s *server) drain(ctx context.Context) {
	if conn := s.conn.Load(); conn != nil {
		conn.GoAway("draining", 0)
		_ = conn.WaitServed(ctx)
		// gRPC writes from a goroutine of its own: the last answers are on their
		// way only when the host has read them.
		_ = conn.Sync(ctx)
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
	defer cancel()
	_ = s.plugin.Stop(stop)
}

// A panic in a control RPC fails that RPC. In a goroutine that the element
// started it still ends the process; nothing can help that.
func (s *server) recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer s.recovered(&err)
	return next(ctx, req)
}

func (s *server) recoverStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.recovered(&err)
	return next(srv, ss)
}

func (s *server) recovered(err *error) {
	if v := recover(); v != nil {
		_, _ = fmt.Fprintf(s.stderr, "panic: %v\n%s", v, debug.Stack())
		*err = status.Errorf(codes.Internal, "panic: %v", v)
	}
}
