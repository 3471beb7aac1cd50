package host

import (
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
)

// A change is looked at when nothing more has happened for hintQuiet, and no later than
// hintLatest after it: one file that is written for long delays no other.
const (
	hintQuiet  = 300 * time.Millisecond
	hintLatest = time.Second
)

// unwatched is how often a directory that cannot be watched is read.
const unwatched = time.Second

// hints tells that something may have happened in a directory. That it says nothing
// proves nothing: some file systems have no events, and a queue may overflow. What is
// there, only a scan knows. One goroutine uses it.
type hints struct {
	log    hclog.Logger
	w      *fsnotify.Watcher // nil if there are no events here
	dir    string            // that is watched; empty if none is
	failed string            // what was logged
	c      chan struct{}     // holds one token when it is time to look
	done   chan struct{}
}

func newHints(log hclog.Logger) *hints {
	h := &hints{log: log, c: make(chan struct{}, 1), done: make(chan struct{})}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		h.notWatched(err)
		close(h.done)
		return h
	}
	h.w = w
	go h.run()
	return h
}

func (h *hints) close() {
	if h.w != nil {
		_ = h.w.Close()
	}
	<-h.done
}

// watch has dir watched, whatever directory has that name by now, and reports whether it
// is.
func (h *hints) watch(dir string) bool {
	if h.w == nil {
		return false
	}
	if h.dir != "" && h.dir != dir {
		_ = h.w.Remove(h.dir)
	}
	h.dir = ""
	if err := h.w.Add(dir); err != nil {
		h.notWatched(err)
		return false
	}
	h.dir, h.failed = dir, ""
	return true
}

func (h *hints) notWatched(err error) {
	if h.failed != err.Error() {
		h.failed = err.Error()
		h.log.Warn("the deployments directory cannot be watched and is read every second; on Linux, fs.inotify.max_user_instances and max_user_watches are the usual limits", "error", err)
	}
}

func (h *hints) run() {
	defer close(h.done)
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var first time.Time // of the events that were not told of yet
	for {
		select {
		case _, ok := <-h.w.Events:
			if !ok {
				return
			}
		case _, ok := <-h.w.Errors: // an overflow, say: something has happened
			if !ok {
				return
			}
		case <-quiet.C:
			first = time.Time{}
			select {
			case h.c <- struct{}{}:
			default:
			}
			continue
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		quiet.Reset(min(hintQuiet, max(0, hintLatest-now.Sub(first))))
	}
}
