package pluginlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit/address"
)

const (
	// maxQueue is what may wait to be written of one deployment, in bytes.
	maxQueue = 8 << 20
	// chunk is how much is written at once, in bytes, unless one record is longer.
	chunk = 64 << 10
	// retryAfter is how long a file that could not be written is left alone.
	retryAfter = time.Second
	// fileSuffix ends the name of a deployment's file; a number follows for old ones.
	fileSuffix = ".log"
	// sourceHost is the source of what is said here.
	sourceHost = "host"
)

// Options say where the files are and how large they may get.
type Options struct {
	// Dir has the files; it must be there when something is written, and be this user's
	// alone.
	Dir string
	// MaxSize is how large a file may get, in bytes; a single record may be larger.
	MaxSize int64
	// Keep is how many files of a deployment are kept beside the present one; at least 1.
	Keep int
	// Check says why a path must not be written or read; nil = any may.
	Check func(path string) error
	// Trouble hears when a deployment's file cannot be written, once, and with a nil
	// error when it can again; then lost records are missing in it. It must not block.
	Trouble func(deployment string, lost uint64, err error)
}

// Logs are the logs of all deployments of a host. All methods may be called
// concurrently.
type Logs struct {
	o Options
	// create opens a file to write; a test puts its own here.
	create func(path string) (file, error)

	mu        sync.Mutex
	streams   map[string]*stream
	followers int
}

// file is what is written of an *os.File.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
}

// New makes the logs of a host; it touches nothing.
func New(o Options) *Logs {
	if o.Check == nil {
		o.Check = func(string) error { return nil }
	}
	if o.Trouble == nil {
		o.Trouble = func(string, uint64, error) {}
	}
	o.Keep = max(o.Keep, 1)
	return &Logs{o: o, create: create, streams: map[string]*stream{}}
}

// create opens a file to append to. What is no plain file is refused without waiting.
func create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// stream is the log of one deployment.
type stream struct {
	l          *Logs
	deployment string
	path       string

	// hold is a token that whoever has the file, and the fields below it, has.
	hold    chan struct{}
	subs    map[*sub]struct{}
	failed  uint64 // records that were not written since trouble came
	trouble error  // why the file cannot be written
	retry   time.Time

	mu      sync.Mutex
	queue   []Record
	size    int           // of it
	lost    uint64        // records that there was no room for
	writing chan struct{} // closed when who writes has nothing left; nil = nobody writes
}

// stream finds the log of a deployment. It is nil if that is not the name of one.
func (l *Logs) stream(deployment string) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[deployment]
	if s == nil && address.ValidDeploymentName(deployment) == nil {
		s = &stream{
			l: l, deployment: deployment, path: l.path(deployment),
			hold: make(chan struct{}, 1), subs: map[*sub]struct{}{},
		}
		l.streams[deployment] = s
	}
	return s
}

func (l *Logs) path(deployment string) string {
	return filepath.Join(l.o.Dir, deployment+fileSuffix)
}

// Append adds a record to the log of its deployment. It does not block; r is not used by
// the caller any more.
func (l *Logs) Append(r Record) {
	s := l.stream(r.Deployment)
	if s == nil {
		return
	}
	n := r.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size+n > maxQueue {
		s.lost++
		return
	}
	s.queue, s.size = append(s.queue, r), s.size+n
	if s.writing == nil {
		s.writing = make(chan struct{})
		go s.write()
	}
}

// Flush waits until what was appended before is written, or ctx ends.
func (l *Logs) Flush(ctx context.Context) error {
	l.mu.Lock()
	streams := make([]*stream, 0, len(l.streams))
	for _, s := range l.streams {
		streams = append(streams, s)
	}
	l.mu.Unlock()
	for _, s := range streams {
		s.mu.Lock()
		writing := s.writing
		s.mu.Unlock()
		if writing == nil {
			continue
		}
		select {
		case <-writing:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// write writes the queue until it is empty.
func (s *stream) write() {
	for {
		s.hold <- struct{}{}
		more := s.put()
		<-s.hold
		if !more {
			return
		}
	}
}

// take takes the queue. hold is held, so that records keep their order.
func (s *stream) take() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch, lost := s.queue, s.lost
	s.queue, s.size, s.lost = nil, 0, 0
	if lost > 0 {
		batch = append(batch, s.notice("records are missing here: they came faster than they could be written", lost))
	}
	return batch
}

// put writes the queue, and tells those who follow. It reports false, and lets the next
// record begin anew, if there was nothing. hold is held.
func (s *stream) put() bool {
	batch := s.take()
	if len(batch) == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.queue) > 0 || s.lost > 0 {
			return true
		}
		close(s.writing)
		s.writing = nil
		return false
	}
	s.append(batch)
	return true
}

