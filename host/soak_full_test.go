//go:build full

package host

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/link"
)

// soakCalls is how many calls TestFullSoak makes unless SOAK_CALLS says otherwise; `make
// soak` says a million.
const soakCalls = 60_000

// soakWorkers is how many calls are under way at once.
const soakWorkers = 32

// TestFullSoak makes calls that are cancelled, run out of time, lose their link and lose
// their plugin, and then looks whether anything of them is left: calls, goroutines,
// descriptors, memory, processes.
func TestFullSoak(t *testing.T) {
	calls := soakCalls
	if text := os.Getenv("SOAK_CALLS"); text != "" {
		var err error
		if calls, err = strconv.Atoi(text); err != nil || calls < 1 {
			t.Fatalf("SOAK_CALLS is %q, which is no number of calls", text)
		}
	}
	r := newRigWith(t, func(o *Options) {
		o.RestartMin, o.RestartMax, o.CrashLoopAfter, o.StableAfter = time.Millisecond, 10*time.Millisecond, 1_000_000, time.Millisecond
	}, "echo")
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	r.ctx = ctx
	r.ready()
	s := &soak{r: r, client: r.dial("ada", conduit.User)}
	s.load(t, 2000, 0) // what is made once, and kept, is made
	r.untilState("echo", Ready)
	before := soakNow()
	s.load(t, calls, calls/20)
	e := r.until("the last start", func(m map[string]ElementStatus) bool { return m["echo"].State == Ready && m["echo"].Calls == 0 })["echo"]
	if out, in := s.client.Calls(); out != 0 || in != 0 {
		t.Errorf("calls are left on the client's link: %d, %d", out, in)
	}
	if s.well.Load() == 0 || s.failed.Load() == 0 || s.kills.Load() == 0 || s.cuts.Load() == 0 {
		t.Errorf("%d calls ended well, %d failed, %d kills, %d cuts: the test tests too little", s.well.Load(), s.failed.Load(), s.kills.Load(), s.cuts.Load())
	}
	after := soakNow()
	for deadline := time.Now().Add(time.Minute); !after.near(before) && time.Now().Before(deadline); after = soakNow() {
		runtime.Gosched()
	}
	t.Logf("%d calls, %d of which failed; %d kills, %d cuts, generation %d; before %+v, after %+v", calls, s.failed.Load(), s.kills.Load(), s.cuts.Load(), e.Generation, before, after)
	if !after.near(before) {
		t.Errorf("before: %+v, after: %+v", before, after)
	}
}

type soak struct {
	r                         *rig
	well, failed, kills, cuts atomic.Int64

	gate sync.RWMutex

	mu     sync.Mutex
	client *link.Conn
}

// load makes so many calls; one in every so many is followed by a kill, or a cut.
func (s *soak) load(t *testing.T, calls, every int) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(calls))
	var all sync.WaitGroup
	for worker := range soakWorkers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 5))
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				s.gate.RLock()   // while there is a process, or one is just being killed
				s.gate.RUnlock() //nolint:staticcheck // it is only waited
				s.call(random)
				if every > 0 && n%int64(every) == 0 {
					s.harm(n/int64(every)%2 == 0)
				}
			}
		})
	}
	all.Wait()
}

func (s *soak) call(random *rand.Rand) {
	s.mu.Lock()
	c := s.client
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.r.ctx, time.Minute)
	defer cancel()
	method, data := "Echo", string(make([]byte, random.IntN(2000)))
	switch random.IntN(8) {
	case 0:
		method = "Wait"
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(3000))*time.Microsecond)
		defer cancel()
	case 1:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(1000))*time.Microsecond)
		defer cancel()
	}
	x := invoke(ctx, c, echo, method, data)
	if random.IntN(8) == 0 {
		x.Cancel(context.Canceled)
	}
	_, err := x.Recv(ctx)
	for err == nil {
		if _, err = x.Recv(ctx); errors.Is(err, io.EOF) {
			s.well.Add(1)
			return
		}
	}
	s.failed.Add(1)
}

// harm kills the plugin, or cuts the client's link.
func (s *soak) harm(kill bool) {
	if kill {
		was := s.r.elements()["echo"]
		if was.Pid <= 0 || syscall.Kill(was.Pid, syscall.SIGKILL) != nil {
			return // another kill is not over yet
		}
		s.kills.Add(1)
		s.gate.Lock() // calls that nobody can serve would be most of them
		defer s.gate.Unlock()
		s.r.until("another process", func(m map[string]ElementStatus) bool {
			return m["echo"].State == Ready && m["echo"].Generation > was.Generation
		})
		return
	}
	next := s.r.dial("ada", conduit.User)
	s.mu.Lock()
	last := s.client
	s.client = next
	s.mu.Unlock()
	last.Close(link.CloseAbnormal, "cut")
	<-last.Done()
	s.cuts.Add(1)
}

// soakState is what a process holds.
type soakState struct {
	goroutines, descriptors, children int
	heap                              uint64
}

func soakNow() (s soakState) {
	runtime.GC()
	runtime.GC() // what pools let go of is kept for one more
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap, s.goroutines = m.HeapAlloc, runtime.NumGoroutine()
	fds, _ := os.ReadDir("/proc/self/fd")
	s.descriptors = len(fds)
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		children, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, b := range children {
			if b == ' ' {
				s.children++
			}
		}
	}
	return s
}

// near reports whether no more is held than was, but for what the runtime and the test
// keep of each crash.
func (s soakState) near(was soakState) bool {
	return s.goroutines <= was.goroutines+4 && s.descriptors <= was.descriptors+4 && s.children <= was.children && s.heap <= was.heap+(16<<20)
}
