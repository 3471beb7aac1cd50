package pluginlink

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// processEnd returns a func that waits for the end of any process, or fails.
func processEnd(t *testing.T, pid int) func(context.Context) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func(ctx context.Context) {
		t.Helper()
		deadline, _ := ctx.Deadline()
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if n != 1 {
			t.Fatalf("process %d still runs: %v", pid, err)
		}
	}
}
