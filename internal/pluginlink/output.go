package pluginlink

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Limits of what one element may write to the host's log.
const (
	linesPerSecond = 2000
	lineBurst      = 20000
	lineUnit       = 1024 // bytes that count as a line, once a line is longer
	tailLines      = 20   // lines of stderr that an error shows
	tailLine       = 1024 // bytes of each
	maxElement     = 128  // bytes of a name that is shown before it was checked
	maxBlock       = 64 << 10
	blockQuiet     = 200 * time.Millisecond // a panic's text comes at once
	blockTime      = 2 * time.Second        // what comes later is no part of it, even if there was no pause
	dropNotice     = time.Second            // so often it is said how much was dropped
)

// The sources of records.
const (
	sourceStdout = "stdout"
	sourceStderr = "stderr"
	sourceHost   = "host" // what is to be said of its output, or of the process
)

// OutputRecord is one record of a process's log, harmless in a terminal: message and
// fields are one line each of text without control characters, but for the field
// "stack", which has several lines.
type OutputRecord struct {
	Time    time.Time // when it was read
	Level   hclog.Level
	Element string // as the process calls itself; empty until it has said so
	Pid     int
	// Source is "stdout", "stderr", or "host" for what the host has to say.
	Source  string
	Message string
	// Fields are keys and values in turns; keys are texts.
	Fields []any
}

// output is where all that a process writes goes: its log, within a rate, and
// the tail that explains its end. All methods may be called concurrently.
type output struct {
	log     hclog.Logger
	sink    func(OutputRecord)     // beside log, whatever its level; nil = nothing
	element atomic.Pointer[string] // what it calls itself; nil until it has said so
	redact  atomic.Pointer[func(string) string]
	pid     atomic.Int64

	mu      sync.Mutex
	tail    []string
	died    string // the line that a panic's text began with, if nothing came behind that text
	tokens  float64
	last    time.Time
	dropped uint64      // since the last notice
	notice  *time.Timer // tells of them; nil while there are none
	lost    uint64      // in all
}

func newOutput(log hclog.Logger, sink func(OutputRecord)) *output {
	return &output{log: log, sink: sink, tokens: lineBurst}
}

// setElement names whose output it is from now on.
func (o *output) setElement(name string) {
	name = Text(name, maxElement)
	o.element.Store(&name)
}

func (o *output) elementName() string {
	if name := o.element.Load(); name != nil {
		return *name
	}
	return ""
}

// clear takes out of a line what must not be shown.
func (o *output) clear(line []byte) []byte {
	if f := o.redact.Load(); f != nil {
		return []byte((*f)(string(line)))
	}
	return line
}

// Tail returns the last lines of stderr, oldest first.
func (o *output) Tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.tail...)
}

// LastWords returns the line of stderr that says most of why the process has ended: the
// first of a panic's text, if that is what came last, else the last one; "" if it wrote
// nothing.
func (o *output) LastWords() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.died != "":
		return o.died
	case len(o.tail) > 0:
		return o.tail[len(o.tail)-1]
	default:
		return ""
	}
}

// endedWith is LastWords with the two lines before it, unless it is a panic's.
func (o *output) endedWith() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.died != "" {
		return o.died
	}
	return strings.Join(o.tail[max(0, len(o.tail)-3):], " / ")
}

// setDied notes with what line a panic's text has begun; "" = what came is none.
func (o *output) setDied(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.died = line
}

// Lost returns how many lines were dropped for being too many.
func (o *output) Lost() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

func (o *output) remember(line []byte) {
	s := shorten(clean(string(line[:min(len(line), tailLine)])), tailLine)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tail) == tailLines {
		copy(o.tail, o.tail[1:])
		o.tail = o.tail[:tailLines-1]
	}
	o.tail = append(o.tail, s)
}

// allow takes the tokens of a line of that many bytes, or counts it as dropped.
func (o *output) allow(now time.Time, size int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last.IsZero() {
		o.tokens = min(lineBurst, o.tokens+now.Sub(o.last).Seconds()*linesPerSecond)
	}
	o.last = now
	if o.tokens >= 1 {
		o.tokens -= max(1, float64(size)/lineUnit) // a debt, for a long one
		return true
	}
	o.dropped++
	o.lost++
	if o.notice == nil {
		o.notice = time.AfterFunc(dropNotice, o.tellDropped)
	}
	return false
}

// tellDropped says how many lines were dropped, if any were: while it goes on, and when
// it is over.
func (o *output) tellDropped() {
	o.mu.Lock()
	n := o.dropped
	o.dropped = 0
	if o.notice != nil {
		o.notice.Stop()
		o.notice = nil
	}
	o.mu.Unlock()
	if n > 0 {
		o.emit(sourceHost, record{hclog.Warn, "lines of the element's log were dropped: it writes too many", []any{"dropped", n, "per_second", linesPerSecond}})
	}
}

