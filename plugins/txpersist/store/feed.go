package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// feed keeps the newest changes of paths in memory, for those who watch. Who is slow
// costs nothing: a watcher is a place in it, and one whose place has gone reads the
// state anew.
//
// A revision is the number of a commit of the file, and that of a snapshot is the
// number of the last commit that it has: so both can be compared.
type feed struct {
	limit int64
	epoch uint64 // of this opening of the file: a revision of another one says nothing

	mu      sync.Mutex
	batches []batch // the oldest first
	bytes   int64
	lost    uint64 // changes up to this revision are not known any more
	head    uint64 // the newest revision
	moved   chan struct{}
	ended   *Error        // why nothing comes any more
	over    chan struct{} // closed then
	watches int
	owners  map[string]int // of these, by owner
}

// batch is what one commit of the file changed.
type batch struct {
	revision uint64
	changes  []keyChange // in the order of keys, each once
	bytes    int64
}

// keyChange is what a path leads to after a commit.
type keyChange struct {
	key     string
	id      uuid
	removed bool
}

// changeCost is what a change counts beside its path, in bytes.
const changeCost = 64

func (f *feed) open(head uint64, limit int64) {
	f.epoch, f.limit = rand.Uint64(), limit
	f.head, f.lost = head, head
	f.moved, f.over = make(chan struct{}), make(chan struct{})
	f.owners = map[string]int{}
}

// changesOf lists what the transactions of one commit have changed; forgotten says that
// it was all there is, so that who watches had better look anew.
func changesOf(committed []*edits) (changes []keyChange, forgotten bool) {
	for _, e := range committed {
		if e.wiped {
			return nil, true
		}
		for key, u := range e.paths {
			if u != nil {
				changes = append(changes, keyChange{key: key, id: *u})
			}
		}
		for u, r := range e.resources {
			for _, key := range r.oldPaths {
				if now, ok := e.paths[key]; ok && now == nil {
					changes = append(changes, keyChange{key: key, removed: true})
				}
			}
			if r.contents == nil || !r.exists {
				continue
			}
			for key := range r.paths {
				if !e.has(key) { // the others are in it already
					changes = append(changes, keyChange{key: key, id: u})
				}
			}
		}
	}
	slices.SortFunc(changes, func(a, b keyChange) int { return compareText(a.key, b.key) })
	return changes, false
}

// append adds what a commit changed. Whoever commits calls it before the next commit.
func (f *feed) append(revision uint64, changes []keyChange, forgotten bool) {
	b := batch{revision: revision, changes: changes}
	for _, c := range changes {
		b.bytes += int64(len(c.key)) + changeCost
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.head = revision
	if forgotten || b.bytes > f.limit {
		f.batches, f.bytes, f.lost = nil, 0, revision
	} else if len(changes) > 0 {
		f.batches = append(f.batches, b)
		f.bytes += b.bytes
		drop := 0
		for f.bytes > f.limit {
			f.bytes -= f.batches[drop].bytes
			f.lost = f.batches[drop].revision
			drop++
		}
		clear(f.batches[:drop])
		f.batches = f.batches[drop:]
	}
	close(f.moved)
	f.moved = make(chan struct{})
}

// end tells all who watch that nothing comes any more.
func (f *feed) end(why *Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended == nil {
		f.ended = why
		close(f.over)
		close(f.moved)
		f.moved = make(chan struct{})
	}
}

// why says why nothing comes any more; nil if something may.
func (f *feed) why() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended == nil {
		return nil
	}
	return f.ended
}

// wait returns once there is a revision of at least this number.
func (f *feed) wait(ctx context.Context, revision uint64) error {
	for {
		f.mu.Lock()
		head, ended, moved := f.head, f.ended, f.moved
		f.mu.Unlock()
		switch {
		case head >= revision:
			return nil
		case ended != nil:
			return ended
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next returns the first batch behind a revision and up to another one. With none, head
// is the newest revision, up to which nothing has changed; known is false if something
// may be missing in between.
func (f *feed) next(after, upTo uint64) (b batch, found bool, head uint64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after < f.lost {
		return batch{}, false, f.head, false
	}
	i, _ := slices.BinarySearchFunc(f.batches, after+1, func(b batch, r uint64) int { return compareUint(b.revision, r) })
	if i < len(f.batches) && f.batches[i].revision <= upTo {
		return f.batches[i], true, f.head, true
	}
	return batch{}, false, f.head, true
}

// knows reports whether a watch can go on behind a revision.
func (f *feed) knows(revision uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return revision >= f.lost && revision <= f.head
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// revision writes the number of a commit so that it is not taken for one of another
// opening of the file, which may have had that number for another commit.
func (f *feed) revision(n uint64) string { return fmt.Sprintf("%016x-%d", f.epoch, n) }

// parseRevision reads what revision wrote; ours says whether it is of this opening.
func (f *feed) parseRevision(text string) (n uint64, ours bool, err error) {
	epoch, number, ok := strings.Cut(text, "-")
	raw, err := hex.DecodeString(epoch)
	if n, numberErr := strconv.ParseUint(number, 10, 64); ok && err == nil && len(raw) == 8 && numberErr == nil {
		return n, epoch == fmt.Sprintf("%016x", f.epoch), nil
	}
	return 0, false, fail(KindArgument, "", "%q is not a revision that a watch gave", text)
}
