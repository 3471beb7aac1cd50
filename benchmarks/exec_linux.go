package main

import "syscall"

// endWithParent has a child ended when this process is killed and can no longer do
// it: the host does not read its standard input.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
