package pluginlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/address"
)

const (
	// maxFollowers is how many may follow logs of a host at once.
	maxFollowers = 64
	// What may wait for one that follows.
	maxBehind      = 4096    // records
	maxBehindBytes = 4 << 20 // of them
	// readBlock is how much of a file is read at once, in bytes.
	readBlock = 64 << 10
	// clockSlack is how much older than the one before it a record may be, since a clock
	// was set: a search backwards goes on for so long.
	clockSlack = time.Minute
)

// ErrFollowers says that too many follow logs already.
var ErrFollowers = fmt.Errorf("%d follow logs of this host already", maxFollowers)

// Has reports whether there is a log of a deployment, or something that is going to be
// one.
func (l *Logs) Has(deployment string) bool {
	if address.ValidDeploymentName(deployment) != nil {
		return false
	}
	l.mu.Lock()
	s := l.streams[deployment]
	l.mu.Unlock()
	if s != nil {
		return true // something was appended, or somebody follows
	}
	path := l.path(deployment)
	for _, path := range []string{path, oldPath(path, 1)} { // between two renames there is only the latter
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// Read gives the records of a deployment's log that are wanted, oldest first, on the
// caller's goroutine, and with Follow those that come until ctx ends, which is its error
// then. An error of yield ends it and is returned. What there is, is what there was when
// Read began; a caller that is slow delays nobody, and is told what it has lost.
func (l *Logs) Read(ctx context.Context, deployment string, q Query, yield func(Record) error) error {
	s := l.stream(deployment)
	if s == nil {
		return nil
	}
	var follow *sub
	if q.Follow {
		if err := l.enter(); err != nil {
			return err
		}
		defer l.leave()
		follow = &sub{q: q, deployment: deployment, wake: make(chan struct{}, 1)}
		defer s.unsubscribe(follow)
	}
	files, err := s.snapshot(ctx, follow)
	defer files.close()
	if err != nil {
		return err
	}
	if err := files.read(ctx, &q, yield); err != nil {
		return err
	}
	files.close() // what is followed may be long, and old files are removed meanwhile
	for follow != nil {
		r, err := follow.next(ctx)
		if err != nil {
			return err
		}
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *Logs) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.followers >= maxFollowers {
		return ErrFollowers
	}
	l.followers++
	return nil
}

func (l *Logs) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers--
}

// part is a file as it was at one moment, whatever its name is by now.
type part struct {
	f    *os.File
	size int64
}

// parts are the files of a log, the present one first.
type parts []part

// close may be called again.
func (p parts) close() {
	for _, one := range p {
		_ = one.f.Close()
	}
}

// snapshot opens the files of the log, with all that was appended before. From there on
// follow, if it is not nil, gets what comes.
func (s *stream) snapshot(ctx context.Context, follow *sub) (files parts, err error) {
	select {
	case s.hold <- struct{}{}:
		defer func() { <-s.hold }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if batch := s.take(); len(batch) > 0 {
		s.append(batch)
	}
	for n := 0; n <= s.l.o.Keep; n++ {
		path := s.path
		if n > 0 {
			path = s.old(n)
		}
		if err := s.l.o.Check(path); err != nil {
			return files, err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return files, err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file; remove it", path)
		}
		if err != nil {
			_ = f.Close()
			return files, err
		}
		files = append(files, part{f, info.Size()})
	}
	if follow != nil {
		s.subs[follow] = struct{}{}
	}
	return files, nil
}

// unsubscribe waits for who writes: that is a moment, or the disk hangs, and the end of
// those who follow is not worth a goroutine.
func (s *stream) unsubscribe(follow *sub) {
	follow.end()
	select {
	case s.hold <- struct{}{}:
		delete(s.subs, follow)
		<-s.hold
	default:
		go func() {
			s.hold <- struct{}{}
			delete(s.subs, follow)
			<-s.hold
		}()
	}
}

// read gives the wanted records: it looks backwards for where they begin, and reads on
// from there, so that it holds one at a time.
func (p parts) read(ctx context.Context, q *Query, yield func(Record) error) error {
	if q.Tail == 0 || len(p) == 0 {
		return nil
	}
	first, at := len(p)-1, int64(0)
	if q.Tail > 0 || !q.Since.IsZero() {
		first, at = -1, 0
		left, over := q.Tail, false
		for n := 0; n < len(p) && !over; n++ {
			err := lastLines(p[n].f, p[n].size, func(b []byte, offset int64) bool {
				r, ok := parseLine(b)
				switch {
				case ctx.Err() != nil, ok && !q.Since.IsZero() && r.Time.Before(q.Since.Add(-clockSlack)):
					over = true
				case ok && q.match(&r):
					first, at = n, offset
					left--
					over = left == 0
				}
				return !over
			})
			if err != nil {
				return err
			}
		}
	}
	for n := first; n >= 0; n-- {
		if err := p[n].lines(ctx, at, q, yield); err != nil {
			return err
		}
		at = 0
	}
	return nil
}

// lines gives the wanted records of one file from an offset on.
func (p part) lines(ctx context.Context, at int64, q *Query, yield func(Record) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(p.f, at, p.size-at), readBlock)
	var text []byte
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b, err := in.ReadSlice('\n')
		last := errors.Is(err, io.EOF)
		if len(text) <= maxLine { // else it is none, and only its end is looked for
			text = append(text, b...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !last:
			return err
		}
		if len(text) <= maxLine {
			if r, ok := parseLine(text); ok && q.match(&r) {
				if err := yield(r); err != nil {
					return err
				}
			}
		}
		if last {
			return nil
		}
		text = text[:0]
	}
}

// lastLines calls fn with the lines of the first size bytes of f, the last one first,
// and where each begins, until it says false. Lines that are too long are left out.
func lastLines(f io.ReaderAt, size int64, fn func(b []byte, offset int64) bool) error {
	block := make([]byte, readBlock)
	var line []byte     // of which the pieces are put together
	var pieces [][]byte // of the line whose beginning is not found yet, the last one first
	n, long := 0, false // their bytes; it is too long
	add := func(b []byte) {
		if n += len(b); n > maxLine {
			pieces, long = nil, true
		}
		if len(b) > 0 && !long {
			pieces = append(pieces, bytes.Clone(b))
		}
	}
	whole := func(offset int64) bool {
		line = line[:0]
		for _, piece := range slices.Backward(pieces) {
			line = append(line, piece...)
		}
		pieces, n, long = pieces[:0], 0, false
		return len(line) == 0 || fn(line, offset)
	}
	for end := size; end > 0; {
		b := block[:min(readBlock, end)]
		end -= int64(len(b))
		if _, err := f.ReadAt(b, end); err != nil {
			return err
		}
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b, '\n') {
			add(b[i+1:])
			if !whole(end + int64(i) + 1) {
				return nil
			}
			b = b[:i]
		}
		add(b)
	}
	whole(0)
	return nil
}

