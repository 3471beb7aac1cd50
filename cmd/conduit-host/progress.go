package main

import (
	"fmt"
	"io"
)

// statusLine is a line of a terminal that says how far something is, and is replaced by
// what comes next. Where nobody looks there is none: a script's standard error holds
// what went wrong, and nothing else.
type statusLine struct{ w io.Writer } // nil = nobody looks

// newStatusLine makes one on standard error, if that is a terminal and a person reads
// the result, too.
func (a *app) newStatusLine() statusLine {
	if isTerminal(a.stderr) && a.output == formatTable {
		return statusLine{a.stderr}
	}
	return statusLine{}
}

// show replaces the line.
func (s statusLine) show(format string, args ...any) {
	if s.w != nil {
		fmt.Fprintf(s.w, "\r\x1b[K%s", printable(fmt.Sprintf(format, args...)))
	}
}

// clear takes the line away.
func (s statusLine) clear() {
	if s.w != nil {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}
