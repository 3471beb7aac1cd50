package host

import (
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestHints: what happens in the directory is seen without a rescan, also when another
// directory has taken its name.
func TestHints(t *testing.T) {
	r := newRigWith(t, func(o *Options) { o.ScanInterval = time.Hour }, "echo")
	r.ready()
	r.deploy("other", "")
	r.untilState("other", Ready)
	r.deploy("echo", "new")
	r.until("the new one", func(m map[string]ElementStatus) bool { return m["echo"].Generation == 2 })
	mustDo(t, os.Remove(r.dir+"/other"))
	r.until("its end", func(m map[string]ElementStatus) bool { _, ok := m["other"]; return !ok })
	away := r.dir + ".away"
	mustDo(t, os.Rename(r.dir, away), os.Mkdir(r.dir, 0o755)) //nolint:gosec // as deployments directories are
	t.Cleanup(func() { _ = os.RemoveAll(away) })
	r.deploy("third", "")
	r.until("what is in the new directory alone", func(m map[string]ElementStatus) bool { return len(m) == 1 && m["third"].State == Ready })
}

// TestHintsOfOneChange: many events within a moment are one hint, and those of a file that
// is written for long hold up none.
func TestHintsOfOneChange(t *testing.T) {
	h := newHints(hclog.NewNullLogger())
	defer h.close()
	dir := t.TempDir()
	if !h.watch(dir) {
		t.Skip("this system has no events")
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // for longer than any hint may be late
		defer close(done)
		for {
			_ = os.WriteFile(dir+"/f", []byte("x"), 0o600)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	for range 2 {
		select {
		case <-h.c:
		case <-time.After(20 * time.Second):
			t.Fatal("no hint")
		}
	}
	if d := time.Since(began); d < hintLatest {
		t.Errorf("two hints within %s of changes without a pause", d)
	}
	close(stop)
	<-done
	if h.watch(dir + "/none") {
		t.Error("a directory that is not there is watched")
	}
	if !h.watch(dir) {
		t.Error("it is not watched again")
	}
}
