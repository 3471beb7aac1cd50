package host

import (
	"errors"
	"io/fs"
	"slices"
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

// hints tells that something may have happened in the directories that are watched. That it says nothing
// proves nothing: some file systems have no events, and a queue may overflow. What is
// there, only a scan knows. One goroutine uses it.
type hints struct {
	log    hclog.Logger
	w      *fsnotify.Watcher // nil if there are no events here
	dirs   []string          // that are watched
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

// watch has dirs watched and no others, whatever directories have those names by now, and
// reports whether all are.
func (h *hints) watch(dirs ...string) bool {
	if h.w == nil {
		return false
	}
	for _, dir := range h.dirs {
		if !slices.Contains(dirs, dir) {
			_ = h.w.Remove(dir)
		}
	}
	h.dirs = h.dirs[:0]
	all := true
	for _, dir := range dirs {
		if err := h.w.Add(dir); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // of what has just gone, the scan tells
				h.notWatched(err)
			}
			all = false
			continue
		}
		h.dirs = append(h.dirs, dir)
	}
	if all {
		h.failed = ""
	}
	return all
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
