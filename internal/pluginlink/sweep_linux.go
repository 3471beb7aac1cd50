package pluginlink

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a sweep.
const (
	sweepRounds = 5               // what is being killed may fork once more
	sweepWait   = 2 * time.Second // for the end of what was killed, each round
)

// Sweep ends the processes that plugins of an earlier host with this owner have
// started and that have outlived it, and returns their ids. Whoever calls it knows that
// no other host with this owner lives.
//
// A process is known by the owner in the environment that it was started with, which
// it inherited from a plugin; its id alone, which may belong to a stranger by now, is
// never trusted: what is signalled is the process that was looked at. One that has
// cleared its environment or changed its user is not found.
func Sweep(owner string) (ended []int, err error) {
	if owner == "" {
		return nil, errors.New("pluginlink: a sweep without an owner")
	}
	for range sweepRounds {
		left, err := sweepOnce(owner)
		if err != nil || len(left) == 0 {
			return ended, err
		}
		ended = append(ended, left...)
	}
	return ended, fmt.Errorf("after %d rounds there are still processes that an earlier host's plugins have left", sweepRounds)
}

func sweepOnce(owner string) (killed []int, err error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	spared := ancestors()
	var handles []int
	defer func() {
		for _, fd := range handles {
			_ = unix.Close(fd)
		}
	}()
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || slices.Contains(spared, pid) || !startedFor(dir, owner) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			continue
		case err != nil:
			return killed, fmt.Errorf("process %d was left by an earlier host's plugin, and cannot be ended safely: %w", pid, err)
		}
		// Between the look and the handle the id may have become a stranger's. From
		// here on the handle is of one process, so that this look is of that one, or it
		// has ended and the signal meets nobody.
		if !startedFor(dir, owner) {
			_ = unix.Close(fd)
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err == nil {
			killed, handles = append(killed, pid), append(handles, fd)
		} else {
			_ = unix.Close(fd)
		}
	}
	deadline := time.Now().Add(sweepWait)
	for _, fd := range handles {
		awaitEnd(fd, deadline)
	}
	return killed, nil
}

// awaitEnd waits until the process of a handle has ended.
func awaitEnd(fd int, deadline time.Time) {
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(left.Milliseconds(), 0)))
		if n > 0 || left <= 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// startedFor reports whether the process of a directory of /proc is this user's, alive,
// and was started with this owner in its environment.
func startedFor(dir, owner string) bool {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	environ, err := os.ReadFile(filepath.Join(dir, "environ")) // that of one which has ended is empty
	if err != nil {
		return false
	}
	return slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(kv []byte) bool { return string(kv) == envOwner+"="+owner })
}

// ancestors are this process and those above it: a host may itself have been started by
// a plugin of the one before.
func ancestors() []int {
	var list []int
	for pid := os.Getpid(); pid > 0 && len(list) < 1000; {
		list = append(list, pid)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		at := bytes.LastIndexByte(stat, ')') // the name before may hold anything
		if err != nil || at < 0 {
			break
		}
		var state byte
		if _, err := fmt.Sscanf(string(stat[at+1:]), " %c %d", &state, &pid); err != nil {
			break
		}
	}
	return list
}
