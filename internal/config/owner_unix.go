//go:build unix

package config

import (
	"os"
	"syscall"
)

// owned reports whether the path belongs to the user of this process.
func owned(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
