package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit/internal/config"
)

// rereadEvery is how often the files of the configuration are looked at. They are polled:
// a look costs two calls of the system, and file events miss what happens behind links, as
// Kubernetes mounts a ConfigMap, and on network file systems.
const rereadEvery = 500 * time.Millisecond

// changes tells when the contents of files have become others and rested since the look
// before: a file that is being written is left alone.
type changes struct {
	mu    sync.Mutex
	paths []string
	files []watched
}

type watched struct {
	seen os.FileInfo       // at the look before; nil = it was not there
	sum  [sha256.Size]byte // of what was taken last
	old  bool              // seen is of what was taken last
}

// watchFiles begins with what the files hold now.
func watchFiles(paths ...string) *changes {
	w := &changes{paths: paths, files: make([]watched, len(paths))}
	w.took()
	return w
}

// watchConfig watches the configuration file. It is called before that is read, so that
// what is written in between is a change; what it names is added then.
func (a *app) watchConfig() *changes {
	w := watchFiles()
	w.add(a.configFile)
	return w
}

// add watches one file more, from what it holds now on; "" is none. Both files of a
// reload are those of the start: where another attributes file is named, a reload takes it,
// and it is watched from the next start on.
func (w *changes) add(path string) {
	if path == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paths, w.files = append(w.paths, path), append(w.files, watched{})
	w.take(len(w.paths) - 1)
}

// took notes that what the files hold now is in force, or was refused.
func (w *changes) took() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.paths {
		w.take(i)
	}
}

// take notes what one file holds. w.mu is held.
func (w *changes) take(i int) {
	info, sum, err := fileSum(w.paths[i])
	if err != nil {
		w.files[i].old = false
		return
	}
	w.files[i] = watched{seen: info, sum: sum, old: true}
}

// look reports whether there is something to take.
func (w *changes) look() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := false
	for i, path := range w.paths {
		f := &w.files[i]
		info, err := os.Stat(path)
		if err != nil { // as between the two steps of a replacement
			f.seen, f.old = nil, false
			continue
		}
		rested := f.seen != nil && os.SameFile(f.seen, info) && f.seen.Size() == info.Size() && f.seen.ModTime().Equal(info.ModTime())
		f.seen = info
		switch {
		case !rested:
			f.old = false
		case !f.old:
			if _, sum, err := fileSum(path); err == nil {
				changed = changed || sum != f.sum
				f.old, f.sum = true, sum
			}
		}
	}
	return changed
}

// run looks until ctx ends, and says into c that there is something to take.
func (w *changes) run(ctx context.Context, c chan<- struct{}) {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !w.look() {
				continue
			}
			select {
			case c <- struct{}{}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// fileSum reads a file of no more than what a configuration may have.
func fileSum(path string) (os.FileInfo, [sha256.Size]byte, error) {
	data, info, err := readSmall(path)
	return info, sha256.Sum256(data), err
}

func readSmall(path string) ([]byte, os.FileInfo, error) {
	info, err := os.Stat(path) // before: an open of a pipe would wait
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, config.MaxFile+1))
	return data, info, err
}

// isBlank reports whether a file says nothing at all, not so much as a comment.
func isBlank(path string) bool {
	data, info, err := readSmall(path)
	return err == nil && info.Mode().IsRegular() && len(bytes.TrimSpace(data)) == 0
}

// reread is what a signal and a changed file do: it takes over what the configuration
// says now. why says what asked for it, for the log; blank, that the configuration file
// said nothing at the start either.
func (a *app) reread(i *instance, why string, blank bool) {
	i.log.Info("reload: the configuration is read again", "why", why)
	if a.configFile != "" && !blank && isBlank(a.configFile) {
		// An editor, or a shell's >, has truncated it and not written it yet; and taken by
		// its word it would let go of all peers.
		i.log.Warn("reload: the configuration file is empty; everything is left as it was", "file", a.configFile,
			"mend", "to let go of all peers, write discovery.static: []")
		return
	}
	c, err := a.loadConfig()
	if err != nil {
		i.log.Error("reload: everything is left as it was", "error", err)
		return
	}
	i.reload(c)
}
