package host

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// recordName is the file, in the private directory, of what operators want of
// deployments and what served before.
const recordName = "deployments.json"

// recordFormat is the only format of that file so far.
const recordFormat = 1

// record remembers, over the end of the host, what the deployments directory cannot
// say of a deployment: that it is turned off, and what served before. All methods may be
// called concurrently.
type record struct {
	path string

	mu    sync.Mutex
	known map[string]recorded
}

// recorded is what is remembered of one deployment.
type recorded struct {
	Disabled bool `json:"disabled,omitempty"`
	// Good is the SHA-256 of what served last, Before of what did so before that; both
	// are kept in the store.
	Good   string `json:"good,omitempty"`
	Before string `json:"before,omitempty"`
	// The same of a deployment that is a directory, by its listing in the store; Placed is
	// what an operator has put there last.
	Placed     string `json:"placed,omitempty"`
	GoodTree   string `json:"good_tree,omitempty"`
	BeforeTree string `json:"before_tree,omitempty"`
}

type recordFile struct {
	Format      int                 `json:"format"`
	Deployments map[string]recorded `json:"deployments"`
}

// openRecord reads what is remembered. A file that cannot be understood stops the
// host: without it, what an operator has turned off would run.
func openRecord(path string) (*record, error) {
	r := &record{path: path, known: map[string]recorded{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var f recordFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err == nil && f.Format != recordFormat {
		err = fmt.Errorf("its format is %d, and this release knows %d", f.Format, recordFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("%s, which says what operators have disabled and what can be rolled back to, cannot be read: %w; put a copy back, or remove it: then everything is enabled", path, rootCause(err))
	}
	if f.Deployments != nil {
		r.known = f.Deployments
	}
	return r, nil
}

func (r *record) of(name string) recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name]
}

// change changes what is remembered of a deployment, on the disk first: on error all is
// as it was.
func (r *record) change(name string, f func(*recorded)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, had := r.known[name]
	is := was
	f(&is)
	if is == was {
		return nil
	}
	if r.known[name] = is; is == (recorded{}) {
		delete(r.known, name)
	}
	text, err := json.MarshalIndent(recordFile{recordFormat, r.known}, "", "  ")
	if err == nil {
		err = writeWhole(r.path, halfCopy+rand.Text(), 0o600, func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err }, nil)
	}
	if err != nil {
		if delete(r.known, name); had {
			r.known[name] = was
		}
		return fmt.Errorf("%s cannot be written: %w", r.path, rootCause(err))
	}
	return nil
}

// sums returns the binaries that are kept to go back to.
func (r *record) sums() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, d := range r.known {
		list = append(list, d.Good, d.Before)
	}
	return list
}

// trees returns the directories that are kept to go back to.
func (r *record) trees() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, d := range r.known {
		for _, sum := range []string{d.GoodTree, d.BeforeTree} {
			if sum != "" {
				list = append(list, sum)
			}
		}
	}
	return list
}

// servesTree notes which directory serves.
func servesTree(d *recorded, sum string) {
	if d.GoodTree != sum {
		d.GoodTree, d.BeforeTree = sum, d.GoodTree
	}
}

// treeBehind is back for a deployment that is a directory.
func (d recorded) treeBehind(now string) string {
	if d.GoodTree != now {
		return d.GoodTree
	}
	return d.BeforeTree
}

// back returns the binary that a rollback from the wanted one leads to, "" if there is
// none: what served last, if that is another, else what did so before.
func (d recorded) back(wanted string) string {
	if d.Good != wanted {
		return d.Good
	}
	return d.Before
}

// The steps of writeWhole, for who wants to know what its end at one of them leaves.
const (
	stepMade    = "made"
	stepWritten = "written"
	stepSynced  = "synced"
	stepRenamed = "renamed"
)

// writeWhole writes a file so that at every moment its name has the old content or the
// new one, whole, and that the new one outlives a crash of the machine once it returns.
// tmp is the name, in the same directory, of what is being written. at hears of each
// step; nil = nobody does.
func writeWhole(path, tmp string, mode fs.FileMode, write func(io.Writer) error, at func(step string)) (err error) {
	if at == nil {
		at = func(string) {}
	}
	dir := filepath.Dir(path)
	f, err := os.OpenFile(filepath.Join(dir, tmp), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, ignoreClosed(f.Close()))
		if err != nil {
			_ = os.Remove(f.Name()) // gone already if the name was given
		}
	}()
	at(stepMade)
	if err := write(f); err != nil {
		return err
	}
	at(stepWritten)
	// The mode before the name: a scan never sees the file without it.
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	at(stepSynced)
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	at(stepRenamed)
	return syncDir(dir)
}