// sub is one that follows: what waits for it.
type sub struct {
	q          Query
	deployment string
	wake       chan struct{} // holds one token when something has come

	mu      sync.Mutex
	queue   []Record
	size    int
	dropped uint64 // after the queue
	ended   bool
}

// offer gives it a record, or counts that there was no room. It does not block.
func (s *sub) offer(r Record) {
	if !s.q.match(&r) {
		return
	}
	n := r.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return
	case s.dropped > 0, len(s.queue) >= maxBehind, s.size+n > maxBehindBytes:
		// Once something is missing, all is, until that can be told: one gap, and in
		// its place.
		s.dropped++
	default:
		s.queue, s.size = append(s.queue, r), s.size+n
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sub) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.queue = true, nil
}

// next waits for the next record, or for ctx, of which it returns the cause.
func (s *sub) next(ctx context.Context) (Record, error) {
	for {
		s.mu.Lock()
		switch {
		case len(s.queue) > 0:
			r := s.queue[0]
			s.queue[0] = Record{}
			s.queue, s.size = s.queue[1:], s.size-r.size()
			s.mu.Unlock()
			return r, nil
		case s.dropped > 0:
			n := s.dropped
			s.dropped = 0
			s.mu.Unlock()
			return Record{
				Time: time.Now(), Level: hclog.Warn, Deployment: s.deployment, Source: sourceHost, Dropped: n,
				Message: "records are missing here: they came faster than they were read",
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Record{}, context.Cause(ctx)
		}
	}
}
