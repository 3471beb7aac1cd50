//go:build unix

package boltstore

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// The pauses between attempts to get the lock. There is no way to wait for it
// that a context could end.
const (
	firstPause = time.Millisecond
	maxPause   = 16 * time.Millisecond
)

// flock locks the file as bbolt does, which finds itself holding the lock: it
// belongs to the open file, not to the call. The error is the context's, or the
// system's.
func flock(ctx context.Context, f *os.File, exclusive bool) error {
	how := syscall.LOCK_SH | syscall.LOCK_NB
	if exclusive {
		how = syscall.LOCK_EX | syscall.LOCK_NB
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := syscall.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// funlock lets go of the lock. A file that is closed has none.
func funlock(f *os.File) error {
	fd := f.Fd()
	if fd == ^uintptr(0) {
		return nil
	}
	return syscall.Flock(int(fd), syscall.LOCK_UN)
}
