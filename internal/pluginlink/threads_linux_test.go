package pluginlink

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestThreadsEnd: the kernel's parent-death signal is for the end of the *thread* that
// forked a process. All threads of a host but its Spawner's end, and what it has started
// lives.
func TestThreadsEnd(t *testing.T) {
	ctx := testContext(t)
	cmd := exec.CommandContext(ctx, "/proc/self/exe") // a process of its own, whose first thread may be lost, too
	cmd.Env = append(os.Environ(), fixtureVar+"=threads")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "alive" {
		t.Errorf("what was started is not alive: %s, %v", out, err)
	}
}

// fixtureThreads starts a process, ends all threads that are not held, and says whether it
// is alive.
func fixtureThreads() {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	// The first thread of a process cannot end: Go has it wait for ever instead, and then
	// the process could not have been forked by it.
	for range 100 {
		if first, err := endThreads(); err != nil || first {
			fail(err)
			break
		}
	}
	s := NewSpawner()
	defer s.Close()
	var in io.WriteCloser
	var out io.Reader
	cmd, err := s.start(func() *exec.Cmd {
		c := exec.Command("cat")
		c.SysProcAttr = processAttr()
		in, _ = c.StdinPipe()
		out, _ = c.StdoutPipe()
		return c
	})
	fail(err)
	lines := bufio.NewReader(out)
	for n := range 3 {
		_, err := endThreads()
		fail(err)
		// Whoever was sent SIGKILL answers nothing any more.
		_, _ = fmt.Fprintln(in, n)
		if line, err := lines.ReadString('\n'); line != strconv.Itoa(n)+"\n" {
			fail(fmt.Errorf("it has died of a thread's end: %q, %w", line, err))
		}
	}
	_ = in.Close()
	fail(cmd.Wait())
	fmt.Println("alive")
}

// endThreads ends all threads of this process that no goroutine holds, and returns when
// the kernel has none of them any more. first says that the first one was among those that
// were to end.
func endThreads() (first bool, _ error) {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return false, err
	}
	// As many goroutines as there are threads, and more, each with a thread of its own at
	// one moment, take all that are free. A thread ends with a goroutine that holds it.
	n := len(tasks) + 16
	var all, ended sync.WaitGroup
	all.Add(n)
	tids := make(chan int, n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			tids <- unix.Gettid()
			all.Done()
			all.Wait()
		})
	}
	ended.Wait()
	close(tids)
	deadline := time.Now().Add(time.Minute)
	for tid := range tids {
		if tid == os.Getpid() {
			first = true
			continue
		}
		for {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); err != nil {
				break
			}
			if time.Now().After(deadline) {
				return first, fmt.Errorf("thread %d does not end", tid)
			}
			runtime.Gosched()
		}
	}
	return first, nil
}
