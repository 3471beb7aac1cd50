package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
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

// waits shows how long something goes on, from the first second on, until there is
// something to print or waitsNoMore.
func (a *app) waits(what string) {
	s := a.newStatusLine()
	if s.w == nil {
		return
	}
	over := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		began := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.show("%s: %v", what, time.Since(began).Round(time.Second))
			case <-over:
				return
			}
		}
	})
	a.unshow = func() {
		close(over)
		showing.Wait()
		s.clear()
	}
}

// waitsNoMore takes away what waits shows, if anything.
func (a *app) waitsNoMore() {
	if a.unshow != nil {
		a.unshow()
		a.unshow = nil
	}
}

// coloured reports whether what is written to w may have colours: on a terminal, unless
// NO_COLOR is set to anything (https://no-color.org).
func (a *app) coloured(w any) bool {
	return isTerminal(w) && !slices.ContainsFunc(a.environ, func(v string) bool {
		value, ok := strings.CutPrefix(v, "NO_COLOR=")
		return ok && value != ""
	})
}
