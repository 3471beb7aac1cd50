package main

import (
	"fmt"
	"syscall"
)

// endWithParent has a child ended when this process is killed and can no longer do
// it: the host does not read its standard input.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}

// filesystem names what a folder is on: on a tmpfs a flush costs nothing.
func filesystem(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "an unknown filesystem"
	}
	switch st.Type {
	case 0xEF53:
		return "ext4"
	case 0x58465342:
		return "xfs"
	case 0x9123683E:
		return "btrfs"
	case 0x794C7630:
		return "overlayfs"
	case 0x01021994:
		return "**tmpfs, where a flush costs nothing: set TMPDIR to a folder on a disk**"
	}
	return fmt.Sprintf("a filesystem of type %#x", st.Type)
}
