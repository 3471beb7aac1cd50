package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the CPU time that processes have used so far, as the scheduler counts
// it. It reads /proc, so it is an error on systems other than Linux. Threads that
// have ended do not count; a Go program hardly ever ends one.
func cpuTime(pids []int) (time.Duration, error) {
	var total time.Duration
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, err
		}
		if len(files) == 0 {
			return 0, fmt.Errorf("there is no CPU time of process %d", pid)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if os.IsNotExist(err) {
				continue // a thread that has just ended
			}
			if err != nil {
				return 0, err
			}
			first, _, _ := strings.Cut(string(text), " ")
			n, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return 0, err
			}
			total += time.Duration(n)
		}
	}
	return total, nil
}

// descendants are the processes that a process has started, and those that these
// have; none on systems other than Linux.
func descendants(pid int) []int {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended since
		}
		// 1234 (a name) S 1 ...: the name may hold anything, the last ) ends it.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		one, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], one)
	}
	found := children[pid]
	for i := 0; i < len(found); i++ { // found grows
		found = append(found, children[found[i]]...)
	}
	return found
}
