package pluginlink

import (
	"bytes"
	"io"
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
	tailLines      = 20   // lines of stderr that an error shows
	tailLine       = 1024 // bytes of each
	maxBlock       = 64 << 10
	blockQuiet     = 200 * time.Millisecond // a panic's text comes at once
)

// output is where all that a process writes goes: its log, within a rate, and
// the tail that explains its end. All methods may be called concurrently.
type output struct {
	log     hclog.Logger
	element atomic.Pointer[string] // what it calls itself; nil until it has said so
	redact  atomic.Pointer[func(string) string]

	mu      sync.Mutex
	tail    []string
	tokens  float64
	last    time.Time
	dropped uint64 // since the last notice
	lost    uint64 // in all
}

func newOutput(log hclog.Logger) *output { return &output{log: log, tokens: lineBurst} }

// setElement names whose output it is from now on.
func (o *output) setElement(name string) {
	name = clean(name)
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

// allow takes a token. noticed is how many lines were dropped before this one.
func (o *output) allow(now time.Time) (ok bool, noticed uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last.IsZero() {
		o.tokens = min(lineBurst, o.tokens+now.Sub(o.last).Seconds()*linesPerSecond)
	}
	o.last = now
	if o.tokens < 1 {
		o.dropped++
		o.lost++
		return false, 0
	}
	o.tokens--
	noticed, o.dropped = o.dropped, 0
	return true, noticed
}

// write logs a record, unless there were too many.
func (o *output) write(source string, cut int, r func() record) {
	ok, dropped := o.allow(time.Now())
	if dropped > 0 {
		o.log.Warn("lines of the element's log were dropped: it writes too many", "dropped", dropped, "per_second", linesPerSecond, "element", o.elementName())
	}
	if !ok {
		return
	}
	rec := r()
	rec.args = append(rec.args, "element", o.elementName(), "source", source)
	if cut > 0 {
		rec.args = append(rec.args, "truncated", true, "lost_bytes", cut)
	}
	o.log.Log(rec.level, rec.message, rec.args...)
}

// line logs one line of stdout or stderr.
func (o *output) line(source string, line []byte, cut int) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	line = o.clear(line)
	o.write(source, cut, func() record {
		if cut == 0 {
			if r, ok := parseRecord(line); ok {
				return r
			}
		}
		return plainRecord(line, cut)
	})
}

// block logs the text of a panic as one record.
func (o *output) block(lines []string) {
	o.write("stderr", 0, func() record {
		return record{level: hclog.Error, message: lines[0], args: []any{"stack", strings.Join(lines[1:], "\n")}}
	})
}

// drainStderr logs everything from r until it ends. setDeadline bounds the wait
// for the rest of a panic's text.
func (o *output) drainStderr(r io.Reader, setDeadline func(time.Time) error) {
	lines := newLineReader(r)
	var block []string
	size := 0
	flush := func() {
		if len(block) > 0 {
			o.block(block)
			block, size = nil, 0
			_ = setDeadline(time.Time{})
		}
	}
	defer flush()
	for {
		line, cut, err := lines.next()
		if err != nil {
			if len(block) == 0 {
				return
			}
			flush() // it was quiet for a while, or it is the end: then the next read says so again
			continue
		}
		line = o.clear(line)
		o.remember(line)
		_, isRecord := parseRecord(line)
		switch {
		case isRecord && len(block) > 0:
			flush()
			o.line("stderr", line, cut)
		case len(block) > 0 || startsPanic(line):
			if size += len(line); size <= maxBlock {
				block = append(block, clean(string(line)))
			}
			_ = setDeadline(time.Now().Add(blockQuiet))
		default:
			o.line("stderr", line, cut)
		}
	}
}

func startsPanic(line []byte) bool {
	return bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) || bytes.HasPrefix(line, []byte("runtime: goroutine stack exceeds"))
}

// lineWriter is an io.Writer that logs each line that is written to it. It
// never fails. Not safe for concurrent use.
type lineWriter struct {
	out    *output
	source string
	part   []byte
	cut    int
}

func (w *lineWriter) Write(p []byte) (int, error) {
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
		w.out.line(w.source, trimEnd(w.part), w.cut)
		w.part, w.cut, p = w.part[:0], 0, rest
	}
}
