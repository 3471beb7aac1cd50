//go:build !linux

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
	return func(ctx context.Context) {
		t.Helper()
		for unix.Kill(pid, 0) == nil {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("process %d still runs", pid)
			}
		}
	}
}
