//go:build !linux

package main

import "syscall"

func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func filesystem(string) string { return "an unknown filesystem" }
