package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A save is several events, and of several files: a build begins when nothing more has
// come for saveQuiet, and no later than saveLatest after the first.
const (
	saveQuiet  = 50 * time.Millisecond
	saveLatest = 500 * time.Millisecond
)

// sources watches the directories that a Go program is built of, as far as they are on
// this machine to be changed: those of its own module, and of modules that a directory
// replaces or a workspace has.
type sources struct {
	dir     string
	environ []string
	w       *fsnotify.Watcher
	// changed holds one token when there is something to build.
	changed chan struct{}
	done    chan struct{}
	waited  atomic.Int64 // nanoseconds from the first event of the last token to the token

	watched map[string]bool // for the one goroutine that calls refresh
}

// watchSources begins to watch what is known of the program in dir.
func watchSources(ctx context.Context, dir string, environ []string) (*sources, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, configf("files cannot be watched: %v; on Linux fs.inotify.max_user_instances is the usual limit", err)
	}
	s := &sources{dir: dir, environ: environ, w: w, changed: make(chan struct{}, 1), done: make(chan struct{}), watched: map[string]bool{}}
	go s.run()
	if err := w.Add(dir); err != nil {
		s.close()
		return nil, configf("%s cannot be watched: %v; on Linux fs.inotify.max_user_watches is the usual limit", dir, err)
	}
	s.watched[dir] = true
	s.refresh(ctx, time.Now())
	return s, nil
}

// close ends the watch.
func (s *sources) close() {
	_ = s.w.Close()
	<-s.done
}

// again puts a token back.
func (s *sources) again() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// settled is how long the last change was waited for to be whole.
func (s *sources) settled() time.Duration { return time.Duration(s.waited.Load()) }

// sourcesFormat has `go list` print each directory of sources on a line.
const sourcesFormat = `{{if and (not .Standard) .Module}}{{$m := .Module}}{{if or $m.Main (and $m.Replace (not $m.Replace.Version))}}{{.Dir}}
{{$d := .Dir}}{{range .EmbedFiles}}{{$d}}/{{.}}/..
{{end}}{{$m.Dir}}
{{end}}{{end}}`

// refresh watches what the program is built of by now. A directory that is new to it may
// have changed since the build that began at built.
func (s *sources) refresh(ctx context.Context, built time.Time) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-e", "-f", sourcesFormat, ".")
	cmd.Dir, cmd.Env = s.dir, s.environ
	out, err := cmd.Output()
	if err != nil {
		return // what does not build is not listed, either: what was watched still is
	}
	now := map[string]bool{s.dir: true}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if line := lines.Text(); line != "" {
			now[filepath.Clean(line)] = true
		}
	}
	for dir := range now {
		if s.watched[dir] || s.w.Add(dir) != nil {
			continue
		}
		s.watched[dir] = true
		if changedSince(dir, built) {
			s.again()
		}
	}
	for dir := range s.watched {
		if !now[dir] {
			_ = s.w.Remove(dir)
			delete(s.watched, dir)
		}
	}
}

func changedSince(dir string, t time.Time) bool {
	entries, _ := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		info, err := e.Info()
		return err == nil && matters(e.Name()) && !e.IsDir() && info.ModTime().After(t)
	})
}

// matters reports whether a file may be a part of the program: editors write others
// beside those that they save, and tests are no part of it.
func matters(name string) bool {
	name = filepath.Base(name)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || name == "4913" /* vim */ || strings.Contains(name, "___jb_") {
		return false
	}
	return !slices.ContainsFunc([]string{"~", ".swp", ".swo", ".swx", ".tmp", ".bak", ".orig", "_test.go"}, func(end string) bool { return strings.HasSuffix(name, end) })
}

// run makes tokens of events, until the watcher is closed.
func (s *sources) run() {
	defer close(s.done)
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var first time.Time // of the events of which nobody was told yet
	for {
		select {
		case e, ok := <-s.w.Events:
			if !ok {
				return
			}
			if e.Op == fsnotify.Chmod || !matters(e.Name) {
				continue
			}
		case _, ok := <-s.w.Errors: // an overflow, say: something has happened
			if !ok {
				return
			}
		case <-quiet.C:
			s.waited.Store(int64(time.Since(first)))
			first = time.Time{}
			s.again()
			continue
		}
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		quiet.Reset(min(saveQuiet, max(0, saveLatest-now.Sub(first))))
	}
}
