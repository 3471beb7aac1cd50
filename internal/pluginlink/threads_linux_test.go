package pluginlink

import (
	"runtime"
	"testing"
)

// TestThreadsEnd: the kernel ends a child with the thread that forked it. No plugin goes
// with a thread that had it started.
func TestThreadsEnd(t *testing.T) {
	ctx := testContext(t)
	started := make(chan *Process, 1)
	go func() {
		defer close(started)
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		p, _, err := launch(ctx, t, "serve", nil)
		if err != nil {
			t.Error(err)
			return
		}
		started <- p
	}()
	p, ok := <-started
	if !ok {
		t.FailNow()
	}
	<-started
	for range 50 { // and more threads than there are to spare
		over := make(chan struct{})
		go func() {
			defer close(over)
			runtime.LockOSThread()
		}()
		<-over
	}
	up(ctx, t, p)
	if _, err := p.Health(ctx); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Ended():
		t.Errorf("it has %s", p.Exit())
	default:
	}
}
