//go:build full

package store

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestFullDisk fills a disk of its own in the middle of commits (STO-07), and makes it
// read-only. It needs root, for a mount that only its child sees.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CONDUIT_TEST_ALL") == "1" {
			t.Fatal("it needs root, to mount a small disk that only its own process sees")
		}
		t.Skip("it needs root, to mount a small disk that only its own process sees")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := childCommand(ctx, "small-disk", t.TempDir()+"/store")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("the child: %v: %s", err, out)
	}
}

// TestFullCompactIsKilled kills many compactions.
func TestFullCompactIsKilled(t *testing.T) {
	if middle := compactCrashes(t, 60); middle == 0 {
		t.Error("no kill came in the middle of a compaction")
	}
}
