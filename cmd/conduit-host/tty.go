package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal reports whether w is a person's terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), ioctlGetTermios)
	return err == nil
}
