package pluginlink

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
)

// maxLine is the longest line of output that is kept; the rest of a longer one
// is counted and dropped, so that a plugin cannot fill the host's memory.
const maxLine = 256 << 10

// lineReader cuts a stream into lines of bounded length. It never stops for a
// long line. Not safe for concurrent use.
type lineReader struct {
	r    *bufio.Reader
	part []byte // of the line that is being read, at most maxLine
	cut  int    // bytes of it that were dropped
	raw  bool   // carriage returns before the line's end are part of it
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{r: bufio.NewReaderSize(r, 32<<10)} }

// next returns the next line without its end, and how many bytes it lost. The
// bytes are valid until the next call. After a deadline of the reader's has
// passed, next may be called again.
func (l *lineReader) next() (line []byte, cut int, err error) {
	for {
		b, err := l.r.ReadSlice('\n')
		if err == nil && len(l.part) == 0 && l.cut == 0 {
			return l.trim(b), 0, nil
		}
		room := maxLine - len(l.part)
		if len(b) > room {
			l.cut += len(b) - room
			b = b[:room]
		}
		l.part = append(l.part, b...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, 0, err
		case err != nil && len(l.part) == 0:
			return nil, 0, err
		}
		line, cut = l.trim(l.part), l.cut
		if cut > 0 && err == nil {
			cut-- // the end of the line is none of it
		}
		l.part, l.cut = l.part[:0], 0
		if cap(l.part) > 64<<10 {
			l.part = nil // a long line is rare: do not keep its buffer
		}
		return line, cut, nil
	}
}

func (l *lineReader) trim(b []byte) []byte {
	if l.raw {
		return bytes.TrimSuffix(b, []byte("\n"))
	}
	return trimEnd(b)
}

func trimEnd(b []byte) []byte { return bytes.TrimRight(b, "\r\n") }
