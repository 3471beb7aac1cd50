package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockFile takes the lock that bbolt takes as well, so that the file can be checked
// before bbolt sees it. The system releases it with the descriptor, also in a crash.
func lockFile(ctx context.Context, file *os.File, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	retry := time.NewTicker(20 * time.Millisecond) // the system has no lock with a timeout
	defer retry.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("locking it: %w", err)
		}
		select {
		case <-retry.C:
			continue
		case <-ctx.Done():
		}
		e := &Error{Kind: KindInUse, Subject: file.Name(), PID: holder(file), Err: ctx.Err()}
		switch {
		case e.PID == os.Getpid():
			e.Why = "this process has it open already"
		case e.PID != 0:
			e.Why = fmt.Sprintf("process %d%s has it open; stop that one, or give this store another file", e.PID, command(e.PID))
		default:
			e.Why = "another process has it open; stop that one, or give this store another file"
		}
		return e
	}
}

// holder finds the process that has the lock in what Linux tells of locks; 0 if it
// does not tell.
func holder(file *os.File) int {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	inode := ":" + strconv.FormatUint(stat.Ino, 10)
	for line := range strings.Lines(string(table)) {
		// 1: FLOCK  ADVISORY  WRITE 3516 fe:00:1835044 0 EOF
		f := strings.Fields(line)
		if len(f) >= 6 && f[1] == "FLOCK" && strings.HasSuffix(f[5], inode) {
			if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
				return pid
			}
		}
	}
	return 0
}

// command is the name of a process in brackets, or "".
func command(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(name)) + ")"
}
