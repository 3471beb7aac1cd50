//go:build !linux

package transport

import (
	"net"
	"time"
)

// setUserTimeout does nothing here: only Linux has the option. The link's own
// probes and the write timeout find a dead peer all the same.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