// notice is a record of the host's own on the log itself.
func (s *stream) notice(what string, lost uint64) Record {
	return Record{
		Time: time.Now(), Level: hclog.Warn, Deployment: s.deployment, Source: sourceHost, Message: what,
		Fields: map[string]string{"lost": strconv.FormatUint(lost, 10)},
	}
}

// append writes records to the file, as many at once as go into a chunk. Those who follow
// get them whatever becomes of the file. hold is held.
func (s *stream) append(batch []Record) {
	var f file
	var size int64
	err := s.trouble
	if err == nil || !time.Now().Before(s.retry) {
		f, size, err = s.open()
		defer func() {
			if err != nil {
				s.retry = time.Now().Add(retryAfter)
			}
		}()
	}
	before := s.failed
	var text bytes.Buffer
	for len(batch) > 0 {
		text.Reset()
		if before > 0 && err == nil { // those who follow have them
			missing := s.notice("records are missing here: they could not be written: "+s.trouble.Error(), before)
			appendLine(&text, &missing)
		}
		n := 0
		for n < len(batch) && text.Len() < chunk {
			appendLine(&text, &batch[n])
			n++
		}
		if err == nil && size > 0 && size+int64(text.Len()) > s.l.o.MaxSize {
			_ = f.Close()
			if err = s.rotate(); err == nil {
				f, size, err = s.open()
			}
		}
		if err == nil {
			err = writeWhole(f, size, text.Bytes())
		}
		if err == nil {
			size += int64(text.Len())
			s.works(before)
			before = 0
		} else {
			s.fails(n, err)
		}
		for i := range batch[:n] {
			for to := range s.subs {
				to.offer(batch[i])
			}
		}
		batch = batch[n:]
	}
	if f != nil {
		_ = f.Close()
	}
}

// works notes that the file could be written; lost records are missing in it, of which it
// says so itself.
func (s *stream) works(lost uint64) {
	if s.trouble != nil {
		s.l.o.Trouble(s.deployment, lost, nil)
	}
	s.failed, s.trouble = 0, nil
}

// fails notes that n records could not be written.
func (s *stream) fails(n int, err error) {
	s.failed += uint64(n)
	if s.trouble == nil {
		s.l.o.Trouble(s.deployment, 0, err)
	}
	s.trouble = err
}

// open opens the file and makes an end to a line that was cut. An error closes it.
func (s *stream) open() (f file, size int64, err error) {
	if err := s.l.o.Check(s.path); err != nil {
		return nil, 0, err
	}
	f, err = s.l.create(s.path)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			f = nil
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return f, 0, err
	}
	if !info.Mode().IsRegular() {
		return f, 0, fmt.Errorf("%s is not a file; remove it", s.path)
	}
	size = info.Size()
	if size == 0 {
		return f, 0, nil
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], size-1); err != nil {
		return f, 0, err
	}
	if last[0] == '\n' {
		return f, size, nil
	}
	return f, size + 1, writeWhole(f, size, []byte("\n"))
}

// writeWhole appends text to a file of that size, and takes back what it can of a part.
func writeWhole(f file, size int64, text []byte) error {
	n, err := f.Write(text)
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	if err != nil && n > 0 {
		_ = f.Truncate(size) // else the next to open it ends the line
	}
	return err
}

func (s *stream) old(n int) string { return oldPath(s.path, n) }

// oldPath is the path of an old file, of which 1 is the last one.
func oldPath(path string, n int) string { return path + "." + strconv.Itoa(n) }

// rotate makes the file an old one, and removes those that are too many. hold is held,
// and the file closed.
func (s *stream) rotate() error {
	for n := s.l.o.Keep; ; n++ {
		err := os.Remove(s.old(n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
	}
	for n := s.l.o.Keep - 1; n > 0; n-- {
		if err := os.Rename(s.old(n), s.old(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(s.path, s.old(1))
}