// write logs a record of a line of that many bytes, of which cut were lost, unless there
// were too many.
func (o *output) write(source string, size, cut int, r func() record) {
	if !o.allow(time.Now(), size) {
		return
	}
	rec := r()
	if cut > 0 {
		rec.args = append(rec.args, "truncated", true, "lost_bytes", cut)
	}
	o.emit(source, rec)
}

// emit logs a record, whatever the rate.
func (o *output) emit(source string, r record) {
	element, pid := o.elementName(), int(o.pid.Load())
	if o.sink != nil {
		o.sink(OutputRecord{Time: time.Now(), Level: r.level, Element: element, Pid: pid, Source: source, Message: r.message, Fields: r.args})
	}
	o.log.Log(r.level, r.message, append(slices.Clip(r.args), "element", element, "pid", pid, "source", source)...)
}

// line logs one line of stdout or stderr.
func (o *output) line(source string, line []byte, cut int) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	line = o.clear(line)
	o.write(source, len(line), cut, func() record {
		if cut == 0 {
			if r, ok := parseRecord(line); ok {
				return r
			}
		}
		return plainRecord(line, cut)
	})
}

// block is the text of a panic, as it comes.
type block struct {
	lines []string
	size  int
	cut   int       // bytes that were dropped, since there were too many
	end   time.Time // when it is over at the latest
}

func (b *block) add(line []byte) {
	if len(b.lines) == 0 && len(line) > maxBlock {
		b.cut += len(line) - maxBlock
		line = line[:maxBlock]
	}
	if b.size+len(line) > maxBlock {
		b.cut += len(line) + 1
		return
	}
	b.size += len(line)
	b.lines = append(b.lines, clean(string(line)))
}

// block logs the text of a panic as one record.
func (o *output) block(b *block) {
	o.write(sourceStderr, b.size, b.cut, func() record {
		return record{level: hclog.Error, message: b.lines[0], args: []any{"stack", strings.Join(b.lines[1:], "\n")}}
	})
}

// drainStderr logs everything from r until it ends. setDeadline bounds the wait
// for the rest of a panic's text.
func (o *output) drainStderr(r io.Reader, setDeadline func(time.Time) error) {
	lines := newLineReader(r)
	var panicked *block
	flush := func() {
		if panicked != nil {
			o.block(panicked)
			panicked = nil
			_ = setDeadline(time.Time{})
		}
	}
	defer flush()
	for {
		line, cut, err := lines.next()
		if err != nil {
			if panicked == nil {
				return
			}
			flush() // it was quiet for a while, or it is the end: then the next read says so again
			continue
		}
		line = o.clear(line)
		o.remember(line)
		now := time.Now()
		if panicked != nil && now.After(panicked.end) {
			flush() // a process that goes on after a line that only looks like one
		}
		if panicked != nil {
			if _, ok := parseRecord(line); ok {
				flush()
			}
		}
		if panicked == nil {
			if !startsPanic(line) {
				o.setDied("")
				o.line(sourceStderr, line, cut)
				continue
			}
			o.setDied(shorten(clean(string(line[:min(len(line), tailLine)])), tailLine))
			panicked = &block{end: now.Add(blockTime)}
		}
		panicked.add(line)
		panicked.cut += cut
		_ = setDeadline(now.Add(blockQuiet))
	}
}

func startsPanic(line []byte) bool {
	return bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) || bytes.HasPrefix(line, []byte("runtime: goroutine stack exceeds"))
}

// lineWriter is an io.Writer that logs each line that is written to it. It
// never fails. Its methods may be called concurrently.
type lineWriter struct {
	out    *output
	source string

	mu   sync.Mutex
	part []byte
	cut  int
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	for {
		line, rest, ok := bytes.Cut(p, []byte("\n"))
		if room := maxLine - len(w.part); len(line) > room {
			w.cut += len(line) - room
			line = line[:room]
		}
		w.part = append(w.part, line...)
		if !ok {
			return n, nil
		}
		w.log()
		p = rest
	}
}

// flush logs what came without the end of its line; nothing comes after it.
func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log()
}

// log logs the line. mu is held.
func (w *lineWriter) log() {
	line := w.out.clear(trimEnd(w.part))
	if w.source == sourceStderr && len(line) > 0 {
		w.out.remember(line)
	}
	w.out.line(w.source, line, w.cut)
	w.part, w.cut = w.part[:0], 0
	if cap(w.part) > 64<<10 {
		w.part = nil // a long line is rare: do not keep its buffer
	}
}
