// Package pluginlog keeps what the elements of a host write: a file of JSON lines for
// each deployment, in pieces of bounded size, and those who follow it.
//
// Who writes is never kept waiting: a record goes into a queue of bounded size, and a
// goroutine that lives as long as there is something in it writes the file. A file that
// cannot be written costs the records, which are counted, and nothing else. No file is
// open while nothing is written.
//
// Each record is one line, and is written as a whole or not at all as far as that can be
// had. What a process that was killed left cut is skipped by who reads, and ended by the
// next who writes.
package pluginlog
