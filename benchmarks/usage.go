package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used of the machine.
type usage struct {
	CPU      time.Duration `json:"cpu"`
	Reads    int64         `json:"reads"`    // read(2) and the like
	Writes   int64         `json:"writes"`   // write(2) and the like
	Switches int64         `json:"switches"` // a thread gave its CPU up, mostly to wait
}

func (u usage) less(v usage) usage {
	return usage{u.CPU - v.CPU, u.Reads - v.Reads, u.Writes - v.Writes, u.Switches - v.Switches}
}

// usageOf is what processes have used so far, CPU as the scheduler counts it. It
// reads /proc, so it is an error on systems other than Linux. Threads that have
// ended do not count; a Go program hardly ever ends one.
func usageOf(pids []int) ([]usage, error) {
	all := make([]usage, len(pids))
	for i, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return nil, err
		}
		if len(threads) == 0 {
			return nil, fmt.Errorf("there is no process %d in /proc", pid)
		}
		u := &all[i]
		for _, thread := range threads {
			text, err := os.ReadFile(filepath.Join(thread, "schedstat"))
			if os.IsNotExist(err) {
				continue // a thread that has just ended
			}
			if err != nil {
				return nil, err
			}
			first, _, _ := strings.Cut(string(text), " ")
			n, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return nil, err
			}
			u.CPU += time.Duration(n)
			u.Switches += number(filepath.Join(thread, "status"), "voluntary_ctxt_switches")
		}
		io := fmt.Sprintf("/proc/%d/io", pid)
		u.Reads, u.Writes = number(io, "syscr"), number(io, "syscw")
	}
	return all, nil
}

// number is a field that is a number; 0 if it is not there.
func number(file, name string) int64 {
	n, err := strconv.ParseInt(field(file, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// heap is what a Go process has allocated.
type heap struct {
	Mallocs int64 `json:"mallocs"`
	Bytes   int64 `json:"bytes"`
	GCs     int64 `json:"gcs"`
}

func (h heap) less(g heap) heap { return heap{h.Mallocs - g.Mallocs, h.Bytes - g.Bytes, h.GCs - g.GCs} }

// heapHere is that of this process.
func heapHere() heap {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap{int64(m.Mallocs), int64(m.TotalAlloc), int64(m.NumGC)}
}

// heapFrom reads it from the text of /debug/pprof/heap?debug=1; what is not there is 0.
func heapFrom(text string) heap {
	var h heap
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "# "), " = ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "Mallocs":
			h.Mallocs = n
		case "TotalAlloc":
			h.Bytes = n
		case "NumGC":
			h.GCs = n
		}
	}
	return h
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
